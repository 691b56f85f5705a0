"""Kernels: parts of the code that calls them, and compiled ahead as a search asks for them."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba.core.errors import TypingError

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


def test_kernels_are_compiled_ahead_for_the_types_that_a_search_has() -> None:
    ahead = (
        map_range, layer_floors, fill_problems, quick_bounds, prepare, subset_bound, branch,
    )  # fmt: skip
    warm.bounds()
    warm.schedules()
    known = [set(one.compiled.signatures) for one in ahead]
    assert all(known)
    solve(backward_pass(np.random.default_rng(0), 8, 8), effort="bounded", tolerance=1e-3)
    assert [set(one.compiled.signatures) for one in ahead] == known


def plus_one(value: float) -> float:
    return value + 1.0


def hits(compiled_entry: Any) -> int:
    """How often a kernel was found on disk; it is called, and right."""
    assert compiled_entry(1.0) == 2.0
    return sum(compiled_entry.compiled.stats.cache_hits.values())


def cache_files(compiled_entry: Any, suffix: str) -> list[Path]:
    files = list(Path(compiled_entry.compiled.stats.cache_path).glob(f"test_jit.plus_one*{suffix}"))
    assert files
    return files


@pytest.mark.parametrize("content", [b"", b"x" * 400])
@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
def test_a_cache_that_cannot_be_read_ends_nothing(suffix: str, content: bytes) -> None:
    first: Any = entry(plus_one)
    hits(first)
    assert hits(entry(plus_one)) == 1
    for file in cache_files(first, suffix):
        file.write_bytes(content)
    assert hits(entry(plus_one)) == 0
    hits(entry(plus_one))
    assert hits(entry(plus_one)) == 1, "and kept again"


def test_a_flipped_bit_is_noticed_by_the_checksum() -> None:
    compiled_entry: Any = entry(plus_one)
    hits(compiled_entry)
    folder = Path(compiled_entry.compiled.stats.cache_path)
    kernel_cache.remove_damaged(folder)
    file = cache_files(compiled_entry, ".nbc")[0]
    age = file.stat()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)
    os.utime(file, ns=(age.st_atime_ns, age.st_mtime_ns))  # as a failing disk does
    kernel_cache.remove_damaged(folder)
    assert not file.exists()
    hits(entry(plus_one))
    assert hits(entry(plus_one)) == 1


def test_a_full_disk_keeps_no_kernels_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    compiled_entry: Any = entry(plus_one)
    with monkeypatch.context() as change:
        change.setattr(compiled_entry.compiled._cache, "save_overload", full)
        change.setattr(compiled_entry.compiled._cache, "load_overload", lambda *_: None)
        assert hits(compiled_entry) == 0


def fails(value: float) -> float:
    return value.nothing()  # type: ignore[attr-defined,no-any-return]


def test_a_kernel_that_does_not_compile_says_so() -> None:
    with pytest.raises(TypingError):
        entry(fails)(1.0)
