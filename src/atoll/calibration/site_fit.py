"""Fit of a site to its training runs: a few physical parameters, with priors and intervals.

Maximum a posteriori. log(measured / predicted step time) has Student's distribution (robust to
outliers); the logarithm of each parameter has a normal prior around the catalogue's and stack's
value, as wide as the sources of published runs differ (docs/training.md, "Your own runs").
Gauss-Newton steps find the mode; its curvature gives intervals (Laplace's approximation) and the
evidence, which selects the software of rows that state none. Three models (nothing differs, slack
differs, all parameters differ) are averaged by evidence, so that contradictory runs change little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from atoll.answers.answer import build_from
from atoll.answers.validation import FitErrors, RunsFit, SoftwareFit
from atoll.base.arrays import Floats
from atoll.base.errors import AtollError
from atoll.step.layout import Layout
from atoll.tools.stack import CHIP, STACKS
from atoll.training.estimate import Estimator, rank_compute_s
from atoll.training.run import Run
from atoll.training.site import Attention, FactorInterval, LevelFactors, Overlaps, RunError, Site
from atoll.validation.row_runs import run_at_site
from atoll.validation.tables import RunRow, read_each, read_runs

Flags = NDArray[np.bool_]

PRIORS = {"slack": 0.12, "host": 0.95, "overlap": 1.0, "inside": 0.42, "between": 0.95}
"""Standard deviations of the parameters' logarithms (of overlap: of its odds), from fits of 13
sources of published runs without the farthest; that of overlap is an assumption.
"""
WIDTHS, SLACK = np.array(list(PRIORS.values())), list(PRIORS).index("slack")
SLOWER = np.array([1, 1, -1, -1, -1])
"""Direction in which each parameter makes steps longer."""
NOISE, FREEDOM = 0.07, 4.0
"""Scale and degrees of freedom of Student's distribution of the logarithm of step times."""
STACK_PENALTY, KERNEL_PENALTY = 3.0, 2.0
"""Penalties in log evidence of software other than the row's default."""
FARTHEST = 4.0
"""Bound of a parameter in standard deviations of its prior."""
UNLIKELY = 0.05
"""Probability below which a fit is dropped from the mixture."""
Z = 1.645
"""Standard deviations on either side of a 90 % interval."""
MOST_RUNS = 60
"""Limit of fitted runs; more are sampled at even distances."""
TRIED = 3
"""Kinds of software with a full fit: the likeliest by slack alone."""
ITERATIONS = 8
CLOSE = 0.01
"""Change of the log posterior below which the search ends."""
KERNELS: tuple[Attention | None, ...] = (None, *get_args(Attention))


@dataclass(frozen=True, slots=True)
class TimedRun:
    """A run, the same at a site, and the logarithm of its measured time."""

    run: Run
    at: Callable[[Site], tuple[Run, Layout]]
    log_s: float
    stage: int | None = None
    """Stage of a rank that was measured without communication; None: the step of all ranks."""


class SoftwareVariant:
    """Runs at a site with the site's software; layers are priced once."""

    def __init__(self, timed: Sequence[TimedRun], site: Site) -> None:
        self.stack, self.attention = site.stack, site.attention
        read = [t.at(site) for t in timed]
        self.runs = [run for run, _ in read]
        self.layouts = [layout for _, layout in read]
        self.stages = [t.stage for t in timed]
        self.measured = np.array([t.log_s for t in timed])
        self.key = tuple((run.stack.name, run.attention) for run in self.runs)
        others = np.array(self.key) != np.array(
            [(t.run.stack.name, t.run.attention) for t in timed]
        )
        self.prior = float(others.mean(axis=0) @ (STACK_PENALTY, KERNEL_PENALTY))
        self._estimators = [Estimator(run) for run in self.runs]

    def check(self) -> None:
        """Refuse software that cannot run a layout."""
        for estimator, layout in zip(self._estimators, self.layouts, strict=True):
            estimator.estimate(layout)

    def log_s(self, point: Floats) -> Floats:
        """Return log predicted times at logarithms of parameters over their priors' means."""
        site = site_at(point)
        times_s = []
        for estimator, run, layout, stage in zip(
            self._estimators, self.runs, self.layouts, self.stages, strict=True
        ):
            at_site = estimator.at(run.at(site))
            if stage is None:
                times_s.append(at_site.step_s(layout))
            else:
                times_s.append(rank_compute_s(at_site.estimate(layout), stage))
        return np.log(times_s)


@dataclass(frozen=True, slots=True)
class VariantFit:
    """Mode of the posterior with one kind of software."""

    variant: SoftwareVariant
    point: Floats
    """Logarithms of the parameters over their priors' means."""
    observed: Flags
    """Parameters that at least one run depends on."""
    slopes: Floats
    """d log time / d log parameter, by run and observed parameter."""
    residuals: Floats
    """log(measured / predicted time)."""

    @property
    def precision(self) -> Floats:
        """Curvature of the posterior at its mode: the inverse covariance."""
        return _precision(self.slopes, self.residuals, WIDTHS[self.observed])

    @property
    def evidence(self) -> float:
        """Log probability of the times with this software, up to a constant."""
        volume = 0.5 * np.linalg.slogdet(self.precision)[1] + np.log(WIDTHS[self.observed]).sum()
        return -float(_cost(self.residuals, self.point) + volume + self.variant.prior)

    @property
    def sd(self) -> Floats:
        """Standard deviations of the parameters' logarithms; nan if not observed."""
        deviations = np.full(self.point.size, np.nan)
        deviations[self.observed] = np.sqrt(np.diag(np.linalg.inv(self.precision)))
        return deviations

    @property
    def left_out(self) -> Floats:
        """Residuals of runs, each predicted from the others by one Newton step from the mode."""
        left_out_residuals = []
        weights = _weights(self.residuals)
        for slopes, residual, weight in zip(self.slopes, self.residuals, weights, strict=True):
            without = self.precision - weight * np.outer(slopes, slopes)
            moved = np.linalg.solve(without, -weight * residual * slopes)
            left_out_residuals.append(residual - slopes @ moved)
        return np.array(left_out_residuals)


def fit_variant(variant: SoftwareVariant, fixed: Sequence[str] = ()) -> VariantFit:
    """Fit by Gauss-Newton with halved steps; `fixed` parameters stay at their priors' means."""
    point = np.zeros(WIDTHS.size)
    residuals = variant.measured - variant.log_s(point)
    wanted = np.array([name not in fixed for name in PRIORS])
    slopes = _slopes(variant, point, wanted, residuals)
    observed: Flags = np.abs(slopes).max(axis=0) > 1e-4
    for _ in range(ITERATIONS):
        observed_slopes, widths = slopes[:, observed], WIDTHS[observed]
        pull = observed_slopes.T @ (_weights(residuals) * residuals) - point[observed] / widths**2
        step = np.zeros(WIDTHS.size)
        step[observed] = np.linalg.solve(_precision(observed_slopes, residuals, widths), pull)
        better = None
        for share in (1.0, 0.5, 0.25, 0.125):
            candidate = np.clip(point + share * step, -FARTHEST * WIDTHS, FARTHEST * WIDTHS)
            candidate_residuals = variant.measured - variant.log_s(candidate)
            if _cost(candidate_residuals, candidate) < _cost(residuals, point) - CLOSE:
                better = candidate, candidate_residuals
                break
        if better is None:
            break
        point, residuals = better
        slopes = _slopes(variant, point, observed, residuals)
    return VariantFit(variant, point, observed, slopes[:, observed], residuals)


def _unfitted(variant: SoftwareVariant) -> VariantFit:
    """Return the fit without changes to catalogue and stack."""
    point = np.zeros(WIDTHS.size)
    none: Flags = np.zeros(WIDTHS.size, dtype=bool)
    slopes = np.zeros((len(variant.runs), 0))
    return VariantFit(variant, point, none, slopes, variant.measured - variant.log_s(point))


@dataclass(frozen=True, slots=True)
class Mixture:
    """Fits of nothing, slack and all parameters with one software, weighted by evidence."""

    fits: tuple[VariantFit, ...]

    @classmethod
    def fitted(cls, variant: SoftwareVariant, fixed: Sequence[str]) -> Mixture:
        """Fit a mixture to the runs of a variant."""
        others = [name for name in PRIORS if name != "slack"]
        fits = _unfitted(variant), fit_variant(variant, others), fit_variant(variant, fixed)
        weights = cls(fits).weights
        return cls(tuple(fit for fit, w in zip(fits, weights, strict=True) if w > UNLIKELY))

    @property
    def variant(self) -> SoftwareVariant:
        return self.fits[0].variant

    @property
    def evidence(self) -> float:
        """Log probability of the times with equal priors of the fits."""
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
        """Standard deviations within and between the fits; nan if not observed."""
        observed = np.any([fit.observed for fit in self.fits], axis=0)
        squares = [np.nan_to_num(fit.sd) ** 2 + fit.point**2 for fit in self.fits]
        variance = np.maximum(self._mean(squares) - self.point**2, 0.0)
        return np.where(observed, np.sqrt(variance), np.nan)

    @property
    def residuals(self) -> Floats:
        return self.variant.measured - self.variant.log_s(self.point)

    @property
    def left_out(self) -> Floats:
        """Mean of the fits' (times are nearly linear in the parameters)."""
        return self._mean([fit.left_out for fit in self.fits])


def _slopes(variant: SoftwareVariant, point: Floats, varied: Flags, residuals: Floats) -> Floats:
    """Return finite differences over half a prior's width (smaller steps may miss host time)."""
    slopes = np.zeros((len(variant.runs), point.size))
    slopes[:, SLACK] = 1.0  # slack multiplies
    for i in np.flatnonzero(varied[1:]) + 1:
        moved = np.zeros(point.size)
        moved[i] = np.copysign(WIDTHS[i] / 2, SLOWER[i] if point[i] == 0 else point[i])
        rise = residuals - (variant.measured - variant.log_s(point + moved))
        slopes[:, i] = rise / moved[i]
    return slopes


def _precision(slopes: Floats, residuals: Floats, widths: Floats) -> Floats:
    precision: Floats = slopes.T @ (slopes * _weights(residuals)[:, None]) + np.diag(widths**-2.0)
    return precision


def _weights(residuals: Floats) -> Floats:
    return (FREEDOM + 1) / (FREEDOM * NOISE**2 + residuals**2)


def _cost(residuals: Floats, point: Floats) -> float:
    """Return the negative log posterior, up to a constant."""
    tails = (FREEDOM + 1) / 2 * np.log1p((residuals / NOISE) ** 2 / FREEDOM)
    return float(tails.sum() + 0.5 * ((point / WIDTHS) ** 2).sum())


def site_at(point: Floats, sd: Floats | None = None, **fields: Any) -> Site:
    """Return the site at log parameters, with 90 % intervals; unset where `sd` is nan."""
    spread = np.zeros(point.size) if sd is None else sd
    factors = {
        name: FactorInterval(value=np.exp(log), low=np.exp(log - width), high=np.exp(log + width))
        for name, log, width in zip(PRIORS, point, Z * spread, strict=True)
        if not np.isnan(width)
    }
    return Site(
        **{"name": "point"} | fields,
        slack=factors.get("slack"),
        host=factors.get("host"),
        overlap=Overlaps(odds=factors.get("overlap")),
        bandwidth=LevelFactors(inside=factors.get("inside"), between=factors.get("between")),
    )


def fit_runs(
    path: str | Path, base: Site | None = None, device: str = "h200"
) -> tuple[Site, RunsFit]:
    """Fit a site to a file of measured runs, or of steps of one device.

    Quantities that `base` has measured (a profile, NCCL's tests) are not fitted.
    """
    base = base or Site(name="catalogue")
    timed, skipped = _timed(path, base, device)
    fixed = [level for level in ("inside", "between") if getattr(base.bandwidth, level)]
    if base.host_kernel_s:
        fixed.append("host")
    mixed = [Mixture.fitted(variant, fixed) for variant in _likeliest(timed, base)]
    best = max(mixed, key=lambda mixture: mixture.evidence)
    catalogue = _unfitted(SoftwareVariant(timed, base))
    if len(timed) > 1 and _error(best.left_out) > _error(catalogue.residuals):
        best = Mixture((catalogue,))  # the fit predicts left-out runs worse than the catalogue
    errors = FitErrors(
        before=_error(catalogue.residuals),
        after=_error(best.residuals),
        left_out=_error(best.left_out) if len(timed) > 1 else None,
    )
    # Ranks without communication say nothing of how far off complete steps are.
    judges_steps = len(timed) > 1 and all(t.stage is None for t in timed)
    devices = ", ".join(dict.fromkeys(t.run.gpu.name for t in timed))
    site = site_at(
        best.point,
        best.sd,
        name=Path(path).stem,
        source=f"{len(timed)} runs of {Path(path).name} on {devices}",
        stack=best.variant.stack,
        attention=best.variant.attention,
        runs=len(timed),
        error=errors.left_out if judges_steps else None,
    )
    if judges_steps:
        site = site.model_copy(update={"errors": _run_errors(best, site)})
    software = (
        build_from(SoftwareFit, mixture.variant, evidence=mixture.evidence)
        for mixture in sorted(mixed, key=lambda mixture: -mixture.evidence)
    )
    return site, RunsFit(
        rows=len(timed) + len(skipped),
        fitted=len(timed),
        skipped=tuple(skipped),
        software=tuple(software),
        errors=errors,
    )


def fit_single_run(run: Run, layout: Layout, time_s: float, name: str) -> Site:
    """Fit a site to the step time of a single run, with its stated software."""
    timed = TimedRun(run, lambda site: (run.at(site), layout), float(np.log(time_s)))
    fit = fit_variant(SoftwareVariant([timed], Site(name="catalogue")))
    source = f"one run ({name}) on {run.devices} {run.gpu.name}"
    return site_at(fit.point, fit.sd, name=Path(name).stem, source=source, runs=1)


def _error(residuals: Floats) -> float:
    """Return the mean absolute relative error of predicted times."""
    return float(np.abs(np.expm1(-residuals)).mean())


def _run_errors(mixture: Mixture, site: Site) -> tuple[RunError, ...]:
    """Return the errors of a fit's runs, each predicted from the others, with the shares of their
    steps at the site.
    """
    variant = mixture.variant
    estimates = (
        Estimator(run.at(site)).estimate(layout)
        for run, layout in zip(variant.runs, variant.layouts, strict=True)
    )
    return tuple(
        RunError(log=log, shares=estimate.time_shares)
        for log, estimate in zip(mixture.left_out.tolist(), estimates, strict=True)
    )


def _timed(path: str | Path, base: Site, device: str) -> tuple[list[TimedRun], list[str]]:
    """Return the readable rows with a time, and the errors of the others."""

    def read(row: RunRow) -> TimedRun:
        if row.time_s is None:
            raise AtollError(f"{row.where}: no step time and no tokens/s")
        run, layout = run_at_site(row, base)
        Estimator(run).estimate(layout)
        stage = row.integer("pp_rank", 0) if row.is_rank else None
        return TimedRun(run, partial(run_at_site, row), float(np.log(row.time_s)), stage)

    timed, reasons = read_each(read_runs(path, device), read)
    skipped = list(reasons)
    if not timed:
        why = skipped[0] if skipped else "it has no rows"
        raise AtollError(f"{path}: no run can be fitted ({why})")
    if len(timed) > MOST_RUNS:
        timed = [timed[i] for i in np.linspace(0, len(timed) - 1, MOST_RUNS).round().astype(int)]
    return timed, skipped


def _likeliest(timed: Sequence[TimedRun], base: Site) -> list[SoftwareVariant]:
    """Return the kinds of software that explain the times best by slack alone."""
    default_stacks = {t.run.gpu.stack for t in timed}
    stacks = [s for s in STACKS if s != CHIP.name]
    if default_stacks == {"xla"}:  # a device that only runs compiled programs
        stacks = ["xla"]
    sample = timed[:: max(1, len(timed) // TRIED)]
    variants: dict[tuple[tuple[str, str], ...], tuple[float, SoftwareVariant]] = {}
    for stack, kernel in product((None, *stacks), KERNELS):
        site = base.model_copy(update={"stack": stack, "attention": kernel})
        variant = SoftwareVariant(sample, site)
        if variant.key in variants:
            continue
        try:
            variant.check()
        except AtollError:
            continue
        residuals = variant.measured - variant.log_s(np.zeros(WIDTHS.size))
        point = np.zeros(WIDTHS.size)
        variance = WIDTHS[SLACK] ** 2
        point[SLACK] = np.median(residuals) * variance / (variance + NOISE**2 / len(sample))
        cost = _cost(residuals - point[SLACK], point) + variant.prior
        variants[variant.key] = cost, variant
    ranked = sorted(variants.values(), key=lambda item: item[0])[:TRIED]
    software = [{"stack": v.stack, "attention": v.attention} for _, v in ranked]
    return [SoftwareVariant(timed, base.model_copy(update=choice)) for choice in software]
