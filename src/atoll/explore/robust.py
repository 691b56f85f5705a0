"""Robustness of the answer to the constants of the physical model, which have ranges.

A draw of the constants changes the area and power of a chip, but not its times, which follow from
counts, clocks and bandwidths. So it changes which chips keep to the limits, and a single search
serves all draws: its bounds prove the best of every draw over all chips of the space.

A design that turns out too hot runs at the fastest clock of the space that keeps to the limit on
power; one that turns out too large scores 0. Its loss in a draw is 1 - score / best score of the
draw; the steadiest design is that of least mean loss over all chips of the space.

Where the score is throughput per price, a draw changes the price as well, computed from area and
power: bounds are on throughput, and every draw divides them by its prices.

A limit on the power of passes makes times depend on the constants: every draw has a separate search
(`robustness_by_draw`), starting from the best of earlier draws; losses are those of the winner and
of the best of every draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, replace

import numpy as np

from atoll.answers.answer import build_from
from atoll.answers.search import ConstantShare, Robustness, SteadyChip
from atoll.base.arrays import BoolArray, FloatArray, IntArray
from atoll.base.errors import AtollError
from atoll.base.stopping import StoppedError
from atoll.cost.chips import Chips, distinct_rows
from atoll.explore.answer.scope import described_space, limits_of
from atoll.explore.pricing.price import Price
from atoll.explore.proof.branch_and_bound import Search
from atoll.explore.proof.exact import exact_search
from atoll.hardware.energy import template_energy
from atoll.hardware.physical.constants import Constant, Physics, constants
from atoll.hardware.physical.draws import at_ends, drawn
from atoll.hardware.silicon.physical import redrawn, redrawn_memories
from atoll.hardware.space import DesignLimits, DesignSpace, allowed_options
from atoll.questions import SearchQuestion

TOLERANCE = 0.005
"""Relative tolerance on the best score of a draw."""
LOSS_TOLERANCE = 0.01
"""Tolerance on the least mean loss."""
MOST_TRIED = 256
"""Most chips that are evaluated to find the steadiest; the answer states the bound."""
FIRST_ROUND, LARGEST_ROUND = 4, 256
_PROBES = 256
"""Designs on which constants are tried: those that change none are not drawn."""


def space_under(space: DesignSpace, physics: Physics) -> DesignSpace:
    """Return the same designs under other constants."""
    template = redrawn(space.template, physics)
    return replace(
        space,
        template=template,
        area_mm2=template.area_mm2(space.columns),
        hbm_options=redrawn_memories(space.hbm_options, physics),
    )


def constants_that_matter(space: DesignSpace, energies: bool = False) -> list[Constant]:
    """Return the constants that change area, power or (optionally) energies of the chips."""
    probes = space.subset(np.linspace(0, len(space) - 1, _PROBES).astype(np.int64))

    def figures(chips: DesignSpace) -> FloatArray:
        hbm = max(chips.hbm_options, key=lambda option: option.capacity_bytes)
        figure_columns = [chips.area_with(hbm), chips.peak_power_with(hbm)]
        if energies:
            figure_columns.append(np.array(astuple(template_energy(chips.template))))
        return np.concatenate(figure_columns)

    usual = figures(probes)
    return [
        constant
        for constant in constants()
        if any((figures(space_under(probes, end)) != usual).any() for end in at_ends(constant))
    ]


@dataclass(frozen=True, eq=False)
class Draws:
    """Which pairs of design and HBM option keep to the limits under sets of constants."""

    space: DesignSpace
    """Every design that keeps to the limits under at least one of the sets."""
    usual: IntArray
    """Designs that keep to the limits under the nominal constants, in order."""
    varied: list[Constant]
    draws: list[Physics]
    allowed: list[BoolArray]
    """[design, option], for every draw, then for both ends of every varied constant."""
    prices: list[FloatArray]
    """Divisors of throughput, in the same order."""

    @property
    def ends(self) -> list[Physics]:
        """Both ends of every varied constant."""
        return [end for constant in self.varied for end in at_ends(constant)]

    @staticmethod
    def of(
        space: DesignSpace,
        limits: DesignLimits,
        count: int,
        seed: int,
        price: Price | None = None,
        energies: bool = False,
    ) -> Draws:
        varied = constants_that_matter(space, energies)
        draws = drawn(varied, count, seed)
        ends = [end for constant in varied for end in at_ends(constant)]
        redrawn_spaces = [space_under(space, physics) for physics in (*draws, *ends)]
        allowed = [allowed_options(space, limits) for space in redrawn_spaces]
        usual = allowed_options(space, limits)
        pairs = np.logical_or.reduce([usual, *allowed])
        designs = pairs.any(axis=1)
        prices = [
            np.column_stack([np.ones(len(space)) if price is None else price.of_designs(space, hbm)
                             for hbm in space.hbm_options])[designs]
            for space in redrawn_spaces
        ]  # fmt: skip
        return Draws(
            replace(space, hbm_allowed=pairs).subset(designs),
            np.flatnonzero(usual[designs].any(axis=1)),
            varied,
            draws,
            [constant[designs] for constant in allowed],
            prices,
        )


@dataclass(eq=False)
class DrawComparison:
    """Compares the chips of a search under the draws."""

    search: Search
    draws: Draws
    feasible: list[BoolArray] = field(init=False)
    """Chips that keep to the limits, by set of constants."""
    prices: list[FloatArray] = field(init=False)
    """Divisors of their throughput, by set of constants."""
    throughput: FloatArray = field(init=False)
    """Throughput of evaluated chips, 0 for others."""
    open_above: FloatArray = field(init=False)
    """Throughput that a chip is proven not to exceed; 0 once evaluated."""
    feasible_draws: list[int] = field(init=False)
    """Draws in which a chip keeps to the limits, and their best scores."""
    best_scores: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        chips, space = self.search.frontier.chips, self.draws.space
        options = [space.hbm_options.index(hbm) for (hbm,) in self.search.memories]
        self.hbm_option = np.array(options)[chips.memory]
        self.feasible = [allowed[chips.design, self.hbm_option] for allowed in self.draws.allowed]
        self.prices = [price[chips.design, self.hbm_option] for price in self.draws.prices]
        self.throughput = np.zeros(len(chips))
        self.open_above = np.full(len(chips), np.inf)
        self._note(np.array(list(self.search.frontier.plans), np.int64))
        self._siblings()

    def _siblings(self) -> None:
        """Index chips that differ in their clock only: [family, clock], -1 where absent."""
        chips, space = self.search.frontier.chips, self.draws.space
        names = [p.name for p in space.template.parameters if p.name != "clock_Hz"]
        columns = [*(space.columns[name][chips.design] for name in names), self.hbm_option]
        _, self.clock_family = distinct_rows(np.column_stack(columns).astype(np.float64))
        clocks, self.clock = np.unique(chips.clock_Hz, return_inverse=True)
        self.chip_by_clock = np.full((int(self.clock_family.max()) + 1, len(clocks)), -1, np.int64)
        self.chip_by_clock[self.clock_family, self.clock] = np.arange(len(chips))

    def _note(self, chips: IntArray) -> None:
        """Copy the scores of evaluated chips from the search."""
        for chip in chips.tolist():
            self.throughput[chip] = max(0.0, self.search.evaluated_score(chip))
            self.open_above[chip] = 0.0 if self.throughput[chip] > 0.0 else self.open_above[chip]

    def evaluate(self, chips: IntArray, least: float) -> None:
        """Evaluate the chips whose bounds allow more than `least`."""
        if self.search.stop():
            raise StoppedError
        self.search.bound_near(chips, least)
        if self.search.stop():
            raise StoppedError  # not all were evaluated
        self._note(chips)
        self.open_above[chips] = np.minimum(self.open_above[chips], least)

    def best_score(self, feasible: BoolArray, price: FloatArray) -> float:
        """Return the highest score of the feasible chips at these prices, within TOLERANCE."""
        size = FIRST_ROUND
        while True:
            best = float((self.throughput / price)[feasible].max(initial=0.0))
            bar = best * (1.0 + TOLERANCE) * price
            scores = self.search.scores
            open_ = np.flatnonzero(feasible & (self.open_above > bar) & (scores > bar))
            if len(open_) == 0:
                return best
            ranked = open_[np.argsort(-(scores / price)[open_], kind="stable")][:size]
            self.evaluate(ranked, float(bar[ranked].min()))
            size = min(2 * size, LARGEST_ROUND)

    def score_bound(self, draw: int) -> float:
        """Return an upper bound on the scores in a draw."""
        scores = self.search.scores / self.prices[draw]
        return float(scores[self.feasible[draw]].max(initial=0.0))

    def scores_at_best_clock(self, draw: int, rates: FloatArray) -> FloatArray:
        """Return every chip's score in a draw, at the best feasible clock up to its nominal one."""
        runs = (self.chip_by_clock >= 0) & self.feasible[draw][self.chip_by_clock]
        values = np.where(runs, (rates / self.prices[draw])[self.chip_by_clock], 0.0)
        scores: FloatArray = np.maximum.accumulate(values, axis=1)[self.clock_family, self.clock]
        return scores

    def mean_losses(self, rates: FloatArray) -> FloatArray:
        """Return the mean loss of every chip against the best of every draw."""
        relative_scores = np.zeros(len(rates))
        for draw, best in zip(self.feasible_draws, self.best_scores, strict=True):
            relative_scores += self.scores_at_best_clock(draw, rates) / best
        return 1.0 - relative_scores / max(1, len(self.feasible_draws))

    def steadiest(self, first: int) -> tuple[int, float]:
        """Return the chip of least mean loss and a lower bound on it; `first` wins ties."""
        self.evaluate(self._slower(np.array([first])), 0.0)
        weight, ones = np.zeros(len(self.throughput)), np.ones(len(self.throughput))
        for draw, best in zip(self.feasible_draws, self.best_scores, strict=True):
            weight += self.scores_at_best_clock(draw, ones) / best / len(self.feasible_draws)
        size, before = FIRST_ROUND, int((self.open_above <= 0.0).sum())
        while True:
            losses = self.mean_losses(self.throughput)
            bar = float(losses.min()) - LOSS_TOLERANCE
            most = np.where(self.open_above <= 0.0, self.throughput, self.search.scores)
            least = self.mean_losses(most)
            open_ = np.flatnonzero(least < bar)
            if len(open_) == 0 or int((self.open_above <= 0.0).sum()) - before >= MOST_TRIED:
                steadiest = first if losses[first] <= losses.min() else int(np.argmin(losses))
                return steadiest, max(0.0, min(float(least.min()), float(losses[steadiest])))
            ranked = open_[np.argsort(least[open_], kind="stable")][:size]
            # Throughput it would need at full clock in every draw in which it is feasible.
            needed = float(((1.0 - bar) / weight[ranked]).min())
            fresh = ranked[self.open_above[ranked] > needed]
            if len(fresh):
                self.evaluate(fresh, needed)
            else:
                slower = self._slower(ranked)
                self.evaluate(slower[self.open_above[slower] > 0.0], 0.0)
            size = min(2 * size, LARGEST_ROUND)

    def _slower(self, chips: IntArray) -> IntArray:
        """Return the chips at their nominal and all lower clocks."""
        slower = np.arange(self.chip_by_clock.shape[1]) <= self.clock[chips][:, None]
        siblings = np.where(slower, self.chip_by_clock[self.clock_family[chips]], -1)
        return np.unique(siblings[siblings >= 0])

    def losses(self, chip: int) -> FloatArray:
        """Return the losses of a chip by draw."""
        by_draw = (self.scores_at_best_clock(i, self.throughput) for i in self.feasible_draws)
        return np.asarray(1.0 - np.array([scores[chip] for scores in by_draw]) / self.best_scores)


def robust_answer(job: SearchQuestion, search: Search, chosen: int) -> Robustness:
    """Return the robustness of a search's answer under the draws of its job."""
    described = described_space(job)
    limits = limits_of(job, described)
    free = replace(
        limits,
        max_area_mm2=None,
        min_area_mm2=None,
        max_power_W=None,
        max_W_per_mm2=None,
        edge=False,
    )
    unlimited = replace(described, limits=free).build()
    limits_passes = search.setting.limit is not None
    draws = Draws.of(unlimited, limits, job.robust, job.seed, search.objective.price, limits_passes)
    if limits_passes:
        chips = search.frontier.chips
        (hbm,) = search.memories[int(chips.memory[chosen])]
        option = draws.space.hbm_options.index(hbm)
        return robustness_by_draw(search, draws, (int(draws.usual[chips.design[chosen]]), option))
    objective = replace(search.objective, price=None, every_memory=True)
    wider = Search(
        draws.space, search.variants, search.setting, objective, search.tolerance,
        stop=search.stop,
    )  # fmt: skip
    position = _positions(search.frontier.chips, wider, draws.usual)
    wider.inherit(search, position)
    return robustness(wider, draws, int(position[chosen]))


def _positions(narrow: Chips, wider: Search, design: IntArray) -> IntArray:
    """Return the positions of chips in a wider search that has them with every memory."""
    chips = wider.frontier.chips
    rows = [
        np.column_stack([part.hbm_Bps, part.hbm_capacity_bytes, number])
        for part, number in ((chips, chips.design), (narrow, design[narrow.design]))
    ]
    _, number = distinct_rows(np.concatenate(rows))
    position = np.full(int(number.max()) + 1, -1, np.int64)
    position[number[: len(chips)]] = np.arange(len(chips))
    return position[number[len(chips) :]]


def robustness(search: Search, draws: Draws, winner: int) -> Robustness:
    """Compare the winner with the steadiest chip, and rank constants by their effect on the best.

    `search` is over the space of the draws, for throughput; its evaluations are reused. Draws in
    which no chip keeps to the limits are ignored.
    """
    comparison = DrawComparison(search, draws)
    best_scores = list(map(comparison.best_score, comparison.feasible, comparison.prices))
    count = len(draws.draws)
    ends = np.array(best_scores[count:]).reshape(-1, 2)
    comparison.feasible_draws = _with_a_chip(best_scores[:count])
    comparison.best_scores = np.array([best_scores[draw] for draw in comparison.feasible_draws])
    bounds = np.array([comparison.score_bound(draw) for draw in comparison.feasible_draws])
    steadiest, least = comparison.steadiest(winner)
    return build_from(
        Robustness,
        _steady_in_search(comparison, winner),
        draws=len(comparison.feasible_draws),
        without_a_chip=count - len(comparison.feasible_draws),
        designs=len(draws.space),
        proven_within=float((bounds / comparison.best_scores).max(initial=1.0) - 1.0),
        steadiest=_steady_in_search(comparison, steadiest),
        least_loss=least,
        constants=_shares(draws, ends),
    )


def _with_a_chip(best_scores: Sequence[float]) -> list[int]:
    """Return the draws in which a chip keeps to the limits."""
    feasible_draws = [draw for draw, score in enumerate(best_scores) if score > 0.0]
    if not feasible_draws:
        raise AtollError(
            f"robust: no chip keeps to the limits under any of {len(best_scores)} draws of "
            "the constants; allow more area or power, or ask without it"
        )
    return feasible_draws


def _shares(draws: Draws, ends: FloatArray) -> tuple[ConstantShare, ...]:
    """Return the share of every constant in the swing of the best, largest first."""
    low, high = ends.T
    swing = (low - high) ** 2
    shares = swing / swing.sum() if swing.any() else swing
    return tuple(
        ConstantShare(name=draws.varied[i].name, share=float(shares[i]))
        for i in np.argsort(-shares, kind="stable")
    )


# --- Limits on what passes draw -------------------------------------------------------------------

DesignHbm = tuple[int, int]
"""(design, HBM option) of the draws' space."""


def robustness_by_draw(search: Search, draws: Draws, winner: DesignHbm) -> Robustness:
    """Return the robustness where times depend on the constants: a search per draw."""
    pairs_tried = [winner]
    best_scores: list[float] = []
    bounds: list[float] = []
    for number in range(len(draws.allowed)):
        drawn_search = _search_in(search, draws, number, None)
        if drawn_search is None:
            best_scores, bounds = [*best_scores, 0.0], [*bounds, 0.0]
            continue
        pairs = _pairs(drawn_search, draws, number, None)
        tried = [index for index, pair in enumerate(pairs) if pair in pairs_tried]
        drawn_search.batch(np.array(tried, np.int64))
        if exact_search(drawn_search).stopped:
            raise StoppedError
        best_scores, bounds = [*best_scores, drawn_search.score], [*bounds, drawn_search.bound()]
        if drawn_search.best is not None and number < len(draws.draws):
            pairs_tried.append(pairs[drawn_search.best])
    count = len(draws.draws)
    feasible_draws = _with_a_chip(best_scores[:count])
    pairs_tried = list(dict.fromkeys(pairs_tried))
    tables = [_scores_in_draw(search, draws, draw, pairs_tried) for draw in feasible_draws]
    draw_scores, at_full_clock = (np.array([table[part] for table in tables]) for part in range(2))
    best = np.maximum(np.array(best_scores)[feasible_draws], draw_scores.max(axis=1, initial=0.0))
    losses = 1.0 - draw_scores / best[:, None]
    mean = losses.mean(axis=0)
    steadiest = 0 if mean[0] <= mean.min() else int(np.argmin(mean))

    def steady(number: int) -> SteadyChip:
        fits = float((at_full_clock[:, number] > 0.0).mean())
        return _steady_chip(draws, pairs_tried[number], feasible_draws, fits, losses[:, number])

    return build_from(
        Robustness,
        steady(0),
        draws=len(feasible_draws),
        without_a_chip=count - len(feasible_draws),
        designs=len(draws.space),
        proven_within=float((np.array(bounds)[feasible_draws] / best).max(initial=1.0) - 1.0),
        steadiest=steady(steadiest),
        least_loss=0.0,
        constants=_shares(draws, np.array(best_scores[count:]).reshape(-1, 2)),
    )


def _search_in(like: Search, draws: Draws, number: int, designs: IntArray | None) -> Search | None:
    """Return a search over the designs feasible under a set of constants, None if empty."""
    physics = [*draws.draws, *draws.ends][number]
    within = _within(draws, number, designs)
    if len(within) == 0:
        return None
    space = replace(space_under(draws.space, physics), hbm_allowed=draws.allowed[number])
    arguments = space.subset(within), like.variants, like.setting, like.objective, TOLERANCE
    return Search(*arguments, stop=like.stop)


def _within(draws: Draws, number: int, designs: IntArray | None) -> IntArray:
    within = np.flatnonzero(draws.allowed[number].any(axis=1))
    return within if designs is None else np.intersect1d(within, designs)


def _pairs(search: Search, draws: Draws, number: int, designs: IntArray | None) -> list[DesignHbm]:
    """Return (design, option) of every chip of such a search."""
    chips, within = search.frontier.chips, _within(draws, number, designs)
    assert isinstance(search.space, DesignSpace)
    options = [search.space.hbm_options.index(hbm) for (hbm,) in search.memories]
    design_memory = zip(chips.design.tolist(), chips.memory.tolist(), strict=True)
    return [(int(within[design]), options[memory]) for design, memory in design_memory]


def _scores_in_draw(
    search: Search, draws: Draws, draw: int, candidates: Sequence[DesignHbm]
) -> tuple[list[float], list[float]]:
    """Return the scores of chips in a draw: at their best clock up to the nominal one, and at the
    nominal clock."""
    columns = [values for name, values in draws.space.columns.items() if name != "clock_Hz"]
    _, kind = distinct_rows(np.column_stack(columns).astype(np.float64))
    clock_Hz = draws.space.clock_Hz
    slower = [
        np.flatnonzero((kind == kind[design]) & (clock_Hz <= clock_Hz[design]))
        for design, _ in candidates
    ]
    designs = np.unique(np.concatenate(slower))
    drawn = _search_in(search, draws, draw, designs)
    if drawn is None:
        return [0.0] * len(candidates), [0.0] * len(candidates)
    scores = drawn.evaluate_all(np.arange(len(drawn.frontier.chips)))
    if drawn.stop():
        raise StoppedError
    score_of = dict(zip(_pairs(drawn, draws, draw, designs), scores.tolist(), strict=True))
    best = [
        max(0.0, *(score_of.get((int(design_), option), 0.0) for design_ in designs_))
        for designs_, (_, option) in zip(slower, candidates, strict=True)
    ]
    return best, [max(0.0, score_of.get(pair, 0.0)) for pair in candidates]


def _steady_in_search(compared: DrawComparison, chip: int) -> SteadyChip:
    """Describe a chip of a search under the draws."""
    pair = int(compared.search.frontier.chips.design[chip]), int(compared.hbm_option[chip])
    fits = float(np.mean([compared.feasible[draw][chip] for draw in compared.feasible_draws]))
    return _steady_chip(compared.draws, pair, compared.feasible_draws, fits, compared.losses(chip))


def _steady_chip(
    draws: Draws, chip: DesignHbm, feasible_draws: Sequence[int], fits: float, losses: FloatArray
) -> SteadyChip:
    design, option = chip
    design_space = draws.space.subset([design])
    figures = []
    for draw in feasible_draws:
        drawn_space = space_under(design_space, draws.draws[draw])
        hbm = drawn_space.hbm_options[option]
        figures.append((drawn_space.area_with(hbm)[0], drawn_space.peak_power_with(hbm)[0]))
    area_mm2, power_W = np.quantile(np.array(figures), (0.05, 0.95), axis=0).T.tolist()
    accelerator = design_space.accelerator(0, design_space.hbm_options[option])
    return SteadyChip(
        chip=f"{accelerator.describe()} at {accelerator.clock_Hz / 1e9:g} GHz",
        fits=fits,
        loss_mean=float(losses.mean()),
        loss_p95=float(np.quantile(losses, 0.95)),
        area_mm2=tuple(area_mm2),
        peak_power_W=tuple(power_W),
    )
