"""Plans for a training tool: layouts that it can run, and nothing is lost where it can run none."""

from __future__ import annotations

from itertools import product

import pytest

import atoll
from atoll import export
from atoll.base.errors import AtollError, UnusableError
from atoll.export import export_run
from atoll.tools.registry import TOOLS


@pytest.mark.parametrize("target", [tool.name for tool in TOOLS.values() if tool.write])
@pytest.mark.parametrize("stack", ["megatron", "fsdp"])
def test_a_plan_for_a_tool_has_layouts_that_it_can_run(target: str, stack: str) -> None:
    job = {"batch": 32, "sequence": 2048, "microbatch": [1, 2], "stack": stack,
           "optimizer": "mixed", "method": TOOLS[target].methods[0]}  # fmt: skip
    found = atoll.plan("llama3-8b", "h100", 16, **job, export=target)
    for estimate in (found.best, *found.runners_up):
        assert export_run(target, found.run, estimate.layout).target == target
    proof = found.certificate
    assert f" layouts that {target} can run: " in found.proof()
    assert sum(proof.ruled_out.values()) + proof.evaluated == proof.items
    assert atoll.plan("llama3-8b", "h100", 16, **job).best.step.time_s <= found.best.step.time_s


def test_no_usable_layout_was_missed() -> None:
    job = {"batch": 32, "sequence": 2048, "microbatch": [1], "cp": [1], "pp": [1, 2],
           "hsdp": [1, 2], "vpp": [1, 2]}  # fmt: skip
    found = atoll.plan("llama3-8b", "h100", 16, **job, export="torchtitan")
    usable = []
    space = found.space
    for row, name in product(range(len(space.slot)), range(len(space.names))):
        try:
            export_run("torchtitan", found.run, space.layout(row, name))
        except AtollError:
            continue
        usable.append(space.estimate(row, name))
    assert found.best.step.time_s == min(e.step.time_s for e in usable if e.fits)


def test_a_tool_that_can_run_no_layout_says_why() -> None:
    with pytest.raises(UnusableError, match="loss in 8 equal parts") as caught:
        atoll.plan("llama3-8b", "h100", 8, batch=8, sequence=1001, tp=[1], tool="torchtitan")
    assert "; the tool runs none of " in str(caught.value)


@pytest.mark.parametrize(
    ("model", "tool", "words"),
    [
        ("mixtral-8x7b", "torchtitan", "has no model of the kind of mixtral-8x7b"),
        ("bert-large", "deepspeed", "bert-large is not a causal language model"),
        ("bert-large", "megatron-lm", "pretrain_gpt.py takes no argument"),
    ],
)
def test_a_model_that_a_tool_lacks_is_refused_after_one_layout(
    model: str, tool: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(export, "export_run", lambda *a: asked.append(a) or export_run(*a))
    with pytest.raises(UnusableError, match=words) as caught:
        atoll.plan(model, "h100", 64, batch=512, tool=tool)
    assert len(asked) == 1 and "the tool runs none" not in str(caught.value)


def test_an_estimate_of_a_model_that_its_tool_lacks_says_so_in_a_note() -> None:
    found = atoll.estimate("bert-large", "h100", 16, batch=64, tp=2, tool="megatron-lm")
    (note,) = [note for note in found.to_dict()["notes"] if "pretrain_gpt.py" in note]
    assert note.endswith("timed as if megatron-lm ran it")


def test_a_value_that_a_tool_cannot_run_at_all_does_not_lose_the_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("atoll.training.planner.search.MOST_REFUSED", 3)
    job = {"batch": 16, "sequence": 1000, "tp": [2], "pp": [1, 2], "zero": [1]}
    found = atoll.plan("mixtral-8x7b", "h200", 16, **job, export="nemo")
    assert found.best.layout.sp
    why = {reason.axis for reason in found.answer.reasons}
    assert "pp" in why and "sp" not in why  # NeMo has no experts without sequence parallelism


@pytest.mark.parametrize(
    ("tool", "devices", "method", "zero", "chunks"),
    [
        ("megatron-lm", 8, "pretrain", 1, 1),
        ("torchtitan", 8, "pretrain", 3, 8),
        ("torchtitan", 1, "pretrain", 0, 8),
        ("trl", 8, "lora", 3, 4),  # 128,256 words in tiles of 32,768
    ],
)
def test_an_estimate_has_what_its_tool_runs_by_default(
    tool: str, devices: int, method: str, zero: int, chunks: int
) -> None:
    found = atoll.estimate("llama3-8b", "h200", devices, batch=8, tool=tool, method=method)
    assert (found.layout.zero, found.run.stack.loss_chunks) == (zero, chunks)
    found.export(tool)  # which it can run


@pytest.mark.parametrize(("tool", "policy"), [("torchtitan", "alternate"), ("nemo", "selective")])
def test_selective_recomputation_is_the_tools_own(tool: str, policy: str) -> None:
    asked = {"batch": 8, "tool": tool, "recompute": "selective"}
    assert atoll.estimate("llama3-8b", "h200", 8, **asked).layout.recompute == policy  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("told", "said"),
    [({"cuda_graphs": "full_iteration"}, "CUDA graphs"), ({"attention": "unfused"}, "unfused")],
)
def test_a_launch_file_says_what_the_estimate_has_beyond_it(
    told: dict[str, str], said: str
) -> None:
    job = {"batch": 32, "pp": 2}
    plain = atoll.estimate("gpt2-xl", "h200", 8, **job).export("megatron")
    other = atoll.estimate("gpt2-xl", "h200", 8, **job, **told).export("megatron")
    assert other.text == plain.text
    assert not any(said in note for note in plain.notes)
    assert any(said in note for note in other.notes)
