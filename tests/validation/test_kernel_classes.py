"""Kernels by class: the estimate's, and those of profiled steps in columns, lists and traces."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import atoll
from atoll.answers.validation import RunsValidation
from atoll.validation.kineto import kernel_class

TRACE = Path(__file__).parents[1] / "data" / "h200_compiled_steps.json.gz"
LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 4096,
}
HEADER = "id,config,family,layers,hidden,heads,ffn,vocab,mbs,seq,recompute,attn,optimizer,step_ms"
CLASSES = ("products", "attention", "softmax/loss", "streaming", "optimizer", "memory")
STEP = "{id},llama.json,llama,,,,,,1,4096,{recompute},sdpa,{optimizer},{ms}"


def step(id: str = "a", ms: str = "100", recompute: str = "0", optimizer: str = "fused") -> str:
    return STEP.format(id=id, ms=ms, recompute=recompute, optimizer=optimizer)


def judged(folder: Path, more: str, *lines: str) -> RunsValidation:
    """A table of steps of one model, whose configuration lies beside it, with more columns."""
    (folder / "llama.json").write_text(json.dumps(LLAMA))
    table = folder / "steps.csv"
    table.write_text("\n".join((f"{HEADER},{more}", *lines)) + "\n")
    answer = atoll.validate(table)
    assert isinstance(answer, RunsValidation)
    return answer


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"recompute": "full"},
        {"recompute": "selective", "attention": "unfused"},
        {"tp": 2, "pp": 2, "recompute": "alternate"},
    ],
)
def test_classes_add_up_to_the_computation_of_a_step(choices: dict[str, int | str]) -> None:
    """Profiles leave out the gaps between kernels, and a device that waits has a higher clock."""
    estimate = atoll.estimate("llama2-7b", "h100", 8, batch=64, **choices)
    classes_s, step_s = estimate.kernel_classes_s, estimate.usual_step
    assert set(classes_s) == set(CLASSES)
    assert 0.93 * step_s.busy_s < sum(classes_s.values()) < step_s.busy_s
    assert (classes_s["attention"] == 0) == (choices.get("attention") == "unfused")


def test_each_class_has_its_error_and_bias(tmp_path: Path) -> None:
    """Twice as long as measured and half as long: a mean error of 75 %, a bias of 25 %."""
    first = judged(tmp_path, "k_products_ms,k_attention_ms", f"{step()},1,0")
    predicted_ms = 1 + (first.kernel_classes["products"].bias or 0)
    lines = [f"{step()},{predicted_ms / 2},0", f"{step()},{2 * predicted_ms},0"]
    classes = judged(tmp_path, "k_products_ms,k_attention_ms", *lines).kernel_classes
    assert classes["products"].rows == 2
    assert classes["products"].mean_ape == pytest.approx(0.75)
    assert classes["products"].bias == pytest.approx(0.25)
    assert set(classes) == {"products", "all kernels"}  # nothing was measured of attention


def test_a_list_of_kernels_and_a_trace_stand_for_the_columns(tmp_path: Path) -> None:
    kernels = {"a": [[60.0, 30, "nvjet_sm90_tst_256x128"], [5.0, 9, "Memcpy DtoD"]]}
    (tmp_path / "kernels.json.gz").write_bytes(gzip.compress(json.dumps(kernels).encode()))
    columns = judged(tmp_path, "k_products_ms,k_memory_ms", f"{step()},60,5")
    listed = judged(tmp_path, "kernel_list", f"{step()},kernels.json.gz")
    assert listed.kernel_classes == columns.kernel_classes
    traced = judged(tmp_path, "trace", f"{step()},{TRACE}").kernel_classes
    assert {"products", "attention", "streaming", "optimizer"} <= set(traced)
    missing = judged(tmp_path, "kernel_list", f"{step('b')},kernels.json.gz")
    (reason,) = missing.skipped
    assert "no list of the kernels of step 'b'" in reason


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN", "products"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>", "products"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop", "attention"),
        ("void cunn_SoftMaxForward<4, float>", "softmax/loss"),
        ("nll_loss_forward_reduce_cuda_kernel_2d", "softmax/loss"),
        ("triton_red_fused__log_softmax_nll_loss_forward", "softmax/loss"),
        ("triton_poi_fused_mm_mul_silu_3", "streaming"),
        ("triton_tem_fused_flex_attention_0", "attention"),
        ("void multi_tensor_apply_kernel<FusedAdam>", "optimizer"),
        ("Memset (Device)", "memory"),
        ("ncclDevKernel_AllGather_RING_LL", "communication"),
        ("void vectorized_elementwise_kernel<4, bfloat16_copy>", "streaming"),
    ],
)
def test_kernels_have_the_class_of_their_name(kernel: str, name: str) -> None:
    assert kernel_class(kernel) == name


def test_steps_say_what_ran_and_what_is_not_priced(tmp_path: Path) -> None:
    answer = judged(
        tmp_path,
        "loss_kind,clip",
        f"{step('a', optimizer='lion')},model,1",
        f"{step('b', recompute='full@2')},chunked,0",
        "c,llama.json,,,,,,,,,,,,OOM,,",
    )
    assert (answer.rows, answer.predicted) == (3, 3)
    assert answer.step_time.rows == 2  # the last ran out of memory
    assert (answer.accepted, answer.rejected) == (2, 0)  # four blocks would fit
    assert answer.unread == {"optimizer 'lion'": 1}
