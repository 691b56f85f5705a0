"""What a layout may be: every refusal is one sentence that names the field and the way out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from training_cases import dense, grouped, mixture, small_run

import atoll
from atoll.base.errors import AtollError
from atoll.step.layout import Layout, check_layout
from atoll.training.request import make_layout, make_run
from atoll.workload.families.model_config import ModelConfig

LAYOUT = Layout(dp=8)


def refusal(layout: Layout, model: ModelConfig | None = None, **given: int) -> str:
    """The sentence with which a layout of 8 devices and 32 sequences of 1024 is refused."""
    run = {"devices": 8, "global_batch": 32, "sequence": 1024} | given
    with pytest.raises(AtollError) as caught:
        check_layout(layout, model or dense(), **run)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def test_a_plain_layout_is_allowed() -> None:
    check_layout(LAYOUT, dense(), 8, 32, 1024)


@pytest.mark.parametrize("axis", ["dp", "tp", "pp", "cp", "ep", "vpp", "microbatch", "hsdp"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_degrees_are_positive_integers(axis: str, value: object) -> None:
    sentence = refusal(replace(LAYOUT, **{axis: value}))  # type: ignore[arg-type]
    assert sentence == f"{axis} is {value!r}, but must be a positive integer"


@pytest.mark.parametrize(
    ("layout", "sentence"),
    [
        (
            replace(LAYOUT, recompute="some"),
            "recompute is 'some', but must be one of none, selective, alternate, full, optimal, "
            "full@N or host@N for N blocks of a stage, full@host, or modules joined by +: "
            "core_attn, layernorm, mla_up_proj, mlp, moe, moe_act, shared_experts",
        ),
        (
            replace(LAYOUT, schedule="2f2b"),
            "schedule is '2f2b', but must be one of 1f1b, interleaved, gpipe, zb-h1, zb-h2, zb-v, "
            "dualpipe",
        ),
        (replace(LAYOUT, zero=4), "zero is 4, but must be 0, 1, 2 or 3"),
        (
            replace(LAYOUT, dp=3, tp=2),
            "tp 2 x pp 1 x cp 1 x dp 3 make 6 devices, but 8 are given",
        ),
        (
            replace(LAYOUT, dp=1, tp=8, pp=1, microbatch=5),
            "global batch 32 is not a multiple of dp 1 x microbatch 5 = 5; the nearest above is 35",
        ),
        (
            replace(LAYOUT, dp=1, pp=8),
            "pp 8 x 1 chunks per stage make 8 model chunks, but small has 4 layers beside "
            "embedding and head; lower pp or vpp",
        ),
        (
            replace(LAYOUT, dp=2, pp=4, schedule="zb-v"),
            "pp 4 x 2 chunks per stage make 8 model chunks, but small has 4 layers beside "
            "embedding and head; lower pp or vpp",
        ),
        (replace(LAYOUT, vpp=2), "vpp is 2, but interleaving needs pp above 1"),
        (
            replace(LAYOUT, dp=4, pp=2, schedule="interleaved"),
            "schedule interleaved has several chunks a stage, but vpp is 1",
        ),
        (
            replace(LAYOUT, dp=4, pp=2, vpp=2, schedule="zb-h1"),
            "schedule zb-h1 has one chunk a stage, but vpp is 2; leave vpp 1",
        ),
        (
            replace(LAYOUT, dp=4, pp=2, vpp=2, schedule="zb-v"),
            "schedule zb-v has two chunks of its own a stage, but vpp is 2; leave vpp 1",
        ),
        (replace(LAYOUT, schedule="dualpipe"), "schedule dualpipe needs pp above 1"),
        (
            replace(LAYOUT, dp=4, pp=2, microbatch=8, schedule="dualpipe"),
            "schedule dualpipe lets microbatches in at both ends, but pp is 2 and there are 1 of "
            "them; both must be even",
        ),
        (
            replace(LAYOUT, hsdp=2, zero=0),
            "hsdp is 2, but zero 0 divides nothing inside its replicas; use zero 1, 2 or 3",
        ),
        (
            replace(LAYOUT, hsdp=3),
            "hsdp is 3, but does not divide dp x cp = 8; choose one of 1, 2, 4, 8",
        ),
        (
            replace(LAYOUT, dp=4, pp=2, zero=2),
            "zero 2 divides gradients that a pipeline keeps adding to; use zero 1 with pp above 1",
        ),
        (replace(LAYOUT, ep=2), "ep is 2, but small has no experts"),
    ],
)
def test_refusals_say_what_is_allowed(layout: Layout, sentence: str) -> None:
    assert refusal(layout) == sentence


@pytest.mark.parametrize("microbatch", [1, 2, 4, 8])
def test_interleaving_takes_any_number_of_microbatches(microbatch: int) -> None:
    """8, 4, 2 and 1, also fewer than there are stages."""
    check_layout(Layout(dp=4, pp=3, vpp=2, microbatch=microbatch), dense(), 12, 32, 1024)


def test_replicas_divide_the_copies_of_an_expert() -> None:
    assert refusal(replace(LAYOUT, ep=4, hsdp=4), mixture()) == (
        "hsdp is 4, but does not divide the copies of an expert, tp x cp x dp / (ep x etp) = 2; "
        "choose one of 1, 2"
    )


def test_tensor_width_divides_heads_columns_and_key_heads() -> None:
    assert refusal(Layout(dp=1, tp=3), devices=3) == (
        "tp is 3, but does not divide the 8 attention heads of small; choose one of 1, 2, 4, 8"
    )
    odd = dense(ffn=2050)
    assert refusal(Layout(dp=2, tp=4), odd) == (
        "tp is 4, but does not divide the 2050 feed-forward columns of small; choose one of "
        "1, 2, 5, 10"
    )
    three = grouped(heads=24, kv_heads=6, hidden=1536)
    assert refusal(Layout(dp=2, tp=4), three) == (
        "tp is 4, but neither divides the 6 key and value heads of small-gqa nor is a multiple "
        "of them"
    )
    check_layout(Layout(dp=1, tp=8), grouped(), 8, 32, 1024)  # two key heads on eight devices


def test_sequence_divides_among_context_and_tensor_ranks() -> None:
    assert refusal(Layout(dp=4, cp=2), sequence=1022) == (
        "sequence 1022 is not a multiple of 2 x cp 2, which ring attention needs to balance a "
        "causal mask"
    )
    assert refusal(Layout(dp=2, tp=4), sequence=1022) == (
        "sequence parallelism divides 1022 tokens a rank by tp 4, which leaves a remainder; turn "
        "it off or change the sequence"
    )
    check_layout(Layout(dp=2, tp=4, sp=False), dense(), 8, 32, 1022)


def test_experts_spread_over_data_and_context_ranks() -> None:
    assert refusal(Layout(dp=9, ep=3), mixture(), devices=9, global_batch=9) == (
        "ep is 3, but does not divide the 4 experts of small-moe"
    )
    assert refusal(Layout(dp=2, tp=4, ep=4), mixture()) == (
        "ep 4 x etp 4 does not divide tp 4 x cp 1 x dp 2, over which experts are spread"
    )
    check_layout(Layout(dp=2, tp=2, cp=2, ep=4), mixture(), 8, 32, 1024)


def test_experts_fold_over_tensor_ranks_with_a_width_of_their_own() -> None:
    assert Layout(tp=4).etp == 4
    folded = Layout(dp=2, tp=4, ep=4, etp=2)
    check_layout(folded, mixture(), 8, 32, 1024)
    assert (folded.ranks, folded.expert_ranks) == (2, 1)
    assert str(folded).startswith("tp4 pp1 dp2 ep4 etp2 ")
    assert refusal(Layout(dp=2, tp=4, ep=4, etp=3), mixture()) == (
        "etp is 3, but does not divide the 2048 feed-forward columns of small-moe; choose one of "
        "1, 2, 4, 8, 16, 32, 64"
    )
    assert refusal(Layout(dp=2, tp=4, ep=4, etp=1, sp=False), mixture()) == (
        "etp is 1 and tp 4: experts of another tensor width need tokens that sequence parallelism "
        "divides; turn it on"
    )
    assert refusal(Layout(dp=2, tp=4, etp=1)) == "etp is 1, but small has no experts"


def test_data_parallelism_takes_the_devices_that_are_left() -> None:
    run = small_run(devices=16)
    assert make_layout(run, tp=2, pp=2).dp == 4
    assert make_layout(run, tp=2).sp
    assert not make_layout(run, tp=2, sp=False).sp
    assert not make_layout(run).sp
    assert make_layout(run, pp=2, vpp=2).schedule == "interleaved"
    assert not make_layout(replace(run, sequence=1023), tp=2).sp
    with pytest.raises(AtollError, match=r"^devices 16 is not a multiple of tp 3 x pp 1 x cp 1 ="):
        make_layout(run, tp=3)
    with pytest.raises(AtollError, match=r"^pp: expected more than 0, got 0$"):
        make_layout(run, pp=0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"model": "llama3-7b"}, "llama3-8b"),
        ({"device": "h10"}, "device 'h10' is not in the catalogue, did you mean h100"),
        ({"stack": "megatrom"}, "stack 'megatrom' is not known, did you mean megatron"),
        ({"optimizer": "mix"}, "optimizer: states 'mix' are not known"),
        ({"precision": "fp4"}, "precision: expected 'bf16', 'fp16', 'fp8', 'mxfp8' or 'nvfp4'"),
        ({"device": "a100-80", "precision": "fp8"}, "device a100-80 has no fp8 matrix units"),
        (
            {"attention": "flush"},
            "attention: expected 'flash', 'flex', 'flash2', 'flash1' or 'unfused'",
        ),
        ({"network": "dgx"}, "network 'dgx' is not in the catalogue"),
        ({"devices": 0}, "devices: expected more than 0, got 0"),
        ({"batch": -4}, "batch: expected more than 0, got -4"),
        ({"sequence": 0}, "sequence: expected more than 0, got 0"),
        ({"imbalance": 0.5}, "imbalance: expected at least 1.0, got 0.5"),
        (
            {"imbalance": 1.5},
            "imbalance: has no effect, as llama2-7b has no experts",
        ),
        ({"imbalance": float("nan")}, "imbalance: expected a finite number, got nan"),
        ({"imbalance": float("inf")}, "imbalance: expected a finite number, got inf"),
        ({"model": "gpt2-xl", "sequence": 2048}, "its position table ends at 1024"),
    ],
)
def test_a_run_is_refused_in_one_sentence(given: dict[str, object], words: str) -> None:
    known = {"model": "llama2-7b", "device": "h100", "devices": 8, "batch": 8}
    with pytest.raises(AtollError) as caught:
        make_run(**(known | given))  # type: ignore[arg-type]
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("stack", "order", "ways"),
    [("nemo", "zb-h1", "1f1b, interleaved, gpipe"), ("fsdp", "zb-h2", "zb-v, dualpipe")],
)
def test_an_order_that_the_software_does_not_run_is_refused(
    stack: str, order: str, ways: str
) -> None:
    """It would beat what the stack's own plan finds, and nobody could start it."""
    given: dict[str, Any] = {"model": "llama3-8b", "device": "h100", "devices": 16, "batch": 64}
    wanted = f"order {order}: {stack} does not run it; choose one of .*{ways}.* megatron"
    noted = atoll.estimate(**given, pp=4, stack=stack, order=order).notes
    assert len(noted) == 1 and "timed as if" in noted[0]
    with pytest.raises(AtollError, match=wanted):
        atoll.plan(**given, pp=[4], stack=stack, order=["1f1b", order])
    with pytest.raises(AtollError, match="nemo does not run it"):
        atoll.plan(**given, pp=[4], order=[order], tool="nemo")
    assert atoll.estimate(**given, pp=4, tool="none", order=order).notes == ()


def test_gpipe_has_one_chunk_a_stage() -> None:
    run = small_run(dense(8), devices=4, global_batch=16)
    with pytest.raises(AtollError, match="schedule gpipe has one chunk a stage, but vpp is 2"):
        check_layout(Layout(pp=4, vpp=2, schedule="gpipe"), run.model, 4, 16, 512)
