"""Exact estimates of many layouts of one variant at once: their tables.

Every rule stands in the readable estimate (`step`, `memory`, `step.replay`). Its functions are
called here for each kind of layer, each content of a stage and each way to divide parameters, of
which there are few; `sums` adds their results up for every layout and choice of
recomputation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from atoll.fabric.nested import curves, terms
from atoll.step.bubbles import bubble_terms, chunk_weights, peaks
from atoll.step.layout import ZERO_STAGES, Layout
from atoll.step.orders import ORDERS, SPLIT, TWO_CHUNKS, arrivals, copies_of
from atoll.step.stages import stage_counts
from atoll.training.batch.sums import Sums
from atoll.training.memory import (
    buffers_bytes,
    fp8_bytes,
    kept_bytes,
    logits_bytes,
    transient_bytes,
)
from atoll.training.operators.layers import LayerCost
from atoll.training.operators.priced import Priced
from atoll.training.operators.tables import Floats, Ints, Tables
from atoll.training.run import Run
from atoll.training.step import Stepper, accumulation_s, held_parameters, update_s

LEAST = "least"
"""A choice that runs nothing again and keeps no more than "full": bounds every other, in time
(`Sums.bound_s`) and in memory."""
AT_ONCE = 400_000  # stages times choices: the length of arrays
UNITS = ((1.0, 0.0), (0.0, 1.0))  # one dense parameter, one expert parameter
NUMBERS = {order: number for number, order in enumerate(ORDERS)}
_BY_ORDER = np.array([(copies_of(x), x in SPLIT) for x in ORDERS])

Structure = tuple[tuple[bool, int], ...]
"""Of every kind of layer: whether it is a block, how often it stands there."""


class Listed(Protocol):
    """Layouts of one variant, of which few are ever made."""

    def columns(self) -> Ints:
        """(7, layouts): the order's number in `ORDERS`, dp, pp, vpp, zero, hsdp, and a number for
        the blocks of chunks, where an order, stages and chunks leave these open.
        """

    def blocks(self, order: str, pp: int, vpp: int, number: int) -> tuple[int, ...]:
        """The blocks of that number."""

    def layout(self, at: int) -> Layout:
        """One of them."""


class Given:
    """Layouts that are there."""

    def __init__(self, layouts: Sequence[Layout]) -> None:
        self.layouts = layouts
        self.numbers: dict[tuple[int, ...], int] = {}

    def columns(self) -> Ints:
        n = self.numbers
        return np.array(
            [
                (
                    *(NUMBERS[x.schedule], x.dp, x.pp, x.vpp, x.zero, x.hsdp),
                    n.setdefault(x.blocks, len(n)),
                )
                for x in self.layouts
            ]
        ).T

    def blocks(self, order: str, pp: int, vpp: int, number: int) -> tuple[int, ...]:
        return list(self.numbers)[number]

    def layout(self, at: int) -> Layout:
        return self.layouts[at]


class Stages(NamedTuple):
    """What the stages of a pipeline hold."""

    chunks: Ints
    """(stages, chunks, kinds): how many layers of each kind."""
    came: Floats
    mixes: tuple[tuple[int, ...], ...]
    """The same of all chunks together, without repeats."""
    which: Ints


class Pipe(NamedTuple):
    """What a number of microbatches adds to that."""

    weighed: Floats
    peaks: Floats
    bubble: Floats


def batch_estimates(
    priced: Priced,
    layouts: Listed,
    choices: Sequence[str],
    figures: Callable[[Sums], tuple[Floats, Floats, Ints]] = Sums.figures,
) -> tuple[Floats, Floats]:
    """Seconds of a step and bytes that the fullest device needs: (layouts, choices + 1) of layouts
    of one variant, under each choice of recomputation and under the best of them stage by stage.
    """
    tables = tables_of(priced, layouts, choices)
    return in_parts(tables, partial(Sums, tables), figures)


def in_parts(
    tables: Tables,
    made: Callable[[Ints], Sums],
    figures: Callable[[Sums], tuple[Floats, Floats, Ints]] = Sums.figures,
) -> tuple[Floats, Floats]:
    """The same from sums that are made of some rows at a time."""
    stages = np.cumsum(tables.rows[:, 0])
    most = max(1, AT_ONCE // tables.bounds.size)
    cuts = np.searchsorted(stages, np.arange(0, stages[-1], most))
    parts = [figures(made(rows)) for rows in np.split(tables.rows, cuts[1:]) if len(rows)]
    return np.concatenate([x for x, _, _ in parts]), np.concatenate([x for _, x, _ in parts])


def stage_choices(priced: Priced, layout: Layout, choices: Sequence[str]) -> tuple[str, ...]:
    """The best choices of recomputation of a layout, one a stage: the fastest that fits it, where
    no single one for all is faster; where none fits, the one that needs least.
    """
    tables = tables_of(priced, Given([layout]), choices)
    _, _, picks = Sums(tables, tables.rows).figures()
    return tuple(choices[choice] for choice in picks)


def tables_of(priced: Priced, layouts: Listed, choices: Sequence[str], batch: int = 0) -> Tables:
    """What is summed up of layouts of one variant; of so many sequences, or the run's."""
    run, of = priced.run, layouts.layout(0)
    costs = priced.costs(of)
    structure = tuple((c.is_block, c.repeat) for c in costs)
    order, dp, pp, vpp, zero, hsdp, given = columns = layouts.columns()
    copies, split = _BY_ORDER[order].T
    m = (batch or run.global_batch) // (dp * of.microbatch)
    outside = (dp % of.ep == 0) & (of.etp == of.tp)
    pipes, pipe = _numbered(order, pp, vpp, given, m)
    divisions, division = _numbered(dp, zero, hsdp, copies, m > copies)
    groups, group = _numbered(dp, pp, zero > 0, hsdp, copies)
    sides, side = _numbered(outside, split)
    losses, loss = _numbered(order == NUMBERS["gpipe"], m)
    shapes = [
        (ORDERS[x], p, v, layouts.blocks(ORDERS[x], p, v, n))
        for x, p, v, n in np.stack([order, pp, vpp, given], axis=1)[pipes].tolist()
    ]
    stages = [_stages(structure, *shape) for shape in shapes]
    counts = m[pipes].tolist()
    held_by = [_pipe(structure, *shape, n) for shape, n in zip(shapes, counts, strict=True)]
    mixes, contents, chunk_mixes = _Numbers(), _Numbers(), _Numbers()
    apart = [x.chunks if x.chunks.shape[1] > 1 else x.chunks[:0] for x in stages]
    chunk_mix = [[chunk_mixes.of(tuple(one)) for row in x.tolist() for one in row] for x in apart]
    mix = [
        np.array([mixes.of((len(x.which) == 1, one)) for one in x.mixes])[x.which] for x in stages
    ]
    # Most of what a stage holds depends on what kinds there are; logits are held for each.
    headed = [cost.logits_bytes > 0 for cost in costs]
    content = [
        contents.of((alone, tuple(n if head else min(n, 1) for n, head in there)))
        for alone, there in ((alone, zip(n, headed, strict=True)) for alone, n in mixes)
    ]
    held = [[(costs[kind], n) for kind, n in enumerate(there) if n] for _, there in contents]
    heads = [any(n and head for n, head in zip(x, headed, strict=True)) for _, x in contents]
    family = of.tp, of.cp, of.ep, of.etp
    return Tables(
        rows=np.stack([pp, m, copies, zero, split, pipe, division, group, side, loss], 1),
        starts=np.cumsum([0, *pp[pipes]])[:-1],
        order=order[pipes],
        bubbles=np.array([pipe.bubble for pipe in held_by]),
        chunks=np.array([x.chunks.shape[1] for x in stages]),
        chunk_starts=np.cumsum([0, *map(len, chunk_mix)])[:-1],
        chunk_mix=np.array([one for row in chunk_mix for one in row], dtype=np.int64),
        chunk_counts=np.array(list(chunk_mixes), dtype=np.float64).reshape(-1, len(costs)),
        mix=np.concatenate(mix),
        counts=np.array([n for _, n in mixes], dtype=np.float64),
        content=np.array(content),
        weighed=np.concatenate([pipe.weighed for pipe in held_by]),
        peaks=np.concatenate([pipe.peaks for pipe in held_by]),
        came=np.concatenate([x.came for x in stages]),
        parameters=np.array(
            [
                priced.once(
                    ("division", *family, *key, several),
                    partial(_divided, priced, layouts, at, several),
                )
                for at, key, several in zip(
                    divisions.tolist(),
                    np.stack([dp, zero, hsdp, copies], axis=1)[divisions].tolist(),
                    (m > copies)[divisions].tolist(),
                    strict=True,
                )
            ]
        ),
        **_collectives(priced, costs, layouts, groups.tolist(), columns),
        kinds=np.array([_kind(run, cost) for cost in costs], dtype=np.float64),
        passes=np.array(
            [
                priced.once(
                    ("passes", id(costs), x.experts_outside, x.schedule in SPLIT, *choices),
                    partial(_passes, run, x, costs, choices),
                )
                for x in (layouts.layout(i) for i in sides.tolist())
            ]
        ),
        kept=np.array([[kept_bytes(run, c, _as_held(x)) for x in choices] for c in costs]),
        held=np.array(
            [
                _held(priced, replace(of, pp=1 if alone else 2), x)
                for (alone, _), x in zip(contents, held, strict=True)
            ],
            dtype=np.float64,
        ),
        transient=np.array(
            [[transient_bytes(run, there, _as_timed(x)) for x in choices] for there in held]
        ),
        logits=np.array(
            [
                [
                    logits_bytes(run, x, there, n) if head else 0.0
                    for there, head in zip(held, heads, strict=True)
                ]
                for x, n in ((layouts.layout(i), int(m[i])) for i in losses.tolist())
            ]
        ),
        bounds=np.array([choice == LEAST for choice in choices]),
        run=run,
    )


class _Numbers(dict[Any, int]):
    """Keys numbered as they come."""

    def of(self, key: Any) -> int:
        return self.setdefault(key, len(self))


def _numbered(*columns: NDArray[Any]) -> tuple[Ints, Ints]:
    """Where combinations of the columns' values stand first, and of every row the number of its
    combination.
    """
    keys = np.ravel_multi_index(columns, [int(column.max()) + 1 for column in columns])
    _, first, number = np.unique(keys, return_index=True, return_inverse=True)
    return first, number


def _as_timed(choice: str) -> str:
    return "none" if choice == LEAST else choice


def _as_held(choice: str) -> str:
    return "full" if choice == LEAST else choice


@lru_cache(maxsize=8192)
def _stages(structure: Structure, order: str, pp: int, vpp: int, given: tuple[int, ...]) -> Stages:
    chunks = stage_counts(structure, order, pp, vpp, given)
    mixes: dict[tuple[int, ...], int] = {}
    counts = chunks.sum(axis=1).tolist()
    which = [mixes.setdefault(tuple(of), len(mixes)) for of in counts]
    came = np.array(arrivals(order, pp, chunks.shape[1]))
    return Stages(chunks, came, tuple(mixes), np.array(which))


@lru_cache(maxsize=16384)
def _pipe(
    structure: Structure, order: str, pp: int, vpp: int, given: tuple[int, ...], m: int
) -> Pipe:
    stages = _stages(structure, order, pp, vpp, given)
    places = [(order, pp, stage, m, vpp) for stage in range(pp)]
    chunks = stages.chunks
    if order in TWO_CHUNKS:  # those of others hold as many microbatches each
        chunks = np.array([chunk_weights(*place) for place in places])[:, :, None] * chunks
    return Pipe(
        chunks.sum(axis=1, dtype=np.float64),
        np.array([_filled(peaks(*place), 3) for place in places]),
        np.array(_filled(bubble_terms(order, pp, m, vpp), 2)),
    )


def _filled(rows: Sequence[tuple[float, ...]], length: int) -> list[tuple[float, ...]]:
    """As many rows, the further ones of zeros, which are never the longest."""
    return [*rows, *[(0.0,) * len(rows[0])] * (length - len(rows))]


def per_parameter(priced: Priced, layout: Layout, accumulates: bool) -> Floats:
    """(5, 2): bytes of weights, gradients and optimizer, seconds of accumulation and update, all
    linear in the parameters: those of one dense and of one expert parameter.
    """
    run, x = priced.run, layout

    def made() -> Floats:
        found = [
            (
                *run.states.parts(dense + expert, x.divided(dense, expert), x.zero),
                accumulation_s(run, x, x.copies + accumulates, dense, expert),
                update_s(run, x, dense, expert),
            )
            for dense, expert in UNITS
        ]
        return np.array(found).T

    key = "parameter", x.ranks, x.expert_ranks, x.zero, x.hsdp, x.copies, accumulates
    return priced.once(key, made)


def _divided(priced: Priced, layouts: Listed, at: int, accumulates: bool) -> Floats:
    return per_parameter(priced, layouts.layout(at), accumulates)


def shared_terms(run: Run, layout: Layout) -> tuple[Floats, Floats, Floats]:
    """Collectives of weights and gradients: (collectives, 5) and twice (collectives, levels) of
    `Tables.collective`, `Tables.s_per_byte` and `Tables.steps`.
    """
    listed = Stepper(run, layout).shared()
    known = [terms(run.network, x.kind, x.group, x.stride) for x in listed]
    found = [
        (x.gathers, x.dense, x.expert, term.fixed_s, term.tree_s)
        for x, term in zip(listed, known, strict=True)
    ]
    levels = len(run.network.levels)
    slopes = np.array([term.s_per_byte for term in known]).reshape(-1, levels)
    steps = np.array([term.steps for term in known]).reshape(-1, levels)
    return np.array(found, dtype=np.float64).reshape(-1, 5), slopes, steps


def _collectives(
    priced: Priced,
    costs: Sequence[LayerCost],
    layouts: Listed,
    groups: Sequence[int],
    columns: Ints,
) -> dict[str, NDArray[Any]]:
    """What ranks that share parameters send, and one activation between stages."""
    run, of = priced.run, layouts.layout(0)
    boundary = max((c.boundary_bytes for c in costs if c.is_block), default=0)
    family = of.tp, of.cp, of.ep, of.etp
    shared, sends_s = [], []
    for at, (order, dp, pp, _, zero, hsdp, _) in zip(
        groups, columns[:, groups].T.tolist(), strict=True
    ):
        copies = int(_BY_ORDER[order, 0])
        shared.append(
            priced.once(
                ("shared", *family, dp, pp, zero > 0, hsdp, copies),
                partial(_shared_terms, run, layouts, at),
            )
        )
        sends_s.append(
            priced.once(
                ("send", boundary, of.tp, of.cp, of.sp, dp, pp),
                partial(_send_s, run, layouts, at, boundary),
            )
        )
    ends = np.cumsum([len(found) for found, _, _ in shared])
    durations_s, shares = curves(run.network)
    return {
        "spans": np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1),
        "sends_s": np.array(sends_s),
        "collective": np.concatenate([found for found, _, _ in shared]),
        "s_per_byte": np.concatenate([slopes for _, slopes, _ in shared]),
        "steps": np.concatenate([steps for _, _, steps in shared]),
        "durations_s": durations_s,
        "shares": shares,
    }


def _shared_terms(run: Run, layouts: Listed, at: int) -> tuple[Floats, Floats, Floats]:
    return shared_terms(run, layouts.layout(at))


def _send_s(run: Run, layouts: Listed, at: int, bytes_: float) -> float:
    return Stepper(run, layouts.layout(at)).send_s(bytes_)


def _kind(run: Run, cost: LayerCost) -> tuple[float, ...]:
    own = cost.parameters, cost.expert_parameters
    waiting, copied = cost.waiting_bytes, fp8_bytes(run, cost)
    weight_s = cost.weight.total_s
    launch_s = Stepper(run, Layout()).host(cost, "none").weight_s
    return *own, waiting, copied, weight_s, launch_s, *held_parameters(run, cost)


def _held(
    priced: Priced, layout: Layout, layers: Sequence[tuple[LayerCost, int]]
) -> tuple[float, ...]:
    costs = [cost for cost, _ in layers]
    return (
        priced.shared(layout, costs),
        max((cost.boundary_bytes for cost in costs if cost.is_block), default=0),
        *(buffers_bytes(priced.run, layers, zero) for zero in ZERO_STAGES),
    )


def _passes(
    run: Run, layout: Layout, costs: Sequence[LayerCost], choices: Sequence[str]
) -> list[list[tuple[float, ...]]]:
    """By kind of layer and choice, apart from gathers of divided weights."""
    stepper = Stepper(run, replace(layout, zero=0, hsdp=1))
    return [
        [_layer_passes(stepper, cost, _as_timed(choice)) for choice in choices]
        if cost.is_block
        else [_layer_passes(stepper, cost, "none")] * len(choices)
        for cost in costs
    ]


def _layer_passes(stepper: Stepper, cost: LayerCost, choice: str) -> tuple[float, ...]:
    forward, backward, again = stepper.layer_passes(cost, choice)
    host = stepper.host(cost, choice)
    return (
        forward.total_s,
        backward.total_s + again.total_s,
        *stepper.beside_gathers_s(cost, choice),
        host.beside_s,
        host.waiting_s,
        host.forward_s,
    )
