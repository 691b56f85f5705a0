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

from atoll.cost.chips import chips_of_space, memories
from atoll.explore.answer.result import Design
from atoll.explore.answer.scope import Scope
from atoll.explore.pricing.evaluate import Priced
from atoll.explore.pricing.layouts import Setting
from atoll.explore.pricing.workloads import Variants
from atoll.explore.proof.branch_and_bound import Search
from atoll.explore.proof.exact import exact_search
from atoll.explore.proof.journal import Found
from atoll.explore.proof.objective import Objective
from atoll.explore.spotlight import spotlight_chip
from atoll.hardware.accelerator import Accelerator, Hbm
from atoll.hardware.catalog import load_accelerator_file
from atoll.hardware.product import ProductSpace
from atoll.hardware.silicon.chip import accelerator_area_mm2, columns_of, peak_power_W, template_of
from atoll.hardware.space import Space
from atoll.stopping import Stop, StoppedError, go_on

REFERENCE = ("tpuv4-expert", "tpuv4-placed")
OF_THE_SPACE = ("spotlight", "random")
NAMES = REFERENCE + OF_THE_SPACE
RANDOM_CHIPS = 64
_FINE = 1e-4  # tolerance, of one chip compared with its neighbours
_SAME = 1e-9  # relative: two numbers that are the same to rounding

# (pipeline, tensor) of PHAZE's expert baselines on 1024 devices (ICML 2024 release).
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


def space_of(chip: Accelerator, options: tuple[Hbm, ...]) -> Space:
    """A space of this one chip, with these HBM options."""
    return Space(
        name=chip.name or "chip",
        columns=columns_of(chip),
        area_mm2=np.array([accelerator_area_mm2(chip) - chip.hbm.area_mm2]),
        hbm_options=options,
        hbm_allowed=np.ones((1, len(options)), np.bool_),
        template=template_of(chip),
    )


def score_of(
    chip: Accelerator, setting: Setting, variants: Variants, objective: Objective
) -> float | None:
    """One chip with its own HBM, placed as well as can be."""
    space = space_of(chip, (chip.hbm,))
    outcome = exact_search(Search(space, variants, setting, objective, _FINE))
    return None if outcome.best is None else outcome.score


def reference_space(like: Space | ProductSpace) -> Space:
    """The TPU v4-like chip of a template. One whose area and power are published is as it exists;
    others have the choice of HBM of the space at hand, and its silicon where the template asks for
    no numbers of its own.
    """
    file = load_accelerator_file(like.template.reference)
    chip = file.accelerator()
    if file.published is not None:
        return space_of(chip, (chip.hbm,))
    return space_of(
        chip if like.template.own else replace(chip, template=like.template), like.hbm_options
    )


@dataclass(frozen=True, eq=False)
class Baseline:
    """A design to compare with."""

    score: float | None
    """None: the model does not fit."""
    area_mm2: float
    peak_power_W: float
    chip: int | None = None
    """Its number in the space that is searched; None: it is not a chip of it."""
    found: Mapping[int, Found] = field(default_factory=dict, repr=False)
    """By model: the plans behind the score."""
    published: bool = False
    """Area and power are its maker's."""

    def to_note(self) -> dict[str, float | None]:
        """What is kept with a search; the plans have their own place."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "found"}


def baseline_names(variants: Variants) -> tuple[str, ...]:
    """Those of a job: TPU v4 has no products narrower than 16 bits."""
    narrow = any(workload.precision != "bf16" for workload in variants.workloads)
    return OF_THE_SPACE if narrow else NAMES


def run_baselines(
    space: Space | ProductSpace,
    drawn_from: Space,
    variants: Variants,
    setting: Setting,
    objective: Objective,
    seed: int,
    stop: Stop,
) -> Mapping[str, Baseline]:
    """By name; chips of the space itself are drawn from the part of it in memory.

    Those that `stop` leaves no time to finish are left out.
    """
    reference = reference_space(space)

    def best_of(candidates: Space) -> Baseline:
        search = Search(candidates, variants, setting, objective, tolerance=1e-3, stop=stop)
        outcome = exact_search(search)
        if outcome.stopped:
            raise StoppedError
        if outcome.best is None:
            return _alone(candidates, 0, candidates.hbm_options)
        chips = outcome.frontier.chips
        design, memory = (int(a[outcome.best]) for a in (chips.design, chips.memory))
        options = search.memories[memory]
        number = design_number(space, candidates.accelerator(design))
        return replace(
            _alone(candidates, design, options),
            score=outcome.score,
            chip=None if number is None else number * len(search.memories) + memory,
            found=outcome.frontier.found[outcome.best],
        )

    drawn = np.random.default_rng(seed).choice(
        len(drawn_from), size=min(RANDOM_CHIPS, len(drawn_from)), replace=False
    )
    found: dict[str, Baseline] = {}
    try:
        if set(REFERENCE) <= set(baseline_names(variants)):
            placed = _as_published(best_of(reference), space.template.reference)
            expert = _expert(reference, variants, setting, objective, stop)
            found |= zip(REFERENCE, (replace(placed, score=expert, found={}), placed), strict=True)
        spotlight = spotlight_chip(drawn_from, variants, setting, seed, stop)
        found["spotlight"] = best_of(drawn_from.subset([spotlight]))
        found["random"] = best_of(drawn_from.subset(np.sort(drawn)))
    except StoppedError:
        pass  # what is there stands
    return found


def _as_published(reference: Baseline, name: str) -> Baseline:
    """The reference chip with its maker's figures, where it has them."""
    file = load_accelerator_file(name)
    area_mm2, power_W = file.area_and_power()
    if file.published is None:
        return reference
    return replace(reference, area_mm2=area_mm2, peak_power_W=power_W, chip=None, published=True)


def _alone(candidates: Space, design: int, options: Sequence[Hbm]) -> Baseline:
    """A design that no model is placed on, with its least area and power over the HBM options."""
    chips = [candidates.accelerator(design, hbm) for hbm in options]
    least = min(chips, key=lambda chip: (accelerator_area_mm2(chip), peak_power_W(chip)))
    return Baseline(None, accelerator_area_mm2(least), peak_power_W(least))


def design_number(space: Space | ProductSpace, chip: Accelerator) -> int | None:
    """The number of a chip in a space, whatever its HBM; None where the space has none."""
    template, own = template_of(chip), columns_of(chip)
    if template is not space.template:
        return None
    if isinstance(space, Space):
        same = np.isclose(space.glb_bandwidth_Bpc, chip.glb_bandwidth_Bpc)
        for parameter in template.parameters:
            same &= space.columns[parameter.name] == own[parameter.name]
        found = np.flatnonzero(same)
        return int(found[0]) if len(found) else None
    rule = space.glb_bandwidth.bytes_per_clock(chip.glb_bytes)
    bandwidth = float(rule if template.banked is None else template.banked.bytes_per_clock(own)[0])
    names, lists = space.axes.names, space.axes.lists()
    tied = [p for p in template.parameters if p.name not in names]
    if not np.isclose(bandwidth, chip.glb_bandwidth_Bpc) or any(
        own[p.name] != own[p.tied] for p in tied
    ):
        return None
    wanted = [own[name].item() for name in names]
    if any(value not in values for value, values in zip(wanted, lists, strict=True)):
        return None
    places = [values.index(value) for value, values in zip(wanted, lists, strict=True)]
    return int(np.ravel_multi_index(places, [len(values) for values in lists]))


def _expert(
    reference: Space, variants: Variants, setting: Setting, objective: Objective, stop: Stop
) -> float | None:
    """The expert's layout of every model on the reference chip, with the first of its memories."""
    chips = chips_of_space(reference, setting.profile, objective.by_memory)
    own = memories(reference.hbm_options, setting.profile, objective.by_memory)
    price = objective.prices(reference, chips, own)[0]
    priced = Priced.of(chips, variants, setting)
    times = []
    for index, workload in enumerate(variants.workloads):
        go_on(stop)
        step = _expert_step(priced, variants.of(index), EXPERT.get(workload.name))
        if step is None:
            return None
        times.append(step)
    return float(objective.scores(np.array([times]))[0] / price)


def _expert_step(
    priced: Priced, own: Sequence[int], wanted: tuple[int, int] | None
) -> float | None:
    """The best microbatch for the expert's pipeline and tensor width.

    Models without a published layout follow Narayanan et al. (SC 2021): the narrowest tensor width
    inside a node, then the shortest pipeline, that fits.
    """
    variants = priced.variants.variants
    own = [v for v in own if variants[v].plain]
    choices = [] if wanted is None else [wanted]
    if wanted is None:
        depth = int(np.count_nonzero(variants[own[0]].facts.block >= 0))
        widths = sorted({variants[v].tensor for v in own})
        choices = [(p, t) for t in widths for p in range(1, depth + 1) if depth % p == 0]
    for pipeline, tensor in choices:
        steps = [_even_step(priced, v, pipeline) for v in own if variants[v].tensor == tensor]
        found = [step for step in steps if step is not None]
        if found:
            return min(found)
    return None


def _even_step(priced: Priced, number: int, stages: int) -> float | None:
    """A step of the variant with its blocks spread evenly over so many stages."""
    variant = priced.variants.variants[number]
    _, upper = priced.schedule_bounds(np.zeros(1, np.int64), np.array([number]))
    problem, times = priced.placement_problem(0, variant), priced.times(0, variant, upper[0])
    even = priced.setting.profile.placer.even(problem, times, stages)
    return None if even is None else even.step_time_s


def remarks(
    scope: Scope, baselines: Mapping[str, Baseline], score: float, best: Design, *, proven: bool
) -> dict[str, str]:
    """What keeps a baseline from being the answer, where it is not its score."""
    area_mm2, power_W = scope.max_area_mm2, scope.max_power_W
    found = {}
    for name, baseline in baselines.items():
        if baseline.score is None:
            continue
        said = []
        if area_mm2 is not None and baseline.area_mm2 > area_mm2 * (1 + _SAME):
            said.append(f"{baseline.area_mm2:.1f} mm2: over the limit of {area_mm2:g} mm2")
        if power_W is not None and baseline.peak_power_W > power_W * (1 + _SAME):
            said.append(f"{baseline.peak_power_W:.0f} W at peak: over the limit of {power_W:g} W")
        if not said and baseline.published:
            said.append(f"{baseline.area_mm2:g} mm2, {baseline.peak_power_W:g} W published")
        if not said and baseline.chip is None:
            said.append("not a chip of this space")
        faster = baseline.score / score - 1.0
        if not said and proven and faster > _SAME:
            said.append(
                f"{faster:.2%} faster, within the tolerance, at {baseline.peak_power_W:.0f} W "
                f"instead of {best.peak_power_W:.0f} W"
            )
        if said:
            found[name] = "; ".join(said)
    return found
