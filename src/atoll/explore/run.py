"""The whole road of a search in one function: job to answer, with its proof."""

from __future__ import annotations

import time
from collections.abc import MutableMapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from atoll.errors import AtollError, InfeasibleError
from atoll.executors import Crew, Executor, choose_executor
from atoll.explore.baselines import reference_space, run_baselines
from atoll.explore.branch_and_bound import Outcome, Progress, Search
from atoll.explore.evolve import evolve_search
from atoll.explore.files import check_folder, write_result
from atoll.explore.finder import Finder
from atoll.explore.job import Job
from atoll.explore.journal import Journal, NoJournal
from atoll.explore.layouts import Setting
from atoll.explore.objective import Objective
from atoll.explore.pareto import evaluated_fronts, fronts
from atoll.explore.result import Certificate, SearchResult
from atoll.explore.seed_strategy import seed_search
from atoll.explore.stop import Stop
from atoll.explore.stored import open_run
from atoll.explore.workloads import Variants, make_variants, make_workload
from atoll.hardware import ProductSpace, Space, load_network
from atoll.jit import set_threads, threads
from atoll.placement.chain import get_optimizer
from atoll.profile import Profile, get_profile
from atoll.units import format_bytes
from atoll.warm import compile_in_background

RUNNERS_UP = 3
SAMPLE = 20_000
"""Designs of a space outside memory that the sampling baselines draw from."""


def run_search(
    job: Job,
    progress: Progress | None = None,
    *,
    out: Path | None = None,
    workers: int | None = None,
    cluster: str | None = None,
    stop: Stop | None = None,
) -> SearchResult:
    """Find the best design of the job's space, prove it, and lay baselines beside it.

    With `out`, everything is kept in that folder, and a search that was interrupted continues.
    `workers` and `cluster` say where the work is done; they do not change the answer.
    """
    began = time.monotonic()
    if out is not None:
        check_folder(out)
    compile_in_background()
    space = job.load_space()
    setting, variants = prepare_search(job)
    executor = choose_executor(workers, cluster)
    before = set_threads(workers or threads())
    stop = stop or Stop()
    stop.limit(job.time_limit_s)
    road = _Road(job, space, setting, variants, executor, stop, began)
    try:
        if out is None:
            return road.result(progress, NoJournal(), {})
        with open_run(out, job, space, variants, setting.profile, executor.describe()) as journal:
            result = road.result(progress, journal, journal.notes())
            journal.keep(result)
            write_result(result, out)
            return result
    finally:
        executor.close()
        set_threads(before)


@dataclass(frozen=True)
class _Road:
    """From a prepared job to its answer."""

    job: Job
    space: Space | ProductSpace
    setting: Setting
    variants: Variants
    executor: Executor
    stop: Stop
    began: float

    def _search(self, search: Search) -> Outcome:
        if self.job.strategy == "phaze":
            return seed_search(search)
        if self.job.strategy == "evolve":
            return evolve_search(search, self.job.evaluations, self.job.seed)
        return search.run()

    def result(
        self, progress: Progress | None, journal: Journal, notes: MutableMapping[str, Any]
    ) -> SearchResult:
        job, space, variants, setting = self.job, self.space, self.variants, self.setting
        phases: dict[str, float] = {}
        mark = _timed(phases, "preparation", self.began)
        objective = make_objective(job, space, setting, variants)
        search = Search(
            space, variants, setting, objective, job.tolerance, progress=progress,
            stop=self.stop, crew=Crew(self.executor), journal=journal,
        )  # fmt: skip
        outcome = self._search(search)
        mark = _timed(phases, "search", mark)
        if outcome.best is None:
            raise _nothing_found(job, space, variants, outcome)
        finder = Finder(job, space, search, variants, setting)
        ranked = _ranked(outcome, objective)
        best = finder.design(ranked[0], with_layers=True)
        runners_up = tuple(finder.design(chip) for chip in ranked[1 : 1 + RUNNERS_UP])
        mark = _timed(phases, "description", mark)
        pareto: dict[str, Any] = {}
        stopped = outcome.stopped
        if job.pareto and not stopped:
            found = evaluated_fronts(search) if job.strategy == "evolve" else fronts(search)
            stopped = self.stop.reason
            if not stopped:
                pareto = {
                    name: {
                        "proven_within": front.proven_within,
                        "designs": [finder.record(chip) for chip in front.chips],
                    }
                    for name, front in found.items()
                }
            mark = _timed(phases, "pareto", mark)
        baselines: dict[str, float | None] = {}
        if job.baselines and not self.stop.interrupted:
            name = f"baselines {job.seed}"
            if name not in notes:
                drawn = space if isinstance(space, Space) else space.sample(SAMPLE, job.seed)
                notes[name] = dict(run_baselines(drawn, variants, setting, objective, job.seed))
            baselines = notes[name]
            _timed(phases, "baselines", mark)
        return SearchResult(
            job=job,
            best=best,
            score=outcome.score,
            certificate=_certificate(search, outcome, job, len(space)),
            baselines=baselines,
            runners_up=runners_up,
            designs=[finder.record(chip) for chip in ranked],
            pareto=pareto,
            phases_s=phases,
            wall_time_s=time.monotonic() - self.began,
            stopped=stopped,
        )


def _timed(phases: dict[str, float], name: str, since: float) -> float:
    now = time.monotonic()
    phases[name] = now - since
    return now


def prepare_search(job: Job, profile: Profile | None = None) -> tuple[Setting, Variants]:
    """The network, optimizer and profile; and the models at every microbatch and width."""
    profile = profile or get_profile(job.profile)
    setting = Setting(
        network=load_network(job.network or profile.network),
        profile=profile,
        optimizer=get_optimizer(job.optimizer or profile.optimizer),
        devices=job.devices,
        recompute=job.recompute,
    )
    workloads = [
        make_workload(model.name, model.global_batch or job.global_batch, model.sequence)
        for model in job.models
    ]
    variants = make_variants(
        workloads, job.microbatches, job.tensor_widths, job.devices, job.recompute, profile
    )
    return setting, variants


def make_objective(
    job: Job, space: Space | ProductSpace, setting: Setting, variants: Variants
) -> Objective:
    """One model: its samples per second. Several: as the job says, against the reference chip."""
    batches = tuple(workload.global_batch for workload in variants.workloads)
    if len(batches) == 1:
        return Objective.single(batches[0])
    references: tuple[float, ...] = (1.0,) * len(batches)
    if job.objective != "mean":
        references = tuple(
            _reference_samples(job, space, setting, index) for index in range(len(batches))
        )
    weights = tuple(model.weight for model in job.models)
    return Objective(job.objective, batches, weights, references)


def _reference_samples(
    job: Job, space: Space | ProductSpace, setting: Setting, index: int
) -> float:
    alone = replace(job, models=(job.models[index],))
    _, variants = prepare_search(alone)
    objective = Objective.single(variants.workloads[0].global_batch)
    outcome = Search(reference_space(space), variants, setting, objective, 1e-3).run()
    if outcome.best is None:
        raise InfeasibleError(
            f"model {job.models[index].name} does not fit the reference chip on {job.devices} "
            f"devices, so that objective {job.objective!r} has nothing to compare with; use mean."
        )
    return outcome.score


def _ranked(outcome: Outcome, objective: Objective) -> list[int]:
    """Evaluated chips, best first."""
    models = len(objective.batches)
    chips = [chip for chip, found in outcome.frontier.found.items() if len(found) == models]
    times = np.array(
        [[outcome.frontier.found[c][i].step_time_s for i in range(models)] for c in chips]
    )
    scores = objective.scores(times)
    area = outcome.frontier.chips.area_mm2
    return [chips[i] for i in sorted(range(len(chips)), key=lambda i: (-scores[i], area[chips[i]]))]


def _certificate(search: Search, outcome: Outcome, job: Job, architectures: int) -> Certificate:
    frontier = outcome.frontier
    designs, number = np.unique(frontier.chips.design, return_inverse=True)
    stage = np.zeros(len(designs), np.int64)
    np.maximum.at(stage, number, frontier.stage)
    closed = np.ones(len(designs), np.bool_)
    np.logical_and.at(closed, number, outcome.ruled_out)
    evaluated = int((stage == 2).sum())
    scheduled = designs[closed & (stage == 1)]
    name, elsewhere = "roofline", 0
    if search.reserve is not None:
        # Of a large space only the points are counted: most were never built, so that nobody
        # looked whether they satisfy the constraints.
        name = "roofline or constraints"
        gone = np.unique(np.concatenate([scheduled, *search.reserve.scheduled]))
        scheduled = np.setdiff1d(gone, designs[(stage == 2) | ~closed])
        elsewhere = search.reserve.open_points(outcome.score * (1.0 + job.tolerance))
    left = int((~closed & (stage < 2)).sum()) + elsewhere
    return Certificate(
        gap=outcome.gap,
        tolerance=job.tolerance,
        architectures=architectures,
        evaluated=evaluated,
        pruned={
            name: architectures - evaluated - len(scheduled) - left,
            "schedule": len(scheduled),
        },
        tightened=outcome.tightened,
    )


def _nothing_found(
    job: Job, space: Space | ProductSpace, variants: Variants, outcome: Outcome
) -> AtollError:
    """Say what the largest part of memory is, and the way out."""
    if outcome.stopped:
        return AtollError(
            f"job: the search ended ({outcome.stopped}) before the first design was evaluated; "
            "give it more time."
        )
    names = ", ".join(workload.name for workload in variants.workloads)
    capacity = max(option.capacity_bytes for option in space.hbm_options)
    least = min(
        float(v.facts.parameters.sum()) for v in variants.variants
    )
    optimizer = get_optimizer(job.optimizer or get_profile(job.profile).optimizer)
    states = least * optimizer.state_bytes
    return InfeasibleError(
        f"{names} fits no chip of space {space.name} on {job.devices} devices: weights, gradients "
        f"and optimizer state alone take {format_bytes(states)} per tensor-parallel rank, to be "
        f"divided over the pipeline's stages of {format_bytes(capacity)} each, beside the "
        f"activations; use more devices, wider tensor parallelism or more HBM."
    )


