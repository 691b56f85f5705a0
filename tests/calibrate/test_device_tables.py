"""Operators and collectives of several devices in one table, and experts' products among ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.answers.validation import OperatorsValidation
from atoll.api import validate
from atoll.base.errors import AtollError
from atoll.calibration.many_devices import OPERAND_SETS, TimedOperator, busiest_load, predicted_s
from atoll.calibration.operator_rows import read_operators
from atoll.cost.gpu_gemm import gemm_times_s
from atoll.hardware.gpu import load_gpu, written_gpu

HEADER = (
    "device,op,precision,m,n,k,batch,heads,kv_heads,seq,head_dim,causal,ranks,bytes,us,quant_us"
)


def written(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "timed.csv"
    path.write_text("\n".join((HEADER, *lines)) + "\n")
    return path


def test_every_device_is_priced_as_itself(tmp_path: Path) -> None:
    sizes = 4096, 8192, 2048
    exact = float(gemm_times_s(load_gpu("b200"), *sizes, rotating_operands=OPERAND_SETS)) * 1e6
    table = written(
        tmp_path,
        f"B200,gemm,bf16,4096,8192,2048,,,,,,,,,{exact},",
        f"NVIDIA B200,gemm,bf16,4096,8192,2048,,,,,,,,,{2 * exact + 5},5",
        "A100,attention_prefill,bf16,,,,2,16,16,4096,128,0,,,900,",
        "GB300,all_gather,int8,,,,,,,,,,4,536870912,700,",
        "H100,ep_combine,bf16,1,1,1,,,,,,,,,10,",
        "H100,gemm,int4,64,64,64,,,,,,,,,10,",
        "H100,gemm,bf16,64,64,many,,,,,,,,,10,",
        "TPU-v99,gemm,bf16,64,64,64,,,,,,,,,10,",
        "H100,gemm,bf16,64,64,64,,,,,,,,,1e400,",
    )
    shown = validate(table, out=tmp_path / "lines.csv")
    assert isinstance(shown, OperatorsValidation)
    assert (shown.rows, shown.predicted) == (9, 4)
    assert len(shown.skipped) == 5
    assert shown.groups["device"]["B200"].mean_ape == pytest.approx(0, abs=1e-9)
    assert shown.groups["device"]["NVIDIA B200"].mean_ape == pytest.approx(0.5)
    assert set(shown.by_kind) == {"gemm bf16", "attention_prefill bf16", "all_gather int8"}
    assert len((tmp_path / "lines.csv").read_text().splitlines()) == 5
    with pytest.raises(AtollError, match="expect is 'oom'"):
        validate(table, expect="oom")


def test_the_busiest_rank_of_uneven_experts_is_priced(tmp_path: Path) -> None:
    """More the steeper their loads fall, nothing where one rank has them all."""
    loads = [busiest_load(exponent, 4096, 128, 8) for exponent in (0, 1, 1.01, 1.2)]
    assert loads[0] == 1 < loads[1] == pytest.approx(loads[2], rel=0.02)
    assert loads[2] < loads[3] < 8
    assert busiest_load(1.2, 4096, 128, 1) == 1
    path = tmp_path / "experts.csv"
    sizes = "H100,moe,bf16,8192,128,8,2048,768,8,1"
    path.write_text(
        "device,op,precision,m,experts,topk,hidden,expert_ffn,ep,tp,distribution,us\n"
        f"{sizes},balanced,100\n{sizes},power_law_1.2,100\n{sizes},measured,100\n"
    )
    shown = validate(path)
    assert isinstance(shown, OperatorsValidation)
    assert shown.skipped == {"experts loaded as 'measured' are not modelled": 1}
    by_line = {row.line: row.predicted_s for row in shown.worst}
    assert by_line[3] > 1.1 * by_line[2]


def test_streams_that_l2_holds_are_timed_from_it(tmp_path: Path) -> None:
    """16 MB in and out of an L40S's 96 MiB, then 1.6 GB."""
    table = written(
        tmp_path,
        "L40S,quantize_cast,fp8,2048,,2620,,,,,,,,,5,",
        "L40S,quantize_cast,fp8,204800,,2620,,,,,,,,,2200,",
    )
    shown = validate(table)
    assert isinstance(shown, OperatorsValidation)
    assert shown.step_time.mean_ape < 0.15


def test_values_of_heads_of_192_have_128_columns_in_flash_attention_3_of_8_bits() -> None:
    gpu = load_gpu("h100")

    def took_s(seq: float, head: float, kernel: str = "fa3") -> float:
        sizes = (8.0, 16.0, 1.0, seq, head, 1.0)
        row = TimedOperator(1, "H100", "attention_prefill", "fp8", sizes, 1e-3, kernel)
        return float(predicted_s(gpu, [row])[0])

    # Fewer products, and two kernels more that move values and results.
    assert took_s(16384, 192) < 0.9 * took_s(16384, 192, "other")
    more_s = took_s(16, 192) - took_s(16, 160)
    assert more_s == pytest.approx(2 * gpu.calibration.vector_kernel_s, rel=0.3)


def test_an_a100_is_the_usual_one() -> None:
    assert written_gpu("A100").name == "a100-80"
    assert written_gpu("A100", " 40GB").name == "a100-40"


def test_products_of_experts_and_other_columns(tmp_path: Path) -> None:
    path = tmp_path / "ours.csv"
    path.write_text(
        "kind,us,model,hidden,ffn,local_experts,assignments,dtype,m,n,k\n"
        "grouped_up_fwd,100,mixtral,4096,14336,8,16384,,,,\n"
        "grouped_down_fwd,100,mixtral,4096,14336,8,,,,,\n"
        "gemm,100,,,,,,fp8,64,64,64\n"
        "gemm,100,,,,,,tf32,64,64,64\n"
    )
    up, short, narrow, odd = read_operators(path)
    assert up.kind == "grouped_up_fwd"
    assert (up.size("local_experts"), up.size("largest_expert")) == (8, 2048)
    assert "assignments is empty, but a grouped_down_fwd needs it" in short.trouble
    assert narrow.kind == "gemm_fp8"
    assert "tf32" in odd.trouble
