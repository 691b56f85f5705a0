"""The catalogue of devices: published values, calibrations, and a user's own files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from gpu_operators import gemm_s
from hypothesis import given as drawn
from hypothesis import strategies as st

from atoll.base.errors import AtollError
from atoll.files.yamlfile import load_yaml
from atoll.hardware.catalog import load_network
from atoll.hardware.gpu import (
    GpuFile,
    calibration_names,
    gpu_name,
    gpu_names,
    load_calibration,
    load_gpu,
)

OWN = """
name: mine
bf16: 100 TFLOP/s
hbm_capacity: 24 GiB
hbm_bandwidth: 1 TB/s
sms: 64
clock: 1.5 GHz
l2: 32 MiB
"""


@pytest.mark.parametrize(
    ("name", "half_tflops", "fp8_tflops", "hbm_GiB", "hbm_GBps"),
    [
        ("v100", 125, None, 32, 900),
        ("a100-40", 312, None, 40, 1555),
        ("a100-80", 312, None, 80, 2040),
        ("h100", 989, 1979, 80, 3350),
        ("h100-96", 989, 1979, 96, 2400),
        ("h200", 989, 1979, 141, 4800),
        ("b200", 2250, 4500, 180, 8000),
        ("gb200", 2500, 5000, 186, 8000),
        ("mi300x", 1307, 2615, 192, 5300),
        ("gaudi2", 432, 865, 96, 2460),
        ("gaudi3", 1677, 1677, 128, 3700),
        ("tpu-v4", 275, None, 32, 1200),
        ("tpu-v5e", 197, None, 16, 810),
        ("tpu-v5p", 459, None, 95, 2770),
        ("tpu-v6e", 918, None, 32, 1600),
        ("rtx-3090", 71, None, 24, 936),
        ("rtx-4090", 165.2, 330.3, 23.64, 1008),
        ("rtx-5090", 209.5, 419, 31.36, 1792),
        ("rtx-a6000", 154.8, None, 48, 768),
        ("rtx-6000-ada", 364.2, 728.5, 44.43, 960),
        ("a10g", 70, None, 22.06, 600),
        ("l4", 121, 242.5, 22.05, 300),
        ("h20", 148, 296, 96, 4000),
        ("a800", 312, None, 80, 2040),
        ("trainium1", 190, None, 32, 820),
        ("trainium2", 667, 1299, 96, 2900),
    ],
)
def test_published_values(
    name: str, half_tflops: float, fp8_tflops: float | None, hbm_GiB: float, hbm_GBps: float
) -> None:
    gpu = load_gpu(name)
    assert gpu.peak_flops(gpu.half_dtype) == half_tflops * 1e12
    assert gpu.fp8_flops == (None if fp8_tflops is None else fp8_tflops * 1e12)
    # As sold, or what the driver reports of it.
    assert gpu.hbm_bytes == pytest.approx(hbm_GiB * 2**30, rel=0.015)
    assert gpu.hbm_Bps == pytest.approx(hbm_GBps * 1e9)


@pytest.mark.parametrize("name", gpu_names())
def test_every_device_loads_under_its_name_and_runs_below_its_peak(name: str) -> None:
    gpu = load_gpu(name)
    assert gpu.name == name
    time_s = gemm_s(gpu, 16384, 16384, 16384, dtype=gpu.half_dtype)
    share = 2 * 16384**3 / time_s / gpu.peak_flops(gpu.half_dtype)
    assert 0.3 < share < 1.0


def test_a_device_that_comes_less_close_to_its_peak_is_scaled_by_what_was_measured() -> None:
    """MI300X: 668 of 1307 TFLOP/s measured, H200 794 of 989."""
    assert load_gpu("mi300x").matmul_scale == pytest.approx((668 / 1307) / (794 / 989), rel=1e-3)
    assert load_gpu("h200").matmul_scale == pytest.approx(1, rel=1e-3)


def test_fp8_is_scaled_by_the_best_products_of_both_formats() -> None:
    """MI300X: 990 of 2615 TFLOP/s in fp8, 668 of 1307 in bf16; H200 1453 of 1979, 794 of 989."""
    expected = (990 / 2615) / (668 / 1307) / ((1453.4 / 1979) / (794.5 / 989))
    assert load_gpu("mi300x").fp8_share == pytest.approx(expected)
    timed = (load_gpu(name).fp8_share for name in ("h200", "h100", "b200", "l40s"))
    assert set(timed) == {1.0}


def test_calibrations_are_not_devices() -> None:
    assert {"a100", "h100", "h200", "b200", "gb300"} <= set(calibration_names())
    assert not any(name.startswith("calibration") for name in gpu_names())


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("B300", "b300"), ("MI300X", "mi300x"), ("AMD Instinct MI300X", "mi300x"),
        ("Gaudi2", "gaudi2"), ("Gaudi-3 128GB", "gaudi3"), ("TPU-v7x", "tpu-7x"),
        ("Ironwood", "tpu-7x"), ("TPUv5p", "tpu-v5p"), ("tpu_v5e", "tpu-v5e"),
        ("Trillium", "tpu-v6e"), ("Trn1", "trainium1"), ("H100", "h100"), ("H100-SXM", "h100"),
        ("NVIDIA H100 80GB HBM3", "h100"), ("H100-SXM-96GB-HBM2e", "h100-96"),
        ("H100 94GB", "h100-96"), ("A100-80GB", "a100-80"), ("A100-SXM4-40GB", "a100-40"),
        ("V100-SXM2", "v100"), ("V100-SXM2-16GB", "v100-16"), ("B200 180GB", "b200"),
        ("GB300 NVL72", "gb300"), ("H200-NVL", "h200-nvl"), ("L40S-PCIe-48GB", "l40s"),
        ("AMD Instinct MI355X", "mi355x"), ("MI325X OAM", "mi325x"), ("RTXPRO6000", "rtx-pro-6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("B300 SXM6 288GB", "b300"), ("GB200-NVL72", "gb200"), ("H800-SXM5 80GB", "h800"),
        ("A800-80GB", "a800"), ("GeForce RTX 3090", "rtx-3090"), ("RTX 5090", "rtx-5090"),
        ("A6000", "rtx-a6000"), ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA A10G", "a10g"), ("NVIDIA L4", "l4"), ("H20", "h20"),
        ("Trainium1 NeuronCore-v2 (half chip)", "trainium1-core"),
    ],
)  # fmt: skip
def test_devices_are_found_as_people_write_them(given: str, name: str) -> None:
    assert load_gpu(given).name == name


@pytest.mark.parametrize("name", gpu_names())
def test_neither_case_nor_separators_matter(name: str) -> None:
    for given in (name.upper(), name.replace("-", " "), name.replace("-", "_").title()):
        assert gpu_name(given) == name


@pytest.mark.parametrize(
    "given",
    ["H100-PCIe", "H100 NVL", "H100-64GB", "H100 0GB", "A10", "A100", "80GB", "", "-"],
)
def test_another_device_is_not_taken_for_one_of_the_catalogue(given: str) -> None:
    """An A100 comes with 40 or 80 GB: the sentence names both."""
    with pytest.raises(AtollError, match="is not in the catalogue") as refused:
        load_gpu(given)
    if given == "A100":
        assert "a100-40 or a100-80" in str(refused.value)


@pytest.mark.slow
@drawn(st.text(max_size=20))
def test_no_text_brings_the_catalogue_down(text: str) -> None:
    assert gpu_name(text) in (None, *gpu_names())


def test_unknown_names_get_the_close_ones() -> None:
    with pytest.raises(AtollError, match="device 'h10' is not in the catalogue, did you mean h100"):
        load_gpu("h10")
    with pytest.raises(AtollError, match="calibration 'h20' is not in the catalogue"):
        load_calibration("h20")


def test_a_users_own_device_takes_the_shipped_calibration_unless_it_names_one(
    tmp_path: Path,
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(OWN)
    assert load_gpu(path).calibration == load_calibration("h200")
    path.write_text(OWN + "calibration: fit.yaml\n")
    with pytest.raises(AtollError, match="no such file"):
        load_gpu(path)


@pytest.mark.parametrize(
    ("name", "value", "range_words"),
    [
        ("bf16", "1.5e8 TFLOP/s", "1 GFLOP/s and 1 EFLOP/s"),
        ("hbm_capacity", "96000000 GB", "1 MiB and 128 TiB"),
        ("hbm_bandwidth", "4 EB/s", "1 MB/s and 1 PB/s"),
        ("clock", "1.83e12 GHz", "1 MHz and 100 GHz"),
        ("clock", "1.83 kHz", "1 MHz and 100 GHz"),
        ("l2", "40000000 MiB", "128 B and 1 TiB"),
        ("power", "4e8 W", "100 mW and 100 kW"),
        ("sms", "-3", "more than 0"),
        ("dies", "-3", "more than 0"),
        ("process_nm", "0.001", "at least 0.5"),
    ],
)
def test_figures_that_no_device_has_are_refused_with_the_range(
    name: str, value: str, range_words: str, tmp_path: Path
) -> None:
    lines = [line for line in OWN.splitlines() if not line.startswith(f"{name}:")]
    (tmp_path / "mine.yaml").write_text("\n".join([*lines, f"{name}: {value}"]), encoding="utf-8")
    with pytest.raises(AtollError, match=f"{name}: expected .*{range_words}"):
        load_gpu(tmp_path / "mine.yaml")


def test_a_device_without_a_16_bit_peak_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(OWN.replace("bf16: 100 TFLOP/s\n", ""))
    with pytest.raises(AtollError, match="expected bf16 or fp16"):
        load_yaml(path, GpuFile)


@pytest.mark.parametrize(("name", "like"), [("h800", "h100"), ("a800", "a100-80")])
def test_a_device_with_narrower_links_computes_as_its_model_does(name: str, like: str) -> None:
    narrow, wide = load_gpu(name), load_gpu(like)
    assert replace(narrow, name=like, network=wide.network) == wide
    links = [load_network(device.network).levels[0].bandwidth_Bps for device in (narrow, wide)]
    assert links[0] == 200e9 < links[1]
