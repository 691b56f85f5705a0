"""The layouts that a bound must consider: stage counts that fit in memory, and rounds.

For each variant: every number of stages that fits with the least memory (full recomputation), with
every number of rounds that some data-parallel degree gives, and the part of the step that no chip
changes (transfers between stages, gradient reduction, optimizer).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atoll.explore.workloads import Variant
from atoll.fabric.network import Network
from atoll.placement.chain import make_chain, make_system
from atoll.placement.chain_kernels import System, equal_replicas, feasible_depths, reduction_s
from atoll.profile import Profile
from atoll.step.states import States

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Row = tuple[int, float, float, float, float]  # a layout, in the order of `Layouts`


@dataclass(frozen=True)
class Setting:
    """What holds for every chip and every model of a search."""

    network: Network
    profile: Profile
    states: States
    devices: int
    recompute: str

    def system(self, variant: Variant, memory_bytes: float, hbm_Bps: float) -> System:
        return make_system(
            self.network,
            self.states,
            variant.facts,
            devices=self.devices,
            tensor=variant.tensor,
            microbatches=variant.microbatches,
            memory_bytes=memory_bytes,
            hbm_Bps=hbm_Bps,
        )


@dataclass(frozen=True, eq=False)
class Layouts:
    """Flat lists over variants, as the compiled bound wants them."""

    ptr: IntArray
    stages: IntArray
    loads: FloatArray
    """How often the largest load is paid."""
    passes: FloatArray
    """How often a whole pass through all stages is paid."""
    transfer_s: FloatArray
    fixed_s: FloatArray


def list_layouts(
    variants: Sequence[Variant],
    setting: Setting,
    memory_bytes: float,
    hbm_Bps: float,
    least_layer_s: Sequence[FloatArray],
) -> Layouts:
    """`least_layer_s` bounds each variant's layers on the fastest chip: with it, layouts that
    lose on every chip are left out."""
    rows: list[Row] = []
    ptr = [0]
    for variant, layer_s in zip(variants, least_layer_s, strict=True):
        total_s = float((layer_s[variant.facts.kind]).sum())
        system = setting.system(variant, memory_bytes, hbm_Bps)
        for stages in _depths(variant, setting, system):
            rows.extend(_rounds(variant, setting, system, stages, total_s / stages))
        ptr.append(len(rows))
    columns = list(zip(*rows, strict=True)) if rows else [()] * 5
    return Layouts(
        ptr=np.array(ptr, np.int64),
        stages=np.array(columns[0], np.int64),
        loads=np.array(columns[1], np.float64),
        passes=np.array(columns[2], np.float64),
        transfer_s=np.array(columns[3], np.float64),
        fixed_s=np.array(columns[4], np.float64),
    )


def _depths(variant: Variant, setting: Setting, system: System) -> list[int]:
    """Stage counts that may fit."""
    facts = variant.facts
    most = min(len(facts.kind), setting.devices // variant.tensor)
    if setting.profile.whole_stage_recompute:
        # A stage's weights and gradients (two bytes each) and the activations of one microbatch
        # are resident, recomputed or not.
        resident = 4.0 * facts.parameters.sum() + facts.saved_bytes.sum()
        return [p for p in range(1, most + 1) if resident / p <= system.memory_bytes]
    operators = len(variant.model.layers[facts.block_kind][0].forward)
    chain = make_chain(facts, np.zeros(variant.layers), np.ones(operators))
    fits = feasible_depths(chain, system)
    replicas = equal_replicas(variant.microbatches, system.devices // variant.tensor)
    # With fewer microbatches than stages less is in flight: those depths are never ruled out.
    fewest_rounds = [
        variant.microbatches // int(replicas[system.devices // (variant.tensor * p)])
        for p in range(1, most + 1)
    ]
    return [p for p in range(1, most + 1) if fits[p] or fewest_rounds[p - 1] < p]


def _rounds(
    variant: Variant, setting: Setting, system: System, stages: int, load_s: float
) -> list[Row]:
    """One row per number of rounds, without those that another beats on every chip."""
    facts = variant.facts
    top = min(setting.devices // (variant.tensor * stages), variant.microbatches)
    data = np.arange(1, top + 1)
    if not setting.profile.whole_stage_recompute:
        # The seed lets some replicas run a microbatch less; the default profile does not.
        data = data[variant.microbatches % data == 0]
    rounds = -(-variant.microbatches // data)
    per_stage = facts.parameters.sum() / stages
    if setting.profile.whole_stage_recompute:
        weights = 2.0 * facts.parameters[0]
        bandwidth = setting.network.levels[-1].bandwidth_Bps
        fixed = 4.0 * (data - 1) / data * weights / bandwidth
        transfer = np.zeros(len(data))
        loads, passes = np.asarray(rounds + stages - 1.0, np.float64), 0.0
    else:
        reduce = np.array([reduction_s(system, d, per_stage) for d in data.tolist()])
        fixed = reduce + system.optimizer_s * per_stage
        transfer = np.zeros(len(data))
        if stages > 1:
            least_s = system.cut_s[:, 1:-1].min(axis=1)
            transfer = 2.0 * (stages - 1) * least_s[system.cut_kind[data, stages]]
        loads, passes = np.asarray(rounds - 1.0, np.float64), 1.0
    # From many copies to few: rounds only grow, so only cheaper transfers and reductions can pay.
    kept = undominated(stages, loads[::-1], passes, transfer[::-1], fixed[::-1], load_s)
    last = len(data) - 1
    return [
        (stages, float(loads[i]), passes, float(transfer[i]), float(fixed[i])) for i in last - kept
    ]


def undominated(
    stages: int,
    loads: FloatArray,
    passes: float,
    transfer_s: FloatArray,
    fixed_s: FloatArray,
    load_s: float,
) -> IntArray:
    """Indices of layouts, in the order of their loads, without those that an earlier one beats on
    every chip whose mean stage takes `load_s` or more.

    Each pays loads x the largest load, passes x the whole and its fixed part. Transfers belong to
    the whole and, divided over the stages, to the largest load: a later layout's is shorter than
    an earlier one's by no more than its transfers are.
    """
    left = np.arange(len(loads))
    kept = []
    while len(left):
        one, left = left[0], left[1:]
        kept.append(int(one))
        more = loads[left] - loads[one]
        dearer_s = more * (load_s + transfer_s[one] / stages) + fixed_s[left] - fixed_s[one]
        dearer_s += passes * (transfer_s[left] - transfer_s[one])
        shorter_s = np.maximum(0.0, transfer_s[one] - transfer_s[left]) / stages
        left = left[dearer_s < loads[left] * shorter_s]
    return np.array(kept, np.int64)
