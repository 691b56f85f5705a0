"""Calibration and validation on the shipped H200 measurements, and on bad files."""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path

import pytest

from atoll.answers.validation import OperatorsValidation
from atoll.base.errors import AtollError
from atoll.calibration.fit import calibrate
from atoll.calibration.operator_rows import H200_OPERATORS, fitted_rows, read_operators
from atoll.calibration.validate import validate_operators
from atoll.hardware.gpu import load_calibration, load_gpu

HEADER = "kind,us,graphed,m,n,k,batch,b,h,hk,s,d,causal,v"


@cache
def held_out() -> OperatorsValidation:
    return validate_operators(held_out=True)


def test_a_fit_sees_at_most_half_of_the_rows_and_the_same_ones_in_any_order() -> None:
    rows = read_operators(H200_OPERATORS)
    seen = fitted_rows(rows)
    assert sum(seen) <= len(rows) / 2
    backwards = fitted_rows(rows[::-1])
    assert backwards[::-1] == seen


def test_long_products_not_fitted_are_within_seven_percent() -> None:
    assert held_out().long.rows > 300
    assert held_out().long.mean_ape <= 0.07


def test_attention_not_fitted_is_within_ten_percent() -> None:
    for kind in ("sdpa_fwd", "sdpa_bwd"):
        assert held_out().by_kind[kind].rows == 56
        assert held_out().by_kind[kind].mean_ape <= 0.10
    assert held_out().attention.mean_ape <= 0.05


def test_everything_else_not_fitted_keeps_the_documented_error() -> None:
    assert held_out().step_time.mean_ape <= 0.07
    assert held_out().by_kind["gemm"].mean_ape <= 0.08
    assert held_out().by_kind["gemm_fp8"].mean_ape <= 0.07
    assert abs(held_out().step_time.bias) <= 0.02
    assert held_out().skipped == {}


@pytest.mark.slow
def test_the_shipped_parameters_are_what_the_command_writes(tmp_path: Path) -> None:
    out = tmp_path / "fit.yaml"
    report = calibrate(out=out)
    written, shipped = load_calibration(out), load_calibration("h200")
    assert report.fitted <= report.rows / 2
    assert report.kept == ()
    for name in ("matmul", "vector_hbm", "vector_kernel_s"):
        assert getattr(written, name) == pytest.approx(getattr(shipped, name), rel=0.02)
    assert dict(written.traffic) == pytest.approx(dict(shipped.traffic), rel=0.05)
    assert load_gpu("l40s", calibration=out).calibration == written


def test_a_file_of_products_alone_leaves_the_other_parameters_as_they_were(
    tmp_path: Path,
) -> None:
    path = tmp_path / "gemm.csv"
    lines = H200_OPERATORS.read_text(encoding="utf-8").splitlines()
    products = [line for line in lines[1:] if line.startswith("gemm,")][:120]
    path.write_text("\n".join([lines[0], *products]) + "\n")
    report = calibrate(path)
    assert report.kept == (
        "fp8 products",
        "attention forward",
        "attention backward",
        "streaming",
    )
    assert report.parameters["vector_hbm"] == load_calibration("h200").vector_hbm


def test_errors_are_those_of_hand_arithmetic(tmp_path: Path) -> None:
    """Two additions, one measured at exactly the model's time, one at twice that."""
    gpu = load_gpu("h200")
    fit = gpu.calibration
    time_us = (1e6 * 6 / (fit.vector_hbm * gpu.hbm_Bps) + fit.vector_kernel_s) * 1e6
    path = tmp_path / "two.csv"
    path.write_text(
        f"kind,us,m,n\nadd_fwd,{time_us!r},1000,1000\nadd_fwd,{2 * time_us!r},1000,1000\n"
    )
    report = validate_operators(path)
    assert report.step_time.mean_ape == pytest.approx(0.25)
    assert report.worst[0].line == 3
    assert report.worst[0].error == pytest.approx(-0.5)


def test_unknown_kinds_and_missing_units_are_skipped_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "ops.csv"
    path.write_text("kind,us,m,n,k\ngemm_fp8,9,64,64,64\ngemmm,9,64,64,64\ngemm,9,64,64,64\n")
    report = validate_operators(path, "a100-80")
    assert (report.rows, report.predicted) == (3, 1)
    assert report.skipped == {
        "device a100-80 has no fp8 matrix units": 1,
        "kind 'gemmm' is not modelled, did you mean gemm or gemm_fp8?": 1,
    }


def test_chains_windows_and_updates_are_priced_as_steps_price_them(tmp_path: Path) -> None:
    path = tmp_path / "ops.csv"
    path.write_text(
        "kind,b,h,hk,s,d,causal,w,keys,t,v,e,hidden,rows,n,us\n"
        "sdpa_gqa_fwd,1,32,8,8192,128,1,,,,,,,,,900\n"
        "window_flex_fwd,1,32,8,8192,128,,1024,,,,,,,,900\n"
        "decode_attention,1,32,8,1,128,,,4096,,,,,,,10\n"
        "rmsnorm_eager_fwd,,2048,,,,,,,16384,,,,,,431\n"
        "rmsnorm_compiled_fwd,,2048,,,,,,,16384,,,,,,42\n"
        "xent_eager_fwd,,,,,,,,,8192,32000,,,,,1700\n"
        "grouped_fwd,,,,,,,,,,,64,2048,49152,2816,761\n"
        "adamw_bf16_fused,,,,,,,,,,,,,,1000000000,5149\n"
    )
    shown = validate_operators(path)
    assert (shown.rows, shown.predicted) == (8, 8)
    seconds = {row.line: row.predicted_s for row in shown.worst}
    pairs = 1024 * (2 * 8192 - 1024) / 8192**2  # of a window among those of a causal mask
    assert seconds[3] == pytest.approx(pairs * seconds[2])
    assert seconds[4] < 1e-4 < seconds[2]
    assert 12 < seconds[5] / seconds[6] < 16  # 60 bytes an element in eager PyTorch, 4 compiled


def test_rows_that_cannot_be_read_are_skipped_with_the_reason(tmp_path: Path) -> None:
    """Also in a packed file, and where bytes are no text."""
    text = b"kind,us,m,n,k\ngemm,100,512,512,512\ngemm,x,1,1,1\ngemm,1,1\n\xff,1,1,1,1\n"
    for name, content in (("a.csv", text), ("a.csv.gz", gzip.compress(text))):
        path = tmp_path / name
        path.write_bytes(content)
        shown = validate_operators(path)
        assert (shown.rows, shown.predicted) == (4, 1)
        assert list(shown.skipped) == [
            "line 3: us is 'x', expected a number",
            "line 4: expected 5 cells, got 3",
            "line 5: not UTF-8 text",
        ]
        assert calibrate(path).skipped == tuple(shown.skipped)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the columns kind, us are missing"),
        (HEADER + "\n", "no rows, only a header"),
        ("kind,m\ngemm,1\n", "bad.csv: the columns us are missing"),
        ("kind,us,mm\ngemm,1,1\n", "bad.csv:1: unknown column 'mm'"),
        ("kind,us,m,n,k\ngemm,1,1,1\n", "bad.csv: line 2: expected 5 cells, got 4"),
        ("kind,us,m,n,k\ngemm,-1,1,1,1\n", "line 2: us is '-1', expected 1e-09 to 1e+12"),
        ("kind,us,m,n,k\ngemm,nan,1,1,1\n", "line 2: us is empty"),
        ("kind,us,m,n,k\ngemm,,1,1,1\n", "line 2: us is empty"),
        ("kind,us,m,n,k\ngemm,1,1,1,\n", "line 2: k is empty, but a gemm needs it"),
        (
            "kind,us,graphed,m,n,k\ngemm,1,yes,1,1,1\n",
            "graphed is 'yes', expected a number",
        ),
    ],
)
def test_a_bad_file_is_refused_in_one_sentence_with_its_line(
    text: str, sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(AtollError) as refusal:
        read_operators(path)
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(AtollError, match=r"none\.csv: no such file"):
        read_operators(tmp_path / "none.csv")
