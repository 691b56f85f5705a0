"""Pipeline orders: which pass of which microbatch a stage runs next, and which way the data takes.

A stage holds one or more chunks of the model. A pass is forward (F), backward (B) or, in orders
that split the backward pass, the weight gradients alone (W), which nobody waits for.

    gpipe        all forward passes, then all backward passes                   arXiv:1811.06965
    1f1b         one forward, one backward pass in turn                   Narayanan et al., SC 2021
    interleaved  1f1b over several chunks a stage                         the same, section 2.2.2
    zb-h1        1f1b whose weight passes wait for a gap, in the memory of 1f1b  arXiv:2401.10241
    zb-h2        the same with up to twice the microbatches in flight            the same
    zb-v         two chunks a stage, laid out in a V                             the same, section 6
    dualpipe     microbatches enter at both ends; every stage holds two chunks   arXiv:2412.19437

zb-v and dualpipe are defined for enough microbatches; with fewer, the passes of those that are
missing are left out of the order for the least number that fills the pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, pairwise, repeat
from typing import Literal, NamedTuple, get_args

OrderName = Literal["1f1b", "interleaved", "gpipe", "zb-h1", "zb-h2", "zb-v", "dualpipe"]
ORDERS: tuple[str, ...] = get_args(OrderName)
SPLIT = ("zb-h1", "zb-h2", "zb-v", "dualpipe")
"""Orders that run weight gradients apart."""
TWO_CHUNKS = ("zb-v", "dualpipe")
"""Orders in which a stage holds two chunks of the model."""
LATE = {"zb-h1": 1, "zb-h2": 2}
"""Weight passes that a stage puts off, for every stage before it."""


class Pass(NamedTuple):
    """One pass of one microbatch through one chunk of a stage."""

    kind: str
    chunk: int
    microbatch: int


def chunks_of(order: str, vpp: int = 1) -> int:
    """Chunks of the model that each stage holds."""
    return 2 if order in TWO_CHUNKS else vpp


def copies_of(order: str) -> int:
    """Times that a pipeline holds the model: once for each end at which microbatches enter."""
    return 2 if order == "dualpipe" else 1


def route(order: str, stages: int, chunks: int, microbatch: int) -> list[tuple[int, int]]:
    """The (stage, chunk) pairs that a microbatch's forward pass visits, in the model's order."""
    down = [(s, 0) for s in range(stages)]
    if order == "zb-v":
        return down + [(s, 1) for s in reversed(range(stages))]
    if order == "dualpipe":
        # Odd microbatches enter at the last stage, through the chunks that mirror the even ones'.
        return down if microbatch % 2 == 0 else [(s, 1) for s in reversed(range(stages))]
    return [(s, c) for c in range(chunks) for s in range(stages)]


def arrivals(
    order: str, stages: int, chunks: int, pods: tuple[int, ...] = ()
) -> tuple[tuple[float, float], ...]:
    """For every stage, activations and gradients that a microbatch brings it from other stages;
    where the pods of the stages are given, of those in other pods.
    """
    found = [[0.0, 0.0] for _ in range(stages)]
    where = pods or range(stages)
    ways = copies_of(order)  # in dualpipe every second one comes from the other end
    for microbatch in range(ways):
        for (one, _), (two, _) in pairwise(route(order, stages, chunks, microbatch)):
            if where[one] != where[two]:
                found[two][0] += 1 / ways
                found[one][1] += 1 / ways
    return tuple((activations, gradients) for activations, gradients in found)


def passes(order: str, stage: int, stages: int, chunks: int, microbatches: int) -> list[Pass]:
    """The passes of a stage in the order in which it runs them."""
    if order == "zb-v":
        return _left(_zb_v(stage, stages, max(microbatches, 2 * stages - 1)), microbatches)
    if order == "dualpipe":
        return _left(_dualpipe(stage, stages, max(microbatches, 2 * stages)), microbatches)
    if order in LATE:
        return _delayed(order, stage, stages, microbatches)
    return _fused(order, stage, stages, chunks, microbatches)


def groups(stages: int, microbatches: int) -> list[int]:
    """Sizes of the groups of microbatches that interleaving sends through a chunk together: as many
    groups of at least `stages` microbatches as there can be, as equal as they can be.
    """
    count = max(1, microbatches // stages)
    size, more = divmod(microbatches, count)
    return [size + 1] * more + [size] * (count - more)


def first_group(stages: int, microbatches: int) -> int:
    """The size of the first of them, which is as large as any."""
    return -(-microbatches // max(1, microbatches // stages))


def _fused(order: str, stage: int, stages: int, chunks: int, microbatches: int) -> list[Pass]:
    total = microbatches * chunks
    if order == "gpipe":
        ahead = total
    elif chunks > 1:
        first = (chunks - 1) * first_group(stages, microbatches)
        ahead = min(total, 2 * (stages - stage - 1) + first)
    else:
        ahead = min(total, stages - stage - 1)
    turns = list(_turns(stages, chunks, microbatches))
    forward = [Pass("F", c, m) for c, m in turns]
    backward = [Pass("B", chunks - 1 - c, m) for c, m in turns]
    steady = chain.from_iterable(zip(forward[ahead:], backward, strict=False))
    return [*forward[:ahead], *steady, *backward[total - ahead :]]


def _turns(stages: int, chunks: int, microbatches: int) -> Iterator[tuple[int, int]]:
    """(chunk, microbatch) of a stage's forward passes: group by group, chunk by chunk."""
    if chunks == 1:
        yield from ((0, m) for m in range(microbatches))
        return
    first = 0
    for size in groups(stages, microbatches):
        yield from ((c, first + m) for c in range(chunks) for m in range(size))
        first += size


def _delayed(order: str, stage: int, stages: int, microbatches: int) -> list[Pass]:
    """Weight passes put off by as many microbatches as there are stages before (H1), or by two for
    each (H2), which also runs that many more forward passes ahead.
    """
    late = LATE[order]
    ahead = min(late * (stages - stage - 1) + 1, microbatches)
    lag = min(late * stage, microbatches)
    found = [Pass("F", 0, m) for m in range(ahead)]
    for m in range(microbatches):
        found.append(Pass("B", 0, m))
        if m >= lag:
            found.append(Pass("W", 0, m - lag))
        if m + ahead < microbatches:
            found.append(Pass("F", 0, m + ahead))
    return found + [Pass("W", 0, m) for m in range(microbatches - lag, microbatches)]


class _Counter:
    """Numbers the passes of each kind and chunk as they are put down."""

    def __init__(self) -> None:
        self.found: list[Pass] = []
        self.next: dict[tuple[str, int], int] = {}

    def run(self, *what: tuple[str, int]) -> None:
        for kind, chunk in what:
            m = self.next.get((kind, chunk), 0)
            self.next[kind, chunk] = m + 1
            self.found.append(Pass(kind, chunk, m))

    def count(self, kind: str, chunk: int) -> int:
        return self.next.get((kind, chunk), 0)


def _zb_v(stage: int, stages: int, microbatches: int) -> list[Pass]:
    """Warm-up through both arms of the V, then one pass of each kind and chunk in turn."""
    line = _Counter()
    after = stages - stage
    f0, f1, b0, b1, w0, w1 = (("F", 0), ("F", 1), ("B", 0), ("B", 1), ("W", 0), ("W", 1))
    line.run(*repeat(f0, 2 * after - 1))
    for _ in range(stage):
        line.run(f1, f0)
    for _ in range(after):
        line.run(f1, b1, w1)
    while line.count("F", 1) < microbatches:
        if line.count("F", 0) < microbatches:
            line.run(f0)
        line.run(b0, w0, f1, b1, w1)
    for _ in range(stage):
        line.run(b0, b1)
    for _ in range(after):
        line.run(b0, w0)
    line.run(*repeat(w1, microbatches - line.count("W", 1)))
    line.run(*repeat(w0, microbatches - line.count("W", 0)))
    return line.found


def _dualpipe(stage: int, stages: int, microbatches: int) -> list[Pass]:
    """Both directions in turn. A stage of the far half sees the directions exchanged."""
    line = _Counter()
    near = min(stage, stages - 1 - stage)
    half, own = stages // 2, microbatches // 2
    one, two = (0, 1) if stage < half else (1, 0)  # chunk of the direction that begins near by
    rest = half - near - 1
    line.run(*repeat(("F", one), 2 * rest))
    for _ in range(near + 1):
        line.run(("F", one), ("F", two))
    for _ in range(rest):
        line.run(("B", two), ("W", two), ("F", two))
    for _ in range(own - stages + near + 1):
        line.run(("F", one), ("B", two), ("W", two), ("F", two), ("B", one), ("W", one))
    for _ in range(rest):
        line.run(("B", two), ("W", two), ("F", two), ("B", one), ("W", one))
    late: list[tuple[str, int]] = []
    for i in range(near + 1):
        # Weight passes of the last part wait; those before run at once.
        for chunk in (two, one):
            line.run(("B", chunk))
            if 2 * i + (chunk == one) >= near + 1:
                late.append(("W", chunk))
            else:
                line.run(("W", chunk))
    for _ in range(rest):
        line.run(late.pop(0))
        line.run(("B", one))
        late.append(("W", one))
    line.run(*late)
    # Directions number their microbatches apart: even ones one way, odd ones the other.
    return [Pass(p.kind, p.chunk, 2 * p.microbatch + p.chunk) for p in line.found]


def _left(found: list[Pass], microbatches: int) -> list[Pass]:
    return [p for p in found if p.microbatch < microbatches]
