"""Days, device-hours, dollars and energy of a complete run, with failures and checkpoints.

Devices fail independently at a constant rate; any failure stops the job, which continues from its
last checkpoint after a restart. With M the mean time between failures of the job, d the time of
writing a checkpoint, R that of a restart and t the work between two checkpoints, work of T seconds
takes (J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps",
Future Generation Computer Systems 22, 2006, equation 20)

    M e^(R / M) (e^((t + d) / M) - 1) T / t

seconds on average; the best t solves (1 - t / M) e^((t + d) / M) = 1. Its first order (J. W. Young,
CACM 17, 1974) is sqrt(2 d M).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, exp, expm1, inf

from atoll.base.errors import AtollError
from atoll.base.units import format_count

HOUR_S, DAY_S = 3600.0, 86400.0
MTBF_S = 16_384 * 54 * DAY_S / 419
"""Per device, including its share of hosts, network and software: 419 unexpected interruptions in
54 days on 16,384 H100 (The Llama 3 Herd of Models, 2024, section 3.3.4)."""
RESTART_S = 600.0
"""Time to detect a failure, replace the device and load the checkpoint: Llama 3's effective
training time of more than 90 % leaves at most 18 minutes per interruption, lost work included."""
CHECKPOINT_Bps = 2e12 / 16_384
"""Per device: Llama 3's storage sustained 2 TB/s (the same, section 3.3.1)."""
LONGEST = 700.0  # largest exponent: beyond it a job makes no progress


@dataclass(frozen=True, slots=True)
class RunLength:
    """User inputs for a complete run."""

    tokens: float
    price_per_h: float | None = None
    """Dollars per device."""
    mtbf_s: float = MTBF_S
    """Mean time between failures of one device."""
    checkpoint_s: float | None = None
    """Time training is paused per checkpoint; None: estimated from its bytes."""
    restart_s: float = RESTART_S


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRun:
    """Duration, cost and energy of a complete run."""

    tokens: float
    steps: int
    days: float
    """Mean, with failures."""
    days_low: float
    days_high: float
    """Upper end of the 90 % interval, from the interval of the step time."""
    busy_days: float
    """Without failures and checkpoints."""
    goodput: float
    """Share of the days spent on steps that are not repeated."""
    device_hours: float
    dollars: float | None
    energy_J: float | None
    """Energy of the devices; None without a power rating."""
    mtbf_s: float
    """Mean time between failures of the job."""
    interruptions: float
    checkpoint_bytes: float
    checkpoint_s: float
    """Time training is paused per checkpoint."""
    interval_s: float
    """Optimal work between two checkpoints."""
    interval_steps: int
    restart_s: float

    def cost_sentence(self) -> str:
        """Describe days, device-hours, dollars and energy."""
        time = self.time_words(self.days_low, self.days_high)
        cost = ""
        if self.dollars is not None:
            ends = (self.dollars * days / self.days for days in (self.days_low, self.days_high))
            cost = f", ${_few(self.dollars)} ({' to '.join(map(_thousands, ends))})"
        energy = "" if self.energy_J is None else f", {_few(self.energy_J / 3.6e9)} MWh"
        return (
            f"{time} for {format_count(self.tokens)} tokens, "
            f"{self.device_hours:,.0f} device-hours{cost}{energy}"
        )

    def time_words(self, *interval: float) -> str:
        """Describe the days, and their interval, in days, hours or minutes."""
        units = (("days", 1), ("hours", 24), ("minutes", 1440))
        unit, n = next((u for u in units if self.days * u[1] >= 1), units[-1])
        between = f" ({' to '.join(_few(n * x) for x in interval)})" if interval else ""
        return f"{_few(n * self.days)} {unit}{between}"

    def failure_sentence(self) -> str:
        """Describe failures, and how often to write a checkpoint."""
        seconds = (self.mtbf_s, self.restart_s, self.checkpoint_s, self.interval_s)
        time_between, restart, pause, interval = map(format_time, seconds)
        return (
            f"{self.goodput:.1%} of the time counts: an interruption every {time_between} "
            f"({_few(self.interruptions)} in the whole run) with a restart of "
            f"{restart}; write a checkpoint ({_few(self.checkpoint_bytes / 1e9)} GB "
            f"in {pause}) every {self.interval_steps:,} steps ({interval})"
        )


def _few(value: float) -> str:
    """Format with three digits, or as an integer from 1,000."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _thousands(dollars: float) -> str:
    """Format with three digits and k or M, as `--budget` takes it."""
    size, unit = (1e6, "M") if dollars >= 1e6 else (1e3, "k")
    return f"{_few(dollars / size)}{unit}" if dollars >= 1e3 else _few(dollars)


def format_time(seconds: float) -> str:
    units = {"days": DAY_S, "h": HOUR_S, "min": 60.0}
    unit, unit_s = next((x for x in units.items() if seconds >= 2 * x[1]), ("s", 1.0))
    return f"{seconds / unit_s:,.3g} {unit}"


def best_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """Find the optimal work between two checkpoints by bisection."""
    low, high = 0.0, mtbf_s  # the left side falls from e^(d / M) to 0
    for _ in range(200):
        middle = (low + high) / 2
        if (1 - middle / mtbf_s) * exp(min((middle + checkpoint_s) / mtbf_s, LONGEST)) > 1:
            low = middle
        else:
            high = middle
    return high


def stretch(interval_s: float, checkpoint_s: float, restart_s: float, mtbf_s: float) -> float:
    """Return the job's time divided by the time of its work; infinite without progress."""
    rounds, again = (interval_s + checkpoint_s) / mtbf_s, restart_s / mtbf_s
    if rounds + again > LONGEST:
        return inf
    return mtbf_s * exp(again) * expm1(rounds) / interval_s


def run_totals(
    length: RunLength,
    step_s: float,
    step_s_range: tuple[float, float],
    step_tokens: int,
    devices: int,
    state_bytes: float,
    power_W: float | None,
) -> WholeRun:
    """Estimate a run of equal steps.

    `step_s_range` is the interval of the step time, `state_bytes` the size of a checkpoint,
    `power_W` the mean power per device over a step.
    """
    steps = max(1, ceil(length.tokens / step_tokens))
    mtbf_s = length.mtbf_s / devices
    write_s = state_bytes / (CHECKPOINT_Bps * devices)
    if length.checkpoint_s is not None:
        write_s = length.checkpoint_s
    best_s = best_interval_s(write_s, mtbf_s)

    def slowdown_at(seconds: float) -> tuple[float, int]:
        """Return the slowdown of steps of this length, and the steps between two checkpoints."""
        interval = min(steps, max(1, round(best_s / seconds)))
        return stretch(interval * seconds, write_s, length.restart_s, mtbf_s), interval

    slowdown, interval_steps = slowdown_at(step_s)
    if slowdown == inf:
        raise AtollError(
            f"mtbf: {devices:,} devices that fail every {format_time(length.mtbf_s)} stop every "
            f"{format_time(mtbf_s)}; with restarts of {format_time(length.restart_s)} the run "
            "gets nowhere"
        )
    low, high = (steps * end_s * slowdown_at(end_s)[0] / DAY_S for end_s in step_s_range)
    seconds = steps * step_s * slowdown
    hours = seconds * devices / HOUR_S
    return WholeRun(
        tokens=length.tokens,
        steps=steps,
        days=seconds / DAY_S,
        days_low=low,
        days_high=high,
        busy_days=steps * step_s / DAY_S,
        goodput=1 / slowdown,
        device_hours=hours,
        dollars=None if length.price_per_h is None else hours * length.price_per_h,
        energy_J=None if power_W is None else seconds * devices * power_W,
        mtbf_s=mtbf_s,
        interruptions=seconds / mtbf_s,
        checkpoint_bytes=state_bytes,
        checkpoint_s=write_s,
        interval_s=interval_steps * step_s,
        interval_steps=interval_steps,
        restart_s=length.restart_s,
    )
