"""One model of area and power: a chip described in a template is rated as a published one is."""

from __future__ import annotations

from math import sqrt
from pathlib import Path

import pytest

from atoll.hardware.accelerator import Accelerator
from atoll.hardware.physical.area import area_mm2
from atoll.hardware.physical.memories import HBM
from atoll.hardware.physical.physical_chip import columns
from atoll.hardware.physical.power import power_parts_W
from atoll.hardware.silicon.chip import accelerator_area_mm2, peak_power_W, rated_power_W
from atoll.hardware.silicon.physical import LINKED, stacked_memory
from atoll.hardware.template.stalls import STALLS
from atoll.validation.chip_rows import ChipRow, read_chips

CHIPS = read_chips(Path(__file__).parents[1] / "data/chips.csv")[0]


def described(row: ChipRow) -> Accelerator:
    """The chip of a row in the template whose chips have a process and links: arrays and lanes in
    the row's units, all memory but core buffers in the shared one."""
    chip = row.chip
    arrays, side = chip.bf16_cells / chip.unit_cells, sqrt(chip.unit_cells)
    vector_cores = chip.cores if chip.cores >= arrays else 1.0
    stack_Bps = chip.dram_Bps / chip.stacks
    kind = min(HBM, key=lambda name: abs(HBM[name].energy - chip.dram_energy))
    numbers: dict[str, float] = {
        "tensor_cores": arrays, "vector_cores": vector_cores, "width": side, "depth": side,
        "vector_width": chip.lanes / vector_cores, "glb_bandwidth_Bpc": chip.shared_Bpc,
        "clock_Hz": chip.clock_Hz, "dies": chip.dies, "spare": chip.spare,
    }  # fmt: skip
    vector_bytes = vector_cores * max(1024, chip.lanes / vector_cores // 64 * 1024)
    core_bytes = max(1.0, (chip.scratchpad_bytes - vector_bytes) / 2 / arrays)
    shared = chip.cache_bytes
    if chip.threaded:
        core_bytes = (chip.scratchpad_bytes - vector_bytes) / arrays
    else:
        shared = chip.scratchpad_bytes - arrays * core_bytes - vector_bytes
    return Accelerator(
        **numbers,  # type: ignore[arg-type]
        glb_bytes=shared,  # type: ignore[arg-type]
        stated_core_buffer_bytes=core_bytes,  # type: ignore[arg-type]
        hbm=stacked_memory(kind, int(chip.stacks), 1, stack_Bps),
        template=LINKED,
        more=tuple(
            (p, {"process_nm": chip.process_nm, "link_Bps": chip.link_Bps}[p.name])
            for p in LINKED.extra_parameters
        ),
        stalls=STALLS["cached" if chip.threaded else "scratchpad"],
    )


DESCRIBED = [
    row for row in CHIPS if row.chip.stacks > 0 and row.chip.matrix_units and row.chip.bf16_cells
]


def test_most_chips_of_the_table_can_be_described() -> None:
    names = {row.name for row in DESCRIBED}
    assert {"A100 SXM", "H100 SXM", "Gaudi 3", "TPU v4i", "TPU v5e", "Ascend 910"} <= names


@pytest.mark.parametrize("row", DESCRIBED, ids=lambda row: row.name)
def test_a_search_rates_a_chip_as_validation_does(row: ChipRow) -> None:
    chip, published = described(row), columns([row.chip])
    parts_W = power_parts_W(published)
    assert accelerator_area_mm2(chip) == pytest.approx(float(area_mm2(published)[0]), rel=1e-4)
    rating_W = sum(float(part[0]) for part in parts_W.values())
    assert rated_power_W(chip) == pytest.approx(rating_W, rel=1e-4)
    assert peak_power_W(chip) > rated_power_W(chip)
