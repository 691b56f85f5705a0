"""Plans on several pods: the fastest layout, with a proof over the search space (`search`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from atoll.answers.answer import AnsweredResult, build_from
from atoll.answers.certificate import Proof
from atoll.answers.design import MixedAnswer, MixedStage, PodAlone, PodAnswer
from atoll.answers.layout import Exportable, LaunchFile
from atoll.base.errors import AtollError, InfeasibleError
from atoll.base.registry import import_named
from atoll.base.stopping import Stop, StoppedError
from atoll.base.units import counted, format_bytes, format_seconds
from atoll.driver import Progress
from atoll.questions import PodsQuestion
from atoll.step.certificate import Certificate
from atoll.tools.tool import Tool
from atoll.training.mixed.estimate import MixedEstimate, PodEstimator, PodPlacement
from atoll.training.mixed.pods import Pods, load_pods, make_pods
from atoll.training.mixed.search import PodSearchResult, TimedPlacement, pod_uses, search
from atoll.training.planner.plan import RUNNERS_UP, Plan, plan, proof_words
from atoll.training.planner.space import Axes, excluded
from atoll.training.request import axes_from_question, run_from_question


@dataclass(frozen=True)
class MixedPlan(Exportable, AnsweredResult[MixedAnswer]):
    """The fastest layout on pods, with its runners-up and the proof.

    Examples:
        >>> import atoll
        >>> plan = atoll.plan("gpt2-xl", pods="pods.yaml", batch=64, tp=[1], pp=[1], zero=[1])
        >>> plan.certificate.proven
        True
    """

    answer_builder = "atoll.training.mixed.plan:mixed_answer"
    pods: Pods
    best: MixedEstimate
    runners_up: tuple[MixedEstimate, ...]
    alone: tuple[PodAlone, ...]
    certificate: Certificate
    excluded: tuple[str, ...]
    unseen: int = 0
    stopped: str = ""
    """Why the search ended before its proof, if it did."""

    @property
    def tool(self) -> Tool:
        """Tool that runs the layouts."""
        return self.pods.runs[0].tool

    def _launch_file(self, target: str) -> LaunchFile:
        placed, runs = self.best.placed, [self.pods.runs[i] for i in self.best.placed.pods]
        if len(set(placed.microbatches)) > 1:
            raise AtollError(
                f"export to {target}: pods have microbatches of "
                f"{' and '.join(map(str, placed.microbatches))} sequences, but launch files have "
                "one size for all ranks; plan with export, which leaves these out"
            )
        run, layout = runs[0], placed.layout
        file: LaunchFile = import_named("atoll.export:export")(
            target,
            run.model,
            replace(layout, blocks=()),
            sequence=run.sequence,
            global_batch=run.global_batch,
            precision=run.precision,
            devices_per_node=min(pod_run.network.node for pod_run in runs),
            stages=layout.blocks or None,
            exchanges_heads=run.stack.gives_heads(run.model.kv_heads // layout.tp, layout.cp),
        )
        where = ", then ".join(f"{pod_run.devices:,} {pod_run.gpu.name}" for pod_run in runs)
        note = f"ranks are numbered through the pods in this order: {where}"
        return replace(file, notes=(*file.notes, note)) if len(runs) > 1 else file

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know before the figures are believed."""
        return tuple(dict.fromkeys(note for run in self.pods.runs for note in run.notes))

    def summary(self) -> list[tuple[str, str]]:
        """Return the answer in short: the best placement, step time, memory, confidence.

        Returns:
            Lines as (label, text), in the order in which every answer has them.

        Examples:
            >>> import atoll
            >>> plan = atoll.plan("gpt2-xl", pods="pods.yaml", batch=64, tp=[1], pp=[1], zero=[1])
            >>> [label for label, _ in plan.summary()]
            ['Run', 'Step', 'Memory', 'Confidence']
        """
        best, run, proof = self.best, self.pods.runs[0], self.certificate
        fullest = best.fullest
        gpu = self.pods.runs[fullest.pod].gpu
        needed, capacity = fullest.memory.needed, gpu.hbm_bytes
        unused = f"; not used: {', '.join(best.left_out)}" if best.left_out else ""
        memory = (
            f"{format_bytes(needed)} needed of {format_bytes(capacity)} on the fullest {gpu.name}"
        )
        spare = f"{format_bytes(capacity - needed)} ({1 - needed / capacity:.0%})"
        words = f"proven fastest of {proof.over}" if proof.proven else proof.sentence()
        return [
            *(("Note", note) for note in self.notes),
            ("Run", f"{run.model.name} on {self.pods}: {best.placed}{unused}"),
            ("Step", f"{format_seconds(best.time_s, 3)}, {run.tokens / best.time_s:,.0f} tokens/s"),
            ("Memory", f"{memory}: fits, {spare} to spare"),
            ("Confidence", f"{words}; runs on several pods were never measured"),
        ]

    def proof(self) -> str:
        """What is proven, and what was done with the layouts of the space.

        Returns:
            One sentence.

        Examples:
            >>> import atoll
            >>> plan = atoll.plan("gpt2-xl", pods="pods.yaml", batch=64, tp=[1], pp=[1], zero=[1])
            >>> plan.proof()  # doctest: +ELLIPSIS
            'proven ...'
        """
        return proof_words(self.certificate, self.unseen, self.stopped)

    def left_out(self) -> str:
        """What the proof does not speak about.

        Returns:
            One line.

        Examples:
            >>> import atoll
            >>> plan = atoll.plan("gpt2-xl", pods="pods.yaml", batch=64, tp=[1], pp=[1], zero=[1])
            >>> plan.left_out()  # doctest: +ELLIPSIS
            'not searched: ...'
        """
        return f"not searched: {'; '.join(self.excluded)}"


def plan_pods(
    question: PodsQuestion, stop: Stop | None = None, progress: Progress | None = None
) -> MixedPlan:
    """Find the fastest layout on the pods of a question."""
    stop = stop or Stop()
    stop.limit(question.time_limit)
    pods_file, run = load_pods(str(question.pods)), run_from_question(question)
    asked = question.stack is not None or question.tool is not None
    pods = make_pods(pods_file, run, asked)
    axes, launched = axes_from_question(question, run), run.tool.write is not None
    pod_plan = plan_mixed(pods, axes, equal=launched, stop=stop, progress=progress)
    if question.launch_file is not None:
        pod_plan.export(run.tool.name).save(question.launch_file)
    return pod_plan


def plan_mixed(
    pods: Pods,
    axes: Axes | None = None,
    *,
    runners_up: int = RUNNERS_UP,
    equal: bool = False,
    stop: Stop | None = None,
    progress: Progress | None = None,
) -> MixedPlan:
    """Find the fastest layout that fits one or more of the pods; `equal`: with the same microbatch
    for all pods, as launch files require.
    """
    axes, stop, count = axes or Axes(), stop or Stop(), runners_up + 1
    parts, alone = _plan_single_pods(pods, axes, stop, progress)
    single_pods = []
    for pod, part in parts.items():
        for single in (part.fastest, *part.runners_up):
            sizes = (single.layout.microbatch,)
            placed = PodPlacement(single.layout, (pod,), "alone", sizes)
            single_pods.append(TimedPlacement(single.step.time_s, placed))
    uses = pod_uses(pods, axes, equal)
    result = search(uses, axes.recompute, sorted(single_pods)[:count], count, stop, progress)
    placer = PodEstimator(pods)
    estimates = [placer.estimate(item.placed) for item in result.best]
    best = sorted((x for x in estimates if x.fits), key=lambda x: x.time_s)
    if not best:
        if result.stopped:
            raise StoppedError
        raise _nothing_fits(pods, alone)
    proof = _certificate(pods, result, best[0].time_s, list(parts.values()), count)
    left_out, stopped = _excluded(pods, axes, equal), stop.reason if result.stopped else ""
    later = tuple(best[1:])
    return MixedPlan(pods, best[0], later, alone, proof, left_out, result.unseen, stopped)


def _plan_single_pods(
    pods: Pods, axes: Axes, stop: Stop, progress: Progress | None
) -> tuple[dict[int, Plan], tuple[PodAlone, ...]]:
    """Plan every pod alone; return the plans, and answers with the reason where none fits."""
    plans: dict[int, Plan] = {}
    answers = []
    for pod, run in enumerate(pods.runs):
        answer = PodAlone(device=run.gpu.name, devices=run.devices)
        try:
            plans[pod] = pod_plan = plan(run, axes, progress=progress, stop=stop)
            fastest = pod_plan.fastest
            answer = replace(answer, step_time_s=fastest.step.time_s, layout=str(fastest.layout))
        except AtollError as error:
            answer = replace(answer, reason=str(error))
        answers.append(answer)
    return plans, tuple(answers)


def _nothing_fits(pods: Pods, alone: tuple[PodAlone, ...]) -> InfeasibleError:
    reasons = " ".join(f"Alone, {pod.reason}." for pod in alone if pod.reason)
    return InfeasibleError(
        f"{pods.runs[0].model.name} does not fit {pods}, nor does any layout divide them and the "
        f"batch that fits; use more devices, a smaller batch or a shorter sequence. {reasons}"
    )


def _certificate(
    pods: Pods, result: PodSearchResult, best_s: float, alone: list[Plan], count: int
) -> Certificate:
    batch = pods.runs[0].global_batch
    last_s = result.best[-1].time_s if len(result.best) == count else inf
    bound_s = min(best_s, last_s, result.bound_s)
    proofs = [part.certificate for part in alone]
    items = result.layouts + sum(proof.items for proof in proofs)
    estimated = result.estimated + sum(proof.evaluated for proof in proofs)
    large = result.too_large + sum(proof.ruled_out["memory"] for proof in proofs)
    return Certificate(
        score=batch / best_s,
        bound=batch / bound_s,
        tolerance=0.0,
        items=items,
        kind="layout",
        evaluated=estimated,
        ruled_out={"memory": large, "time": max(0, items - estimated - large - result.unseen)},
        subject=f"{counted(items, 'layout')} on {pods}",
    )


def _excluded(pods: Pods, axes: Axes, equal: bool) -> tuple[str, ...]:
    """Return what the search space leaves out."""
    run = pods.combined_runs(range(len(pods.runs)), crossed=False)[0]
    return (
        *(words for words in excluded(run, axes) if not words.startswith("stages")),
        "stages, or tensor and context groups, that lie in two pods",
        "uneven pipeline stages within one pod",
        "dualpipe across pods",
        f"numbers {'and sizes ' if equal else ''}of microbatches that differ between pods",
    )


def mixed_answer(pod_plan: MixedPlan) -> MixedAnswer:
    best, pods, run = pod_plan.best, pod_plan.pods, pod_plan.pods.runs[0]
    placed = best.placed
    shares = dict(zip(placed.pods, placed.microbatches, strict=False))
    return build_from(
        MixedAnswer,
        pod_plan,
        pods,
        placed,
        run,
        model=run.model.name,
        stack=run.stack.name,
        pods=tuple(
            PodAnswer(
                device=pod_run.gpu.name,
                devices=pod_run.devices,
                network=pod_run.network.name,
                used=pod in placed.pods,
                microbatch=shares.get(pod, placed.layout.microbatch),
                blocks=tuple(stage.blocks for stage in best.stages if stage.pod == pod),
            )
            for pod, pod_run in enumerate(pods.runs)
        ),
        order=placed.pods,
        layout_words=str(placed),
        step_time_s=best.time_s,
        tokens_per_s=run.tokens / best.time_s,
        breakdown_s=best.step.breakdown(),
        replay_difference=best.replayed.difference,
        crossing=best.crossing(),
        bottleneck=best.bottleneck(),
        stages=tuple(
            build_from(
                MixedStage,
                stage,
                microbatch_s=stage.time.total_s,
                needed_bytes=stage.memory.needed,
                capacity_bytes=pods.runs[stage.pod].gpu.hbm_bytes,
                memory_bytes=stage.memory.parts(),
            )
            for stage in best.stages
        ),
        runners_up=tuple(
            (str(estimate.placed), estimate.placed.by, estimate.time_s / best.time_s - 1)
            for estimate in pod_plan.runners_up
        ),
        certificate=Proof.of(pod_plan.certificate),
    )
