"""Placement of a chain of layers under the default profile: from a model and times to a plan.

The optimum is found by `chain_kernels.best_plan`; this module prepares its arrays (memory per
parameter, collectives, recomputation choices) and writes the winner out in words and parts.
Devices are ordered tensor-parallel innermost, then data-parallel, then pipeline stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atoll.cost.collective import pass_terms, point_to_point_terms
from atoll.errors import AtollError
from atoll.hardware.network import Network
from atoll.placement import chain_kernels as kernels
from atoll.placement.chain_kernels import Chain, System
from atoll.placement.plan import Placement, Stage
from atoll.placement.recompute import KeepChoice, frontier, keep_choices
from atoll.workload.layer import Model

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Optimizer:
    """Bytes per parameter that an optimizer keeps, and moves through HBM in its step.

    Adam in mixed precision: 2-byte weights and gradients, 4-byte master weights and two moments
    (Rajbhandari et al., ZeRO, SC 2020: 16 bytes). SGD: weights and gradients.
    """

    name: str
    state_bytes: float
    moved_bytes: float
    gradient_bytes: float = 2.0


OPTIMIZERS = {
    "adam": Optimizer("adam", state_bytes=16.0, moved_bytes=28.0),
    "sgd": Optimizer("sgd", state_bytes=4.0, moved_bytes=6.0),
}

RECOMPUTE = ("optimal", "none", "full")
"""Recomputation policies: per operator, nothing, everything but layer inputs."""


def get_optimizer(name: str) -> Optimizer:
    if name not in OPTIMIZERS:
        known = ", ".join(OPTIMIZERS)
        raise AtollError(f"optimizer: unknown optimizer {name!r}; known are {known}.")
    return OPTIMIZERS[name]


@dataclass(frozen=True, eq=False)
class ChainFacts:
    """What a placement needs of a sharded model apart from times."""

    model: Model
    kind: NDArray[np.int64]  # (layers of the chain,): index into model.layers
    saved_bytes: FloatArray
    parameters: FloatArray
    block: NDArray[np.bool_]
    boundary_bytes: FloatArray
    block_kind: int
    choices: tuple[KeepChoice, ...]


def chain_facts(model: Model, recompute: str) -> ChainFacts:
    """Lay the model out as a chain; the repeated layer is the one that may recompute."""
    if recompute not in RECOMPUTE:
        raise AtollError(
            f"recompute: unknown policy {recompute!r}; allowed are {', '.join(RECOMPUTE)}."
        )
    repeats = [repeat for _, repeat in model.layers]
    block_kind = int(np.argmax(repeats))
    kind = np.repeat(np.arange(len(repeats)), repeats)
    layers = [layer for layer, _ in model.layers]
    choices = keep_choices(layers[block_kind])
    if recompute == "none":
        choices = choices[-1:]
    elif recompute == "full":
        choices = choices[:1]
    return ChainFacts(
        model=model,
        kind=kind,
        saved_bytes=np.array([float(layers[k].saved_bytes) for k in kind]),
        parameters=np.array([float(layers[k].parameters) for k in kind]),
        block=kind == block_kind,
        boundary_bytes=np.array(
            [0.0] + [float(layers[k].boundary_bytes) for k in kind[:-1]] + [0.0]
        ),
        block_kind=block_kind,
        choices=choices,
    )


def make_chain(facts: ChainFacts, layer_s: FloatArray, forward_s: FloatArray) -> Chain:
    """Add times: `layer_s` per kind of layer, `forward_s` per forward operator of the block."""
    kept, extra, _ = frontier(facts.choices, forward_s)
    return Chain(
        time_s=layer_s[facts.kind],
        saved_bytes=facts.saved_bytes,
        parameters=facts.parameters,
        block=facts.block,
        kept_bytes=kept,
        extra_s=extra,
        rebuilt_bytes=float(facts.saved_bytes[facts.block].max(initial=0.0) - kept[-1]),
        boundary_bytes=facts.boundary_bytes,
    )


def make_system(
    network: Network,
    optimizer: Optimizer,
    *,
    devices: int,
    tensor: int,
    microbatches: int,
    memory_bytes: float,
    hbm_Bps: float,
) -> System:
    """The devices, their memory and what transfers and reductions cost between them."""
    most = devices // tensor
    reduce_s = np.zeros((devices + 1, 2))
    reduce_slope = np.zeros((devices + 1, 2))
    cut_s = np.zeros(devices + 1)
    cut_slope = np.zeros(devices + 1)
    for data in range(1, most + 1):
        terms = pass_terms(network, data, stride=tensor)
        for column, (fixed_s, s_per_byte) in enumerate(terms):
            reduce_s[data, column] = 2.0 * fixed_s
            reduce_slope[data, column] = 2.0 * s_per_byte * optimizer.gradient_bytes
        # Neighbouring stages are a whole data-parallel group of tensor-parallel groups apart.
        stride = min(tensor * data, devices - 1)
        if stride >= 1:
            cut_s[data], cut_slope[data] = point_to_point_terms(network, stride)
    return System(
        devices=devices,
        tensor=tensor,
        microbatches=microbatches,
        memory_bytes=memory_bytes,
        state_bytes=optimizer.state_bytes,
        optimizer_s=optimizer.moved_bytes / hbm_Bps,
        reduce_s=reduce_s,
        reduce_s_per_parameter=reduce_slope,
        cut_s=cut_s,
        cut_s_per_byte=cut_slope,
    )


@dataclass(frozen=True)
class Division:
    """The optimum of the compiled search: where the stages begin, and how long a step takes."""

    step_time_s: float
    pipeline: int
    data: int
    starts: tuple[int, ...]


def divide(chain: Chain, system: System, cutoff_s: float = np.inf) -> Division | None:
    """The fastest plan below the cutoff, or None."""
    capacity = 16
    while True:
        step, pipeline, data, ends = kernels.best_plan(chain, system, cutoff_s, capacity)
        if step >= 0.0:
            break
        capacity *= 4
    if not np.isfinite(step):
        return None
    starts = (0, *(int(end) for end in ends[: pipeline - 1]))
    return Division(float(step), int(pipeline), int(data), starts)


def describe(facts: ChainFacts, chain: Chain, system: System, division: Division) -> Placement:
    """Write a division out: stages, memory by part, time by cause."""
    ends = (*division.starts[1:], len(facts.kind))
    microbatches = -(-system.microbatches // division.data)
    _, _, indices = frontier_of(facts, chain)
    stages = []
    recompute_s = []
    transfer_s = []
    for number, (first, last) in enumerate(zip(division.starts, ends, strict=True)):
        in_flight = min(division.pipeline - number, microbatches)
        stage, again_s, moved_s = _stage(
            facts, chain, system, division.data, first, last, in_flight, indices
        )
        stages.append(stage)
        recompute_s.append(again_s)
        transfer_s.append(moved_s)
    loads = [stage.load_s for stage in stages]
    slowest = int(np.argmax(loads))
    parameters = max(
        float(facts.parameters[first:last].sum())
        for first, last in zip(division.starts, ends, strict=True)
    )
    optimizer_s = system.optimizer_s * parameters
    pipeline_s = (microbatches - 1) * max(loads) + sum(loads)
    busy_s = microbatches * loads[slowest]
    parts = {
        "compute": microbatches * (loads[slowest] - recompute_s[slowest] - transfer_s[slowest]),
        "recompute": microbatches * recompute_s[slowest],
        "transfers": microbatches * transfer_s[slowest],
        "bubble": pipeline_s - busy_s,
        "gradient reduction": division.step_time_s - pipeline_s - optimizer_s,
        "optimizer": optimizer_s,
    }
    return Placement(
        pipeline=division.pipeline,
        tensor=system.tensor,
        data=division.data,
        microbatch=facts.model.microbatch,
        microbatches=microbatches,
        step_time_s=division.step_time_s,
        stages=tuple(stages),
        time_parts_s=parts,
    )


def frontier_of(facts: ChainFacts, chain: Chain) -> tuple[FloatArray, FloatArray, Sequence[int]]:
    """The hull in a chain, with the index of the choice behind each point."""
    by_bytes = {float(choice.kept_bytes): i for i, choice in enumerate(facts.choices)}
    return chain.kept_bytes, chain.extra_s, [by_bytes[float(b)] for b in chain.kept_bytes]


def _stage(
    facts: ChainFacts,
    chain: Chain,
    system: System,
    data: int,
    first: int,
    last: int,
    in_flight: int,
    indices: Sequence[int],
) -> tuple[Stage, float, float]:
    parameters = float(facts.parameters[first:last].sum())
    blocks = int(facts.block[first:last].sum())
    others = float(facts.saved_bytes[first:last][~facts.block[first:last]].sum())
    buffers = 2.0 * float(facts.boundary_bytes[first])
    states = system.state_bytes * parameters
    room = system.memory_bytes - states - buffers - others * in_flight
    again_s, more, top = 0.0, 0, len(chain.kept_bytes) - 1
    kept = rebuilt = 0.0
    words = "none"
    if blocks:
        again_s, more, top = kernels.recompute_choice(
            blocks, room - chain.rebuilt_bytes, float(in_flight), chain.kept_bytes, chain.extra_s
        )
        kept = more * chain.kept_bytes[top]
        if more < blocks:
            kept += (blocks - more) * chain.kept_bytes[top - 1]
        lowest = top - 1 if more < blocks else top
        rebuilt = chain.rebuilt_bytes + chain.kept_bytes[-1] - chain.kept_bytes[lowest]
        words = _words(facts, indices, blocks, more, top)
    moved_s = 0.0
    for edge, there in ((first, first > 0), (last, last < len(facts.kind))):
        if there:
            moved_s += system.cut_s[data]
            moved_s += system.cut_s_per_byte[data] * facts.boundary_bytes[edge]
    load_s = float(chain.time_s[first:last].sum()) + again_s + moved_s
    stage = Stage(
        layers=layer_names(facts, first, last),
        first=first,
        last=last,
        devices=system.tensor,
        load_s=load_s,
        recompute=words,
        memory_bytes={
            "states": states,
            "activations": (kept + others) * in_flight,
            "rebuilt": rebuilt,
            "buffers": buffers,
        },
    )
    return stage, float(again_s), float(moved_s)


def layer_names(facts: ChainFacts, first: int, last: int) -> tuple[str, ...]:
    names = []
    for kind, (layer, _) in enumerate(facts.model.layers):
        count = int((facts.kind[first:last] == kind).sum())
        if count:
            names.append(layer.name if count == 1 else f"{layer.name} x{count}")
    return tuple(names)


def _words(facts: ChainFacts, indices: Sequence[int], blocks: int, more: int, top: int) -> str:
    layer = facts.model.layers[facts.block_kind][0]

    def phrase(index: int) -> str:
        rerun = facts.choices[indices[index]].rerun
        if not rerun:
            return "none"
        return "+".join(layer.forward[i].name for i in rerun)

    if more == blocks:
        return phrase(top)
    if more == 0:
        return phrase(top - 1)
    return f"{blocks - more} blocks: {phrase(top - 1)}, {more} blocks: {phrase(top)}"
