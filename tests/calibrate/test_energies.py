"""Sustained loads: power is capped, moved data and zeros count, files with watts are judged."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.answers.validation import OperatorsValidation
from atoll.api import validate
from atoll.hardware.physical.constants import constants
from atoll.hardware.physical.device_power import H200_FIT, Rates, device_W

share = st.floats(0, 1)
LOADS = """kind,us,power_W,joules,flops,bytes,m,n,k,dtype,data,b,h,s,d,causal,model,mbs,seq
gemm,3260.067,690.0,2.24956,2199023255552.0,671088640.0,16384,8192,8192,bf16,normal,,,,,,,,
gemm,1402.61,396.2,0.555752,1099511627776.0,402653184.0,8192,8192,8192,bf16,zeros,,,,,,,,
attention_fwd,1033.543,692.9,0.716169,549755813888.0,268435456.0,,,,,,1,32,8192,128,1,,,
add,2925.925,611.0,1.787614,0,12884901888.0,2147483648,,,,,,,,,,,,
step,743379.184,690.8,513.553303,331206604357632.0,0,,,,,,,,,,,llama2-7b,2,4096
idle,1000000,78.8,0,0,0,,,,,,,,,,,,,
sort,100,300,0.03,0,0,1000,,,,,,,,,,,,
"""


def test_every_share_lies_in_its_range() -> None:
    for one in constants(H200_FIT):
        assert one.low <= one.value <= one.high, one.name


@given(share, share, share, st.floats(0, 0.2))
def test_more_work_never_draws_less_and_never_more_than_the_limit(
    products: float, dram: float, vector: float, more: float
) -> None:
    less = device_W(700, Rates(products, dram, vector=vector))
    for rates in (
        Rates(products + more, dram, vector=vector),
        Rates(products, dram + more, vector=vector),
        Rates(products, dram, vector=vector + more),
    ):
        assert less <= device_W(700, rates) <= 700
    assert device_W(700, Rates(products, dram, vector=vector, data="zeros")) <= less


def test_an_h200_at_its_peak_is_capped_unless_it_multiplies_zeros() -> None:
    assert device_W(700, Rates(products=0.7)) == pytest.approx(690, abs=1)
    assert device_W(700, Rates(products=0.79, data="zeros")) == pytest.approx(396, rel=0.05)


def test_time_power_and_energy_of_a_file_are_judged_apart(tmp_path: Path) -> None:
    data, out = tmp_path / "loads.csv", tmp_path / "lines.csv"
    data.write_text(LOADS)
    answer = validate(data, out=out)
    assert isinstance(answer, OperatorsValidation)
    assert answer.rows == 7 and answer.predicted == 6
    assert list(answer.skipped) == ["line 8: kind 'sort' is not modelled"]
    assert answer.step_time.rows == 5 and answer.power.rows == 6 and answer.energy.rows == 5
    for errors in (answer.step_time, answer.power, answer.energy):
        assert errors.mean_ape is not None and errors.mean_ape < 0.12
    with out.open(newline="") as file:
        lines = list(csv.DictReader(file))
    first = lines[0]
    assert float(first["predicted_J"]) == pytest.approx(
        float(first["predicted_s"]) * float(first["predicted_W"]), rel=1e-4
    )
    assert lines[-1]["operator"] == "idle" and lines[-1]["predicted_J"] == ""
