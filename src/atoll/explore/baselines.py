"""Designs to compare with, evaluated by the same code as everything else.

tpuv4-expert   the TPU v4-like chip with the placement that experts use
tpuv4-placed   the same chip with our placement
spotlight      a Bayesian search of the chip for one device alone, then our placement
random         the best of randomly drawn chips, with our placement
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from atoll.base.stopping import Stop, StoppedError, check_stop
from atoll.cost.chips import chips_of_space, memories
from atoll.executors import Crew, Executor, TaskCall
from atoll.explore.answer.result import Design
from atoll.explore.answer.scope import SearchScope
from atoll.explore.pricing.evaluate import PricedChips
from atoll.explore.pricing.layouts import SearchSetting
from atoll.explore.pricing.workloads import Variants
from atoll.explore.proof.branch_and_bound import Search
from atoll.explore.proof.exact import exact_search
from atoll.explore.proof.journal import EvaluatedPlan, Journal
from atoll.explore.proof.objective import Objective
from atoll.explore.spotlight import spotlight_chip
from atoll.hardware.accelerator import Accelerator, Hbm
from atoll.hardware.catalog import load_accelerator_file
from atoll.hardware.product_space import ProductSpace
from atoll.hardware.silicon.chip import (
    accelerator_area_mm2,
    chip_columns,
    chip_template,
    peak_power_W,
)
from atoll.hardware.space import DesignSpace

REFERENCE = ("tpuv4-expert", "tpuv4-placed")
SAMPLED = ("spotlight", "random")
NAMES = REFERENCE + SAMPLED
RANDOM_CHIPS = 64
SAMPLE = 20_000
"""Designs that the sampling baselines draw from, for a space outside memory."""
_FINE = 1e-4  # tolerance where single chips are compared
_SAME = 1e-9  # relative rounding error

# (pp, tp) of PHAZE's expert baselines on 1024 devices (ICML 2024 release).
EXPERT = {
    "opt-350m": (12, 1),
    "bert-large": (8, 1),
    "gpt2-xl": (32, 1),
    "megatron-bert": (8, 1),
    "megatron-gpt2-2.5b": (8, 4),
    "megatron-gpt2-8.3b": (8, 8),
    "gpt3-175b": (32, 4),
    "llama2-7b": (8, 1),
}


def single_chip_space(chip: Accelerator, options: tuple[Hbm, ...]) -> DesignSpace:
    """Return the space of a single chip with these HBM options."""
    return DesignSpace(
        name=chip.name or "chip",
        columns=chip_columns(chip),
        area_mm2=np.array([accelerator_area_mm2(chip) - chip.hbm.area_mm2]),
        hbm_options=options,
        hbm_allowed=np.ones((1, len(options)), np.bool_),
        template=chip_template(chip),
    )


def chip_score(
    chip: Accelerator,
    setting: SearchSetting,
    variants: Variants,
    objective: Objective,
    stop: Stop | None = None,
) -> float | None:
    """Return the score of the best placements on one chip, None where nothing fits."""
    space = single_chip_space(chip, (chip.hbm,))
    outcome = exact_search(Search(space, variants, setting, objective, _FINE, stop=stop))
    return None if outcome.best is None else outcome.score


def reference_space(space: DesignSpace | ProductSpace) -> DesignSpace:
    """Return the TPU v4-like chip of the space's template: unchanged where its area and power are
    published; otherwise with the HBM options of the space, and its silicon where the template has
    no numbers of its own.
    """
    file = load_accelerator_file(space.template.reference)
    chip = file.accelerator()
    if file.published is not None:
        return single_chip_space(chip, (chip.hbm,))
    return single_chip_space(
        chip if space.template.extra_parameters else replace(chip, template=space.template),
        space.hbm_options,
    )


BaselineArguments = tuple[DesignSpace | ProductSpace, Variants, SearchSetting, Objective, int, Stop]
"""The arguments of `run_baselines`."""


@dataclass(frozen=True, eq=False)
class BaselineDesign:
    """A design to compare with."""

    score: float | None
    """None where a model does not fit."""
    area_mm2: float
    peak_power_W: float
    chip: int | None = None
    """Its number in the searched space; None where the space does not contain it."""
    plans: Mapping[int, EvaluatedPlan] = field(default_factory=dict, repr=False)
    """The plans behind the score, by model."""
    published: bool = False
    """Whether area and power are the manufacturer's."""

    def to_note(self) -> dict[str, float | None]:
        """Return the fields stored with a search; plans are stored as evaluations."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "plans"}


def baseline_names(variants: Variants) -> tuple[str, ...]:
    """Return the baselines of a job; TPU v4 has no products narrower than 16 bits."""
    narrow = any(workload.precision != "bf16" for workload in variants.workloads)
    return SAMPLED if narrow else NAMES


def run_baselines(
    space: DesignSpace | ProductSpace,
    variants: Variants,
    setting: SearchSetting,
    objective: Objective,
    seed: int,
    stop: Stop,
) -> Mapping[str, BaselineDesign]:
    """Return the baselines by name, without those that `stop` left no time to finish."""
    reference = reference_space(space)
    drawn_from = space if isinstance(space, DesignSpace) else space.sample(SAMPLE, seed)

    def best_of(candidates: DesignSpace) -> BaselineDesign:
        search = Search(candidates, variants, setting, objective, tolerance=1e-3, stop=stop)
        outcome = exact_search(search)
        if outcome.stopped:
            raise StoppedError
        if outcome.best is None:
            return _unplaced(candidates, 0, candidates.hbm_options)
        chips = outcome.frontier.chips
        design, memory = (int(column[outcome.best]) for column in (chips.design, chips.memory))
        options = search.memories[memory]
        number = design_number(space, candidates.accelerator(design))
        return replace(
            _unplaced(candidates, design, options),
            score=outcome.score,
            chip=None if number is None else number * len(search.memories) + memory,
            plans=outcome.frontier.plans[outcome.best],
        )

    drawn = np.random.default_rng(seed).choice(
        len(drawn_from), size=min(RANDOM_CHIPS, len(drawn_from)), replace=False
    )
    baselines: dict[str, BaselineDesign] = {}
    try:
        if set(REFERENCE) <= set(baseline_names(variants)):
            placed = _as_published(best_of(reference), space.template.reference)
            expert = _expert(reference, variants, setting, objective, stop)
            expert_placed = replace(placed, score=expert, plans={})
            baselines |= zip(REFERENCE, (expert_placed, placed), strict=True)
        spotlight = spotlight_chip(drawn_from, variants, setting, seed, stop)
        baselines["spotlight"] = best_of(drawn_from.subset([spotlight]))
        baselines["random"] = best_of(drawn_from.subset(np.sort(drawn)))
    except StoppedError:
        pass  # return the baselines that are finished
    return baselines


class BaselineRun:
    """The baselines of a search, which an executor with another process runs concurrently."""

    def __init__(self, arguments: BaselineArguments, executor: Executor, journal: Journal) -> None:
        """Start `run_baselines`, unless its results are on record in `journal`."""
        _, self._variants, *_, seed, self._stop = arguments
        self._journal, self._name = journal, f"baseline designs {seed}"
        self._crew, self._call = Crew(executor, self._stop), TaskCall(_baselines, ())
        self._note = journal.note(self._name)
        if self._note is None:
            executor.start(arguments)
            self._crew.send(self._call)

    def result(self) -> dict[str, BaselineDesign]:
        """Return the baselines on record, or finish and record them."""
        if self._note is not None:
            return {key: BaselineDesign(**fields) for key, fields in self._note.items()}
        baselines: dict[str, BaselineDesign] = {}
        if not self._stop():
            baselines = self._crew.result(self._call) or {}
        if len(baselines) == len(baseline_names(self._variants)):  # else the next run makes them
            stored = {key: baseline.to_note() for key, baseline in baselines.items()}
            self._journal.put_note(self._name, stored)
        return baselines


def _baselines(arguments: BaselineArguments) -> dict[str, BaselineDesign]:
    return dict(run_baselines(*arguments))


def _as_published(reference: BaselineDesign, name: str) -> BaselineDesign:
    """Return the reference chip with its published area and power, if any."""
    file = load_accelerator_file(name)
    area_mm2, power_W = file.area_and_power()
    if file.published is None:
        return reference
    return replace(reference, area_mm2=area_mm2, peak_power_W=power_W, chip=None, published=True)


def _unplaced(candidates: DesignSpace, design: int, options: Sequence[Hbm]) -> BaselineDesign:
    """Return a design without plans, with its least area and power over the HBM options."""
    chips = [candidates.accelerator(design, hbm) for hbm in options]
    least = min(chips, key=lambda chip: (accelerator_area_mm2(chip), peak_power_W(chip)))
    return BaselineDesign(None, accelerator_area_mm2(least), peak_power_W(least))


def design_number(space: DesignSpace | ProductSpace, chip: Accelerator) -> int | None:
    """Return the design number of a chip in a space, ignoring its HBM; None if absent."""
    template, columns = chip_template(chip), chip_columns(chip)
    if template is not space.template:
        return None
    if isinstance(space, DesignSpace):
        same = np.isclose(space.glb_bandwidth_Bpc, chip.glb_bandwidth_Bpc)
        for parameter in template.parameters:
            same &= space.columns[parameter.name] == columns[parameter.name]
        matches = np.flatnonzero(same)
        return int(matches[0]) if len(matches) else None
    place = space.place({name: columns[name].item() for name in space.axes.names})
    if place is None:
        return None
    return None if design_number(space.designs(np.array([place]))[0], chip) is None else place


def _expert(
    reference: DesignSpace,
    variants: Variants,
    setting: SearchSetting,
    objective: Objective,
    stop: Stop,
) -> float | None:
    """Score the expert's layouts on the reference chip with its first memory."""
    chips = chips_of_space(reference, setting.profile, objective.by_memory)
    memory_options = memories(reference.hbm_options, setting.profile, objective.by_memory)
    price = objective.prices(reference, chips, memory_options)[0]
    priced = PricedChips.of(chips, variants, setting)
    times = []
    for index, workload in enumerate(variants.workloads):
        check_stop(stop)
        step = _expert_step(priced, variants.of(index), EXPERT.get(workload.name))
        if step is None:
            return None
        times.append(step)
    return float(objective.scores(np.array([times]))[0] / price)


def _expert_step(
    priced: PricedChips, numbers: Sequence[int], expert_layout: tuple[int, int] | None
) -> float | None:
    """Return the fastest step over microbatches for the expert's (pp, tp).

    Models without a published layout follow Narayanan et al. (SC 2021): the smallest tp inside a
    node, then the smallest pp, that fits.
    """
    variants = priced.variants.variants
    numbers = [v for v in numbers if variants[v].plain]
    choices = [] if expert_layout is None else [expert_layout]
    if expert_layout is None:
        depth = int(np.count_nonzero(variants[numbers[0]].facts.block >= 0))
        widths = sorted({variants[v].tp for v in numbers})
        choices = [(pp, tp) for tp in widths for pp in range(1, depth + 1) if depth % pp == 0]
    for pp, tp in choices:
        steps = [_even_step(priced, v, pp) for v in numbers if variants[v].tp == tp]
        fitting_s = [step for step in steps if step is not None]
        if fitting_s:
            return min(fitting_s)
    return None


def _even_step(priced: PricedChips, number: int, stages: int) -> float | None:
    """Return the step time with the blocks spread evenly over `stages`, None if it does not fit."""
    variant = priced.variants.variants[number]
    _, upper = priced.schedule_bounds(np.zeros(1, np.int64), np.array([number]))
    problem, times = priced.placement_problem(0, variant), priced.times(0, variant, upper[0])
    even = problem.fastest(times, even_stages=stages)
    return None if even is None else even.step_time_s


def remarks(
    scope: SearchScope, baselines: Mapping[str, BaselineDesign], score: float, best: Design, *,
    proven: bool,
) -> dict[str, str]:  # fmt: skip
    """Explain, by baseline, why it is not the answer where its score does not."""
    area_mm2, power_W = scope.max_area_mm2, scope.max_power_W
    remark_by_baseline = {}
    for name, baseline in baselines.items():
        if baseline.score is None:
            continue
        reasons, peak_W = [], baseline.peak_power_W
        if area_mm2 is not None and baseline.area_mm2 > area_mm2 * (1 + _SAME):
            reasons.append(f"{baseline.area_mm2:.1f} mm2: over the limit of {area_mm2:g} mm2")
        if power_W is not None and peak_W > power_W * (1 + _SAME):
            reasons.append(f"{peak_W:.0f} W at peak: over the limit of {power_W:g} W")
        if not reasons and baseline.published:
            reasons.append(f"{baseline.area_mm2:g} mm2, {peak_W:g} W published")
        if not reasons and baseline.chip is None:
            reasons.append("not a chip of this space")
        faster = baseline.score / score - 1.0
        if not reasons and proven and faster > _SAME:
            reasons.append(
                f"{faster:.2%} faster, within the tolerance, at {peak_W:.0f} W "
                f"instead of {best.peak_power_W:.0f} W"
            )
        if reasons:
            remark_by_baseline[name] = "; ".join(reasons)
    return remark_by_baseline
