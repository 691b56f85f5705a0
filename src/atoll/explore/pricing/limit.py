"""A limit on what a device draws, and how long it makes passes and steps.

A device draws what it takes at rest (leakage, clocks, HBM without traffic) and the energy of what
it computes and moves. Where a pass of a layer would draw more than the limit, the device skips
clocks: the same energy over a longer pass. What a lower voltage would save is another chip of the
space, the same one at the next clock of its list.

So a pass takes no less than its energy over what the limit leaves, on any schedule, and a step no
less than the energy of all its passes over what the limit leaves to all devices. Multiply-adds,
vector operations and bytes of links are the same on every chip: a bound before anything is priced.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from atoll.cost.chips import Chips
from atoll.cost.table import PassSet
from atoll.cost.table_kernels import Costs
from atoll.explore.pricing.layouts import Setting
from atoll.explore.pricing.work import OperatorWork
from atoll.explore.pricing.workloads import Variants
from atoll.hardware.energy import core_buffer_bytes_per_mac, energy_of

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def computed_J(
    chips: Chips,
    macs: FloatArray,
    vector_ops: FloatArray,
    link_bytes: FloatArray,
    clock_Hz: FloatArray | None = None,
) -> FloatArray:
    """Of so much work on each chip, without bytes of HBM and of shared buffers: (works, chips); at
    another clock if told.
    """
    energy = energy_of(chips.template)
    configs, own = chips.tensor_configs, chips.tensor_config[:, 0]
    moved = core_buffer_bytes_per_mac(configs.width[own], configs.depth[own])
    mac_J = energy.mac_J + moved * energy.core_buffer_J_per_byte
    found = macs[:, None] * mac_J + vector_ops[:, None] * energy.vector_op_J
    square = _square(chips, chips.clock_Hz if clock_Hz is None else clock_Hz)
    return np.asarray(square * found + link_bytes[:, None] * energy.link_J_per_byte)


def _square(chips: Chips, clock_Hz: FloatArray) -> FloatArray:
    """Of voltages at these clocks."""
    voltage = chips.template.voltage
    return np.ones(len(chips)) if voltage is None else voltage(clock_Hz) ** 2


def operator_J(chips: Chips, costs: Costs, work: OperatorWork) -> FloatArray:
    """Of every distinct operator on every chip, at its widest spread: (operators, chips)."""
    energy, levels = energy_of(chips.template), chips.template.levels
    widest = (costs.tensor_count > 0).sum(axis=1) - 1
    config = costs.tensor_config[np.arange(len(chips)), widest]
    products = (work.macs > 0.0)[:, None]
    hbm = np.where(products, costs.hbm_bytes[:, config], work.bytes[:, None])
    # Collectives go between HBM and the network port, past the buffers.
    buffered = np.where(work.link_bytes > 0.0, 0.0, work.bytes)[:, None]
    found = np.where(products, costs.glb_bytes[:, config], buffered) * energy.glb_J_per_byte
    for level, joules in enumerate(levels.J_per_byte if levels else ()):
        found += np.where(products, costs.level_bytes[:, config, level], buffered) * joules
    found = found * _square(chips, chips.clock_Hz) + hbm * energy.hbm_J_per_byte
    return found + computed_J(chips, work.macs, work.vector_ops, work.link_bytes)


def pass_J(passes: PassSet, each_J: FloatArray, layers: IntArray) -> FloatArray:
    """Of both passes of these layers, from the energies of operators: (layers, 2, chips)."""
    found = np.zeros((len(layers), 2, each_J.shape[1]))
    ptr, op = passes.arrays.ptr, passes.arrays.op
    for number, layer in enumerate(layers.tolist()):
        for which in range(2):
            # One after the other: the same to the last bit whatever the other chips.
            for row in op[ptr[2 * layer + which] : ptr[2 * layer + which + 1]]:
                found[number, which] += each_J[row]
    return found


def resting_W(chips: Chips) -> FloatArray:
    """Of one device of each kind: what time takes, whatever it does."""
    energy = energy_of(chips.template)
    return np.asarray(
        energy.static_W_per_mm2 * chips.area_mm2 + energy.hbm_W_per_byte * chips.hbm_capacity_bytes
    )


def shortest_s(joules: FloatArray, left_W: FloatArray) -> FloatArray:
    """What takes so much energy is no shorter where so much power is left; never, without any."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(left_W > 0.0, joules / left_W, np.inf)


def step_floors_s(
    chips: Chips,
    variants: Variants,
    setting: Setting,
    work: OperatorWork,
    repeats: FloatArray,
    least: tuple[FloatArray, FloatArray] | None = None,
) -> FloatArray:
    """No step of a chip's variant is shorter, whatever its layout: (chips, variants). Of groups of
    chips, `least` are their lowest clocks and powers at rest, and `chips` have the largest arrays.
    """
    found = np.zeros((len(chips), len(variants.variants)))
    if setting.limit_W is None:
        return found
    clock_Hz, rest_W = least or (chips.clock_Hz, resting_W(chips))
    sums = repeats @ work.macs, repeats @ work.vector_ops, repeats @ work.link_bytes
    joules = computed_J(chips, *sums, clock_Hz=clock_Hz).T
    joules *= np.array([float(v.width * v.microbatches) for v in variants.variants])
    return shortest_s(joules, setting.devices * (setting.limit_W - rest_W)[:, None])
