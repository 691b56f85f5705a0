"""Predictors beside each other: what each is asked, and how all are scored."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import atoll
from atoll.base.errors import AtollError
from atoll.cli import app
from atoll.predictors import llm_analysis
from atoll.predictors.predictor import Asked, Predicted, Predictor
from atoll.predictors.registry import ATOLL, PREDICTORS
from atoll.predictors.rules import ROOFLINE, RULE_OF_THUMB, USUAL_MFU
from atoll.step.layout import Layout
from atoll.testing import check_predictor
from atoll.training.request import make_run

COLUMNS = (
    "id,model,layers,hidden,heads,kv_heads,ffn,vocab,mlp_gated,seq,device,devices,global_batch,"
    "micro_batch,tp,pp,dp,precision,recompute,measured_iter_time_s,measured_peak_mem_GB"
)
SHAPE = "small,16,2048,16,16,5504,32000,1,2048,H100-SXM"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Three layouts of one model, of which the second was the fastest, and a run in fp8."""
    rows = (
        f"a-1,{SHAPE},8,64,1,1,1,8,bf16,none,1.0,40",
        f"a-2,{SHAPE},8,64,1,2,1,4,bf16,none,0.8,30",
        f"b-1,{SHAPE},8,64,2,1,2,4,bf16,full,1.2,",
        f"b-2,{SHAPE},8,64,1,1,1,8,fp8,none,0.9,",
    )
    path = tmp_path / "runs.csv"
    path.write_text("\n".join((COLUMNS, *rows)) + "\n")
    return path


def asked(**layout: Any) -> Asked:
    return Asked(make_run("llama2-7b", "h100", 8, batch=16), Layout(**{"dp": 8, **layout}))


@pytest.mark.parametrize("predictor", [ATOLL, RULE_OF_THUMB, ROOFLINE], ids=lambda p: p.name)
def test_ours_keep_the_contract(predictor: Predictor) -> None:
    check_predictor(predictor)


def test_a_predictor_that_says_nothing_or_never_answers_is_found_out() -> None:
    with pytest.raises(AssertionError, match="nothing is said"):
        check_predictor(Predictor("mute", lambda _: Predicted()))

    def never(_: Asked) -> Predicted:
        raise AtollError("not this one")

    with pytest.raises(AssertionError, match="no layout"):
        check_predictor(Predictor("never", never))


def test_the_rule_of_thumb_is_six_n_d_and_korthikanti() -> None:
    found = RULE_OF_THUMB.predict(one := asked(zero=0))
    parameters, run = 6738415616, one.run
    assert found.time_s is not None and found.peak_bytes is not None
    rate = 8 * run.gpu.peak_flops("bf16") * USUAL_MFU
    assert found.time_s == pytest.approx(6 * parameters * run.tokens / rate)
    saved = 34 * 4096 * 4096 * 32 + 4 * 4096 * (4096 + 32000)  # s b h (34) L, and the head
    assert found.peak_bytes == pytest.approx(run.states.bytes_per_parameter * parameters + saved)
    again = RULE_OF_THUMB.predict(asked(zero=0, recompute="full"))
    assert again.time_s == pytest.approx(found.time_s * 4 / 3)
    assert not found.fits and again.peak_bytes < found.peak_bytes  # type: ignore[operator]


def test_nothing_is_faster_than_the_roofline_here() -> None:
    for layout in ({}, {"dp": 4, "tp": 2}, {"dp": 4, "pp": 2}, {"zero": 3}):
        least, ours = ROOFLINE.predict(asked(**layout)), ATOLL.predict(asked(**layout))
        assert least.time_s < ours.time_s, layout  # type: ignore[operator]
    # Twice the devices on the same batch halve the compute, which is the longest here.
    slow = ROOFLINE.predict(asked()).time_s
    two = Asked(make_run("llama2-7b", "h100", 16, batch=16), Layout(dp=16))
    assert ROOFLINE.predict(two).time_s == pytest.approx(slow / 2)  # type: ignore[operator]


def test_errors_verdicts_and_regret_are_those_of_the_rows(runs: Path, tmp_path: Path) -> None:
    def half(one: Asked) -> Predicted:
        """Likes pipelines last, and knows no fp8."""
        if one.run.precision == "fp8":
            raise AtollError("fp8 cannot be expressed")
        return Predicted(0.5, 20e9, one.layout.pp == 1, (one.layout.pp, one.layout.tp))

    found = atoll.bench(runs, oom=runs, predictors=[ATOLL, Predictor("half", half)])
    assert (found.rows, found.shared, found.common) == (8, 6, 6)
    ours, theirs = found.predictors
    assert theirs.refused == {"fp8 cannot be expressed": 2}
    expected = [0.5 / t - 1 for t in (1.0, 0.8, 1.2)] * 2
    mean = sum(map(abs, expected)) / 6
    assert theirs.all.step_time.mean_ape == pytest.approx(mean)
    assert theirs.all.step_time.bias == pytest.approx(sum(expected) / 6)
    assert theirs.all.memory.mean_ape == pytest.approx((0.5 + 1 / 3) / 2)
    assert theirs.all.accepted_share == pytest.approx(2 / 3)
    assert theirs.all.rejected_share == pytest.approx(1 / 3)
    assert theirs.all.regret.groups == 1
    assert theirs.all.regret.mean == pytest.approx(1.0 / 0.8 - 1)
    # Beside it stands what the first says of the same rows: those without fp8.
    validated = atoll.validate(runs).groups["precision"]["bf16"]  # type: ignore[union-attr]
    assert theirs.all.first.mean_ape == pytest.approx(validated.step_time.mean_ape)
    assert ours.groups["precision"].keys() == {"bf16", "fp8"}
    assert theirs.groups["precision"]["fp8"].rows == 0
    assert ours.groups["size"].keys() == {"below 3B"}
    assert ours.per_second > 0


def test_of_equals_each_is_as_likely(runs: Path) -> None:
    flat = Predictor("flat", lambda _: Predicted(1.0))
    found = atoll.bench(runs, predictors=[flat]).predictors[0].all.regret
    layouts = (1.0 + 0.8 + 1.2) / 3  # fp8 is another group
    assert found.mean == pytest.approx(layouts / 0.8 - 1)


def test_the_command_prints_and_writes_every_row(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "lines.csv"
    words = ["bench", str(runs), "--predictors", "atoll,roofline", "--out", str(out)]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    assert "4 rows; 4 that two predictors or more can express, 4 that all can" in done.stdout
    lines = list(csv.DictReader(out.open()))
    assert [(line["id"], line["predictor"]) for line in lines[:2]] == [
        ("a-1", "atoll"),
        ("a-1", "roofline"),
    ]
    told = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert [one["name"] for one in told["predictors"]] == ["atoll", "roofline"]
    error = sum(abs(float(line["time_error"])) for line in lines[::2]) / 4
    assert told["predictors"][0]["all"]["step_time"]["mean_ape"] == pytest.approx(error, rel=1e-4)


def test_steps_of_one_device_are_asked_too() -> None:
    shipped = Path(atoll.__file__).parent / "data" / "h200_steps_later.csv"
    found = atoll.bench(shipped, predictors="atoll").predictors[0].all.step_time
    told = atoll.validate(shipped).step_time  # type: ignore[union-attr]
    assert found.mean_ape == pytest.approx(told.mean_ape)


def test_a_package_that_is_missing_is_named(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llm_analysis.analysis", None)
    llm_analysis._modules.cache_clear()
    found = atoll.bench(runs)
    assert "cannot be imported" in found.missing["llm-analysis"]
    assert "llm-analysis" not in [one.name for one in found.predictors]
    with pytest.raises(AtollError, match="llm-analysis"):
        atoll.bench(runs, predictors="llm-analysis")


def test_the_adapter_says_what_the_peer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a stand-in of its interface: the package itself is none of our requirements."""
    told: dict[str, Any] = {}

    class Tool:
        def __init__(self, model: Any, device: Any, **more: Any) -> None:
            told.update(model=model, device=device, **more)

        def training(self, **asked: Any) -> dict[str, float]:
            told.update(asked)
            assert asked["batch_size_per_gpu"] < 4, "too large"
            name = "(weight+op_state+grad+act)_memory_per_gpu"
            return {"latency_per_iter": 2.0, name: 1e9, "memory_left_per_gpu": -1.0}

    def kept(**fields: Any) -> SimpleNamespace:
        return SimpleNamespace(**fields)

    recomputed, zero = {"NONE": 0, "SELECTIVE": 1, "FULL": 2}, {f"STAGE_{n}": n for n in (1, 2, 3)}
    parts = {
        "analysis": {"LLMAnalysis": Tool, "ActivationRecomputation": recomputed, "DSZeRO": zero},
        "config": {"ModelConfig": kept, "GPUConfig": kept, "ParallelismConfig": kept},
        "logger": {"logger": SimpleNamespace(setLevel=lambda level: None)},
    }
    for name, content in parts.items():
        module = ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, f"llm_analysis.{name}", module)
    monkeypatch.setitem(sys.modules, "llm_analysis", ModuleType("llm_analysis"))
    llm_analysis._modules.cache_clear()
    predictor = PREDICTORS["llm-analysis"]
    assert predictor.missing() == ""
    one = asked(dp=4, tp=2, recompute="full")
    assert predictor.predict(one) == Predicted(2.0, 1e9, False)
    assert (told["model"].num_layers, told["model"].ffn_embed_dim) == (32, 16512)
    assert (told["parallelism_config"].tp_size, told["parallelism_config"].dp_size) == (2, 4)
    assert told["activation_recomputation"] == 2 and told["ds_zero"] == 1
    assert told["global_batch_size"] == 16 and told["seq_len"] == one.run.sequence
    states = one.run.states
    both = told["master_weights_dtype_bytes"] + told["other_op_bytes"]
    assert both == states.optimizer
    for layout, words in (
        ({"cp": 2, "dp": 4}, "context parallelism"),
        ({"pp": 2, "dp": 4, "vpp": 2, "schedule": "interleaved"}, "pipeline orders"),
        ({"recompute": "mlp"}, "recomputation"),
        ({"dp": 2, "tp": 4, "microbatch": 4}, "too large"),
    ):
        with pytest.raises(AtollError, match=words):
            predictor.predict(asked(**layout))
    narrow = replace(one, run=replace(one.run, precision="fp8"))
    with pytest.raises(AtollError, match="precision fp8"):
        predictor.predict(narrow)
    llm_analysis._modules.cache_clear()
