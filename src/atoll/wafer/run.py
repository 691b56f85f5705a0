"""Run a wafer search from job to answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from atoll.answers.wafer import FaultsAnswer, ResourceWorth, WaferDesign, WaferFront
from atoll.base.errors import AtollError, InfeasibleError
from atoll.base.stopping import Stop, StoppedError
from atoll.base.units import counted
from atoll.driver import ExecutionOptions, Progress, SearchRuntime, drive
from atoll.executors import PieceRunner
from atoll.hardware.wafer import Wafer
from atoll.hardware.wafer_files import load_wafers
from atoll.questions import WaferQuestion
from atoll.questions.ask import ask
from atoll.step.certificate import Certificate
from atoll.store import Identity, fingerprint
from atoll.wafer.answer.result import WaferResult, running_power_W, wafer_files
from atoll.wafer.baselines import NAMES, WaferBaseline
from atoll.wafer.encoding.mapping import read_mapping
from atoll.wafer.estimate import estimate_mapping, job_mapping
from atoll.wafer.evaluate import MappingCost
from atoll.wafer.job import completed, options_of, tokens_of
from atoll.wafer.link_replay import replay_mapping
from atoll.wafer.search import QUICK_CODES, PipelineShape, WaferSearch
from atoll.wafer.staging.faults import Faults, degraded, unharmed
from atoll.wafer.staging.planner import MANY_CODES
from atoll.wafer.wafer_space import SolvedWafer, WaferExploration, explore_wafers, pareto_rows
from atoll.workload import load_model

TOLERANCE = 0.01


def search_wafer(
    job: WaferQuestion | str | Path | None = None, *, stop: Stop | None = None,
    progress: Progress | None = None, **fields: Any,
) -> WaferResult:  # fmt: skip
    """Search the best mapping for a question or a job file, whose fields `fields` override."""
    return run_wafer_search(completed(ask({"wafer": WaferQuestion}, job, fields)), progress, stop)


def run_wafer_search(
    job: WaferQuestion, progress: Progress | None = None, stop: Stop | None = None
) -> WaferResult:
    """Find the best mapping (and wafer of a space), and compare it with baselines.

    With a folder (`out`) every piece is stored in it, and an interrupted search continues.
    """

    def prepare(stop: Stop) -> WaferProblem:
        wafers = load_wafers(job.wafer)
        for wafer in wafers:
            _check_places(job, wafer)
        return WaferProblem(job, wafers, stop)

    means = ExecutionOptions(job.out, job.workers, job.cluster, grows=True)
    return drive(prepare, means, stop, job.time_limit, progress, "a mapping was found")


@dataclass(frozen=True)
class WaferProblem:
    """A job and its wafers; computes its pieces in this process or in a worker."""

    job: WaferQuestion
    wafers: tuple[Wafer, ...]
    stop: Stop
    searches: dict[tuple[int, bool], WaferSearch] = field(default_factory=dict)

    def identity(self) -> Identity:
        job = self.job
        identity = job.to_dict()
        for name in ("time_limit_s", "baselines", "explain", "pareto", "samples"):
            del identity[name]
        mapping = None if job.mapping is None else read_mapping(job.mapping).to_dict()
        return identity | {
            "devices": max(wafer.dies for wafer in self.wafers),
            "wafer_content": fingerprint({"wafers": [asdict(wafer) for wafer in self.wafers]}),
            "model_content": fingerprint({"config": repr(load_model(job.model))}),
            "mapping_content": mapping and fingerprint(mapping),
        }

    def solve(self, runtime: SearchRuntime) -> WaferResult:
        pieces = runtime.pieces(make_piece, self)
        return _WaferRun(self, pieces, runtime.stop, runtime.began, runtime.progress).result()

    def files(self, answer: WaferResult) -> dict[str, str]:
        return wafer_files(answer)


def make_piece(problem: WaferProblem, number: int, quick: bool, *call: Any) -> Any:
    """Compute a piece of the search on one wafer of a job, with less effort if `quick`."""
    if (number, quick) not in problem.searches:
        problem.searches[number, quick] = make_search(problem, number, quick)
    return problem.searches[number, quick].pieces.make(*call)


def make_search(
    problem: WaferProblem, number: int, quick: bool = False, progress: Progress | None = None
) -> WaferSearch:
    job, wafer = problem.job, problem.wafers[number]
    codes = QUICK_CODES if quick or wafer.sram_memory else MANY_CODES
    return WaferSearch(
        wafer, job.model, job.batch, tokens_of(job), options_of(job, wafer), job.microbatch,
        progress,
        codes, _accept(job) if job.restricted else None, problem.stop,
    )  # fmt: skip


@dataclass
class _WaferRun:
    """State of one run from job to answer."""

    problem: WaferProblem
    pieces: PieceRunner
    stop: Stop
    began: float
    progress: Progress | None
    phases: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def result(self) -> WaferResult:
        job, wafers = self.problem.job, self.problem.wafers
        baselines: dict[str, WaferBaseline | None] = {}
        if len(wafers) == 1:
            search = self._search(0, False, self.progress)
            baselines = self._baselines(search)
            with self._timed("search"):
                outcome = search.run(_seeds(job, wafers[0], baselines))
            solved = (SolvedWafer(wafers[0], outcome),)
            explored = WaferExploration(solved, {}, job.batch / outcome.bound_s, outcome.stopped)
        else:
            with self._timed("search"):
                explored = self._space()
            search = self._search(wafers.index(explored.solved[0].wafer), True)
            baselines = self._baselines(search)
        wafer, outcome = explored.solved[0]
        best, faults = self._with_faults(search, outcome.best)
        broken = Faults(job.dead_dies, job.dead_links).all_links(wafer)
        with self._timed("replay"):
            detailed = replay_mapping(wafer, best, broken)
        worth: tuple[ResourceWorth, ...] = ()
        if job.explain:
            with self._optional("explanation"):
                worth = search.pieces.explained(best, broken)
        return WaferResult(
            job=job,
            wafer=wafer,
            best=best,
            certificate=Certificate(
                # The bound is that of a wafer without faults.
                score=(outcome.best if job.dead_dies or job.dead_links else best).samples_per_s,
                bound=explored.bound_samples_per_s,
                tolerance=TOLERANCE,
                items=len(wafers),
                kind="architecture",
                evaluated=len(explored.solved),
                ruled_out=explored.pruned,
                tightened=outcome.solved,
                subject=_subject(job, len(wafers)),
            ),
            baselines=baselines,
            detailed=detailed,
            designs=tuple(design_row(wafer, result.best) for wafer, result in explored.solved),
            pareto=_front(explored) if job.pareto else {},
            runners_up=outcome.runners_up,
            faults=faults,
            explanation=worth,
            phases_s=self.phases,
            wall_time_s=time.monotonic() - self.began,
            stopped=self.stop.reason if explored.stopped else "",
            left_out=self.left_out,
        )

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.phases[name] = time.monotonic() - began

    @contextmanager
    def _optional(self, name: str) -> Iterator[None]:
        """Skip an optional part of the answer if the search has to stop."""
        try:
            with self._timed(name):
                yield
        except StoppedError:
            self.left_out[name] = self.stop.reason

    def _search(self, number: int, quick: bool, progress: Progress | None = None) -> WaferSearch:
        """Return a search whose pieces are stored and distributed by the executor."""
        search = make_search(self.problem, number, quick, progress)
        search.pieces.ask = partial(self.pieces.ask, number, quick)
        search.pieces.prefetch = lambda calls: self.pieces.prefetch(
            (number, quick, *call) for call in calls
        )
        return search

    def _space(self) -> WaferExploration:
        job, wafers = self.problem.job, self.problem.wafers
        searches = [self._search(number, True) for number in range(len(wafers))]
        thorough = lambda wafer: self._search(wafers.index(wafer), False)  # noqa: E731
        prefetch = lambda numbers: self.pieces.prefetch([(i, True, "search") for i in numbers])  # noqa: E731
        return explore_wafers(searches, job.pareto, thorough, self.progress, prefetch)

    def _baselines(self, search: WaferSearch) -> dict[str, WaferBaseline | None]:
        baselines: dict[str, WaferBaseline | None] = {}
        if not self.problem.job.baselines:
            return baselines
        with self._timed("baselines"):
            search.pieces.prefetch([("baseline", name) for name in NAMES])
            for name in NAMES:
                with self._optional(f"baseline {name}"):
                    baselines[name] = search.pieces.baseline(name)
                self.phases.pop(f"baseline {name}", None)
        return baselines

    def _with_faults(
        self, search: WaferSearch, healthy: MappingCost
    ) -> tuple[MappingCost, FaultsAnswer]:
        """Map around the job's faults and sample the throughput of faulty wafers."""
        job, faults_answer, best = self.problem.job, FaultsAnswer(), healthy

        def around(faults: Faults) -> MappingCost | None:
            unchanged = unharmed(search.wafer, healthy, faults)
            mapped = search.pieces.around(faults, search.microbatches)
            return min(filter(None, (unchanged, mapped)), key=lambda c: c.step_s, default=None)

        if job.dead_dies or job.dead_links:
            faults = Faults(job.dead_dies, job.dead_links)
            with self._timed("faults"):
                mapped = around(faults)
            if mapped is None:
                working = search.wafer.dies - len(faults.dies)
                raise InfeasibleError(
                    f"model {job.model}: no mapping fits the {working} working dies of wafer "
                    f"{search.wafer.name}; use a smaller model or a wafer with fewer dead dies."
                )
            best = mapped
            with self._optional("refining"):
                best = search.pieces.freed(mapped, faults.all_links(search.wafer))
            faults_answer = replace(faults_answer, kept=best.samples_per_s / healthy.samples_per_s)
        if job.samples:
            share = search.wafer.dead_share if job.dead_share is None else job.dead_share
            with self._optional("faults"):
                sampling = search.wafer, healthy, share, job.samples, job.seed
                faults_answer = replace(degraded(*sampling, around), kept=faults_answer.kept)
        return best, faults_answer


def _subject(job: WaferQuestion, wafers: int) -> str:
    """Describe the mappings that the bound covers, without those the job excludes."""
    wafers_text = "this wafer" if wafers == 1 else counted(wafers, "wafer")
    if wafers == 1 and (job.dead_dies or job.dead_links):
        wafers_text += " without its faults"
    microbatch_text = ""
    if "microbatch" in job.model_fields_set:
        microbatch_text = f" with microbatches of {' or '.join(map(str, job.microbatch))}"
    left_out = f" ({', '.join(job.ablations)})" if job.ablations else ""
    return f"all mappings{microbatch_text}{left_out} on {wafers_text}"


def _accept(job: WaferQuestion) -> Callable[[PipelineShape], bool]:
    shapes, counts = job.stage_shapes, job.stage_counts
    return lambda shape: (
        (not shapes or (shape.width, shape.height) in shapes)
        and (not counts or shape.stages in counts)
    )


def _seeds(
    job: WaferQuestion, wafer: Wafer, baselines: Mapping[str, WaferBaseline | None]
) -> Sequence[MappingCost]:
    """Return baselines and the job's mapping as far as they lie in the searched space."""
    if job.ablations or job.restricted:
        return ()
    costs = [baseline.evaluation for baseline in baselines.values() if baseline is not None]
    start = job_mapping(job, wafer)
    if start is not None:
        costs.append(estimate_mapping(wafer, start).evaluation)
    homes = {*options_of(job, wafer).homes}
    if "optimizer" in homes:
        homes.add("replicated")  # which takes no less time
    return [
        cost
        for cost in costs
        if {home for stage in cost.mapping.stages for home in stage.block.homes} <= homes
        and (cost.mapping.microbatch in job.microbatch or "microbatch" not in job.model_fields_set)
    ]


def design_row(wafer: Wafer, cost: MappingCost) -> WaferDesign:
    return WaferDesign.of(
        wafer,
        samples_per_s=cost.samples_per_s,
        power_W=running_power_W(wafer, cost),
        microbatch=cost.mapping.microbatch,
        stages=len(cost.mapping.stages),
        memory_GiB_used=cost.memory_bytes / 2**30,
    )


def _front(explored: WaferExploration) -> dict[str, WaferFront]:
    rows = (design_row(wafer, outcome.best) for wafer, outcome in pareto_rows(explored))
    return {"throughput_power_cost": WaferFront(proven_within=None, designs=tuple(rows))}


def _check_places(job: WaferQuestion, wafer: Wafer) -> None:
    if min(job.microbatch) > job.batch:
        raise AtollError(
            f"job: microbatch: {min(job.microbatch)} is larger than the batch of {job.batch}; "
            "name one that is not."
        )
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
