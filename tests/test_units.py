"""Quantities are read with their unit, refused with a sentence, and printed back."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.base import units
from atoll.base.errors import AtollError
from atoll.base.units import (
    format_count,
    format_quantity,
    parse_bytes,
    parse_quantity,
    strip_dollar,
)


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("80 GiB", units.BYTES, 80 * 2**30),
        ("128 MB", units.BYTES, 128e6),
        ("900 GB/s", units.BANDWIDTH, 900e9),
        ("400 Gb/s", units.BANDWIDTH, 50e9),  # bits
        ("200Gbps", units.BANDWIDTH, 25e9),
        ("4 GiB/s", units.BANDWIDTH, 4 * 2**30),
        ("1.05 GHz", units.FREQUENCY, 1.05e9),
        ("278.8 mm2", units.AREA, 278.8),
        ("10000 um^2", units.AREA, 0.01),
        ("400 W", units.POWER, 400.0),
        ("3.4 us", units.TIME, 3.4e-6),
        ("3.9 pJ/bit", units.ENERGY_PER_BIT, 3.9e-12),
        ("8 pJ/B", units.ENERGY_PER_BIT, 1e-12),
        ("275 TFLOP/s", units.FLOPS, 275e12),
        ("1e9 B/s", units.BANDWIDTH, 1e9),
        (" 2.5e-1  ms ", units.TIME, 2.5e-4),
    ],
)
def test_text_with_a_unit_becomes_the_base_unit(
    text: str, dimension: units.Dimension, value: float
) -> None:
    assert parse_quantity(text, dimension) == value


def test_the_clock_cannot_be_off_by_a_thousand() -> None:
    """The released PHAZE code has 1.05e6 for 1.05 GHz: a bare number is refused here."""
    with pytest.raises(AtollError, match=r"got 1050000\.0 without a unit"):
        parse_quantity(1.05e6, units.FREQUENCY)


@pytest.mark.parametrize(
    ("value", "dimension", "complaint"),
    [
        ("80 GiB", units.BANDWIDTH, "got '80 GiB', which is an amount of memory"),
        ("900 GB/s", units.BYTES, "which is a bandwidth"),
        ("3 W", units.TIME, "which is a power"),
        ("fast", units.BANDWIDTH, "expected a bandwidth such as \"900 GB/s\", got 'fast'"),
        ("-3 W", units.POWER, "which is negative"),
        (-3.0, units.POWER, "which is negative"),
        (math.nan, units.TIME, "not a finite number"),
        ("1e999 W", units.POWER, "not a finite number"),
        ("nan W", units.POWER, "expected a power"),
        (5, units.POWER, "got 5 without a unit"),
        ("5", units.POWER, "got '5' without a unit"),
        (True, units.POWER, "got True"),
        (None, units.POWER, "got None"),
        ("80 gib", units.BYTES, "did you mean GiB"),
        ("4 gb/s", units.BANDWIDTH, "did you mean GB/s or Gb/s"),
        ("4 apples", units.BYTES, "'apples' is not a unit"),
    ],
)
def test_anything_else_is_refused_with_a_sentence(
    value: object, dimension: units.Dimension, complaint: str
) -> None:
    with pytest.raises(AtollError) as error:
        parse_quantity(value, dimension)
    assert complaint in str(error.value)


def test_a_plain_number_is_accepted_where_its_unit_is_stated() -> None:
    assert parse_quantity(5, units.TIME, default_unit="us") == 5e-6
    assert parse_quantity("5 ms", units.TIME, default_unit="us") == 5e-3


def test_bytes_are_whole() -> None:
    assert parse_bytes("1.1 GB") == 1_100_000_000
    assert isinstance(parse_bytes("80 GiB"), int)


@given(st.sampled_from(units.DIMENSIONS), st.data(), st.integers(min_value=2, max_value=9))
def test_printing_then_reading_keeps_the_printed_digits(
    dimension: units.Dimension, data: st.DataObject, digits: int
) -> None:
    value = data.draw(st.floats(2 * dimension.low, dimension.high / 2))
    back = parse_quantity(format_quantity(value, dimension, digits), dimension)
    assert back == pytest.approx(value, rel=0.5001 * 10.0 ** (1 - digits))


@given(st.sampled_from(units.DIMENSIONS), st.data())
def test_units_scale_linearly(dimension: units.Dimension, data: st.DataObject) -> None:
    unit = data.draw(st.sampled_from(sorted(dimension.units)))
    amount = data.draw(st.floats(2 * dimension.low, dimension.high / 2))
    number = amount / dimension.units[unit]
    assert parse_quantity(f"{number!r} {unit}", dimension) == pytest.approx(amount)


@pytest.mark.parametrize("dimension", units.DIMENSIONS, ids=lambda d: d.noun)
@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_amounts_that_nothing_has_are_refused_with_the_range(
    dimension: units.Dimension, factor: float
) -> None:
    unit = next(unit for unit, size in dimension.units.items() if size == 1.0)
    amount = factor * (dimension.low if factor < 1 else dimension.high)
    with pytest.raises(AtollError, match=r"which is not between \S+ \S+ and \S+ \S+$"):
        parse_quantity(f"{amount!r} {unit}", dimension)


def test_every_unit_belongs_to_one_dimension() -> None:
    names = [unit for dimension in units.DIMENSIONS for unit in dimension.units]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (units.format_bytes(80 * 2**30), "80 GiB"),
        (units.format_bytes(0), "0 B"),
        (units.format_bandwidth(1.2e12), "1.2 TB/s"),
        (units.format_seconds(0.0000320), "32 us"),
        (units.format_seconds(599.9999), "10 min"),  # rounds up into the next unit
        (units.format_seconds(66.42), "66.42 s"),
        (units.format_seconds(0.0), "0 s"),
        (units.format_quantity(275.2512e12, units.FLOPS), "275.3 TFLOP/s"),
        (units.format_quantity(3.92e-12, units.ENERGY), "3.92 pJ"),
        (format_count(29360), "29,360"),
        (format_count(8.03e9), "8.03 B"),
        (format_count(999_999_999), "1 B"),
    ],
)
def test_printing(printed: str, expected: str) -> None:
    assert printed == expected


def test_a_price_may_have_a_dollar_sign() -> None:
    assert strip_dollar(" $2.5/h") == "2.5/h"
    assert strip_dollar(2.5) == 2.5
