"""The pages as browsers show them."""

from __future__ import annotations

import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from docs.written import ROOT


class Shown(HTMLParser):
    """The text of a page by the element around it: code, quotes, and the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = {"pre": "", "blockquote": "", "": ""}

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in self.text:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.text:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text[self.open[-1] if self.open else ""] += data


@pytest.mark.slow
def test_examples_of_the_reference_are_code(tmp_path: Path) -> None:
    """With prompts, and without the words that only doctest reads."""
    config = pytest.importorskip("mkdocs.config", reason="the docs group is not installed")
    build = pytest.importorskip("mkdocs.commands.build")
    pages, site = tmp_path / "docs", tmp_path / "site"
    shutil.copytree(ROOT / "docs" / "api", pages / "api")
    (pages / "options.md").write_text("# Options\n", encoding="utf-8")
    build.build(
        config.load_config(
            str(ROOT / "mkdocs.yml"), docs_dir=str(pages), site_dir=str(site), nav=None
        )
    )
    shown = Shown()
    for page in site.rglob("index.html"):
        shown.feed(page.read_text(encoding="utf-8"))
    assert shown.text["pre"].count(">>> import atoll") > 60
    assert shown.text["blockquote"] == "" and ">>>" not in shown.text[""]
    assert "doctest:" not in "".join(shown.text.values())
