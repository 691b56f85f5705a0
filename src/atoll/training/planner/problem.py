"""A plan as a problem of the driver, which stores, resumes, parallelizes and limits it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING

from atoll.base.stopping import Stop
from atoll.driver import SearchRuntime
from atoll.hardware.device import TemplateChip
from atoll.questions import PlanQuestion
from atoll.questions.devices import LengthQuestion
from atoll.training.planner.pieces import PlanPieces, make_piece
from atoll.training.planner.plan import Plan, plan
from atoll.training.planner.search import LayoutRefusal
from atoll.training.planner.space import Axes
from atoll.training.run import Run

if TYPE_CHECKING:
    from atoll.answers.designs import Identity

PLAN = "plan.json"
"""The file of the answer."""


@dataclass(frozen=True)
class PlanProblem:
    """A question with its run and the axis values to search."""

    question: PlanQuestion
    run: Run
    axes: Axes
    usable: LayoutRefusal | None
    explained: bool
    """Whether the reasons are computed during the solve, or on first use."""
    stoppable: bool
    """Whether the caller's stop condition also applies to what is computed on first use."""

    def identity(self) -> Identity:
        """Return what identifies the stored pieces; the run's tool is in its contents."""
        from atoll.store import fingerprint

        question_fields = self.question.to_dict()
        run_fields = LengthQuestion.model_fields  # run length; steps do not depend on it
        of_software = "tool", "stack", "overlap", "optimizer"
        for name in ("time_limit_s", "ties", *of_software, *run_fields):
            del question_fields[name]
        # Files and software named in the question are identified by their contents.
        contents = ((field.name, getattr(self.run, field.name)) for field in fields(self.run))
        return question_fields | {
            f"{name}_content": fingerprint({name: repr(content)})
            for name, content in contents
            if is_dataclass(content) and name != "length"
        }

    @property
    def risk(self) -> str:
        """Return what layouts are ranked by; nobody has measured template chips: the median."""
        return "median" if isinstance(self.run.gpu, TemplateChip) else self.question.risk

    @property
    def ties(self) -> float:
        """Return `ties`; 0 for template chips if not asked, to keep the search's step time."""
        chip = isinstance(self.run.gpu, TemplateChip) and "ties" not in self.question.asked()
        return 0.0 if chip else self.question.ties

    def solve(self, runtime: SearchRuntime) -> Plan:
        pieces = PlanPieces(self.run, self.axes)
        if not runtime.plain:
            shared = runtime.pieces(make_piece, pieces)
            pieces.ask = shared.ask
            pieces.announce = None if runtime.executor.in_process else shared.prefetch

        solved_plan = plan(
            self.run,
            self.axes,
            usable=self.usable,
            progress=runtime.progress,
            pieces=pieces,
            stop=runtime.stop,
            ties=self.ties,
            risk=self.risk,
        )
        solved_plan = replace(solved_plan, best=replace(solved_plan.best, launched=True))
        if self.explained:
            _ = solved_plan.reasons, solved_plan.unrestricted
        pieces.ask, pieces.announce = pieces.make, None  # later calls use no workers
        if not self.stoppable:
            solved_plan.space.stop = Stop()
        return solved_plan

    def files(self, answer: Plan) -> Mapping[str, str]:
        return {PLAN: answer.answer.to_json()}
