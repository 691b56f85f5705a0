"""Pages say what is so: links, commands, options and outputs."""

from __future__ import annotations

import ast
import pkgutil
import re
import shlex
from pathlib import Path

import pytest

from atoll.questions import COMMANDS
from atoll.questions.texts import option_fields, spelled
from atoll.tools.stack import STACKS
from docs.written import PAGES, ROOT, blocks, without_wall_times, workplace

_FENCED = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s#]+)(#[^)]*)?\)")
_ALWAYS = {"--explain", "--json", "--help", "--version", "--quiet", "--verbose", "-q", "-v"}
RUN = [page for page in PAGES if blocks(page)]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files(page: Path) -> None:
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    for target, _ in _LINK.findall(text):
        if not target.startswith(("http:", "https:", "mailto:")):
            assert (page.parent / target).exists(), target


def test_pictures_are_small() -> None:
    for picture in (ROOT / "docs" / "pictures").iterdir():
        assert picture.stat().st_size < 150_000, picture.name


def commands_of(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    fenced = [line.strip().removeprefix("$ ") for _, body in _FENCED.findall(text)
              for line in body.splitlines()]  # fmt: skip
    written = [*fenced, *re.findall(r"`(atoll [^`\n]+)`", text)]
    return [line for line in written if re.match(r"atoll [a-z]+( |$)", line)]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_and_their_options_exist(page: Path) -> None:
    for command in commands_of(page):
        words = shlex.split(re.split(r" [|&>]|\d>| -- ", command)[0], comments=True)
        assert words[1] in COMMANDS, command
        fields = option_fields(*COMMANDS[words[1]])
        known = _ALWAYS | {spelled(n) for n in fields} | {spelled("no_" + n) for n in fields}
        for word in words[2:]:
            if word.startswith("-") and not re.match(r"-\d", word):
                assert word.split("=")[0] in known, (command, word)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_names_of_modules_and_functions_exist(page: Path) -> None:
    extending = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    groups = re.findall(r"^\| [^|]+ \| `(atoll\.\w+)` \|", extending, re.MULTILINE)
    for name in re.findall(r"`(atoll(?:\.\w+)+)", page.read_text(encoding="utf-8")):
        assert name in groups or pkgutil.resolve_name(name) is not None, name


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_blocks_are_python(page: Path) -> None:
    for language, body in _FENCED.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            ast.parse(body)


BANNED = (
    r"\bthe seed\b", r"seed's", r"\bthe road\b", r"\bhonest", r"\bmended\b", r"\btwins?\b",
    r"\bprogramme", r"held against", r"devices that exist", r"ours is", r"data degree",
    r"(tokens/s|samples/s|mJ|GiB|TFLOP/s|bytes) a (device|token|die|parameter)",
    r"\bgenes?\b", r"\bhelpers?\b", r"\bhomes\b", r"\bguests?\b", r"\bhunt",
)  # fmt: skip
"""Words of our own, where the field has others (docs/concepts.md)."""


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_words_are_the_fields(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [w for w in BANNED if re.search(w, text)] == []


def test_helps_use_the_same_words() -> None:
    for command, asked in COMMANDS.items():
        for question in asked:
            said = [
                question.__doc__ or "",
                *(i.description or "" for i in option_fields(question).values()),
            ]
            assert [w for w in BANNED if re.search(w, " ".join(said))] == [], command


def test_the_table_of_stacks_has_their_figures() -> None:
    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]+`) \| [^|]+ \| ([\d., ]+) \|$", text, re.M)
    said = {
        name: [float(x) for x in shares.split(",")]
        for names, shares in rows
        for name in re.findall(r"`([\w-]+)`", names)
    }
    parts = ("gradient", "gather", "tensor", "tensor_products", "pipeline")
    assert said == {
        name: [getattr(stack.overlap, p) for p in parts]
        for name, stack in ((name, STACKS[name]) for name in STACKS)
    }
    assert {STACKS[name].slack for name in STACKS} == {1.0}  # as the page says


def test_entries_of_the_changelog_are_short() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    entries = re.findall(r"^- .*(?:\n  .*)*", text, re.MULTILINE)
    assert entries
    assert [e for e in (" ".join(e.split()) for e in entries) if len(e) > 300] == []


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_outputs_are_those_of_the_commands(page: Path) -> None:
    """After a change: python tests/docs/written.py"""
    with workplace(page) as work:
        for command, output in blocks(page):
            assert without_wall_times(work.printed(command)) == without_wall_times(output), command
