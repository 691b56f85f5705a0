"""The whole road of a wafer search in one function: job to answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from atoll.errors import AtollError, InfeasibleError
from atoll.hardware.wafer import Wafer
from atoll.hardware.wafer_files import load_wafers
from atoll.questions import WaferQuestion
from atoll.step.certificate import Certificate
from atoll.units import counted
from atoll.wafer.anneal import anneal
from atoll.wafer.answer.explain import Worth, explain
from atoll.wafer.answer.result import WaferResult, running_power_W
from atoll.wafer.architectures import Explored, explore_wafers, pareto_rows
from atoll.wafer.detailed import replay_mapping
from atoll.wafer.estimate import estimate_mapping, given_mapping
from atoll.wafer.evaluate import Evaluation
from atoll.wafer.faults import SMALL, Faults, degraded, map_around
from atoll.wafer.job import options_of, tokens_of
from atoll.wafer.others.baselines import Baseline, run_baselines
from atoll.wafer.search import QUICK_CODES, Candidate, Progress, WaferSearch
from atoll.wafer.stages import MANY_CODES

TOLERANCE = 0.01
STREAMED = "weight-streaming"


def run_wafer_search(job: WaferQuestion, progress: Progress | None = None) -> WaferResult:
    """Find the best mapping (and wafer, where a space is given), and lay baselines beside it."""
    began = mark = time.monotonic()
    phases: dict[str, float] = {}

    def timed(name: str) -> None:
        nonlocal mark
        now = time.monotonic()
        phases[name], mark = now - mark, now

    wafers = load_wafers(job.wafer)
    for wafer in wafers:
        _check_places(job, wafer)
    baselines: dict[str, Baseline | None] = {}
    if len(wafers) == 1:
        if job.baselines:
            baselines = _baselines(job, wafers[0])
            timed("baselines")
        search = make_search(job, wafers[0], progress)
        found = search.run(_seeds(job, wafers[0], baselines))
        explored = Explored(((wafers[0], found),), {}, job.batch / found.bound_s)
        timed("search")
    else:
        searches = [make_search(job, wafer, None, QUICK_CODES) for wafer in wafers]
        explored = explore_wafers(searches, job.pareto, lambda w: make_search(job, w), progress)
        search = next(s for s in searches if s.wafer is explored.solved[0][0])
        timed("search")
        if job.baselines:
            baselines = _baselines(job, search.wafer)
            timed("baselines")
    wafer, found = explored.solved[0]
    best, faults = _with_faults(job, search, found.best)
    if faults:
        timed("faults")
    annealed = None
    broken = Faults(job.dead_dies, job.dead_links).all_links(wafer)
    if not job.ablations:
        homes = search.planner.options.homes
        annealed = anneal(wafer, best, job.seed, dead_links=broken, homes=homes)
        best = annealed.best
        timed("annealing")
    detailed = replay_mapping(wafer, best, broken)
    timed("replay")
    worth: tuple[Worth, ...] = ()
    if job.explain:
        broken = Faults(job.dead_dies, job.dead_links).all_links(wafer)
        worth = explain(wafer, best, search.planner.options, tuple(broken))
        timed("explanation")
    rows = [design_row(w, f.best) for w, f in explored.solved]
    return WaferResult(
        job=job,
        wafer=wafer,
        best=best,
        certificate=Certificate(
            score=_healthy(job, found.best, best),
            bound=explored.bound_samples_per_s,
            tolerance=TOLERANCE,
            items=len(wafers),
            kind="architecture",
            evaluated=len(explored.solved),
            ruled_out=explored.pruned,
            tightened=found.solved,
            subject=_subject(job, len(wafers)),
        ),
        baselines=baselines,
        detailed=detailed | {"annealing_gain": annealed.gain if annealed else 0.0},
        designs=rows,
        pareto=_front(explored) if job.pareto else {},
        runners_up=found.runners_up,
        faults=faults,
        explanation=worth,
        phases_s=phases,
        wall_time_s=time.monotonic() - began,
    )


def _baselines(job: WaferQuestion, wafer: Wafer) -> dict[str, Baseline | None]:
    states = options_of(job).states.name
    return run_baselines(wafer, job.model, job.batch, tokens_of(job), optimizer=states)


def _subject(job: WaferQuestion, wafers: int) -> str:
    """What the bound is about."""
    if wafers > 1:
        return f"all mappings on {counted(wafers, 'wafer')}"
    faults = job.dead_dies or job.dead_links
    return f"all mappings on this wafer{' without its faults' if faults else ''}"


def _healthy(job: WaferQuestion, found: Evaluation, best: Evaluation) -> float:
    """The throughput that the bound is about: that of a wafer without given faults."""
    return found.samples_per_s if job.dead_dies or job.dead_links else best.samples_per_s


def make_search(
    job: WaferQuestion, wafer: Wafer, progress: Progress | None = None, most_codes: int = MANY_CODES
) -> WaferSearch:
    options = options_of(job)
    if wafer.sram_memory:
        # Weights with their optimizer state do not live in SRAM.
        options = replace(options, homes=("external",))
        most_codes = min(most_codes, QUICK_CODES)
    elif wafer.parameter_store:
        options = replace(options, homes=(*options.homes, "external"))
    return WaferSearch(
        wafer, job.model, job.batch, tokens_of(job), options, job.microbatch, progress, most_codes,
        _accept(job) if job.restricted else None,
    )  # fmt: skip


def _accept(job: WaferQuestion) -> Callable[[Candidate], bool]:
    def accept(candidate: Candidate) -> bool:
        shape = candidate.width, candidate.height
        return (not job.stage_shapes or shape in job.stage_shapes) and (
            not job.stage_counts or candidate.stages in job.stage_counts
        )

    return accept


def _seeds(
    job: WaferQuestion, wafer: Wafer, baselines: dict[str, Baseline | None]
) -> Sequence[Evaluation]:
    """Baselines are points of the same space. Ablations ask what a part of it is worth: then
    nothing from outside may help.
    """
    if job.ablations or job.restricted:
        return ()
    known = [
        baseline.evaluation
        for name, baseline in baselines.items()
        if baseline is not None and (name != STREAMED or wafer.parameter_store)
    ]
    start = given_mapping(job, wafer)
    return known if start is None else [*known, estimate_mapping(wafer, start).evaluation]


def _with_faults(
    job: WaferQuestion, search: WaferSearch, healthy: Evaluation
) -> tuple[Evaluation, dict[str, Any]]:
    """The mapping around given faults, and the throughput over sampled wafers."""
    shown: dict[str, Any] = {}
    best = healthy
    if job.dead_dies or job.dead_links:
        given = Faults(job.dead_dies, job.dead_links)
        around = map_around(search.planner, given, SMALL)
        if around is None:
            raise InfeasibleError(
                f"model {job.model}: no mapping fits the {search.wafer.dies - len(given.dies)} "
                f"working dies of wafer {search.wafer.name}; use a smaller model or a wafer with "
                "fewer dead dies."
            )
        best = around
        shown["kept"] = best.samples_per_s / healthy.samples_per_s
    if job.samples:
        share = search.wafer.dead_share if job.dead_share is None else job.dead_share
        shown |= degraded(search.planner, healthy, share, job.samples, job.seed)
    return best, shown


def design_row(wafer: Wafer, found: Evaluation) -> dict[str, Any]:
    return wafer.to_dict() | {
        "samples_per_s": found.samples_per_s,
        "power_W": running_power_W(wafer, found),
        "microbatch": found.mapping.microbatch,
        "stages": len(found.mapping.stages),
        "memory_GiB_used": found.memory_bytes / 2**30,
    }


def _front(explored: Explored) -> dict[str, Any]:
    chosen = pareto_rows(explored)
    rows = [design_row(w, f.best) for w, f in explored.solved if any(w is c for c in chosen)]
    return {"throughput_power_cost": {"proven_within": None, "designs": rows}}


def _check_places(job: WaferQuestion, wafer: Wafer) -> None:
    for x, y in (*job.dead_dies, *(die for link in job.dead_links for die in link)):
        if x >= wafer.columns or y >= wafer.rows:
            raise AtollError(
                f"job: dead_dies: ({x}, {y}) is not on the wafer of {wafer.columns} columns and "
                f"{wafer.rows} rows."
            )
    for width, height in job.stage_shapes:
        if width > wafer.columns or height > wafer.rows:
            raise AtollError(
                f"job: stage_shapes: {width} x {height} dies do not fit the wafer of "
                f"{wafer.columns} columns and {wafer.rows} rows."
            )
    for (a, b), (c, d) in job.dead_links:
        if abs(a - c) + abs(b - d) != 1:
            raise AtollError(
                f"job: dead_links: ({a}, {b}) and ({c}, {d}) are not neighbours, so that there is "
                "no link between them."
            )

