"""Conversion of "80 GiB", "400 Gb/s" or "1.05 GHz" to plain floats, and back.

Quantities are floats in the base unit of their dimension, which names state: bytes, bytes per
second (`_Bps`), hertz, square millimetres (`_mm2`), watts, seconds, joules. Case matters: B is a
byte and b a bit, M is mega and m milli.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial

from atoll.base.errors import AtollError

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_SMALL = {"": 1.0, "m": 1e-3, "u": 1e-6, "µ": 1e-6, "μ": 1e-6, "n": 1e-9, "p": 1e-12, "f": 1e-15}


@dataclass(frozen=True)
class Dimension:
    """A kind of quantity: its units, as factors of the base unit, and those to print it in."""

    noun: str
    example: str
    units: Mapping[str, float]
    display: str  # between blanks, smallest first
    low: float
    high: float  # plausible amounts other than 0, in the base unit

    @property
    def shown(self) -> list[str]:
        return self.display.split(" ")


class UnitError(AtollError, ValueError):
    """A quantity that cannot be parsed; also a ValueError, which pydantic collects."""


def _scaled(prefixes: Mapping[str, float], *units: str, factor: float = 1.0) -> dict[str, float]:
    return {prefix + unit: scale * factor for unit in units for prefix, scale in prefixes.items()}


_LARGE = {"k": 1e3, "M": 1e6, "G": 1e9}
_SQUARE = ("2", "^2", "²")
_BYTE_UNITS = _scaled(_DECIMAL, "B") | _scaled(_BINARY, "B")
_BANDWIDTHS = _scaled(_BYTE_UNITS, "/s") | _scaled(_DECIMAL, "b/s", "bit/s", "bps", factor=1 / 8)
_BITS = _scaled(_SMALL, "J/bit", "J/b") | _scaled(_SMALL, "J/B", factor=1 / 8)
_AREAS = _scaled({"um": 1e-6, "µm": 1e-6, "mm": 1.0, "cm": 1e2}, *_SQUARE)
_DENSITIES = _scaled({"W/mm": 1.0, "W/cm": 1e-2}, *_SQUARE)
_TIMES = _scaled(_SMALL, "s") | {"min": 60.0, "h": 3600.0, "d": 86400.0}
_RATES = "FLOP/s kFLOP/s MFLOP/s GFLOP/s TFLOP/s PFLOP/s EFLOP/s"
_PRICES = {"": 1.0, "/h": 1.0, "$/h": 1.0, "USD/h": 1.0}

BYTES = Dimension("an amount of memory", "80 GiB", _BYTE_UNITS, "B KiB MiB GiB TiB PiB", 1, 2.0**60)
BANDWIDTH = Dimension(
    "a bandwidth", "900 GB/s", _BANDWIDTHS, "B/s kB/s MB/s GB/s TB/s PB/s", 1, 1e18
)
FREQUENCY = Dimension(
    "a frequency", "1.05 GHz", _scaled(_DECIMAL, "Hz"), "Hz kHz MHz GHz THz", 1e3, 1e11
)
AREA = Dimension("an area", "278.8 mm2", _AREAS, "um2 mm2", 1e-12, 1e6)
POWER = Dimension("a power", "400 W", _scaled(_SMALL | _LARGE, "W"), "uW mW W kW MW", 1e-15, 1e9)
POWER_DENSITY = Dimension("a power density", "0.8 W/mm2", _DENSITIES, "W/mm2", 1e-6, 100)
TIME = Dimension("a time", "30 s", _TIMES, "ps ns us ms s min h d", 1e-15, 1e10)
ENERGY = Dimension(
    "an energy", "3.9 pJ", _scaled(_SMALL | _LARGE, "J"), "fJ pJ nJ uJ mJ J kJ MJ", 1e-21, 1e18
)
ENERGY_PER_BIT = Dimension(
    "an energy per bit", "3.9 pJ/bit", _BITS, "fJ/bit pJ/bit nJ/bit", 1e-21, 1e-3
)
FLOPS = Dimension(
    "a compute rate", "275 TFLOP/s", _scaled(_DECIMAL, "FLOP/s", "FLOPS"), _RATES, 1e3, 1e21
)
TOKENS = Dimension("a number of tokens", "1T", _DECIMAL | {"B": 1e9}, " k M B T", 1, 1e18)
PRICE = Dimension("dollars per device and hour", "2.5/h", _PRICES, "/h", 1e-9, 1e6)
SHARE = Dimension("a share", "10%", {"": 1.0, "%": 0.01}, "%", 1e-9, 1)

DIMENSIONS = (BYTES, BANDWIDTH, FREQUENCY, AREA, POWER, TIME, ENERGY, ENERGY_PER_BIT, FLOPS)

_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*")


def parse_quantity(value: object, dimension: Dimension, default_unit: str | None = None) -> float:
    """Return the value in the dimension's base unit.

    Takes text with a unit; a plain number only where `default_unit` says what it counts. Anything
    else (another dimension, negative, not finite, a flag, an amount beyond what is plausible) is
    refused with a sentence.
    """
    expected = f'expected {dimension.noun} such as "{dimension.example}", got {_shown(value)}'
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise UnitError(expected)
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value)
        if match is None:
            raise UnitError(expected)
        number, unit = match[1], match[2] or default_unit
    else:
        huge = isinstance(value, int) and abs(value) > 10**300
        number, unit = "1e300" if huge else repr(value), default_unit
    if not math.isfinite(float(number)):
        raise UnitError(f"{expected}, which is not a finite number")
    if float(number) < 0:
        raise UnitError(f"{expected}, which is negative")
    if unit is None:
        raise UnitError(f"{expected} without a unit")
    if unit not in dimension.units:
        raise UnitError(f"{expected}, {_about_unit(unit, dimension)}")
    # in decimal, so that "3.4 us" is the float 3.4e-6 and not its neighbour
    amount = float(Decimal(number) * Decimal(repr(dimension.units[unit])))
    if amount != 0 and not dimension.low <= amount <= dimension.high:
        low, high = (format_quantity(x, dimension).strip() for x in (dimension.low, dimension.high))
        raise UnitError(f"{expected}, which is not between {low} and {high}")
    return amount


def parse_bytes(value: object) -> int:
    """Return an amount of memory in bytes."""
    return round(parse_quantity(value, BYTES))


def _shown(value: object) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**40 else "a huge number"
    return text if len(text) <= 60 else text[:57] + "..."


def _about_unit(unit: str, dimension: Dimension) -> str:
    for candidate in DIMENSIONS:
        if unit in candidate.units:
            return f"which is {candidate.noun}"
    if alike := [name for name in dimension.units if name.lower() == unit.lower()]:
        return f"where {unit!r} is not a unit, did you mean {' or '.join(alike)}?"
    return f"where {unit!r} is not a unit, use one of {', '.join(filter(None, dimension.shown))}"


def format_quantity(value: float, dimension: Dimension, digits: int = 4) -> str:
    """Return the value in the largest unit that leaves at least 1."""
    if not math.isfinite(value):
        return f"{value} {dimension.shown[-1]}"
    # round first, so that 999.96 becomes "1 kW" and not "1000 W"
    rounded = float(f"{value:.{digits - 1}e}")
    fitting = [unit for unit in dimension.shown if abs(rounded) >= dimension.units[unit]]
    if rounded == 0:
        unit = next(unit for unit, factor in dimension.units.items() if factor == 1.0)
    else:
        unit = fitting[-1] if fitting else dimension.shown[0]
    return f"{_digits(value / dimension.units[unit], digits)} {unit}"


def _digits(number: float, digits: int) -> str:
    """Format significant digits, with an exponent only below 1e-4 and from 1e9."""
    if number != 0 and not 1e-4 <= abs(number) < 1e9:
        return f"{number:.{digits}g}"
    decimals = digits if number == 0 else digits - 1 - math.floor(math.log10(abs(number)))
    text = f"{round(number, decimals):.{max(decimals, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


_TOKENS = re.compile(r"([0-9]+\.?[0-9]*)\s*([kKmM]?)")


def parse_tokens(value: object) -> object:
    """Read "32k" as 32,768 and "4M" as 4,194,304, as sequences and batches are counted; return
    what is no text as it is.
    """
    if not isinstance(value, str):
        return value
    match = _TOKENS.fullmatch(value.strip())
    tokens = float(match[1]) * 1024 ** ["", "k", "m"].index(match[2].lower()) if match else 0.5
    if not tokens.is_integer():
        raise ValueError(f'expected a number of tokens such as 8192, "8k" or "4M", got {value!r}')
    return int(tokens)


_DOLLARS = re.compile(r"\$?\s*([0-9][0-9,]*\.?[0-9]*)\s*([kKmMbB]?)\s*(?:\$|USD|dollars)?")


def strip_dollar(value: object) -> object:
    """Return text without a dollar sign in front; other values as they are."""
    return value.strip().removeprefix("$") if isinstance(value, str) else value


def parse_dollars(value: object) -> object:
    """Read "$50k" as 50,000; return what is no text as it is."""
    if not isinstance(value, str):
        return value
    match = _DOLLARS.fullmatch(value.strip())
    if match is None:
        raise ValueError(f'expected dollars such as "$50k", got {value!r}')
    scale = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9}[match[2].lower()]
    return float(match[1].replace(",", "")) * scale


format_bytes = partial(format_quantity, dimension=BYTES)
format_bandwidth = partial(format_quantity, dimension=BANDWIDTH)


def format_seconds(value_s: float, digits: int = 4) -> str:
    """Write minutes only from ten on, so that a step and its interval share a unit."""
    if 60.0 <= float(f"{value_s:.{digits - 1}e}") < 600.0:
        return f"{_digits(value_s, digits)} s"
    return format_quantity(value_s, TIME, digits)


def format_count(value: float) -> str:
    """Exact with thousands separators below a million, then 4 digits with M, B or T: "8.03 B"."""
    if abs(value) < 1e6:
        return f"{value:,.0f}" if float(value).is_integer() else f"{_digits(value, 4)}"
    for factor, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if abs(float(f"{value:.3e}")) >= factor:
            return f"{_digits(value / factor, 4)} {suffix}"
    return f"{value:g}"


NOT_COUNTED = "masked attention and recomputation not counted"
"""The convention of every MFU."""


def format_mfu(mfu: float, decimals: int = 1) -> str:
    """Format a model FLOPs utilisation (`workload/flops.py`, `NOT_COUNTED`)."""
    peak = " of the 16-bit peak" if mfu > 1 else ""  # narrow products go beyond it
    return f"{mfu:.{decimals}%}{peak}"


def format_slower(slower_by: float, digits: int = 2) -> str:
    """Write how much longer something takes, as a share; below 0 it is faster."""
    words = f"{abs(slower_by):.{digits}%}"
    if words == f"{0:.{digits}%}":
        return "as fast"
    return f"{words} {'slower' if slower_by > 0 else 'faster'}"


def format_fit(spare_bytes: float, capacity_bytes: float, out_of_memory: float | None) -> str:
    """Say that memory fits, and where it is tight the chance that it does not."""
    if out_of_memory is None:
        return f"fits, {format_bytes(spare_bytes)} ({spare_bytes / capacity_bytes:.0%}) to spare"
    return (
        f"fits, but tight: {format_bytes(spare_bytes)} to spare, "
        f"{out_of_memory:.0%} chance of running out of memory"
    )


def counted(number: int, noun: str) -> str:
    """ "1 design", "1,024 designs"."""
    plural = f"{noun}es" if noun.endswith(("ch", "x")) else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def ranges(noun: str, numbers: Sequence[int]) -> str:
    """ "stage 3", "stages 0 to 3, 7": ascending numbers, those in a row together."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words = [f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return f"{noun}{'s' if len(numbers) > 1 else ''} {', '.join(words)}"


def format_value(value: object) -> str:
    """Format a value of a table."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e3 else f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(map(format_value, value))
    return "" if value is None else str(value)
