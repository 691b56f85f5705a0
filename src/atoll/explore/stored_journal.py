"""A search's journal in the run's store: converts evaluations to rows and back."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from pydantic import JsonValue

from atoll.answers.answer import build_from
from atoll.base.arrays import Floats, Ints
from atoll.cost.chips import Chips
from atoll.cost.model import COST_MODELS
from atoll.explore.pricing.energy import StepEnergy, energy_per_token_J
from atoll.explore.pricing.workloads import Variants
from atoll.explore.proof.journal import ChipEvaluation, EvaluatedPlan, EvaluationKey, Journal
from atoll.explore.proof.objective import AIMS
from atoll.explore.strategies import STRATEGIES
from atoll.fabric.network import Network
from atoll.hardware.product_space import CLOCK, SearchedSpace
from atoll.hardware.silicon.systolic import HBM_PARAMETERS, TEMPLATES
from atoll.hardware.space import DesignSpace
from atoll.profiles import PROFILES
from atoll.questions import SearchQuestion
from atoll.schedule.solve import Effort
from atoll.store import DesignRow, EvaluationRow, Identity, RunStore, StoredPlan, fingerprint

_DOUBLES = np.dtype("<f8")


class StoredJournal(Journal):
    """Keeps a search in a `RunStore`."""

    def __init__(self, store: RunStore, variants: Variants, space: SearchedSpace) -> None:
        self.store = store
        self._variants = variants
        self._space = space

    def bounds(self, batch: int) -> Mapping[int, Floats]:
        rows = self.store.bounds(batch)
        return {chip: np.frombuffer(lower, _DOUBLES) for chip, lower in rows.items()}

    def put_bounds(self, batch: int, chips: Ints, rows: Floats, scores: Floats) -> None:
        self.store.put_bounds(
            batch,
            (
                (int(chip), float(score), row.astype(_DOUBLES).tobytes())
                for chip, row, score in zip(chips, rows, scores, strict=True)
            ),
        )

    def evaluation(self, key: EvaluationKey) -> ChipEvaluation | None:
        stored = self.store.evaluation(key.phase, key.chip, key.variant, key.effort)
        if stored is None:
            return None
        lower, plans = stored
        evaluated = {int(plan["number"]): _evaluated_plan(plan) for plan in plans}
        return ChipEvaluation(np.frombuffer(lower, _DOUBLES), evaluated)

    def put_evaluation(
        self, key: EvaluationKey, evaluation: ChipEvaluation, score: float, chips: Chips, chip: int
    ) -> None:
        plans = [self._plan(model, plan) for model, plan in sorted(evaluation.plans.items())]
        best = score if score >= 0.0 else None
        lower_s = evaluation.lower_s.astype(_DOUBLES).tobytes()
        row = build_from(EvaluationRow, key, score=best, lower_s=lower_s, plans=plans)
        if best is None:
            self.store.put_evaluation(row, None)
            return
        energies = [plan.energy for plan in evaluation.plans.values()]
        design = build_from(
            DesignRow,
            key,
            design=int(chips.design[chip]),
            figures={
                "score": score,
                "area_mm2": float(chips.area_mm2[chip]),
                "power_W": max(energy.power_W for energy in energies),
                "energy_per_token_J": energy_per_token_J(energies),
            },
            parameters={
                **self._parameters(chips, chip),
                "hbm_capacity_bytes": int(chips.hbm_capacity_bytes[chip]),
                "hbm_bandwidth_Bps": float(chips.hbm_Bps[chip]),
            },
            plan=plans[0],
            plans=plans,
        )
        self.store.put_evaluation(row, design)

    def _parameters(self, chips: Chips, chip: int) -> dict[str, float]:
        """Return a chip's parameters; a limit on power may set its clock."""
        values = self._space.values(int(chips.design[chip]))
        return {n: float(chips.clock_Hz[chip]) if n == CLOCK else v for n, v in values.items()}

    def progress(
        self, phase: str, left: int, total: int, best: int | None, score: float, bound: float
    ) -> None:
        self.store.report_progress(phase, left, total, best, score, bound)

    def note(self, name: str) -> Any:
        return self.store.note(name)

    def put_note(self, name: str, value: Any) -> None:
        self.store.put_note(name, value)

    def _plan(self, model: int, plan: EvaluatedPlan) -> StoredPlan:
        variant = self._variants.variants[plan.variant]
        workload = self._variants.workloads[model]
        energy = plan.energy
        return {
            "number": model,
            "model": workload.name,
            "samples_per_s": workload.global_batch / plan.step_time_s,
            "microbatch": variant.microbatch,
            "tensor": variant.tp,
            "cp": variant.cp,
            "ep": variant.ep,
            "etp": variant.etp,
            "sp": variant.sp,
            "step_time_s": plan.step_time_s,
            "variant": plan.variant,
            "pass_s": plan.pass_s.tolist(),
            "pipeline": plan.pp,
            "data": plan.dp,
            "energy": {
                "parts_J": dict(energy.parts_J),
                "step_time_s": energy.step_time_s,
                "devices": energy.devices,
                "tokens": energy.tokens,
            },
            "effort": plan.effort,
            "limit_s": plan.limit_s,
        }


def _evaluated_plan(plan: StoredPlan) -> EvaluatedPlan:
    return EvaluatedPlan(
        step_time_s=plan["step_time_s"],
        variant=plan["variant"],
        pass_s=np.array(plan["pass_s"]),
        pp=plan["pipeline"],
        dp=plan["data"],
        energy=StepEnergy(**plan["energy"]),
        effort=cast(Effort, plan["effort"]),
        limit_s=plan.get("limit_s"),
    )


def identity(
    job: SearchQuestion, space: SearchedSpace, network: Network, variants: Variants
) -> Identity:
    """Return what a result depends on: jobs with the same identity share their evaluations.

    Time limits, baselines, fronts and the number of workers change no evaluation.
    """
    question = job.to_dict()
    not_identifying = ("time_limit_s", "pareto", "robust", "baselines", "evaluations")
    for name in ("models", "sequence", *not_identifying):
        del question[name]
    if not STRATEGIES[job.strategy].samples:
        del question["seed"]
    content = space_identity(space) if isinstance(space, DesignSpace) else space.identity()
    template = TEMPLATES[str(content["template"])]
    brought = {
        "profile": PROFILES.origin(job.profile),
        "objective": AIMS.origin(job.objective),
        "strategy": STRATEGIES.origin(job.strategy),
        "template": TEMPLATES.origin(template.name),
        "cost_model": COST_MODELS.origin(job.cost_model) if job.cost_model else "",
    }
    models: list[JsonValue] = [
        {
            "config": fingerprint({"config": repr(workload.config)}),
            "name": workload.name,
            "sequence": workload.sequence,
            "global_batch": workload.global_batch,
            "weight": model.weight,
        }
        for workload, model in zip(variants.workloads, job.models, strict=True)
    ]
    return question | {
        "models": models,
        "parameters": [p.to_dict() for p in (*template.parameters, *HBM_PARAMETERS)],
        "plug_ins": dict[str, JsonValue]({n: origin for n, origin in brought.items() if origin}),
        "space_content": content,
        "network_content": fingerprint({"levels": repr(network.levels)}),
    }


def space_identity(space: DesignSpace) -> dict[str, JsonValue]:
    """Identify a space by its content."""
    digest = hashlib.blake2b(digest_size=16)
    for values in (*space.columns.values(), space.area_mm2):
        digest.update(np.ascontiguousarray(values).tobytes())
    digest.update(np.ascontiguousarray(space.hbm_allowed).tobytes())
    digest.update(repr(space.hbm_options).encode())
    return {"designs": len(space), "template": space.template.name, "digest": digest.hexdigest()}
