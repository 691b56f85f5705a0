"""Effect of a power limit on the times of passes and steps.

A device draws idle power (leakage, clocks, HBM without traffic) and the energy of its computation
and data movement. If a pass exceeded the limit, the device skips clocks: the same energy over a
longer pass. Lower voltages are other chips of the space, with a lower clock.

For any schedule, pass seconds >= energy / (limit - idle power), and step seconds >= energy of all
passes / (devices * (limit - idle power)). Multiply-adds, vector operations and link bytes are the
same on every chip, so they give a bound before anything is priced.
"""

from __future__ import annotations

import numpy as np

from atoll.base.arrays import Floats, Ints
from atoll.cost.chips import FIRST_OPTION, Chips
from atoll.cost.table import PassSet
from atoll.cost.table_kernels import Costs
from atoll.explore.pricing.layouts import SearchSetting
from atoll.explore.pricing.operator_work import OperatorWork
from atoll.explore.pricing.workloads import Variants
from atoll.hardware.energy import core_buffer_bytes_per_mac, energy_at, template_energy


def computed_J(chips: Chips, macs: Floats, vector_ops: Floats, link_bytes: Floats) -> Floats:
    """Return the joules of work on each chip, without HBM and shared buffers, (works, chips)."""
    energy = energy_at(chips.template, chips.process_nm)
    configs, config = chips.tensor_configs, chips.tensor_config[:, FIRST_OPTION]
    moved = core_buffer_bytes_per_mac(configs.width[config], configs.depth[config])
    mac_J = energy.mac_J + moved * energy.core_buffer_J_per_byte
    joules = macs[:, None] * mac_J + vector_ops[:, None] * energy.vector_op_J
    return np.asarray(_square(chips) * joules + link_bytes[:, None] * energy.link_J_per_byte)


def _square(chips: Chips) -> Floats:
    """Return the squared voltage of each chip at its clock, relative to the energy model."""
    if chips.template.voltage is None:
        return np.ones(len(chips))
    return chips.template.voltage(chips.clock_Hz, chips.process_nm) ** 2


def operator_J(chips: Chips, costs: Costs, work: OperatorWork) -> Floats:
    """Return the joules of each operator on its most cores, shape (operators, chips)."""
    energy, levels = energy_at(chips.template, chips.process_nm), chips.template.levels
    widest = (costs.tensor_count > 0).sum(axis=1) - 1
    config = costs.tensor_config[np.arange(len(chips)), widest]
    products = (work.macs > 0.0)[:, None]
    hbm = np.where(products, costs.hbm_bytes[:, config], work.bytes[:, None])
    # Collectives move between HBM and the network port and bypass the buffers.
    buffered = np.where(work.link_bytes > 0.0, 0.0, work.bytes)[:, None]
    glb_J = energy.glb_J_per_byte * chips.glb_energy
    on_die_J = np.where(products, costs.glb_bytes[:, config], buffered) * glb_J
    for level, joules in enumerate(levels.J_per_byte if levels else ()):
        moved = np.where(products, costs.level_bytes[:, config, level], buffered)
        on_die_J += moved * joules
    moved_J = on_die_J * _square(chips) + hbm * energy.hbm_J_per_byte * chips.hbm_energy
    return moved_J + computed_J(chips, work.macs, work.vector_ops, work.link_bytes)


def pass_J(passes: PassSet, operator_J: Floats, layers: Ints) -> Floats:
    """Return the joules of both passes of these layers, shape (layers, 2, chips)."""
    joules = np.zeros((len(layers), 2, operator_J.shape[1]))
    ptr, op = passes.arrays.ptr, passes.arrays.op
    for number, layer in enumerate(layers.tolist()):
        for which in range(2):
            # Add one at a time: sums are then bit-identical for any set of chips.
            for row in op[ptr[2 * layer + which] : ptr[2 * layer + which + 1]]:
                joules[number, which] += operator_J[row]
    return joules


def resting_W(chips: Chips) -> Floats:
    """Return the idle power of one device of each chip, shape (chips,)."""
    static_W_per_mm2 = template_energy(chips.template).static_W_per_mm2
    return np.asarray(static_W_per_mm2 * chips.area_mm2 + chips.hbm_idle_W)


def shortest_s(joules: Floats, left_W: Floats) -> Floats:
    """Return joules / left_W, infinite where no power is left."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(left_W > 0.0, joules / left_W, np.inf)


def step_floors_s(
    chips: Chips,
    variants: Variants,
    setting: SearchSetting,
    work: OperatorWork,
    repeats: Floats,
    rest_W: Floats | None = None,
) -> Floats:
    """Return lower bounds on the step seconds for any layout, shape (chips, variants). `rest_W`
    overrides the idle power."""
    step_s = np.zeros((len(chips), len(variants.variants)))
    if setting.limit is None:
        return step_s
    rest_W = resting_W(chips) if rest_W is None else rest_W
    sums = repeats @ work.macs, repeats @ work.vector_ops, repeats @ work.link_bytes
    joules = computed_J(chips, *sums).T
    joules *= np.array([float(v.width * v.microbatches) for v in variants.variants])
    left_W = setting.limit.of(chips.area_mm2) - rest_W
    return shortest_s(joules, setting.devices * left_W[:, None])
