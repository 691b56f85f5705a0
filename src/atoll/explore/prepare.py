"""Preparation of a search: its setting and models, its objective, and runs on existing devices."""

from __future__ import annotations

from collections.abc import Sequence

from atoll.base.errors import AtollError, InfeasibleError
from atoll.base.registry import import_named
from atoll.base.stopping import Stop, StopCheck, StoppedError, never
from atoll.explore.answer.scope import sustained_limit
from atoll.explore.baselines import reference_space
from atoll.explore.pricing.layouts import SearchSetting
from atoll.explore.pricing.price import price_of
from atoll.explore.pricing.workloads import (
    Spreads,
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
from atoll.hardware.product_space import ProductSpace
from atoll.hardware.space import DesignSpace
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
    space: DesignSpace | ProductSpace,
    setting: SearchSetting,
    variants: Variants,
    stop: Stop | None = None,
) -> Objective:
    """Return the objective: samples per second of a single model; of several, the job's objective,
    relative to the reference chip; divided by the job's price, if any.
    """
    batches = tuple(workload.global_batch for workload in variants.workloads)
    price = price_of(job)
    if len(batches) == 1:
        return Objective.single(batches[0], price)
    references: tuple[float, ...] = (1.0,) * len(batches)
    aim = AIMS[job.objective]
    if aim.relative:
        references = tuple(
            _reference_samples(job, space, setting, index, stop or Stop())
            for index in range(len(batches))
        )
    weights = tuple(model.weight for model in job.models)
    return Objective(aim, batches, weights, references, price)


def _reference_samples(
    job: SearchQuestion,
    space: DesignSpace | ProductSpace,
    setting: SearchSetting,
    index: int,
    stop: Stop,
) -> float:
    _, variants = prepare_search(job.changed(model=(job.models[index],)), stop=stop)
    objective = Objective.single(variants.workloads[0].global_batch)
    chip = reference_space(space)
    outcome = exact_search(Search(chip, variants, setting, objective, 1e-3, stop=stop))
    if outcome.stopped:
        raise StoppedError
    if outcome.best is None:
        raise InfeasibleError(
            f"model {job.models[index].name} does not fit the reference chip on {job.devices} "
            f"devices, so that objective {job.objective!r} has nothing to compare with; use mean."
        )
    return outcome.score


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
