"""Energy of one training step, by part, and the power that goes with it.

Dynamic energy follows from the work (multiply-adds, vector operations, bytes by level), static
power from area and time. Traffic is that of each operator at its widest spread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from atoll.cost.table_kernels import LINK
from atoll.cost.vector import operations_per_element
from atoll.hardware.energy import DEFAULT_ENERGY, EnergyModel
from atoll.placement.plan import Placement
from atoll.explore.evaluate import Priced
from atoll.explore.workloads import Variant


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
    placement: Placement,
    energy: EnergyModel = DEFAULT_ENERGY,
) -> StepEnergy:
    """What a step costs on this chip with this placement."""
    parts = dict.fromkeys(("multiply-add", "vector", "hbm", "glb", "link", "static"), 0.0)
    for position, (_, repeat) in enumerate(variant.model.layers):
        for direction in range(2):
            index = 2 * (variant.first_layer + position) + direction
            for name, joules in _pass_energy(priced, chip, index, energy).items():
                parts[name] += joules * repeat
    # Every microbatch of the batch passes every layer once, on `tensor` devices; recomputed
    # operators run again (their share of the compute time is taken for their share of energy).
    busy = placement.time_parts_s.get("compute", 0.0)
    again = placement.time_parts_s.get("recompute", 0.0)
    factor = variant.tensor * variant.microbatches * (1.0 + (again / busy if busy else 0.0))
    parts = {name: joules * factor for name, joules in parts.items()}
    area = float(priced.chips.area_mm2[chip])
    devices = placement.devices
    parts["static"] = energy.static_W_per_mm2 * area * devices * placement.step_time_s
    tokens = variant.microbatches * variant.model.tokens
    return StepEnergy(parts, placement.step_time_s, devices, tokens)


def _pass_energy(
    priced: Priced, chip: int, index: int, energy: EnergyModel
) -> Mapping[str, float]:
    """One device's energy for one microbatch in one pass of one layer."""
    passes, costs = priced.passes, priced.costs
    arrays = passes.arrays
    macs = vector_ops = hbm = glb = link = 0.0
    widest = int(np.flatnonzero(costs.tensor_count[chip] > 0)[-1])
    config = int(costs.tensor_config[chip, widest])
    for row in arrays.op[arrays.ptr[index] : arrays.ptr[index + 1]]:
        operator = passes.keys[row].operator
        if costs.kind[row] == LINK:
            assert operator.collective is not None
            link += operator.collective.bytes
            continue
        macs += sum(m.flops / 2 * m.fraction for m in operator.matmuls)
        vector_ops += sum(
            w.elements * operations_per_element(w.function, priced.setting.profile.name)
            for w in operator.vectors
        )
        if operator.matmuls:
            hbm += float(costs.hbm_bytes[row, config])
            glb += float(costs.glb_bytes[row, config])
        else:
            hbm += float(costs.bytes[row])
            glb += float(costs.bytes[row])
    return {
        "multiply-add": macs * energy.mac_J,
        "vector": vector_ops * energy.vector_op_J,
        "hbm": hbm * energy.hbm_J_per_byte,
        "glb": glb * energy.glb_J_per_byte,
        "link": link * energy.link_J_per_byte,
    }
