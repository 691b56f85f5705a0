"""A searched chip under other conditions: other devices, links, memory, microbatch.

Unchanged chips and microbatches keep the schedules of the search. Otherwise schedules are found
quickly, or on request solved with the effort of the search; both state the remaining gap. The
placement is always solved exactly. Models and schedules are cached: a slider takes milliseconds.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from atoll.answers.answer import build_from, checked
from atoll.base.errors import AtollError
from atoll.base.identity import code_words, this_code
from atoll.cost.chips import chips_of_accelerator
from atoll.explore.answer.scope import open_space
from atoll.explore.design_builder import model_plan
from atoll.explore.prepare import prepare_search
from atoll.explore.pricing.evaluate import PricedChips
from atoll.explore.pricing.layouts import SearchSetting
from atoll.explore.pricing.workloads import Spreads, Variants, make_variants, make_workload
from atoll.explore.stored_journal import space_identity
from atoll.front import ScriptData
from atoll.hardware.accelerator import Accelerator, Hbm
from atoll.hardware.product_space import ProductSpace
from atoll.hardware.space import DesignSpace
from atoll.questions import SearchQuestion
from atoll.serve.whatif import (
    CAPACITIES_GIB,
    GIB,
    Change,
    NoEstimate,
    StepFigures,
    cache_put,
    doublings,
    job_sliders,
    link_slider,
    slider,
)
from atoll.step.orders import SPLIT
from atoll.step.parts import in_words
from atoll.store import Identity, StoredDesign, StoredPlan, fingerprint
from atoll.store.schema import CODE
from atoll.workload import widths

CACHE_SIZE = 64
"""Cached models and schedules; the oldest are evicted."""
TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model of a stored job."""

    name: str
    config: str
    """Fingerprint of its configuration."""


@dataclass(frozen=True, slots=True)
class SearchFacts:
    """Fields of a stored search that the explorer reads."""

    devices: int
    models: tuple[ModelFacts, ...]
    space_content: Identity


@dataclass(frozen=True, eq=False)
class PassTimes:
    """Forward and backward time per kind of layer."""

    priced: PricedChips
    pass_s: NDArray[np.float64]
    source_words: str
    """How the times were obtained."""
    refinable: bool
    """Whether the effort of the search could find faster schedules."""


class ChipWhatIf:
    """Estimates designs of one run under changed conditions."""

    def __init__(self, identity: Identity, where: str = "job") -> None:
        self._identity = identity
        self.facts = checked(identity, SearchFacts, where)
        self._lock = threading.Lock()
        self._opened: tuple[SearchQuestion, DesignSpace | ProductSpace, SearchSetting] | None = None
        self._variants: dict[tuple[Any, ...], Variants] = {}
        self._times: dict[tuple[Any, ...], PassTimes] = {}

    def options(self, design: StoredDesign, model: int) -> ScriptData:
        """Return the sliders of a design, and a note."""
        with self._lock:
            job, _, setting = self._open()
            plan = _plan(design, model)
            workload = make_workload(job.models[model].name, 1)
            batch = job.models[model].batch or job.batch
            tp_values = widths(workload.config, (1, 2, 4, 8, 16, 32))
            microbatches = [2**power for power in range(8) if batch % 2**power == 0]
            capacity_GiB = design["hbm_capacity_bytes"] / GIB
            sliders = [
                slider("devices", "Devices", "", doublings(job.devices, 1), job.devices),
                link_slider(setting.network),
                slider("hbm_GiB", "HBM capacity", "GiB", CAPACITIES_GIB, capacity_GiB),
                slider("microbatch", "Microbatch", "", microbatches, plan["microbatch"]),
                slider("tensor", "Tensor parallel (tp)", "", tp_values, plan["tensor"]),
            ]
            if setting.profile.hbm_bandwidth_Bps is None:
                rate = design["hbm_bandwidth_Bps"] / 1e9
                rates = doublings(rate)[1:-1]
                sliders.insert(3, slider("hbm_GBps", "HBM bandwidth", "GB/s", rates, rate))
            sequence = job.models[model].sequence or workload.sequence
            sliders += job_sliders(sequence, batch)
            return {"sliders": sliders, "note": self._note(), "global_batch": batch}

    def estimate(
        self, design: StoredDesign, model: int, change: Change, refine: bool = False
    ) -> StepFigures | NoEstimate:
        """Estimate the step under the change, or return the reason why there is none.

        `refine` solves schedules with the effort of the search.
        """
        with self._lock:
            return self._estimate(design, model, change, refine)

    # --- The run ----------------------------------------------------------------------------------

    def _open(self) -> tuple[SearchQuestion, DesignSpace | ProductSpace, SearchSetting]:
        if self._opened is None:
            job = stored_question(self._identity)
            space = open_space(job)[0]
            content = space_identity(space) if isinstance(space, DesignSpace) else space.identity()
            if fingerprint(content) != fingerprint(self.facts.space_content):
                raise AtollError(
                    f"space: {job.space} is not what it was when the run was searched."
                )
            setting, variants = prepare_search(job.changed(microbatch=1))
            for workload, facts in zip(variants.workloads, self.facts.models, strict=True):
                if fingerprint({"config": repr(workload.config)}) != facts.config:
                    raise AtollError(
                        f"model {facts.name}: its configuration is not what it was when the "
                        "run was searched."
                    )
            self._opened = job, space, setting
        return self._opened

    def _note(self) -> str:
        installed = this_code()
        if all(self._identity.get(name) == value for name, value in installed.items()):
            return ""
        searched = code_words(self._identity)
        return f"Searched with {searched}, estimated again with {code_words(installed)}."

    def _variant(self, model: int, change: Change, plan: StoredPlan) -> Variants:
        """Return the variant with the plan's cp, ep, etp and sp; split backward if needed."""
        microbatch, tensor = change.microbatch or 1, change.tensor or 1
        spread = plan["cp"], plan["ep"], plan["etp"], plan["sp"]
        key = model, microbatch, tensor, change.batch, change.sequence, *spread
        if key not in self._variants:
            job, _, setting = self._open()
            model_question = job.models[model]
            batch = change.batch or model_question.batch or job.batch
            length = change.sequence or model_question.sequence
            workload = make_workload(model_question.name, batch, length, job.precision)
            variants = make_variants(
                [workload], [microbatch], [tensor], 2**30, job.recompute, setting.profile,
                spreads=Spreads(
                    cp=(plan["cp"],),
                    ep=(plan["ep"],),
                    etp=() if plan["etp"] == plan["tensor"] else (plan["etp"],),
                    sp=(plan["sp"],) if plan["tensor"] > 1 else (),
                    apart=any(order in SPLIT for order in setting.orders),
                ),
            )  # fmt: skip
            cache_put(self._variants, key, variants, CACHE_SIZE)
        return self._variants[key]

    # --- The estimate -----------------------------------------------------------------------------

    def _estimate(
        self, design: StoredDesign, model: int, change: Change, refine: bool
    ) -> StepFigures | NoEstimate:
        job, _, base = self._open()
        plan = _plan(design, model)
        microbatch = change.microbatch or plan["microbatch"]
        tensor = change.tensor or plan["tensor"]
        devices = change.devices or base.devices
        setting = replace(base, network=base.network.faster(change.link or 1.0), devices=devices)
        if tensor * plan["cp"] > devices:
            problem = f"A tensor width of {tensor} needs more than {devices} devices."
            return NoEstimate(problem=problem)
        stored = float(design["hbm_capacity_bytes"])
        capacity = change.hbm_GiB * GIB if change.hbm_GiB else stored
        changed = change.model_copy(update={"microbatch": microbatch, "tensor": tensor})
        try:
            times = self._pass_times(design, model, plan, changed, setting, refine)
        except AtollError as error:  # a sequence that the model has not
            return NoEstimate(problem=f"{str(error).rstrip('.')}.")
        # Prices do not depend on the number of devices; the placement does.
        priced = replace(times.priced, setting=setting)
        peak_flops = float(priced.chips.peak_flops[0])
        placed_model = model_plan(priced, times.pass_s, capacity, peak_flops)
        if placed_model is None:
            return NoEstimate(
                problem=f"{job.models[model].name} does not fit {devices} devices with "
                f"{capacity / GIB:g} GiB each at tensor width {tensor} and microbatch {microbatch}."
            )
        placement = placed_model.placement
        worst = max(placement.stages, key=lambda stage: stage.total_memory_bytes)
        return build_from(
            StepFigures,
            placement,
            samples_per_s=placed_model.samples_per_s,
            tokens_per_s_per_device=placed_model.tokens_per_s_per_device,
            mfu=placed_model.mfu,
            parts_s=in_words(placement.time_parts_s),
            memory_bytes=worst.memory_parts_bytes,
            memory_capacity_bytes=capacity,
            power_W=placed_model.power_W,
            energy_per_token_J=placed_model.energy_per_token_J,
            schedules=times.source_words,
            refinable=times.refinable,
        )

    def _pass_times(
        self,
        design: StoredDesign,
        model: int,
        plan: StoredPlan,
        change: Change,
        setting: SearchSetting,
        refine: bool,
    ) -> PassTimes:
        rate = change.hbm_GBps * 1e9 if change.hbm_GBps else float(design["hbm_bandwidth_Bps"])
        link = change.link or 1.0
        job = change.batch, change.sequence, change.compute
        key = design["chip"], model, change.microbatch, change.tensor, rate, link, job
        cached = self._times.get(key)
        if cached is None or (refine and cached.refinable):
            variants = self._variant(model, change, plan)
            accelerator = self._accelerator(design, rate, change.compute or 1.0)
            chips = chips_of_accelerator(accelerator, setting.profile, design["area_mm2"])
            priced = cached.priced if cached else PricedChips.of(chips, variants, setting)
            searched = plan["microbatch"], plan["tensor"], design["hbm_bandwidth_Bps"], 1.0
            if key[2:] == (*searched, (None, None, None)):
                pass_times = PassTimes(priced, np.array(plan["pass_s"]), "as searched", False)
            elif refine:
                pass_times = _solved_times(priced)
            else:
                pass_times = _quick_times(priced, refinable=plan["effort"] != "quick")
            cache_put(self._times, key, pass_times, CACHE_SIZE)
        return self._times[key]

    def _accelerator(self, design: StoredDesign, hbm_Bps: float, compute: float) -> Accelerator:
        """Return the chip with its clock scaled by `compute`."""
        _, space, _ = self._open()
        number = int(design["design"])
        hbm = Hbm(int(design["hbm_capacity_bytes"]), hbm_Bps)
        if isinstance(space, DesignSpace):
            chip = space.accelerator(number, hbm)
        else:
            chip = space.design(number, design["clock_Hz"]).accelerator(0, hbm)
        return replace(chip, clock_Hz=chip.clock_Hz * compute)


def stored_question(identity: Identity) -> SearchQuestion:
    """Return the question of a stored search, without fields that evaluations do not depend on."""
    not_asked = ("models", "parameters", "plug_ins", "space_content", "network_content", *CODE)
    fields = {name: value for name, value in identity.items() if name not in not_asked}
    stored = identity["models"]
    entries = [m for m in stored if isinstance(m, dict)] if isinstance(stored, list) else []
    models: list[JsonValue] = [{n: v for n, v in m.items() if n != "config"} for m in entries]
    return SearchQuestion.from_dict(fields | {"models": models})


def _plan(design: StoredDesign, model: int) -> StoredPlan:
    for plan in design.get("plans", ()):
        if plan["number"] == model:
            return plan
    raise AtollError(f"design {design['chip']}: no plan of model {model} on record.")


def _quick_times(priced: PricedChips, refinable: bool) -> PassTimes:
    """Return the times of quickly found schedules."""
    zero = np.zeros(1, np.int64)
    lower, upper = (bound[0] for bound in priced.schedule_bounds(zero, zero))
    return PassTimes(priced, upper, f"found quickly{_gap(lower, upper)}", refinable)


def _solved_times(priced: PricedChips) -> PassTimes:
    """Return times of schedules solved with the effort that a search spends on its best designs."""
    variant = priced.variants.variants[0]
    solved = priced.schedules(0, variant, "bounded", TOLERANCE)
    lower, upper = priced.pass_bounds(0, variant, solved)
    return PassTimes(priced, upper, f"solved again{_gap(lower, upper)}", False)


def _gap(lower: NDArray[np.float64], upper: NDArray[np.float64]) -> str:
    share = 1.0 - float(lower.sum() / upper.sum()) if upper.sum() > 0 else 0.0
    return f" (at most {max(0.0, share):.1%} too slow)"
