"""Designs to compare with, evaluated by the same code as everything else.

tpuv4-expert   the TPU v4-like chip with the placement that experts use
tpuv4-placed   the same chip with our placement
spotlight      a Bayesian search of the chip for one device alone, then our placement
random         the best of randomly drawn chips, with our placement

The Spotlight-like baseline knows nothing of the distribution: it maximises the speed of one
microbatch on one device, as single-accelerator explorers do (Spotlight, HPCA 2023: Bayesian
optimisation over hardware and mapping). A Gaussian process with a squared-exponential kernel over
the logarithms of the design's parameters, expected improvement over all designs, a fixed seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import erfc

import numpy as np

from atoll.base.arrays import Floats, Ints
from atoll.base.stopping import Stop, StopCheck, StoppedError, check_stop, never
from atoll.cost.chips import chips_of_space, memories
from atoll.executors import Crew, Executor, TaskCall
from atoll.explore.answer.result import Design
from atoll.explore.answer.scope import SearchScope
from atoll.explore.pricing.evaluate import PricedChips
from atoll.explore.pricing.layouts import SearchSetting
from atoll.explore.pricing.workloads import Variants, make_variants
from atoll.explore.proof.branch_and_bound import Search
from atoll.explore.proof.exact import exact_search
from atoll.explore.proof.journal import EvaluatedPlan, Journal
from atoll.explore.proof.objective import Objective
from atoll.hardware.accelerator import Accelerator, Hbm
from atoll.hardware.catalog import load_accelerator_file
from atoll.hardware.product_space import SearchedSpace
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
SAMPLE = 20_000  # designs that the sampling baselines draw from, for a space outside memory
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


def reference_space(space: SearchedSpace) -> DesignSpace:
    """Return the TPU v4-like chip of the space's template: unchanged where its area and power are
    published; otherwise with the HBM options of the space, and its silicon where the template has
    no numbers of its own."""
    file = load_accelerator_file(space.template.reference)
    chip = file.accelerator()
    if file.published is not None:
        return single_chip_space(chip, (chip.hbm,))
    if not space.template.extra_parameters:
        chip = replace(chip, template=space.template)
    return single_chip_space(chip, space.hbm_options)


@dataclass(frozen=True, eq=False)
class BaselineDesign:
    """A design to compare with."""

    score: float | None  # None where a model does not fit
    area_mm2: float
    peak_power_W: float
    chip: int | None = None
    """Its number in the searched space; None where the space does not contain it."""
    plans: Mapping[int, EvaluatedPlan] = field(default_factory=dict, repr=False)
    """The plans behind the score, by model."""
    published: bool = False  # whether area and power are the manufacturer's

    def to_note(self) -> dict[str, float | None]:
        """Return the fields stored with a search; plans are stored as evaluations."""
        return {name: value for name, value in vars(self).items() if name != "plans"}


def baseline_names(variants: Variants) -> tuple[str, ...]:
    """Return the baselines of a job; TPU v4 has no products narrower than 16 bits."""
    narrow = any(workload.precision != "bf16" for workload in variants.workloads)
    return SAMPLED if narrow else NAMES


@dataclass(frozen=True, eq=False)
class BaselineInputs:
    """A search, for which the baselines are made."""

    space: SearchedSpace
    variants: Variants
    setting: SearchSetting
    objective: Objective
    seed: int
    stop: Stop

    def best_of(self, candidates: DesignSpace) -> BaselineDesign:
        search = Search(
            candidates, self.variants, self.setting, self.objective, tolerance=1e-3, stop=self.stop
        )
        outcome = exact_search(search)
        if outcome.stopped:
            raise StoppedError
        if outcome.best is None:
            return _unplaced(candidates, 0, candidates.hbm_options)
        chips = outcome.frontier.chips
        design, memory = (int(column[outcome.best]) for column in (chips.design, chips.memory))
        number = design_number(self.space, candidates.accelerator(design))
        return replace(
            _unplaced(candidates, design, search.memories[memory]),
            score=outcome.score,
            chip=None if number is None else number * len(search.memories) + memory,
            plans=outcome.frontier.plans[outcome.best],
        )

    def reference(self) -> dict[str, BaselineDesign]:
        """Return the reference chip, with published area and power if any, by both placements."""
        space, name = reference_space(self.space), self.space.template.reference
        placed, file = self.best_of(space), load_accelerator_file(name)
        if file.published is not None:
            area_mm2, power_W = file.area_and_power()
            placed = replace(placed, area_mm2=area_mm2, peak_power_W=power_W)
            placed = replace(placed, chip=None, published=True)
        expert = replace(placed, score=self._expert_score(space), plans={})
        return dict(zip(REFERENCE, (expert, placed), strict=True))

    def _expert_score(self, reference: DesignSpace) -> float | None:
        """Score the expert's layouts on the reference chip with its first memory."""
        profile, by_memory = self.setting.profile, self.objective.by_memory
        chips = chips_of_space(reference, profile, by_memory)
        memory_options = memories(reference.hbm_options, profile, by_memory)
        price = self.objective.prices(reference, chips, memory_options)[0]
        priced = PricedChips.of(chips, self.variants, self.setting)
        times = []
        for index, workload in enumerate(self.variants.workloads):
            check_stop(self.stop)
            step = _expert_step(priced, self.variants.of(index), EXPERT.get(workload.name))
            if step is None:
                return None
            times.append(step)
        return float(self.objective.scores(np.array([times]))[0] / price)


def run_baselines(inputs: BaselineInputs) -> dict[str, BaselineDesign]:
    """Return the baselines by name, without those that `stop` left no time to finish."""
    space, seed = inputs.space, inputs.seed
    drawn_from = space if isinstance(space, DesignSpace) else space.sample(SAMPLE, seed)
    count = len(drawn_from)
    drawn = np.random.default_rng(seed).choice(count, min(RANDOM_CHIPS, count), replace=False)
    baselines: dict[str, BaselineDesign] = {}
    try:
        if set(REFERENCE) <= set(baseline_names(inputs.variants)):
            baselines |= inputs.reference()
        chip = spotlight_chip(drawn_from, inputs.variants, inputs.setting, seed, inputs.stop)
        baselines["spotlight"] = inputs.best_of(drawn_from.subset([chip]))
        baselines["random"] = inputs.best_of(drawn_from.subset(np.sort(drawn)))
    except StoppedError:
        pass  # return the baselines that are finished
    return baselines


class BaselineRun:
    """The baselines of a search, which an executor with another process runs concurrently."""

    def __init__(self, inputs: BaselineInputs, executor: Executor, journal: Journal) -> None:
        """Start `run_baselines`, unless its results are on record in `journal`."""
        self._inputs, self._journal = inputs, journal
        self._name = f"baseline designs {inputs.seed}"
        self._crew, self._call = Crew(executor, inputs.stop), TaskCall(run_baselines, ())
        self._note = journal.note(self._name)
        if self._note is None:
            executor.start(inputs)
            self._crew.send(self._call)

    def result(self) -> dict[str, BaselineDesign]:
        """Return the baselines on record, or finish and record them."""
        if self._note is not None:
            return {key: BaselineDesign(**fields) for key, fields in self._note.items()}
        baselines: dict[str, BaselineDesign] = {}
        if not self._inputs.stop():
            baselines = self._crew.result(self._call) or {}
        names = baseline_names(self._inputs.variants)
        if len(baselines) == len(names):  # else the next run makes them
            stored = {key: baseline.to_note() for key, baseline in baselines.items()}
            self._journal.put_note(self._name, stored)
        return baselines


def _unplaced(candidates: DesignSpace, design: int, options: Sequence[Hbm]) -> BaselineDesign:
    """Return a design without plans, with its least area and power over the HBM options."""
    chips = [candidates.accelerator(design, hbm) for hbm in options]
    least = min(chips, key=lambda chip: (accelerator_area_mm2(chip), peak_power_W(chip)))
    return BaselineDesign(None, accelerator_area_mm2(least), peak_power_W(least))


def design_number(space: SearchedSpace, chip: Accelerator) -> int | None:
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


# --- A Bayesian search of the chip for one device alone -------------------------------------------


FIRST_SAMPLES = 16
ROUNDS = 48
_NOISE = 1e-4  # of the standardised objective, for numerical stability


def spotlight_chip(
    space: DesignSpace,
    variants: Variants,
    setting: SearchSetting,
    seed: int,
    stop: StopCheck = never,
) -> int:
    """Return the index of the design with the fastest single device."""
    microbatch = min(variant.microbatch for variant in variants.variants)
    # The batch is one microbatch here, which need not divide every model's batch.
    single = make_variants(
        [replace(workload, global_batch=microbatch) for workload in variants.workloads],
        microbatches=(microbatch,),
        tps=(1,),
        devices=1,
        recompute="none",
        profile=setting.profile,
        stop=stop,
    )
    rng = np.random.default_rng(seed)
    process = GaussianProcess(_features(space), FIRST_SAMPLES + ROUNDS)
    first = rng.choice(len(space), size=min(FIRST_SAMPLES, len(space)), replace=False)
    for design, value in zip(first, _device_log_s(space, first, single, setting), strict=True):
        process.observe(int(design), value)
    for _ in range(min(ROUNDS, len(space) - len(first))):
        check_stop(stop)
        chosen = process.most_promising()
        process.observe(chosen, _device_log_s(space, np.array([chosen]), single, setting)[0])
    return process.observed[int(np.argmin(process.values))]


def _features(space: DesignSpace) -> Floats:
    columns = [space.columns[parameter.name] for parameter in space.template.parameters]
    logs = np.log2(np.column_stack(columns).astype(np.float64))
    spread = logs.std(axis=0)
    varies = spread > 0
    return np.asarray((logs[:, varies] - logs[:, varies].mean(axis=0)) / spread[varies])


def _device_log_s(
    space: DesignSpace, designs: Ints, single: Variants, setting: SearchSetting
) -> Floats:
    """Return the mean over models of the log time of one microbatch on one device."""
    chips = chips_of_space(space.subset(designs), setting.profile)
    _, first = np.unique(chips.design, return_index=True)
    priced = PricedChips.of(chips.subset(first), single, setting)
    logs = np.zeros(len(designs))
    for v, variant in enumerate(single.variants):
        _, upper = priced.schedule_bounds(np.arange(len(designs)), np.full(len(designs), v))
        step = (upper.sum(axis=2)[:, : variant.layers] * variant.facts.repeats).sum(axis=1)
        logs += np.log(step)
    return logs / len(single.variants)


class GaussianProcess:
    """A Gaussian process over fixed points that are observed one after another.

    The rows of the Cholesky factor of the observed points' covariance are carried on over all
    points, so that an observation costs one row and no system of equations.
    """

    def __init__(self, points: Floats, most: int) -> None:
        """Allocate for at most `most` observations."""
        self.observed: list[int] = []
        self.values: list[float] = []
        self._points = points
        self._squares = (points**2).sum(axis=1)
        self._rows = np.empty((most, len(points)))
        self._variance = np.ones(len(points))
        # The factor's inverse times the values, and times ones: the values' mean and scale change.
        self._whitened = np.empty((2, most))
        self._predicted = np.zeros((2, len(points)))  # `_whitened @ _rows`

    def observe(self, point: int, value: float) -> None:
        """Add the value at a point, by its number."""
        count = len(self.observed)
        rows, points = self._rows[:count], self._points
        column = rows[:, point]
        diagonal = np.sqrt(1.0 + _NOISE - column @ column)
        distance = self._squares + self._squares[point] - 2.0 * points @ points[point]
        row = (np.exp(-0.5 * distance / points.shape[1]) - column @ rows) / diagonal
        self._rows[count] = row
        self._variance -= row**2
        whitened = ([value, 1.0] - self._whitened[:, :count] @ column) / diagonal
        self._whitened[:, count] = whitened
        self._predicted += whitened[:, None] * row
        self.observed.append(point)
        self.values.append(value)

    def most_promising(self) -> int:
        """Return the point with the largest expected decrease of the value below the least one, of
        points that are not observed.

        With the standardised decrease `z` of the mean, the expected decrease is the deviation times
        `z P(z) + p(z)`, at most `max(z, 0) + p(z)`: only points above the best by that bound need
        the error function.
        """
        values = np.array(self.values)
        mean, scale = values.mean(), values.std() or 1.0
        deviation = np.sqrt(np.maximum(self._variance, 1e-12))
        better = (values.min() - mean - (self._predicted[0] - mean * self._predicted[1])) / scale
        density = deviation * np.exp(-0.5 * (better / deviation) ** 2) / np.sqrt(2 * np.pi)
        most = np.maximum(better, 0.0) + density
        most[self.observed] = -1.0

        def expected(points: Ints) -> Floats:
            z = better[points] / deviation[points]
            probability = 0.5 * np.array([erfc(x) for x in (-z / np.sqrt(2)).tolist()])
            return np.asarray(better[points] * probability + density[points])

        first = np.array([np.argmax(most)])
        hopeful = np.flatnonzero(most >= expected(first)[0])
        return int(hopeful[np.argmax(expected(hopeful))])
