"""The best use of several pods, proven over the space that it states (`search`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from atoll.answers.answer import Answered, answer_of
from atoll.answers.certificate import Proof
from atoll.answers.design import MixedAnswer, MixedStage, PodAlone, PodAnswer
from atoll.answers.layout import Launched, LaunchFile
from atoll.driver import Progress
from atoll.errors import AtollError, InfeasibleError
from atoll.questions import PodsQuestion
from atoll.registry import named
from atoll.step.certificate import Certificate
from atoll.stopping import Stop, StoppedError
from atoll.training.mixed.estimate import MixedEstimate, Placed, Placer
from atoll.training.mixed.pods import Pods, load_pods, pods_of
from atoll.training.mixed.search import Found, Item, every_way, search
from atoll.training.planner.plan import RUNNERS_UP, Plan, plan
from atoll.training.planner.space import Axes, excluded
from atoll.training.request import axes_of, run_of
from atoll.units import counted


@dataclass(frozen=True)
class MixedPlan(Launched, Answered[MixedAnswer]):
    """The fastest layout on pods, with its runners-up and the proof.

    Examples:
        >>> import atoll
        >>> plan = atoll.plan("gpt2-xl", pods="pods.yaml", batch=64, tp=[1], pp=[1], zero=[1])
        >>> plan.certificate.proven
        True
    """

    pods: Pods
    best: MixedEstimate
    runners_up: tuple[MixedEstimate, ...]
    alone: tuple[PodAlone, ...]
    certificate: Certificate
    excluded: tuple[str, ...]
    unseen: int = 0
    stopped: str = ""
    """Why the search ended before its proof, if it did."""

    def _launch_file(self, target: str) -> LaunchFile:
        placed, runs = self.best.placed, [self.pods.runs[i] for i in self.best.placed.pods]
        if len(set(placed.microbatches)) > 1:
            raise AtollError(
                f"export to {target}: pods have microbatches of "
                f"{' and '.join(map(str, placed.microbatches))} sequences, but launch files have "
                "one size for all ranks; plan with export, which leaves these out"
            )
        run = runs[0]
        made: LaunchFile = named("atoll.export:export")(
            target,
            run.model,
            replace(placed.layout, blocks=()),
            sequence=run.sequence,
            global_batch=run.global_batch,
            precision=run.precision,
            devices_per_node=min(each.network.node for each in runs),
            stages=placed.layout.blocks or None,
            exchanges_heads=run.stack.gives_heads(
                run.model.kv_heads // placed.layout.tp, placed.layout.cp
            ),
        )
        where = ", then ".join(f"{each.devices:,} {each.gpu.name}" for each in runs)
        note = f"ranks are numbered through the pods in this order: {where}"
        return replace(made, notes=(*made.notes, note)) if len(runs) > 1 else made

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know before the figures are believed."""
        return tuple(dict.fromkeys(note for run in self.pods.runs for note in run.notes))

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
        ruled_out = self.certificate.ruled_out
        words = [f"{ruled_out['memory']:,} cannot fit", f"{ruled_out['time']:,} cannot be faster"]
        words += [f"{self.unseen:,} not looked at ({self.stopped})"] if self.stopped else []
        return (
            f"{self.certificate.sentence()}; {', '.join(words)}, "
            f"{self.certificate.evaluated:,} estimated"
        )

    def left_out(self) -> str:
        """What the proof does not speak about.

        Returns:
            One line.

        Examples:
            >>> import atoll
            >>> plan = atoll.plan("gpt2-xl", pods="pods.yaml", batch=64, tp=[1], pp=[1], zero=[1])
            >>> plan.left_out()  # doctest: +ELLIPSIS
            'not tried: ...'
        """
        return f"not tried: {'; '.join(self.excluded)}"


def plan_pods(
    asked: PodsQuestion, stop: Stop | None = None, progress: Progress | None = None
) -> MixedPlan:
    """The fastest layout on the pods of a question."""
    stop = stop or Stop()
    stop.limit(asked.time_limit)
    file = load_pods(str(asked.pods))
    run = run_of(asked)
    pods = pods_of(file, run, asked.stack is not None or asked.export is not None)
    usual = named("atoll.export:EXPORTERS")[asked.export].values if asked.export else {}
    axes, launched = axes_of(asked, usual, run), asked.export is not None
    found = plan_mixed(pods, axes, equal=launched, stop=stop, progress=progress)
    if asked.export_to is not None:
        found.export(asked.export or "").save(asked.export_to)
    return found


def plan_mixed(
    pods: Pods,
    axes: Axes | None = None,
    *,
    runners_up: int = RUNNERS_UP,
    equal: bool = False,
    stop: Stop | None = None,
    progress: Progress | None = None,
) -> MixedPlan:
    """The fastest layout on some or all of the pods that fits; `equal`: with one microbatch for all
    of them, as launch files have it.
    """
    axes, stop, count = axes or Axes(), stop or Stop(), runners_up + 1
    parts, alone = _each_alone(pods, axes, stop, progress)
    known = [
        Item(found.step.time_s, Placed(found.layout, (pod,), "alone", (found.layout.microbatch,)))
        for pod, part in parts.items()
        for found in (part.fastest, *part.runners_up)
    ]
    ways = every_way(pods, axes, equal)
    found = search(ways, axes.recompute, sorted(known)[:count], count, stop, progress)
    placer = Placer(pods)
    written = (placer.estimate(item.placed) for item in found.best)
    best = sorted((one for one in written if one.fits), key=lambda one: one.time_s)
    if not best:
        if found.stopped:
            raise StoppedError
        raise _nothing_fits(pods, alone)
    return MixedPlan(
        pods,
        best[0],
        tuple(best[1:]),
        alone,
        _certificate(pods, found, best[0].time_s, list(parts.values()), count),
        _excluded(pods, axes, equal),
        found.unseen,
        stop.reason if found.stopped else "",
    )


def _each_alone(
    pods: Pods, axes: Axes, stop: Stop, progress: Progress | None
) -> tuple[dict[int, Plan], tuple[PodAlone, ...]]:
    """The best layout of every pod alone, and what keeps those without one."""
    found: dict[int, Plan] = {}
    words = []
    for pod, run in enumerate(pods.runs):
        told = PodAlone(device=run.gpu.name, devices=run.devices)
        try:
            found[pod] = one = plan(run, axes, progress=progress, stop=stop)
            told = replace(
                told, step_time_s=one.fastest.step.time_s, layout=str(one.fastest.layout)
            )
        except AtollError as error:
            told = replace(told, reason=str(error))
        words.append(told)
    return found, tuple(words)


def _nothing_fits(pods: Pods, alone: tuple[PodAlone, ...]) -> InfeasibleError:
    reasons = " ".join(f"Alone, {one.reason}." for one in alone if one.reason)
    return InfeasibleError(
        f"{pods.runs[0].model.name} does not fit {pods}, nor does any layout divide them and the "
        f"batch that fits; use more devices, a smaller batch or a shorter sequence. {reasons}"
    )


def _certificate(
    pods: Pods, found: Found, best_s: float, alone: list[Plan], count: int
) -> Certificate:
    batch = pods.runs[0].global_batch
    last_s = found.best[-1].time_s if len(found.best) == count else inf
    bound_s = min(best_s, last_s, found.bound_s)
    proofs = [part.certificate for part in alone]
    items = found.layouts + sum(proof.items for proof in proofs)
    estimated = found.estimated + sum(proof.evaluated for proof in proofs)
    large = found.too_large + sum(proof.ruled_out["memory"] for proof in proofs)
    return Certificate(
        score=batch / best_s,
        bound=batch / bound_s,
        tolerance=0.0,
        items=items,
        kind="layout",
        evaluated=estimated,
        ruled_out={"memory": large, "time": max(0, items - estimated - large - found.unseen)},
        subject=f"{counted(items, 'layout')} on {pods}",
    )


def _excluded(pods: Pods, axes: Axes, equal: bool) -> tuple[str, ...]:
    """What the space leaves out."""
    run = pods.together(range(len(pods.runs)), crossed=False)[0]
    return (
        *(words for words in excluded(run, axes) if not words.startswith("stages")),
        "stages, or tensor and context groups, that lie in two pods",
        "stages of one pod less even than can be",
        "dualpipe across pods",
        f"numbers {'and sizes ' if equal else ''}of microbatches that differ between pods",
    )


@answer_of.register
def mixed_answer(found: MixedPlan) -> MixedAnswer:
    best, run = found.best, found.pods.runs[0]
    placed = best.placed
    shares = dict(zip(placed.pods, placed.microbatches, strict=False))
    return MixedAnswer(
        notes=found.notes,
        model=run.model.name,
        sequence=run.sequence,
        global_batch=run.global_batch,
        stack=run.stack.name,
        precision=run.precision,
        given=found.pods.given,
        pods=tuple(
            PodAnswer(
                device=each.gpu.name,
                devices=each.devices,
                network=each.network.name,
                used=pod in placed.pods,
                microbatch=shares.get(pod, placed.layout.microbatch),
                blocks=tuple(stage.blocks for stage in best.stages if stage.pod == pod),
            )
            for pod, each in enumerate(found.pods.runs)
        ),
        by=placed.by,
        order=placed.pods,
        layout=placed.layout,
        layout_words=str(placed),
        step_time_s=best.time_s,
        tokens_per_s=run.tokens / best.time_s,
        breakdown_s=best.step.breakdown(),
        replay_difference=best.replayed.difference,
        crossing=best.crossing(),
        bottleneck=best.bottleneck(),
        stages=tuple(
            MixedStage(
                pod=stage.pod,
                stage=stage.stage,
                blocks=stage.blocks,
                microbatch_s=stage.time.total_s,
                recompute=stage.recompute,
                needed_bytes=stage.memory.needed,
                capacity_bytes=found.pods.runs[stage.pod].gpu.hbm_bytes,
                memory_bytes=stage.memory.parts(),
            )
            for stage in best.stages
        ),
        runners_up=tuple(
            (str(other.placed), other.placed.by, other.time_s / best.time_s - 1)
            for other in found.runners_up
        ),
        alone=found.alone,
        stopped=found.stopped,
        excluded=found.excluded,
        certificate=Proof.of(found.certificate),
    )
