"""A launch file on the explorer's door: a verdict, to this machine only; nothing is run or kept."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from serve_runs import ask_json, make_app, random_designs, serving, write_designs

from accessibility import problems
from atoll.serve.app import App
from atoll.serve.guard import Guard
from atoll.serve.pasted_file import MOST_BYTES

if TYPE_CHECKING:
    from browser import Browser

SCRIPT = """\
#!/bin/bash
TP=${TP:-2}
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 1024 \\
  --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 \\
  --micro-batch-size 2 --global-batch-size 64 --tensor-model-parallel-size $TP --bf16 \\
  --vocab-size 50257 --unheard-of "<img src=x onerror=alert(1)>" --world-size 8
"""
ASKED = {"name": "run.sh", "text": SCRIPT, "device": "h100", "devices": 8}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> App:
    return make_app(write_designs(tmp_path_factory.mktemp("door") / "one", random_designs(5)))


def paste(app: App, asked: object, **headers: str) -> tuple[int, Mapping[str, Any]]:
    body = asked if isinstance(asked, bytes) else json.dumps(asked).encode()
    sent = {
        "host": "localhost:8737",
        "content-type": "application/json",
        "content-length": str(len(body)),
    } | headers
    found = app.respond("POST", "/api/check", sent, body)
    assert isinstance(found.body, bytes)
    return found.status, json.loads(found.body)


@pytest.mark.slow
def test_a_pasted_file_is_judged_as_the_command_does_and_leaves_nothing(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    status, found = paste(app, ASKED)
    assert status == 200
    assert found["check"]["estimate"]["layout"]["tp"] == 2
    assert found["check"]["file"] == "run.sh"
    assert "unheard_of" in found["check"]["arguments"]["not_understood"]
    assert dict(found["view"]["summary"]).keys() >= {"Run", "Step", "Memory"}
    assert list(tmp_path.iterdir()) == []
    assert "h100" in ask_json(app, "/api/check")["devices"]


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (b"{", "expected the question as JSON"),
        (b"[" * 100_000, "expected the question as JSON"),
        (rb'{"text": "\ud800"}', "expected the question as JSON"),
        ([], "expected an object with name"),
        (ASKED | {"log": "/etc/passwd"}, "expected an object with name"),
        (ASKED | {"name": "../run.sh"}, "name: expected the name of a file"),
        (ASKED | {"text": " "}, "text: nothing was pasted"),
        (ASKED | {"text": "echo $(rm -r /)"}, "run.sh"),
        (ASKED | {"device": "abacus"}, "abacus"),
        (ASKED | {"devices": "many"}, "devices"),
    ],
)
def test_what_cannot_be_judged_is_a_sentence(app: App, asked: object, sentence: str) -> None:
    status, found = paste(app, asked)
    assert status == 400
    assert sentence in found["error"]


@pytest.mark.parametrize(("field", "suffix"), [("model", ".json"), ("device", ".yaml")])
def test_nothing_tells_whether_a_file_exists(
    app: App, tmp_path: Path, field: str, suffix: str
) -> None:
    paths = [(tmp_path / name).with_suffix(suffix) for name in ("absent", "present", "inside")]
    paths[1].write_text('{"secret": 1}', encoding="utf-8")
    paths[2].mkdir()
    replies = [paste(app, ASKED | {field: str(path)}) for path in paths]
    assert {status for status, _ in replies} == {400}
    pairs = zip(paths, replies, strict=True)
    sentences = [reply["error"].replace(path.stem, "") for path, (_, reply) in pairs]
    assert len(set(sentences)) == 1
    assert "secret" not in sentences[0]


def test_other_pages_machines_and_sizes_are_refused(app: App) -> None:
    assert paste(app, ASKED, **{"content-type": "text/plain"})[0] == 415
    assert paste(app, ASKED, origin="http://evil.example")[0] == 403
    assert paste(app, ASKED, origin="http://localhost:8737")[0] == 200
    assert paste(app, b" " * (MOST_BYTES + 1))[0] == 413
    assert paste(app, ASKED, origin="http://[")[0] == 400
    assert paste(app, ASKED, host="evil.example")[0] == 421
    elsewhere = App(app.runs, Guard("192.168.1.5", 8737, token="t"))
    away = {"host": "192.168.1.5:8737", "authorization": "Bearer t"}
    assert paste(elsewhere, ASKED, **away)[0] == 403
    assert paste(elsewhere, ASKED, host="192.168.1.5:8737")[0] == 401


def test_the_door_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    run = write_designs(tmp_path / "run", random_designs(20))
    with serving(run) as explorer, browser.page() as page:
        page.goto(explorer.address)
        page.wait_for("!!document.querySelector('#tabs button')")
        page.click("#check")
        page.wait_for("!!document.querySelector('#launch')")
        page.set_value("#launch", SCRIPT)
        page.set_value("#check-devices", "8")
        page.click("#judge")
        page.wait_for("!!document.querySelector('#verdict #answer')")
        assert page.eval("document.querySelector('#verdict').textContent.includes('fits')")
        assert page.eval("document.querySelectorAll('#verdict img').length") == 0
        page.screenshot("explorer-check-desktop-light")
        assert page.errors == []
        assert page.foreign_requests() == []
        assert problems(page) == []
        page.set_value("#launch", "no launch file at all")
        page.click("#judge")
        page.wait_for("!!document.querySelector('#verdict [role=alert]')")
