"""Designs in full, from the indices of a search: chip, placement, energy, layers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from atoll.answers.design import LayerPass, Record
from atoll.arrays import FloatArray
from atoll.explore.answer.explain import layer_report
from atoll.explore.answer.plateau import ChipSize
from atoll.explore.answer.result import Design, ModelPlan
from atoll.explore.pricing.energy import energy_per_token_J, step_energy
from atoll.explore.pricing.evaluate import Priced
from atoll.explore.proof.branch_and_bound import Search
from atoll.explore.proof.exact import EFFORTS
from atoll.explore.proof.journal import Found, Key
from atoll.explore.proof.tasks import Schedules
from atoll.hardware.accelerator import Hbm
from atoll.hardware.physical.price import device_usd
from atoll.hardware.silicon.chip import peak_power_W
from atoll.hardware.space import Space
from atoll.schedule.solve import Effort
from atoll.stopping import StoppedError
from atoll.workload.flops import model_flops

_SAME = 1e-9  # relative: two step times that are the same to rounding


@dataclass(frozen=True)
class Finder:
    """Turns indices of the search into designs in full."""

    search: Search

    def design(self, chip: int, with_layers: bool = False) -> Design:
        chips = self.search.frontier.chips
        found = self.search.frontier.found[chip]
        alone = chips.subset(np.array([chip]))
        priced = {
            model: Priced.of(alone, self.search.variants.part([plan.variant]), self.search.setting)
            for model, plan in found.items()
        }
        space, design = self._place_of(int(chips.design[chip]))
        hbm = self._smallest_hbm(priced, space, design, int(chips.memory[chip]), found)
        accelerator = replace(space.accelerator(design, hbm), name="")
        plans = []
        for model, own in sorted(found.items()):
            plan = model_plan(
                priced[model], own.pass_s, float(hbm.capacity_bytes), accelerator.peak_flops
            )
            assert plan is not None
            if with_layers:
                plan = replace(plan, layers=self._layers(priced[model], chip, own))
            plans.append(plan)
        return Design(
            accelerator=accelerator,
            area_mm2=float(space.area_with(hbm)[design]),
            peak_power_W=peak_power_W(accelerator),
            plans=tuple(plans),
        )

    def _layers(self, priced: Priced, chip: int, plan: Found) -> tuple[LayerPass, ...]:
        """The schedules behind a plan, with the bounds of all efforts that the proof took on them.
        Solved again where they are not at hand; nothing where the search has to end before that.
        """
        search, variant = self.search, priced.variants.variants[0]
        own = np.inf if plan.limit_s is None else plan.limit_s
        tries: list[tuple[Effort, float]] = [(plan.effort, own)]
        keys = {e: Key("tighten", int(search.frontier.ids[chip]), plan.variant, e) for e in EFFORTS}
        tries += [(e, np.inf) for e in EFFORTS if keys[e] in search.solved and e != plan.effort]
        found: list[Schedules] = []
        for effort, limit_s in tries:
            known, solved_s = None, 0.0
            if effort != "quick":
                known, solved_s = search.schedules.get(keys[effort], (None, 0.0))
            try:
                if known is None or solved_s != limit_s:
                    known = priced.schedules(
                        0, variant, effort, search.tolerance / 4.0, limit_s, search.stop
                    )
            except StoppedError:
                return ()
            found.append(known)
        return layer_report(priced, 0, variant, _tightest(found))

    def size(self, chip: int) -> ChipSize:
        """Return area, peak power and cost of a chip with the smallest HBM of its bandwidth."""
        chips = self.search.frontier.chips
        space, design = self._place_of(int(chips.design[chip]))
        hbm = self._hbm_options(space, design, int(chips.memory[chip]))[0]
        area_mm2 = float(space.area_with(hbm)[design])
        process_nm = space.values(design).get("process_nm", space.template.process_nm)
        usd = 0.0 if process_nm is None else device_usd(area_mm2, process_nm, hbm.capacity_bytes)
        power_W = peak_power_W(space.accelerator(design, hbm))
        return ChipSize(*(round(float(value), 6) for value in (area_mm2, power_W, usd)))

    def _place_of(self, design: int) -> tuple[Space, int]:
        """A space in memory that holds the design, and its index there."""
        if isinstance(self.search.space, Space):
            return self.search.space, design
        return self.search.space.designs(np.array([design]))[0], 0

    def _smallest_hbm(
        self,
        priced: dict[int, Priced],
        space: Space,
        design: int,
        memory: int,
        found: dict[int, Found],
    ) -> Hbm:
        """The least capacity that keeps every model's step time."""
        options = self._hbm_options(space, design, memory)
        for option in options[:-1]:
            if all(
                self._step(priced[model], plan, option) <= plan.step_time_s * (1 + _SAME)
                for model, plan in found.items()
            ):
                return option
        return options[-1]

    def _hbm_options(self, space: Space, design: int, memory: int) -> list[Hbm]:
        """What a design may take of one of the space's memories, the smallest first."""
        return [
            option
            for option in self.search.memories[memory]
            if space.hbm_allowed[design, space.hbm_options.index(option)]
        ]

    def _step(self, priced: Priced, plan: Found, hbm: Hbm) -> float:
        variant = priced.variants.variants[0]
        placed = priced.place(0, variant, plan.pass_s, memory_bytes=float(hbm.capacity_bytes))
        return np.inf if placed is None else placed.step_time_s

    def record(self, chip: int) -> Record:
        """One flat record of an evaluated design."""
        chips = self.search.frontier.chips
        number = int(chips.design[chip])
        space, design = self._place_of(number)
        plans = self.search.frontier.found[chip]
        row: dict[str, int | float] = {
            "design": number,
            **space.values(design),
            "hbm_capacity_bytes": int(chips.hbm_capacity_bytes[chip]),
            "hbm_bandwidth_Bps": float(chips.hbm_Bps[chip]),
            "area_mm2": float(chips.area_mm2[chip]),  # with the interfaces of this HBM
            "power_W": max(found.energy.power_W for found in plans.values()),
            "energy_per_token_J": energy_per_token_J([f.energy for f in plans.values()]),
        }
        for model, found in sorted(plans.items()):
            variant = self.search.variants.variants[found.variant]
            workload = self.search.variants.workloads[model]
            row |= {
                f"{workload.name}: samples_per_s": workload.global_batch / found.step_time_s,
                f"{workload.name}: step_time_s": found.step_time_s,
                f"{workload.name}: microbatch": variant.microbatch,
                f"{workload.name}: tensor": variant.tensor,
                f"{workload.name}: power_W": found.energy.power_W,
                f"{workload.name}: energy_per_token_J": found.energy.per_token_J,
            }
        return row


def _tightest(found: list[Schedules]) -> Schedules:
    """The first schedules, each with the highest bound that any of them has."""
    pairs = []
    for tries in zip(*found, strict=True):
        best = [max(own, key=lambda one: one.lower_bound_s) for own in zip(*tries, strict=True)]
        first, second = (
            replace(own, lower_bound_s=most.lower_bound_s, bound=most.bound)
            for own, most in zip(tries[0], best, strict=True)
        )
        pairs.append((first, second))
    return pairs


def model_plan(
    priced: Priced, pass_s: FloatArray, memory_bytes: float, peak_flops: float
) -> ModelPlan | None:
    """The first variant on devices of the first chip with so much memory, if it fits."""
    variant = priced.variants.variants[0]
    division = priced.place(0, variant, pass_s, memory_bytes=memory_bytes)
    if division is None:
        return None
    placement = priced.describe(0, variant, pass_s, division, memory_bytes)
    workload = priced.variants.workloads[variant.workload]
    energy = step_energy(priced, placement)
    samples_per_s = workload.global_batch / placement.step_time_s
    flops = samples_per_s * model_flops(workload.config, workload.sequence)
    return ModelPlan(
        model=workload.name,
        samples_per_s=samples_per_s,
        tokens_per_s_per_device=samples_per_s * workload.sequence / placement.devices,
        mfu=flops / (peak_flops * placement.devices),
        placement=placement,
        power_W=energy.power_W,
        energy_per_token_J=energy.per_token_J,
        energy_parts_J=energy.parts_J,
    )
