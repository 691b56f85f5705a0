"""Page view of a plan or of one estimate."""

from __future__ import annotations

from collections.abc import Iterator

from atoll.answers.certificate import LayoutProof
from atoll.answers.plan import EstimateAnswer, PlanAnswer
from atoll.base.units import NOT_COUNTED, format_slower
from atoll.front import ScriptData
from atoll.report.timeline import plan_timeline
from atoll.report.timeline_view import memory_view, timeline_view, times_view
from atoll.step.parts import in_words


def plan_view(answer: PlanAnswer | EstimateAnswer) -> ScriptData:
    """Return the sections of a plan's page."""
    plan = answer if isinstance(answer, PlanAnswer) else None
    rows = [("this layout", answer.layout_words, answer.breakdown_s)]
    for number, runner_up in enumerate(plan.runners_up if plan else (), start=1):
        about = f"{runner_up.layout} ({format_slower(runner_up.slower)})"
        rows.append((f"alternative {number}", about, runner_up.breakdown_s))
    model = {
        "model": answer.model,
        "layers": answer.operators,
        "pipeline": timeline_view(plan_timeline(answer.pipeline)),
        "memory": memory_view(
            answer.memory_bytes.capacity,
            [(stage.layers, in_words(stage.memory_bytes)) for stage in answer.stages],
        ),
        "energy_J": {},
        "replay_difference": answer.replay.difference,
    }
    return {
        "kind": answer.kind,
        "title": f"{answer.model} on {answer.devices:,} {answer.device}",
        "summary": answer.summary,
        "details": [*_details(answer)],
        "times": [times_view(answer.model, rows)],
        "models": [model],
        "sensitivity": {"unit": "throughput", "per_mm2": False, "rows": answer.sensitivity},
        "reasons": [reason.why for reason in plan.reasons] if plan else [],
        "cluster": answer.cluster,
        "launch": answer.launch or None,
        "tool": answer.tool,
    }


def _details(answer: PlanAnswer | EstimateAnswer) -> Iterator[tuple[str, str]]:
    """Yield assumptions, power, failures and proof, as `--explain` prints them."""
    yield "Given", f"{answer.given}; MFU: {NOT_COUNTED}"
    if answer.power_W is not None and answer.energy_per_token_J is not None:
        joules = f"{1e3 * answer.energy_per_token_J:.3g} mJ per token"
        yield "Power", f"{answer.power_W:.0f} W per device, {joules}"
    if answer.whole_run is not None:
        yield "Failures", answer.whole_run.failure_sentence()
    if isinstance(answer, PlanAnswer):
        yield "Proof", _proof(answer.certificate, answer.choice)


def _proof(proof: LayoutProof, choice: str) -> str:
    refused = f"{proof.refused:,} cannot be run by {proof.target}, " if proof.refused else ""
    missed = f"{proof.unseen:,} were not evaluated, " if proof.unseen else ""
    excluded = f" Not searched: {'; '.join(proof.excluded)}." if proof.excluded else ""
    sentence = proof.sentence.removesuffix(".")
    if choice:
        sentence = f"The fastest is {sentence[0].lower()}{sentence[1:]}"
    return (
        f"{sentence}; {proof.too_large:,} do not fit in memory, {proof.too_slow:,} are provably "
        f"slower, {refused}{missed}{proof.estimated:,} were estimated in full.{excluded}"
    )
