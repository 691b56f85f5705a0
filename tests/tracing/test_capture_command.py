"""`atoll capture` from end to end, with and without torch."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import atoll
from atoll.cli import app

EXAMPLES = Path(__file__).parents[2] / "examples"
TINY = EXAMPLES / "spaces" / "tiny.yaml"


def capture(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["capture", *arguments])
    return result.exit_code, str(result.exception) if result.exception else result.output


def test_without_torch_one_sentence_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    code, message = capture("a.b:c", "--inputs", "int64[1,8]", "--out", str(tmp_path / "m.json"))
    assert code and message == 'capture needs PyTorch 2.13.0: pip install "atoll[torch]"'
    with pytest.raises(atoll.AtollError, match=r'pip install "atoll\[torch\]"'):
        atoll.capture(object, ())
    assert atoll.describe_model("gpt2-xl").parameters == 1_557_611_200
    assert not list(tmp_path.iterdir())


INTERRUPTED = """
import os
import signal

from torch import nn


def press(*_):
    os.kill(os.getpid(), signal.SIGINT)


class Pressed(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        press() if os.environ["WHEN"] == "forward" else y.register_hook(press)
        return y


def build():
    return nn.Sequential(Pressed(64, 64), nn.Linear(64, 64))
"""


@pytest.mark.parametrize("when", ["forward", "backward"])
def test_ctrl_c_ends_a_capture_with_one_line_and_no_file(tmp_path: Path, when: str) -> None:
    """Also where torch calls Python from places that an exception cannot leave."""
    pytest.importorskip("torch")
    (tmp_path / "my_mod.py").write_text(INTERRUPTED, encoding="utf-8")
    arguments = ["capture", "my_mod:build", "--inputs", "float32[1,16,64]", "--out", "model.json"]
    ended = subprocess.run(
        [sys.executable, "-m", "atoll", *arguments, "--sequence", "16"],
        cwd=tmp_path, env=os.environ | {"WHEN": when}, capture_output=True, text=True,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "atoll: interrupted\n")
    assert not (tmp_path / "model.json").exists()


def test_a_builder_is_captured_and_its_file_is_a_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_mod.py").write_text(
        "from torch import nn\n\n\ndef build():\n"
        "    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))\n",
        encoding="utf-8",
    )
    code, output = capture(
        "my_mod:build", "--inputs", "float32[1,16,64]", "--out", "model.json", "--json",
        "--sequence", "16",
    )  # fmt: skip
    assert code == 0
    shown = json.loads(output)
    assert shown["parameters"] == 6 * (64 * 64 + 64) and shown["sequence"] == 16
    result = atoll.search(
        model="model.json", space=str(TINY), devices=4, batch=16, microbatch=[1, 2],
        tp=[1, 2], baselines=False,
    )  # fmt: skip
    assert result.certificate.gap < 0.01
    assert atoll.describe_model("model.json", microbatch=2).microbatch == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere", "--inputs", "int64[1,8]"), "expected package.module:builder"),
        (("no_such_mod:build", "--inputs", "int64[1,8]"), "cannot import no_such_mod"),
        (("json:build", "--inputs", "int64[1,8]"), "json has no 'build'"),
        (("json:loads",), "inputs: at least one is needed"),
        (("json:loads", "--inputs", "8 by 8"), "expected a type and a shape such as"),
        (("json:loads", "--inputs", "int65[1,8]"), "expected a type of torch such as int64"),
        (("json:loads", "--inputs", "int64[1]"), "could not be built (TypeError: loads() missing"),
        (("json:loads", "--inputs", "int64[1]", "--inputs", "x=int64[1]"), "either all by name"),
    ],
)
def test_mistakes_on_the_command_line_are_one_sentence(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    code, said = capture(*arguments, "--out", str(tmp_path / "m.json"))
    assert code and message in said
    assert not list(tmp_path.iterdir())


def test_the_example_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(sys, "argv", ["custom_model.py", "--devices", "4"])
    runpy.run_path(str(EXAMPLES / "custom_model.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert "669,836,288 parameters" in said
    assert "blocks.0 x 24" in said and "Slowest operators" in said


def test_an_encoder_decoder_of_a_config_is_captured(tmp_path: Path) -> None:
    """T5-small as published: 60,506,624 parameters; its encoder's output crosses the decoder."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    config = {
        "model_type": "t5", "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6,
        "num_heads": 8, "vocab_size": 32128,
    }  # fmt: skip
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    out = tmp_path / "t5.json"
    code, _ = capture(str(file), "--sequence", "64", "--out", str(out), "--json")
    assert code == 0
    shown = atoll.describe_model(str(out))
    assert shown.parameters == 60_506_624
    repeats = {layer.name: layer.repeat for layer in shown.layers}
    assert repeats["encoder.block.1"] == repeats["decoder.block.1"] == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("odd:syntax", "--inputs", "int64[1,8]"), "odd:syntax: cannot import odd (SyntaxError: "),
        (("late:build", "--inputs", "int64[1]"), "cannot import late (ValueError: at import)"),
        (("mine:leaves", "--inputs", "float32[1,8]"), "could not be built (SystemExit: 3)"),
        (("mine:Line", "--inputs", "float32[0,8]"), "every size must be at least 1, got"),
        (("mine:Line", "--inputs", "float32[1,8]", "--sequence", "-3"), "expected more than 0"),
        (("mine:Line", "--inputs", "float32[1,8]", "--sequence", "0"), "expected more than 0"),
        (("mine:Line", "--inputs", "float32[1,9]"), "the module did not run (RuntimeError: "),
        (("model.json",), "model.json: already an atoll-model file; give it to --model"),
        (("config.json",), "config.json: field 'model_type' is missing"),
        (("foo.json",), "transformers knows no model_type 'foo'"),
        (("words.json",), "transformers cannot read this configuration ("),
        (("tall.json",), "tall.json: n_layer is 2147483648, but at most 10,000 are built"),
        (("gpt.json", "--sequence", "4096"), "sequence is 4096, but its position table ends at 64"),
    ],
)
def test_more_mistakes_are_one_sentence(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    pytest.importorskip("torch")
    if arguments[0].endswith(".json"):
        pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    gpt = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 64}
    files = {
        "odd.py": "def syntax(:",
        "late.py": "raise ValueError('at import')",
        "mine.py": "from torch import nn\n\ndef leaves():\n    raise SystemExit(3)\n\n"
        "def Line():\n    return nn.Linear(8, 8)\n",
        "model.json": json.dumps({"format": "atoll-model", "version": 1}),
        "config.json": "{}",
        "foo.json": json.dumps({"model_type": "foo"}),
        "words.json": json.dumps({**gpt, "n_layer": "many"}),
        "tall.json": json.dumps({**gpt, "n_layer": 2**31}),
        "gpt.json": json.dumps({**gpt, "vocab_size": 96}),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    for module in ("odd", "late", "mine"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    code, said = capture(*arguments, "--out", "m.json")
    assert code and message in said and len(said) < 400 and "\n" not in said
    assert capfd.readouterr().err == ""
    assert not (tmp_path / "m.json").exists()


def test_a_place_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    for out, why in ((tmp_path, "it is a folder"), (tmp_path / "no" / "m.json", "no folder")):
        code, said = capture("nowhere:build", "--inputs", "int64[1]", "--out", str(out))
        assert code and f"{out}: cannot be written" in said and why in said
    assert not list(tmp_path.iterdir())
