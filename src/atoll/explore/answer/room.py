"""Models that fit no chip's memory: refused before anything is priced, with the way out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atoll.errors import AtollError, InfeasibleError
from atoll.explore.answer.scope import Scope
from atoll.explore.pricing.evaluate import times_of
from atoll.explore.pricing.layouts import Setting
from atoll.explore.pricing.workloads import Variant, Variants
from atoll.profiles import profile_of
from atoll.questions import SearchQuestion
from atoll.step.states import load_states
from atoll.stopping import Asked, go_on
from atoll.units import format_bytes


def check_memory(
    job: SearchQuestion, scope: Scope, setting: Setting, variants: Variants, stop: Asked
) -> None:
    """Refuse a model that fits no chip's memory, before anything is priced.

    Whether a placement fits does not depend on times: any will do.
    """
    memory_bytes = float(max(scope.hbm_bytes))
    for index, workload in enumerate(variants.workloads):
        own = [variants.variants[v] for v in variants.of(index)]
        # Narrow shares first: they are the most likely to fit.
        own.sort(key=lambda variant: (-variant.tensor, variant.microbatch))
        for variant in own:
            go_on(stop)
            times = times_of(
                variant,
                np.ones((len(variant.passes), 2)),
                np.ones(variant.facts.operator_count),
            )
            if setting.place(setting.problem(variant, memory_bytes, 1.0), times) is not None:
                break
        else:
            raise _no_room(job, scope, workload.name, own)


def _no_room(
    job: SearchQuestion, scope: Scope, model: str, own: Sequence[Variant]
) -> InfeasibleError:
    """Say what the largest part of memory is, and the way out."""
    profile = profile_of(job)
    held_bytes = profile.placer.state_bytes(load_states(job.optimizer or profile.optimizer))
    least = min(float(variant.facts.parameters.sum()) for variant in own)
    return InfeasibleError(
        f"{model} fits no chip of space {scope.space} on {job.devices} devices: weights, gradients "
        f"and optimizer state alone take {format_bytes(least * held_bytes)} per "
        f"tensor-parallel rank, to be divided over the pipeline's stages of "
        f"{format_bytes(max(scope.hbm_bytes))} each, beside the activations; use more devices, "
        "wider tensor parallelism or more HBM."
    )


def nothing_fits(job: SearchQuestion, scope: Scope, variants: Variants) -> AtollError:
    # Every model fits the largest memory of the space, but no chip has it for all of them.
    names = ", ".join(workload.name for workload in variants.workloads)
    return _no_room(job, scope, names, variants.variants)
