"""Step times of the planner's layouts on a searched chip: all pipeline schedules, ZeRO stages,
HSDP replicas, context and expert parallelism, with even or balanced stages.

The planner's estimate (`training.batch`) computes them, so a search and a plan agree on the step
time of a chip. Only the layer times, and with them the tensors worth keeping, differ between chips;
the other tables are computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from atoll.answers.answer import build_from
from atoll.answers.design import PlacedStageAnswer, PlacementAnswer
from atoll.base.arrays import Bools, Floats, Ints
from atoll.cost.pricer import Cost, LayerTimes
from atoll.explore.pricing.bound_kernels import floors_s
from atoll.explore.pricing.planned.layout_list import AllowedLayouts, listed_layouts
from atoll.explore.pricing.planned.path_bounds import LoadBounds, path_floors
from atoll.explore.pricing.planned.recompute_choices import (
    Chosen,
    Menu,
    chosen,
    menu_of,
    with_kept_bytes,
)
from atoll.hardware.catalog import load_accelerator
from atoll.hardware.device import TemplateChip
from atoll.placement.chain import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    Division,
    PlacementProblem,
    StepFloors,
    VariantTimes,
)
from atoll.placement.facts import ChainFacts
from atoll.step.layout import Layout
from atoll.step.orders import SPLIT, arrivals
from atoll.step.stages import stage_shares
from atoll.tools.stack import CHIP
from atoll.training.batch.choices import SLACK, best_choices
from atoll.training.batch.cost_arrays import StateCosts, StateMemory
from atoll.training.batch.estimates import LayoutSequence, make_tables
from atoll.training.batch.row import LayoutRow, layout_row
from atoll.training.batch.sums import Sums
from atoll.training.estimate import Estimator, boundary_bytes
from atoll.training.operators.layer_prices import chain_work
from atoll.training.operators.layers import LayerCost, Share, layer_costs
from atoll.training.operators.policies import PolicyCost
from atoll.training.operators.tables import (
    COPIES,
    GROUP,
    PIPE,
    SIDE,
    ZERO,
    ContentColumn,
    KindColumn,
    LayoutTables,
    PassColumn,
)
from atoll.training.request import stand_in
from atoll.training.run import Run
from atoll.training.step import PassSeconds, Stepper
from atoll.workload.graph.layer import Layer, Model
from atoll.workload.graph.operator import Operator
from atoll.workload.stored import StoredModel

if TYPE_CHECKING:
    from atoll.explore.pricing.workloads import Variant


FIRST = 4  # layouts of the first batch: they often rule out the rest
AT_ONCE = 32
COMPUTE = PassSeconds._fields.index("compute_s")
VARIANT_TERMS = ("passes", "held twice")
"""Terms of `LayerPrices.once` whose keys contain ids of a variant's layers."""
STATIC = ("none", "ring", "exchange", "fewest")
"""Recomputation choices of the chip-independent tables: keep everything; also rerun attention;
also rerun the expert exchange; keep the fewest bytes of any choice."""
_NAMES = ("compute", "recompute", "pipeline_sends", "pipeline_bubble", "gradient_reduction")
T = TypeVar("T")
RunTerms = tuple[Run, dict[tuple[object, ...], Any]]
"""A run, and the terms that its variants share: those that depend on a layout's ranks alone."""


class _ZeroCostPricer:
    """Pricer with zero cost, which leaves only the chip-independent parts of an estimate."""

    fusion = "default"
    schedules_links = True
    operand_share = 1.0
    launch_s = 0.0

    def layer(self, layer: Layer, ring: int, samples: int) -> LayerTimes:
        names = [op.name for op in (*layer.forward, *layer.backward)]
        return LayerTimes(dict.fromkeys(names, Cost()), Cost(), Cost(), Cost(), Cost())

    def kept_bytes(self, layer: Layer, dropped: Set[str] = frozenset()) -> float:
        return 0.0

    def least(self, layer: Layer, operators: Iterable[Operator], ring: int) -> Cost:
        return Cost()

    def beyond(
        self, layer: Layer, operators: Iterable[Operator], samples: Sequence[int], ep: int
    ) -> Floats:
        return np.zeros(len(samples))


class _CostedEstimator(Estimator):
    """Estimator of one variant with given layer costs."""

    def __init__(self, shared: RunTerms, model: Model, costs: tuple[LayerCost, ...]) -> None:
        self.run, self._cache = shared
        self._model = model
        self._costs = costs

    def costs(self, layout: Layout) -> tuple[LayerCost, ...]:
        return self._costs

    def model(self, layout: Layout) -> Model:
        return self._model

    def once(self, key: tuple[object, ...], make: Callable[[], T]) -> T:
        """Cache the terms of all variants of the run, not those of layers and passes."""
        return make() if key[0] in VARIANT_TERMS else super().once(key, make)


@dataclass(frozen=True, eq=False)
class PlannedLayouts:
    """Layouts of one variant with the planner's prices (`placement.chain.PricedLayouts`)."""

    run: Run
    facts: ChainFacts
    layouts: tuple[Layout, ...]
    menus: tuple[Menu, ...]  # recomputation choices per kind of block
    costs: tuple[LayerCost, ...]  # costs per run of equal layers in the chain, with zero time
    kind: Ints
    """Index of the distinct layer per entry of `costs`; `block`: kind of block, or -1."""
    block: Ints
    tables: LayoutTables
    """The planner's tables for layers with zero time and a memory of 1 byte per second."""
    apart: Bools  # whether weight passes run separately, shape (sides,)
    steps: StepFloors  # terms of the step bounds; `fixed_s` excludes the optimizer's memory time
    states: StateCosts  # state costs of all layouts, with a memory of 1 byte per second
    first: Ints
    """Index of each layout's first stage in the stage arrays of `states`, shape (layouts,)."""
    needed: Floats
    """Bytes with the recomputation choices that keep the fewest bytes, shape (layouts,)."""

    def floors(self, problem: PlacementProblem, least_s: float) -> StepFloors:
        return self._steps(problem).of(self.needed <= problem.memory_bytes)

    def _steps(self, problem: PlacementProblem) -> StepFloors:
        moved_s = self.states.optimizer_s / problem.hbm_Bps
        return self.steps._replace(fixed_s=self.steps.fixed_s + moved_s)

    def fastest(
        self,
        problem: PlacementProblem,
        times: VariantTimes,
        cutoff_s: float,
        even_stages: int | None = None,
    ) -> Division | None:
        floor_s = np.empty(len(self.layouts))
        both_s = np.concatenate([times.pass_s, times.halves_s])
        floors_s(self._steps(problem), both_s, self.facts.repeats, self.is_block, floor_s)
        fits = self.needed <= problem.memory_bytes
        if even_stages is not None:
            fits &= _even_pipelines(self.layouts, even_stages)
        hopeful = np.flatnonzero((floor_s < cutoff_s) & fits)
        if not len(hopeful):
            return None
        choices = self.chosen(times)
        bound_s = self.loads.step_s(problem, times, choices, hopeful) * (1.0 - SLACK)
        order = np.lexsort((floor_s[hopeful], bound_s))
        order = order[bound_s[order] < cutoff_s]
        hopeful, bound_s = hopeful[order], bound_s[order]
        if not len(hopeful):
            return None
        tables = self.timed(problem, times, choices)
        slower = times.most and tables
        if times.most and ((self.steps.stages > 1) & (self.steps.last_s > 0))[hopeful].any():
            slower = self.timed(problem, times.most, choices)
        best_s, best = cutoff_s, -1
        picks = np.zeros(0, np.int64)
        for part in np.split(np.arange(len(hopeful)), range(FIRST, len(hopeful), AT_ONCE)):
            rows = hopeful[part[bound_s[part] <= best_s]]
            if not len(rows):
                break
            rows = rows[np.argsort(floor_s[rows], kind="stable")]
            sums = Sums(tables, tables.rows[rows], slower=slower)
            stage_bytes = self._stage_bytes(sums, rows, problem)
            step_s, choices_taken = best_choices(sums, best_s, stage_bytes)
            least = int(step_s.argmin())
            # Of layouts with the same step, the one with the lowest floor.
            same = step_s[least] == best_s < cutoff_s and floor_s[rows[least]] < floor_s[best]
            if step_s[least] < best_s or same:
                best_s, best = float(step_s[least]), int(rows[least])
                picks = choices_taken[sums.row == least]
        if best < 0:
            return None
        layout = self.layouts[best]
        first = tables.starts[tables.rows[best, PIPE]]
        mixes = tables.mix[first : first + layout.pp]
        blocks = np.flatnonzero(self.block >= 0)
        stage_blocks = tables.counts[mixes][:, blocks] / layout.copies
        again_s = float((stage_blocks * choices.again_s[self.block[blocks]][:, picks].T).sum())
        busy_s = float(times.pass_s.sum(axis=1) @ self.facts.repeats)
        return Division(
            step_time_s=best_s,
            pipeline=layout.pp,
            data=layout.dp,
            recompute_share=again_s / busy_s if busy_s else 0.0,
            zero=layout.zero,
            layout=layout,
            choices=tuple(picks.tolist()),
        )

    def _stage_bytes(self, sums: Sums, rows: Ints, problem: PlacementProblem) -> StateMemory:
        """Return the state costs and memory of the layouts in `rows` on the problem's chip."""
        at, all_states = self.first[rows][sums.row] + sums.stage_position, self.states
        weight_s = (sums.tables.counts @ sums.tables.kinds[:, KindColumn.WEIGHT_S])[sums.mix]
        states = StateCosts(
            all_states.accumulate_s[rows] / problem.hbm_Bps,
            all_states.update_s[rows] / problem.hbm_Bps,
            all_states.last_s[rows],
            all_states.before_s[rows],
            all_states.fixed[at],
            all_states.gradients[at],
            all_states.waiting[at],
            weight_s / sums.rows[sums.row, COPIES],
            all_states.launch_s[at],
            all_states.host_late_s[at],
        )
        return StateMemory(states, sums.memory(states))

    @cached_property
    def loads(self) -> LoadBounds:
        """Return the bounds with the recomputation that the memory of a chip requires."""
        sums = Sums(self.tables, self.tables.rows)
        return LoadBounds(sums, self.states, self.kind, self.block, self.apart)

    @cached_property
    def is_block(self) -> Bools:
        """Return whether each distinct layer is a block, shape (distinct layers,)."""
        is_block = np.zeros(len(self.facts.layers), np.bool_)
        is_block[[kind.layer for kind in self.facts.blocks]] = True
        return is_block

    def chosen(self, times: VariantTimes) -> Chosen:
        """Return the recomputation choices of a plan on a chip with these times."""
        return chosen(self.menus, self.facts, times.forward_s)

    def timed(self, problem: PlacementProblem, times: VariantTimes, chosen: Chosen) -> LayoutTables:
        """Return the tables with a chip's layer times and recomputation choices."""
        t, count = self.tables, chosen.choice.shape[1]
        none, ring, exchange, _ = range(len(STATIC))
        passes, parts = (np.repeat(x[:, :, [none]], count, axis=2) for x in (t.passes, t.parts))
        forward, backward, recompute = np.moveaxis(parts, 3, 0)
        forward[..., COMPUTE] += times.pass_s[self.kind, FORWARD, None]
        for side, apart in enumerate(self.apart):
            back_s = times.halves_s.sum(axis=1) if apart else times.pass_s[:, BACKWARD]
            backward[side, ..., COMPUTE] += back_s[self.kind, None]
        blocks = np.flatnonzero(self.block >= 0)
        of = self.block[blocks]
        ring_s, exchange_s = (t.parts[:, blocks, i, 2][:, :, None] for i in (ring, exchange))
        again = chosen.attention[of][..., None] * ring_s
        again = again + chosen.exchange[of][..., None] * exchange_s
        again[..., COMPUTE] += chosen.again_s[of]
        recompute[:, blocks] = again
        passes[..., PassColumn.FORWARD_S] = forward.sum(axis=-1)
        passes[..., PassColumn.BACKWARD_S] = (backward + recompute).sum(axis=-1)
        kinds, parameters = t.kinds.copy(), t.parameters.copy()
        if len(times.halves_s):
            kinds[:, KindColumn.WEIGHT_S] = times.halves_s[self.kind, WEIGHT]
        parameters[:, 3:] /= problem.hbm_Bps
        return with_kept_bytes(t, self.block, chosen.bytes)._replace(
            passes=passes,
            parts=parts,
            kinds=kinds,
            parameters=parameters,
            bounds=np.zeros(count, np.bool_),
            run=self._on(problem),
        )

    def _on(self, problem: PlacementProblem) -> Run:
        """Return the run on devices with the problem's memory size and bandwidth."""
        assert isinstance(self.run.gpu, TemplateChip)
        bytes_ = max(1, int(problem.memory_bytes))
        return replace(self.run, gpu=self.run.gpu.with_hbm(bytes_, problem.hbm_Bps))

    # --- Full description of one layout -----------------------------------------------------------

    def describe(
        self, problem: PlacementProblem, times: VariantTimes, division: Division
    ) -> PlacementAnswer:
        assert division.layout is not None
        layout, chosen = division.layout, self.chosen(times)
        tables = self.timed(problem, times, chosen)
        rows = tables.rows[[self.layouts.index(layout)]]
        row = layout_row(Sums(tables, rows), np.array(division.choices))
        parts = row.step.breakdown()
        return build_from(
            PlacementAnswer,
            layout,
            pipeline=layout.pp,
            tensor=layout.tp,
            data=layout.dp,
            microbatches=layout.microbatches(self.run.global_batch),
            step_time_s=row.step.time_s,
            stages=self._stages(layout, row, division.choices, chosen),
            time_parts_s={n: s for n, s in parts.items() if s > 0.0 or n in _NAMES},
            etp=None if layout.etp == layout.tp else layout.etp,
            sp=layout.sp and layout.tp > 1,
        )

    def _stages(
        self, layout: Layout, row: LayoutRow, choices: Sequence[int], chosen: Chosen
    ) -> tuple[PlacedStageAnswer, ...]:
        shares = stage_shares(self.costs, layout.schedule, layout.pp, layout.vpp, layout.blocks)
        send_s = Stepper(self.run, layout).send_s(boundary_bytes(shares))
        came = arrivals(layout.schedule, layout.pp, len(shares[0]))
        blocks = {id(cost): block for cost, block in zip(self.costs, self.block, strict=True)}
        stages = []
        for messages, time, memory, chunks, choice in zip(
            came, row.stages, row.memory, shares, choices, strict=True
        ):
            again = {
                cost.name: "+".join(self.menus[i].names(chosen.choice[i, choice])) or "none"
                for chunk in chunks
                for cost, _ in chunk
                if (i := blocks[id(cost)]) >= 0
            }
            words = ", ".join(f"{name}: {rerun}" for name, rerun in again.items())
            if len(set(again.values())) <= 1:
                words = next(iter(again.values()), "none")
            stages.append(
                PlacedStageAnswer(
                    layers=_layer_names(chunks),
                    devices=layout.tp * layout.cp,
                    compute_s=time.forward.total_s + time.backward.total_s,
                    recompute_s=time.recompute.total_s,
                    transfer_s=sum(messages) * send_s,
                    receive_s=send_s,
                    recompute=words,
                    memory_bytes={n: b for n, b in memory.parts().items() if n != "logits"},
                    forward_s=time.forward.total_s,
                    weight_s=time.weight_s if layout.schedule in SPLIT else None,
                    chunks=tuple((f, b, w) for f, b, w in time.passes),
                )
            )
        return tuple(stages)


def _even_pipelines(layouts: Sequence[Layout], stages: int) -> Bools:
    """Return which layouts are pipelines of `stages` even stages with zero <= 1 and hsdp = vpp = 1,
    with the 1f1b schedule if any layout has it. Shape (layouts,)."""
    orders = {layout.schedule for layout in layouts}
    return np.array(
        [
            layout.pp == stages
            and layout.zero <= 1
            and layout.hsdp == layout.vpp == 1
            and not layout.blocks
            and (layout.schedule == "1f1b" or "1f1b" not in orders)
            for layout in layouts
        ]
    )


def _layer_names(chunks: Sequence[Share]) -> tuple[str, ...]:
    counts: dict[str, int] = {}
    for chunk in chunks:
        for cost, n in chunk:
            counts[cost.name] = counts.get(cost.name, 0) + n
    return tuple(name if n == 1 else f"{name} x{n}" for name, n in counts.items())


# --- The layouts of a variant ---------------------------------------------------------------------


def planned_layouts(
    allowed: AllowedLayouts, variant: Variant, runs: list[RunTerms]
) -> PlannedLayouts | None:
    """Return the layouts that the setting allows for a variant; None if there are none. `runs` are
    those of other variants; a new run is appended."""
    run, facts = _run(allowed, variant), variant.facts
    shared = next((of for of in runs if of[0] == run), None)
    if shared is None:
        runs.append(shared := (run, {}))
    free = layer_costs(
        variant.model, _ZeroCostPricer(), variant.cp, variant.ep, stored=bool(run.stored)
    )
    both = not (free[0].is_block or free[-1].is_block)
    layouts = tuple(listed_layouts(allowed, variant, chain_work(run), 2 if both else 0))
    if not layouts:
        return None
    menus = tuple(
        menu_of(facts, block_kind, allowed.recompute == "optimal") for block_kind in facts.blocks
    )
    number = {id(layer): i for i, (layer, _) in enumerate(facts.layers)}
    kind = np.array([number[id(layer)] for layer, _ in variant.model.layers])
    block_of = {block_kind.layer: i for i, block_kind in enumerate(facts.blocks)}
    block = np.array([block_of.get(k, -1) for k in kind.tolist()])
    costs = tuple(
        _with(cost, menus[block_kind] if block_kind >= 0 else None)
        for cost, block_kind in zip(free, block.tolist(), strict=True)
    )
    estimator = _CostedEstimator(shared, variant.model, costs)
    every = make_tables(estimator, LayoutSequence(layouts), STATIC)
    # Which replicas help depends on ranks and parameters, not on the size of a microbatch.
    shared_parameters = every.contents[:, ContentColumn.SHARED_PARAMETERS]
    sizes = every.kinds[:, : KindColumn.WAITING_BYTES], shared_parameters, every.counts
    ranks = [(x.pp, x.dp, x.vpp, x.schedule, x.zero, x.hsdp, x.blocks) for x in layouts]
    key = variant.tp, variant.cp, variant.ep, variant.etp, *ranks, *(x.tobytes() for x in sizes)
    kept = estimator.once(("replicas", *key), partial(_without_useless_replicas, every, layouts))
    tables, layouts = every._replace(rows=every.rows[kept]), tuple(layouts[i] for i in kept)
    _, sides = np.unique(tables.rows[:, SIDE], return_index=True)
    sums = Sums(tables, tables.rows)
    states = sums.states()
    return PlannedLayouts(
        run=run,
        facts=facts,
        layouts=layouts,
        menus=menus,
        costs=costs,
        kind=kind,
        block=block,
        tables=tables,
        apart=np.array([layouts[i].schedule in SPLIT for i in sides]),
        steps=path_floors(sums, states, costs),
        states=states,
        first=sums.starts,
        # Kept bytes stay for at least one microbatch; recomputed bytes for one block at a time.
        needed=sums.max_over_stages(sums.memory(states)[:, STATIC.index("fewest")]),
    )


def _without_useless_replicas(tables: LayoutTables, layouts: Sequence[Layout]) -> list[int]:
    """Return the indices of layouts whose HSDP replicas can help. More replicas need more memory
    and longer updates, so at least one collective must be faster than with fewer replicas."""
    rows, kinds = tables.rows, tables.kinds
    sums = Sums(tables, rows)
    states = sums.states()
    fully_sharded = np.flatnonzero(rows[:, ZERO] == 3)  # layer by layer
    layers_s = np.zeros((len(rows), 2, len(kinds)))
    for kind, (dense, expert) in enumerate(kinds[:, :2]):
        sizes = np.full(len(fully_sharded), dense), np.full(len(fully_sharded), expert)
        both_s = sums.shared_s(rows[fully_sharded, GROUP], *sizes)
        layers_s[fully_sharded, :, kind] = np.transpose(both_s)
    all_s = np.column_stack([states.last_s, states.before_s, layers_s.reshape(len(rows), -1)])
    kept: list[int] = []
    first, last = 0, None  # start and key of the group of kept layouts that differ only in hsdp
    for i, x in enumerate(layouts):
        group = x.pp, x.vpp, x.schedule, x.zero, x.blocks
        if group != last:
            first, last = len(kept), group
        if first == len(kept) or not (all_s[kept[first:]] <= all_s[i]).all(axis=1).any():
            kept.append(i)
    return kept


def _with(cost: LayerCost, menu: Menu | None) -> LayerCost:
    """Return a layer cost with the `STATIC` policies; layers other than blocks keep everything."""
    none = cost.kept("none")
    policies: tuple[tuple[str, PolicyCost], ...] = (("none", none),)
    if menu is not None:
        ring, exchange = replace(none, attention=True), replace(none, exchange=True)
        fewest = replace(none, bytes=float(menu.bytes.min()))
        policies = tuple(zip(STATIC, (none, ring, exchange, fewest), strict=True))
    return replace(cost, policies=policies, loss_bytes=0.0, by_operator=tuple)


def _run(allowed: AllowedLayouts, variant: Variant) -> Run:
    """Return a run of the variant's model on chips with a memory of 1 byte per second."""
    config = variant.config
    stored = config if isinstance(config, StoredModel) else None
    return Run(
        model=stand_in(config) if isinstance(config, StoredModel) else config,
        gpu=_chip(),
        network=allowed.network,
        devices=allowed.devices,
        sequence=variant.model.sequence * variant.cp,
        global_batch=variant.microbatches * variant.microbatch,
        stack=CHIP,
        states=allowed.states,
        stored=stored,
    )


@cache
def _chip() -> TemplateChip:
    return TemplateChip(load_accelerator("phaze-tpuv4")).with_hbm(hbm_Bps=1.0)
