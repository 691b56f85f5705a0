"""Placement of a chain of layers under the default profile: from a model and times to a plan.

The optimum is found by `chain_kernels.best_plan`; this module prepares its arrays (memory per
parameter, collectives, recomputation choices) and writes the winner out in words and parts.
Devices are ordered tensor-parallel innermost, then data-parallel, then pipeline stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from atoll.base.arrays import FloatArray
from atoll.fabric.nested import crossed_level, curves, neighbours_s, terms
from atoll.fabric.network import Network
from atoll.placement import chain_kernels as kernels
from atoll.placement.chain_kernels import Chain, System
from atoll.placement.facts import ChainFacts
from atoll.placement.plan import Placement, PlacementStage
from atoll.step.layout import Layout
from atoll.step.stages import even_sizes
from atoll.step.states import States

_NONE = np.zeros((0, 2))


ZERO = (0, 1)
"""ZeRO stages of divisions: with 1 the replicas divide the optimizer's states."""


def make_chain(facts: ChainFacts, layer_s: FloatArray, forward_s: FloatArray) -> Chain:
    """Add times: `layer_s` per kind of layer, `forward_s` per forward operator of the blocks.

    Levels begin where all blocks keep least; each lets one kind keep more, the one that saves most
    seconds for its bytes.
    """
    fronts = facts.frontiers(forward_s)
    steps = sorted(
        ((extra[i + 1] - extra[i]) / (kept[i + 1] - kept[i]), k, i)
        for k, (kept, extra, _) in enumerate(fronts)
        for i in range(len(kept) - 1)
    )
    raised = np.array([0, *(k for _, k, _ in steps)], np.int64)
    at = np.zeros((len(raised), len(fronts)), np.int64)
    for k in range(len(fronts)):
        at[1:, k] = np.cumsum(raised[1:] == k)
    kept, extra, choice = (
        np.column_stack([front[i][at[:, k]] for k, front in enumerate(fronts)]) for i in range(3)
    )
    saved = np.array([float(facts.layers[kind.layer][0].saved_bytes) for kind in facts.blocks])
    return Chain(
        time_s=layer_s[facts.kind],
        saved_bytes=facts.saved_bytes,
        parameters=facts.parameters,
        block=facts.block,
        kept_bytes=kept.astype(np.float64),
        extra_s=extra.astype(np.float64),
        raised=raised,
        choice=choice.astype(np.int64),
        rebuilt_bytes=saved - kept[-1],
        boundary_bytes=facts.boundary_bytes,
        shared=float(facts.model.shared_parameters),
    )


class VariantTimes(NamedTuple):
    """Seconds of one microbatch."""

    pass_s: FloatArray  # (kinds of layers, forward and backward)
    forward_s: FloatArray  # of the blocks' forward operators, which may run again
    halves_s: FloatArray = _NONE
    """(kinds, 2): the backward pass without weight gradients, and these by themselves; none where
    nobody asks."""

    def chain(self, problem: PlacementProblem) -> Chain:
        return make_chain(problem.facts, self.pass_s.sum(axis=1), self.forward_s)


class PricedLayouts(Protocol):
    """Layouts of a model that are priced one by one."""

    def fastest(
        self, problem: PlacementProblem, times: VariantTimes, cutoff_s: float
    ) -> Division | None:
        """The fastest that fits below the cutoff, or None."""

    def describe(
        self, problem: PlacementProblem, times: VariantTimes, division: Division
    ) -> Placement:
        """One of them in full."""

    def floors(self, problem: PlacementProblem) -> StepFloors:
        """What their steps are made of, from below."""


class StepFloors(NamedTuple):
    """Layouts as a bound sees them, an entry each. A step pays so often the largest load and so
    often a whole pass, of which transfers are a part, and what no chip changes; and no less than
    any path through the passes of its pipeline (`training.planner.bounds.floor`). The last stage
    and the model's last chunk are so many blocks, the shortest there are, and what stands behind.
    """

    stages: NDArray[np.int64]
    copies: NDArray[np.int64]
    """Times that a pipeline holds the model: a stage has a part of each."""
    loads: FloatArray
    passes: FloatArray
    transfer_s: FloatArray
    fixed_s: FloatArray
    through: FloatArray
    """A whole pass, and so often the end of the model:"""
    through_ends: FloatArray
    end_blocks: FloatArray
    stage_ends: FloatArray
    """So often the last stage, and blocks of the stages before it."""
    stage_blocks: FloatArray
    head_blocks: FloatArray
    apart: FloatArray
    """Where weight gradients run apart: all forward passes and data gradients, and blocks of these
    and of weight gradients."""
    apart_blocks: FloatArray
    apart_weights: FloatArray
    forward_blocks: FloatArray
    data_blocks: FloatArray
    weight_blocks: FloatArray
    """As if all stages were as the least of them, in two ways."""
    second_forward_blocks: FloatArray
    second_data_blocks: FloatArray
    second_weight_blocks: FloatArray

    def of(self, rows: NDArray[np.bool_]) -> StepFloors:
        """Some of them."""
        return StepFloors._make(column[rows] for column in self)


@dataclass(frozen=True, slots=True)
class PlacementProblem:
    """One model at one microbatch and tensor width, and the devices that it is placed on."""

    network: Network
    states: States
    facts: ChainFacts
    devices: int
    tp: int
    microbatches: int
    memory_bytes: float
    hbm_Bps: float
    recompute: str = "optimal"
    zero: tuple[int, ...] = (0,)
    """ZeRO stages to try, of `ZERO`."""
    planned: PricedLayouts | None = None
    """Layouts that are priced one by one."""
    divides: bool = True
    """Whether all divisions of a one-forward-one-backward pipeline are tried too, by a formula that
    is no less than their replay where stages differ in size alone."""

    def system(self, zero: int = 0) -> System:
        return _system(self, zero)

    @property
    def systems(self) -> Iterator[tuple[int, System]]:
        """For every ZeRO stage to try."""
        return ((zero, _system(self, zero)) for zero in self.zero)

    def most_replicas(self, stages: int) -> int:
        """Copies of so many stages that there are devices and microbatches for."""
        return min(self.devices // (self.tp * stages), self.microbatches)


@lru_cache(maxsize=512)
def _system(problem: PlacementProblem, zero: int) -> System:
    """The devices, their memory and what transfers and reductions cost between them."""
    network, devices, tensor = problem.network, problem.devices, problem.tp
    states = problem.states
    copies = np.maximum(1.0, np.arange(devices + 1))
    collectives = {"all_reduce": states.reduced}
    if zero:  # every rank updates its part, and all get it
        collectives = {"reduce_scatter": states.reduced, "all_gather": states.weight}
    wires = [_reductions(network, kind, devices, tensor) for kind in collectives]
    share_s, share = curves(network)
    cut_kind, cut_s = _cuts(network, problem.facts, devices, tensor)
    return System(
        devices=devices,
        tensor=tensor,
        microbatches=problem.microbatches,
        memory_bytes=problem.memory_bytes,
        state_bytes=np.add.reduce(states.parts(np.ones(devices + 1), 1.0 / copies, zero)),
        optimizer_s=states.update / problem.hbm_Bps / (copies if zero else np.ones(devices + 1)),
        reduce_bytes=np.array(list(collectives.values())),
        reduce_s=np.array([fixed_s for fixed_s, _, _, _ in wires]),
        reduce_tree_s=np.array([tree_s for _, _, _, tree_s in wires]),
        reduce_s_per_byte=np.array([slopes for _, slopes, _, _ in wires]),
        reduce_steps=np.array([steps for _, _, steps, _ in wires]),
        share_s=share_s,
        share=share,
        cut_kind=cut_kind,
        cut_s=cut_s,
    )


@lru_cache(maxsize=64)
def _reductions(
    network: Network, kind: str, devices: int, tensor: int
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Terms of a collective by number of replicas."""
    fixed_s, tree_s = np.zeros((2, devices + 1))
    slopes = np.zeros((devices + 1, len(network.levels)))
    steps = np.ones_like(slopes)
    for data in range(2, devices // tensor + 1):
        collective = terms(network, kind, data, stride=tensor)
        fixed_s[data], slopes[data], steps[data], tree_s[data] = collective
    return fixed_s, slopes, steps, tree_s


@lru_cache(maxsize=512)
def _cuts(
    network: Network, facts: ChainFacts, devices: int, tensor: int
) -> tuple[NDArray[np.int64], FloatArray]:
    """One transfer between neighbouring stages: a kind for each number of replicas and stages, and
    seconds for each kind and cut. Stages are a whole data-parallel group of tensor-parallel groups
    apart, and the slowest link of the pipeline sets the pace (`nested.neighbours_s`).
    """
    most = min(len(facts.kind), devices // tensor)
    cut_kind = np.zeros((devices + 1, most + 1), np.int64)
    rows = [np.zeros(len(facts.boundary_bytes))]  # of one stage
    kinds: dict[tuple[int, int], int] = {}
    for data in range(1, devices // tensor + 1):
        stride = tensor * data
        for stages in range(2, min(most, devices // stride) + 1):
            ends = crossed_level(network, stride), crossed_level(network, stride * (stages - 1))
            if ends not in kinds:
                kinds[ends] = len(rows)
                sent = facts.boundary_bytes
                rows.append(np.array([neighbours_s(network, b, stages, stride) for b in sent]))
            cut_kind[data, stages] = kinds[ends]
    return cut_kind, np.array(rows)


@dataclass(frozen=True)
class Division:
    """The optimum of the compiled search: where the stages begin, and how long a step takes."""

    step_time_s: float
    pipeline: int
    data: int
    starts: tuple[int, ...]
    recompute_share: float = 0.0
    """Seconds of recomputation, over all stages, for each second of other computation."""
    zero: int = 0
    layout: Layout | None = None
    """Of one of the other layouts; its stages are even."""
    choices: tuple[int, ...] = ()
    """And of its stages, which recomputation each has."""


def divide(
    chain: Chain, system: System, cutoff_s: float = np.inf, *, capacity: int = 16
) -> Division | None:
    """The fastest plan below the cutoff, or None.

    `capacity` is the room for partial plans that the search begins with; it grows as needed.
    """
    while True:
        step, pipeline, data, ends = kernels.best_plan(chain, system, cutoff_s, capacity)
        if step >= 0.0:
            break
        capacity *= 4
    if not np.isfinite(step):
        return None
    starts = (0, *(int(end) for end in ends[: pipeline - 1]))
    _, again_s = _division_s(chain, system, starts, int(data))
    busy_s = float(chain.time_s.sum())
    share = again_s / busy_s if busy_s else 0.0
    return Division(float(step), int(pipeline), int(data), starts, share)


def _division_s(
    chain: Chain, system: System, starts: Sequence[int], data: int
) -> tuple[float, float]:
    """Seconds of a step, and of one microbatch's recomputation, of stages that begin there."""
    ends = np.array((*starts, len(chain.time_s)), np.int64)
    step_s, again_s = kernels.division_s(chain, system, ends, data)
    return float(step_s), float(again_s)


def fixed_division(chain: Chain, system: System, *, pipeline: int, data: int) -> Division | None:
    """The even layout of so many stages and replicas, or None where it is not possible: there are
    too few devices, or the replicas do not divide the microbatches, or a stage does not fit.

    Blocks are spread evenly (`step.stages`); what comes before them is on the first stage, what
    comes after on the last. Each stage still recomputes as little as its memory allows.
    """
    starts = even_starts(chain.block, pipeline)
    if starts is None or not 1 <= data <= system.microbatches or system.microbatches % data:
        return None
    if pipeline * data * system.tensor > system.devices:
        return None
    step_s, _ = _division_s(chain, system, starts, data)
    return Division(step_s, pipeline, data, starts) if np.isfinite(step_s) else None


def even_starts(block: NDArray[np.int64], pipeline: int) -> tuple[int, ...] | None:
    """First layer of each stage with the blocks spread evenly; None with fewer blocks than stages.

    Layers between blocks stay with the block before them.
    """
    if pipeline == 1:
        return (0,)
    blocks = np.flatnonzero(block >= 0)
    if not 1 <= pipeline <= len(blocks):
        return None
    before = accumulate(even_sizes(len(blocks), pipeline)[:-1])
    return (0, *(int(blocks[count]) for count in before))


def describe(
    problem: PlacementProblem,
    chain: Chain,
    division: Division,
    forward_s: FloatArray | None = None,
) -> Placement:
    """Write a division out: stages, memory by part, time by cause.

    `forward_s` are the forward seconds per kind of layer, which a replay of the pipeline needs.
    """
    facts, system, data = problem.facts, problem.system(division.zero), division.data
    ends = (*division.starts[1:], len(facts.kind))
    microbatches = system.microbatches // division.data
    cut_s = system.cut_s[system.cut_kind[division.data, division.pipeline]]
    stages = []
    for number, (first, last) in enumerate(zip(division.starts, ends, strict=True)):
        in_flight = min(division.pipeline - number, microbatches)
        stages.append(_stage(problem, chain, division, cut_s, first, last, in_flight, forward_s))
    slowest = max(stages, key=lambda stage: stage.load_s)
    # Both grow with parameters: the stage with the most is the last to finish.
    parameters = max(_parameters(facts, s.first, s.last) for s in stages)
    reduction_s = float(kernels.reduction_s(system, data, parameters))
    return Placement(
        pipeline=division.pipeline,
        tensor=system.tensor,
        data=data,
        microbatch=facts.model.microbatch,
        microbatches=microbatches,
        step_time_s=division.step_time_s,
        stages=tuple(stages),
        time_parts_s={
            "compute": microbatches * slowest.compute_s,
            "recompute": microbatches * slowest.recompute_s,
            "pipeline_sends": microbatches * slowest.transfer_s,
            "pipeline_bubble": sum(stage.load_s for stage in stages) - slowest.load_s,
            "gradient_reduction": reduction_s,
            "optimizer": float(system.optimizer_s[data]) * parameters,
        },
        zero=division.zero,
    )


def _parameters(facts: ChainFacts, first: int, last: int) -> float:
    """Of the layers first..last-1; tied tables once."""
    all_layers = first == 0 and last == len(facts.kind)
    return float(facts.parameters[first:last].sum()) - all_layers * facts.model.shared_parameters


def _stage(
    problem: PlacementProblem,
    chain: Chain,
    division: Division,
    cut_s: FloatArray,
    first: int,
    last: int,
    in_flight: int,
    forward_s: FloatArray | None,
) -> PlacementStage:
    facts = problem.facts
    block = facts.block[first:last]
    blocks = np.array([np.count_nonzero(block == kind) for kind in range(len(facts.blocks))])
    parameters = _parameters(facts, first, last)
    weights, gradients, optimizer = problem.states.parts(
        parameters, parameters / division.data, division.zero
    )
    others = float(facts.saved_bytes[first:last][block < 0].sum())
    buffers = 2.0 * float(facts.boundary_bytes[first])
    recompute_s = kept = transient = 0.0
    words = "none"
    if blocks.any():
        state_bytes = weights + gradients + optimizer
        free_bytes = problem.memory_bytes - state_bytes - buffers - others * in_flight
        none = np.zeros_like(blocks)
        recompute_s, more, index = kernels.recompute_choice(
            none, blocks, free_bytes, float(in_flight), chain
        )
        shares = _mixed(chain, blocks, int(more), int(index))
        kept = sum(n * float(chain.kept_bytes[level, kind]) for kind, level, n in shares)
        transient = max(
            float(chain.rebuilt_bytes[kind] + chain.kept_bytes[-1, kind])
            - float(chain.kept_bytes[level, kind])
            for kind, level, _ in shares
        )
        words = _words(facts, chain, shares)
    receive_s, return_s = (
        float(cut_s[edge]) if 0 < edge < len(facts.kind) else 0.0 for edge in (first, last)
    )
    return PlacementStage(
        layers=layer_names(facts, first, last),
        first=first,
        last=last,
        devices=problem.tp,
        compute_s=float(chain.time_s[first:last].sum()),
        recompute_s=float(recompute_s),
        transfer_s=receive_s + return_s,
        receive_s=receive_s,
        recompute=words,
        memory_bytes={
            "weights": weights,
            "gradients": gradients,
            "optimizer": optimizer,
            "activations": (kept + others) * in_flight,
            "transient": transient,
            "buffers": buffers,
        },
        forward_s=None if forward_s is None else float(forward_s[facts.kind[first:last]].sum()),
    )


def _mixed(
    chain: Chain, blocks: NDArray[np.int64], more: int, index: int
) -> list[tuple[int, int, int]]:
    """Kinds of blocks, the levels of what they keep and how many blocks have each; so many of the
    kind that `index` raises have that level, and all others the one before.
    """
    raised, below = int(chain.raised[index]), max(0, index - 1)
    shares = []
    for kind, count in enumerate(blocks.tolist()):
        higher = more if kind == raised else 0
        shares += [(kind, index, higher), (kind, below, count - higher)]
    return [share for share in shares if share[2]]


def layer_names(facts: ChainFacts, first: int, last: int) -> tuple[str, ...]:
    names = []
    for kind, (layer, _) in enumerate(facts.layers):
        count = int((facts.kind[first:last] == kind).sum())
        if count:
            names.append(layer.name if count == 1 else f"{layer.name} x{count}")
    return tuple(names)


def _words(facts: ChainFacts, chain: Chain, shares: Sequence[tuple[int, int, int]]) -> str:
    """What is rerun, for numbers of blocks by kind and level."""
    phrases: dict[tuple[int, str], int] = {}
    for kind, level, count in shares:
        block = facts.blocks[kind]
        layer, _ = facts.layers[block.layer]
        rerun = block.choices[chain.choice[level, kind]].rerun
        phrase = "+".join(layer.forward[i].name for i in rerun) or "none"
        phrases[kind, phrase] = phrases.get((kind, phrase), 0) + count
    if len({phrase for _, phrase in phrases}) == 1:
        return next(iter(phrases))[1]
    several = len({kind for kind, _ in phrases}) > 1
    return ", ".join(
        f"{count} {_named(facts, kind) if several else 'blocks'}: {phrase}"
        for (kind, phrase), count in phrases.items()
    )


def _named(facts: ChainFacts, kind: int) -> str:
    return facts.layers[facts.blocks[kind].layer][0].name
