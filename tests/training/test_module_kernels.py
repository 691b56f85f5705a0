"""Host times of eager modules, and kernels that their configuration decides on."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from training_cases import dense, grouped, mixture, small_run

from atoll.step.layout import Layout
from atoll.step.states import STATES
from atoll.tools.software import flagged
from atoll.tools.stack import EAGER
from atoll.training.estimate import Estimator, estimate
from atoll.training.run import Run
from atoll.training.uncertainty import error_fits, host_chance
from atoll.workload.families.config import config_from_hf
from atoll.workload.families.model_config import ModelConfig

ONE = Layout(zero=0)


def one_device(model: ModelConfig, flags: str = "", sequence: int = 128, **changes: object) -> Run:
    run = small_run(model, devices=1, global_batch=1, stack=flagged(EAGER, flags))
    return replace(run, sequence=sequence, states=STATES["bf16"], **changes)  # type: ignore[arg-type]


def functions_of(run: Run, layout: Layout = ONE) -> list[list[str]]:
    """Return the vector functions of every layer."""
    layers = [layer for layer, _ in Estimator(run).model(layout).layers]
    return [
        [work.function for op in (*layer.forward, *layer.backward) for work in op.vectors]
        for layer in layers
    ]


def test_a_loop_over_tensors_takes_host_time_per_tensor() -> None:
    steps = {
        name: estimate(one_device(dense(4), name), ONE).step.time_s
        for name in ("", "foreach", "forloop", "adafactor")
    }
    tensors = sum(
        n * cost.tensors for cost, n in Estimator(one_device(dense(4))).shares(ONE)[1][0][0]
    )
    assert tensors > 4 * 12  # weights and biases of attention, feed-forward layer and norms
    assert steps[""] < steps["foreach"] < steps["forloop"] < steps["adafactor"]
    more_s = (26.0 - 11.0) * tensors * EAGER.host_tensor_s
    assert steps["adafactor"] - steps["forloop"] == pytest.approx(more_s, rel=0.05)


@pytest.mark.parametrize(
    ("launches", "late_s", "microbatches", "wait_s"),
    [
        ((7.0, 3.0), 0.0, 1, 1.0),  # by the end of the forward pass, 3 - 2
        ((7.0, 3.0), 0.0, 4, 0.25),  # once per step
        ((9.0, 1.0), 0.0, 4, 1.0),  # in every microbatch
        ((7.0, 1.0), 5.0, 1, 4.0),  # by the end of the update
        ((7.0, 1.0), 0.5, 1, 0.0),
    ],
)
def test_a_device_waits_for_its_host(
    launches: tuple[float, float], late_s: float, microbatches: int, wait_s: float
) -> None:
    """Passes take 2 and 6 seconds on the device."""
    sums = Estimator(one_device(dense()))._sums(ONE, ("none",))
    parts = np.array([2.0, 6.0, launches[0], 0.0, launches[1]])[:, None, None]
    zeros, no = np.zeros(1), np.zeros((1, 1), dtype=np.bool_)
    m = np.full((1, 1), float(microbatches))
    paces = sums._paces(parts, no, zeros, zeros, np.array([late_s]), m)
    assert paces.host_s.item() == pytest.approx(wait_s)
    assert (paces.forward + paces.backward).item() == pytest.approx(8.0 + wait_s)


def test_experts_in_a_loop_read_indices_back_in_the_forward_pass() -> None:
    run = one_device(mixture(), "sliced_experts")
    stepper, shares = Estimator(run).shares(ONE)
    cost = next(c for c, _ in shares[0][0] if c.experts)
    plain = replace(run, stack=replace(run.stack, host_expert_s=0.0))
    without = Estimator(plain).shares(ONE)[0].host(cost, "none")
    host = stepper.host(cost, "none")
    expert_s = cost.experts * run.stack.host_expert_s
    assert host.waiting_s == pytest.approx(expert_s)
    assert host.backward_s - without.backward_s == pytest.approx(2 * expert_s)
    assert host.forward_s == without.forward_s


def test_the_host_may_limit_steps_that_are_close() -> None:
    assert host_chance(0.0) == 0.0
    assert host_chance(1.0) == pytest.approx(0.5)
    error = math.exp(error_fits().step_time.causes["host"])
    assert host_chance(error) == pytest.approx(0.841, abs=1e-3)
    assert host_chance(1 / error) == pytest.approx(0.159, abs=1e-3)
    small, large = one_device(dense(4)), one_device(dense(4, hidden=4096, ffn=16384), sequence=1024)
    large = replace(large, global_batch=16)
    shares = (
        estimate(small, ONE).time_shares,
        estimate(large, Layout(microbatch=16, zero=0)).time_shares,
    )
    assert shares[0]["host"] > 0.8 > 0.1 > shares[0]["products"]
    assert shares[1]["host"] < 0.1 < shares[1]["products"]


def test_a_traced_encoder_runs_math_attention_without_windows_only() -> None:
    model = replace(grouped(4), causal=False, kv_heads=8, windows=(0, 64, 64, 0))
    kinds = {}
    for form in ("", "math_attention"):
        model_layers = Estimator(one_device(model, form, attention="unfused")).model(ONE).layers
        names = {"attention", "attention_scores"}
        of_layers = [({op.kind for op in layer.forward} & names, n) for layer, n in model_layers]
        kinds[form] = [kind for kind, n in of_layers for _ in range(n) if kind]
    scores, fused = {"attention_scores"}, {"attention"}
    assert kinds[""] == [scores] * 4
    assert kinds["math_attention"] == [scores, fused, fused, scores]


def test_autocast_norms_of_the_residual_stream_cast_nothing() -> None:
    run = replace(one_device(grouped(), "autocast"), states=STATES["fp32"])
    functions = {name for names in functions_of(run) for name in names}
    assert {"rmsnorm_fp32", "rmsnorm_fp32_bwd"} <= functions
    assert not {"rmsnorm", "rmsnorm_bwd"} & functions
    costs = [
        sum(c.forward.vector_s for c in Estimator(r).costs(ONE))
        for r in (one_device(grouped(), "fp32"), one_device(grouped(), "tf32"))
    ]
    assert costs[0] == costs[1]


def test_tf32_products_are_slow_with_rows_off_sixteen_bytes() -> None:
    heads = [
        Estimator(one_device(dense(vocab=vocab), "tf32", 1024)).costs(ONE)[-2].forward.matrix_s
        for vocab in (50256, 50257)
    ]
    assert heads[1] > 2 * heads[0]


def test_a_plain_delta_net_loops_over_chunks() -> None:
    contents = {
        "model_type": "qwen3_next", "num_hidden_layers": 4, "hidden_size": 512,
        "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 1024,
        "vocab_size": 8192, "head_dim": 64, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 256, "shared_expert_intermediate_size": 256,
        "linear_num_value_heads": 8, "linear_num_key_heads": 4, "linear_key_head_dim": 64,
        "linear_value_head_dim": 64, "max_position_embeddings": 1024,
    }  # fmt: skip
    model = config_from_hf(contents, "test")

    def kernels(flags: str, sequence: int) -> int:
        costs = Estimator(one_device(model, flags, sequence)).shares(ONE)[1][0][0]
        return sum(n * (cost.forward + cost.backward).kernels for cost, n in costs)

    loops = [kernels("plain_mixers", s) - kernels("", s) for s in (512, 1024)]
    assert loops == [3 * 8 * (13 + 43), 3 * 16 * (13 + 43)]
