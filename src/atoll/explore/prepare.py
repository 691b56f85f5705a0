"""Preparation of a search: its setting and models, its objective, and runs on existing devices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atoll.base.errors import AtollError, InfeasibleError
from atoll.base.registry import import_named
from atoll.base.stopping import Stop, StopCheck, StoppedError, check_stop, never
from atoll.base.units import format_bytes
from atoll.explore.answer.scope import SearchScope, sustained_limit
from atoll.explore.baselines import reference_space
from atoll.explore.pricing.evaluate import times_of
from atoll.explore.pricing.layouts import SearchSetting
from atoll.explore.pricing.price import price_of
from atoll.explore.pricing.workloads import (
    Spreads,
    Variant,
    Variants,
    make_variants,
    make_workload,
    spreads_of,
)
from atoll.explore.proof.branch_and_bound import Search
from atoll.explore.proof.exact import exact_search
from atoll.explore.proof.objective import AIMS, Objective
from atoll.fabric.network import Network
from atoll.hardware.catalog import load_network
from atoll.hardware.product_space import SearchedSpace
from atoll.profile import Profile
from atoll.profiles import job_profile
from atoll.questions import SearchQuestion
from atoll.step.layout import ZERO_STAGES
from atoll.step.orders import ORDERS
from atoll.step.states import load_states
from atoll.training.request import make_run
from atoll.training.run import Run

PLANNER = "atoll.training.planner.existing_device"  # imported on use
PLAIN_ORDERS = ("1f1b",)
SEARCHED_ORDERS = tuple(order for order in ORDERS if order != "gpipe")
"""Pipeline orders of a search: GPipe takes as long as 1F1B and needs more memory."""


def prepare_search(
    job: SearchQuestion, profile: Profile | None = None, stop: StopCheck = never
) -> tuple[SearchSetting, Variants]:
    """Return the setting (network, optimizer, profile), and the models at every layout."""
    profile = profile or job_profile(job)
    plain = profile.placer is not None
    if plain and job.precision != "bf16":
        raise AtollError(f"precision: profile {profile.name} computes in 16 bits; leave bf16")
    setting = SearchSetting(
        network=network_of(job, profile),
        profile=profile,
        states=load_states(job.optimizer or profile.optimizer),
        devices=job.devices,
        recompute=job.recompute,
        zero=(0,) if plain else job.zero or ZERO_STAGES,
        orders=PLAIN_ORDERS if plain else job.order or SEARCHED_ORDERS,
        hsdp=(1,) if plain else job.hsdp,
        vpp=job.vpp,
        limit=sustained_limit(job),
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
    """Return the network between a job's devices."""
    name = job.network or (profile or job_profile(job)).network
    return load_network(name).cut(job.devices)


def make_objective(
    job: SearchQuestion,
    space: SearchedSpace,
    setting: SearchSetting,
    variants: Variants,
    stop: Stop | None = None,
) -> Objective:
    """Return the objective: samples per second of a single model; of several, the job's objective,
    relative to the reference chip; divided by the job's price, if any."""
    batches = tuple(workload.global_batch for workload in variants.workloads)
    price = price_of(job)
    if len(batches) == 1:
        return Objective.single(batches[0], price)
    aim, stop = AIMS[job.objective], stop or Stop()
    references = [1.0] * len(batches)
    for index, model in enumerate(job.models if aim.relative else ()):
        _, single = prepare_search(job.changed(model=(model,)), stop=stop)
        samples = Objective.single(single.workloads[0].global_batch)
        chip = reference_space(space)
        outcome = exact_search(Search(chip, single, setting, samples, 1e-3, stop=stop))
        if outcome.stopped:
            raise StoppedError
        if outcome.best is None:
            raise InfeasibleError(
                f"model {model.name} does not fit the reference chip on {job.devices} devices, so "
                f"that objective {job.objective!r} has nothing to compare with; use mean."
            )
        references[index] = outcome.score
    weights = tuple(model.weight for model in job.models)
    return Objective(aim, batches, weights, tuple(references), price)


def existing_device_runs(job: SearchQuestion, devices: Sequence[str]) -> dict[str, Run]:
    """Return runs of the job's (first) model on existing devices with their usual network."""
    model = job.models[0]
    return {
        name: make_run(
            model.name, name, job.devices, batch=model.batch or job.batch,
            sequence=model.sequence, optimizer=job.optimizer or job_profile(job).optimizer,
            precision=import_named(f"{PLANNER}:precision_of")(name, job.precision),
        )
        for name in devices
    }  # fmt: skip


# --- Models that fit no chip ----------------------------------------------------------------------


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
                variant, np.ones((len(variant.passes), 2)), np.ones(variant.facts.operator_count)
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
