"""Every mistake in a file becomes one sentence with its line and column."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from atoll.base.errors import AtollError
from atoll.files.yamlfile import (
    Bandwidth,
    Bytes,
    Count,
    FileModel,
    Frequency,
    load_yaml,
    parse_yaml,
    validate_dict,
)


class Chip(FileModel):
    cores: Count
    clock: Frequency
    hbm_bw: Bandwidth
    hbm: Bytes = 1


class Search(FileModel):
    model: str
    tp: tuple[Literal[1, 2, 4, 8], ...] = (1,)


class Job(FileModel):
    chip: Chip
    search: Search
    spare: dict[str, Chip] | None = None
    variants: tuple[Chip, ...] = ()


GOOD = """\
chip:
  cores: 8
  clock: 1.05 GHz
  hbm_bw: 900 GB/s
search:
  model: gpt3
  tp: [1, 8]
"""


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


def complaints(text: str) -> list[str]:
    with pytest.raises(AtollError) as error:
        parse_yaml(text, Job, "job.yaml")
    return str(error.value).splitlines()


def test_a_good_file_becomes_the_model(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(GOOD)
    job = load_yaml(path, Job)
    assert job.chip.hbm_bw == 900e9
    assert job.search.tp == (1, 8)


def test_all_problems_are_reported_at_once_in_the_order_of_the_file() -> None:
    text = """\
chip:
  cores: eight
  clock: 1.05 GHz
  hbm_bw: fast
search:
  modle: gpt3
  tp: [1, 2, 3]
"""
    assert complaints(text) == [
        "job.yaml:2:10: chip.cores: expected a whole number, got 'eight'",
        "job.yaml:4:11: chip.hbm_bw: expected a bandwidth such as \"900 GB/s\", got 'fast'",
        "job.yaml:6:3: search.model: required field is missing",
        "job.yaml:6:3: search.modle: unknown field, did you mean model?",
        "job.yaml:7:14: search.tp.2: expected 1, 2, 4 or 8, got 3",
    ]


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("900 GB/s", "80 GiB", "job.yaml:4:11: chip.hbm_bw: expected a bandwidth"),
        ("900 GB/s", "900", "without a unit"),
        ("900 GB/s", "0 GB/s", "expected more than 0"),
        ("1.05 GHz", "1.05e9", "without a unit"),
        ("cores: 8", "cores: on", "job.yaml:2:10: chip.cores: expected a whole number"),
        ("cores: 8", "cores: true", "job.yaml:2:10: chip.cores: expected a whole number"),
        ("cores: 8", "cores: 2.5", "job.yaml:2:10: chip.cores: expected a whole number"),
        ("cores: 8", "cores: -8", "job.yaml:2:10: chip.cores: expected more than 0"),
        (
            "cores: 8",
            "cores: 8\n  zzz: 8",
            "job.yaml:3:3: chip.zzz: unknown field, known are cores",
        ),
        ("model: gpt3", "model: [a]", "job.yaml:6:10: search.model: expected text, got ['a']"),
        ("cores: 8", "cores: 8\n  cores: 4", "job.yaml:3:3: cores: field is given twice"),
        ("tp: [1, 8]", "tp: 8", "job.yaml:7:7: search.tp: expected a list, got 8"),
    ],
)
def test_one_mistake_one_sentence(old: str, new: str, complaint: str) -> None:
    assert old in GOOD
    (sentence,) = complaints(GOOD.replace(old, new))
    assert complaint in sentence


def test_unknown_fields_are_found_inside_lists_and_mappings() -> None:
    chip = "{cores: 1, clock: 1 GHz, hbm_bw: 1 GB/s, hbm_bww: 3}"
    sentences = complaints(GOOD + f"spare:\n  a: {chip}\nvariants:\n  - {chip}\n")
    assert sentences == [
        "job.yaml:9:47: spare.a.hbm_bww: unknown field, did you mean hbm_bw or hbm?",
        "job.yaml:11:46: variants.0.hbm_bww: unknown field, did you mean hbm_bw or hbm?",
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "job.yaml: the file is empty, expected the fields chip, search"),
        ("# only a comment\n", "job.yaml: the file is empty"),
        ("- 1\n", "job.yaml:1:1: expected a mapping of fields, got [1]"),
        ("chip: [1,\nsearch: }", "job.yaml:2:9: not valid YAML"),
        ("chip: *unknown", "job.yaml:1:7: not valid YAML, found undefined alias"),
        ("chip: \x01", "job.yaml: not valid YAML"),
        ("---\na: 1\n---\nb: 1", "job.yaml:3:1: not valid YAML, expected a single document"),
        ("x: !!python/object/apply:os.getcwd []", "job.yaml:1:4: not valid YAML"),
        ("[" * 500, "job.yaml: the file is nested too deeply"),
        ("a: &a [*a]", "job.yaml:1:4: holds itself"),
        ("a: !!int abc", "job.yaml:1:4: not valid YAML, 'abc' is no int"),
        (f"a: {'9' * 5000}", "is no int"),
        (f"a: {'9' * 30}", "a whole number beyond 64 bits"),
        (f"a: {'[' * 50}{']' * 50}", "52 values 51 levels deep"),
        (BOMB, "490,329,064 values 10 levels deep, every alias written out"),
    ],
)
def test_files_that_are_not_what_they_should_be(text: str, complaint: str) -> None:
    assert any(complaint in sentence for sentence in complaints(text))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    for path, complaint in [
        (tmp_path / "absent.yaml", "no such file"),
        (tmp_path, "cannot be read"),
        (binary, "not UTF-8 text"),
    ]:
        with pytest.raises(AtollError, match=complaint) as error:
            load_yaml(path, Job)
        assert str(error.value).startswith(f"{path}: ")


def test_scalars_follow_yaml_1_2() -> None:
    class Anything(FileModel):
        values: list[Any]

    text = "values: [1e9, 1.5e-3, on, no, 12:30:00, 2024-01-01, 010, ~, true, 0x10, -4, 1_000.5]"
    assert parse_yaml(text, Anything, "t").values == [
        1e9, 1.5e-3, "on", "no", "12:30:00", "2024-01-01", "010", None, True, 16, -4, 1000.5,
    ]  # fmt: skip


def test_merge_keys_work_and_may_be_overridden() -> None:
    chip = "&base {cores: 1, clock: 1 GHz, hbm_bw: 1 GB/s}"
    text = GOOD + f"variants:\n  - {chip}\n  - {{<<: *base, cores: 2}}\n"
    assert [chip.cores for chip in parse_yaml(text, Job, "t").variants] == [1, 2]


def test_dictionaries_get_the_same_sentences_without_a_position() -> None:
    chip = {"cores": 0, "clock": "1 GHz", "hbm_bw": "1 GB/s"}
    with pytest.raises(AtollError) as error:
        validate_dict({"chip": chip, "search": {"model": "x"}}, Job, "built-in")
    assert str(error.value) == "built-in: chip.cores: expected more than 0, got 0"
