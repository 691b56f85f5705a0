"""Energy of one training step, by part, and the power that goes with it.

Dynamic energy follows from the work (multiply-adds, vector operations, bytes by level), static
power from area and time. Traffic is that of each operator at its widest spread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from atoll.explore.evaluate import Priced
from atoll.explore.workloads import Variant
from atoll.hardware.energy import DEFAULT_ENERGY, EnergyModel


@dataclass(frozen=True)
class StepEnergy:
    """Joules of one step on all devices together."""

    parts_J: Mapping[str, float]
    step_time_s: float
    devices: int
    tokens: int

    @property
    def total_J(self) -> float:
        return sum(self.parts_J.values())

    @property
    def power_W(self) -> float:
        """Mean power of one device."""
        return self.total_J / self.step_time_s / self.devices

    @property
    def per_token_J(self) -> float:
        return self.total_J / self.tokens


def step_energy(
    priced: Priced,
    chip: int,
    variant: Variant,
    *,
    step_time_s: float,
    devices: int,
    recompute_share: float = 0.0,
    energy: EnergyModel = DEFAULT_ENERGY,
) -> StepEnergy:
    """What a step of this length costs on these devices.

    Every microbatch of the batch passes every layer once, on `tensor` devices. Recomputed operators
    run again: `recompute_share` is their time in terms of the rest, and taken for their energy.
    """
    factor = variant.tensor * variant.microbatches * (1.0 + recompute_share)
    parts = {
        name: joules * factor for name, joules in _per_device(priced, chip, variant, energy).items()
    }
    area_mm2 = float(priced.chips.area_mm2[chip])
    parts["static"] = energy.static_W_per_mm2 * area_mm2 * devices * step_time_s
    tokens = variant.microbatches * variant.model.tokens
    return StepEnergy(parts, step_time_s, devices, tokens)


def _per_device(
    priced: Priced, chip: int, variant: Variant, energy: EnergyModel
) -> dict[str, float]:
    """One device's energy for one microbatch through all layers."""
    arrays, costs, work = priced.passes.arrays, priced.costs, priced.work
    widest = int(np.flatnonzero(costs.tensor_count[chip] > 0)[-1])
    config = int(costs.tensor_config[chip, widest])
    parts = dict.fromkeys(("multiply-add", "vector", "hbm", "glb", "link"), 0.0)
    for position, (_, repeat) in enumerate(variant.model.layers):
        first = 2 * (variant.first_layer + position)
        rows = arrays.op[arrays.ptr[first] : arrays.ptr[first + 2]]
        products = work.macs[rows] > 0.0
        local = work.link_bytes[rows] == 0.0
        plain = np.where(local & ~products, work.bytes[rows], 0.0).sum()
        hbm = plain + costs.hbm_bytes[rows[products], config].sum()
        glb = plain + costs.glb_bytes[rows[products], config].sum()
        parts["multiply-add"] += repeat * float(work.macs[rows].sum()) * energy.mac_J
        parts["vector"] += repeat * float(work.vector_ops[rows].sum()) * energy.vector_op_J
        parts["hbm"] += repeat * float(hbm) * energy.hbm_J_per_byte
        parts["glb"] += repeat * float(glb) * energy.glb_J_per_byte
        parts["link"] += repeat * float(work.link_bytes[rows].sum()) * energy.link_J_per_byte
    return parts
