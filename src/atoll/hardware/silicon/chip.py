"""Area and power of one chip, by its template."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from atoll.base.arrays import Floats
from atoll.hardware.accelerator import Accelerator
from atoll.hardware.energy import hbm_power_W, template_energy
from atoll.hardware.physical.die import die_usd
from atoll.hardware.physical.price import USUAL_PRICES, Prices, device_usd
from atoll.hardware.silicon.systolic import SYSTOLIC
from atoll.hardware.template.parameter import Columns
from atoll.hardware.template.stalls import CACHED, Stalls
from atoll.hardware.template.template import MACHINE, ChipTemplate


def chip_template(chip: Accelerator) -> ChipTemplate:
    return chip.template or SYSTOLIC


def chip_stalls(chip: Accelerator) -> Stalls:
    """Return the stalls that a chip states, or those of its template."""
    return chip.stalls or chip_template(chip).stalls


def chip_columns(chip: Accelerator) -> Columns:
    """Return the columns of a space with this single chip."""
    names = (*MACHINE, "glb_bandwidth_Bpc", "core_buffer_bytes")
    parameters = {parameter.name: np.array([value]) for parameter, value in chip.more}
    silicon = {"dies": chip.dies, "spare": chip.spare, "threaded": chip_stalls(chip) == CACHED}
    return (
        {name: np.array([getattr(chip, name)]) for name in names}
        | {name: np.array([float(value)]) for name, value in silicon.items()}
        | parameters
    )


def rebanked(chip: Accelerator) -> Accelerator:
    """A chip with the bandwidth that the banks of its shared buffer serve, where it has banks."""
    banked = chip_template(chip).banked
    if banked is None:
        return chip
    return replace(chip, glb_bandwidth_Bpc=float(banked.bytes_per_clock(chip_columns(chip))[0]))


def accelerator_area_mm2(chip: Accelerator) -> float:
    """Area of one device, its HBM PHYs included where the `Hbm` states them."""
    return float(chip_template(chip).area_mm2(chip_columns(chip))[0]) + chip.hbm.area_mm2


def area_parts(chip: Accelerator) -> dict[str, float]:
    """Area of one device by part."""
    parts = chip_template(chip).area_parts(chip_columns(chip))
    return {name: float(mm2[0]) for name, mm2 in parts.items()} | {"hbm_mm2": chip.hbm.area_mm2}


def dies_usd(template: ChipTemplate, chips: Columns, area_mm2: Floats) -> Floats:
    """Return the price of the good dies of each package; its template has a process."""
    if template.dies_usd is not None:
        return template.dies_usd(chips, area_mm2)
    process_nm = chips.get("process_nm", template.process_nm)
    assert process_nm is not None
    return die_usd(area_mm2, process_nm)


def accelerator_usd(chip: Accelerator, prices: Prices = USUAL_PRICES) -> float | None:
    """Return the price of one device; None where its areas are not those of a process."""
    template, columns = chip_template(chip), chip_columns(chip)
    if template.process_nm is None and "process_nm" not in columns:
        return None
    area_mm2 = np.array([accelerator_area_mm2(chip)])
    silicon_usd = dies_usd(template, columns, area_mm2)
    usd = device_usd(silicon_usd, area_mm2, chip.hbm.capacity_bytes, prices, columns["dies"])
    return float(usd[0])


def peak_power_W(chip: Accelerator) -> float:
    """All cores and buffers busy with random data, HBM, and static power.

    An upper bound rather than a measured draw: for the TPU v4-like reference it gives 248.6 W,
    29.5 % above the 192 W maximum that [TPUv4] measured over production workloads, none of which
    keeps the arrays, the buffers and the HBM saturated at once.
    """
    energy = template_energy(chip_template(chip))
    dynamic = float(chip_template(chip).power_W(chip_columns(chip), energy)[0])
    return dynamic + _other_power_W(chip)


def rated_power_W(chip: Accelerator) -> float:
    """Thermal design power as in `atoll validate --chips`; else `peak_power_W`."""
    rating_W = chip_template(chip).rating_W
    if rating_W is None:
        return peak_power_W(chip)
    return float(rating_W(chip_columns(chip))[0]) + _other_power_W(chip)


def _other_power_W(chip: Accelerator) -> float:
    """Power of HBM and static power."""
    energy = template_energy(chip_template(chip))
    return hbm_power_W(chip.hbm, energy) + energy.static_W_per_mm2 * accelerator_area_mm2(chip)
