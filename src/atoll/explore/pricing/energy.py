"""Energy of one training step by part, and the corresponding mean power.

Dynamic energy follows from the work (multiply-adds, vector operations, bytes by level), static
energy from area and time. HBM and GLB traffic is that of each operator on the most cores. Core
buffers move as many bytes per multiply-add as a full array does (`hardware.peak_power_W`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from atoll.answers.design import PlacementAnswer
from atoll.base.arrays import Floats
from atoll.cost.chips import Chips
from atoll.explore.pricing.evaluate import PricedChips
from atoll.explore.pricing.operator_work import OperatorWork
from atoll.explore.pricing.workloads import Variant, Variants
from atoll.hardware.energy import (
    DEFAULT_ENERGY,
    core_buffer_bytes_per_mac,
    energy_at,
    template_energy,
)
from atoll.hardware.template.template import EnergyModel


@dataclass(frozen=True)
class StepEnergy:
    """Energy of one step, summed over all devices."""

    parts_J: Mapping[str, float]
    step_time_s: float
    devices: int
    tokens: int

    @property
    def total_J(self) -> float:
        return sum(self.parts_J.values())

    @property
    def power_W(self) -> float:
        """Return the mean power per device."""
        return self.total_J / self.step_time_s / self.devices

    @property
    def per_token_J(self) -> float:
        return self.total_J / self.tokens


@dataclass(frozen=True)
class VariantWork:
    """Work of one device for one microbatch through all layers, by kind."""

    macs: float
    vector_ops: float
    core_buffer_bytes: float
    hbm_bytes: float
    glb_bytes: float
    link_bytes: float


def energy_per_token_J(steps: Collection[StepEnergy]) -> float:
    """Return the total joules per token over one step of every model."""
    return sum(step.total_J for step in steps) / sum(step.tokens for step in steps)


def step_energy(priced: PricedChips, placement: PlacementAnswer) -> StepEnergy:
    """Return the energy of a step for a placement of the first variant on the first chip."""
    repeats = operator_repeats(priced.variants)
    hbm, glb = variant_traffic(priced, repeats)
    traffic = float(hbm[0, 0]), float(glb[0, 0])
    return energy_of_work(
        variant_work(priced.work, repeats[0], traffic, priced.chips, 0),
        priced.variants.variants[0],
        area_mm2=float(priced.chips.area_mm2[0]),
        step_time_s=placement.step_time_s,
        devices=placement.devices,
        recompute_share=placement.recompute_share,
        energy=energy_of_chip(priced.chips, 0),
    )


def energy_of_chip(chips: Chips, chip: int) -> EnergyModel:
    """Return the energy model of a chip at its clock's voltage; static power has its idle HBM."""
    model, voltage = energy_at(chips.template, chips.process_nm[chip]), chips.template.voltage
    node = chips.clock_Hz[chip], chips.process_nm[chip]
    square = 1.0 if voltage is None else float(voltage(*node)) ** 2
    rest_W = float(chips.hbm_idle_W[chip])
    return replace(
        model,
        mac_J=model.mac_J * square,
        vector_op_J=model.vector_op_J * square,
        core_buffer_J_per_byte=model.core_buffer_J_per_byte * square,
        glb_J_per_byte=model.glb_J_per_byte * float(chips.glb_energy[chip]) * square,
        hbm_J_per_byte=model.hbm_J_per_byte * float(chips.hbm_energy[chip]),
        static_W_per_mm2=model.static_W_per_mm2
        + (rest_W / float(chips.area_mm2[chip]) if rest_W else 0.0),
    )


def energy_of_work(
    work: VariantWork,
    variant: Variant,
    *,
    area_mm2: float,
    step_time_s: float,
    devices: int,
    recompute_share: float = 0.0,
    energy: EnergyModel = DEFAULT_ENERGY,
) -> StepEnergy:
    """Return the energy of a step of `step_time_s` on these devices.

    Every microbatch passes every layer once, on the devices that share it. `recompute_share` is the
    time of recomputation relative to other computation; their energies have the same ratio.
    """
    factor = variant.width * variant.microbatches * (1.0 + recompute_share)
    parts = {
        "multiply-add": work.macs * energy.mac_J * factor,
        "vector": work.vector_ops * energy.vector_op_J * factor,
        "core buffers": work.core_buffer_bytes * energy.core_buffer_J_per_byte * factor,
        "hbm": work.hbm_bytes * energy.hbm_J_per_byte * factor,
        "glb": work.glb_bytes * energy.glb_J_per_byte * factor,
        "link": work.link_bytes * energy.link_J_per_byte * factor,
        "static": energy.static_W_per_mm2 * area_mm2 * devices * step_time_s,
    }
    tokens = variant.microbatches * variant.model.tokens * variant.cp
    return StepEnergy(parts, step_time_s, devices, tokens)


def operator_repeats(variants: Variants) -> Floats:
    """Return how often one microbatch runs each distinct operator, (variants, operators)."""
    arrays = variants.passes.arrays
    repeats = np.zeros((len(variants.variants), len(variants.passes.keys)))
    for number, variant in enumerate(variants.variants):
        for position, (_, repeat) in enumerate(variant.facts.layers):
            first = 2 * (variant.first_layer + position)
            rows = arrays.op[arrays.ptr[first] : arrays.ptr[first + 2]]
            np.add.at(repeats[number], rows, float(repeat))
    return repeats


def variant_traffic(priced: PricedChips, repeats: Floats) -> tuple[Floats, Floats]:
    """Return the HBM and GLB bytes of one microbatch on one device, each of shape (chips,
    variants). Bytes of other buffers are converted to GLB bytes of equal energy."""
    costs, work, levels = priced.costs, priced.work, priced.chips.template.levels
    further = levels.J_per_byte if levels else ()
    glb_J = template_energy(priced.chips.template).glb_J_per_byte
    like_glb = [joules / glb_J for joules in further]
    widest = (costs.tensor_count > 0).sum(axis=1) - 1
    config = costs.tensor_config[np.arange(len(widest)), widest]
    used, position = np.unique(config, return_inverse=True)
    products = work.macs > 0.0
    # Operators without matrix products move their bytes once. Collectives move theirs between HBM
    # and the network port and bypass the buffer.
    moved = np.where(products, 0.0, work.bytes)
    buffered = repeats @ np.where(work.link_bytes > 0.0, 0.0, moved)
    plain = repeats @ moved, buffered * (1.0 + sum(like_glb))
    hbm, glb = (np.repeat(bytes_[:, None], len(used), axis=1) for bytes_ in plain)
    # Add one operator at a time: sums are then bit-identical for any set of chips.
    for row in np.flatnonzero(products):
        hbm += repeats[:, row, None] * costs.hbm_bytes[row, used]
        glb += repeats[:, row, None] * costs.glb_bytes[row, used]
        for level, factor in enumerate(like_glb):
            glb += repeats[:, row, None] * costs.level_bytes[row, used, level] * factor
    return hbm.T[position.ravel()], glb.T[position.ravel()]


def variant_work(
    work: OperatorWork, repeats: Floats, traffic: tuple[float, float], chips: Chips, chip: int
) -> VariantWork:
    """Return the chip-independent work, with one chip's HBM and GLB bytes."""
    macs = float(repeats @ work.macs)
    configs, config = chips.tensor_configs, int(chips.tensor_config[chip, 0])
    moved = float(core_buffer_bytes_per_mac(configs.width[config], configs.depth[config]))
    return VariantWork(
        macs=macs,
        vector_ops=float(repeats @ work.vector_ops),
        core_buffer_bytes=macs * moved,
        hbm_bytes=traffic[0],
        glb_bytes=traffic[1],
        link_bytes=float(repeats @ work.link_bytes),
    )
