"""The whole road of a search in one function: job to answer, with its proof."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from atoll.answers.designs import Identity
from atoll.answers.search import Alone, Beside, FrontAnswer
from atoll.driver import Desk, Means, Progress, drive
from atoll.errors import AtollError, InfeasibleError
from atoll.executors import Crew, Executor
from atoll.explore.ahead import ahead_of, run_of
from atoll.explore.alone import alone
from atoll.explore.answer.files import result_files
from atoll.explore.answer.plateau import choose, evaluate_plateau, plateau
from atoll.explore.answer.result import Design, SearchResult
from atoll.explore.answer.room import check_memory, nothing_fits
from atoll.explore.answer.scope import Scope, open_space, sustained
from atoll.explore.baselines import (
    Baseline,
    baseline_names,
    reference_space,
    remarks,
    run_baselines,
)
from atoll.explore.finder import Finder
from atoll.explore.linked import Rest, best_of, networks_of, rejected
from atoll.explore.pareto import evaluated_fronts, fronts
from atoll.explore.pricing.layouts import Setting
from atoll.explore.pricing.price import price_of
from atoll.explore.pricing.workloads import (
    Spreads,
    Variants,
    left_out_notes,
    make_variants,
    make_workload,
    spreads_of,
)
from atoll.explore.proof.branch_and_bound import Search
from atoll.explore.proof.certified import certificate_of
from atoll.explore.proof.exact import exact_search
from atoll.explore.proof.journal import Journal
from atoll.explore.proof.objective import AIMS, Objective
from atoll.explore.robust import robust_answer
from atoll.explore.stored import StoredJournal, identity
from atoll.explore.strategies import STRATEGIES, Strategy
from atoll.fabric.network import Network
from atoll.hardware.catalog import load_network
from atoll.hardware.product import ProductSpace
from atoll.hardware.space import Space
from atoll.kernel_cache import compile_in_background
from atoll.profile import Profile
from atoll.profiles import profile_of
from atoll.questions import SearchQuestion
from atoll.step.certificate import Certificate
from atoll.step.layout import ZERO_STAGES
from atoll.step.orders import ORDERS
from atoll.step.states import load_states
from atoll.stopping import Asked, Stop, StoppedError, never
from atoll.training.planner.beside import plan_beside, precision_of
from atoll.training.request import make_run
from atoll.training.run import Run
from atoll.workload.stored import warnings_of

RUNNERS_UP = 3
ONE = ("1f1b",)
SEARCHED = tuple(order for order in ORDERS if order != "gpipe")
"""Pipeline orders of a search: GPipe takes as long as 1F1B and holds more."""
SAMPLE = 20_000
"""Designs of a space outside memory that the sampling baselines draw from."""


def run_search(
    job: SearchQuestion,
    progress: Progress | None = None,
    *,
    out: Path | None = None,
    workers: int | None = None,
    cluster: str | None = None,
    stop: Stop | None = None,
    beside: Sequence[str] = (),
) -> SearchResult:
    """Find the best design of the job's space, prove it, and lay baselines beside it.

    With `out`, everything is kept in that folder, and a search that was interrupted continues.
    `workers` and `cluster` say where the work is done; they do not change the answer. Devices
    named in `beside` are planned for the same (first) model, batch and number of devices.
    """
    means = Means(out, workers, cluster, grows=True)

    def prepare(stop: Stop) -> ChipProblem:
        return prepare_problem(job, beside, stop)

    first = "the first design was evaluated"
    return drive(prepare, means, stop, job.time_limit, progress, first)


def prepare_problem(job: SearchQuestion, beside: Sequence[str], stop: Stop) -> ChipProblem:
    runs = _runs_beside(job, beside)  # a name that is not known ends it here, not after the search
    compile_in_background()
    jobs = networks_of(job)
    found: list[ChipProblem] = []
    for own in jobs:
        try:
            found.append(_on_network(own, runs, stop, found[0] if found else None))
        except InfeasibleError:
            if own is jobs[-1] and not found:
                raise
    without = tuple(str(own.network) for own in jobs if own not in [one.job for one in found])
    return replace(found[0], others=tuple(found[1:]), without=without)


def _on_network(
    job: SearchQuestion, runs: Mapping[str, Run], stop: Stop, like: ChipProblem | None
) -> ChipProblem:
    """A job as a problem; `like` is the same job on another network."""
    space, scope = open_space(job)
    if like is None:
        setting, variants = prepare_search(job, stop=stop)
    else:
        setting, variants = replace(like.setting, network=network_of(job)), like.variants
    scope = replace(scope, notes=(*scope.notes, *left_out_notes(job, setting.profile, variants)))
    check_memory(job, scope, setting, variants, stop)
    return ChipProblem(job, space, scope, setting, variants, runs)


@dataclass(frozen=True)
class ChipProblem:
    """A job with its chips and the layouts on them."""

    job: SearchQuestion
    space: Space | ProductSpace
    scope: Scope
    setting: Setting
    variants: Variants
    runs: Mapping[str, Run]
    others: tuple[ChipProblem, ...] = ()
    """The same on other networks, where the network is to be chosen."""
    without: tuple[str, ...] = ()
    """Networks that no chip keeps to the limits with."""

    def identity(self) -> Identity:
        told = dict(identity(self.job, self.space, self.setting.network, self.variants))
        return told | {f"other {n}": dict(one.identity()) for n, one in enumerate(self.others)}

    def solve(self, desk: Desk) -> SearchResult:
        return self._taken(desk) if self.others else self._solved(desk)

    def _taken(self, desk: Desk) -> SearchResult:
        """On the best of the networks, with the proof over all of them."""
        every, journal = (self, *self.others), self._journal(desk)
        names = tuple(str(one.job.network) for one in every)
        known: dict[str, Any] | None = journal.note("networks")
        if known is not None:
            rest = tuple(Certificate(**told) for told in known["rest"])
            return every[int(known["best"])]._solved(desk, Rest(rest, names, self.without))
        searches = [one.opened(desk) for one in every]
        best = best_of(searches)
        if best is None:
            if desk.stop():
                raise StoppedError
            raise nothing_fits(self.job, self.scope, self.variants)
        number, begun = best
        rest = tuple(
            rejected(search, len(one.space), self.job.tolerance, begun.score)
            for one, search in zip(every, searches, strict=True)
            if search is not begun
        )
        if not desk.stop():
            journal.put_note("networks", {"best": number, "rest": [asdict(one) for one in rest]})
        road = Rest(rest, names, self.without), begun if desk.stop() else None
        return every[number]._solved(desk, *road)

    def opened(self, desk: Desk) -> Search | None:
        """A search that is not begun, nothing of which is kept; none where no chip is allowed."""
        objective = make_objective(self.job, self.space, self.setting, self.variants, desk.stop)
        known = self.space, self.variants, self.setting, objective, self.job.tolerance / 2.0
        try:
            return Search(*known, progress=desk.listener, stop=desk.stop)
        except InfeasibleError:
            return None

    def _journal(self, desk: Desk) -> Journal:
        if desk.store is None:
            return Journal()
        return StoredJournal(desk.store, self.variants, self.space)

    def _solved(self, desk: Desk, rest: Rest = Rest(), begun: Search | None = None) -> SearchResult:  # noqa: B008
        known = self.job, self.space, rest.noted(self.scope), self.setting, self.variants
        road = _Road(*known, desk.executor, desk.stop, desk.began, rest, begun)
        result = road.result(desk.listener, self._journal(desk))
        result = _planned_beside(result, self.runs, desk.stop)
        if self.job.from_ is None:
            return result
        followed = run_of(self.job.from_)
        try:
            return replace(
                result, ahead=ahead_of(result, followed, self.setting, self.variants, desk.stop)
            )
        except StoppedError:
            return replace(result, left_out={**result.left_out, "shadow prices": desk.stop.reason})

    def files(self, answer: SearchResult) -> dict[str, str]:
        return result_files(answer)


def _runs_beside(job: SearchQuestion, devices: Sequence[str]) -> dict[str, Run]:
    """The job's (first) model on other devices, each with its own network and software."""
    model = job.models[0]
    return {
        name: make_run(
            model.name,
            name,
            job.devices,
            batch=model.batch or job.batch,
            sequence=model.sequence,
            optimizer=job.optimizer or profile_of(job).optimizer,
            precision=precision_of(name, job.precision),
        )
        for name in devices
    }


def _planned_beside(result: SearchResult, runs: Mapping[str, Run], stop: Stop) -> SearchResult:
    found: list[Beside] = []
    left_out = dict(result.left_out)
    for name, run in runs.items():
        try:
            found.append(plan_beside(name, run, stop))
        except StoppedError:
            left_out[f"device {name}"] = stop.reason
    return replace(result, beside=tuple(found), left_out=left_out)


@dataclass(frozen=True)
class _Road:
    """From a prepared job to its answer."""

    job: SearchQuestion
    space: Space | ProductSpace
    scope: Scope
    setting: Setting
    variants: Variants
    executor: Executor
    stop: Stop
    began: float
    rest: Rest
    begun: Search | None
    """What there is of it where it has to end at once."""

    @property
    def strategy(self) -> Strategy:
        return STRATEGIES[self.job.strategy]

    def result(self, progress: Progress | None, journal: Journal) -> SearchResult:
        job, space, variants, setting = self.job, self.space, self.variants, self.setting
        phases: dict[str, float] = {}
        mark = _timed(phases, "preparation", self.began)
        exact = self.strategy.proves
        objective = make_objective(job, space, setting, variants, self.stop)
        # Half of the tolerance is for the proof, half for the choice among designs as good.
        search = self.begun or Search(
            space, variants, setting, objective,
            job.tolerance / 2.0 if exact else job.tolerance,
            progress=progress, stop=self.stop, crew=Crew(self.executor), journal=journal,
        )  # fmt: skip
        outcome = self.strategy.run(search, job)
        if outcome.best is None:
            if outcome.stopped:
                raise StoppedError
            raise nothing_fits(job, self.scope, variants)
        mark = _timed(phases, "search", mark)
        left_out: dict[str, str] = {}
        complete_above = np.inf
        if exact and not outcome.stopped:
            complete_above = evaluate_plateau(search, job.tolerance)
            mark = _timed(phases, "plateau", mark)
        if exact and self.stop() and not np.isfinite(complete_above):
            left_out["plateau"] = self.stop.reason
        finder = Finder(search)
        pareto: dict[str, FrontAnswer] = {}
        front_stopped = outcome.stopped if job.pareto else ""
        if job.pareto and not outcome.stopped:
            pareto, front_stopped = self._fronts(search, finder)
            mark = _timed(phases, "pareto", mark)
        if front_stopped:
            left_out["fronts"] = front_stopped
        self.executor.close()  # the rest is done here: tasks that were dropped would only disturb
        baselines: dict[str, Baseline] = {}
        if job.baselines:
            baselines = self._baselines(search, objective)
            mark = _timed(phases, "baselines", mark)
            names = baseline_names(self.variants)
            missing = [f"baseline {name}" for name in names if name not in baselines]
            left_out |= dict.fromkeys(missing if baselines else ["baselines"], self.stop.reason)
        outcome = replace(search.outcome(), stopped=outcome.stopped)
        assert outcome.best is not None
        size_of = cache(finder.size)
        chosen = outcome.best
        if exact:
            chosen = choose(search, outcome.bound, job.tolerance, size_of)
        ranked = _ranked(search, chosen)
        best = finder.design(chosen, with_layers=True)
        if not all(plan.layers for plan in best.plans):
            left_out["layer schedules"] = self.stop.reason
        runners_up = tuple(finder.design(chip) for chip in ranked[1 : 1 + RUNNERS_UP])
        near = plateau(search, chosen, complete_above, size_of, finder.design)
        score = search.found_score(chosen)
        robust = None
        if job.robust and not outcome.stopped:
            try:
                robust = robust_answer(job, search, chosen)
            except StoppedError:
                left_out["robustness"] = self.stop.reason
        certificate = self.rest.joined(certificate_of(search, outcome, job.tolerance, score))
        mark = _timed(phases, "description", mark)
        own = self._alone(best, journal)
        if exact and len(best.plans) > 1 and not job.per:
            missing = [plan.model for plan in best.plans[len(own) :]]
            left_out |= {f"{name} alone": self.stop.reason for name in missing}
        _timed(phases, "alone", mark)
        return SearchResult(
            job=job,
            best=best,
            score=score,
            certificate=certificate,
            baselines={name: baseline.score for name, baseline in baselines.items()},
            baseline_remarks=remarks(
                self.scope, baselines, score, best, proven=self.strategy.proves
            ),
            plateau=near,
            runners_up=runners_up,
            designs=[finder.record(chip) for chip in ranked],
            pareto=pareto,
            phases_s=phases,
            wall_time_s=time.monotonic() - self.began,
            stopped="" if certificate.status == "optimal" else outcome.stopped,
            front_stopped=front_stopped,
            left_out=left_out,
            warnings=tuple(w for own in variants.workloads for w in warnings_of(own.config)),
            scope=self.scope,
            alone=own,
            robustness=robust,
            price_per_device=float(search.frontier.price[chosen]) / job.devices
            if job.per
            else None,
        )

    def _alone(self, best: Design, journal: Journal) -> tuple[Alone, ...]:
        """Each model's own best chip, where several share one; found once."""
        if len(best.plans) == 1 or not self.strategy.proves or self.job.per:
            return ()
        shared = [plan.samples_per_s for plan in best.plans]
        known = journal.note("alone")
        if known is not None:
            return tuple(
                Alone(**told).sharing(samples) for told, samples in zip(known, shared, strict=True)
            )
        found = tuple(
            alone(self.space, self.setting, self.variants, shared, self.job.tolerance, self.stop)
        )
        if len(found) == len(shared):
            journal.put_note("alone", [asdict(one) for one in found])
        return found

    def _fronts(self, search: Search, finder: Finder) -> tuple[dict[str, FrontAnswer], str]:
        """The fronts as records, and why they are not complete, if they are not."""
        found, why = (evaluated_fronts(search), "") if self.strategy.samples else fronts(search)
        shown = {
            name: FrontAnswer(
                proven_within=front.proven_within,
                designs=tuple(finder.record(chip) for chip in front.chips),
            )
            for name, front in found.items()
        }
        return shown, why

    def _baselines(self, search: Search, objective: Objective) -> dict[str, Baseline]:
        """Designs to compare with, run once; under the exact strategy those that are chips of the
        space compete with the incumbent.
        """
        job, space = self.job, self.space
        name = f"baseline designs {job.seed}"
        known = search.journal.note(name)
        if known is not None:
            found = {key: Baseline(**value) for key, value in known.items()}
        elif self.stop():
            return {}
        else:
            drawn = space if isinstance(space, Space) else space.sample(SAMPLE, job.seed)
            found = dict(
                run_baselines(
                    space, drawn, self.variants, self.setting, objective, job.seed, self.stop
                )
            )
            if len(found) == len(baseline_names(self.variants)):  # else the next run makes them all
                search.journal.put_note(name, {key: b.to_note() for key, b in found.items()})
        if self.strategy.proves:
            for baseline in found.values():
                if baseline.chip is not None:
                    for place in search.bring([baseline.chip]).values():
                        search.adopt(place, baseline.found)
        return found


def _timed(phases: dict[str, float], name: str, since: float) -> float:
    now = time.monotonic()
    phases[name] = now - since
    return now


def prepare_search(
    job: SearchQuestion, profile: Profile | None = None, stop: Asked = never
) -> tuple[Setting, Variants]:
    """The network, optimizer and profile; and the models at every microbatch and width."""
    profile = profile or profile_of(job)
    plain = profile.placer.plain
    if plain and job.precision != "bf16":
        raise AtollError(f"precision: profile {profile.name} computes in 16 bits; leave bf16")
    setting = Setting(
        network=network_of(job, profile),
        profile=profile,
        states=load_states(job.optimizer or profile.optimizer),
        devices=job.devices,
        recompute=job.recompute,
        zero=(0,) if plain else job.zero or ZERO_STAGES,
        orders=ONE if plain else job.order or SEARCHED,
        hsdp=(1,) if plain else job.hsdp,
        vpp=job.vpp,
        limit=sustained(job),
    )
    workloads = [
        make_workload(model.name, model.batch or job.batch, model.sequence, job.precision)
        for model in job.models
    ]
    variants = make_variants(
        workloads, job.microbatch, job.tp, job.devices, job.recompute, profile, stop,
        Spreads() if plain else spreads_of(job, workloads, setting.orders),
    )  # fmt: skip
    return setting, variants


def network_of(job: SearchQuestion, profile: Profile | None = None) -> Network:
    """Between a job's devices."""
    name = job.network or (profile or profile_of(job)).network
    return load_network(name).cut(job.devices)


def make_objective(
    job: SearchQuestion,
    space: Space | ProductSpace,
    setting: Setting,
    variants: Variants,
    stop: Stop | None = None,
) -> Objective:
    """One model: its samples per second. Several: as the job says, against the reference chip. Over
    what the devices take, where the job asks for it.
    """
    batches = tuple(workload.global_batch for workload in variants.workloads)
    price = price_of(job)
    if len(batches) == 1:
        return Objective.single(batches[0], price)
    references: tuple[float, ...] = (1.0,) * len(batches)
    aim = AIMS[job.objective]
    if aim.relative:
        references = tuple(
            _reference_samples(job, space, setting, index, stop or Stop())
            for index in range(len(batches))
        )
    weights = tuple(model.weight for model in job.models)
    return Objective(aim, batches, weights, references, price)


def _reference_samples(
    job: SearchQuestion, space: Space | ProductSpace, setting: Setting, index: int, stop: Stop
) -> float:
    alone = job.changed(model=(job.models[index],))
    _, variants = prepare_search(alone, stop=stop)
    objective = Objective.single(variants.workloads[0].global_batch)
    chip = reference_space(space)
    outcome = exact_search(Search(chip, variants, setting, objective, 1e-3, stop=stop))
    if outcome.stopped:
        raise StoppedError
    if outcome.best is None:
        raise InfeasibleError(
            f"model {job.models[index].name} does not fit the reference chip on {job.devices} "
            f"devices, so that objective {job.objective!r} has nothing to compare with; use mean."
        )
    return outcome.score


def _ranked(search: Search, chosen: int) -> list[int]:
    """Evaluated chips: the answer, then those of the highest score first."""
    scores = {chip: search.found_score(chip) for chip in search.frontier.found}
    area = search.frontier.chips.area_mm2
    found = (chip for chip, score in scores.items() if score >= 0.0)
    return sorted(found, key=lambda chip: (chip != chosen, -scores[chip], area[chip]))
