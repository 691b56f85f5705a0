"""Kernels: parts of the code that calls them, and compiled ahead as a search asks for them."""

from __future__ import annotations

import errno
import gc
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numba.core.caching import NullCache
from numba.core.errors import TypingError
from numba.core.types import functions

from atoll import warm
from atoll.base import kernel_cache
from atoll.base.jit import entry, kernel
from atoll.cost.gemm_kernels import map_range
from atoll.cost.table_kernels import fill_problems
from atoll.explore.pricing.bound_kernels import layer_floors
from atoll.schedule.bound_kernels import prepare
from atoll.schedule.branch_kernels import branch
from atoll.schedule.list_kernels import quick_bounds
from atoll.schedule.solve import solve
from atoll.schedule.subset_kernels import subset_bound
from oracles.synthetic import backward_pass


@kernel
def scaled(values: np.ndarray, factor: float) -> np.ndarray:
    result = np.zeros(values.shape[0])
    for i in range(values.shape[0]):
        result[i] = factor * values[i]
    return result


@kernel
def scaled_sum(values: np.ndarray, factor: float) -> float:
    total = 0.0
    for value in scaled(values, factor):
        total += value
    return total


@entry
def twice(values: np.ndarray) -> float:
    return scaled_sum(values, 2.0)


@entry
def half(values: np.ndarray) -> float:
    return scaled_sum(values, 0.5) + scaled(values, 0.0)[0]


def test_entries_share_kernels_that_call_kernels() -> None:
    assert [twice(np.arange(4.0)), half(np.arange(4.0))] == [12.0, 3.0]


class Record(NamedTuple):
    rows: np.ndarray
    order: np.ndarray


@kernel
def row_sum(record: Record, row: int) -> float:
    """Sees views of its arguments alone."""
    own = record.rows[row]
    total = 0.0
    for value in own[1:]:
        total += value
    return total + own[0] - record.rows[row, 0]


@entry
def borrowed(record: Record) -> float:
    total = 0.0
    for row in range(record.rows.shape[0]):
        total += row_sum(record, row)
    return total


@entry
def gathered(record: Record) -> float:
    return record.rows[record.order][0, 0]


@entry
def given_back(record: Record) -> np.ndarray:
    return record.rows[1]


@pytest.mark.parametrize(
    ("call", "expected", "is_counted"),
    [(borrowed, 54.0, False), (gathered, 8.0, True), (given_back, [4.0, 5.0, 6.0, 7.0], True)],
)
def test_references_are_counted_where_arrays_are_made_or_returned(
    call: Any, expected: Any, is_counted: bool
) -> None:
    record = Record(np.arange(12.0).reshape(3, 4), np.array([2, 0]))
    before = [sys.getrefcount(array) for array in record]
    for _ in range(3):
        assert np.array_equal(call(record), expected)
    assert [sys.getrefcount(array) for array in record] == before
    assert call.stats.cache_hits or ("NRT_decref" in call.inspect_llvm().popitem()[1]) == is_counted
    kept = given_back(Record(np.full((64, 1 << 12), 7.0), record.order))
    assert np.all(kept == 7.0)


def overlaps(left: np.ndarray, right: np.ndarray) -> float:
    """The same operators on several types, the same call again and again."""
    total = 0
    for i in range(left.shape[0]):
        total += min(left[i], right[i]) * (i + 1) + max(0, i - 1)
    return total + min(left[0], 1) + max(total, 1.5)


@pytest.mark.parametrize("hook", [True, False])
def test_calls_typed_once_change_no_answer(monkeypatch: pytest.MonkeyPatch, hook: bool) -> None:
    """Also with a numba that has no such method."""
    types, usual = functions.BaseFunction, functions.BaseFunction.get_call_type
    seen: list[Any] = []

    def counted(self: Any, *call: Any) -> Any:
        seen.append((self, *call[1:]))
        return usual(self, *call)

    monkeypatch.setattr(types, "get_call_type", counted)
    if not hook:
        monkeypatch.setattr("atoll.base.jit.functions", object())
    numbers = np.arange(4), np.arange(4.0)[::-1].copy()
    cases = [(a, b) for a in numbers for b in numbers]
    compiled: Any = entry(overlaps)
    compiled._cache = NullCache()
    for case in cases:
        seen.clear()
        assert compiled(*case) == overlaps(*case)
        assert hook == (len(seen) == len({str(call) for call in seen}))
    assert types.get_call_type is counted
    assert gc.isenabled()


def test_kernels_are_compiled_ahead_for_the_types_that_a_search_has() -> None:
    ahead = (
        map_range, layer_floors, fill_problems, quick_bounds, prepare, subset_bound, branch,
    )  # fmt: skip
    warm.bounds()
    warm.schedules()
    known = [set(one.signatures) for one in ahead]
    assert all(known)
    solve(backward_pass(np.random.default_rng(0), 8, 8), effort="bounded", tolerance=1e-3)
    assert [set(one.signatures) for one in ahead] == known


def plus_one(value: float) -> float:
    return value + 1.0


def hits(compiled: Any) -> int:
    """How often a kernel was found on disk; it is called, and right."""
    assert compiled(1.0) == 2.0
    return sum(compiled.stats.cache_hits.values())


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "another"])
@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
def test_a_damaged_cache_is_compiled_again(suffix: str, damage: str) -> None:
    first: Any = entry(plus_one)
    hits(first)
    assert hits(entry(plus_one)) == 1
    [*files] = Path(first._cache.cache_path).glob(f"test_jit.plus_one*{suffix}")
    for file in files:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 4
        changed = {"flipped": content, "cut": content[:40], "empty": b"", "another": b"x" * 400}
        file.write_bytes(changed[damage])
    assert files
    assert hits(entry(plus_one)) == 0
    assert hits(entry(plus_one)) == 1, "and kept again"


def test_a_full_disk_keeps_no_kernels_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    compiled: Any = entry(plus_one)
    compiled._cache.flush()
    with monkeypatch.context() as change:
        change.setattr(compiled._cache._cache_file, "_write", full)
        assert hits(compiled) == 0
    assert hits(entry(plus_one)) == 0


def one_more(value: float) -> float:
    return value + 1.0


def test_a_kernel_that_another_process_compiles_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: Any = entry(one_more)
    hits(made)
    index = Path(made._cache._cache_file._index_path)
    kept = index.read_bytes()
    made._cache.flush()
    other = kernel_cache.CompilerLock(f"{index}.lock")
    other.acquire()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(hits, entry(one_more))
        time.sleep(0.1)
        assert not waiting.done()
        index.write_bytes(kept)
        other.release()
        assert waiting.result() == 1
    made._cache.flush()
    other.acquire()
    monkeypatch.setattr(kernel_cache, "WAIT_S", 0.0)
    assert hits(entry(one_more)) == 0, "one that takes for ever is not"
    other.release()


def test_a_kernel_that_does_not_compile_keeps_no_other_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: Any = entry(one_more)
    with pytest.raises(TypingError):
        compiled("text")
    other = kernel_cache.CompilerLock(compiled._cache._lock._path)
    monkeypatch.setattr(kernel_cache, "WAIT_S", 0.0)
    other.acquire()
    assert other._taken()
    other.release()
