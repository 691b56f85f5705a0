"""How the answer moves with the constants of the physical model, which have ranges.

Under other constants a chip has another area and another power; its times stay, as they follow from
counts, clocks and bandwidths. So what a draw of the constants changes is which chips keep to the
limits, and one search serves all draws: its bounds prove the best of each of them over all chips of
the space.

A design that is built and then turns out too hot runs at the fastest clock of the space that keeps
to the limit on power; one that turns out too large is lost. What it is then behind the best of that
draw is its loss; the steadiest design is the one of least mean loss, of all chips of the space.

Where throughput is over a price, a draw changes the price as well, which is known of every chip
from its area and power: bounds are on throughput, and each draw divides them by its own prices.

A limit on what passes draw makes times depend on the constants: each draw has a search of its own
(`drawn_apart`), begun from the best of the others; losses are those of the winner and of the best
of each draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, replace

import numpy as np

from atoll.answers.answer import made_of
from atoll.answers.search import ConstantShare, Robustness, SteadyChip
from atoll.arrays import BoolArray, FloatArray, IntArray
from atoll.cost.chips import Chips, distinct_rows
from atoll.errors import AtollError
from atoll.explore.answer.scope import described_space, limits_of
from atoll.explore.pricing.price import Price
from atoll.explore.proof.branch_and_bound import Search
from atoll.explore.proof.exact import exact_search
from atoll.hardware.energy import energy_of
from atoll.hardware.physical.constants import Constant, Physics, constants
from atoll.hardware.physical.draws import at_ends, drawn
from atoll.hardware.silicon.physical import redrawn, redrawn_memories
from atoll.hardware.space import Limits, Space, allowed_options
from atoll.questions import SearchQuestion
from atoll.stopping import StoppedError

TOLERANCE = 0.005
"""Of the best of a draw."""
LOSS_TOLERANCE = 0.01
"""Of the least mean loss."""
MOST_TRIED = 256
"""Chips that are evaluated to find the steadiest; what the others could still be is told."""
FIRST_ROUND, LARGEST_ROUND = 4, 256
_PROBES = 256
"""Designs on which constants are tried out: those that change none of them are not drawn."""


def under(space: Space, physics: Physics) -> Space:
    """The same designs under other constants."""
    template = redrawn(space.template, physics)
    return replace(
        space,
        template=template,
        area_mm2=template.area_mm2(space.columns),
        hbm_options=redrawn_memories(space.hbm_options, physics),
    )


def that_matter(space: Space, energies: bool = False) -> list[Constant]:
    """Constants that change the area or the power of chips of this space; or of what they do."""
    some = space.subset(np.linspace(0, len(space) - 1, _PROBES).astype(np.int64))

    def figures(chips: Space) -> FloatArray:
        hbm = max(chips.hbm_options, key=lambda option: option.capacity_bytes)
        told = [chips.area_with(hbm), chips.peak_power_with(hbm)]
        if energies:
            told.append(np.array(astuple(energy_of(chips.template))))
        return np.concatenate(told)

    usual = figures(some)
    return [
        one
        for one in constants()
        if any((figures(under(some, end)) != usual).any() for end in at_ends(one))
    ]


@dataclass(frozen=True, eq=False)
class Draws:
    """Which pairs of design and HBM option keep to the limits under sets of constants."""

    space: Space
    """Every design that keeps to them under one of the sets at least."""
    usual: IntArray
    """Those that do with the constants as they are, in order."""
    varied: list[Constant]
    draws: list[Physics]
    allowed: list[BoolArray]
    """[design, option], for each draw, then for the ends of each varied constant."""
    prices: list[FloatArray]
    """The same: what throughput is divided by."""

    @property
    def ends(self) -> list[Physics]:
        """Both of each varied constant."""
        return [end for one in self.varied for end in at_ends(one)]

    @staticmethod
    def of(
        whole: Space,
        limits: Limits,
        count: int,
        seed: int,
        price: Price | None = None,
        energies: bool = False,
    ) -> Draws:
        varied = that_matter(whole, energies)
        draws = drawn(varied, count, seed)
        ends = [end for one in varied for end in at_ends(one)]
        each = [under(whole, physics) for physics in (*draws, *ends)]
        allowed = [allowed_options(space, limits) for space in each]
        usual = allowed_options(whole, limits)
        pairs = np.logical_or.reduce([usual, *allowed])
        kept = pairs.any(axis=1)
        prices = [
            np.column_stack([np.ones(len(space)) if price is None else price.of_designs(space, hbm)
                             for hbm in space.hbm_options])[kept]
            for space in each
        ]  # fmt: skip
        return Draws(
            replace(whole, hbm_allowed=pairs).subset(kept),
            np.flatnonzero(usual[kept].any(axis=1)),
            varied,
            draws,
            [one[kept] for one in allowed],
            prices,
        )


@dataclass(eq=False)
class Held:
    """Chips of a search held against each other under the draws."""

    search: Search
    draws: Draws
    feasible: list[BoolArray] = field(init=False)
    """Chips that keep to the limits, for each set of constants."""
    prices: list[FloatArray] = field(init=False)
    """The same: what their throughput is divided by."""
    known: FloatArray = field(init=False)
    """Throughput of the chips that were evaluated, 0 of others."""
    above: FloatArray = field(init=False)
    """Throughput above which no more is to be found of each chip; 0 of those evaluated."""
    some: list[int] = field(init=False)
    """Draws in which some chip keeps to the limits; and the score of the best of each."""
    best: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        chips, space = self.search.frontier.chips, self.draws.space
        options = [space.hbm_options.index(hbm) for (hbm,) in self.search.memories]
        self.option = np.array(options)[chips.memory]
        self.feasible = [allowed[chips.design, self.option] for allowed in self.draws.allowed]
        self.prices = [price[chips.design, self.option] for price in self.draws.prices]
        self.known = np.zeros(len(chips))
        self.above = np.full(len(chips), np.inf)
        self._note(np.array(list(self.search.frontier.found), np.int64))
        self._siblings()

    def _siblings(self) -> None:
        """The chips that differ in their clock alone: [kind, clock], -1 where there is none."""
        chips, space = self.search.frontier.chips, self.draws.space
        names = [p.name for p in space.template.parameters if p.name != "clock_Hz"]
        columns = [space.columns[name][chips.design] for name in names]
        _, self.kind = distinct_rows(np.column_stack([*columns, self.option]).astype(np.float64))
        clocks, self.clock = np.unique(chips.clock_Hz, return_inverse=True)
        self.at = np.full((int(self.kind.max()) + 1, len(clocks)), -1, np.int64)
        self.at[self.kind, self.clock] = np.arange(len(chips))

    def _note(self, chips: IntArray) -> None:
        """Take over what the search found for these chips."""
        for chip in chips.tolist():
            self.known[chip] = max(0.0, self.search.found_score(chip))
            self.above[chip] = 0.0 if self.known[chip] > 0.0 else self.above[chip]

    def evaluate(self, chips: IntArray, least: float) -> None:
        """Evaluate those whose bounds allow more than `least`."""
        if self.search.stop():
            raise StoppedError
        self.search.bound_near(chips, least)
        if self.search.stop():
            raise StoppedError  # some of them were not evaluated
        self._note(chips)
        self.above[chips] = np.minimum(self.above[chips], least)

    def best_of(self, feasible: BoolArray, price: FloatArray) -> float:
        """The highest score among these chips at these prices, within the tolerance."""
        size = FIRST_ROUND
        while True:
            best = float((self.known / price)[feasible].max(initial=0.0))
            bar = best * (1.0 + TOLERANCE) * price
            scores = self.search.scores
            open_ = np.flatnonzero(feasible & (self.above > bar) & (scores > bar))
            if len(open_) == 0:
                return best
            ranked = open_[np.argsort(-(scores / price)[open_], kind="stable")][:size]
            self.evaluate(ranked, float(bar[ranked].min()))
            size = min(2 * size, LARGEST_ROUND)

    def bound_of(self, draw: int) -> float:
        """No chip scores higher in it."""
        scores = self.search.scores / self.prices[draw]
        return float(scores[self.feasible[draw]].max(initial=0.0))

    def kept(self, draw: int, rates: FloatArray) -> FloatArray:
        """What each chip scores in a draw with these throughputs: at the clock that serves best, of
        those up to its own at which it keeps to the limits.
        """
        there = (self.at >= 0) & self.feasible[draw][self.at]
        values = np.where(there, (rates / self.prices[draw])[self.at], 0.0)
        found: FloatArray = np.maximum.accumulate(values, axis=1)[self.kind, self.clock]
        return found

    def mean_losses(self, rates: FloatArray) -> FloatArray:
        """Of every chip, against the best of each draw."""
        kept = np.zeros(len(rates))
        for draw, best in zip(self.some, self.best, strict=True):
            kept += self.kept(draw, rates) / best
        return 1.0 - kept / max(1, len(self.some))

    def steadiest(self, first: int) -> tuple[int, float]:
        """The chip of least mean loss, and the loss that none is below; `first` is known."""
        self.evaluate(self._slower(np.array([first])), 0.0)
        weight = np.zeros(len(self.known))
        for draw, best in zip(self.some, self.best, strict=True):
            weight += self.kept(draw, np.ones(len(self.known))) / best / len(self.some)
        size, before = FIRST_ROUND, int((self.above <= 0.0).sum())
        while True:
            losses = self.mean_losses(self.known)
            bar = float(losses.min()) - LOSS_TOLERANCE
            most = np.where(self.above <= 0.0, self.known, self.search.scores)
            least = self.mean_losses(most)
            open_ = np.flatnonzero(least < bar)
            if len(open_) == 0 or int((self.above <= 0.0).sum()) - before >= MOST_TRIED:
                found = first if losses[first] <= losses.min() else int(np.argmin(losses))
                return found, max(0.0, min(float(least.min()), float(losses[found])))
            ranked = open_[np.argsort(least[open_], kind="stable")][:size]
            # At full clock in every draw that lets it run at all, it would have to run at this.
            needed = float(((1.0 - bar) / weight[ranked]).min())
            fresh = ranked[self.above[ranked] > needed]
            if len(fresh):
                self.evaluate(fresh, needed)
            else:
                slower = self._slower(ranked)
                self.evaluate(slower[self.above[slower] > 0.0], 0.0)
            size = min(2 * size, LARGEST_ROUND)

    def _slower(self, chips: IntArray) -> IntArray:
        """These chips at their own and all lower clocks."""
        slower = np.arange(self.at.shape[1]) <= self.clock[chips][:, None]
        found = np.where(slower, self.at[self.kind[chips]], -1)
        return np.unique(found[found >= 0])

    def losses(self, chip: int) -> FloatArray:
        """Of one chip in every draw."""
        kept = [self.kept(draw, self.known)[chip] for draw in self.some]
        return np.asarray(1.0 - np.array(kept) / self.best)


def robust_answer(job: SearchQuestion, search: Search, chosen: int) -> Robustness:
    """The answer of a search over a physical template, with its job's draws."""
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
    whole = replace(described, limits=free).build()
    apart = search.setting.limit is not None
    draws = Draws.of(whole, limits, job.robust, job.seed, search.objective.price, apart)
    if apart:
        chips = search.frontier.chips
        (hbm,) = search.memories[int(chips.memory[chosen])]
        option = draws.space.hbm_options.index(hbm)
        return drawn_apart(search, draws, (int(draws.usual[chips.design[chosen]]), option))
    objective = replace(search.objective, price=None, each_memory=True)
    wider = Search(
        draws.space, search.variants, search.setting, objective, search.tolerance,
        stop=search.stop,
    )  # fmt: skip
    place = _places(search.frontier.chips, wider, draws.usual)
    wider.inherit(search, place)
    return robustness(wider, draws, int(place[chosen]))


def _places(known: Chips, wider: Search, design: IntArray) -> IntArray:
    """Where chips of a search are in a wider one that has them with each memory."""
    chips = wider.frontier.chips
    columns = [
        [one.hbm_Bps, one.hbm_capacity_bytes, place]
        for one, place in ((chips, chips.design), (known, design[known.design]))
    ]
    both = np.concatenate([np.column_stack(own) for own in columns])
    _, number = distinct_rows(both)
    place = np.full(int(number.max()) + 1, -1, np.int64)
    place[number[: len(chips)]] = np.arange(len(chips))
    return place[number[len(chips) :]]


def robustness(search: Search, draws: Draws, winner: int) -> Robustness:
    """The winner and the steadiest chip under the draws, and which constant moves the best most.

    `search` is over the space of the draws, for throughput; what it evaluated need not be again. A
    draw in which no chip keeps to the limits has no best, and counts for nothing.
    """
    held = Held(search, draws)
    found = list(map(held.best_of, held.feasible, held.prices))
    count = len(draws.draws)
    ends = np.array(found[count:]).reshape(-1, 2)
    held.some = _with_a_chip(found[:count])
    held.best = np.array([found[draw] for draw in held.some])
    bounds = np.array([held.bound_of(draw) for draw in held.some])
    steadiest, least = held.steadiest(winner)
    return made_of(
        Robustness,
        _steady(held, winner),
        draws=len(held.some),
        without_a_chip=count - len(held.some),
        designs=len(draws.space),
        proven_within=float((bounds / held.best).max(initial=1.0) - 1.0),
        steadiest=_steady(held, steadiest),
        least_loss=least,
        constants=_shares(draws, ends),
    )


def _with_a_chip(found: Sequence[float]) -> list[int]:
    """Draws in which a chip keeps to the limits."""
    some = [draw for draw, score in enumerate(found) if score > 0.0]
    if not some:
        raise AtollError(
            f"robust: no chip keeps to the limits under any of {len(found)} draws of "
            "the constants; allow more area or power, or ask without it"
        )
    return some


def _shares(draws: Draws, ends: FloatArray) -> tuple[ConstantShare, ...]:
    """How far the ends of each constant move the best, the farthest first."""
    swing = (ends[:, 0] - ends[:, 1]) ** 2
    shares = swing / swing.sum() if swing.any() else swing
    return tuple(
        ConstantShare(name=draws.varied[i].name, share=float(shares[i]))
        for i in np.argsort(-shares, kind="stable")
    )


# --- Limits on what passes draw -------------------------------------------------------------------

Pair = tuple[int, int]
"""A design of the draws' space with one of its HBM options."""


def drawn_apart(like: Search, draws: Draws, winner: Pair) -> Robustness:
    """The same where times follow the constants: a search for each draw."""
    known = [winner]
    found: list[float] = []
    bounds: list[float] = []
    for number in range(len(draws.allowed)):
        search = _search_in(like, draws, number, None)
        if search is None:
            found, bounds = [*found, 0.0], [*bounds, 0.0]
            continue
        pairs = _pairs(search, draws, number, None)
        search.batch(np.array([at for at, pair in enumerate(pairs) if pair in known], np.int64))
        if exact_search(search).stopped:
            raise StoppedError
        found, bounds = [*found, search.score], [*bounds, search.bound()]
        if search.best is not None and number < len(draws.draws):
            known.append(pairs[search.best])
    count = len(draws.draws)
    some = _with_a_chip(found[:count])
    known = list(dict.fromkeys(known))
    tables = [_kept(like, draws, draw, known) for draw in some]
    kept, own = (np.array([table[part] for table in tables]) for part in range(2))
    best = np.maximum(np.array(found)[some], kept.max(axis=1, initial=0.0))
    losses = 1.0 - kept / best[:, None]
    mean = losses.mean(axis=0)
    steadiest = 0 if mean[0] <= mean.min() else int(np.argmin(mean))

    def told(number: int) -> SteadyChip:
        fits = float((own[:, number] > 0.0).mean())
        return _told(draws, known[number], some, fits, losses[:, number])

    return made_of(
        Robustness,
        told(0),
        draws=len(some),
        without_a_chip=count - len(some),
        designs=len(draws.space),
        proven_within=float((np.array(bounds)[some] / best).max(initial=1.0) - 1.0),
        steadiest=told(steadiest),
        least_loss=0.0,
        constants=_shares(draws, np.array(found[count:]).reshape(-1, 2)),
    )


def _search_in(like: Search, draws: Draws, number: int, designs: IntArray | None) -> Search | None:
    """Over the designs that keep to the limits under one of the sets; none where there are none."""
    physics = [*draws.draws, *draws.ends][number]
    kept = _within(draws, number, designs)
    if len(kept) == 0:
        return None
    space = replace(under(draws.space, physics), hbm_allowed=draws.allowed[number]).subset(kept)
    known = space, like.variants, like.setting, like.objective, TOLERANCE
    return Search(*known, stop=like.stop)


def _within(draws: Draws, number: int, designs: IntArray | None) -> IntArray:
    kept = np.flatnonzero(draws.allowed[number].any(axis=1))
    return kept if designs is None else np.intersect1d(kept, designs)


def _pairs(search: Search, draws: Draws, number: int, designs: IntArray | None) -> list[Pair]:
    """What each chip of such a search is."""
    chips, kept = search.frontier.chips, _within(draws, number, designs)
    assert isinstance(search.space, Space)
    options = [search.space.hbm_options.index(hbm) for (hbm,) in search.memories]
    every = zip(chips.design.tolist(), chips.memory.tolist(), strict=True)
    return [(int(kept[design]), options[memory]) for design, memory in every]


def _kept(
    like: Search, draws: Draws, draw: int, known: Sequence[Pair]
) -> tuple[list[float], list[float]]:
    """What these chips score in a draw: at the clock that serves best, up to their own; and at
    their own."""
    columns = [values for name, values in draws.space.columns.items() if name != "clock_Hz"]
    _, kind = distinct_rows(np.column_stack(columns).astype(np.float64))
    clock_Hz = draws.space.clock_Hz
    slower = [
        np.flatnonzero((kind == kind[design]) & (clock_Hz <= clock_Hz[design]))
        for design, _ in known
    ]
    designs = np.unique(np.concatenate(slower))
    search = _search_in(like, draws, draw, designs)
    if search is None:
        return [0.0] * len(known), [0.0] * len(known)
    scores = search.evaluate_all(np.arange(len(search.frontier.chips)))
    if search.stop():
        raise StoppedError
    at = dict(zip(_pairs(search, draws, draw, designs), scores.tolist(), strict=True))
    best = [
        max(0.0, *(at.get((int(other), option), 0.0) for other in own))
        for own, (_, option) in zip(slower, known, strict=True)
    ]
    return best, [max(0.0, at.get(pair, 0.0)) for pair in known]


def _steady(held: Held, chip: int) -> SteadyChip:
    """What the draws say of one chip."""
    pair = int(held.search.frontier.chips.design[chip]), int(held.option[chip])
    fits = float(np.mean([held.feasible[draw][chip] for draw in held.some]))
    return _told(held.draws, pair, held.some, fits, held.losses(chip))


def _told(
    draws: Draws, chip: Pair, some: Sequence[int], fits: float, losses: FloatArray
) -> SteadyChip:
    design, option = chip
    alone = draws.space.subset([design])
    figures = []
    for draw in some:
        drawn_ = under(alone, draws.draws[draw])
        hbm = drawn_.hbm_options[option]
        figures.append((drawn_.area_with(hbm)[0], drawn_.peak_power_with(hbm)[0]))
    ends = np.quantile(np.array(figures), (0.05, 0.95), axis=0).T.tolist()
    own = alone.accelerator(0, alone.hbm_options[option])
    return SteadyChip(
        chip=f"{own.describe()} at {own.clock_Hz / 1e9:g} GHz",
        fits=fits,
        loss_mean=float(losses.mean()),
        loss_p95=float(np.quantile(losses, 0.95)),
        area_mm2=tuple(ends[0]),
        peak_power_W=tuple(ends[1]),
    )
