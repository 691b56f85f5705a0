"""`atoll mcp`: agents ask the same questions and are given the same answers, over the SDK's own
client and a pipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.base.errors import AtollError
from atoll.commands.kept_answers import DetailsPage, DetailsQuestion, KeptAnswers
from atoll.commands.mcp import VERBS, WHEN, hidden, offered, run_in_process, run_tool
from atoll.commands.short_answers import short_schema
from atoll.questions import COMMANDS

ASKED = {"model": "gpt2-xl", "device": "h100", "devices": 8, "batch": 64}


@pytest.mark.parametrize("name", VERBS)
def test_a_tool_asks_what_its_command_asks_without_what_writes(name: str) -> None:
    asked, schema = COMMANDS[name][0], offered(name)
    assert schema["type"] == "object"
    assert schema["properties"].keys() == asked.model_fields.keys() - hidden(asked)
    writing = (
        "out", "launch_file", "append", "messages", "chakra", "parquet", "workers", "cluster",
    )  # fmt: skip
    assert not schema["properties"].keys() & set(writing)
    assert set(schema.get("required", ())) <= schema["properties"].keys()


def test_nothing_is_written_and_unknown_tools_are_named(tmp_path: Path) -> None:
    with pytest.raises(AtollError, match="out: not offered here"):
        run_tool("estimate", {**ASKED, "out": str(tmp_path / "run")})
    with pytest.raises(AtollError, match="'serve' is not known"):
        run_tool("serve", {})
    with pytest.raises(AtollError, match="batch"):
        run_tool("plan", {"model": "gpt2-xl", "device": "h100", "devices": 8})


def test_answers_are_those_of_python_in_short_and_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    reply = run_tool("estimate", {**ASKED, "tool": "megatron-lm"})
    alone = atoll.estimate(**ASKED)  # type: ignore[arg-type]
    details = json.loads(reply.details)
    assert details["question"].pop("tool") == "megatron-lm"
    assert details == alone.to_dict()
    assert reply.launch_file == alone.export("megatron").text
    assert list(reply.short.summary.items()) == alone.summary()
    assert [line.split()[0] for line in reply.text.splitlines()] == [*reply.short.summary]
    assert reply.short.figures["step s"] == pytest.approx(alone.answer.step_time_s, rel=1e-4)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("models", {}, "gpt2-xl, gpt3-175b"),
        ("models", {"name": "gpt2-xl"}, "1,557,611,200 parameters"),
        ("hardware", {}, "h100, h100-96"),
        ("hardware", {"name": "h100"}, "dgx-h100"),
        ("validate", {}, "1010 of 1010 rows predicted"),
        ("compare", {"runs": ["small.json", "large.json"]}, "devices: 8 | 16 (2x)"),
        ("estimate", {**ASKED, "sweep": ["devices=8,16"]}, "devices 16, tokens/s per device 13"),
        ("plan", {**ASKED, "sweep": ["batch=16,32,64,128", "pp=1,2", "tp=1,2"]}, "16 runs over"),
    ],
)
def test_an_answer_has_at_most_2_kB_and_matches_its_schema(
    name: str, arguments: dict[str, Any], words: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    jsonschema = pytest.importorskip("jsonschema")
    monkeypatch.chdir(tmp_path)
    if name == "compare":
        for file, devices in (("small.json", 8), ("large.json", 16)):
            atoll.estimate(**{**ASKED, "devices": devices}).save(file)  # type: ignore[arg-type]
    reply = KeptAnswers().add(run_tool(name, arguments))
    content = reply.short.to_dict()
    assert words in reply.text
    assert len(reply.text) <= 2000 and len(json.dumps(content)) <= 2000
    jsonschema.validate(content, short_schema())


def test_a_sweep_is_one_call_whose_last_rows_are_in_the_details() -> None:
    reply = run_tool("estimate", {**ASKED, "sweep": ["batch=16,32,64,128,256", "tp=1,2,4,8"]})
    rows = json.loads(reply.details)["rows"]
    assert len(rows) == 20 == len(reply.short.rows) + reply.short.rows_left_out
    assert reply.short.rows_left_out > 0
    assert [row["tp"] for row in reply.short.rows[:4]] == [1, 2, 4, 8]


def test_every_tool_says_when_to_use_it() -> None:
    assert WHEN.keys() == {*VERBS, "details"}
    assert all(words.startswith("Use it ") for words in WHEN.values())


def test_details_are_read_by_address_in_parts_and_pages() -> None:
    kept = KeptAnswers()
    reply = kept.add(run_tool("estimate", ASKED))
    uri, launch_file = reply.short.details, str(reply.short.launch_file)

    def page(uri: str, **fields: Any) -> DetailsPage:
        return kept.page(DetailsQuestion.of(uri=uri, **fields))

    first = page(uri)
    assert first.next_offset == len(first.content)
    assert first.content + page(uri, offset=first.next_offset).content == reply.details
    assert json.loads(page(uri, key="layout.tp").content) == 1
    assert page(launch_file).content == reply.launch_file
    with pytest.raises(AtollError, match=r"no part 'memory'; there are: .*memory_bytes"):
        page(uri, key="memory")
    with pytest.raises(AtollError, match="is not one of the latest 64"):
        page("atoll://answers/9")
    for _ in range(40):
        kept.add(reply)
    with pytest.raises(AtollError, match="ask again"):
        page(uri)


def test_files_outside_the_folders_are_refused_unseen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
    monkeypatch.chdir(inside)
    (outside / "site.yaml").write_text("secret: 1\n", encoding="utf-8")
    (inside / "link.yaml").symlink_to(outside / "site.yaml")
    os.mkfifo(inside / "pipe.yaml")
    refused = "outside the folders that may be read here$"
    for path in ("../outside/site.yaml", "../outside/absent.yaml", "link.yaml", "/etc/passwd"):
        with pytest.raises(AtollError, match=refused):
            run_tool("estimate", {**ASKED, "site": path})
    for verb in ("compare", "explain"):
        field = {"runs": ["../outside", "/etc"]} if verb == "compare" else {"folder": "/etc"}
        with pytest.raises(AtollError, match=refused):
            run_tool(verb, field)
    with pytest.raises(AtollError, match="a device or a pipe"):
        run_tool("estimate", {**ASKED, "site": "pipe.yaml"})
    with pytest.raises(AtollError, match="secret: unknown field"):
        run_tool("estimate", {**ASKED, "site": "../outside/site.yaml"}, [outside])


@pytest.mark.parametrize("ended", ["BrokenWorkerProcess", "BrokenResourceError", "EndOfStream"])
def test_a_call_whose_process_ends_is_a_sentence(
    ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    anyio = pytest.importorskip("anyio")

    async def killed(*words: Any, **options: Any) -> None:
        raise getattr(anyio, ended)

    monkeypatch.setattr("anyio.to_process.run_sync", killed)
    with pytest.raises(AtollError, match="the process of the call ended; ask again, or for less"):
        anyio.run(run_in_process, dict, None)


@pytest.mark.slow
def test_a_cancelled_call_is_ended_and_the_end_of_input_ends_all() -> None:
    pytest.importorskip("mcp")
    large = {"model": "deepseek-v3", "device": "h800", "devices": 2048, "batch": 15360}
    server = subprocess.Popen(
        [sys.executable, "-m", "atoll", "mcp"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    lines = server.stdout

    def send(method: str, number: int | None = None, **params: Any) -> None:
        identity = {} if number is None else {"id": number}
        message = {"jsonrpc": "2.0", "method": method, "params": params, **identity}
        assert server.stdin is not None
        print(json.dumps(message), file=server.stdin, flush=True)

    try:
        about = {"name": "test", "version": "1"}
        start = {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": about}
        send("initialize", 0, **start)
        assert json.loads(lines.readline())["id"] == 0
        send("notifications/initialized")
        send("tools/call", 1, name="plan", arguments=large)
        send("tools/call", 2, name="models", arguments={"name": "gpt2-xl"})
        assert json.loads(lines.readline())["id"] == 2  # beside the first
        send("notifications/cancelled", requestId=1)
        send("tools/call", 3, name="models", arguments={"name": "gpt2-xl"})
        while json.loads(lines.readline())["id"] != 3:
            pass
        send("tools/call", 4, name="plan", arguments=large)
        server.stdin.close()
        server.wait(120)
    finally:
        server.kill()
        server.wait()


@contextmanager
def client() -> Iterator[Any]:
    """The SDK's client, connected to the command over its pipes."""
    pytest.importorskip("mcp")
    from anyio.from_thread import start_blocking_portal
    from mcp import Client, StdioServerParameters

    server = StdioServerParameters(
        command=sys.executable, args=["-m", "atoll", "mcp"], env=dict(os.environ)
    )
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(Client(server)) as connected,
    ):
        yield lambda name, *words: portal.call(getattr(connected, name), *words)


@pytest.mark.slow
def test_the_sdks_client_lists_calls_and_reads_over_stdio() -> None:
    """The client checks structured content against the schema that the tool has."""
    with client() as ask:
        tools = {tool.name: tool for tool in ask("list_tools").tools}
        assert tools.keys() == {*VERBS, "details"}
        assert tools["plan"].input_schema == offered("plan")
        assert all(tool.annotations.read_only_hint for tool in tools.values())
        assert all(tool.output_schema["type"] == "object" for tool in tools.values())
        assert all("Use it " in tool.description for tool in tools.values())
        reply = ask("call_tool", "plan", {**ASKED, "tp": [1, 2], "pp": [1]})
        plan = atoll.plan(**ASKED, tp=[1, 2], pp=[1])  # type: ignore[arg-type]
        assert not reply.is_error
        text, details, launch_file = reply.content
        assert len(text.text) < 2000 and "proven fastest" in text.text
        assert reply.structured_content["details"] == details.uri
        full = json.loads(ask("read_resource", details.uri).contents[0].text)
        assert full["best"] == plan.to_dict()["best"]
        script = ask("read_resource", launch_file.uri).contents[0].text
        page = ask("call_tool", "details", {"uri": launch_file.uri}).structured_content
        assert page == {"content": script, "next_offset": None}
        listed = [resource.uri for resource in ask("list_resources").resources]
        assert listed == [details.uri, launch_file.uri]
        wrong = ask("call_tool", "estimate", {**ASKED, "device": "h10"})
        assert wrong.is_error
        assert "h100" in wrong.content[0].text
        assert ask("call_tool", "details", {"uri": "atoll://answers/7"}).is_error
