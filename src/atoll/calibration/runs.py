"""A site from its own training runs: few physical parameters, with priors and intervals.

Maximum a posteriori. The logarithm of measured over predicted step time follows Student's
distribution, so that one odd run does not pull; the logarithm of each parameter has a normal prior
around what the catalogue and the stack say, as wide as the sources of published runs lie apart
(docs/training.md, "Your own runs"). Gauss-Newton steps find the mode; the curvature there gives the
intervals (Laplace's approximation), and the evidence that chooses between kinds of software where
rows do not state theirs. How much of the rest differs at all is not known: nothing, slack alone or
all parameters are weighed by their evidence, so that a few runs that contradict each other move
little.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from atoll.answers.answer import made_of
from atoll.answers.validation import FitErrors, RunsFit, SoftwareFit
from atoll.errors import AtollError
from atoll.files.csvfile import read_csv
from atoll.step.layout import Layout
from atoll.training.estimate import Estimator
from atoll.training.run import Run
from atoll.training.site import Attention, KnownFactor, Levels, Overlaps, Site
from atoll.training.stack import CHIP, STACKS
from atoll.validation.rows import Reader, run_at_site, run_of
from atoll.validation.run_table import RunRow, read_runs
from atoll.validation.step_rows import is_step_file, read_steps, run_from_step

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

PRIORS = {"slack": 0.12, "host": 0.95, "overlap": 1.0, "inside": 0.42, "between": 0.95}
"""Standard deviations of the parameters' logarithms (of overlap, of its odds): how far 13 sources
of published runs lie from the catalogue when each is fitted as a whole, the farthest left out; none
tells of overlap, whose width is assumed.
"""
WIDTHS = np.array(list(PRIORS.values()))
AWAY = np.array([1, 1, -1, -1, -1])
"""The direction in which each makes steps longer."""
NOISE, FREEDOM = 0.07, 4.0
"""Of the logarithm of step times: scale and degrees of freedom of Student's distribution."""
OTHER_STACK, OTHER_KERNEL = 3.0, 2.0
"""What software other than the reader's assumption costs in the logarithm of the evidence."""
FARTHEST = 4.0
"""Standard deviations of its prior that a parameter may lie off."""
UNLIKELY = 0.05
"""Probability of a fit below which nothing of it is told."""
Z = 1.645
"""Standard deviations on either side of a 90 % interval."""
MOST_RUNS = 60
"""That are fitted; of more, as many at even distances."""
TRIED = 3
"""Kinds of software that are fitted in whole: the likeliest by slack alone."""
ITERATIONS = 8
CLOSE = 0.01
"""Change of the posterior's logarithm below which the search ends."""
KERNELS: tuple[Attention | None, ...] = (None, *get_args(Attention))


@dataclass(frozen=True, slots=True)
class Timed:
    """A row, its run as read, and the logarithm of its measured time."""

    row: RunRow
    reader: Reader
    run: Run
    log_s: float


class Variant:
    """The runs at a site, under its software; layers are priced once."""

    def __init__(self, timed: Sequence[Timed], site: Site) -> None:
        self.stack, self.attention = site.stack, site.attention
        read = [run_at_site(t.row, site, t.reader) for t in timed]
        self.runs = [run for run, _ in read]
        self.layouts = [layout for _, layout in read]
        self.measured = np.array([t.log_s for t in timed])
        self.key = tuple((run.stack.name, run.attention) for run in self.runs)
        others = np.array(self.key) != np.array(
            [(t.run.stack.name, t.run.attention) for t in timed]
        )
        self.prior = float(others.mean(axis=0) @ (OTHER_STACK, OTHER_KERNEL))
        self._estimators = [Estimator(run) for run in self.runs]

    def check(self) -> None:
        """Refuse software that cannot run a layout."""
        for estimator, layout in zip(self._estimators, self.layouts, strict=True):
            estimator.estimate(layout)

    def log_s(self, point: Floats) -> Floats:
        """Logarithms of predicted times where parameters lie so far from their priors' means."""
        site = site_at(point)
        found = []
        for estimator, run, layout in zip(self._estimators, self.runs, self.layouts, strict=True):
            here = copy(estimator)  # what layers cost on a device is the same
            here.run = run.at(site)
            found.append(here.step(layout).time_s)
        return np.log(found)


@dataclass(frozen=True, slots=True)
class Fit:
    """The mode of the posterior under one kind of software."""

    variant: Variant
    point: Floats
    """Logarithms of the parameters over their priors' means."""
    told: Flags
    """Parameters that some run tells about."""
    slopes: Floats
    """Of the logarithms of times, by run and by parameter of these."""
    residuals: Floats
    """Logarithms of measured over predicted times."""

    @property
    def precision(self) -> Floats:
        """Curvature of the posterior at its mode: the inverse covariance."""
        return _precision(self.slopes, self.residuals, WIDTHS[self.told])

    @property
    def evidence(self) -> float:
        """Logarithm of the probability of the times under this software, up to a constant."""
        volume = 0.5 * np.linalg.slogdet(self.precision)[1] + np.log(WIDTHS[self.told]).sum()
        return -float(_cost(self.residuals, self.point) + volume + self.variant.prior)

    @property
    def sd(self) -> Floats:
        """Of the parameters' logarithms; nan where no run tells."""
        found = np.full(self.point.size, np.nan)
        found[self.told] = np.sqrt(np.diag(np.linalg.inv(self.precision)))
        return found

    @property
    def left_out(self) -> Floats:
        """Residuals of runs, each predicted from the others: one step from the mode."""
        found = []
        weights = _weights(self.residuals)
        for slopes, residual, weight in zip(self.slopes, self.residuals, weights, strict=True):
            without = self.precision - weight * np.outer(slopes, slopes)
            moved = np.linalg.solve(without, -weight * residual * slopes)
            found.append(residual - slopes @ moved)
        return np.array(found)


def fit_variant(variant: Variant, known: Sequence[str] = ()) -> Fit:
    """Gauss-Newton with the weights of Student's distribution, steps halved until they help;
    parameters that are known otherwise stay.
    """
    point = np.zeros(WIDTHS.size)
    residuals = variant.measured - variant.log_s(point)
    wanted = np.array([name not in known for name in PRIORS])
    slopes = _slopes(variant, point, wanted, residuals)
    told: Flags = np.abs(slopes).max(axis=0) > 1e-4
    for _ in range(ITERATIONS):
        own, widths = slopes[:, told], WIDTHS[told]
        pull = own.T @ (_weights(residuals) * residuals) - point[told] / widths**2
        step = np.zeros(WIDTHS.size)
        step[told] = np.linalg.solve(_precision(own, residuals, widths), pull)
        better = None
        for share in (1.0, 0.5, 0.25, 0.125):
            there = np.clip(point + share * step, -FARTHEST * WIDTHS, FARTHEST * WIDTHS)
            left = variant.measured - variant.log_s(there)
            if _cost(left, there) < _cost(residuals, point) - CLOSE:
                better = there, left
                break
        if better is None:
            break
        point, residuals = better
        slopes = _slopes(variant, point, told, residuals)
    return Fit(variant, point, told, slopes[:, told], residuals)


def _unfitted(variant: Variant) -> Fit:
    """The catalogue and the stack as they are."""
    point = np.zeros(WIDTHS.size)
    none: Flags = np.zeros(WIDTHS.size, dtype=bool)
    slopes = np.zeros((len(variant.runs), 0))
    return Fit(variant, point, none, slopes, variant.measured - variant.log_s(point))


@dataclass(frozen=True, slots=True)
class Mixture:
    """What differs from the catalogue under one kind of software: nothing, slack, or all, weighed
    by their evidence.
    """

    fits: tuple[Fit, ...]

    @classmethod
    def of(cls, variant: Variant, known: Sequence[str]) -> Mixture:
        """Fitted to the runs of a variant."""
        others = [name for name in PRIORS if name != "slack"]
        fits = _unfitted(variant), fit_variant(variant, others), fit_variant(variant, known)
        weights = cls(fits).weights
        return cls(tuple(fit for fit, w in zip(fits, weights, strict=True) if w > UNLIKELY))

    @property
    def variant(self) -> Variant:
        return self.fits[0].variant

    @property
    def evidence(self) -> float:
        """Logarithm of the probability of the times, each of the fits as likely before."""
        return float(np.logaddexp.reduce([fit.evidence for fit in self.fits]))

    @property
    def weights(self) -> Floats:
        return np.exp([fit.evidence - self.evidence for fit in self.fits])

    def _mean(self, values: Sequence[Floats]) -> Floats:
        mean: Floats = self.weights @ np.array(values)
        return mean

    @property
    def point(self) -> Floats:
        return self._mean([fit.point for fit in self.fits])

    @property
    def sd(self) -> Floats:
        """Within the fits and between them; nan where no run tells."""
        told = np.any([fit.told for fit in self.fits], axis=0)
        squares = [np.nan_to_num(fit.sd) ** 2 + fit.point**2 for fit in self.fits]
        variance = np.maximum(self._mean(squares) - self.point**2, 0.0)
        return np.where(told, np.sqrt(variance), np.nan)

    @property
    def residuals(self) -> Floats:
        return self.variant.measured - self.variant.log_s(self.point)

    @property
    def left_out(self) -> Floats:
        """As of the fits; times are all but linear in the parameters."""
        return self._mean([fit.left_out for fit in self.fits])


def _slopes(variant: Variant, point: Floats, told: Flags, residuals: Floats) -> Floats:
    """Differences over half a prior's width away from its mean: host time counts only where it
    exceeds the device's, which a smaller step might not see.
    """
    slopes = np.zeros((len(variant.runs), point.size))
    slopes[:, 0] = 1.0  # slack multiplies
    for i in np.flatnonzero(told[1:]) + 1:
        moved = np.zeros(point.size)
        moved[i] = np.copysign(WIDTHS[i] / 2, AWAY[i] if point[i] == 0 else point[i])
        rise = residuals - (variant.measured - variant.log_s(point + moved))
        slopes[:, i] = rise / moved[i]
    return slopes


def _precision(slopes: Floats, residuals: Floats, widths: Floats) -> Floats:
    found: Floats = slopes.T @ (slopes * _weights(residuals)[:, None]) + np.diag(widths**-2.0)
    return found


def _weights(residuals: Floats) -> Floats:
    return (FREEDOM + 1) / (FREEDOM * NOISE**2 + residuals**2)


def _cost(residuals: Floats, point: Floats) -> float:
    """Negative logarithm of the posterior, up to a constant."""
    tails = (FREEDOM + 1) / 2 * np.log1p((residuals / NOISE) ** 2 / FREEDOM)
    return float(tails.sum() + 0.5 * ((point / WIDTHS) ** 2).sum())


def site_at(point: Floats, sd: Floats | None = None, **told: Any) -> Site:
    """The site at some logarithms of the parameters, with intervals of so many deviations; where
    these are nan, nothing is known.
    """
    spread = np.zeros(point.size) if sd is None else sd
    known = {
        name: KnownFactor(value=np.exp(at), low=np.exp(at - Z * wide), high=np.exp(at + Z * wide))
        for name, at, wide in zip(PRIORS, point, spread, strict=True)
        if not np.isnan(wide)
    }
    return Site(
        **{"name": "point"} | told,
        slack=known.get("slack"),
        host=known.get("host"),
        overlap=Overlaps(odds=known.get("overlap")),
        bandwidth=Levels(inside=known.get("inside"), between=known.get("between")),
    )


def fit_runs(
    path: str | Path, base: Site | None = None, device: str = "h200"
) -> tuple[Site, RunsFit]:
    """The site of a file of measured runs, or of steps of one device, and how well it fits them.

    What `base` has measured of the site (a profile, NCCL's tests) is taken as given.
    """
    base = base or Site(name="catalogue")
    timed, skipped = _timed(path, base, device)
    known = [level for level in ("inside", "between") if getattr(base.bandwidth, level)]
    if base.host_kernel_s:
        known.append("host")
    mixed = [Mixture.of(variant, known) for variant in _likeliest(timed, base)]
    best = max(mixed, key=lambda mixture: mixture.evidence)
    catalogue = _unfitted(Variant(timed, base))
    if len(timed) > 1 and _error(best.left_out) > _error(catalogue.residuals):
        best = Mixture((catalogue,))  # what the runs tell of one another is worth less
    errors = FitErrors(
        before=_error(catalogue.residuals),
        after=_error(best.residuals),
        left_out=_error(best.left_out) if len(timed) > 1 else None,
    )
    devices = ", ".join(dict.fromkeys(t.run.gpu.name for t in timed))
    site = site_at(
        best.point,
        best.sd,
        name=Path(path).stem,
        source=f"{len(timed)} runs of {Path(path).name} on {devices}",
        stack=best.variant.stack,
        attention=best.variant.attention,
        runs=len(timed),
        error=errors.left_out,
        reach=_reach(best.left_out) if len(timed) > 1 else None,
    )
    software = (
        made_of(SoftwareFit, mixture.variant, evidence=mixture.evidence)
        for mixture in sorted(mixed, key=lambda mixture: -mixture.evidence)
    )
    return site, RunsFit(
        rows=len(timed) + len(skipped),
        fitted=len(timed),
        skipped=tuple(skipped),
        software=tuple(software),
        errors=errors,
    )


def fit_one(run: Run, layout: Layout, time_s: float, name: str) -> Site:
    """The site that the step time of a single run tells, its software as stated."""
    row = RunRow(line=1, id=name, source=name, device=run.gpu.name, quality="", values={})
    timed = Timed(row, lambda _: (run, layout), run, float(np.log(time_s)))
    fit = fit_variant(Variant([timed], Site(name="catalogue")))
    source = f"one run ({name}) on {run.devices} {run.gpu.name}"
    return site_at(fit.point, fit.sd, name=Path(name).stem, source=source, runs=1)


def _error(residuals: Floats) -> float:
    """Mean absolute error of predicted times."""
    return float(np.abs(np.expm1(-residuals)).mean())


def _reach(residuals: Floats) -> float:
    """Within which a further run's residual lies with a probability of 90 % (Student's
    distribution), of runs that were each predicted from the others.
    """
    n = residuals.size
    return float(stdtrit(n - 1, 0.95) * np.sqrt((residuals**2).mean() * (1 + 1 / n)))


def _timed(path: str | Path, base: Site, device: str) -> tuple[list[Timed], list[str]]:
    """The rows that can be read and have a time, and what is wrong with others."""
    found, skipped = [], []
    steps = is_step_file(read_csv(path)[0])
    reader = run_from_step if steps else run_of
    for row in read_steps(path, device) if steps else read_runs(path):
        try:
            row.check()
            time_s = row.time_s
            if time_s is None:
                raise AtollError(f"line {row.line} ({row.id}): no step time and no tokens/s")
            run, layout = run_at_site(row, base, reader)
            Estimator(run).estimate(layout)
            found.append(Timed(row, reader, run, float(np.log(time_s))))
        except AtollError as error:
            skipped.append(str(error))
    if not found:
        why = skipped[0] if skipped else "it has no rows"
        raise AtollError(f"{path}: no run can be fitted ({why})")
    if len(found) > MOST_RUNS:
        found = [found[i] for i in np.linspace(0, len(found) - 1, MOST_RUNS).round().astype(int)]
    return found, skipped


def _likeliest(timed: Sequence[Timed], base: Site) -> list[Variant]:
    """Kinds of software that explain the times best by slack alone, each once."""
    own = {t.run.gpu.stack for t in timed}
    stacks = [s for s in STACKS if s != CHIP.name]
    if own == {"xla"}:  # a device that only compiled programs run on
        stacks = ["xla"]
    few = timed[:: max(1, len(timed) // TRIED)]
    found: dict[tuple[tuple[str, str], ...], tuple[float, Variant]] = {}
    for stack, kernel in product((None, *stacks), KERNELS):
        variant = Variant(few, base.model_copy(update={"stack": stack, "attention": kernel}))
        if variant.key in found:
            continue
        try:
            variant.check()
        except AtollError:
            continue
        residuals = variant.measured - variant.log_s(np.zeros(WIDTHS.size))
        point = np.zeros(WIDTHS.size)
        point[0] = np.median(residuals) * WIDTHS[0] ** 2 / (WIDTHS[0] ** 2 + NOISE**2 / len(few))
        cost = _cost(residuals - point[0], point) + variant.prior
        found[variant.key] = cost, variant
    ranked = sorted(found.values(), key=lambda item: item[0])[:TRIED]
    software = [{"stack": v.stack, "attention": v.attention} for _, v in ranked]
    return [Variant(timed, base.model_copy(update=told)) for told in software]
