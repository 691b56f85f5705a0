"""Spaces written in YAML."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from atoll.base.errors import AtollError, InfeasibleError
from atoll.hardware.accelerator import GIB, MIB
from atoll.hardware.product_space import phaze_space
from atoll.hardware.spacefile import read_space

EXAMPLES = Path(__file__).parents[2] / "examples" / "spaces"

GOOD = """\
name: mine
tensor_cores: {powers_of_two: [1, 8]}
vector_cores: {range: [2, 8], step: 3}
width: 64
depth: [32, 64]
glb: {powers_of_two: [2 MiB, 8 MiB]}
hbm:
  - {stacks: 2, capacity: 16 GiB, bandwidth: 400 GB/s, area: 15 mm2}
constraints:
  max_area: 300 mm2
"""


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return tmp_path / "space.yaml"


def complaint(path: Path, text: str) -> str:
    path.write_text(text)
    with pytest.raises(AtollError) as error:
        read_space(path).build()
    return str(error.value)


def test_short_forms_of_lists(written: Path) -> None:
    written.write_text(GOOD)
    space = read_space(written).build()
    assert list(np.unique(space.tensor_cores)) == [1, 2, 4, 8]
    assert list(np.unique(space.vector_cores)) == [2, 5, 8]
    assert list(np.unique(space.glb_bytes)) == [2 * MIB, 4 * MIB, 8 * MIB]
    assert np.array_equal(space.vector_width, space.width)
    assert set(space.clock_Hz) == {1.05e9}
    (hbm,) = space.hbm_options
    assert (hbm.capacity_bytes, hbm.bandwidth_Bps, hbm.area_mm2) == (32 * GIB, 800e9, 30.0)


def test_the_seeds_space_written_out_is_the_generated_one() -> None:
    from_file, generated = read_space(EXAMPLES / "phaze.yaml").build(), phaze_space()
    for name in (*generated.columns, "area_mm2"):
        assert np.array_equal(getattr(from_file, name), getattr(generated, name)), name
    assert from_file.hbm_options == generated.hbm_options


@pytest.mark.parametrize(("name", "designs"), [("tiny", 15), ("hbm-stacks", 11_420)])
def test_examples_load(name: str, designs: int) -> None:
    assert len(read_space(EXAMPLES / f"{name}.yaml").build()) == designs


def test_in_the_stacks_example_memory_competes_with_compute() -> None:
    space = read_space(EXAMPLES / "hbm-stacks.yaml").build()
    fitting = space.hbm_allowed.sum(axis=0)
    assert list(fitting) == sorted(fitting, reverse=True)
    assert fitting[0] > fitting[-1]
    assert not np.array_equal(space.vector_width, space.width)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("[32, 64]", "[32, wide]", ":5:13: depth.1: expected a whole number, got 'wide'"),
        ("[32, 64]", "[32, 32]", ":5:8: depth: 32 is listed twice"),
        ("[32, 64]", "[]", ":5:8: depth: expected at least 1 item(s), got []"),
        ("[32, 64]", "{powers: [1, 2]}", ":5:8: depth: expected a list, {powers_of_two:"),
        ("[32, 64]", "{powers_of_two: [5, 7]}", ":5:8: depth: there is no power of two in [5, 7]"),
        ("[32, 64]", "{powers_of_two: [8, 2]}", ":5:8: depth: expected first to last"),
        ("step: 3", "step: 0", ":3:15: vector_cores: expected at most"),
        ("2 MiB,", "2 GB/s,", ":6:6: glb: expected an amount of memory such as"),
        ("400 GB/s", "16 GiB", ":8:46: hbm.0.bandwidth: expected a bandwidth such as"),
        ("15 mm2", "15", 'hbm.0.area: expected an area such as "278.8 mm2", got 15 without'),
        ("max_area", "max_aera", ":10:3: constraints.max_aera: unknown field, did you mean max_ar"),
        ("width: 64", "width: 64\nclock: 1050000000", ":5:8: clock: expected a frequency such as"),
        ("width: 64", "width: 64\nglb_bandwidth: {}", "glb_bandwidth: expected either per_mib or"),
        ("name: mine", "name: ''", "name: expected at least 1 character(s), got ''"),
    ],
)
def test_mistakes(written: Path, old: str, new: str, sentence: str) -> None:
    assert old in GOOD
    said = complaint(written, GOOD.replace(old, new))
    assert said.startswith(str(written))
    assert sentence in said
    assert len(said.splitlines()) == 1


def test_an_empty_space_names_itself_and_the_constraint(written: Path) -> None:
    said = complaint(written, GOOD.replace("300 mm2", "30 mm2"))
    assert said.startswith("space mine is empty: max_area 30 mm2 alone removes")
    with pytest.raises(InfeasibleError):
        read_space(written).build()


def test_a_free_vector_width_and_the_word_width(written: Path) -> None:
    written.write_text(GOOD + "vector_width: [16, 128]\n")
    assert set(read_space(written).build().vector_width) == {16, 128}
    written.write_text(GOOD + "vector_width: width\n")
    assert set(read_space(written).build().vector_width) == {64}
