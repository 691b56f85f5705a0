"""A search of chips from job to answer: `_SearchRun.result` lists its phases."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from atoll.answers.designs import Identity
from atoll.answers.search import FrontAnswer, ModelAlone, Robustness
from atoll.base.errors import InfeasibleError
from atoll.base.kernel_cache import compile_in_background
from atoll.base.stopping import Stop, StoppedError
from atoll.driver import ExecutionOptions, Progress, SearchRuntime, drive
from atoll.executors import Crew, Executor, InProcess, spare_executor
from atoll.explore.answer.plateau import choose, evaluate_plateau, plateau
from atoll.explore.answer.result import SearchResult, result_files
from atoll.explore.answer.scope import SearchScope, open_space
from atoll.explore.baselines import (
    BaselineDesign,
    BaselineInputs,
    BaselineRun,
    baseline_names,
    remarks,
)
from atoll.explore.design_builder import DesignBuilder
from atoll.explore.network_search import (
    RejectedNetworks,
    network_jobs,
    rejection_proof,
    search_networks,
)
from atoll.explore.pareto import evaluated_fronts, fronts
from atoll.explore.prepare import (
    check_memory,
    existing_device_runs,
    make_objective,
    network_of,
    nothing_fits,
    prepare_search,
)
from atoll.explore.pricing.layouts import SearchSetting
from atoll.explore.pricing.workloads import Variants, left_out_notes
from atoll.explore.proof.branch_and_bound import Search, SearchOutcome
from atoll.explore.proof.certificate import certificate_of
from atoll.explore.proof.exact import exact_search
from atoll.explore.proof.journal import Journal
from atoll.explore.proof.objective import Objective
from atoll.explore.robust import robust_answer
from atoll.explore.strategies import STRATEGIES
from atoll.hardware.product_space import SearchedSpace
from atoll.questions import SearchQuestion
from atoll.step.certificate import Certificate
from atoll.training.run import Run
from atoll.workload.stored import model_warnings

RUNNERS_UP = 3
LARGE = 10_000
"""Chips from which the baselines may run in another process: a small search ends too soon."""


def run_search(
    job: SearchQuestion,
    progress: Progress | None = None,
    *,
    out: Path | None = None,
    workers: int | None = None,
    cluster: str | None = None,
    stop: Stop | None = None,
    existing_devices: Sequence[str] = (),
) -> SearchResult:
    """Find the best design of the job's space, prove it, and compare it with baselines.

    Results are stored in the folder `out`, from which an interrupted search continues. `workers`
    and `cluster` do not change the answer. The `existing_devices` are planned for the
    same (first) model, batch and number of devices.
    """
    options = ExecutionOptions(out, workers, cluster, grows=True)

    def prepare(stop: Stop) -> ChipProblem:
        return prepare_problem(job, existing_devices, stop)

    return drive(prepare, options, stop, job.time_limit, progress, "the first design was evaluated")


def prepare_problem(job: SearchQuestion, devices: Sequence[str], stop: Stop) -> ChipProblem:
    """Prepare a job on all its networks; unknown devices are refused before the search."""
    runs = existing_device_runs(job, devices)
    compile_in_background()
    jobs = network_jobs(job)
    problems: list[ChipProblem] = []
    for network_job in jobs:
        try:
            problems.append(_prepare_on_network(network_job, runs, stop, problems))
        except InfeasibleError:
            if network_job is jobs[-1] and not problems:
                raise
    feasible = [problem.job for problem in problems]
    infeasible = tuple(str(failed.network) for failed in jobs if failed not in feasible)
    return replace(problems[0], alternatives=tuple(problems[1:]), infeasible_networks=infeasible)


def _prepare_on_network(
    job: SearchQuestion, runs: Mapping[str, Run], stop: Stop, problems: Sequence[ChipProblem]
) -> ChipProblem:
    """Prepare a job on its network; `problems` are the same job on earlier networks."""
    space, scope = open_space(job)
    if problems:
        variants = problems[0].variants
        setting = replace(problems[0].setting, network=network_of(job))
    else:
        setting, variants = prepare_search(job, stop=stop)
    scope = replace(scope, notes=(*scope.notes, *left_out_notes(job, setting.profile, variants)))
    check_memory(job, scope, setting, variants, stop)
    return ChipProblem(job, space, scope, setting, variants, runs)


@dataclass(frozen=True)
class ChipProblem:
    """A job with its chips and the layouts on them."""

    job: SearchQuestion
    space: SearchedSpace
    scope: SearchScope
    setting: SearchSetting
    variants: Variants
    runs: Mapping[str, Run]  # the job on existing devices, by device
    alternatives: tuple[ChipProblem, ...] = ()
    """The job on further networks, where the network is to be chosen."""
    infeasible_networks: tuple[str, ...] = ()  # networks on which no chip keeps to the limits

    def identity(self) -> Identity:
        from atoll.explore.stored_journal import identity

        fields = dict(identity(self.job, self.space, self.setting.network, self.variants))
        further = enumerate(self.alternatives)
        return fields | {f"other {n}": dict(problem.identity()) for n, problem in further}

    def solve(self, runtime: SearchRuntime) -> SearchResult:
        if self.alternatives:
            return self._solve_networks(runtime)
        return _SearchRun(self, runtime, RejectedNetworks()).result()

    def _solve_networks(self, runtime: SearchRuntime) -> SearchResult:
        """Solve on the best of the networks, with the proof over all of them."""
        problems, journal = (self, *self.alternatives), self.journal(runtime)
        names = tuple(str(problem.job.network) for problem in problems)
        note: dict[str, Any] | None = journal.note("networks")
        best: Search | None = None
        if note is not None:
            number, stored = int(note["best"]), note["rest"]
            certificates = tuple(Certificate(**fields) for fields in stored)
        else:
            searches = [problem.open_search(runtime) for problem in problems]
            numbered = search_networks(searches)
            if numbered is None:
                if runtime.stop():
                    raise StoppedError
                raise nothing_fits(self.job, self.scope, self.variants)
            number, best = numbered
            certificates = tuple(
                rejection_proof(search, len(problem.space), self.job.tolerance, best.score)
                for problem, search in zip(problems, searches, strict=True)
                if search is not best
            )
            if not runtime.stop():
                stored = [asdict(certificate) for certificate in certificates]
                journal.put_note("networks", {"best": number, "rest": stored})
        rejected = RejectedNetworks(certificates, names, self.infeasible_networks)
        begun = best if runtime.stop() else None
        return _SearchRun(problems[number], runtime, rejected, begun).result()

    def open_search(self, runtime: SearchRuntime) -> Search | None:
        """Return a search that is not started and not stored; None where no chip is allowed."""
        objective = make_objective(self.job, self.space, self.setting, self.variants, runtime.stop)
        arguments = self.space, self.variants, self.setting, objective, self.job.tolerance / 2.0
        try:
            return Search(*arguments, progress=runtime.listener, stop=runtime.stop)
        except InfeasibleError:
            return None

    def journal(self, runtime: SearchRuntime) -> Journal:
        if runtime.store is None:
            return Journal()
        from atoll.explore.stored_journal import StoredJournal  # which reads all kinds of answers

        return StoredJournal(runtime.store, self.variants, self.space)

    def files(self, answer: SearchResult) -> dict[str, str]:
        return result_files(answer)


class _SearchRun:
    """The phases of a search, from a prepared problem to its result."""

    def __init__(
        self, problem: ChipProblem, runtime: SearchRuntime, rejected: RejectedNetworks,
        begun: Search | None = None,
    ) -> None:  # fmt: skip
        """Take `begun`, the search so far, where the search has to end at once."""
        self.problem, self.runtime, self.rejected, self.begun = problem, runtime, rejected, begun
        self.job, self.stop, self.journal = problem.job, runtime.stop, problem.journal(runtime)
        self.strategy = STRATEGIES[self.job.strategy]
        self.phases_s = {"preparation": time.monotonic() - runtime.began}
        self.left_out: dict[str, str] = {}  # what is missing in the result, and why

    def result(self) -> SearchResult:
        """Run the phases in order."""
        with closing(self._baseline_executor()) as executor:
            with self._timed("search"):
                search, objective = self._open_search()
                baseline_run = self._start_baselines(executor, objective)
                outcome = self._find_best(search)
            complete_above = self._evaluate_plateau(search, outcome)
            fronts, front_stopped = self._trace_fronts(search, outcome)
            self.runtime.executor.close()  # the phases below run in this process
            baselines = self._finish_baselines(search, baseline_run)
        result = self._describe(search, outcome, complete_above, baselines)
        result = replace(result, pareto=fronts, front_stopped=front_stopped)
        result = self._add_best_chip_per_model(result)
        result = self._add_existing_devices(result)
        return self._add_followed_run(result)

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        start = time.monotonic()
        yield
        self.phases_s[phase] = time.monotonic() - start

    def _open_search(self) -> tuple[Search, Objective]:
        problem, runtime, tolerance = self.problem, self.runtime, self.job.tolerance
        space, setting, variants = problem.space, problem.setting, problem.variants
        objective = make_objective(self.job, space, setting, variants, self.stop)
        # Half of the tolerance is for the proof, half for the choice among designs as good.
        search = self.begun or Search(
            space, variants, setting, objective,
            tolerance / 2.0 if self.strategy.proves else tolerance, journal=self.journal,
            progress=runtime.listener, stop=self.stop, crew=Crew(runtime.executor),
        )  # fmt: skip
        return search, objective

    def _find_best(self, search: Search) -> SearchOutcome:
        outcome = self.strategy.run(search, self.job)
        if outcome.best is not None:
            return outcome
        if outcome.stopped:
            raise StoppedError
        raise nothing_fits(self.job, self.problem.scope, self.problem.variants)

    def _evaluate_plateau(self, search: Search, outcome: SearchOutcome) -> float:
        """Evaluate chips near the best; return the score above which all were evaluated."""
        complete_above = np.inf
        if self.strategy.proves and not outcome.stopped:
            with self._timed("plateau"):
                complete_above = evaluate_plateau(search, self.job.tolerance)
        if self.strategy.proves and self.stop() and not np.isfinite(complete_above):
            self.left_out["plateau"] = self.stop.reason
        return complete_above

    def _trace_fronts(
        self, search: Search, outcome: SearchOutcome
    ) -> tuple[dict[str, FrontAnswer], str]:
        """Return the fronts, and why they are incomplete, if they are."""
        if not self.job.pareto:
            return {}, ""
        answers: dict[str, FrontAnswer] = {}
        stopped = outcome.stopped
        if not stopped:
            with self._timed("pareto"):
                sampled = self.strategy.samples
                traced, stopped = (evaluated_fronts(search), "") if sampled else fronts(search)
            for name, front in traced.items():
                record = DesignBuilder(search).record
                designs = tuple({**record(c), name: front.cost[c]} for c in front.chips)
                answers[name] = FrontAnswer(proven_within=front.proven_within, designs=designs)
        if stopped:
            self.left_out["fronts"] = stopped
        return answers, stopped

    def _baseline_executor(self) -> Executor:
        """Return where the baselines run. Under a time limit the search gets all cores."""
        if len(self.problem.space) < LARGE or np.isfinite(self.job.time_limit):
            return InProcess()
        return spare_executor(self.runtime.executor)

    def _start_baselines(self, executor: Executor, objective: Objective) -> BaselineRun | None:
        if not self.job.baselines:
            return None
        p, seed = self.problem, self.job.seed
        inputs = BaselineInputs(p.space, p.variants, p.setting, objective, seed, self.stop)
        return BaselineRun(inputs, executor, self.journal)

    def _finish_baselines(
        self, search: Search, baseline_run: BaselineRun | None
    ) -> dict[str, BaselineDesign]:
        """Return the baselines; with a proof, those in the space may become the best."""
        if baseline_run is None:
            return {}
        with self._timed("baselines"):
            baselines = baseline_run.result()
            for baseline in baselines.values() if self.strategy.proves else ():
                if baseline.chip is not None:
                    for position in search.bring([baseline.chip]).values():
                        search.adopt(position, baseline.plans)
        names = baseline_names(self.problem.variants)
        missing = [f"baseline {name}" for name in names if name not in baselines]
        self.left_out |= dict.fromkeys(missing if baselines else ["baselines"], self.stop.reason)
        return baselines

    def _describe(
        self, search: Search, outcome: SearchOutcome, complete_above: float,
        baselines: Mapping[str, BaselineDesign],
    ) -> SearchResult:  # fmt: skip
        """Choose the answer among the designs that the proof covers, and describe it."""
        job, proven, workloads = self.job, self.strategy.proves, self.problem.variants.workloads
        scope, builder = self.rejected.noted(self.problem.scope), DesignBuilder(search)
        with self._timed("description"):
            outcome = replace(search.outcome(), stopped=outcome.stopped)
            assert outcome.best is not None
            size_of, chosen = cache(builder.size), outcome.best
            if proven:
                chosen = choose(search, outcome.bound, job.tolerance, size_of)
            score, ranked = search.evaluated_score(chosen), _ranked(search, chosen)
            best = builder.design(chosen, with_layers=True)
            if not all(plan.layers for plan in best.plans):
                self.left_out["layer schedules"] = self.stop.reason
            proof = self.rejected.joined(certificate_of(search, outcome, job.tolerance, score))
            price = float(search.frontier.price[chosen]) / job.devices if job.per else None
            return SearchResult(
                job=job,
                best=best,
                score=score,
                certificate=proof,
                baselines={name: baseline.score for name, baseline in baselines.items()},
                baseline_remarks=remarks(scope, baselines, score, best, proven=proven),
                plateau=plateau(search, chosen, complete_above, size_of, cache(builder.chip)),
                runners_up=tuple(builder.design(chip) for chip in ranked[1 : 1 + RUNNERS_UP]),
                designs=[builder.record(chip) for chip in ranked],
                pareto={},
                phases_s=self.phases_s,
                stopped="" if proof.status == "optimal" else outcome.stopped,
                left_out=self.left_out,
                warnings=tuple(w for model in workloads for w in model_warnings(model.config)),
                scope=scope,
                robustness=self._robustness(search, outcome, chosen),
                price_per_device=price,
            )

    def _robustness(self, search: Search, outcome: SearchOutcome, chosen: int) -> Robustness | None:
        if not self.job.robust or outcome.stopped:
            return None
        try:
            return robust_answer(self.job, search, chosen)
        except StoppedError:
            self.left_out["robustness"] = self.stop.reason
            return None

    def _add_best_chip_per_model(self, result: SearchResult) -> SearchResult:
        """Compare with every model's best chip, where several models share the answer."""
        plans, alone = result.best.plans, list[ModelAlone]()
        with self._timed("alone"):
            if len(plans) > 1 and self.strategy.proves and not self.job.per:
                note = self.journal.note("alone")
                stored = (ModelAlone(**fields) for fields in note or ())
                chips = self._best_chip_per_model(result) if note is None else stored
                rates = (plan.samples_per_s for plan in plans)
                alone = [chip.sharing(rate) for chip, rate in zip(chips, rates, strict=False)]
                if note is None and len(alone) == len(plans):
                    self.journal.put_note("alone", [asdict(chip) for chip in alone])
                missing = [f"{plan.model} alone" for plan in plans[len(alone) :]]
                self.left_out |= dict.fromkeys(missing, self.stop.reason)
        wall_time_s = time.monotonic() - self.runtime.began
        return replace(result, alone=tuple(alone), wall_time_s=wall_time_s)

    def _best_chip_per_model(self, result: SearchResult) -> Iterator[ModelAlone]:
        """Search every model's best chip, as far as time allows."""
        p, tolerance = self.problem, self.job.tolerance
        for index, workload in enumerate(p.variants.workloads):
            part, objective = p.variants.of_workload(index), Objective.single(workload.global_batch)
            search = Search(p.space, part, p.setting, objective, tolerance, stop=self.stop)
            outcome = exact_search(search)
            if outcome.stopped or outcome.best is None:
                return
            yield ModelAlone(
                model=workload.name,
                chip=DesignBuilder(search).design(outcome.best).accelerator.describe(),
                samples_per_s=outcome.score,
                bound_samples_per_s=outcome.bound,
                shared_samples_per_s=result.best.plans[index].samples_per_s,
            )

    def _add_existing_devices(self, result: SearchResult) -> SearchResult:
        if not self.problem.runs:
            return result
        from atoll.explore.explain.device_comparison import plan_existing_devices

        problem = self.problem
        arguments = result, problem.job, problem.setting, problem.variants, problem.runs
        return plan_existing_devices(*arguments, self.left_out, self.stop)

    def _add_followed_run(self, result: SearchResult) -> SearchResult:
        if self.job.from_ is None:
            return result
        from atoll.explore.explain.next_chip import compare_with_run, read_followed_run

        followed, problem = read_followed_run(self.job.from_), self.problem
        arguments = result, followed, problem.setting, problem.variants, self.stop
        try:
            return replace(result, ahead=compare_with_run(*arguments))
        except StoppedError:
            self.left_out["shadow prices"] = self.stop.reason
            return result


def _ranked(search: Search, chosen: int) -> list[int]:
    """Return the evaluated chips: the answer, then by falling score."""
    scores = {chip: search.evaluated_score(chip) for chip in search.frontier.plans}
    area = search.frontier.chips.area_mm2
    evaluated = (chip for chip, score in scores.items() if score >= 0.0)
    return sorted(evaluated, key=lambda chip: (chip != chosen, -scores[chip], area[chip]))
