"""A whole run: its days, device-hours, dollars and energy, failures and checkpoints included.

Devices fail independently at a constant rate; any failure stops the job, which goes on from its
last checkpoint after a restart. With M the mean time between failures of the job, d the time of
writing a checkpoint, R that of a restart and t the work between two checkpoints, work of T seconds
takes (J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps",
Future Generation Computer Systems 22, 2006, equation 20)

    M e^(R / M) (e^((t + d) / M) - 1) T / t

seconds on average; the t that makes this least solves (1 - t / M) e^((t + d) / M) = 1. The first
order of it (J. W. Young, CACM 17, 1974) is sqrt(2 d M).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, exp, expm1, inf

from atoll.errors import AtollError
from atoll.units import format_count

HOUR_S, DAY_S = 3600.0, 86400.0
MTBF_S = 16_384 * 54 * DAY_S / 419
"""Of one device, with its share of hosts, network and software: 419 unexpected interruptions in 54
days on 16,384 H100 (The Llama 3 Herd of Models, 2024, section 3.3.4)."""
RESTART_S = 600.0
"""To notice a failure, replace what failed and load the checkpoint: Llama 3's effective training
time of more than 90 % leaves at most 18 minutes for each interruption, work lost included."""
CHECKPOINT_Bps = 2e12 / 16_384
"""Of one device: storage of Llama 3 sustained 2 TB/s (the same, section 3.3.1)."""
LONGEST = 700.0  # of exponents: beyond, a job gets nowhere


@dataclass(frozen=True, slots=True)
class Length:
    """What a user says of a whole run."""

    tokens: float
    price_per_h: float | None = None
    """Dollars, of one device."""
    mtbf_s: float = MTBF_S
    """Mean time between failures of one device."""
    checkpoint_s: float | None = None
    """For which training stands still while a checkpoint is written; by its bytes where none."""
    restart_s: float = RESTART_S


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRun:
    """A run from its first token to its last."""

    tokens: float
    steps: int
    days: float
    """On average, failures included."""
    days_low: float
    days_high: float
    """Between which the days of 90 % of such runs lie, by the interval of their steps."""
    busy_days: float
    """Without failures and checkpoints."""
    goodput: float
    """Of the days, the part in which steps are run that count."""
    device_hours: float
    dollars: float | None
    energy_J: float | None
    """Of the devices; none where their rating is not known."""
    mtbf_s: float
    """Of the job."""
    interruptions: float
    checkpoint_bytes: float
    checkpoint_s: float
    """Training stands still for each."""
    interval_s: float
    """Work between two checkpoints, at which all takes least."""
    interval_steps: int
    restart_s: float

    def sentences(self) -> tuple[str, str]:
        """What it takes, and what failures do."""
        cost = "" if self.dollars is None else f", {self.dollars:,.0f} dollars"
        energy = (
            "" if self.energy_J is None else f", {_few(self.energy_J / 3.6e9)} MWh of the devices"
        )
        return (
            f"{format_count(self.tokens)} tokens take {self.steps:,} steps and {_few(self.days)} "
            f"days ({_few(self.days_low)} to {_few(self.days_high)}), {self.device_hours:,.0f} "
            f"device-hours{cost}{energy}",
            f"of that time {self.goodput:.1%} is training that counts: an interruption every "
            f"{_time(self.mtbf_s)}, {_few(self.interruptions)} in all, a restart of "
            f"{_time(self.restart_s)}; a checkpoint ({_few(self.checkpoint_bytes / 1e9)} GB in "
            f"{_time(self.checkpoint_s)}) is best written every {self.interval_steps:,} steps "
            f"({_time(self.interval_s)})",
        )


def _few(value: float) -> str:
    """Three digits, or all of a whole number."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _time(seconds: float) -> str:
    for unit, size in (("days", 2 * DAY_S), ("h", 2 * HOUR_S), ("min", 120.0), ("s", 0.0)):
        if seconds >= size:
            whole = {"days": DAY_S, "h": HOUR_S, "min": 60.0, "s": 1.0}[unit]
            return f"{seconds / whole:,.3g} {unit}"
    raise AssertionError


def best_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """Work between two checkpoints with which a job takes least time, by bisection."""
    low, high = 0.0, mtbf_s  # the left side falls from e^(d / M) to 0
    for _ in range(200):
        middle = (low + high) / 2
        if (1 - middle / mtbf_s) * exp(min((middle + checkpoint_s) / mtbf_s, LONGEST)) > 1:
            low = middle
        else:
            high = middle
    return high


def stretch(interval_s: float, checkpoint_s: float, restart_s: float, mtbf_s: float) -> float:
    """Time of a job over that of its work alone; infinite where it gets nowhere."""
    rounds, again = (interval_s + checkpoint_s) / mtbf_s, restart_s / mtbf_s
    if rounds + again > LONGEST:
        return inf
    return mtbf_s * exp(again) * expm1(rounds) / interval_s


def whole_run(
    asked: Length,
    step_s: float,
    ends: tuple[float, float],
    step_tokens: int,
    devices: int,
    state_bytes: float,
    power_W: float | None,
) -> WholeRun:
    """A run of equal steps.

    `ends`: of the interval of a step's seconds. `state_bytes`: of a checkpoint. `power_W`: mean of
    one device over a step.
    """
    steps = max(1, ceil(asked.tokens / step_tokens))
    mtbf_s = asked.mtbf_s / devices
    write_s = asked.checkpoint_s
    if write_s is None:
        write_s = state_bytes / (CHECKPOINT_Bps * devices)

    def took(seconds: float) -> tuple[float, int]:
        """Times longer than its steps alone, and the steps between two checkpoints."""
        best_s = best_interval_s(write_s, mtbf_s)
        every = min(steps, max(1, round(best_s / seconds)))
        return stretch(every * seconds, write_s, asked.restart_s, mtbf_s), every

    longer, every = took(step_s)
    if longer == inf:
        raise AtollError(
            f"mtbf: {devices:,} devices that fail every {_time(asked.mtbf_s)} stop every "
            f"{_time(mtbf_s)}; with restarts of {_time(asked.restart_s)} the run gets nowhere"
        )
    low, high = (steps * end * took(end)[0] / DAY_S for end in ends)
    seconds = steps * step_s * longer
    hours = seconds * devices / HOUR_S
    return WholeRun(
        tokens=asked.tokens,
        steps=steps,
        days=seconds / DAY_S,
        days_low=low,
        days_high=high,
        busy_days=steps * step_s / DAY_S,
        goodput=1 / longer,
        device_hours=hours,
        dollars=None if asked.price_per_h is None else hours * asked.price_per_h,
        energy_J=None if power_W is None else seconds * devices * power_W,
        mtbf_s=mtbf_s,
        interruptions=seconds / mtbf_s,
        checkpoint_bytes=state_bytes,
        checkpoint_s=write_s,
        interval_s=every * step_s,
        interval_steps=every,
        restart_s=asked.restart_s,
    )
