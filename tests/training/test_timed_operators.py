"""Operators as they were measured: of a table made here, and of NVIDIA's where it is installed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from test_batch_estimates import NAMED, assert_equal, drawn
from test_plan_proof import hold_bounds
from training_cases import WIDE, dense, grouped, mixture, small_run

import atoll
from atoll.answers.plan import EstimateAnswer
from atoll.base.errors import AtollError
from atoll.calibration import timed_tables
from atoll.cost.gpu_gemm import gemm_times_s
from atoll.hardware.gpu import load_gpu
from atoll.training.operators.layer_prices import LayerPrices
from atoll.training.operators.timings import BETWEEN, TIMED, RatioGrid, Timings
from atoll.training.run import TimingSource


def test_between_sizes_ratios_follow_their_logarithms() -> None:
    """At a point itself, between two, of four and beyond; a missing corner leaves the model's."""
    grid = RatioGrid.from_sizes(
        np.array([[1, 1], [1, 4], [16, 1], [16, 4], [256, 1], [16, 1], [16, 1]], dtype=float),
        np.array([2.0, 2.0, 8.0, 1.0, 3.0, 0.1, 9.0]),  # the median of (16, 1) is 8
    )
    sizes = np.array([[16, 1], [4, 1], [4, 2], [64, 2], [512, 1], [0.5, 1]], dtype=float)
    ratios, known = grid.at(sizes)
    corners = math.log(2) + math.log(2) + math.log(8) + math.log(1)
    assert ratios == pytest.approx([8.0, 4.0, math.exp(corners / 4), 1.0, 1.0, 1.0])
    assert known.tolist() == [TIMED, BETWEEN, BETWEEN, 0, 0, 0]
    assert grid.least == 1.0
    assert RatioGrid(grid.axes, grid.logs - 1).least == pytest.approx(math.exp(-1))


@pytest.fixture
def uneven(monkeypatch: pytest.MonkeyPatch) -> Iterator[TimingSource]:
    """Times that scatter about the model's by a factor of up to two, with holes."""
    random = np.random.default_rng(0)

    def grid(*axes: list[float]) -> RatioGrid:
        logs = random.uniform(-0.7, 0.7, [len(axis) for axis in axes])
        logs[random.random(logs.shape) < 0.05] = np.nan
        return RatioGrid(tuple(map(np.array, axes)), logs)

    wide = [64.0, 256.0, 512.0, 2048.0, 9000.0]
    products = {"bf16": grid([128.0, 1024.0, 4096.0, 16384.0], wide, wide)}
    heads = {(group, 64): grid([1.0, 4.0, 32.0, 500.0], [512.0, 1024.0]) for group in (1.0, 4.0)}
    made = Timings(products, heads)
    monkeypatch.setattr(timed_tables, "timings", lambda device, precision: made)
    yield TimingSource("a table made here")


@pytest.mark.parametrize("model", [dense(4), grouped(4), mixture(4)], ids=lambda m: m.name)
def test_arrays_agree_with_the_readable_estimate_and_bounds_hold(
    model, uneven: TimingSource
) -> None:
    run = small_run(model, devices=8, timed=uneven)
    for layouts in drawn(run, WIDE, Random(1), blocks=2):
        assert_equal(run, layouts, NAMED, Random(2).sample(range(len(layouts)), 2))
    hold_bounds(run, Random(3))
    assert LayerPrices(run).pricer.launch_s < LayerPrices(replace(run, timed=None)).pricer.launch_s


def written(folder: Path, engine: str, name: str, **columns: list[object]) -> None:
    """A table as the package has them."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    place = folder / engine / "1.0"
    place.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table(columns), place / f"{name}.parquet")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of that name with two products, three engines and one attention."""
    told = tmp_path / "aiconfigurator_core-9.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: aiconfigurator-core\nVersion: 9\n")
    data = tmp_path / "aiconfigurator_core" / "systems" / "data" / "h100_sxm"
    data.mkdir(parents=True)
    (tmp_path / "aiconfigurator_core" / "__init__.py").touch()
    for engine, ms in {"sglang": 9.0, "trtllm": 0.5, "vllm": 0.4}.items():
        written(
            data / "gemm", engine, "gemm_perf", gemm_dtype=["bfloat16", "bfloat16", "fp8"],
            m=[8192, 8192, 8192], n=[4096, 6144, 4096], k=[4096, 4096, 4096],
            latency=[ms, 2 * ms, 0.3],
        )  # fmt: skip
    for name, ms in {"scale_matrix_perf": 0.02, "computescale_perf": 0.03}.items():
        written(data / "quantize", "trtllm", name, m=[8192], k=[4096], latency=[ms])
    written(
        data / "attention", "vllm", "context_attention_perf", batch_size=[1], num_heads=[32],
        num_key_value_heads=[8], isl=[8192], head_dim=[128], latency=[2.0],
        attn_dtype=["bfloat16"], kv_cache_dtype=["bfloat16"], kernel_source=["fa3"],
    )  # fmt: skip
    monkeypatch.syspath_prepend(tmp_path)
    timed_tables.timings.cache_clear()
    yield tmp_path
    timed_tables.timings.cache_clear()


def test_a_table_stands_in_for_the_model_where_it_has_the_size(package: Path) -> None:
    """Of three engines the median; an fp8 product without its cast."""
    gpu, found = load_gpu("h100"), timed_tables.timings("h100", "bf16")
    m, n, k, one = (np.array([x]) for x in (8192, 4096, 4096, 1))
    model_s = gemm_times_s(gpu, m, n, k, rotating_operands=6)
    ratio, known = found.product("bf16", "linear", m, n, k, one)
    assert ratio * model_s == pytest.approx(0.5e-3)
    assert known == TIMED
    gradient, known = found.product("bf16", "linear_wgrad", n, k, m, one)
    assert (gradient, known) == (ratio, BETWEEN)
    assert found.product("bf16", "linear", m, n, k, 2 * one)[1] == 0  # products side by side
    narrow, _ = timed_tables.timings("h100", "fp8").product("fp8", "linear", m, n, k, one)
    model_s = gemm_times_s(gpu, m, n, k, dtype="fp8", rotating_operands=6)
    assert narrow * model_s == pytest.approx(0.25e-3)


def test_an_estimate_says_how_each_time_is_known(package: Path) -> None:
    asked = {"model": "llama3-8b", "device": "h100", "sequence": 8192, "batch": 1}
    model, timed = atoll.estimate(**asked), atoll.estimate(**asked, operators="measured")
    assert model.answer.operator_origins == {}
    assert all(p.origins == () for p in model.answer.operators)
    assert sum(timed.answer.operator_origins.values()) == pytest.approx(1)
    assert "aiconfigurator-core 9" in timed.answer.given
    assert "% measured" in timed.answer.notes[-1]
    forward, backward = (origins_of(timed.answer, way) for way in ("forward", "backward"))
    assert [forward[name] for name in ("qkv", "attention", "proj")] == ["measured"] * 3
    assert forward["norm1"] == forward["fc1"] == "modelled"
    assert set(backward.values()) == {"interpolated", "modelled"}


def origins_of(answer: EstimateAnswer, way: str) -> dict[str, str]:
    """How the time of each operator of a block is known."""
    (found,) = (p for p in answer.operators if (p.layer, p.pass_) == ("block", way))
    return {row[0]: origin for row, origin in zip(found.operators, found.origins, strict=True)}


def test_devices_without_timings_are_refused(package: Path) -> None:
    with pytest.raises(AtollError, match="no timings of mi300x; it has a100-40, "):
        atoll.estimate("llama3-8b", "mi300x", 8, operators="measured")


def test_without_the_package_measured_operators_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timed_tables, "PACKAGE", "no-such-package")
    timed_tables.timings.cache_clear()
    with pytest.raises(AtollError, match="is not installed; pip install no-such-package"):
        atoll.estimate("llama3-8b", "h100", 8, operators="measured")


@pytest.mark.parametrize("device", ["a100-80", "gb200"])
def test_the_tables_of_nvidia_are_read(device: str) -> None:
    """Of a Llama's block they have attention and the products around it, and sizes about others."""
    pytest.importorskip("aiconfigurator_core")
    found = atoll.estimate("llama3-8b", device, 8, batch=8, operators="measured")
    known = origins_of(found.answer, "forward")
    assert [known[name] for name in ("qkv", "attention", "proj")] == ["measured"] * 3
    assert [known[name] for name in ("fc1", "fc2")] == ["interpolated"] * 2
    model_s = atoll.estimate("llama3-8b", device, 8, batch=8).step.time_s
    assert found.step.time_s == pytest.approx(model_s, rel=0.2)
