"""Estimates and plans as data (`answers.plan`): all that is printed, drawn or traced of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from atoll.answers.answer import dumped, made_of
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
    Replayed,
    RunnerUp,
    Sensitivity,
    StageMemory,
)
from atoll.fabric.nested import collective_s
from atoll.files.csvfile import write_csv
from atoll.identity import VERSION
from atoll.questions.question import given_fields
from atoll.step.layout import Layout
from atoll.step.stages import stage_shares
from atoll.training.estimate import Estimate, Estimator
from atoll.training.memory import Memory
from atoll.training.operators.layers import operator_costs
from atoll.training.planner.plan import REFUSED, TOO_LARGE, TOO_SLOW, Plan
from atoll.training.replay import replay_step, step_passes
from atoll.training.run import Run

Name = TypeVar("Name", bound=str)


def estimate_answer(found: Estimate) -> EstimateAnswer:
    run, layout, worst = found.run, found.layout, found.worst
    pipeline = step_passes(found)
    replayed = replay_step(pipeline)
    return EstimateAnswer(
        version=VERSION,
        question={} if run.question is None else given_fields(run.question),
        configuration=dumped(run.model) if run.stored is None else {},
        model=run.model.name,
        device=run.gpu.name,
        network=run.network.name,
        devices=run.devices,
        sequence=run.sequence,
        global_batch=run.global_batch,
        stack=run.stack.name,
        states=run.states.name,
        precision=run.precision,
        attention=run.attention,
        imbalance=run.imbalance,
        site=run.site.name if run.site else None,
        given=run.given,
        layout=layout,
        layout_words=str(layout),
        step_time_s=found.step.time_s,
        tokens_per_s_per_device=found.tokens_per_s_per_device,
        mfu=found.mfu,
        power_cap_W=run.gpu.cap_W,
        power_W=found.power_W,
        energy_per_token_J=found.energy_per_token_J,
        fits=found.fits,
        memory_bytes=PlanMemory(
            stage=worst.stage,
            total=worst.allocated,
            needed=worst.needed,
            after_step=worst.resting,
            capacity=run.gpu.hbm_bytes,
            headroom=run.headroom,
            tight=found.tight,
            most_needed=found.most_needed_bytes,
            parts=worst.parts(),
            stages=tuple(map(_memory, found.memory)),
        ),
        breakdown_s=found.step.breakdown(),
        notes=found.notes,
        expected_error=found.expected_error,
        interval=found.interval,
        recomputed=dict(found.rerun),
        stages=_stages(found),
        pipeline=pipeline,
        replay=Replayed(
            time_s=replayed.time_s,
            difference=replayed.difference,
            microbatches=pipeline.replayed,
        ),
        operators=_operators(found),
        operator_origins=found.operator_origins,
        cluster=Cluster(
            devices=run.devices,
            order=tuple((axis, getattr(layout, axis)) for axis in ("tp", "cp", "dp", "pp")),
            ep=layout.ep,
            etp=layout.etp,
            levels=tuple(made_of(NetworkLevel, level) for level in run.network.levels),
        ),
        whole_run=found.whole_run,
        sensitivity=tuple(_sensitivity(found)),
        launch=found.launch,
    )


def plan_answer(found: Plan) -> PlanAnswer:
    best, proof = found.best, found.certificate
    return made_of(
        PlanAnswer,
        best.answer,
        kind="plan",
        best=_best(best),
        fastest=_best(found.fastest),
        choice=found.choice(),
        ties=found.ties,
        tied=found.tied,
        alternatives=found.alternatives,
        between_layouts=best.accuracy.between,
        runners_up=tuple(
            RunnerUp(
                layout=str(other.layout),
                step_time_s=other.step.time_s,
                slower=other.step.time_s / best.step.time_s - 1,
                axes=other.layout,
                breakdown_s=other.step.breakdown(),
                tokens_per_s_per_device=other.tokens_per_s_per_device,
                memory_bytes=other.worst.needed,
            )
            for other in found.runners_up
        ),
        reasons=found.reasons,
        stopped=found.stopped,
        left_out=found.not_done,
        certificate=LayoutProof.of(
            proof,
            layouts=proof.items,
            proven=proof.proven,
            variants=found.space.variants,
            too_large=proof.ruled_out[TOO_LARGE],
            too_slow=proof.ruled_out[TOO_SLOW],
            refused=proof.ruled_out[REFUSED],
            unseen=found.unseen,
            estimated=proof.evaluated,
            bounded_per_s=found.space.bounded_per_s,
            excluded=found.excluded,
            target=found.target,
        ),
    )


def layout_rows(found: Plan) -> list[dict[str, object]]:
    """Every layout that was estimated, the fastest first."""
    names = [f.name for f in fields(Layout) if f.name != "blocks"]
    fastest_s = found.fastest.step.time_s
    return [
        {
            "layout": str(layout),
            "step_time_s": time_s,
            "slower": max(0.0, time_s / fastest_s - 1),
            **{name: getattr(layout, name) for name in names},
        }
        for layout, time_s in found.space.known()
    ]


def write_layouts(found: Plan, path: Path) -> None:
    """The same as a table."""
    rows = layout_rows(found)
    write_csv(path, tuple(rows[0]), (tuple(row.values()) for row in rows))


def _best(found: Estimate) -> BestLayout:
    return BestLayout(
        layout=str(found.layout),
        step_time_s=found.step.time_s,
        throughput_samples_per_s=found.run.global_batch / found.step.time_s,
        fits=found.fits,
    )


def _memory(found: Memory) -> StageMemory:
    return StageMemory(
        stage=found.stage,
        total=found.allocated,
        needed=found.needed,
        after_step=found.resting,
        parts=found.parts(),
    )


def _stages(best: Estimate) -> tuple[PlannedStage, ...]:
    """Each stage's layers and memory by part."""
    layout = best.layout
    costs = Estimator(best.run).costs(layout)
    shares = stage_shares(costs, layout.schedule, layout.pp, layout.vpp, layout.blocks)
    found = []
    for chunks, memory in zip(shares, best.memory, strict=True):
        layers: dict[str, int] = {}
        for chunk in chunks:
            for cost, count in chunk:
                layers[cost.name] = layers.get(cost.name, 0) + count
        words = tuple(name if n == 1 else f"{name} x{n}" for name, n in layers.items())
        beside = {"fragments and driver": memory.needed - memory.allocated}
        found.append(PlannedStage(layers=words, memory_bytes=memory.parts() | beside))
    return tuple(found)


def _operators(best: Estimate) -> tuple[DevicePass, ...]:
    """Every kind of layer, operator by operator, in the order in which a device runs them."""
    run, layout = best.run, best.layout
    estimator = Estimator(run)
    found = []
    for layer, repeat in estimator.model(layout).layers:
        costs = operator_costs(layer, estimator.pricer, layout)
        for name, operators in (("forward", layer.forward), ("backward", layer.backward)):
            rows, work, origins, clock = [], [], [], 0.0
            for op in operators:
                cost = costs[op.name]
                kinds = {
                    "matrix": cost.matrix_s,
                    "attention": cost.attention_s,
                    "vector": cost.vector_s,
                }
                seconds, lane = cost.total_s, _most(kinds)
                if (moved := op.collective) is not None:
                    seconds = collective_s(run.network, moved.kind.value, moved.bytes, layout.tp)
                    lane = "link"
                if seconds > 0.0:
                    rows.append((op.name, lane, clock, seconds))
                    work.append((op.flops, layer.moved_bytes(op)))
                    origins.append(_most(cost.origins_s))
                    clock += seconds
            found.append(
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
    return tuple(found)


def _most(parts: Mapping[Name, float]) -> Name:
    """What takes most of an operator's time."""
    return max(parts, key=lambda name: parts[name])


def _sensitivity(best: Estimate) -> list[Sensitivity]:
    """The same layout estimated again with each rate of the machine 10 % lower and higher."""
    rows, known = [], Estimator(best.run)
    for name, changed in _faster(best.run).items():
        less, more = (
            Gain(
                change=f"{factor - 1:+.0%}",
                gain=best.step.time_s / beside.estimate(best.layout).step.time_s - 1,
            )
            for factor in (0.9, 1.1)
            for beside in (known.beside(changed(factor)),)
        )
        rows.append(Sensitivity(what=name, less=less, more=more))
    return rows


def _faster(run: Run) -> dict[str, Callable[[float], Run]]:
    """By name: the run on a machine with one rate multiplied."""

    def memory(factor: float) -> Run:
        return replace(run, gpu=run.gpu.with_hbm(hbm_Bps=run.gpu.hbm_Bps * factor))

    def network(factor: float, level: int) -> Run:
        return replace(run, network=run.network.faster(factor, level))

    links = {
        f"{level.name} link bandwidth": partial(network, level=i)
        for i, level in enumerate(run.network.levels)
    }
    return {"HBM bandwidth": memory, **links}
