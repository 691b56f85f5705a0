"""Complete designs from the chip indices of a search: chip, placement, energy, layers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from atoll.answers.answer import build_from
from atoll.answers.design import LayerPass, Record, SearchedModel, SizedChip
from atoll.base.arrays import Floats
from atoll.base.stopping import StoppedError
from atoll.explore.answer.operator_limits import layer_report
from atoll.explore.answer.plateau import ChipSize
from atoll.explore.answer.result import Design
from atoll.explore.pricing.energy import energy_per_token_J, step_energy
from atoll.explore.pricing.evaluate import PricedChips
from atoll.explore.proof.branch_and_bound import Search
from atoll.explore.proof.exact import EFFORTS
from atoll.explore.proof.journal import EvaluatedPlan, EvaluationKey
from atoll.hardware.accelerator import Hbm
from atoll.hardware.silicon.chip import accelerator_usd, peak_power_W
from atoll.hardware.space import DesignSpace
from atoll.placement.replay import replay_difference
from atoll.schedule.problem import Schedule
from atoll.schedule.solve import Effort
from atoll.workload.flops import model_flops

_SAME = 1e-9  # relative rounding error


@dataclass(frozen=True)
class DesignBuilder:
    """Builds complete designs from chip indices of a search."""

    search: Search

    def design(self, chip: int, with_layers: bool = False) -> Design:
        chips = self.search.frontier.chips
        plans = self.search.frontier.plans[chip]
        single = chips.subset(np.array([chip]))
        variants, setting = self.search.variants, self.search.setting
        priced = {
            model: PricedChips.of(single, variants.part([plan.variant]), setting)
            for model, plan in plans.items()
        }
        space, design, options = self._space_with(chip)
        hbm = next((o for o in options[:-1] if self._keeps_times(o, priced, plans)), options[-1])
        accelerator = replace(space.accelerator(design, hbm), name="")
        memory_bytes, peak_flops = float(hbm.capacity_bytes), accelerator.peak_flops
        described = []
        for model, plan in sorted(plans.items()):
            described_plan = model_plan(priced[model], plan.pass_s, memory_bytes, peak_flops)
            assert described_plan is not None
            layers = self._layers(priced[model], chip, plan) if with_layers else ()
            described.append(replace(described_plan, layers=layers))
        area_mm2 = float(space.area_with(hbm)[design])
        return Design(accelerator, area_mm2, peak_power_W(accelerator), tuple(described))

    def chip(self, chip: int) -> SizedChip:
        return self.design(chip).chip()

    def _layers(self, priced: PricedChips, chip: int, plan: EvaluatedPlan) -> tuple[LayerPass, ...]:
        """Return a plan's schedules with the best bounds of all efforts of the proof; solved again
        if not in memory, empty where the search stops before that."""
        search, variant = self.search, priced.variants.variants[0]
        plan_limit_s = np.inf if plan.limit_s is None else plan.limit_s
        tries: list[tuple[Effort, float]] = [(plan.effort, plan_limit_s)]
        node = "tighten", int(search.frontier.ids[chip]), plan.variant
        keys = {effort: EvaluationKey(*node, effort) for effort in EFFORTS}
        tries += [(e, np.inf) for e in EFFORTS if keys[e] in search.solved and e != plan.effort]
        solved: list[list[Schedule]] = []
        for effort, limit_s in tries:
            schedules, solved_s = None, 0.0
            if effort != "quick":
                schedules, solved_s = search.schedules.get(keys[effort], (None, 0.0))
            try:
                if schedules is None or solved_s != limit_s:
                    schedules = priced.schedules(
                        0, variant, effort, search.tolerance / 4.0, limit_s, search.stop
                    )
            except StoppedError:
                return ()
            solved.append(schedules)
        return layer_report(priced, 0, variant, _tightest(solved))

    def size(self, chip: int) -> ChipSize:
        """Return area, peak power and cost of a chip with the smallest HBM of its bandwidth."""
        space, design, (hbm, *_) = self._space_with(chip)
        accelerator = space.accelerator(design, hbm)
        area_mm2, usd = float(space.area_with(hbm)[design]), accelerator_usd(accelerator)
        figures = area_mm2, peak_power_W(accelerator), usd
        return ChipSize(*(round(value or 0.0, 6) for value in figures))

    def _space_with(self, chip: int) -> tuple[DesignSpace, int, list[Hbm]]:
        """Return a space in memory that contains the chip's design, its index there, and the HBM
        options of the chip's memory that it allows, smallest first."""
        space, chips = self.search.space, self.search.frontier.chips
        design = int(chips.design[chip])
        if not isinstance(space, DesignSpace):
            space, design = space.design(design, float(chips.clock_Hz[chip])), 0
        allowed, listed = space.hbm_allowed[design], space.hbm_options
        options = self.search.memories[int(chips.memory[chip])]
        return space, design, [hbm for hbm in options if allowed[listed.index(hbm)]]

    def _keeps_times(
        self, hbm: Hbm, priced: dict[int, PricedChips], plans: dict[int, EvaluatedPlan]
    ) -> bool:
        """Return whether every model's step takes no longer with this capacity."""
        for model, plan in plans.items():
            chips, variant = priced[model], priced[model].variants.variants[0]
            placed = chips.place(0, variant, plan.pass_s, memory_bytes=float(hbm.capacity_bytes))
            if placed is None or placed.step_time_s > plan.step_time_s * (1 + _SAME):
                return False
        return True

    def record(self, chip: int) -> Record:
        """Return an evaluated design as a flat record."""
        chips = self.search.frontier.chips
        number = int(chips.design[chip])
        space, design, _ = self._space_with(chip)
        plans = self.search.frontier.plans[chip]
        row: dict[str, int | float] = {
            "design": number,
            **space.values(design),
            "hbm_capacity_bytes": int(chips.hbm_capacity_bytes[chip]),
            "hbm_bandwidth_Bps": float(chips.hbm_Bps[chip]),
            "area_mm2": float(chips.area_mm2[chip]),  # with the interfaces of this HBM
            "power_W": max(plan.energy.power_W for plan in plans.values()),
            "energy_per_token_J": energy_per_token_J([f.energy for f in plans.values()]),
        }
        for model, plan in sorted(plans.items()):
            variant = self.search.variants.variants[plan.variant]
            workload = self.search.variants.workloads[model]
            row |= {
                f"{workload.name}: samples_per_s": workload.global_batch / plan.step_time_s,
                f"{workload.name}: step_time_s": plan.step_time_s,
                f"{workload.name}: microbatch": variant.microbatch,
                f"{workload.name}: tensor": variant.tp,
                f"{workload.name}: power_W": plan.energy.power_W,
                f"{workload.name}: energy_per_token_J": plan.energy.per_token_J,
            }
        return row


def _tightest(solved: list[list[Schedule]]) -> list[Schedule]:
    """Return the first schedules with the highest bound that any effort proved for them."""
    tightest = []
    for tries in zip(*solved, strict=True):
        best = max(tries, key=lambda schedule: schedule.lower_bound_s)
        tightest.append(replace(tries[0], lower_bound_s=best.lower_bound_s, bound=best.bound))
    return tightest


def model_plan(
    priced: PricedChips, pass_s: Floats, memory_bytes: float, peak_flops: float
) -> SearchedModel | None:
    """Plan the first variant on the first chip with this memory; None if it does not fit."""
    variant = priced.variants.variants[0]
    problem = priced.placement_problem(0, variant, memory_bytes)
    times = priced.times(0, variant, pass_s)
    division = priced.setting.place(problem, times)
    if division is None:
        return None
    assert problem.layouts is not None  # they have the division
    placement = problem.layouts.describe(problem, times, division)
    workload = priced.variants.workloads[variant.workload]
    energy = step_energy(priced, placement)
    samples_per_s = workload.global_batch / placement.step_time_s
    flops = samples_per_s * model_flops(workload.config, workload.sequence)
    return build_from(
        SearchedModel,
        placement,
        energy,
        model=workload.name,
        samples_per_s=samples_per_s,
        tokens_per_s_per_device=samples_per_s * workload.sequence / placement.devices,
        mfu=flops / (peak_flops * placement.devices),
        placement=placement,
        energy_per_token_J=energy.per_token_J,
        energy_parts_J=energy.parts_J,
        replay_difference=replay_difference(placement),
        layers=(),
    )
