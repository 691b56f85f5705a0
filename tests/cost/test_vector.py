"""Vector operators: lanes filled by elements or by rows, whatever does not fill them padded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.base.errors import AtollError
from atoll.cost.vector import OPERATIONS, ROW_FUNCTIONS, operations_per_element, vector_cycles
from atoll.workload import load_config, prepare, zoo_names
from atoll.workload.graph.operator import VectorWork

works = st.builds(
    VectorWork,
    function=st.sampled_from(sorted(OPERATIONS["default"])),
    rows=st.integers(1, 5000),
    cols=st.integers(1, 5000),
)
counts = st.integers(1, 4096)
profiles = st.sampled_from(sorted(OPERATIONS))


def test_element_wise_work_packs_elements_densely() -> None:
    """3000 elements on 2 x 128 lanes are 12 rounds, of 18 operations each for GELU."""
    assert vector_cycles(VectorWork("gelu", 10, 300), cores=2, lanes=128) == 12 * 18


def test_row_work_keeps_a_row_on_one_core() -> None:
    """10 rows on 2 cores, each row 3 rounds of 128 lanes, 4 operations each for a layer norm."""
    assert vector_cycles(VectorWork("layernorm", 10, 300), cores=2, lanes=128) == 5 * 3 * 4


def test_the_seed_counts_an_operation_a_norm_and_eleven_a_softmax() -> None:
    norm, softmax = VectorWork("layernorm", 10, 300), VectorWork("softmax", 10, 300)
    assert vector_cycles(norm, 2, 128, "phaze") == 5 * 3
    assert vector_cycles(softmax, 2, 128, "phaze") == 5 * 3 * 11


@given(work=works, cores=counts, lanes=counts, profile=profiles)
def test_never_below_full_lanes(work: VectorWork, cores: int, lanes: int, profile: str) -> None:
    operations = work.elements * operations_per_element(work.function, profile)
    assert vector_cycles(work, cores, lanes, profile) * cores * lanes >= operations


@given(work=works, cores=counts, lanes=counts, more=st.integers(1, 64))
def test_more_cores_or_lanes_are_never_slower(
    work: VectorWork, cores: int, lanes: int, more: int
) -> None:
    cycles = vector_cycles(work, cores, lanes)
    assert vector_cycles(work, cores + more, lanes) <= cycles
    assert vector_cycles(work, cores, lanes + more) <= cycles


@given(work=works, pairs=st.lists(st.tuples(counts, counts), min_size=1, max_size=8))
def test_arrays_of_chips_cost_what_each_costs(
    work: VectorWork, pairs: list[tuple[int, int]]
) -> None:
    cores, lanes = np.array(pairs).T
    together = vector_cycles(work, cores, lanes)
    assert together.tolist() == [vector_cycles(work, c, n) for c, n in pairs]


def test_every_function_of_every_model_has_a_cost() -> None:
    for name in zoo_names():
        for attention in ("flash", "unfused"):
            model = prepare(load_config(name), 1, 64, attention=attention)
            for layer, _ in model.layers:
                for op in (*layer.forward, *layer.backward):
                    for work in op.vectors:
                        for profile in OPERATIONS:
                            assert operations_per_element(work.function, profile) >= 1


def test_row_functions_are_priced() -> None:
    assert OPERATIONS["default"].keys() >= ROW_FUNCTIONS
    assert OPERATIONS["default"].keys() == OPERATIONS["phaze"].keys()


def test_an_unknown_function_is_one_sentence() -> None:
    with pytest.raises(AtollError, match=r"vector function 'sofmax' has no cost; known .* softmax"):
        vector_cycles(VectorWork("sofmax", 1, 1), 1, 1)
