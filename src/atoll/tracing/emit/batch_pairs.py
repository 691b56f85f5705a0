"""Two captures at different batch sizes become one file whose sizes grow with the microbatch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from atoll.workload.modelfile import LayerEntry, OperatorEntry

_SIZES = frozenset(["shape", "units", "batch", "m", "n", "k", "rows", "cols", "bytes", "divided"])
"""Fields of a file that are sizes."""


class NotProportionalError(Exception):
    """Some size is neither the same in both captures nor proportional to the batch."""


def paired(
    small: list[LayerEntry], large: list[LayerEntry], batches: tuple[int, int]
) -> list[LayerEntry]:
    """The layers with sizes as functions of the microbatch."""
    if len(small) != len(large):
        raise NotProportionalError("the number of different layers")
    result = []
    for a, b in zip(small, large, strict=True):
        data = _pair(a.model_dump(), b.model_dump(), batches, f"layer {a.name}", False)
        result.append(LayerEntry.model_validate(data))
    return result


def summed_steps(layers: Iterable[LayerEntry]) -> list[LayerEntry]:
    """The layers with the bytes of their steps added up."""

    def operator(op: OperatorEntry) -> OperatorEntry:
        steps = {}
        for function, entry in op.steps.items():
            sums = {"bytes": _total(entry.bytes), "divided": _total(entry.divided)}
            steps[function] = entry.model_copy(update=sums)
        return op.model_copy(update={"steps": steps})

    def layer(entry: LayerEntry) -> LayerEntry:
        passes = {"forward": entry.forward, "backward": entry.backward}
        summed = {name: tuple(map(operator, ops)) for name, ops in passes.items()}
        return entry.model_copy(update=summed)

    return [*map(layer, layers)]


def _total(sizes: Iterable[int | str]) -> tuple[int | str, ...]:
    """At most two sizes with the same sum: one that is fixed, one that grows."""
    fixed = grows = 0
    for size in sizes:
        if isinstance(size, int):
            fixed += size
        else:
            grows += _factor(size)
    return (*((fixed,) if fixed else ()), *((f"{grows}*microbatch",) if grows else ()))


def _factor(size: str) -> int:
    """The number in "K*microbatch"."""
    return int(size.removesuffix("microbatch").removesuffix("*") or 1)


def _growing(factor: int) -> str:
    return "microbatch" if factor == 1 else f"{factor}*microbatch"


def _pair(a: Any, b: Any, batches: tuple[int, int], where: str, size: bool) -> Any:
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return {
            key: _pair(a[key], b[key], batches, f"{where}, {key}", size or key in _SIZES)
            for key in a
        }
    if isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        return tuple(_pair(*pair, batches, where, size) for pair in zip(a, b, strict=True))
    if size and isinstance(a, str) and isinstance(b, str):
        return _dealt(a, b, batches, where)
    if a == b and type(a) is type(b):
        return a
    if size and isinstance(a, int) and isinstance(b, int):
        first, second = batches
        if a * second == b * first and a % first == 0:
            return _growing(a // first)
    if isinstance(a, float) and isinstance(b, float) and abs(a - b) < 1e-12:
        return a
    raise NotProportionalError(where)


def _dealt(a: str, b: str, batches: tuple[int, int], where: str) -> int | str:
    """Rows dealt out to groups: "rows/groups" in both captures."""
    (rows_a, _, groups), (rows_b, _, groups_b) = a.partition("/"), b.partition("/")
    if groups != groups_b:
        raise NotProportionalError(where)
    rows = _pair(int(rows_a), int(rows_b), batches, where, True)
    count = int(groups)
    if isinstance(rows, int):
        return -(-rows // count)
    factor = _factor(rows)
    return f"{factor}*microbatch/{count}" if factor % count else _growing(factor // count)
