"""A copy of the process on a second core: the same results, whatever becomes of it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from atoll.base.stopping import StoppedError
from atoll.executors import PieceRunner, forked_copy
from atoll.executors.forked_copy import Lookahead, Pairs, from_both_ends, shared_zeros
from atoll.training.planner import search
from atoll.training.planner.plan import plan
from atoll.training.request import make_run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="copies are forked on Linux alone")


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a machine with two, one of them idle; none of the processes is left behind."""
    forked: list[int] = []
    fork = os.fork

    def recorded() -> int:
        forked.append(fork())
        return forked[-1]

    monkeypatch.setattr(os, "fork", recorded)
    monkeypatch.setattr(forked_copy, "_core_waits", lambda: True)
    yield
    for copy in forked:
        with pytest.raises(ProcessLookupError):
            os.kill(copy, 0)


def test_a_busy_machine_has_no_core_for_a_copy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    load = tmp_path / "loadavg"
    monkeypatch.setattr(forked_copy, "Path", lambda name: load)
    for told, waits in (("0.5 0.4 0.3 1/80 47", True), ("0.5 0.4 0.3 2/80 47", False), ("", True)):
        load.write_text(told, encoding="ascii")
        assert forked_copy._core_waits() == waits
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    assert not forked_copy._core_waits()


def dies_elsewhere(call: Callable[[int], int]) -> Callable[[int], int]:
    here = os.getpid()

    def checked(value: int) -> int:
        if os.getpid() != here:
            os._exit(1)
        return call(value)

    return checked


def test_both_ends_fill_all() -> None:
    found, by = shared_zeros(40), shared_zeros(40)

    def fill(number: int) -> None:
        found[number] = sum(i * i for i in range(30_000)) % 1000 + number
        by[number] = os.getpid() % 1_000_000

    mine = list(from_both_ends(fill, 40))
    assert np.array_equal(found - found[0], np.arange(40))
    assert mine == list(range(len(mine))), "from the beginning"
    assert len(set(by.tolist())) == 2, "each did a part"


def test_a_copy_that_dies_leaves_all_to_the_other() -> None:
    found = shared_zeros(5)
    here = os.getpid()

    def fill(number: int) -> None:
        if os.getpid() != here and number < 4:
            os._exit(1)
        found[number] = number

    for _ in from_both_ends(fill, 5):
        pass
    assert found.tolist() == [0, 1, 2, 3, 4]


def test_what_is_wrong_is_said_here() -> None:
    def fill(number: int) -> None:
        raise ValueError(number)

    with pytest.raises(ValueError, match="0"):
        list(from_both_ends(fill, 4))


@pytest.mark.parametrize("wrap", [lambda call: call, dies_elsewhere], ids=["lives", "dies"])
def test_pairs_are_as_one_call_after_another(wrap: Callable[..., Callable[[int], int]]) -> None:
    with closing(Pairs(wrap(lambda x: x * x), lambda x: x % 3, True)) as pairs:
        found = [pairs.results([(a,), (a + 1,)]) for a in range(0, 10, 2)]
        found.append(pairs.results([(10,)]))
    assert [x for pair in found for x in pair] == [a * a for a in range(11)]


def test_a_copy_goes_on_with_what_it_knows() -> None:
    """Of two calls the one about what the copy has seen goes there, in whatever order they come."""

    def where(subject: str) -> int:
        return os.getpid()

    with closing(Pairs(where, lambda subject: subject, True)) as pairs:
        _, there = pairs.results([("a",), ("b",)])
        assert pairs.results([("b",), ("c",)]) == [there, os.getpid()]
        assert pairs.results([("d",), ("b",)]) == [os.getpid(), there]


@pytest.mark.parametrize("wrap", [lambda call: call, dies_elsewhere], ids=["lives", "dies"])
def test_what_is_asked_for_soon_is_as_made_here(wrap: Callable[..., Callable[[int], int]]) -> None:
    with closing(Lookahead(wrap(lambda x: x * x))) as calls:
        for number in range(20):
            calls.prefetch([(x,) for x in range(number, number + 4)])
            assert calls.ask(number) == number * number


def test_a_copy_makes_what_is_asked_for_soon() -> None:
    """While something else is made here, and nothing twice."""

    def where(number: int) -> int:
        time.sleep(0.05 if os.getpid() == here else 0.0)
        return os.getpid()

    here = os.getpid()
    with closing(Lookahead(where)) as calls:
        calls.prefetch([(0,), (1,), (2,)])
        assert calls.ask(0) == here
        there = calls.ask(1)
        assert there != here
        calls.prefetch([(3,)])
        assert calls.ask(2) == there, "known before the others were named"
        assert calls.ask(4) == here
        assert calls.ask(3) not in (here, there)


def test_who_waits_for_a_copy_hears_the_question_to_end() -> None:
    def slow(number: int) -> int:
        time.sleep(0.0 if os.getpid() == here else 60.0)
        return number

    here, began = os.getpid(), time.monotonic()
    with closing(Lookahead(slow, lambda: time.monotonic() > began + 0.2)) as calls:
        calls.prefetch([(1,)])
        calls.ask(0)
        with pytest.raises(StoppedError):
            calls.ask(1)


class Records(dict[str, object]):
    """Notes by their names."""

    note, put_note = dict.get, dict.__setitem__


def test_pieces_without_workers_come_from_a_copy_and_are_kept() -> None:
    """Those on record from neither; once nothing is named any more there is no copy."""

    def where(context: str, number: int) -> int:
        time.sleep(0.05 if os.getpid() == here else 0.0)
        return os.getpid()

    here, records = os.getpid(), Records({"2": {"value": 22}})
    with closing(PieceRunner(where, "context", records)) as pieces:
        pieces.prefetch([(0,), (1,), (2,), (3,)])
        assert pieces.ask(0) == here
        there = pieces.ask(1)
        assert there not in (here, 22)
        assert [pieces.ask(2), pieces.ask(3)] == [22, there]
        pieces.prefetch([(4,)])
        assert pieces.ask(5) == here
        pieces.prefetch([])
        with pytest.raises(ProcessLookupError):
            os.kill(there, 0)
        assert pieces.ask(6) == here
    assert list(records) == ["2", "0", "1", "3", "5", "6"]


def test_a_copy_does_not_outlive_a_process_that_is_killed(tmp_path: Path) -> None:
    """It holds the lock of the folder that the process had."""

    def slow(number: int) -> None:
        if number:
            (tmp_path / "pid").write_text(str(os.getpid()), encoding="ascii")
        time.sleep(60.0)

    child = os.fork()
    if child == 0:
        calls = Lookahead(slow)
        calls.prefetch([(1,)])
        calls.ask(0)
        os._exit(0)
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text(encoding="ascii"):
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    copy, ended = int((tmp_path / "pid").read_text(encoding="ascii")), time.monotonic() + 10.0
    while Path(f"/proc/{copy}").exists() and _state(copy) != "Z":
        assert time.monotonic() < ended
        time.sleep(0.01)


def _state(pid: int) -> str:
    """A letter: Z for one that ended and was not asked for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(") ")[2][0]
    except FileNotFoundError:
        return "Z"


def test_a_plan_is_the_same_with_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run("llama2-7b", "h100", 16, batch=64)
    monkeypatch.setattr(search, "SECOND_PROCESS_MIN_ROWS", 0)
    with_copy = plan(run)
    monkeypatch.setattr(forked_copy, "_forked", lambda work: None)
    alone = plan(run)
    assert with_copy.certificate == alone.certificate
    assert with_copy.best == alone.best
    assert with_copy.runners_up == alone.runners_up
    assert with_copy.reasons == alone.reasons
    assert list(with_copy.space.estimated_layouts()) == list(alone.space.estimated_layouts())
