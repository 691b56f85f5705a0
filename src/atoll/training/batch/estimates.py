"""Tables for exact estimates of many layouts of one variant at once.

The rules of `step` and `memory` are called here per kind of layer, content of a stage and division
of parameters, of which there are few; `sums` adds up their results per layout and choice of
recomputation, and `row` gives one layout by part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import product
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from atoll.base.arrays import Floats, Ints
from atoll.fabric.nested import curves, terms
from atoll.step.bubbles import bubble_terms, chunk_weights, peaks
from atoll.step.layout import ZERO_STAGES, Layout
from atoll.step.orders import ORDERS, SPLIT, TWO_CHUNKS, arrivals, model_copies
from atoll.step.stages import stage_counts
from atoll.training.batch.choices import figures
from atoll.training.batch.sums import Sums
from atoll.training.memory import (
    buffers_bytes,
    fp8_bytes,
    kept_bytes,
    logits_bytes,
    loss_bytes,
    padded_loss_bytes,
    transient_bytes,
)
from atoll.training.operators.layer_prices import LayerPrices
from atoll.training.operators.layers import LayerCost, Layers
from atoll.training.operators.tables import STAGES, LayoutTables
from atoll.training.run import Run
from atoll.training.step import LayerPasses, Stepper, accumulation_s, resident_parameters, update_s

LEAST_CHOICE = "least"
"""A choice that recomputes nothing and keeps no more than "full": a lower bound on every choice, in
time (`Sums.bound_s`) and memory."""
AT_ONCE = 400_000  # stages times choices: the length of arrays
UNITS = ((1.0, 0.0), (0.0, 1.0))  # one dense parameter, one expert parameter
ORDER_NUMBERS = {order: number for number, order in enumerate(ORDERS)}
_BY_ORDER = np.array([(model_copies(order), order in SPLIT) for order in ORDERS])

Structure = tuple[tuple[bool, int], ...]
"""Per kind of layer: whether it is a block, and how often it occurs."""


class LayoutSource(Protocol):
    """Layouts of one variant, created on demand."""

    def numbers(self) -> Ints:
        """Return (7, layouts): the order's number in `ORDERS`, dp, pp, vpp, zero, hsdp, and the
        number of the split of blocks into chunks.
        """

    def blocks(self, order: str, pp: int, vpp: int, split: int) -> tuple[int, ...]:
        """Return the blocks per chunk of the split with that number."""

    def layout(self, at: int) -> Layout:
        """Create the layout with that index."""


class LayoutSequence:
    """Layouts in a sequence."""

    def __init__(self, layouts: Sequence[Layout]) -> None:
        self.layouts = layouts
        self._splits: dict[tuple[int, ...], int] = {}

    def numbers(self) -> Ints:
        n = self._splits
        order = [ORDER_NUMBERS[layout.schedule] for layout in self.layouts]
        axes = [[x.dp, x.pp, x.vpp, x.zero, x.hsdp] for x in self.layouts]
        split = [n.setdefault(layout.blocks, len(n)) for layout in self.layouts]
        return np.column_stack([order, axes, split]).T

    def blocks(self, order: str, pp: int, vpp: int, split: int) -> tuple[int, ...]:
        return list(self._splits)[split]

    def layout(self, at: int) -> Layout:
        return self.layouts[at]


class StageContents(NamedTuple):
    """Layers of the stages of a pipeline."""

    chunks: Ints
    """(stages, chunks, kinds): layers of each kind."""
    arrivals: Floats
    mixes: tuple[tuple[int, ...], ...]
    """Distinct sums over the chunks of a stage."""
    mix_of_stage: Ints
    chunk_mixes: tuple[tuple[int, ...], ...]
    """Distinct chunks, where a stage has several."""
    mix_of_chunk: Ints


class PipelineLoad(NamedTuple):
    """Quantities of a pipeline that depend on the number of microbatches."""

    weighed: Floats
    peaks: Floats
    bubble: Floats


def batch_estimates(
    priced: LayerPrices,
    layouts: LayoutSource,
    choices: Sequence[str],
    numbers: Callable[[Sums], tuple[Floats, Floats, Ints]] = figures,
) -> tuple[Floats, Floats]:
    """Return (layouts, choices + 1): seconds per step and bytes of the fullest device, per choice
    of recomputation and, last, for the best choice of each stage.
    """
    tables = make_tables(priced, layouts, choices)
    return in_parts(tables, partial(Sums, tables), numbers)


def in_parts(
    tables: LayoutTables,
    make_sums: Callable[[Ints], Sums],
    numbers: Callable[[Sums], tuple[Floats, Floats, Ints]] = figures,
) -> tuple[Floats, Floats]:
    """Return the same from sums over batches of rows."""
    stages = np.cumsum(tables.rows[:, STAGES])
    most = max(1, AT_ONCE // tables.bounds.size)
    cuts = np.searchsorted(stages, np.arange(0, stages[-1], most))
    parts = [numbers(make_sums(rows)) for rows in np.split(tables.rows, cuts[1:]) if len(rows)]
    step_s, needed_bytes, _ = zip(*parts, strict=True)
    return np.concatenate(step_s), np.concatenate(needed_bytes)


def make_tables(
    priced: LayerPrices, layouts: LayoutSource, choices: Sequence[str], batch: int = 0
) -> LayoutTables:
    """Build the tables of layouts of one variant, for `batch` sequences or the run's."""
    run, first = priced.run, layouts.layout(0)
    costs = priced.costs(first)
    structure = tuple((c.is_block, c.repeat) for c in costs)
    order, dp, pp, vpp, zero, hsdp, splits = columns = layouts.numbers()
    copies, split = _BY_ORDER[order].T
    m = (batch or run.global_batch) // (dp * first.microbatch)
    outside = (dp % first.ep == 0) & (first.etp == first.tp)
    pipes, pipe = _numbered(order, pp, vpp, splits, m)
    divisions, division = _numbered(dp, zero, hsdp, copies, m > copies)
    groups, group = _numbered(dp, pp, zero > 0, hsdp, copies)
    sides, side = _numbered(outside, split, zero == 3)
    losses, loss = _numbered(order == ORDER_NUMBERS["gpipe"], m)
    piped = np.stack([order, pp, vpp, splits], axis=1)[pipes].tolist()
    shapes = [(ORDERS[o], p, v, layouts.blocks(ORDERS[o], p, v, n)) for o, p, v, n in piped]
    stages = [_stages(structure, *shape) for shape in shapes]
    counts = m[pipes].tolist()
    pipelines = [_pipe(structure, *shape, n) for shape, n in zip(shapes, counts, strict=True)]
    mixes, contents, chunk_mixes = _Numbers(), _Numbers(), _Numbers()
    chunk_mix = [chunk_mixes.numbers(pipe.chunk_mixes)[pipe.mix_of_chunk] for pipe in stages]
    mix = [
        mixes.numbers((len(pipe.mix_of_stage) == 1, n) for n in pipe.mixes)[pipe.mix_of_stage]
        for pipe in stages
    ]
    # Memory of a stage depends on which kinds of layers it has; logits and FSDP's buffers also on
    # their number.
    counted = [cost.logits_bytes > 0 or bool(run.stack.gathered_at_loss) for cost in costs]
    content = contents.numbers(
        (alone, tuple(n if head else min(n, 1) for n, head in numbers))
        for alone, numbers in ((alone, zip(n, counted, strict=True)) for alone, n in mixes)
    )
    content_layers = [
        [(costs[kind], n) for kind, n in enumerate(counts) if n] for _, counts in contents
    ]
    timed = ["none" if choice == LEAST_CHOICE else choice for choice in choices]
    kept = ["full" if choice == LEAST_CHOICE else choice for choice in choices]
    side_passes = []
    for layout in map(layouts.layout, sides.tolist()):
        apart = layout.experts_outside, layout.schedule in SPLIT, layout.zero == 3
        make_passes = partial(_passes, run, layout, costs, timed)
        side_passes.append(priced.once(("passes", id(costs), *apart, *choices), make_passes))
    division_keys = np.stack([dp, zero, hsdp, copies, m > copies], axis=1)[divisions].tolist()
    parameters, family = [], (first.tp, first.cp, first.ep, first.etp)
    for at, key in zip(divisions.tolist(), division_keys, strict=True):
        divided = partial(_divided, priced, layouts, at, bool(key[-1]))
        parameters.append(priced.once(("division", *family, *key), divided))
    return LayoutTables(
        rows=np.stack([pp, m, copies, zero, split, pipe, division, group, side, loss], 1),
        starts=np.cumsum([0, *pp[pipes]])[:-1],
        order=order[pipes],
        bubbles=np.array([pipe.bubble for pipe in pipelines]),
        chunks=np.array([pipe.chunks.shape[1] for pipe in stages]),
        chunk_starts=np.cumsum([0, *map(len, chunk_mix)])[:-1],
        chunk_mix=np.concatenate(chunk_mix),
        chunk_counts=np.array(list(chunk_mixes), dtype=np.float64).reshape(-1, len(costs)),
        mix=np.concatenate(mix),
        counts=np.array([n for _, n in mixes], dtype=np.float64),
        content=content,
        weighed=np.concatenate([pipe.weighed for pipe in pipelines]),
        peaks=np.concatenate([pipe.peaks for pipe in pipelines]),
        arrivals=np.concatenate([pipe.arrivals for pipe in stages]),
        parameters=np.array(parameters),
        padding=np.array([run.expert_padding(layouts.layout(at)) - 1 for at in divisions.tolist()]),
        **_collectives(priced, costs, layouts, groups.tolist(), columns),
        kinds=np.array([_kind(run, cost) for cost in costs], dtype=np.float64),
        passes=np.array([passes for passes, _ in side_passes]),
        parts=np.array([parts for _, parts in side_passes]),
        kept=np.array([[kept_bytes(run, cost, name) for name in kept] for cost in costs]),
        contents=np.array(
            [
                _content_row(priced, replace(first, pp=1 if alone else 2), layers)
                for (alone, _), layers in zip(contents, content_layers, strict=True)
            ],
            dtype=np.float64,
        ),
        transient=np.array(
            [
                [[transient_bytes(run, layers, zero, x) for x in timed] for zero in ZERO_STAGES]
                for layers in content_layers
            ]
        ),
        logits=np.array(
            [
                [logits_bytes(run, layout, layers, n) for layers in content_layers]
                for layout, n in ((layouts.layout(i), int(m[i])) for i in losses.tolist())
            ]
        ),
        bounds=np.array([choice == LEAST_CHOICE for choice in choices]),
        run=run,
    )


class _Numbers(dict[Any, int]):
    """Keys numbered in order of first use."""

    def numbers(self, keys: Iterable[Any]) -> Ints:
        return np.array([self.setdefault(key, len(self)) for key in keys], dtype=np.int64)


def _numbered(*columns: NDArray[Any]) -> tuple[Ints, Ints]:
    """Return the first row of each combination of values, and each row's combination number."""
    keys = np.ravel_multi_index(columns, [int(column.max()) + 1 for column in columns])
    _, first, number = np.unique(keys, return_index=True, return_inverse=True)
    return first, number


@lru_cache(maxsize=8192)
def _stages(
    structure: Structure, order: str, pp: int, vpp: int, blocks: tuple[int, ...]
) -> StageContents:
    chunks = stage_counts(structure, order, pp, vpp, blocks)
    mixes, chunk_mixes = _Numbers(), _Numbers()
    mix_of_stage = mixes.numbers(map(tuple, chunks.sum(axis=1).tolist()))
    apart = chunks if chunks.shape[1] > 1 else chunks[:0]
    mix_of_chunk = chunk_mixes.numbers(tuple(chunk) for stage in apart.tolist() for chunk in stage)
    arriving = np.array(arrivals(order, pp, chunks.shape[1]))
    numbered = tuple(mixes), mix_of_stage, tuple(chunk_mixes), mix_of_chunk
    return StageContents(chunks, arriving, *numbered)


@lru_cache(maxsize=16384)
def _pipe(
    structure: Structure, order: str, pp: int, vpp: int, blocks: tuple[int, ...], m: int
) -> PipelineLoad:
    stages = _stages(structure, order, pp, vpp, blocks)
    places = [(order, pp, stage, m, vpp) for stage in range(pp)]
    chunks = stages.chunks
    if order in TWO_CHUNKS:  # in other orders all chunks hold as many microbatches
        chunks = np.array([chunk_weights(*place) for place in places])[:, :, None] * chunks
    return PipelineLoad(
        chunks.sum(axis=1, dtype=np.float64),
        np.array([_filled(peaks(*place), 3) for place in places]),
        np.array(_filled(bubble_terms(order, pp, m, vpp), 2)),
    )


def _filled(rows: Sequence[tuple[float, ...]], length: int) -> list[tuple[float, ...]]:
    """Pad with rows of zeros, which are never the maximum."""
    return [*rows, *[(0.0,) * len(rows[0])] * (length - len(rows))]


def per_parameter(priced: LayerPrices, layout: Layout, accumulates: bool) -> Floats:
    """Return (5, 2): bytes of weights, gradients and optimizer, seconds of accumulation and update,
    per dense and per expert parameter; all are linear in the parameters.
    """
    run, zero, copies = priced.run, layout.zero, layout.copies

    def column(dense: float, expert: float) -> tuple[float, ...]:
        divided = layout.divided(dense, run.expert_padding(layout) * expert)
        weights, gradients, optimizer = run.state_bytes(dense + expert, divided, zero)
        if accumulates:
            gradients = run.accumulated_bytes(1.0, gradients, zero)
        added_s = accumulation_s(run, layout, copies + accumulates, dense, expert)
        return weights, gradients, optimizer, added_s, update_s(run, layout, dense, expert)

    key = "parameter", layout.ranks, layout.expert_ranks, zero, layout.hsdp, copies, accumulates
    return priced.once(key, lambda: np.array([column(*unit) for unit in UNITS]).T)


def shared_terms(run: Run, layout: Layout) -> tuple[Floats, Floats, Floats]:
    """Return the collectives of weights and gradients: `Tables.collective` (collectives, 5),
    `Tables.s_per_byte` and `Tables.steps` (collectives, levels).
    """
    collectives = Stepper(run, layout).shared()
    times = [terms(run.network, item.kind, item.group, item.stride) for item in collectives]
    pairs = zip(collectives, times, strict=True)
    columns = [(c.gathers, c.dense, c.expert, t.fixed_s, t.tree_s) for c, t in pairs]
    levels = len(run.network.levels)
    slopes = np.array([term.s_per_byte for term in times]).reshape(-1, levels)
    steps = np.array([term.steps for term in times]).reshape(-1, levels)
    return np.array(columns, dtype=np.float64).reshape(-1, 5), slopes, steps


def _collectives(
    priced: LayerPrices,
    costs: Sequence[LayerCost],
    layouts: LayoutSource,
    groups: Sequence[int],
    columns: Ints,
) -> dict[str, NDArray[Any]]:
    """Return the table columns of collectives over shared parameters, and of pipeline sends."""
    run, first = priced.run, layouts.layout(0)
    boundary = max((c.boundary_bytes for c in costs if c.is_block), default=0)
    family = first.tp, first.cp, first.ep, first.etp
    shared, sends_s = [], []
    rows = columns[:, groups].T.tolist()
    for at, (order, dp, pp, _, zero, hsdp, _) in zip(groups, rows, strict=True):
        key = "shared", *family, dp, pp, zero > 0, hsdp, int(_BY_ORDER[order, 0])
        shared.append(priced.once(key, partial(_shared_terms, run, layouts, at)))
        sent = "send", boundary, first.tp, first.cp, first.sp, dp, pp
        sends_s.append(priced.once(sent, partial(_send_s, run, layouts, at, boundary)))
    ends = np.cumsum([len(collectives) for collectives, _, _ in shared])
    durations_s, shares = curves(run.network)
    return {
        "spans": np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1),
        "sends_s": np.array(sends_s),
        "collective": np.concatenate([collectives for collectives, _, _ in shared]),
        "s_per_byte": np.concatenate([slopes for _, slopes, _ in shared]),
        "steps": np.concatenate([steps for _, _, steps in shared]),
        "durations_s": durations_s,
        "shares": shares,
    }


def _divided(priced: LayerPrices, layouts: LayoutSource, at: int, accumulates: bool) -> Floats:
    return per_parameter(priced, layouts.layout(at), accumulates)


def _shared_terms(run: Run, layouts: LayoutSource, at: int) -> tuple[Floats, Floats, Floats]:
    return shared_terms(run, layouts.layout(at))


def _send_s(run: Run, layouts: LayoutSource, at: int, bytes_: float) -> float:
    return Stepper(run, layouts.layout(at)).send_s(bytes_)


def _kind(run: Run, cost: LayerCost) -> tuple[float, ...]:
    trained = cost.parameters, cost.expert_parameters
    stepper = Stepper(run, Layout())
    hosts_s = stepper.host(cost, "none").weight_s, stepper.host_update_s(cost)
    others = cost.waiting_bytes, fp8_bytes(run, cost), cost.weight.total_s, *hosts_s
    return *trained, *resident_parameters(run, cost), *others


def _content_row(priced: LayerPrices, layout: Layout, layers: Layers) -> tuple[float, ...]:
    costs = [cost for cost, _ in layers]
    boundary = max((cost.boundary_bytes for cost in costs if cost.is_block), default=0)
    by_zero = product((buffers_bytes, loss_bytes, padded_loss_bytes), ZERO_STAGES)
    buffers = (bytes_of(priced.run, layers, zero) for bytes_of, zero in by_zero)
    return priced.shared(layout, costs), boundary, *buffers


def _passes(
    run: Run, layout: Layout, costs: Sequence[LayerCost], choices: Sequence[str]
) -> tuple[Floats, Floats]:
    """Return rows of `LayoutTables.passes` and `parts`, without gathers of divided weights."""
    stepper = Stepper(run, layout)
    rows = [
        [_layer_passes(stepper, cost, choice) for choice in choices]
        if cost.is_block
        else [_layer_passes(stepper, cost, "none")] * len(choices)
        for cost in costs
    ]
    passes, parts = (np.array([[pair[i] for pair in row] for row in rows]) for i in range(2))
    return passes, parts


def _layer_passes(
    stepper: Stepper, cost: LayerCost, choice: str
) -> tuple[tuple[float, ...], LayerPasses]:
    forward, backward, again = parts = stepper.layer_passes(cost, choice)
    host = stepper.host(cost, choice)
    passes_s = forward.total_s, backward.total_s + again.total_s
    host_s = host.overlapped_s, host.waiting_s, host.forward_s
    return (*passes_s, *host_s, *stepper.hides_gathers_s(cost, choice)), parts
