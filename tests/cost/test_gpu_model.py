"""The GPU operator model: what holds for any size, and what a wave looks like."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gpu_operators import attention_s, gemm_s, optimizer_s, vector_s
from hypothesis import given
from hypothesis import strategies as st

from atoll.base.errors import AtollError
from atoll.cost.gpu_attention import Heads, attention_times_s
from atoll.cost.gpu_gemm import gemm_times_s, limit_throttle, throttled_s
from atoll.cost.gpu_vector import LEAST_BYTES
from atoll.hardware.gpu import load_gpu, recalibrated

H200 = load_gpu("h200")
A100 = load_gpu("a100-80")
FIT = H200.calibration

sizes = st.integers(1, 1024).map(lambda count: 16 * count)  # whole memory sectors
small = st.integers(1, 64)


@given(m=sizes, n=sizes, k=sizes, batch=small, dtype=st.sampled_from(["bf16", "fp16", "fp8"]))
def test_a_product_is_never_faster_than_its_roofline(
    m: int, n: int, k: int, batch: int, dtype: str
) -> None:
    flops = 2.0 * batch * m * n * k
    element = 1 if dtype == "fp8" else 2
    moved = batch * (element * (m * k + k * n) + 2 * m * n)
    time_s = gemm_s(H200, m, n, k, batch, dtype)
    assert time_s >= flops / H200.loop_flops(dtype)
    assert time_s >= moved / (FIT.hbm * H200.hbm_Bps)
    assert time_s >= FIT.kernel_s


@given(m=sizes, n=sizes, k=sizes, batch=small, grown=st.sampled_from(["m", "n", "k", "batch"]))
def test_more_work_in_a_product_never_takes_less_time(
    m: int, n: int, k: int, batch: int, grown: str
) -> None:
    shape = {"m": m, "n": n, "k": k, "batch": batch}
    larger = {**shape, grown: shape[grown] + (1 if grown == "batch" else 16)}
    assert gemm_s(H200, **larger) >= gemm_s(H200, **shape) * (1 - 1e-12)


@given(
    batch=small,
    group=st.integers(1, 8),
    kv_heads=st.integers(1, 16),
    seq=st.integers(1, 16384),
    head_dim=st.sampled_from([32, 64, 96, 128, 256]),
    causal=st.booleans(),
    backward=st.booleans(),
)
def test_attention_is_never_faster_than_its_roofline_and_grows_with_its_sizes(
    batch: int,
    group: int,
    kv_heads: int,
    seq: int,
    head_dim: int,
    causal: bool,
    backward: bool,
) -> None:
    heads = group * kv_heads

    def time_s(batch: int = batch, seq: int = seq, head_dim: int = head_dim) -> float:
        return attention_s(
            H200, batch, heads, kv_heads, seq, head_dim, causal=causal, backward=backward
        )

    fit = FIT.backward if backward else FIT.forward
    flops = (10 if backward else 4) * batch * heads * float(seq) ** 2 * head_dim
    least_s = flops / (2 if causal else 1) / (fit.matmul * H200.peak_flops())
    assert time_s() >= least_s
    assert time_s(batch=batch + 1) >= time_s()
    assert time_s(seq=seq + 128) >= time_s()
    assert time_s(head_dim=head_dim + 32) >= time_s()


@given(rows=st.integers(1, 10**6), cols=st.integers(1, 10**5))
def test_streaming_time_is_bytes_over_bandwidth_and_a_kernel(rows: int, cols: int) -> None:
    moved = rows * cols * LEAST_BYTES["add_fwd"]
    expected_s = moved / (FIT.vector_hbm * H200.hbm_Bps) + FIT.vector_kernel_s
    assert vector_s(H200, "add_fwd", rows, cols) == pytest.approx(expected_s, rel=1e-12)


def test_streaming_bandwidth_grows_with_size_and_levels_off_below_the_peak() -> None:
    rates = [2**p * 6 / vector_s(H200, "mul_fwd", 2**p) for p in range(10, 31, 4)]
    assert rates == sorted(rates)
    assert 0.95 * FIT.vector_hbm * H200.hbm_Bps < rates[-1] < H200.hbm_Bps


def test_one_tile_more_than_a_wave_costs_a_wave_more() -> None:
    """Four SMs take four tiles at a time; the fifth runs alone, as long as the four together."""
    few = replace(H200, sms=4)  # few, so that no other tile shape hides the step
    depth = 16384
    rows = np.arange(1, 33) * 128
    times_s = gemm_times_s(few, rows, 256, depth)
    steps = np.diff(times_s) / times_s[0]
    assert steps.min() < 0.05  # inside a wave: only what the operands' way adds
    assert steps.max() > 0.2  # a new wave


def test_a_long_reduction_of_few_outputs_is_split_over_the_sms() -> None:
    """64 x 64 outputs are one tile; unsplit, 131 of 132 SMs would idle."""
    one_sm_s = 2 * 64 * 64 * 65536 / (H200.loop_flops() / H200.sms)
    assert gemm_s(H200, 64, 64, 65536) < one_sm_s / 4


def test_rows_of_broken_memory_sectors_are_slower() -> None:
    assert gemm_s(H200, 4096, 4096, 1000) > gemm_s(H200, 4096, 4096, 1008)


def test_long_kernels_run_at_the_power_limit_and_sustained_ones_always_do() -> None:
    short_s, short_sustained_s = (
        gemm_s(H200, 2048, 2048, 2048, sustained=sustained) - FIT.kernel_s
        for sustained in (False, True)
    )
    # A product of the length at which half of it shows has the stated slowdown in a step.
    short_limit = (1 + FIT.limit_throttle) / (1 + FIT.step_long / 2) - 1
    short_limited_s = short_sustained_s / (1 + short_limit)
    assert short_limited_s < short_s < short_limited_s * 1.02
    long_s = gemm_s(H200, 65536, 65536, 65536)
    long_limit = (1 + short_limit) * (1 + FIT.step_long) - 1
    at_limit_s = gemm_s(H200, 65536, 65536, 65536, sustained=True) / (1 + long_limit)
    assert long_s == pytest.approx(at_limit_s * (1 + FIT.throttle), rel=0.01)


def test_products_of_four_bits_draw_less_and_keep_a_higher_clock() -> None:
    """By the cube root of the bits that they multiply a second, relative to those of 16."""
    device = load_gpu("gb300")
    usual = device.calibration.limit_throttle
    assert limit_throttle(device, "bf16") == limit_throttle(device, "fp8") == usual
    drawn = device.loop_flops("nvfp4") / device.loop_flops("bf16") / 4
    assert limit_throttle(device, "nvfp4") == pytest.approx((1 + usual) * drawn ** (1 / 3) - 1)
    assert 0 < limit_throttle(device, "nvfp4") < usual


def test_causal_attention_tends_to_half_of_full_attention() -> None:
    full_s = attention_s(H200, 8, 32, 32, 32768, 128, causal=False)
    assert 0.5 < attention_s(H200, 8, 32, 32, 32768, 128, causal=True) / full_s < 0.53


def test_small_heads_are_bound_by_exponentials() -> None:
    """Half the head is far from half the time (the data: 486 TFLOP/s at 64, 680 at 128)."""
    ratio = attention_s(H200, 8, 32, 32, 8192, 64) / attention_s(H200, 8, 32, 32, 8192, 128)
    assert 0.6 < ratio < 0.75


def test_grouped_key_heads_cost_backward_a_sum_over_the_group() -> None:
    shape = {"batch": 8, "heads": 32, "seq": 1024, "head_dim": 128, "backward": True}
    assert attention_s(H200, kv_heads=8, **shape) > attention_s(H200, kv_heads=32, **shape)


def test_fp8_products_are_faster_than_bf16_but_not_twice() -> None:
    ratio = gemm_s(H200, 8192, 8192, 8192) / gemm_s(H200, 8192, 8192, 8192, dtype="fp8")
    assert 1.5 < ratio < 2.0


def test_optimizer_time_is_proportional_to_the_bytes_of_its_state() -> None:
    assert optimizer_s(H200, 10**10, 14) == pytest.approx(optimizer_s(H200, 10**10) / 2, rel=1e-3)
    assert optimizer_s(H200, 10**9) >= 28e9 / H200.hbm_Bps


def test_units_a_large_product_on_an_a100_takes_milliseconds() -> None:
    """1.1e12 FLOP at 312 TFLOP/s is 3.5 ms: a clock or a unit off by 1000 would show."""
    assert 3.5e-3 < gemm_s(A100, 8192, 8192, 8192) < 6e-3
    assert 5e-3 < optimizer_s(H200, 10**9) < 10e-3


def test_sizes_in_arrays_give_the_same_as_one_by_one() -> None:
    m = np.array([64, 1000, 4096])
    together = gemm_times_s(H200, m, 2048, 512)
    assert together.tolist() == [gemm_s(H200, int(rows), 2048, 512) for rows in m]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: gemm_s(H200, 0, 1, 1), "m: expected a positive size, got 0"),
        (lambda: gemm_s(A100, 16, 16, 16, dtype="fp8"), "a100-80 has no fp8 matrix units"),
        (lambda: gemm_s(H200, 16, 16, 16, dtype="bf61"), "did you mean bf16"),
        (lambda: attention_s(H200, 1, 6, 4, 64, 64), "multiple of kv_heads 4, got 6"),
        (lambda: vector_s(H200, "rmsnorm", 1, 1), "did you mean rmsnorm_"),
    ],
)
def test_wrong_sizes_and_names_are_refused_with_a_sentence(call: object, sentence: str) -> None:
    assert callable(call)
    with pytest.raises(AtollError, match=sentence):
        call()


def test_a_product_timed_again_finds_in_l2_what_that_holds() -> None:
    card = load_gpu("l40s")
    assert gemm_times_s(card, 1024, 1024, 1024, rotating_operands=6) < gemm_times_s(
        card, 1024, 1024, 1024
    )
    written = replace(card, calibration=replace(card.calibration, held=0.0))
    large = 16384, 16384, 1024  # six sets of 67 MB, of 101
    assert gemm_times_s(written, *large, rotating_operands=6) == gemm_times_s(written, *large)
    assert gemm_times_s(card, *large, rotating_operands=6) < gemm_times_s(written, *large)


def test_an_operand_just_cast_and_an_output_written_before_are_in_l2() -> None:
    card, board = load_gpu("l40s"), load_gpu("h100")
    wide = 3328, 7168, 128  # the output is 48 MB
    deep = 3328, 128, 7168  # the operand 24 MB, whose cast moves 72
    for sizes in (wide, deep):
        timed_s = gemm_times_s(card, *sizes, dtype="fp8", rotating_operands=6)
        assert gemm_times_s(card, *sizes, dtype="fp8", rotating_operands=6, cast=3.0) < timed_s
    # Nothing of a call that moves more than L2 holds, nor where memory is as fast as L2's writes.
    plain = replace(card, calibration=replace(card.calibration, held=0.0))
    large = 16384, 16384, 16384
    for gpu, sizes in ((plain, large), (board, wide)):
        timed_s = gemm_times_s(gpu, *sizes, dtype="fp8", rotating_operands=6)
        assert gemm_times_s(gpu, *sizes, dtype="fp8", rotating_operands=6, cast=3.0) == timed_s


def test_idle_sms_leave_power_to_the_others_up_to_the_peak() -> None:
    card = load_gpu("l40s")
    even = replace(
        card,
        calibration=replace(
            card.calibration,
            formats=tuple((n, replace(own, idle=0.0)) for n, own in card.calibration.formats),
        ),
    )

    def ratio(m: int, n: int, *, in_turn: int | None = 6) -> float:
        times = (
            gemm_times_s(g, m, n, 8192, dtype="fp8", rotating_operands=in_turn)
            for g in (card, even)
        )
        return float(next(times) / next(times))

    peak = card.loop_flops("fp8") / card.peak_flops("fp8")
    assert peak < ratio(2304, 768) < 0.95
    assert ratio(16384, 16384) > 0.99
    assert ratio(2304, 768, in_turn=None) == 1  # steps have other kernels that draw power too


def test_engines_have_their_own_fp8_products_where_both_were_timed() -> None:
    sizes = 8192, 8192, 8192
    alone = replace(
        H200,
        calibration=replace(
            H200.calibration,
            formats=tuple(f for f in H200.calibration.formats if f[0] != "fp8_engine"),
        ),
    )
    timed_s, step_s = (
        [
            float(gemm_times_s(g, *sizes, dtype="fp8", rotating_operands=6, cast=cast))
            for g in (H200, alone)
        ]
        for cast in (3.0, 0.0)
    )
    assert timed_s[0] < 0.95 * timed_s[1]
    assert step_s[0] == step_s[1]


def test_blocks_of_narrow_heads_side_by_side_are_no_faster_alone() -> None:
    card = load_gpu("rtx-pro-6000")
    fit = card.calibration
    assert fit.prompt is not None
    lone = replace(card, calibration=replace(fit, prompt=replace(fit.prompt, fp8_columns=None)))

    def ratio(batch: int, head: int) -> float:
        heads = Heads(batch, 8, 8, 3072, head, True)
        times = (attention_times_s(g, heads, dtype="fp8", prompt=True) for g in (card, lone))
        return float(next(times) / next(times))

    assert ratio(1, 256) == ratio(64, 256) == 1  # wider than what an SM has in hand
    assert ratio(1, 64) > 1.3
    assert ratio(64, 64) < 1.05  # full either way


def test_a_limit_sets_in_as_sharply_as_the_device_says() -> None:
    times_s = np.array([0.5e-3, 1e-3, 2e-3])
    slow = [throttled_s(times_s, 0.3, 1e-3, onset) / times_s - 1 for onset in (1, 4)]
    assert slow[0][1] == slow[1][1] == pytest.approx(0.15)
    assert slow[1][0] < slow[0][0] and slow[1][2] > slow[0][2]
    assert throttled_s(times_s, 0.3, 0.0, 4) == pytest.approx(1.3 * times_s)


def test_wide_heads_on_blackwell_hide_nothing() -> None:
    """Two tiles take turns up to the widest head whose sums fit; beyond it one is alone."""
    device = load_gpu("b200")
    prompt = device.calibration.prompt
    assert prompt is not None
    far = replace(prompt, narrow_head=256)
    other = replace(device, calibration=replace(device.calibration, prompt=far))
    for head, slower in ((128, False), (256, True)):
        sizes = Heads(4, 64, 8, 8192, head, 0)
        pair = [float(attention_times_s(gpu, sizes, prompt=True)) for gpu in (device, other)]
        assert (pair[0] > 1.05 * pair[1]) == slower


def test_engines_have_their_own_clock_in_bf16_where_two_boards_were_timed() -> None:
    """Theirs is higher in short products and falls earlier; steps are priced without it."""
    short, long = (2048, 4096, 4096), (32768, 16384, 16384)
    assert gemm_times_s(H200, *short, rotating_operands=6) < gemm_times_s(H200, *short)
    assert gemm_times_s(H200, *long, rotating_operands=6) > gemm_times_s(H200, *long)
    board = load_gpu("b200")
    timed_s = gemm_times_s(board, *long, rotating_operands=6)
    assert timed_s == pytest.approx(gemm_times_s(board, *long), rel=1e-3)


def test_blocks_of_one_tile_wait_at_its_start_and_end() -> None:
    card = load_gpu("l40s")
    hidden = replace(card, calibration=replace(card.calibration, fill_s=0.0, throttle=0.0))
    shown = replace(card, calibration=replace(hidden.calibration, fill_s=1e-6))
    waves = np.ceil(8192 / 128) * np.ceil(8192 / 256) / card.sms
    more_s = gemm_times_s(shown, 8192, 8192, 8192) - gemm_times_s(hidden, 8192, 8192, 8192)
    assert more_s == pytest.approx(np.ceil(waves) * 1e-6, rel=0.1)
    narrow = dict(card.calibration.formats)["fp8_block"]
    assert narrow.fill_s is not None
    assert narrow.fill_s < 0.1e-6 < card.calibration.fill_s


def test_rows_of_an_engine_that_are_no_whole_blocks_have_tiles_of_their_own() -> None:
    gpu = load_gpu("h200")
    formats = dict(gpu.calibration.formats)
    formats["bf16_engine"] = replace(formats["bf16_engine"], tiles="hopper")
    usual = recalibrated(gpu, replace(gpu.calibration, formats=tuple(formats.items())))
    rows = np.array([4352.0, 4353.0])
    of_library, of_cutlass = (
        gemm_times_s(one, rows, 8192, 8192, rotating_operands=6) for one in (gpu, usual)
    )
    assert of_library[1] / of_library[0] < of_cutlass[1] / of_cutlass[0]
    assert gemm_times_s(gpu, 4353, 8192, 8192) == gemm_times_s(usual, 4353, 8192, 8192)
