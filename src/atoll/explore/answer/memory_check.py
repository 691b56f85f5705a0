"""Refuses models that fit no chip's memory before anything is priced."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atoll.base.errors import AtollError, InfeasibleError
from atoll.base.stopping import StopCheck, check_stop
from atoll.base.units import format_bytes
from atoll.explore.answer.scope import SearchScope
from atoll.explore.pricing.evaluate import times_of
from atoll.explore.pricing.layouts import SearchSetting
from atoll.explore.pricing.workloads import Variant, Variants
from atoll.profiles import job_profile
from atoll.questions import SearchQuestion
from atoll.step.states import load_states


def check_memory(
    job: SearchQuestion,
    scope: SearchScope,
    setting: SearchSetting,
    variants: Variants,
    stop: StopCheck,
) -> None:
    """Refuse a model that fits no chip's memory, before anything is priced.

    Whether a placement fits does not depend on times, so all are 1.
    """
    memory_bytes = float(max(scope.hbm_bytes))
    for index, workload in enumerate(variants.workloads):
        model_variants = [variants.variants[v] for v in variants.of(index)]
        # Largest tp first: the most likely to fit.
        model_variants.sort(key=lambda variant: (-variant.tp, variant.microbatch))
        for variant in model_variants:
            check_stop(stop)
            times = times_of(
                variant,
                np.ones((len(variant.passes), 2)),
                np.ones(variant.facts.operator_count),
            )
            if setting.place(setting.problem(variant, memory_bytes, 1.0), times) is not None:
                break
        else:
            raise _out_of_memory(job, scope, workload.name, model_variants)


def _out_of_memory(
    job: SearchQuestion, scope: SearchScope, model: str, variants: Sequence[Variant]
) -> InfeasibleError:
    """Return the error with the largest part of memory and what to change."""
    profile = job_profile(job)
    states = load_states(job.optimizer or profile.optimizer)
    state_bytes = states.bytes_per_parameter
    if profile.placer is not None:
        state_bytes = profile.placer.state_bytes(states)
    least = min(float(variant.facts.parameters.sum()) for variant in variants)
    return InfeasibleError(
        f"{model} fits no chip of space {scope.space} on {job.devices} devices: weights, gradients "
        f"and optimizer state alone take {format_bytes(least * state_bytes)} per "
        f"tensor-parallel rank, to be divided over the pipeline's stages of "
        f"{format_bytes(max(scope.hbm_bytes))} each, beside the activations; use more devices, "
        "wider tensor parallelism or more HBM."
    )


def nothing_fits(job: SearchQuestion, scope: SearchScope, variants: Variants) -> AtollError:
    # Every model fits the largest memory of the space, but no chip fits all of them.
    names = ", ".join(workload.name for workload in variants.workloads)
    return _out_of_memory(job, scope, names, variants.variants)
