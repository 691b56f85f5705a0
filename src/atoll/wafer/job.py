"""What a question about a wafer means to the search: options, tokens, what a mapping file says."""

from __future__ import annotations

from atoll.questions import WaferQuestion
from atoll.step.states import load_states
from atoll.wafer.encoding.block import make_block
from atoll.wafer.encoding.mapping import read_mapping
from atoll.wafer.stages import Options


def options_of(job: WaferQuestion) -> Options:
    return Options(
        streaming="no-streaming" not in job.ablations,
        recompute="no-recompute" not in job.ablations,
        offload="no-offload" not in job.ablations,
        passes="shared-codes" not in job.ablations,
        one_axis="one-axis" in job.ablations,
        volume_only="volume-only" in job.ablations,
        zero_bubble="no-zero-bubble" not in job.ablations,
        states=load_states(job.optimizer),
    )


def tokens_of(job: WaferQuestion) -> int:
    """Tokens of a sequence; a model that no wafer can train is refused here."""
    return make_block(job.model, 1, job.sequence).sequence


def completed(job: WaferQuestion) -> WaferQuestion:
    """The job with what it leaves to its mapping file filled in from there."""
    if job.mapping is None:
        return job
    mapping = read_mapping(job.mapping)
    names = {"model", "batch", "sequence", "optimizer"} - job.model_fields_set
    return job.changed(**{name: getattr(mapping, name) for name in names})
