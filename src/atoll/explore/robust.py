"""Robustness of the answer to the constants of the physical model, which have ranges.

A draw of the constants changes the area and power of a chip, but not its times, which follow from
counts, clocks and bandwidths. So it changes which chips keep to the limits, and a single search
serves all draws: its bounds prove the best of every draw over all chips of the space.

A design that turns out too hot runs at the fastest clock of the space that keeps to the limit on
power: of the list, or the one that the limit leaves under the nominal constants. One that turns out
too large scores 0. Its loss in a draw is 1 - score / best score of the draw; the steadiest design
is that of least mean loss over all chips of the space.

Where the score is throughput per price, a draw changes the price as well, computed from area and
power: bounds are on throughput, and every draw divides them by its prices.

A limit on the power of passes makes times depend on the constants: every draw has a separate search
(`robustness_by_draw`), starting from the best of earlier draws; losses are those of the winner and
of the best of every draw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np

from atoll.answers.answer import build_from
from atoll.answers.search import ConstantShare, Robustness, SteadyChip
from atoll.base.arrays import Bools, Floats, Ints
from atoll.base.errors import AtollError
from atoll.base.stopping import StoppedError
from atoll.cost.chips import Chips, chips_of_space, clock_ranks, distinct_rows, memories
from atoll.explore.answer.scope import described_space, limits_of, with_solved_clocks
from atoll.explore.pricing.price import Price
from atoll.explore.proof.branch_and_bound import Search
from atoll.explore.proof.exact import exact_search
from atoll.hardware.accelerator import Hbm
from atoll.hardware.energy import template_energy
from atoll.hardware.physical.constants import Constant, Physics, at_ends, constants, drawn
from atoll.hardware.silicon.physical import redrawn, redrawn_memories
from atoll.hardware.space import DesignLimits, DesignSpace, allowed_options
from atoll.questions import SearchQuestion

TOLERANCE = 0.005  # relative tolerance on the best score of a draw
LOSS_TOLERANCE = 0.01  # tolerance on the least mean loss
MOST_TRIED = 256  # most chips that are evaluated to find the steadiest; the answer states the bound
FIRST_ROUND, LARGEST_ROUND = 4, 256
Report = Callable[[str, int], None]  # takes the stage, and the chips that keep to the limits in it
_PROBES = 256  # designs on which constants are tried: those that change none are not drawn


def space_under(space: DesignSpace, physics: Physics) -> DesignSpace:
    """Return the same designs under other constants."""
    template = redrawn(space.template, physics)
    return replace(
        space,
        template=template,
        area_mm2=template.area_mm2(space.columns),
        hbm_options=redrawn_memories(space.hbm_options, physics),
    )


def constants_that_matter(
    space: DesignSpace, energies: bool = False, price: Price | None = None
) -> list[Constant]:
    """Return the constants that change area, power, prices or (if asked) energies of chips."""
    probes = space.subset(np.linspace(0, len(space) - 1, _PROBES).astype(np.int64))

    def figures(chips: DesignSpace) -> Floats:
        hbm = max(chips.hbm_options, key=lambda option: option.capacity_bytes)
        figure_columns = [chips.area_with(hbm), chips.peak_power_with(hbm)]
        if price is not None:
            figure_columns.append(price.of_designs(chips, hbm))
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

    space: DesignSpace  # every design that keeps to the limits under at least one of the sets
    usual: Ints  # designs that keep to the limits under the nominal constants, in order
    varied: list[Constant]
    draws: list[Physics]
    ends: list[Physics]  # both ends of every varied constant
    allowed: list[Bools]  # [design, option], for every draw, then for all ends
    prices: list[Floats]  # divisors of throughput, in the same order

    def stage(self, number: int) -> str:
        """Name a set of constants for the progress report."""
        if number < len(self.draws):
            return f"draw {number + 1} of {len(self.draws)}"
        return f"range of {self.varied[(number - len(self.draws)) // 2].name}"

    @staticmethod
    def of(
        space: DesignSpace,
        limits: DesignLimits,
        count: int,
        seed: int,
        price: Price | None = None,
        energies: bool = False,
    ) -> Draws:
        varied = constants_that_matter(space, energies, price)
        draws = drawn(varied, count, seed)
        ends = [end for constant in varied for end in at_ends(constant)]
        redrawn_spaces = [space_under(space, physics) for physics in (*draws, *ends)]
        allowed = [s.hbm_allowed & allowed_options(s, limits) for s in redrawn_spaces]
        usual = space.hbm_allowed & allowed_options(space, limits)
        pairs = np.logical_or.reduce([usual, *allowed])
        designs = pairs.any(axis=1)
        prices = [
            np.column_stack([np.ones(len(space)) if price is None else price.of_designs(space, hbm)
                             for hbm in space.hbm_options])[designs]
            for space in redrawn_spaces
        ]  # fmt: skip
        every, usual_designs = replace(space, hbm_allowed=pairs), usual[designs].any(axis=1)
        allowed = [options[designs] for options in allowed]
        kept, usual_places = every.subset(designs), np.flatnonzero(usual_designs)
        return Draws(kept, usual_places, varied, draws, ends, allowed, prices)


class DrawComparison:
    """Compares chips of the draws' space, each with one HBM option, under the draws."""

    def __init__(self, draws: Draws, chips: Chips, memories: Sequence[tuple[Hbm, ...]]) -> None:
        self.draws = draws
        self.chips = chips
        options = [draws.space.hbm_options.index(hbm) for (hbm,) in memories]
        self.hbm_option = np.array(options)[chips.memory]
        self.number = np.full(draws.space.hbm_allowed.shape, -1, np.int64)
        """Chip by design and HBM option, -1 where absent."""
        self.number[chips.design, self.hbm_option] = np.arange(len(chips))
        self.feasible = [allowed[chips.design, self.hbm_option] for allowed in draws.allowed]
        """Chips that keep to the limits, by set of constants."""
        self.prices = [price[chips.design, self.hbm_option] for price in draws.prices]
        """Divisors of their throughput, by set of constants."""
        # Chips that differ in their clock only: [family, rank of the clock], -1 where absent.
        self.clock_family, self.clock = clock_ranks(draws.space, chips, self.hbm_option)
        size = int(self.clock_family.max()) + 1, int(self.clock.max()) + 1
        self.chip_by_clock = np.full(size, -1, np.int64)
        self.chip_by_clock[self.clock_family, self.clock] = np.arange(len(chips))
        self.throughput = np.zeros((len(draws.draws), len(chips)))
        """Throughput of evaluated chips by draw, 0 for others."""
        self.feasible_draws: list[int] = []
        self.best_scores = np.zeros(0)

    def set_best(self, best_scores: Sequence[float]) -> None:
        """Set the best scores of the draws, without those in which no chip is within the limits."""
        self.feasible_draws = _with_a_chip(best_scores[: len(self.draws.draws)])
        self.best_scores = np.array([best_scores[draw] for draw in self.feasible_draws])

    def scores_at_best_clock(self, draw: int, rates: Floats) -> Floats:
        """Return every chip's score in a draw, at the best feasible clock up to its nominal one."""
        runs = (self.chip_by_clock >= 0) & self.feasible[draw][self.chip_by_clock]
        values = np.where(runs, (rates / self.prices[draw])[self.chip_by_clock], 0.0)
        scores: Floats = np.maximum.accumulate(values, axis=1)[self.clock_family, self.clock]
        return scores

    def losses(self, chips: Ints) -> Floats:
        """Return the losses of evaluated chips, [draw, chip]."""
        scores = [self.scores_at_best_clock(d, self.throughput[d]) for d in self.feasible_draws]
        return np.asarray(1.0 - np.array(scores)[:, chips] / self.best_scores[:, None])

    def slower(self, chips: Ints) -> Ints:
        """Return the chips at their nominal and all lower clocks."""
        slower = np.arange(self.chip_by_clock.shape[1]) <= self.clock[chips][:, None]
        siblings = np.where(slower, self.chip_by_clock[self.clock_family[chips]], -1)
        return np.unique(siblings[siblings >= 0])

    def answer(
        self, winner: int, steadiest: int, least_loss: float, ends: Sequence[float],
        bounds: Sequence[float],
    ) -> Robustness:  # fmt: skip
        """Describe both chips. `ends` are best scores at both ends of every constant, `bounds`
        those on the scores of every draw."""
        proven = np.array([bounds[draw] for draw in self.feasible_draws]) / self.best_scores
        return build_from(
            Robustness,
            self._steady_chip(winner),
            draws=len(self.feasible_draws),
            without_a_chip=len(self.draws.draws) - len(self.feasible_draws),
            designs=len(self.draws.space),
            proven_within=float(proven.max(initial=1.0) - 1.0),
            steadiest=self._steady_chip(steadiest),
            least_loss=least_loss,
            constants=_shares(self.draws, np.array(ends).reshape(-1, 2)),
        )

    def _steady_chip(self, chip: int) -> SteadyChip:
        design, option = int(self.chips.design[chip]), int(self.hbm_option[chip])
        design_space = self.draws.space.subset([design])
        figures, runs = [], []
        for draw in self.feasible_draws:
            drawn_space = space_under(design_space, self.draws.draws[draw])
            hbm = drawn_space.hbm_options[option]
            figures.append((drawn_space.area_with(hbm)[0], drawn_space.peak_power_with(hbm)[0]))
            runs.append(self.feasible[draw][chip] and self.throughput[draw, chip] > 0.0)
        area_mm2, power_W = np.quantile(np.array(figures), (0.05, 0.95), axis=0).T.tolist()
        accelerator = design_space.accelerator(0, design_space.hbm_options[option])
        losses = self.losses(np.array([chip]))
        return SteadyChip(
            chip=f"{accelerator.describe()} at {accelerator.clock_Hz / 1e9:.4g} GHz",
            fits=float(np.mean(runs)),
            loss_mean=float(losses.mean()),
            loss_p95=float(np.quantile(losses, 0.95)),
            area_mm2=tuple(area_mm2),
            peak_power_W=tuple(power_W),
            scores=tuple(((1.0 - losses[:, 0]) * self.best_scores).tolist()),
        )


class SharedSearch(DrawComparison):
    """Compares the chips of one search, whose times are those of every draw."""

    def __init__(self, search: Search, draws: Draws) -> None:
        super().__init__(draws, search.frontier.chips, search.memories)
        self.search = search
        self.rates = np.zeros(len(self.chips))
        """Throughput of evaluated chips, 0 for others."""
        self.throughput = np.broadcast_to(self.rates, self.throughput.shape)
        self.open_above = np.full(len(self.chips), np.inf)
        """Throughput that a chip is proven not to exceed; 0 once evaluated."""
        self._note(np.array(list(search.frontier.plans), np.int64))

    def _note(self, chips: Ints) -> None:
        """Copy the scores of evaluated chips from the search."""
        for chip in chips.tolist():
            self.rates[chip] = max(0.0, self.search.evaluated_score(chip))
            self.open_above[chip] = 0.0 if self.rates[chip] > 0.0 else self.open_above[chip]

    def evaluate(self, chips: Ints, least: float) -> None:
        """Evaluate the chips whose bounds allow more than `least`."""
        if self.search.stop():
            raise StoppedError
        self.search.evaluate_near(chips, least, plans_only=False)
        if self.search.stop():
            raise StoppedError  # not all were evaluated
        self._note(chips)
        self.open_above[chips] = np.minimum(self.open_above[chips], least)

    def best_score(self, feasible: Bools, price: Floats) -> float:
        """Return the highest score of the feasible chips at these prices, within TOLERANCE."""
        size = FIRST_ROUND
        while True:
            best = float((self.rates / price)[feasible].max(initial=0.0))
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

    def mean_losses(self, rates: Floats) -> Floats:
        """Return the mean loss of every chip against the best of every draw."""
        relative_scores = np.zeros(len(rates))
        for draw, best in zip(self.feasible_draws, self.best_scores, strict=True):
            relative_scores += self.scores_at_best_clock(draw, rates) / best
        return 1.0 - relative_scores / max(1, len(self.feasible_draws))

    def steadiest(self, first: int) -> tuple[int, float]:
        """Return the chip of least mean loss and a lower bound on it; `first` wins ties."""
        self.evaluate(self.slower(np.array([first])), 0.0)
        weight = 1.0 - self.mean_losses(np.ones(len(self.rates)))
        size, before = FIRST_ROUND, int((self.open_above <= 0.0).sum())
        while True:
            losses = self.mean_losses(self.rates)
            bar = float(losses.min()) - LOSS_TOLERANCE
            most = np.where(self.open_above <= 0.0, self.rates, self.search.scores)
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
                slower = self.slower(ranked)
                self.evaluate(slower[self.open_above[slower] > 0.0], 0.0)
            size = min(2 * size, LARGEST_ROUND)


def robust_answer(job: SearchQuestion, search: Search, chosen: int) -> Robustness:
    """Return the robustness of a search's answer under the draws of its job."""
    described = described_space(job)
    limits = limits_of(job, described)
    free = replace(limits, max_area_mm2=None, min_area_mm2=None, edge=False, per_die=False)
    free = replace(free, max_power_W=None, max_W_per_mm2=None)
    lists = replace(described, limits=limits)
    unlimited = with_solved_clocks(replace(described, limits=free).build(), lists)
    progress, limits_passes = search.progress, search.setting.limit is not None
    price = None if limits_passes else search.objective.price
    draws = Draws.of(unlimited, limits, job.robust, job.seed, price, limits_passes)

    def report(stage: str, left: int) -> None:
        if progress is not None:
            progress(f"robustness, {stage}", left, len(draws.space), 0.0, 0.0)

    if limits_passes:
        return robustness_by_draw(search, draws, chosen, report)
    objective = replace(search.objective, price=None, every_memory=True)
    wider = Search(
        draws.space, search.variants, search.setting, objective, search.tolerance,
        stop=search.stop,
    )  # fmt: skip
    position = _positions(search.frontier.chips, wider.frontier.chips, draws.usual)
    wider.inherit(search, position)
    return robustness(wider, draws, int(position[chosen]), report)


def _positions(narrow: Chips, wide: Chips, design: Ints) -> Ints:
    """Return the positions of chips among those of more designs, with every memory."""
    rows = [
        np.column_stack([part.hbm_Bps, part.hbm_capacity_bytes, number])
        for part, number in ((wide, wide.design), (narrow, design[narrow.design]))
    ]
    _, number = distinct_rows(np.concatenate(rows))
    position = np.full(int(number.max()) + 1, -1, np.int64)
    position[number[: len(wide)]] = np.arange(len(wide))
    return position[number[len(wide) :]]


def robustness(search: Search, draws: Draws, winner: int, report: Report) -> Robustness:
    """Compare the winner with the steadiest chip, and rank constants by their effect on the best.

    `search` is over the space of the draws, for throughput; its evaluations are reused. Draws in
    which no chip keeps to the limits are ignored.
    """
    compared, best_scores = SharedSearch(search, draws), []
    for number, feasible in enumerate(compared.feasible):
        report(draws.stage(number), int(feasible.sum()))
        best_scores.append(compared.best_score(feasible, compared.prices[number]))
    compared.set_best(best_scores)
    bounds = [compared.score_bound(draw) for draw in range(len(draws.draws))]
    report("chip of least mean loss", len(search.space))
    steadiest, least = compared.steadiest(winner)
    return compared.answer(winner, steadiest, least, best_scores[len(draws.draws) :], bounds)


def _with_a_chip(best_scores: Sequence[float]) -> list[int]:
    """Return the draws in which a chip keeps to the limits."""
    feasible_draws = [draw for draw, score in enumerate(best_scores) if score > 0.0]
    if not feasible_draws:
        raise AtollError(
            f"robust: no chip keeps to the limits under any of {len(best_scores)} draws of "
            "the constants; allow more area or power, or ask without it"
        )
    return feasible_draws


def _shares(draws: Draws, ends: Floats) -> tuple[ConstantShare, ...]:
    """Return the share of every constant in the swing of the best, largest first."""
    low, high = ends.T
    swing = (low - high) ** 2
    shares = swing / swing.sum() if swing.any() else swing
    order = np.argsort(-shares, kind="stable")
    return tuple(ConstantShare(name=draws.varied[i].name, share=float(shares[i])) for i in order)


# --- Limits on what passes draw -------------------------------------------------------------------


def robustness_by_draw(search: Search, draws: Draws, chosen: int, report: Report) -> Robustness:
    """Return the robustness where times depend on the constants: a search per draw."""
    options, profile = draws.space.hbm_options, search.setting.profile
    chips = chips_of_space(draws.space, profile, each_capacity=True)
    compared = DrawComparison(draws, chips, memories(options, profile, each_capacity=True))
    (hbm,) = search.memories[int(search.frontier.chips.memory[chosen])]
    design = draws.usual[search.frontier.chips.design[chosen]]
    winner = int(compared.number[design, options.index(hbm)])
    tried = [winner]
    best_scores: list[float] = []
    bounds: list[float] = []
    for number in range(len(draws.allowed)):
        report(draws.stage(number), int(compared.feasible[number].sum()))
        drawn, position = _search_under(search, compared, number, np.arange(len(draws.space)))
        if drawn is not None:
            drawn.batch(np.flatnonzero(np.isin(position, tried)))
            if exact_search(drawn).stopped:
                raise StoppedError
            if drawn.best is not None and number < len(draws.draws):
                tried.append(int(position[drawn.best]))
        best_scores.append(0.0 if drawn is None else drawn.score)
        bounds.append(0.0 if drawn is None else drawn.bound())
    compared.set_best(best_scores)
    candidates = np.array(list(dict.fromkeys(tried)))
    designs = np.unique(chips.design[compared.slower(candidates)])
    for draw in compared.feasible_draws:
        drawn, position = _search_under(search, compared, draw, designs)
        if drawn is not None:
            scores = drawn.evaluate_all(np.arange(len(position)))
            if drawn.stop():
                raise StoppedError
            compared.throughput[draw, position] = np.maximum(0.0, scores)
    # A search ends within its tolerance, so that a candidate may be better than its best.
    compared.best_scores *= np.maximum(1.0, 1.0 - compared.losses(candidates).min(axis=1))
    losses = compared.losses(candidates).mean(axis=0)
    steadiest = 0 if losses[0] <= losses.min() else int(np.argmin(losses))
    ends = best_scores[len(draws.draws) :]
    return compared.answer(winner, int(candidates[steadiest]), 0.0, ends, bounds)


def _search_under(
    like: Search, compared: DrawComparison, number: int, designs: Ints
) -> tuple[Search | None, Ints]:
    """Return a search over those of the designs that are feasible under a set of constants, None
    if there are none, and the positions of its chips among those that are compared."""
    draws = compared.draws
    within = np.intersect1d(np.flatnonzero(draws.allowed[number].any(axis=1)), designs)
    if len(within) == 0:
        return None, within
    physics = [*draws.draws, *draws.ends][number]
    space = replace(space_under(draws.space, physics), hbm_allowed=draws.allowed[number])
    arguments = space.subset(within), like.variants, like.setting, like.objective, TOLERANCE
    search = Search(*arguments, stop=like.stop)
    options = np.array([space.hbm_options.index(hbm) for (hbm,) in search.memories])
    chips = search.frontier.chips
    return search, compared.number[within[chips.design], options[chips.memory]]
