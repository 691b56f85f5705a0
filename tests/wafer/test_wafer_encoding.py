"""The encoding: legal codes, JSON, mutation, counting; what decoding means."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.base.errors import AtollError
from atoll.fabric.digits import digit_systems
from atoll.fabric.mesh import ALGORITHMS, Mesh, Rectangle
from atoll.fabric.mesh_collectives import wires
from atoll.wafer.costs import block_kernels as kernels
from atoll.wafer.encoding import role_kernels as roles
from atoll.wafer.encoding.block_parts import HOMES, KEEP, KINDS, OFFLOAD, RECOMPUTE, BlockMapping
from atoll.wafer.encoding.codes import code_count, divisible, legal_codes, parts_of, splits
from atoll.wafer.encoding.mapping import (
    StageMapping,
    WaferMapping,
    from_dict,
    problems,
    read_mapping,
    validate,
)
from oracles.wafer_mutations import mutate

from .wafer_cases import small_block, small_model

SHAPES = [(1, 1), (2, 1), (2, 2), (3, 2), (4, 2)]


def random_mapping(seed: int, width: int = 2, height: int = 2, stages: int = 2) -> WaferMapping:
    random = np.random.default_rng(seed)
    block = small_block(2)

    def draw(sizes, digits):
        codes = legal_codes(sizes, digits)
        return codes[int(random.integers(len(codes)))]

    found = []
    for number in range(stages):
        systems = digit_systems(width, height)
        digits = systems[int(random.integers(len(systems)))]
        own = [(draw(u.sizes, digits), draw(u.sizes, digits)) for u in block.units]
        own = [(d, w if u.parameters else d) for (d, w), u in zip(own, block.units, strict=True)]
        ways = [(bool(random.integers(2)), ALGORITHMS[random.integers(4)]) for _ in block.units]
        helper = int(random.integers(-1, stages))
        helper = None if helper in (-1, number) else helper
        genes = BlockMapping(
            draw(block.stream_sizes, digits),
            tuple(draw(unit.sizes, digits) for unit in block.units),
            tuple(HOMES[int(random.integers(4))] for _ in block.units),
            tuple(int(random.integers(2 if helper is None else 3)) for _ in range(7)),
            tuple(own) if random.integers(2) else (),
            tuple(ways) if random.integers(2) else (),
        )
        layers = block.layers // stages
        place = Rectangle(number * width, 0, width, height)
        found.append(
            StageMapping(place, digits, layers, genes, draw(block.head.sizes, digits), helper)
        )
    return WaferMapping(small_model(), 8, 2, 24, tuple(found))


@given(seed=st.integers(0, 10_000), shape=st.sampled_from(SHAPES))
def test_json_brings_back_the_same_mapping(seed, shape):
    mapping = random_mapping(seed, *shape)
    assert from_dict(json.loads(mapping.to_json())) == mapping
    assert problems(mapping, shape[1], 2 * shape[0]) == []


@given(seed=st.integers(0, 10_000), shape=st.sampled_from(SHAPES), steps=st.integers(1, 10))
def test_mutations_stay_legal(seed, shape, steps):
    random = np.random.default_rng(seed)
    mapping = random_mapping(seed, *shape)
    for _ in range(steps):
        mapping = mutate(mapping, random)
        assert problems(mapping, shape[1], 2 * shape[0]) == []


def test_mutations_reach_every_kind_of_gene():
    random = np.random.default_rng(0)
    start = random_mapping(1)
    changed = set()
    block_genes = {"stream", "codes", "homes", "keep", "gradients", "collectives"}
    for _ in range(400):
        other = mutate(start, random)
        changed |= {"streaming"} if other.streaming != start.streaming else set()
        changed |= {"schedule"} if other.schedule != start.schedule else set()
        for a, b in zip(start.stages, other.stages, strict=True):
            changed |= {g for g in ("layers", "helper") if getattr(a, g) != getattr(b, g)}
            changed |= {g for g in block_genes if getattr(a.block, g) != getattr(b.block, g)}
    assert changed == {"streaming", "schedule", "layers", "helper", *block_genes}


def with_stage(mapping: WaferMapping, **changes) -> WaferMapping:
    """The first stage with other variables, of its own or of its block."""
    stage = mapping.stages[0]
    own = {name: changes.pop(name) for name in ("helper",) if name in changes}
    first = replace(stage, block=replace(stage.block, **changes), **own)
    return replace(mapping, stages=(first, *mapping.stages[1:]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: replace(m, stages=m.stages[:1]), "2 layers, but the model has 4"),
        (lambda m: replace(m, algorithm="magic"), "algorithm 'magic'"),
        (lambda m: with_stage(m, helper=0), "offload target 0 is not another stage"),
        (lambda m: with_stage(m, helper=None, keep=(OFFLOAD,) * 7), "but has no offload target"),
        (lambda m: with_stage(m, gradients=(("sx", "ss"),) * 6), "code 'sx' is not legal"),
        (lambda m: with_stage(m, gradients=(("ss", "ss"),)), "gradients has 1 entries"),
        (lambda m: with_stage(m, gradients=(("ss", "sb"),) * 6), "attention: has no weight"),
        (lambda m: with_stage(m, collectives=((True, "tree"),) * 6), "algorithm 'tree'"),
        (lambda m: with_stage(m, keep=(5,) * 7), "fate 5 is unknown"),
        (
            lambda m: replace(
                m, stages=(m.stages[0], replace(m.stages[1], rectangle=Rectangle(1, 0, 2, 2)))
            ),
            "shares dies",
        ),
        (
            lambda m: replace(
                m, stages=(m.stages[0], replace(m.stages[1], rectangle=Rectangle(3, 0, 2, 2)))
            ),
            "leaves the grid",
        ),
    ],
)
def test_what_is_wrong_is_named(change, words):
    with pytest.raises(AtollError, match="mapping: ") as caught:
        validate(change(random_mapping(0)), 2, 4)
    assert words in str(caught.value)


def test_files_from_before_helpers_and_gradient_codes_still_load():
    mapping = random_mapping(3)
    old = mapping.to_dict()
    for stage in old["stages"]:
        stage.pop("offload_target", None)
        stage["keep"] = {name: value != "offload" for name, value in stage["keep"].items()}
        for operator in stage["operators"].values():
            for variable in set(operator) - {"code", "weight_placement"}:
                operator.pop(variable)
    loaded = from_dict(old)
    assert problems(loaded, 2, 4) == []
    for stage in loaded.stages:
        assert stage.helper is None
        assert stage.block.gradients == () and stage.block.collectives == ()
        assert set(stage.block.keep) <= {RECOMPUTE, KEEP}


def test_files_with_the_former_names_of_their_keys_still_load():
    mapping = random_mapping(3)
    old = mapping.to_dict()
    for stage in old["stages"]:
        if "offload_target" in stage:
            stage["helper"] = stage.pop("offload_target")
        for operator in stage["operators"].values():
            operator["home"] = operator.pop("weight_placement")
    assert from_dict(old) == mapping


def test_a_dead_die_must_not_be_used():
    assert any("dead" in text for text in problems(random_mapping(0), 2, 4, [(1, 1)]))


def test_a_broken_file_is_one_sentence(tmp_path):
    file = tmp_path / "mapping.json"
    for content, words in (("{", "not valid JSON"), ("{}", "missing"), ('{"batch": "x"}', "batch")):
        file.write_text(content)
        with pytest.raises(AtollError, match=words):
            read_mapping(file)


def held(code: str, named: dict[str, int], digits, die: tuple[int, int], size: int) -> set:
    """Pieces (row field, column field) of a tensor that a die holds under a layout."""
    values = digits.digits(*die)
    pieces = set()
    for index in np.ndindex(*(int(r) for r in digits.radix), *(int(r) for r in digits.radix)):
        rows, columns = index[: digits.count], index[digits.count :]
        mine = all(
            (named[tag] != roles.SEQUENCE or rows[d] == values[d])
            and (named[tag] != roles.COLUMNS or columns[d] == values[d])
            for d, tag in enumerate(code)
        )
        if mine:
            pieces.add(index)
    return pieces


@settings(max_examples=40, deadline=None)
@given(shape=st.sampled_from([(2, 2), (4, 1), (3, 2)]), data=st.data())
def test_resharding_moves_exactly_what_a_die_lacks(shape, data):
    """Digit by digit decisions against sets of pieces: free where nothing is missing, and what is
    stored before a gather is what the source and target have in common.
    """
    digits = digit_systems(*shape)[0]
    named = KINDS["vector"].writes
    source = "".join(data.draw(st.sampled_from("scr")) for _ in range(digits.count))
    target = "".join(data.draw(st.sampled_from("scr")) for _ in range(digits.count))
    have, want = (np.array([named[t] for t in code], np.int64) for code in (source, target))
    links = wires(digits, Mesh("", *shape, 1.0, 0.0))
    out = kernels.single_transition(1.0, have, have, want, links, 0, 0)
    dies = [(x, y) for y in range(digits.height) for x in range(digits.width)]
    missing = any(
        held(target, named, digits, die, 1) - held(source, named, digits, die, 1) for die in dies
    )
    assert (sum(out[:3]) > 0) == missing


@pytest.mark.parametrize("shape", [(2, 2), (3, 2), (4, 2), (6, 1)])
def test_codes_are_counted_as_they_are_listed(shape):
    block = small_block(2)
    for digits in digit_systems(*shape):
        for sizes in (block.stream_sizes, *(unit.sizes for unit in block.units)):
            assert code_count(sizes, digits.size) == len(legal_codes(sizes, digits))


SIZE = st.sampled_from([1, 2, 3, 4, 6, 8, 12, 32])


@settings(max_examples=200, deadline=None)
@given(sizes=st.dictionaries(st.sampled_from("sknr"), SIZE), samples=SIZE, dies=st.integers(1, 300))
def test_an_operator_is_divisible_where_it_has_a_split(sizes, samples, dies):
    sizes |= {"b": samples}
    assert divisible(sizes, dies) == bool(splits(sizes, dies))


def test_parts_multiply_to_the_group():
    digits = digit_systems(4, 6)[0]
    for code in legal_codes(small_block(2).units[0].sizes, digits)[:50]:
        assert np.prod(list(parts_of(code, digits).values())) == 24
