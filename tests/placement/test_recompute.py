"""What may be dropped and what must run again, against executing the layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.placement import recompute
from atoll.placement.recompute import (
    KeepChoice,
    frontier,
    hull_choices,
    keep_choices,
    rerun_table,
)
from atoll.workload import load_config, prepare
from atoll.workload.graph.layer import Layer
from atoll.workload.graph.operator import Operator, Role, Tensor

# --- Oracle: run the chosen operators in order and see what is there ------------------------------


def rebuilds(layer: Layer, keep: Iterable[str], rerun: Iterable[int]) -> bool:
    """Whether these operators run on what is kept and leave every saved tensor in memory."""
    made = {name for op in layer.forward for name in op.writes}
    memory = set(keep) | {layer.input} | (set(layer.tensors) - made)
    for index in sorted(rerun):
        op = layer.forward[index]
        if not memory.issuperset(op.reads):
            return False
        memory |= set(op.writes)
    return memory.issuperset(layer.saved)


def subsets(items: Iterable[int] | Iterable[str]) -> Iterator[frozenset[int | str]]:
    listed = list(items)
    for mask in range(1 << len(listed)):
        yield frozenset(item for i, item in enumerate(listed) if mask >> i & 1)


def bytes_of(layer: Layer, keep: Iterable[str], rerun: Iterable[int]) -> int:
    """Kept tensors, and the input where backward or a rerun operator reads it."""
    names = set(keep)
    if layer.input in layer.saved or any(layer.input in layer.forward[i].reads for i in rerun):
        names.add(layer.input)
    return sum(layer.tensors[name].bytes for name in names)


def every_choice(layer: Layer) -> set[tuple[int, frozenset[int]]]:
    """(bytes, operators) of every subset of saved tensors, with the least operators it needs."""
    found = set()
    for keep in subsets(name for name in layer.saved if name != layer.input):
        enough = [
            rerun for rerun in subsets(range(len(layer.forward))) if rebuilds(layer, keep, rerun)
        ]
        least = min(enough, key=len)
        assert all(least <= other for other in enough)
        found.add((bytes_of(layer, keep, least), least))
    return found


def beats(a: tuple[int, frozenset[int]], b: tuple[int, frozenset[int]]) -> bool:
    return a != b and a[0] <= b[0] and a[1] <= b[1]


# --- Random layers --------------------------------------------------------------------------------


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    """Up to five operators; sizes of a few bytes, so that many choices weigh the same."""

    def tensor(name: str, role: Role = Role.ACTIVATION) -> Tensor:
        return Tensor(name, (draw(st.integers(1, 4)),), 1, role)

    tensors = {"x": tensor("x"), "w": tensor("w", Role.WEIGHT)}
    forward = []
    for i in range(draw(st.integers(1, 5))):
        given = st.sampled_from(sorted(tensors))
        reads = draw(st.lists(given, min_size=1, max_size=3, unique=True))
        writes = [f"t{i}{letter}" for letter in draw(st.sampled_from(["a", "ab"]))]
        tensors |= {name: tensor(name) for name in writes}
        forward.append(Operator(f"op{i}", "any", tuple(reads), tuple(writes)))
    output = forward[-1].writes[0]
    readable = sorted(set(tensors) - {"w"})
    wanted = draw(st.lists(st.sampled_from(readable), max_size=6, unique=True))
    tensors |= {"d" + output: tensor("d" + output), "dx": tensor("dx")}
    backward = (Operator("back", "any", ("d" + output, "w", *wanted), ("dx",)),)
    return Layer("layer", tensors, tuple(forward), backward, "x", output)


@settings(max_examples=150, deadline=None)
@given(layers())
def test_the_choices_are_exactly_those_that_no_other_beats(layer: Layer) -> None:
    everything = every_choice(layer)
    undominated = {a for a in everything if not any(beats(b, a) for b in everything)}
    choices = keep_choices(layer)
    assert {(c.kept_bytes, frozenset(c.rerun)) for c in choices} == undominated
    assert len(choices) == len(undominated)
    for choice in choices:
        assert rebuilds(layer, choice.keep, choice.rerun)
        assert bytes_of(layer, choice.keep, choice.rerun) == choice.kept_bytes


@given(layers(), st.integers(0, 3))
def test_beyond_the_limit_the_smallest_tensors_stay(layer: Layer, limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recompute, "_MOST_TENSORS", limit)
        choices = keep_choices(layer)
    saved = set(layer.saved) - {layer.input}
    dropped = {name for choice in choices for name in saved - set(choice.keep)}
    assert len(dropped) <= limit
    for large in dropped:
        larger = [n for n in saved if layer.tensors[n].bytes > layer.tensors[large].bytes]
        assert len(larger) < limit
    assert all(rebuilds(layer, choice.keep, choice.rerun) for choice in choices)
    assert choices[-1].rerun == ()


@settings(max_examples=100, deadline=None)
@given(layers(), st.lists(st.integers(0, 3), min_size=5, max_size=5))
def test_the_hull_is_that_of_all_choices(layer: Layer, given_s: list[int]) -> None:
    seconds = np.array(given_s[: len(layer.forward)], np.float64)
    choices = keep_choices(layer)
    kept = np.array([float(c.kept_bytes) for c in choices])
    extra = rerun_table(choices, len(layer.forward)) @ seconds
    bytes_, extra_s, _ = frontier(kept, extra)
    hull = hull_choices(layer, seconds)
    assert [c.kept_bytes for c in hull] == bytes_.tolist()
    assert [seconds[list(c.rerun)].sum() for c in hull] == extra_s.tolist()
    assert set(hull) <= set(choices)


# --- Layers of models -----------------------------------------------------------------------------

MODELS = ["gpt2-xl", "llama2-7b", "bert-large", "mixtral-8x7b"]


@cache
def block_of(name: str) -> Layer:
    model = prepare(load_config(name), 1, 256)
    return next(layer for layer, _ in model.layers if layer.name == "block")


@pytest.mark.parametrize("name", MODELS)
def test_choices_of_a_block_go_from_its_input_alone_to_everything(name: str) -> None:
    layer = block_of(name)
    choices = keep_choices(layer)
    assert choices[0].keep == (layer.input,)
    assert choices[0].kept_bytes == layer.tensors[layer.input].bytes
    assert choices[-1].rerun == ()
    assert set(choices[-1].keep) == set(layer.saved)
    assert choices[-1].kept_bytes == layer.saved_bytes
    assert all(a.kept_bytes <= b.kept_bytes for a, b in pairwise(choices))


@pytest.mark.parametrize("name", MODELS)
def test_a_block_reruns_what_it_needs_and_nothing_else(name: str) -> None:
    layer = block_of(name)
    choices = keep_choices(layer)
    for choice in choices[:: max(1, len(choices) // 50)]:
        assert rebuilds(layer, choice.keep, choice.rerun)
        for spared in choice.rerun:
            assert not rebuilds(layer, choice.keep, set(choice.rerun) - {spared})


def test_selective_recomputation_is_among_the_choices() -> None:
    # Korthikanti et al. (2022): drop what attention makes of queries and keys, and nothing else.
    model = prepare(load_config("megatron-gpt2-8.3b"), 1, 256, attention="unfused")
    layer = model.layers[1][0]
    core = [i for i, op in enumerate(layer.forward) if op.name.startswith(("sc", "soft", "prob"))]
    made = {name for i in core for name in layer.forward[i].writes}
    selective = [choice for choice in keep_choices(layer) if list(choice.rerun) == core]
    assert [set(choice.keep) for choice in selective] == [set(layer.saved) - made]


# --- The frontier ---------------------------------------------------------------------------------

points = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=12)


@given(points)
def test_the_frontier_is_the_convex_lower_hull(pairs: list[tuple[int, int]]) -> None:
    x, y = np.array(sorted(pairs, key=lambda pair: pair[0]), float).T
    kept, extra, index = frontier(x, y)
    assert (x[index] == kept).all() and (y[index] == extra).all()
    assert (kept[0], extra[0]) == min(pairs)
    assert (extra[-1], kept[-1]) == min((seconds, size) for size, seconds in pairs)
    assert (np.diff(kept) > 0).all() and (np.diff(extra) < 0).all()
    slopes = np.diff(extra) / np.diff(kept)
    assert (np.diff(slopes) > 0).all()
    # No choice lies below a mixture of neighbours.
    assert (np.interp(x, kept, extra) <= y + 1e-12).all()


def test_seconds_are_those_of_the_operators_that_run_again() -> None:
    choices = [KeepChoice(("x",), (0, 2), 1), KeepChoice(("x", "y"), (), 3)]
    table = rerun_table(choices, 3)
    assert table.tolist() == [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    assert rerun_table([], 3).shape == (0, 3)
