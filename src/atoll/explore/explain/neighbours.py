"""Why not more of a part: neighbours of the answer with one part changed, evaluated in full.

Each neighbour has the next smaller or larger value of one list of the space (a quarter less or more
where the list ends), and is priced, scheduled and placed by the code of the search. The bandwidth
of HBM and links also changes by a tenth, at no area. A neighbour may break a limit of the search;
one that draws too much is evaluated again at the highest clock that keeps to the limit. Differences
are finite, not derivatives: a step may change a tiling.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from atoll.answers.design import ChipFigures
from atoll.answers.plan import Gain, Sensitivity
from atoll.base.errors import AtollError
from atoll.base.stopping import Stop, StoppedError, check_stop
from atoll.base.units import format_bandwidth, format_bytes
from atoll.explore.answer.scope import SearchScope, listed_space, open_space
from atoll.explore.baselines import chip_score
from atoll.explore.prepare import make_objective, prepare_search
from atoll.explore.pricing.layouts import SearchSetting
from atoll.explore.pricing.workloads import Variants
from atoll.explore.proof.objective import Objective
from atoll.hardware.accelerator import Accelerator, Hbm
from atoll.hardware.device import TemplateChip
from atoll.hardware.product_space import ProductSpace
from atoll.hardware.silicon.chip import accelerator_area_mm2, chip_columns, peak_power_W, rebanked
from atoll.hardware.template.parameter import Parameter
from atoll.hardware.template.template import MACHINE
from atoll.questions import SearchQuestion

LINK = "link bandwidth"
BEYOND = (0.75, 1.25)  # factors of the steps where a list ends
RATES = (0.9, 1.1)  # factors of bandwidths that no list varies
_SAME = 1e-9


def answer_chip(figures: ChipFigures, job: SearchQuestion) -> Accelerator:
    """Return the chip of an answer with the memory of its space, which has interfaces."""
    chip = figures.device()
    size, rate = chip.hbm.capacity_bytes, chip.hbm.bandwidth_Bps
    for option in listed_space(job).hbm_options:
        if option.capacity_bytes == size and abs(option.bandwidth_Bps / rate - 1.0) < _SAME:
            return replace(chip, hbm=option)
    return chip


@dataclass(frozen=True)
class Neighbours:
    """The chips next to the answer of a search."""

    chip: Accelerator
    lists: ProductSpace
    scope: SearchScope
    setting: SearchSetting
    variants: Variants
    objective: Objective
    tolerance: float
    stop: Stop

    @staticmethod
    def of(figures: ChipFigures, job: SearchQuestion, stop: Stop | None = None) -> Neighbours:
        space, scope = open_space(job)
        setting, variants = prepare_search(job)
        objective = make_objective(job, space, setting, variants)
        chip, lists = answer_chip(figures, job), listed_space(job)
        stop = stop or Stop()
        return Neighbours(chip, lists, scope, setting, variants, objective, job.tolerance, stop)

    @cached_property
    def score(self) -> float | None:
        """The score of the answer, evaluated again."""
        return chip_score(self.chip, self.setting, self.variants, self.objective)

    def steps(self) -> tuple[Sensitivity, ...]:
        """Return the next smaller and larger value of each part, and what they do; parts that are
        not evaluated when `stop` is true are left out."""
        rows: list[Sensitivity] = []
        with suppress(StoppedError):
            for row in self._parts():
                check_stop(self.stop)
                rows.append(row)
        return tuple(rows)

    def _parts(self) -> Iterator[Sensitivity]:
        yield from filter(None, map(self._listed, self.lists.axes.names))
        yield from self._memory()
        yield Sensitivity(what=LINK, less=self._links(RATES[0]), more=self._links(RATES[1]))

    def _listed(self, name: str) -> Sensitivity | None:
        """Step along one list of the space."""
        parameter = next(p for p in self.lists.template.parameters if p.name == name)
        values, current = sorted(self.lists.axes.values[name]), chip_columns(self.chip)[name].item()
        if len(values) == 1 and (parameter.optional or parameter.silicon):
            return None
        below = [value for value in values if value < current * (1.0 - _SAME)]
        above = [value for value in values if value > current * (1.0 + _SAME)]
        few, many = (_rounded(parameter, current * factor) for factor in BEYOND)
        change = partial(self._changed, parameter)
        smaller, larger = below[-1] if below else few, above[0] if above else many
        less = change(smaller) if smaller < current else Gain(change="", gain=None)
        return Sensitivity(what=parameter.label.lower(), less=less, more=change(larger))

    def _changed(self, parameter: Parameter, value: float) -> Gain:
        """Evaluate the chip with another value of a parameter and of those tied to it."""
        axes = self.lists.axes
        tied = {p.name for p in axes.template.parameters if p.tied == parameter.name}
        names = {parameter.name} | (tied - axes.values.keys())
        machine: Any = {name: value for name in names if name in MACHINE}
        if "glb_bytes" in names:
            machine["glb_bandwidth_Bpc"] = float(self.lists.glb_bandwidth.bytes_per_clock(value))
        more = tuple((p, value if p.name in names else old) for p, old in self.chip.more)
        chip = rebanked(replace(self.chip, **machine, more=more))
        listed = value in axes.values[parameter.name]
        return self._gain(f"to {parameter.shown(value)}", chip, listed=listed)

    def _memory(self) -> Iterator[Sensitivity]:
        """Step along the memories of the space, and change the bandwidth alone."""
        chip, memory = self.chip, self.chip.hbm
        ordered = sorted(set(self.lists.hbm_options), key=_memory_size)
        sides: tuple[list[Hbm], list[Hbm]] = (
            [option for option in ordered if _memory_size(option) < _memory_size(memory)][-1:],
            [option for option in ordered if _memory_size(option) > _memory_size(memory)][:1],
        )
        if any(sides):
            less, more = (
                self._gain(_memory_words(side[0]), replace(chip, hbm=side[0]), listed=True)
                if side
                else Gain(change="", gain=None)
                for side in sides
            )
            yield Sensitivity(what="HBM", less=less, more=more)
        if self.setting.profile.hbm_bandwidth_Bps is None:
            memories = [replace(memory, bandwidth_Bps=memory.bandwidth_Bps * f) for f in RATES]
            less, more = (
                self._gain(f"to {format_bandwidth(m.bandwidth_Bps)}", replace(chip, hbm=m))
                for m in memories
            )
            yield Sensitivity(what="HBM bandwidth", less=less, more=more)

    def _links(self, factor: float) -> Gain:
        faster = replace(self.setting, network=self.setting.network.faster(factor))
        return self._gain(f"{factor - 1:+.0%} on all levels", self.chip, faster)

    def _gain(
        self,
        change: str,
        chip: Accelerator,
        setting: SearchSetting | None = None,
        *,
        listed: bool = False,
    ) -> Gain:
        setting = setting or self.setting
        score = chip_score(chip, setting, self.variants, self.objective, self.stop)
        relative = self._relative(score)
        area_mm2 = accelerator_area_mm2(chip) - accelerator_area_mm2(self.chip)
        added = None if relative is None else relative * (self.score or 0.0)
        gain = Gain(
            change=change,
            gain=relative,
            area_mm2=area_mm2,
            score=score,
            per_mm2=added / area_mm2 if added is not None and abs(area_mm2) >= 1e-9 else None,
            power_W=peak_power_W(chip) - peak_power_W(self.chip),
            stopped_by=self._stopped_by(chip, relative) or ("" if listed else "not in the space"),
        )
        limit_W = self.scope.max_power_W
        if limit_W is None or not gain.stopped_by.startswith("power"):
            return gain
        try:
            capped = TemplateChip(chip).capped(limit_W).accelerator
        except AtollError:  # it draws more at rest
            return gain
        score = chip_score(capped, setting, self.variants, self.objective, self.stop)
        return replace(gain, capped_GHz=capped.clock_Hz / 1e9, capped_gain=self._relative(score))

    def _relative(self, score: float | None) -> float | None:
        return None if score is None or not self.score else score / self.score - 1.0

    def _stopped_by(self, chip: Accelerator, relative: float | None) -> str:
        """Return the limit that a chip breaks, or that it is no better than the answer."""
        area_mm2, power_W = accelerator_area_mm2(chip), peak_power_W(chip)
        most_mm2, most_W = self.scope.max_area_mm2, self.scope.max_power_W
        dense = self.scope.max_W_per_mm2
        if most_mm2 is not None and area_mm2 > most_mm2 * (1.0 + _SAME):
            name = "reticle" if most_mm2 == self.lists.reticle_mm2 else "area"
            return f"{name}: {area_mm2:,.0f} of {most_mm2:,.0f} mm2"
        if most_W is not None and power_W > most_W * (1.0 + _SAME):
            return f"power: {power_W:,.0f} of {most_W:,.0f} W"
        if dense is not None and power_W > dense * area_mm2 * (1.0 + _SAME):
            return f"cooling: {power_W / area_mm2:.2f} of {dense:g} W/mm2"
        if relative is None:
            return "memory: no layout fits"
        if relative < -self.tolerance:
            return "slower"
        return "" if relative > self.tolerance else "no faster"


def _rounded(parameter: Parameter, value: float) -> float:
    """Return a value beyond a list, whole where the list has whole numbers."""
    return max(1, round(value)) if parameter.kind in ("count", "bytes") else value


def _memory_size(memory: Hbm) -> tuple[float, int]:
    return memory.bandwidth_Bps, memory.capacity_bytes


def _memory_words(memory: Hbm) -> str:
    rate = format_bandwidth(memory.bandwidth_Bps)
    return f"to {format_bytes(memory.capacity_bytes)} at {rate}"
