"""Faults of what comes from outside, for `faults.py`: special files as inputs, agents over MCP."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fault_runs import LIMIT_S, ROOT, End, Tally, child_processes

RUN = ("--model", "gpt2-xl", "--device", "h100", "--devices", "8", "--batch", "8")
LAUNCH = str(ROOT / "examples" / "check" / "qwen3-1.7b.toml")
READERS: Mapping[str, Sequence[str]] = {
    "job": ("search", "FILE"),
    "space": ("search", "--model", "bert-large", "--batch", "8", "--space", "FILE"),
    "from": ("estimate", "--device", "h100", "--from", "FILE"),
    "site": ("estimate", *RUN, "--site", "FILE"),
    "pods": ("plan", "--model", "gpt2-xl", "--batch", "8", "--pods", "FILE"),
    "place": ("place", "FILE"),
    "log": ("check", LAUNCH, "--device", "h200", "--devices", "1", "--log", "FILE"),
    "data": ("validate", "--data", "FILE"),
    "measured": ("calibrate", "FILE"),
}
"""Commands that read a file, by what the file is."""
SPECIAL_FILES = ("device", "pipe", "huge file", "wide table")


def special_file(folder: Path, kind: str) -> str:
    """Make a file that no reader may read to its end."""
    path = folder / "special.yaml"
    if kind == "device":
        return "/dev/zero"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "huge file":
        path.touch()
        os.truncate(path, 2**40)
    else:
        path.write_text("a," * 100_000 + "b\n" + "1," * 100_000 + "1\n", encoding="utf-8")
    return str(path)


def input_fault(reader: str, kind: str) -> Tally:
    """Give a command a special file: one sentence and exit code 2."""
    tally = Tally()
    with tempfile.TemporaryDirectory() as name:
        file = special_file(Path(name), kind)
        words = [file if word == "FILE" else word for word in READERS[reader]]
        command = [sys.executable, "-m", "atoll", *words]
        try:
            ended = subprocess.run(
                command, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL
            )
            end = End(ended.returncode, "", ended.stderr)
        except subprocess.TimeoutExpired:
            end = End(None, "", "")
    tally.counts["faults"] += 1
    tally.add(end, None, f"{reader}: {kind}")
    return tally


# --- Agents ---------------------------------------------------------------------------------------

LARGE = {"model": "deepseek-v3", "device": "h800", "devices": 2048, "batch": 15360}
SMALL_RUN = {"model": "gpt2-xl", "device": "h100", "devices": 8, "batch": 8}
SMALL = {"name": "gpt2-xl"}
AGENTS = ("cancelled call", "end of input", "pipe as a file", "file outside", "killed call",
          "nonsense", "many calls")  # fmt: skip
END_S = 60.0
"""For a server's end on a machine that others use as well; it takes 2 s on an idle one."""


class Agent:
    """A client of `atoll mcp` that writes its messages itself, and may do so wrongly."""

    def __init__(self, folder: Path) -> None:
        self.said = (folder / "said").open("w+", encoding="utf-8")
        self.server = subprocess.Popen(
            [sys.executable, "-m", "atoll", "mcp"], cwd=folder, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said,
        )  # fmt: skip
        assert self.server.stdin is not None and self.server.stdout is not None
        self._input, self._output = self.server.stdin, self.server.stdout
        self._ready = selectors.DefaultSelector()
        self._ready.register(self._output, selectors.EVENT_READ)
        about = {"name": "faults", "version": "1"}
        started = {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": about}
        self.send("initialize", 0, **started)
        self.answer(0)
        self.send("notifications/initialized")

    def send(self, method: str, number: int | None = None, **params: Any) -> None:
        identity = {} if number is None else {"id": number}
        self.write(json.dumps({"jsonrpc": "2.0", "method": method, "params": params, **identity}))

    def write(self, line: str) -> None:
        print(line, file=self._input, flush=True)

    def call(self, number: int, tool: str, arguments: Mapping[str, Any]) -> None:
        self.send("tools/call", number, name=tool, arguments=arguments)

    def answer(self, number: int) -> Any:
        """Return the answer to a request; raise TimeoutError where none comes."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            if self._ready.select(1.0):
                line = self._output.readline()
                if not line:
                    raise TimeoutError("the server ended")
                message = json.loads(line)
                if message.get("id") == number:
                    return message
        raise TimeoutError(f"no answer to request {number}")

    def close(self) -> float:
        """End its input; return the seconds until the server has ended, or raise."""
        began = time.monotonic()
        self._input.close()
        try:
            self.server.wait(END_S)
        except subprocess.TimeoutExpired:
            raise TimeoutError("the server did not end") from None
        finally:
            self.server.kill()
            self.server.wait()
        return time.monotonic() - began


def agent_fault(fault: str) -> Tally:
    """Harm a server; each time it must answer the next call and end when its input ends."""
    tally = Tally()
    tally.counts["faults"] += 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        agent = Agent(folder)
        try:
            peace = _figures(agent, 1)
            refusal = _harm(agent, folder, fault)
            tally.counts["equal" if _figures(agent, 9) == peace else "other"] += 1
            if fault == "end of input":
                agent.call(10, "plan", LARGE)
            took_s = agent.close()
            print(f"  agent, {fault}: ended in {took_s:.1f} s: {refusal}", file=sys.stderr)
            tally.counts["sentence"] += bool(refusal)
        except TimeoutError as error:
            tally.counts["hang"] += 1
            tally.wrong.append(f"agent, {fault}: {error}")
        finally:
            agent.server.kill()
            agent.server.wait()
            agent.said.seek(0)
            said = agent.said.read()
            agent.said.close()
        if "Traceback" in said:
            tally.counts["traceback"] += 1
            tally.wrong.append(f"agent, {fault}: {said[-600:]}")
    return tally


def _figures(agent: Agent, number: int) -> Any:
    """Return the figures of a model."""
    agent.call(number, "models", SMALL)
    return agent.answer(number)["result"]["structuredContent"]["figures"]


def _harm(agent: Agent, folder: Path, fault: str) -> str:
    """Do the fault; return the sentence of a refusal, or nothing."""
    if fault == "cancelled call":
        agent.call(2, "plan", LARGE)
        time.sleep(2.0)
        agent.send("notifications/cancelled", requestId=2)
    elif fault == "killed call":
        agent.call(2, "plan", LARGE)
        deadline = time.monotonic() + END_S
        while not (victims := child_processes(agent.server.pid)) and time.monotonic() < deadline:
            time.sleep(0.1)
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
        return _refusal(agent.answer(2))
    elif fault in ("pipe as a file", "file outside"):
        path = folder / "site.yaml"
        os.mkfifo(path)
        site = str(path) if "pipe" in fault else "/etc/passwd"
        agent.call(2, "estimate", {**SMALL_RUN, "site": site})
        return _refusal(agent.answer(2))
    elif fault == "nonsense":
        for line in ("", "{", "[]", "null", '{"jsonrpc": "2.0"}', "\x00", "9" * 5_000, "[" * 9_000):
            agent.write(line)
        agent.call(2, "no such tool", {})
        return _refusal(agent.answer(2))
    elif fault == "many calls":
        for number in range(20, 40):
            agent.call(number, "models", SMALL)
        for number in range(20, 40, 2):
            agent.send("notifications/cancelled", requestId=number)
    return ""


def _refusal(message: Any) -> str:
    """Return the sentence of a refused call."""
    result = message.get("result", {})
    if not result.get("isError"):
        raise TimeoutError(f"the call was not refused: {message}")
    return str(result["content"][0]["text"])
