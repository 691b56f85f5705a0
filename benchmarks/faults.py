"""Searches against everything that can happen to them: what is lost, redone, changed or unsaid.

    python benchmarks/faults.py [--cases 200] [--seed 0] [--only kills damage ...]

Small questions of every kind (chips, their front, evolution, a wafer, a plan) are asked by the
command line in a folder, once in peace and then under faults:

kills      kill -9 at random moments, several times over, on none and two workers
dask       workers killed, stopped, paused, missing, of other versions (from the start, or late) or
           without Atoll; the scheduler
           killed, stopped, missing; TLS without certificates; Ctrl-C then
local      one of two processes killed or stopped; Ctrl-C then
disk       a file system that is full (a small tmpfs, which only root can mount)
signals    Ctrl-C, SIGTERM and SIGHUP once the first results are on record, and before them
outputs    standard output on a full disk or closed, standard error so; encodings without blocks
locks      a folder whose file system has no locks, or grants all of them
inputs     devices, pipes, huge files and wide tables in place of every kind of file
agents     calls over MCP that are cancelled, killed, nonsense, or read what they may not
damage     one bit flipped, or the end cut off, in each file of a finished folder
together   two processes in the same folder
clock      a clock that jumps by hours to and fro

After each the same command runs again in peace. Counted: answers equal to those in peace, other
answers; records that were there before a kill and are gone or changed (lost), and that a later
run computed again although they were there (redone); ends in one sentence, as documented without
an answer to compare (ended), without a word where there has to be one (silent), in a traceback, and
none within the limit (hang).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import fault_runs
from fault_cluster import Cluster
from fault_doors import AGENTS, READERS, SPECIAL_FILES, agent_fault, input_fault
from fault_forks import Server
from fault_runs import (
    LIMIT_S,
    Asked,
    End,
    Question,
    Tally,
    answer,
    begun,
    child_processes,
    questions,
    records,
    seen,
)
from record import figure, recorded

WORDS = ("equal", "sentence", "ended", "other", "silent", "traceback", "hang", "lost", "redone")
WRONG = WORDS[3:]


@dataclass(frozen=True)
class Campaign:
    """Everything that the kinds of faults share."""

    draw: random.Random
    folder: Path
    asked: Mapping[str, Question]
    peace: Mapping[str, Any]
    took_s: Mapping[str, float]

    def fresh(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.folder)) / "run"

    def again(self, tally: Tally, name: str, out: Path, where: str) -> None:
        """The same command in peace, in the end."""
        before = records(out)
        tally.add(Asked(self.asked[name], out, "--workers", "0").end(), self.peace[name], where)
        tally.compare(before, out, where)


# --- Faults ---------------------------------------------------------------------------------------


CHAIN = 4
"""Kills in one folder."""


def kills(campaign: Campaign, name: str, workers: int, count: int) -> Tally:
    """So many kills at random moments; each folder gets several, and a run in peace."""
    tally = Tally()
    question = campaign.asked[name]
    while tally.counts["kills"] < count:
        out = campaign.fresh()
        before: dict[Any, int] = {}
        for _ in range(count - tally.counts["kills"]):
            asked = Asked(question, out, "--workers", str(workers))
            wait_s = campaign.draw.uniform(0.05, 1.0) * campaign.took_s[name]
            with contextlib.suppress(subprocess.TimeoutExpired):
                asked.process.wait(wait_s)
            asked.process.kill()
            end = asked.end()
            if end.word != "killed":
                tally.add(end, campaign.peace[name], f"{name} {workers}: over before its kill")
            tally.counts["kills"] += end.word == "killed"
            tally.compare(before, out, f"{name} {workers}: killed")
            before = records(out)
        campaign.again(tally, name, out, f"{name} {workers}: after kills")
        shutil.rmtree(out.parent)
    return tally


def local(campaign: Campaign, name: str, fault: str) -> Tally:
    """One of two processes is killed or stopped; or stopped, and Ctrl-C is pressed."""
    tally = Tally()
    out = campaign.fresh()
    asked = Asked(campaign.asked[name], out, "--workers", "2")
    victims = asked.wait_until(lambda: child_processes(asked.process.pid)[:1] if begun(out) else [])
    if victims:
        how = signal.SIGKILL if fault == "killed" else signal.SIGSTOP
        with contextlib.suppress(ProcessLookupError):
            os.kill(victims[0], how)
            tally.counts["faults"] += 1
        if fault == "stopped, Ctrl-C":
            time.sleep(0.3)
            asked.process.send_signal(signal.SIGINT)
    end = asked.end()
    if fault == "stopped, Ctrl-C" and end.code == 130:
        tally.counts["sentence"] += 1
    else:
        tally.add(end, campaign.peace[name], f"{name}: worker {fault}")
    campaign.again(tally, name, out, f"{name}: after a worker was {fault}")
    return tally


DASK: Mapping[str, tuple[Sequence[str], str]] = {
    "nothing": (("same", "same"), ""),
    "a worker killed": (("same", "same"), "kill 1"),
    "a worker stopped": (("same", "same"), "stop 1"),
    "all workers killed": (("same", "same"), "kill 2"),
    "all workers stopped": (("same", "same"), "stop 2"),
    "all workers stopped, Ctrl-C": (("same", "same"), "interrupt 2"),
    "scheduler killed": (("same", "same"), "kill scheduler"),
    "scheduler stopped": (("same", "same"), "stop scheduler"),
    "scheduler stopped, Ctrl-C": (("same", "same"), "interrupt scheduler"),
    "no workers": ((), ""),
    "no scheduler": ((), "absent"),
    "tls without certificates": ((), "tls"),
    "a worker with another atoll": (("same", "edited atoll"), ""),
    "a worker without atoll": (("same", "no atoll"), ""),
    "a worker with another numpy": (("same", "other numpy"), ""),
    "a worker that Dask pauses": (("same", "same", "paused"), ""),
    "a late worker with another atoll": (("same",), "join edited atoll"),
}
"""By name: workers, and what happens once the first results are on record."""


def dask(campaign: Campaign, name: str, fault: str) -> Tally:
    """A question on a cluster with a fault."""
    tally = Tally()
    kinds, event = DASK[fault]
    out = campaign.fresh()
    with Cluster() as cluster:
        for kind in kinds:
            cluster.add(kind)
        if kinds:
            cluster.wait()
        address = cluster.address
        if event == "absent":
            cluster.send(signal.SIGKILL, cluster.scheduler)
        elif event == "tls":
            address = address.replace("tcp", "tls")
        asked = Asked(campaign.asked[name], out, "--cluster", address)
        how, _, whom = event.partition(" ")
        tally.counts["faults"] += fault != "nothing" and not whom  # there from the start
        if whom and asked.wait_until(lambda: begun(out)):
            if how == "join":
                cluster.add(whom)
                tally.counts["faults"] += 1
                whom = "0"
            victims = [cluster.scheduler] if whom == "scheduler" else cluster.workers[: int(whom)]
            cluster.send(signal.SIGKILL if how == "kill" else signal.SIGSTOP, *victims)
            tally.counts["faults"] += how != "join"
            if how == "interrupt":
                time.sleep(0.5)
                asked.process.send_signal(signal.SIGINT)
        began = time.monotonic()
        end = asked.end()
        took_s = time.monotonic() - began
    if how == "interrupt" and end.code == 130:
        tally.counts["sentence"] += 1
    else:
        tally.add(end, campaign.peace[name], f"{name} on Dask: {fault}")
    last = (end.said.strip().splitlines() or [""])[-1]
    print(f"  {fault}: {end.word} in {took_s:.0f} s: {last}", file=sys.stderr)
    campaign.again(tally, name, out, f"{name}: after Dask, {fault}")
    return tally


def disk(campaign: Campaign, name: str) -> Tally:
    """A file system that fills up at some moment; later it is made larger."""
    tally = Tally()
    place = Path(tempfile.mkdtemp(dir=campaign.folder))
    size = campaign.draw.randrange(40, 250) * 1024
    mounted = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    if subprocess.run(mounted, capture_output=True).returncode:
        tally.counts["skipped"] += 1
        return tally
    try:
        out = place / "run"
        end = Asked(campaign.asked[name], out, "--workers", "0").end()
        tally.counts["faults"] += 1
        tally.add(end, campaign.peace[name], f"{name}: {size} bytes of disk")
        subprocess.run(["mount", "-o", "remount,size=64m", str(place)], check=True)
        campaign.again(tally, name, out, f"{name}: after a disk of {size} bytes")
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
    return tally


def signals(campaign: Campaign, name: str, number: signal.Signals, *, early: bool = False) -> Tally:
    """A signal once the first results are on record: the best so far, or a sentence. `early`: as
    soon as signals are handled, before there is any design.
    """
    tally = Tally()
    out = campaign.fresh()
    asked = Asked(campaign.asked[name], out, "--workers", "0", fresh=early)
    if asked.wait_until(
        lambda: handles(asked.process.pid, signal.SIGTERM) if early else begun(out)
    ):
        asked.process.send_signal(number)
        tally.counts["faults"] += 1
    end = asked.end()
    if end.code == 128 + number and "Traceback" not in end.said and "atoll: " in end.said:
        tally.counts["sentence"] += 1
    else:  # over before its signal
        tally.add(end, campaign.peace[name], f"{name}: {number.name}")
    campaign.again(tally, name, out, f"{name}: after {number.name}")
    return tally


def handles(process: int, number: signal.Signals) -> bool:
    """Whether a process has its own handler of a signal."""
    with contextlib.suppress(OSError):  # it is over
        for line in Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("SigCgt"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


OUTPUTS: Mapping[str, tuple[str, str]] = {
    "output on a full disk": ("> /dev/full", ""),
    "output closed": (">&-", ""),
    "error closed": ("2>&-", ""),
    "error on a full disk": ("2> /dev/full", ""),
    "all closed": ("<&- >&- 2>&-", ""),
    "output as cp1252": ("", "cp1252"),
    "output as latin-1": ("", "latin-1"),
    "output as ascii": ("", "ascii"),
}
"""Redirections of the shell and encodings, by fault."""


def outputs(campaign: Campaign, name: str, fault: str) -> Tally:
    """Ask where the answer cannot be written, or not as it is."""
    tally = Tally()
    out = campaign.fresh()
    redirect, encoding = OUTPUTS[fault]
    asked = Asked(campaign.asked[name], out, "--workers", "0", redirect=redirect, encoding=encoding)
    tally.counts["faults"] += 1
    end = asked.end()
    unread = encoding or ">&-" in redirect.replace("2>&-", "")
    if unread and end.code == 0 and "Traceback" not in end.said:
        tally.counts["ended"] += 1
    else:
        tally.add(end, campaign.peace[name], f"{name}: {fault}")
    campaign.again(tally, name, out, f"{name}: after {fault}")
    return tally


def together(campaign: Campaign, name: str) -> Tally:
    """Two processes in one folder: one answers, the other is told to wait."""
    tally = Tally()
    out = campaign.fresh()
    pair = [Asked(campaign.asked[name], out, "--workers", "0") for _ in range(2)]
    tally.counts["faults"] += 1
    for asked in pair:
        tally.add(asked.end(), campaign.peace[name], f"{name}: two processes")
    campaign.again(tally, name, out, f"{name}: after two processes")
    return tally


def locks(campaign: Campaign, name: str, fault: str) -> Tally:
    """A file system without locks is refused; on one that has them the command answers."""
    tally = Tally()
    out = campaign.fresh()
    end = Asked(campaign.asked[name], out, "--workers", "0", trouble=fault).end()
    tally.counts["faults"] += 1
    refused = end.word == "sentence" and "has no locks" in end.said
    tally.add(end if refused else End(1, "", end.said), None, f"{name}: {fault}")
    campaign.again(tally, name, out, f"{name}: after {fault}")
    return tally


def clock(campaign: Campaign, name: str) -> Tally:
    """The time of day jumps, in the run and after a kill in the next one."""
    tally = Tally()
    out = campaign.fresh()
    seed = campaign.draw.randrange(1, 10**6)
    killed = Asked(campaign.asked[name], out, "--workers", "0", trouble=f"clock {seed}")
    with contextlib.suppress(subprocess.TimeoutExpired):
        killed.process.wait(campaign.draw.uniform(0.3, 0.9) * campaign.took_s[name])
    killed.process.kill()
    killed.end()
    end = Asked(campaign.asked[name], out, "--workers", "0", trouble=f"clock {seed + 1}").end()
    tally.counts["faults"] += 1
    tally.add(end, campaign.peace[name], f"{name}: a clock that jumps")
    campaign.again(tally, name, out, f"{name}: after a clock that jumps")
    return tally


def damage(campaign: Campaign, name: str, count: int) -> Tally:
    """A bit flipped or the end cut off in the files of a finished folder, and all who read them.

    The store also without the file of checksums, as after a kill.
    """
    tally = Tally()
    peace = campaign.folder / f"peace-{name}"
    files = sorted(path.name for path in peace.iterdir() if path.stat().st_size)
    told = seen(peace)
    for number in range(count):
        out = campaign.fresh()
        shutil.copytree(peace, out)
        file = files[number % len(files)]
        path = out / file
        content = bytearray(path.read_bytes())
        at = campaign.draw.randrange(len(content))
        if campaign.draw.random() < 0.7:
            content[at] ^= 1 << campaign.draw.randrange(8)
        else:
            del content[at:]
        path.write_bytes(content)
        if file == "search.sqlite" and campaign.draw.random() < 0.5:
            (out / "SHA256SUMS").unlink()
        tally.counts["faults"] += 1
        for reader, found in seen(out).items():
            word = (
                found if isinstance(found, str) else "equal" if found == told[reader] else "other"
            )
            tally.counts[word.partition(":")[0]] += 1
            if not word.startswith(("equal", "sentence")):
                tally.wrong.append(f"{name}: {file} damaged at {at}: {reader}: {word}")
        shutil.rmtree(out.parent)
    return tally


# --- The campaign ---------------------------------------------------------------------------------

KINDS = (
    "kills", "local", "dask", "disk", "damage", "together", "clock", "signals", "outputs", "locks",
    "inputs", "agents",
)  # fmt: skip


Case = tuple[str, Callable[[Campaign], Tally]]


def cases(names: Sequence[str], kinds: Sequence[str], count: int) -> Iterator[Case]:
    """Every fault by name; of `count`, kills are spread over questions and workers."""
    ways = [(name, workers) for name in names for workers in (0, 2)]
    each = max(1, count // 40)
    if "dask" in kinds:  # they mostly wait
        for fault in DASK:
            yield f"Dask: {fault}", partial(dask, name=names[0], fault=fault)
    if "kills" in kinds:
        for number, (name, workers) in enumerate(ways):
            share = (count + number) // len(ways)
            label = f"kill -9, {name}, {workers or 'no'} workers"
            for first in range(0, share, CHAIN):
                kill = partial(kills, name=name, workers=workers, count=min(CHAIN, share - first))
                yield label, kill
    if "local" in kinds:
        for fault in ("killed", "stopped", "stopped, Ctrl-C"):
            for name in names[: 1 + each // 2]:
                yield f"one of 2 processes {fault}", partial(local, name=name, fault=fault)
    for name in names:
        if "disk" in kinds:
            yield from [("full disk", partial(disk, name=name))] * each
        if "together" in kinds:
            yield "two processes", partial(together, name=name)
        if "signals" in kinds:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                sent = partial(signals, name=name, number=number)
                yield from [(number.name, sent)] * max(1, each // 2)
                early = partial(signals, name=name, number=number, early=True)
                yield from [(f"{number.name}, early", early)] * max(1, each // 2)
        if "outputs" in kinds:
            for fault in OUTPUTS:
                yield fault, partial(outputs, name=name, fault=fault)
        if "locks" in kinds:
            for fault in ("no locks", "all locks"):
                yield f"folder with {fault}", partial(locks, name=name, fault=fault)
        if "clock" in kinds:
            yield "clock", partial(clock, name=name)
        if "damage" in kinds:
            yield f"damaged files, {name}", partial(damage, name=name, count=max(3, count // 3))


def outside_cases(kinds: Sequence[str]) -> Iterator[Case]:
    """Faults of what comes from outside, which no question has a part in."""

    def case(fault: Callable[..., Tally], *words: str) -> Callable[[Campaign], Tally]:
        return lambda _: fault(*words)

    if "inputs" in kinds:
        for kind in SPECIAL_FILES:
            for reader in READERS:
                yield f"input: {kind}", case(input_fault, reader, kind)
    if "agents" in kinds:
        for fault in AGENTS:
            yield f"agent: {fault}", case(agent_fault, fault)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--cases", type=int, default=200, help="kills; other faults in proportion")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="faults at once")
    parser.add_argument("--only", nargs="*", choices=KINDS, default=KINDS)
    parser.add_argument("--ask", nargs="*", help="some of the questions: search, pareto, ...")
    given = parser.parse_args()
    rows: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory(prefix="atoll-faults-") as name:
        campaign = prepared(Path(name), given.ask)
        chosen = [
            *cases(list(campaign.asked), given.only, given.cases),
            *outside_cases(given.only),
        ]

        def run(number: int) -> Tally:
            label, case = chosen[number]
            tally = case(replace(campaign, draw=random.Random(f"{given.seed} {number}")))
            told = [f"{label}: {dict(tally.counts)}", *tally.wrong]
            print("\n".join(told), file=sys.stderr, flush=True)
            return tally

        with ThreadPoolExecutor(given.jobs) as pool:
            for (label, _), tally in zip(chosen, pool.map(run, range(len(chosen))), strict=True):
                rows.setdefault(label, Counter()).update(tally.counts)
        if Asked.server is not None:
            Asked.server.close()
    print("| fault | faults | " + " | ".join(WORDS) + " |")
    print("|---|" + "---:|" * (1 + len(WORDS)))
    for label, counts in rows.items():
        cells = [counts["kills"] + counts["faults"], *(counts[word] for word in WORDS)]
        shown = "skipped" if counts["skipped"] else " | ".join(f"{cell:,}" for cell in cells)
        print(f"| {label} | {shown} |")
    total = sum(rows.values(), Counter())
    cells = [total["kills"] + total["faults"], *(total[word] for word in WORDS)]
    print("| all | " + " | ".join(f"{cell:,}" for cell in cells) + " |")
    figure("faults", cells[0])
    for word in WORDS:
        figure(word, total[word])
    return int(any(total[word] for word in WRONG))


def prepared(folder: Path, names: Sequence[str] | None) -> Campaign:
    """All questions asked in peace: by an interpreter, which may compile kernels, and by a fork."""
    asked = {q.name: q for q in questions(folder) if not names or q.name in names}
    peace, took_s = {}, {}
    for name, question in asked.items():
        end = Asked(question, folder / f"first-{name}", "--workers", "0").end(10 * LIMIT_S)
        if end.word != "answer":
            raise SystemExit(f"{name} has no answer in peace: {end.said}")
        peace[name] = answer(end.out)
    Asked.server = Server(fault_runs.__file__, [question.warm for question in asked.values()])
    for name, question in asked.items():
        under_way = Asked(question, folder / f"peace-{name}", "--workers", "0")
        end = under_way.end(10 * LIMIT_S)
        took_s[name] = time.monotonic() - under_way.began
        if end.word != "answer" or answer(end.out) != peace[name]:
            raise SystemExit(f"{name} has another answer in a fork: {end.said}")
    return Campaign(random.Random(0), folder, asked, peace, took_s)


if __name__ == "__main__":
    sys.exit(recorded(main))
