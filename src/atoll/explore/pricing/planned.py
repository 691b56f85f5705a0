"""Layouts of a searched chip beside divisions of one-forward-one-backward pipelines: interleaved
and zero-bubble orders, ZeRO 2 and 3, replicas of what ZeRO divides, context and expert parallelism,
with even or balanced stages.

They are priced by the planner's own estimate (`training.batch`), so that a chip takes the same step
in a search and in a plan. Of its tables only the times of layers differ from chip to chip; the
recomputation choices are those of one set for all chips.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from atoll.cost.pricer import Cost, LayerTimes
from atoll.explore.pricing.bound_kernels import floors_s
from atoll.explore.pricing.listed import Allowed, listed
from atoll.hardware.catalog import load_accelerator
from atoll.hardware.device import Chip
from atoll.placement.chain import Division, Floors, PlacementProblem, Times
from atoll.placement.plan import Placement, Stage
from atoll.placement.recompute import KeepChoice, hull_choices, rerun_table
from atoll.step.layout import Layout
from atoll.step.orders import SPLIT, arrivals
from atoll.step.stages import stage_shares
from atoll.training.batch.estimates import Given, tables_of
from atoll.training.batch.parts import Held, States
from atoll.training.batch.sums import Sums
from atoll.training.estimate import Estimate, Estimator
from atoll.training.operators.layers import LayerCost, Share, layer_costs
from atoll.training.operators.policies import kept_of
from atoll.training.operators.priced import work_behind
from atoll.training.operators.tables import (
    COPIES,
    GROUP,
    MICROBATCHES,
    PIPE,
    SIDE,
    STAGES,
    ZERO,
    Tables,
)
from atoll.training.operators.tables import SPLIT as LATER
from atoll.training.request import stand_in
from atoll.training.run import Run
from atoll.training.stack import CHIP
from atoll.training.step import Stepper
from atoll.workload.graph.layer import Layer, Model
from atoll.workload.graph.operator import Operator
from atoll.workload.stored import StoredModel

if TYPE_CHECKING:
    from atoll.explore.pricing.workloads import Variant

FloatArray = NDArray[np.float64]

BALANCE = 200.0
"""Operations for each byte of memory traffic of a device whose times decide which recomputation
choices are tried: about those of an A100 or an H100."""
AT_ONCE = 32  # layouts: few, as the first ones often rule the others out
_NAMES = ("compute", "recompute", "pipeline_sends", "pipeline_bubble", "gradient_reduction")


class _Free:
    """Prices nothing: what is left of an estimate is what no chip changes."""

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
    ) -> FloatArray:
        return np.zeros(len(samples))


class _Known(Estimator):
    """An estimator of one variant whose layers' costs are known."""

    def __init__(self, run: Run, model: Model, costs: tuple[LayerCost, ...]) -> None:
        self.run = run
        self._known = {}
        self._model = model
        self._costs = costs

    def costs(self, layout: Layout) -> tuple[LayerCost, ...]:
        return self._costs

    def model(self, layout: Layout) -> Model:
        return self._model

    def full(self, layout: Layout, policies: tuple[str, ...]) -> Estimate:
        return self._estimate(layout, policies)


@dataclass(frozen=True, eq=False)
class PlannedLayouts:
    """`placement.chain.OtherLayouts` of one variant, priced as the planner does."""

    run: Run
    model: Model
    block_kind: int
    layouts: tuple[Layout, ...]
    choices: tuple[KeepChoice, ...]
    """Of recomputation, of which every stage has one."""
    rerun: FloatArray
    """(choices, forward operators of the block)."""
    costs: tuple[LayerCost, ...]
    """Of layers that take no time."""
    tables: Tables
    """The planner's, of layers that take no time on a memory of one byte a second."""
    apart: NDArray[np.bool_]
    """(sides,): whether weight gradients run apart."""
    repeats: NDArray[np.int64]
    steps: Floors
    """Their fixed seconds without those on memory."""
    held: Held
    """Of all layouts, on such a memory."""
    first: NDArray[np.int64]
    """(layouts,): their first stages there."""
    needed: FloatArray
    """(layouts,): bytes under the choices that need least."""

    def floors(self, problem: PlacementProblem) -> Floors:
        return self._steps(problem).of(self.needed <= problem.memory_bytes)

    def _steps(self, problem: PlacementProblem) -> Floors:
        moved_s = self.held.states.beside_s / problem.hbm_Bps
        return self.steps._replace(fixed_s=self.steps.fixed_s + moved_s)

    def fastest(self, problem: PlacementProblem, times: Times, cutoff_s: float) -> Division | None:
        floor_s = np.empty(len(self.layouts))
        layer_s, both_s = times.pass_s.sum(axis=1), np.concatenate([times.pass_s, times.halves_s])
        floors_s(self._steps(problem), both_s, self.repeats, self.block_kind, floor_s)
        hopeful = np.flatnonzero((floor_s < cutoff_s) & (self.needed <= problem.memory_bytes))
        order = hopeful[np.argsort(floor_s[hopeful], kind="stable")]
        tables = self.timed(problem, times) if len(order) else self.tables
        best_s, best = cutoff_s, -1
        picks = np.zeros(0, np.int64)
        for first in range(0, len(order), AT_ONCE):
            if floor_s[order[first]] >= best_s:
                break
            rows = order[first : first + AT_ONCE]
            sums = Sums(tables, tables.rows[rows])
            own = self._held(sums, rows, problem)
            step_s, chosen = sums.best(best_s, own)
            least = int(step_s.argmin())
            if step_s[least] < best_s:
                best_s, best = float(step_s[least]), int(rows[least])
                picks = chosen[sums.row == least]
        if best < 0:
            return None
        layout = self.layouts[best]
        again_s = (self.rerun @ times.forward_s)[picks]
        first = tables.starts[tables.rows[best, PIPE]]
        mixes = tables.mix[first : first + layout.pp]
        held = tables.counts[mixes, self.block_kind] / layout.copies
        busy_s = float(layer_s @ self.repeats)
        return Division(
            step_time_s=best_s,
            pipeline=layout.pp,
            data=layout.dp,
            starts=(),
            recompute_share=float(held @ again_s) / busy_s if busy_s else 0.0,
            zero=layout.zero,
            layout=layout,
            choices=tuple(picks.tolist()),
        )

    def _held(self, sums: Sums, rows: NDArray[np.int64], problem: PlacementProblem) -> Held:
        """What some of the layouts hold, beside a chip's times."""
        at, known = self.first[rows][sums.row] + sums.place, self.held.states
        weight_s = (sums.t.counts @ sums.t.kinds[:, 4])[sums.mix]
        states = States(
            known.beside_s[rows] / problem.hbm_Bps,
            known.last_s[rows],
            known.before_s[rows],
            known.fixed[at],
            known.gradients[at],
            known.waiting[at],
            weight_s / sums.rows[sums.row, COPIES],
            known.launch_s[at],
        )
        return Held(states, self.held.bytes[at])

    def timed(self, problem: PlacementProblem, times: Times) -> Tables:
        """The tables with a chip's times."""
        passes, kinds = self.tables.passes.copy(), self.tables.kinds.copy()
        passes[..., 0] += times.pass_s[:, 0, None]
        for side, apart in enumerate(self.apart):
            back_s = times.halves_s.sum(axis=1) if apart else times.pass_s[:, 1]
            passes[side, :, :, 1] += back_s[:, None]
        passes[:, self.block_kind, :, 1] += self.rerun @ times.forward_s
        if len(times.halves_s):
            kinds[:, 4] = times.halves_s[:, 1]
        parameters = self.tables.parameters.copy()
        parameters[:, 3:] /= problem.hbm_Bps
        return self.tables._replace(
            passes=passes, kinds=kinds, parameters=parameters, run=self._on(problem)
        )

    def _on(self, problem: PlacementProblem) -> Run:
        """The run on devices with the problem's memory."""
        assert isinstance(self.run.gpu, Chip)
        bytes_ = max(1, int(problem.memory_bytes))
        return replace(self.run, gpu=self.run.gpu.with_hbm(bytes_, problem.hbm_Bps))

    # --- One of them in full ----------------------------------------------------------------------

    def describe(self, problem: PlacementProblem, times: Times, division: Division) -> Placement:
        assert division.layout is not None
        layout, costs = division.layout, self._timed_costs(times)
        names = tuple(_name(choice) for choice in division.choices)
        found = _Known(self._on(problem), self.model, costs).full(layout, names)
        parts = found.step.breakdown()
        return Placement(
            pipeline=layout.pp,
            tensor=layout.tp,
            data=layout.dp,
            microbatch=layout.microbatch,
            microbatches=layout.microbatches(self.run.global_batch),
            step_time_s=found.step.time_s,
            stages=self._stages(found, division.choices, costs),
            time_parts_s={n: s for n, s in parts.items() if s > 0.0 or n in _NAMES},
            schedule=layout.schedule,
            zero=layout.zero,
            cp=layout.cp,
            ep=layout.ep,
            etp=None if layout.etp == layout.tp else layout.etp,
            vpp=layout.vpp,
            hsdp=layout.hsdp,
        )

    def _timed_costs(self, times: Times) -> tuple[LayerCost, ...]:
        """The layers with a chip's times."""
        again_s = self.rerun @ times.forward_s
        found = []
        for kind, cost in enumerate(self.costs):
            halves = times.halves_s[kind] if len(times.halves_s) else np.zeros(2)
            seconds = (*times.pass_s[kind], *halves)
            forward, backward, data, weight = (Cost(matrix_s=float(s)) for s in seconds)
            policies = cost.policies
            if kind == self.block_kind:
                policies = tuple(
                    (name, replace(kept, again=Cost(matrix_s=float(s))))
                    for (name, kept), s in zip(policies, (0.0, *again_s), strict=True)
                )
            found.append(
                replace(
                    cost,
                    forward=forward,
                    backward=backward,
                    data=data,
                    weight=weight,
                    policies=policies,
                )
            )
        return tuple(found)

    def _stages(
        self, found: Estimate, choices: Sequence[int], costs: tuple[LayerCost, ...]
    ) -> tuple[Stage, ...]:
        layout = found.layout
        stepper = Stepper(found.run, layout)
        boundary = max((c.boundary_bytes for c in costs if c.is_block), default=0)
        send_s = stepper.send_s(boundary)
        shares = stage_shares(costs, layout.schedule, layout.pp, layout.vpp, layout.blocks)
        came = arrivals(layout.schedule, layout.pp, len(shares[0]))
        block = self.model.layers[self.block_kind][0]
        stages = []
        for own, time, memory, chunks, choice in zip(
            came, found.stages, found.memory, shares, choices, strict=True
        ):
            timed = [stepper.stage_time([chunk], _name(choice)) for chunk in chunks]
            each = [one.paces(layout.schedule)[0] for one in timed]  # a chip waits for no host
            holds = any(cost.name == block.name for chunk in chunks for cost, _ in chunk)
            again = [block.forward[i].name for i in self.choices[choice].rerun] if holds else []
            stages.append(
                Stage(
                    layers=_layer_names(chunks),
                    first=0,
                    last=0,
                    devices=layout.tp * layout.cp,
                    compute_s=time.forward.total_s + time.backward.total_s,
                    recompute_s=time.recompute.total_s,
                    transfer_s=sum(own) * send_s,
                    receive_s=send_s,
                    recompute="+".join(again) or "none",
                    memory_bytes={n: b for n, b in memory.parts().items() if n != "logits"},
                    forward_s=time.forward.total_s,
                    weight_s=time.weight_s if layout.schedule in SPLIT else None,
                    chunks=tuple((p.forward_s, p.backward_s, p.weight_s) for p in each),
                )
            )
        return tuple(stages)


def _layer_names(chunks: Sequence[Share]) -> tuple[str, ...]:
    counts: dict[str, int] = {}
    for chunk in chunks:
        for cost, n in chunk:
            counts[cost.name] = counts.get(cost.name, 0) + n
    return tuple(name if n == 1 else f"{name} x{n}" for name, n in counts.items())


def _name(choice: int) -> str:
    return f"choice-{choice}"


# --- The layouts of a variant ---------------------------------------------------------------------


def planned_layouts(allowed: Allowed, variant: Variant) -> PlannedLayouts | None:
    """Those that the setting allows a variant; None where there are none."""
    run, kind = _run(allowed, variant), variant.facts.block_kind
    free = layer_costs(variant.model, _Free(), variant.cp, variant.ep, stored=bool(run.stored))
    blocks = sum(cost.repeat for cost in free if cost.is_block)
    both = not (free[0].is_block or free[-1].is_block)
    layouts = tuple(listed(allowed, variant, blocks, 2 if both else 0, work_behind(run)))
    if not layouts:
        return None
    block = variant.model.layers[kind][0]
    choices = hull_choices(block, _balanced_s(block))
    if allowed.recompute != "optimal":
        choices = choices[:1] if allowed.recompute == "full" else choices[-1:]
    costs = tuple(_with(cost, block if i == kind else None, choices) for i, cost in enumerate(free))
    names = [_name(choice) for choice in range(len(choices))]
    every = tables_of(_Known(run, variant.model, costs), Given(layouts), names)
    kept = _sooner(every, layouts)
    tables, layouts = every._replace(rows=every.rows[kept]), tuple(layouts[i] for i in kept)
    _, sides = np.unique(tables.rows[:, SIDE], return_index=True)
    repeats = np.array([cost.repeat for cost in costs], np.int64)
    sums = Sums(tables, tables.rows)
    held = sums.held()
    return PlannedLayouts(
        run=run,
        model=variant.model,
        block_kind=kind,
        layouts=layouts,
        choices=choices,
        rerun=rerun_table(choices, len(block.forward)),
        costs=costs,
        tables=tables,
        apart=np.array([layouts[i].schedule in SPLIT for i in sides]),
        repeats=repeats,
        steps=_steps(sums, held.states, repeats),
        held=held,
        first=sums.starts,
        needed=sums.most(held.bytes.min(axis=1)),
    )


def _sooner(tables: Tables, layouts: Sequence[Layout]) -> list[int]:
    """Layouts without those whose replicas of what ZeRO divides bring nothing: more of them hold
    and update more, so that some of their collectives must take less than with fewer.
    """
    rows, kinds = tables.rows, tables.kinds
    sums = Sums(tables, rows)
    states = sums.states()
    whole = np.flatnonzero(rows[:, ZERO] == 3)  # layer by layer
    layers_s = np.zeros((len(rows), 2, len(kinds)))
    for kind, (dense, expert) in enumerate(kinds[:, :2]):
        sizes = np.full(len(whole), dense), np.full(len(whole), expert)
        layers_s[whole, :, kind] = np.transpose(sums.shared_s(rows[whole, GROUP], *sizes))
    all_s = np.column_stack([states.last_s, states.before_s, layers_s.reshape(len(rows), -1)])
    kept: list[int] = []
    first, last = 0, None  # of those kept that differ from the next in their replicas alone
    for i, x in enumerate(layouts):
        group = x.pp, x.vpp, x.schedule, x.zero, x.blocks
        if group != last:
            first, last = len(kept), group
        if first == len(kept) or not (all_s[kept[first:]] <= all_s[i]).all(axis=1).any():
            kept.append(i)
    return kept


def _with(cost: LayerCost, block: Layer | None, choices: Sequence[KeepChoice]) -> LayerCost:
    """A layer with the choices as policies: of the block what they say, of others nothing."""
    none = cost.kept("none")
    kept = [none] * len(choices)
    if block is not None:
        nothing = dict.fromkeys((op.name for op in block.forward), Cost())
        kept = [
            kept_of(block, float(c.kept_bytes), again, _Free(), nothing)
            for c, again in ((c, [block.forward[i] for i in c.rerun]) for c in choices)
        ]
    named = ((_name(i), one) for i, one in enumerate(kept))
    policies = (("none", none), *named)
    return replace(cost, policies=policies, loss_bytes=0.0, by_operator=tuple)


def _run(allowed: Allowed, variant: Variant) -> Run:
    """The variant's model on chips whose memory moves one byte a second."""
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
def _chip() -> Chip:
    return Chip(load_accelerator("phaze-tpuv4")).with_hbm(hbm_Bps=1.0)


def _balanced_s(layer: Layer) -> FloatArray:
    """Forward operators on a device of the usual balance, in units of its own."""
    return np.array([max(op.flops, BALANCE * layer.traffic_bytes(op)) for op in layer.forward])


def _steps(sums: Sums, states: States, repeats: NDArray[np.int64]) -> Floors:
    """From a step's formula: M loads, and of a pass through all stages what the bubble has of it.

    Orders that put weight gradients off may have none. But with s the slowest stage and L its load,
    M L + f mean(F) + d mean(D) - w mean(W) over the others, whose W counts at most as W_s, is no
    less than (M - max(f', d', w)) L + f' sum(F) + d' sum(D), f' = f / (p - 1): F_s + D_s + W_s = L.
    """
    tables, rows = sums.t, sums.rows
    stages, pipe, side = rows[:, STAGES], rows[:, PIPE], rows[:, SIDE]
    first = tables.bubbles[pipe, 0]
    forward, data = first[:, :2].T / np.maximum(1, stages - 1)
    split = rows[:, LATER] > 0
    bubble = np.where(split, 0.0, forward)
    paid = np.max([forward, data, -first[:, 2]], axis=0)
    dense, expert = tables.kinds[:, :2].T
    gathers_s = np.zeros(len(rows))
    for n, own, others in zip(repeats, dense, expert, strict=True):
        gather_s, reduce_s = sums.shared_s(
            rows[:, GROUP], np.full(len(rows), own), np.full(len(rows), others)
        )
        gathers_s += n * (2.0 * gather_s + reduce_s)
    links_s = (tables.passes[:, :, :, :2].sum(axis=3).min(axis=2) * repeats).sum(axis=1)
    return Floors(
        stages=stages.copy(),
        copies=rows[:, COPIES].copy(),
        loads=np.asarray(rows[:, MICROBATCHES] - bubble, np.float64),
        passes=bubble,
        transfer_s=sums.total(sums.arriving_s.sum(axis=1))
        + np.where(rows[:, ZERO] == 3, gathers_s, 0.0)
        + links_s[side],
        fixed_s=states.last_s + (rows[:, MICROBATCHES] - 1) * states.before_s,
        late=np.where(split, rows[:, MICROBATCHES] - paid, 0.0),
        forward=np.where(split, forward, 0.0),
        data=np.where(split, data, 0.0),
    )
