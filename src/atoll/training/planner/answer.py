"""Conversion of estimates and plans to data (`answers.plan`) for printing, plots and traces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TypeVar

from atoll.answers.answer import build_from, dumped
from atoll.answers.certificate import LayoutProof
from atoll.answers.plan import (
    BestLayout,
    Cluster,
    DevicePass,
    EstimateAnswer,
    Gain,
    NetworkLevel,
    PlanAnswer,
    PlanMemory,
    PlannedStage,
    ReplayAnswer,
    RunnerUp,
    Sensitivity,
    StageMemory,
)
from atoll.base.identity import VERSION
from atoll.fabric.nested import collective_s
from atoll.files.csvfile import write_csv
from atoll.placement.replay import replay_step
from atoll.questions.question import explicit_fields
from atoll.tools.tool import UNRESTRICTED
from atoll.training.estimate import Estimate, Estimator
from atoll.training.memory import Memory
from atoll.training.operators.layers import operator_costs
from atoll.training.planner.pieces import AXES
from atoll.training.planner.plan import REFUSED, TOO_LARGE, TOO_SLOW, Plan
from atoll.training.replay import step_passes
from atoll.training.run import Run
from atoll.training.uncertainty import error_fits

Name = TypeVar("Name", bound=str)


def estimate_answer(estimate: Estimate) -> EstimateAnswer:
    run, layout, worst = estimate.run, estimate.layout, estimate.worst
    pipeline = step_passes(estimate)
    return build_from(
        EstimateAnswer,
        estimate,
        run,
        summary=tuple(estimate.summary()),
        version=VERSION,
        question={} if run.question is None else explicit_fields(run.question),
        configuration=dumped(run.model) if run.stored is None else {},
        device=run.gpu.name,
        **{n: getattr(run, n).name for n in ("model", "network", "tool", "stack", "states")},
        site=run.site.name if run.site else None,
        layout_words=str(layout),
        power_cap_W=run.gpu.cap_W,
        memory_bytes=build_from(
            PlanMemory,
            _memory(worst),
            estimate,
            run,
            capacity=run.gpu.hbm_bytes,
            most_needed=estimate.most_needed_bytes,
            stages=tuple(map(_memory, estimate.memory)),
        ),
        breakdown_s=estimate.step.breakdown(),
        recomputed=dict(estimate.rerun),
        stages=_stages(estimate),
        pipeline=pipeline,
        replay=build_from(ReplayAnswer, replay_step(pipeline), microbatches=pipeline.replayed),
        operators=_operators(estimate),
        cluster=build_from(
            Cluster,
            run,
            layout,
            order=tuple((axis, getattr(layout, axis)) for axis in ("tp", "cp", "dp", "pp")),
            levels=tuple(build_from(NetworkLevel, level) for level in run.network.levels),
        ),
        sensitivity=tuple(_sensitivity(estimate)),
    )


def plan_answer(plan: Plan) -> PlanAnswer:
    best, proof = plan.best, plan.certificate
    return build_from(
        PlanAnswer,
        best.answer,
        plan,
        kind="plan",
        summary=tuple(plan.summary()),
        best=_best(best),
        fastest=_best(plan.fastest),
        choice=plan.choice(),
        between_layouts=error_fits().between_layouts.median,
        runners_up=tuple(
            build_from(
                RunnerUp,
                runner_up,
                layout=str(runner_up.layout),
                slower=runner_up.step.time_s / best.step.time_s - 1,
                axes=runner_up.layout,
                breakdown_s=runner_up.step.breakdown(),
                memory_bytes=runner_up.worst.needed,
                fastest_chance=chance,
            )
            for runner_up, chance in zip(plan.runners_up, plan.fastest_chances[1:], strict=True)
        ),
        fastest_chance=plan.fastest_chances[0],
        left_out=plan.not_done,
        certificate=LayoutProof.of(
            proof,
            plan,
            plan.space,
            layouts=proof.items,
            too_large=proof.ruled_out[TOO_LARGE],
            too_slow=proof.ruled_out[TOO_SLOW],
            refused=proof.ruled_out[REFUSED],
            estimated=proof.evaluated,
            target="" if plan.tool.name == UNRESTRICTED else plan.tool.name,
        ),
    )


def layout_rows(plan: Plan) -> list[dict[str, object]]:
    """Return one row per estimated layout, fastest first."""
    fastest_s = plan.fastest.step.time_s
    return [
        {
            "layout": str(layout),
            "step_time_s": time_s,
            "slower": max(0.0, time_s / fastest_s - 1),
            **{axis: getattr(layout, axis) for axis in AXES},
        }
        for layout, time_s in plan.space.estimated_layouts()
    ]


def write_layouts(plan: Plan, path: Path) -> None:
    """Write the rows of `layout_rows` to a table file."""
    rows = layout_rows(plan)
    write_csv(path, tuple(rows[0]), (tuple(row.values()) for row in rows))


def _best(estimate: Estimate) -> BestLayout:
    rate = estimate.run.global_batch / estimate.step.time_s
    layout = str(estimate.layout)
    return build_from(BestLayout, estimate, layout=layout, throughput_samples_per_s=rate)


def _memory(memory: Memory) -> StageMemory:
    return build_from(
        StageMemory, memory, total=memory.allocated, after_step=memory.resting, parts=memory.parts()
    )


def _stages(best: Estimate) -> tuple[PlannedStage, ...]:
    """Return the layers and the memory by part of each stage."""
    rows = []
    for chunks, memory in zip(best.prices.shares(best.layout)[1], best.memory, strict=True):
        layers = Counter[str]()
        for cost, count in chain.from_iterable(chunks):
            layers[cost.name] += count
        words = tuple(name if n == 1 else f"{name} x{n}" for name, n in layers.items())
        outside_bytes = {"fragments and driver": memory.needed - memory.allocated}
        rows.append(PlannedStage(layers=words, memory_bytes=memory.parts() | outside_bytes))
    return tuple(rows)


def _operators(best: Estimate) -> tuple[DevicePass, ...]:
    """Return the operators of every kind of layer in execution order."""
    run, layout = best.run, best.layout
    estimator = Estimator(run)
    operator_rows = []
    for layer, repeat in estimator.model(layout).layers:
        costs = operator_costs(layer, estimator.pricer, layout)
        for name, operators in (("forward", layer.forward), ("backward", layer.backward)):
            rows, work, origins, clock = [], [], [], 0.0
            for op in operators:
                cost = costs[op.name]
                kinds = ("matrix", "attention", "vector")
                seconds, lane = cost.total_s, _most(dict(zip(kinds, cost[:3], strict=True)))
                if (moved := op.collective) is not None:
                    seconds = collective_s(run.network, moved.kind.value, moved.bytes, layout.tp)
                    lane = "link"
                if seconds > 0.0:
                    rows.append((op.name, lane, clock, seconds))
                    work.append((op.flops, layer.moved_bytes(op)))
                    origins.append(_most(cost.origins_s))
                    clock += seconds
            operator_rows.append(
                DevicePass(
                    layer=layer.name,
                    repeat=repeat,
                    pass_=name,
                    makespan_s=clock,
                    operators=tuple(rows),
                    work=tuple(work),
                    origins=tuple(origins) if run.timed else (),
                )
            )
    return tuple(operator_rows)


def _most(parts: Mapping[Name, float]) -> Name:
    """Return the part that takes most of an operator's time."""
    return max(parts, key=lambda name: parts[name])


def _sensitivity(best: Estimate) -> list[Sensitivity]:
    """Estimate the same layout with each machine rate 10 % lower and 10 % higher."""

    def gain(run: Run, factor: float) -> Gain:
        changed = best.prices.with_run(run).estimate(best.layout)
        gain = best.step.time_s / changed.step.time_s - 1
        return Gain(change=f"{factor - 1:+.0%}", gain=gain)

    return [
        Sensitivity(what=name, less=gain(changed(0.9), 0.9), more=gain(changed(1.1), 1.1))
        for name, changed in _faster(best.run).items()
    ]


def _faster(run: Run) -> dict[str, Callable[[float], Run]]:
    """Return functions, by rate name, that multiply one machine rate of the run."""

    def memory(factor: float) -> Run:
        return replace(run, gpu=run.gpu.with_hbm(hbm_Bps=run.gpu.hbm_Bps * factor))

    def network(factor: float, level: int) -> Run:
        return replace(run, network=run.network.faster(factor, level))

    links = {
        f"{level.name} link bandwidth": partial(network, level=i)
        for i, level in enumerate(run.network.levels)
    }
    return {"HBM bandwidth": memory, **links}
