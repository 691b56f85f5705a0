"""Uncertainty of an estimate by cause: its interval, and what would narrow it.

The logarithm of measured over predicted values is modelled as

    bias + sum of (share of a cause x its error) + rest

where the share is the part of the step (or of the memory) that the cause acts on. Errors of causes
are normal and common to all runs of one source; the rest differs from run to run. Measured runs of
a site narrow them (`updated`). The standard
deviations in `data/errors.yaml` are fitted by maximum likelihood to measured runs of all sources;
`reach` is the number of standard deviations that contains 90 % of the runs of sources which the fit
had not seen (`benchmarks/error_causes.py`; docs/accuracy.md, "Intervals").
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files

import numpy as np
from pydantic import Field

from atoll.answers.layout import ErrorCause, NarrowedInterval, ValueRange
from atoll.files.yamlfile import Count, Factor, FileModel, Share, read_shipped
from atoll.step.layout import Layout
from atoll.training.accuracy import unpriced_doubt
from atoll.training.memory import Memory
from atoll.training.run import Run
from atoll.training.site import RunError

ERRORS = files("atoll") / "data" / "errors.yaml"
CAUSES = {
    "products": "matrix products",
    "attention": "attention kernels",
    "vector": "vector kernels",
    "optimizer": "optimizer",
    "host": "launches from the host",
    "inside": "collectives inside a node",
    "between": "collectives between nodes",
    "network": "network that was not stated",
    "pipeline": "pipeline",
    "slowest": "wait for the slowest device",
    "device": "device whose operators were not timed",
    "sharding": "how the software shards weights and gradients",
    "source": "what differs from site to site",
    "arguments": "arguments that are not priced",
    "states": "weights, gradients and optimizer states",
    "activations": "activations",
    "buffers": "logits, transient tensors and buffers",
    "rest": "differences that no cause explains",
}
"""Causes of errors, in words."""
EXCLUSIVE = (
    "products", "attention", "vector", "optimizer", "host", "inside", "between", "pipeline",
)  # fmt: skip
"""Causes of which exactly one acts on each second of a step: their shares add up to 1."""
ON_DEVICE = ("products", "attention", "vector", "optimizer", "host", "device", "sharding")
COLLECTIVES = ("inside", "between", "network")
REPEATED = 0.03
"""Relative error that a measured part keeps: steps and collectives repeat within 1 to 3 %."""
SITE_RUNS = 3
"""Runs that a site is calibrated on, as proposed."""
SURE = 4.0
"""Measured runs that the shipped size of errors counts as, beside those of a site."""
TINY = 1e-30
DRAWS = 4000
"""Draws for the chance of being the fastest: accurate to one percentage point."""
NORMAL_REACH = 1.6448536269514722
"""Standard deviations on either side of 90 % of a normal distribution."""
NORMAL_QUARTILE = 0.6744897501960817


class ErrorFit(FileModel):
    """Distribution of the logarithm of measured over predicted values."""

    rows: Count
    sources: Count
    mean: Factor
    """Mean absolute error."""
    bias: float = Field(ge=-1, le=1)
    causes: Mapping[str, Factor]
    """Standard deviation of the error of each cause."""
    rest: Factor
    """Standard deviation of what differs from run to run."""
    reach: Factor
    """Standard deviations on either side of the interval."""
    coverage: Share
    """Rows inside the interval if their source is left out, averaged over sources."""
    half_width: Factor
    """Mean half width of these intervals."""


class BetweenLayouts(FileModel):
    """Relative errors between pairs of layouts of one run with similar predictions."""

    groups: Count
    rows: Count
    median: Factor


class ErrorFits(FileModel):
    share: Share
    """Share of runs that an interval is to contain."""
    devices: tuple[str, ...] = Field(min_length=1)
    """Devices with timed operators, by the first part of their names."""
    step_time: ErrorFit
    memory: ErrorFit
    between_layouts: BetweenLayouts


@lru_cache(maxsize=1)
def error_fits() -> ErrorFits:
    return read_shipped(ERRORS.read_text(encoding="utf-8"), ErrorFits, ERRORS.name)


@dataclass(frozen=True, slots=True)
class Spread:
    """Distribution of the logarithm of measured over predicted values of one estimate."""

    causes: Mapping[str, float]
    """Standard deviation that each cause adds: its share times its error."""
    rest: float
    bias: float
    reach: float

    @property
    def sd(self) -> float:
        return math.hypot(self.rest, *self.causes.values())

    @property
    def ratios(self) -> tuple[float, float]:
        """Return the interval of measured over predicted values."""
        half_width = self.reach * self.sd
        return math.exp(self.bias - half_width), math.exp(self.bias + half_width)

    @property
    def mean_error(self) -> float:
        """Return the mean absolute error of a normal distribution with this interval."""
        sd, bias = self._normal_sd, self.bias
        folded = sd * math.sqrt(2 / math.pi) * math.exp(-0.5 * (bias / sd) ** 2)
        return folded + bias * math.erf(bias / sd / math.sqrt(2))

    @property
    def _normal_sd(self) -> float:
        """Return the standard deviation of a normal distribution with this interval."""
        return self.sd * self.reach / NORMAL_REACH

    def quantile(self, share: float) -> float:
        """Return the ratio of measured over predicted values below which a share of runs lies."""
        from statistics import NormalDist  # which few answers need

        return math.exp(self.bias + self._normal_sd * NormalDist().inv_cdf(share))

    @property
    def expected(self) -> float:
        """Return the mean of measured over predicted values."""
        return math.exp(self.bias + self._normal_sd**2 / 2)

    def chance_above(self, ratio: float) -> float:
        """Return the chance that measured over predicted values exceed a ratio."""
        if ratio <= 0:
            return 1.0
        score = (math.log(ratio) - self.bias) / self._normal_sd
        return 0.5 * math.erfc(score / math.sqrt(2))

    def with_cause(self, name: str, half_width: float) -> Spread:
        """Return the distribution with a further cause, given the half width of its interval."""
        if not half_width:
            return self
        return replace(self, causes={**self.causes, name: half_width / self.reach})

    def interval(self, predicted: float) -> ValueRange:
        low, high = self.ratios
        return ValueRange(predicted * low, predicted * high)

    def parts(self) -> tuple[ErrorCause, ...]:
        """Return the causes by their share of the variance, largest first."""
        variance = self.sd**2
        sds = {**self.causes, "rest": self.rest}
        return tuple(
            ErrorCause(
                cause=name,
                title=CAUSES[name],
                share=sd**2 / variance,
                half_width=math.expm1(self.reach * sd),
            )
            for name, sd in sorted(sds.items(), key=lambda pair: -pair[1])
            if sd > 0
        )


def spread(fit: ErrorFit, shares: Mapping[str, float]) -> Spread:
    """Return the distribution of an estimate with these shares of causes."""
    sds = {name: shares[name] * sd for name, sd in fit.causes.items() if shares.get(name)}
    return Spread(sds, fit.rest, fit.bias, fit.reach)


def updated(fit: ErrorFit, shares: Mapping[str, float], runs: Sequence[RunError]) -> Spread:
    """Return the distribution of an estimate after measured runs of its site, to which the site's
    parameters were fitted: the posterior of errors that causes have in common, in closed form. With
    shares x of the estimate and X of the runs, each times the standard deviations of its causes:

        C = X X' + rest^2,    mean = x X' C^-1 y,    variance = x (1 - X' C^-1 X) x' + rest^2

    The mean, which the site's parameters do not explain, widens the rest. All other widths are
    multiplied by sqrt((SURE + y' C^-1 y) / (SURE + runs)), with the errors y of runs, each
    predicted from the others: they say whether errors here are as large as elsewhere (Student's
    distribution).
    """
    names = list(fit.causes)
    sds = np.array(list(fit.causes.values()))
    x = sds * [shares.get(name, 0.0) for name in names]
    measured = sds * [[run.shares.get(name, 0.0) for name in names] for run in runs]
    logs = np.array([run.log for run in runs])
    common = measured @ measured.T + fit.rest**2 * np.eye(len(runs))
    left = np.eye(x.size) - measured.T @ np.linalg.solve(common, measured)
    misfit = logs @ np.linalg.solve(common, logs)
    scale = math.sqrt((SURE + misfit) / (SURE + len(runs)))
    # Causes are no longer independent: each has its part of their variance by its own one.
    alone = np.abs(x) * np.sqrt(np.diag(left))
    scale_causes = scale * math.sqrt(max(0.0, x @ left @ x) / max(alone @ alone, TINY))
    pairs = zip(names, (scale_causes * alone).tolist(), strict=True)
    causes = {name: sd for name, sd in pairs if sd}
    mean = x @ measured.T @ np.linalg.solve(common, logs)
    return Spread(causes, math.hypot(scale * fit.rest, mean), 0.0, fit.reach)


def step_spread(run: Run, shares: Mapping[str, float]) -> Spread:
    """Return the distribution of measured over estimated step times with these shares of causes."""
    shipped, site = spread(error_fits().step_time, shares), run.site
    if site is not None and site.reach is not None:
        sd = min(site.reach / shipped.reach, shipped.sd)
        shipped = replace(shipped, causes={}, rest=sd, bias=0.0)
    elif site is not None and site.errors:
        shipped = updated(error_fits().step_time, shares, site.errors)
    return shipped.with_cause("arguments", unpriced_doubt(run.arguments))


def least_time_spread(run: Run, layout: Layout) -> Spread:
    """Return a distribution that is no wider than that of any step of the layout. The sum of
    (share x error)^2 over causes whose shares add up to 1 is least where shares are proportional to
    1 / error^2. At a site with measured runs the rest alone is counted.
    """
    if run.site is not None and run.site.errors:
        return step_spread(run, {})
    errors = error_fits().step_time.causes
    weights = {name: errors[name] ** -2 for name in EXCLUSIVE}
    shares = {name: weight / sum(weights.values()) for name, weight in weights.items()}
    return step_spread(run, shares | _layout_shares(layout.zero))


def _layout_shares(zero: int) -> dict[str, float]:
    """Return the shares of causes that act on all of a step or not at all."""
    return {"sharding": float(zero >= 2), "source": 1.0}


def time_shares(
    run: Run,
    layout: Layout,
    parts_s: Mapping[str, float],
    classes_s: Mapping[str, float],
    launch_ratio: float,
) -> dict[str, float]:
    """Return the shares of a step that causes of errors act on, from its seconds by part, its
    kernels' seconds by class, and the host time of passes over their device time. Where the host
    limits them, errors of its time act on the passes and errors of kernels do not:

        chance that the host limits = Phi(log(ratio) / error of host times)
    """
    step_s = sum(parts_s.values())
    part = {name: seconds / step_s for name, seconds in parts_s.items()}
    passes = part["compute"] + part["recompute"]
    launched = passes * host_chance(launch_ratio)
    compute = passes - launched + part["gradient_accumulation"]
    kernels_s = sum(classes_s.values()) - classes_s["optimizer"]
    of = {name: compute * seconds / kernels_s for name, seconds in classes_s.items()}
    ranks, node = layout.tp * layout.cp, run.network.node
    collectives = (
        (part["tensor_parallel"], layout.tp),
        (part["context_parallel"], ranks),
        (part["expert_parallel"], layout.etp * layout.ep),
        (part["sharded_weights"] + part["gradient_reduction"], ranks * layout.dp),
    )
    between = sum(share for share, extent in collectives if extent > node)
    return {
        "products": of["products"],
        "attention": of["attention"],
        "vector": of["streaming"] + of["softmax/loss"] + of["memory"],
        "optimizer": part["optimizer"],
        "host": part["host"] + launched,
        "inside": sum(share for share, extent in collectives if extent <= node),
        "between": between,
        "network": between if run.network_assumed else 0.0,
        "pipeline": part["pipeline_bubble"] + part["pipeline_sends"],
        "slowest": run.waiting - 1,
        "device": 0.0 if is_measured(run, layout) else compute,
        **_layout_shares(layout.zero),
    }


def host_chance(launch_ratio: float) -> float:
    """Return the chance that launches limit passes, given the expected ratio of host to device."""
    if not launch_ratio:
        return 0.0
    errors = math.sqrt(2) * error_fits().step_time.causes["host"]
    return 0.5 * math.erfc(-math.log(launch_ratio) / errors)


def memory_shares(zero: int, parts_bytes: Mapping[str, float]) -> dict[str, float]:
    """Return the shares of a stage's allocated memory that causes of errors act on."""
    total_bytes = sum(parts_bytes.values())
    states = sum(parts_bytes[name] for name in ("weights", "gradients", "optimizer")) / total_bytes
    activations = parts_bytes["activations"] / total_bytes
    buffers = 1 - states - activations
    shares = {"states": states, "activations": activations, "buffers": buffers}
    return shares | _layout_shares(zero)


def memory_spread(run: Run, layout: Layout, stage: Memory) -> Spread:
    """Return the distribution of measured over estimated memory of a stage."""
    shipped = spread(error_fits().memory, memory_shares(layout.zero, stage.parts()))
    return shipped.with_cause("arguments", unpriced_doubt(run.arguments))


def most_needed_bytes(run: Run, layout: Layout, stage: Memory) -> float:
    """Return what a stage needs at the upper end of its interval."""
    allocated = memory_spread(run, layout, stage).interval(stage.allocated).high
    return allocated + stage.needed - stage.allocated


LONG = 65536
"""Tokens from which measured ring attention is slower than estimated."""


def is_measured(run: Run, layout: Layout) -> bool:
    """Return whether the device was timed at its clock and the layout is not extrapolated."""
    beyond = (layout.cp > 1 and run.sequence >= LONG) or run.gpu.cap_W is not None
    names = {run.gpu.name, run.gpu.name.partition("-")[0]}  # a100-40 is an a100
    return not beyond and not names.isdisjoint(error_fits().devices)


def narrowed(time: Spread, predicted_s: float) -> tuple[NarrowedInterval, ...]:
    """Return what would narrow an interval and by how much, the most effective first."""
    network = "state the network (--network)"
    collectives = "run nccl-tests on the nodes and pass the log to atoll calibrate --nccl-tests"
    on_device = "time one rank on one device (atoll measure) and pass the row to atoll calibrate"
    site = f"pass {SITE_RUNS} measured runs of the site to atoll calibrate --data"
    # What is not among the causes stays as wide as it is, and is left out.
    options = {
        network: _measured(time, ("network",), 0.0),
        collectives: _measured(time, COLLECTIVES, REPEATED),
        on_device: _measured(time, ON_DEVICE, REPEATED),
        site: _after_runs(time, SITE_RUNS),
    }
    rows = [
        NarrowedInterval(action=words, step_time_s=after.interval(predicted_s))
        for words, after in options.items()
        if after.sd < time.sd * (1 - 1e-3)
    ]
    return tuple(sorted(rows, key=lambda row: row.step_time_s.high - row.step_time_s.low))


def _measured(time: Spread, names: Sequence[str], error: float) -> Spread:
    """Return the distribution once the named causes are measured to a relative error."""
    fits = error_fits().step_time.causes
    left = {name: min(1.0, error / fits[name]) for name in names if name in fits}
    causes = {name: sd * left.get(name, 1.0) for name, sd in time.causes.items()}
    return replace(time, causes=causes)


def _after_runs(time: Spread, runs: int) -> Spread:
    """Return the distribution after so many measured runs with the same shares: the posterior of
    errors that all runs of a source have in common.
    """
    common = sum(sd**2 for sd in time.causes.values())
    left = math.sqrt(1 / (1 + runs * common / time.rest**2))
    return replace(time, causes={name: sd * left for name, sd in time.causes.items()}, bias=0.0)


def fastest_chances(times_s: Sequence[float], spreads: Sequence[Spread]) -> tuple[float, ...]:
    """Return the chance of each layout of one run to be the fastest of all. Errors of causes are
    common to the layouts: only differences of their shares count.
    """
    if len(times_s) == 1:
        return (1.0,)
    names = sorted({name for one in spreads for name in one.causes})
    scale = spreads[0].reach / NORMAL_REACH
    sds = np.array([[one.causes.get(name, 0.0) for name in names] for one in spreads]) * scale
    # The median difference between pairs is 0.674 sqrt(2) standard deviations of one.
    own_sd = error_fits().between_layouts.median / (NORMAL_QUARTILE * math.sqrt(2))
    draws = np.random.default_rng(0)
    logs = np.log(times_s) + draws.standard_normal((DRAWS, len(names))) @ sds.T
    logs += own_sd * draws.standard_normal(logs.shape)
    counts = np.bincount(np.argmin(logs, axis=1), minlength=len(times_s))
    return tuple((counts / DRAWS).tolist())
