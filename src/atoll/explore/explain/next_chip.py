"""A searched chip as the next machine of a run that exists, and what more of each part is worth.

The run is an answer of `plan`, `estimate` or `check`: its model, batch, devices and network are the
search's, and its software's losses stay. Of a step of T seconds on devices they make

    (T + host) slack

with the host's seconds beside the device and the slack of the run, measured where it was. The same
for every chip, and growing with T: the chip that is proven best without them is the best with them.

A shadow price is what one unit more of a budget brings the run, by finite differences: the search
is solved again, with proof, a tenth below and above the budget on area or power; of rates that no
search chooses (HBM, links) the answer is evaluated with a tenth less and more. Where lists are too
coarse for a tenth more to buy a faster chip, larger budgets are tried, up to twice as much, and the
price is interpolated up to the first chip that is faster. The price holds between these two ends,
which are told with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from atoll.answers.answer import build_from, dumped, read_answer
from atoll.answers.plan import EstimateAnswer, PlanAnswer
from atoll.answers.search import NextChip, ShadowPrice
from atoll.answers.validation import CheckAnswer
from atoll.base.errors import AtollError
from atoll.base.stopping import Stop, StoppedError
from atoll.explore.answer.result import Design, SearchResult
from atoll.explore.answer.scope import LiftedLimit, listed_space, open_space, sustained_limit
from atoll.explore.baselines import chip_score
from atoll.explore.design_builder import DesignBuilder
from atoll.explore.pricing.layouts import SearchSetting
from atoll.explore.pricing.workloads import Variants
from atoll.explore.proof.branch_and_bound import Search
from atoll.explore.proof.exact import exact_search
from atoll.explore.proof.objective import Objective
from atoll.hardware.silicon.chip import accelerator_usd, chip_template
from atoll.training.planner.problem import PLAN
from atoll.workload.load import load_config

TARGET = 2.0
ENDS = (0.9, 1.1)  # shares of the current budget or rate between which prices are computed
FURTHER = (1.25, 1.5, 2.0)
"""Larger budgets to try, in order, where the upper end buys no faster chip."""
GIGA = 1e9


@dataclass(frozen=True, slots=True)
class FollowedRun:
    """A measured or estimated run with the losses of its software."""

    file: Path
    run: PlanAnswer | EstimateAnswer
    measured_s: float | None = None

    @property
    def step_s(self) -> float:
        return self.measured_s or self.run.step_time_s

    @property
    def slack(self) -> float:
        """Slack of the estimate, times measured over estimated step where measured."""
        return self.run.pipeline.slack * self.step_s / self.run.step_time_s

    @property
    def host_s(self) -> float:
        """Seconds of the host before slack, which lengthens all parts alike."""
        return self.run.breakdown_s.get("host", 0.0) / self.run.pipeline.slack

    @property
    def model(self) -> str:
        """Model name of the run, or its file where the name now means another model or none."""
        name, shape = str(self.run.question.get("model") or self.run.model), self.run.configuration
        try:
            same = not shape or dumped(load_config(name)) == shape
        except AtollError:
            same = False
        return name if same else str(self.file)

    def step_s_on(self, device_s: float) -> float:
        """Return the step time, (T + host) slack, where devices take `device_s`."""
        return (device_s + self.host_s) * self.slack


def read_followed_run(path: str | Path) -> FollowedRun:
    """Read the run that plan, estimate or check wrote to a folder or file."""
    file = Path(path) / PLAN if Path(path).is_dir() else Path(path)
    answer = read_answer(file, PlanAnswer, EstimateAnswer, CheckAnswer)
    if isinstance(answer, CheckAnswer):
        measured_s = None if answer.measured is None else answer.measured.step_time_s
        return FollowedRun(file, answer.estimate, measured_s)
    assert isinstance(answer, PlanAnswer | EstimateAnswer)
    return FollowedRun(file, answer)


def completed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Complete the fields of a search from the run that it names; explicit fields win."""
    for name, why in (("per", "prices are of throughput"), ("objective", "a run has one model")):
        if fields.get(name) is not None:
            raise AtollError(f"{name}: does not go with from_ (--from): {why}")
    followed = read_followed_run(fields["from_"])
    run = followed.run
    run_fields = {
        "model": followed.model,
        "devices": run.devices,
        "batch": run.global_batch,
        "sequence": run.sequence,
        "optimizer": run.states,
        "network": run.question.get("network", run.network),
        "precision": {"bf16": "bf16", "fp16": "bf16", "nvfp4": "nvfp4"}.get(run.precision, "fp8"),
    }
    return run_fields | {name: value for name, value in fields.items() if value is not None}


def compare_with_run(
    result: SearchResult,
    followed: FollowedRun,
    setting: SearchSetting,
    variants: Variants,
    stop: Stop,
) -> NextChip:
    """Compare the answer of a search with the run that it follows."""
    chip_s = followed.step_s_on(result.best.plans[0].placement.step_time_s)
    target_s = followed.step_s / TARGET
    prices = _ShadowPrices(result, followed, setting, variants, stop)
    return build_from(
        NextChip,
        followed,
        device=f"{followed.run.devices:,} {followed.run.device}",
        step_time_s=followed.step_s,
        measured=followed.measured_s is not None,
        chip_step_time_s=chip_s,
        target=TARGET,
        prices=tuple(_reaching(price, chip_s / target_s - 1) for price in prices.all()),
    )


def _reaching(price: ShadowPrice, lacking: float) -> ShadowPrice:
    """Add the units that bring the lacking throughput, where the price is valid that far."""
    if lacking <= 0 or not price.more or price.more < lacking:
        return price
    return replace(price, to_target=(price.high - price.at) * lacking / price.more)


class _RaisedBudget(NamedTuple):
    """The best chip under a larger budget; None where the budget cannot grow."""

    design: Design | None
    budget: float
    remark: str = ""


@dataclass(frozen=True)
class _ShadowPrices:
    result: SearchResult
    followed: FollowedRun
    setting: SearchSetting
    variants: Variants
    stop: Stop

    def all(self) -> Iterator[ShadowPrice]:
        scope, best = self.result.scope, self.result.best
        assert scope is not None
        area_mm2 = scope.max_area_mm2 or scope.area_mm2[1]
        power_W, drawn_W, what = scope.max_power_W, best.peak_power_W, "peak power of a chip"
        if scope.sustained is not None:  # a chip above it waits
            limit = scope.sustained
            power_W = drawn_W = min(limit.W, limit.W_per_mm2 * best.area_mm2)
            what = "power of a chip in passes"
        small = self._below("max_area", area_mm2, best.area_mm2)
        large = self._above("max_area", area_mm2, lambda chip: chip.area_mm2)
        yield self._budget("area of a chip", "mm2", area_mm2, small, large)
        cool = self._below("max_power", power_W or drawn_W, drawn_W)
        hot = _RaisedBudget(best, drawn_W * ENDS[1], "nothing limits it")
        if power_W is not None:
            used = (lambda chip: chip.peak_power_W) if scope.sustained is None else None
            hot = self._above("max_power", power_W, used)
        yield self._budget(what, "W", power_W or drawn_W, cool, hot)
        yield from self._dollars(best, small, large.design)
        chip, setting = best.accelerator, self.setting
        if setting.profile.hbm_bandwidth_Bps is None:
            hbm_Bps = chip.hbm.bandwidth_Bps
            memories = [replace(chip.hbm, bandwidth_Bps=hbm_Bps * end) for end in ENDS]
            changed = [(replace(chip, hbm=memory), setting) for memory in memories]
            yield self._rate("HBM bandwidth", hbm_Bps / GIGA, changed)
        reached = [0, *(level.devices for level in setting.network.levels[:-1])]
        for level, link in enumerate(setting.network.levels):
            if reached[level] >= setting.devices:
                continue
            changed = [
                (chip, replace(setting, network=setting.network.faster(end, level))) for end in ENDS
            ]
            yield self._rate(f"{link.name} bandwidth", link.bandwidth_Bps / GIGA, changed)

    def _rate(
        self, what: str, current: float, changed: list[tuple[Any, SearchSetting]]
    ) -> ShadowPrice:
        gains = (self._gain(chip_score(chip, where, self.variants, self._objective))
                 for chip, where in changed)  # fmt: skip
        return self._price(what, "GB/s", current, *gains, chosen_anew=False)

    def _budget(
        self, what: str, unit: str, budget: float, less: Design | None, raised: _RaisedBudget
    ) -> ShadowPrice:
        gains = (self._design_gain(design) for design in (less, raised.design))
        ends = budget * ENDS[0], raised.budget
        return self._price(what, unit, budget, *gains, ends=ends, remark=raised.remark)

    def _price(
        self, what: str, unit: str, budget: float, less: float | None, more: float | None,
        *, ends: tuple[float, float] | None = None, chosen_anew: bool = True, remark: str = "",
    ) -> ShadowPrice:  # fmt: skip
        low, high = ends or (budget * ENDS[0], budget * ENDS[1])
        return ShadowPrice(
            what=what,
            unit=unit,
            at=budget,
            low=low,
            high=high,
            less=less,
            more=more,
            per_unit_below=None if less is None else max(0.0, -less / (budget - low)),
            per_unit_above=None if more is None else max(0.0, more / (high - budget)),
            chosen_anew=chosen_anew,
            to_target=None,
            remark=remark,
        )

    @property
    def _objective(self) -> Objective:
        return Objective.single(self.variants.workloads[0].global_batch)

    def _below(self, limit: LiftedLimit, budget: float, used: float) -> Design | None:
        """Return the proven best chip a tenth below a budget: the answer where it fits."""
        low = budget * ENDS[0]
        return self.result.best if used <= low else self._best(limit, low)

    def _above(
        self, limit: LiftedLimit, current: float, used: Callable[[Design], float] | None
    ) -> _RaisedBudget:
        """Return the best chip a tenth above a budget, or at the first larger that buys more."""
        most = listed_space(self.result.job).reticle_mm2 if limit == "max_area" else np.inf
        if current >= most:
            return _RaisedBudget(None, current, "a reticle holds no larger die")
        searched = current
        for factor in (ENDS[1], *FURTHER):
            budget = min(current * factor, most)
            if budget <= searched:
                break
            design = self._best(limit, budget)
            if (self._design_gain(design) or 0.0) > self.result.job.tolerance:
                assert design is not None
                if factor == ENDS[1]:
                    return _RaisedBudget(design, budget)
                end = budget if used is None else max(used(design), searched)
                lacking = f"no chip of the lists is faster up to {searched:,.4g}"
                return _RaisedBudget(design, end, f"interpolated: {lacking}")
            searched = budget
        return _RaisedBudget(self.result.best, searched, "no chip of the space is faster")

    def _best(self, limit: LiftedLimit, value: float) -> Design | None:
        """Return the proven best chip under another limit, None where nothing fits."""
        job = self.result.job.changed(from_=None, **{str(limit): value})
        try:
            space, _ = open_space(job, limit)
        except AtollError:
            return None
        setting = replace(self.setting, limit=sustained_limit(job, limit))
        search = Search(
            space, self.variants, setting, self._objective, job.tolerance / 2, stop=self.stop
        )
        outcome = exact_search(search)
        if outcome.stopped:
            raise StoppedError
        return None if outcome.best is None else DesignBuilder(search).design(outcome.best)

    def _design_gain(self, design: Design | None) -> float | None:
        return self._gain(None if design is None else design.plans[0].samples_per_s)

    def _gain(self, samples_per_s: float | None) -> float | None:
        """Return the relative gain in the run's throughput under its software."""
        if not samples_per_s:
            return None
        batch = self.variants.workloads[0].global_batch
        answer_s, step_s = self.result.best.plans[0].placement.step_time_s, self.followed.step_s_on
        return step_s(answer_s) / step_s(batch / samples_per_s) - 1

    def _dollars(
        self, best: Design, small: Design | None, large: Design | None
    ) -> Iterator[ShadowPrice]:
        """Price dollars by the chips of both area budgets, where area buys throughput."""
        chosen = chip_template(best.accelerator).process_nm is None  # with the other parts
        if chosen or small is None or large is None:
            return
        designs = (small, best, large)
        low_usd, answer_usd, high_usd = (accelerator_usd(one.accelerator) or 0.0 for one in designs)
        if low_usd < answer_usd < high_usd:
            gains = map(self._design_gain, (small, large))
            ends = low_usd, high_usd
            yield self._price("price of a device", "$", answer_usd, *gains, ends=ends)
