"""`_repr_html_`: a table, a bar whose parts add up, and nothing that a page could run."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

import atoll
from atoll.base.notebook import answer_html, bar_text

VOID = {"br", "img", "hr"}


class Balanced(HTMLParser):
    """Fails where a tag is not closed in its turn."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "iframe", "img")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check(html: str) -> None:
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []
    widths = [float(w) for w in re.findall(r"width:([\d.]+)%", html)]
    assert sum(widths) == pytest.approx(100, abs=0.5)


def test_names_are_escaped_and_parts_add_up() -> None:
    html = answer_html([("<b>", "a"), ("a & b", "<script>")], {"x": 3.0, "y_z": 1.0})
    check(html)
    assert "<script>" not in html and "&lt;b&gt;" in html and "y z" in html


def test_a_line_of_text_shows_the_parts_in_proportion() -> None:
    assert bar_text({"a_b": 1.0, "c": 3.0}, 8) == "██████▓▓  █ c 75.0%, ▓ a b 25.0%"
    assert bar_text({}) == "  "


def test_an_estimate_and_a_plan_draw_themselves() -> None:
    found = atoll.estimate("bert-large", "a100-40", 8, batch=64, microbatch=4)
    check(found._repr_html_())
    assert "bert-large on 8 a100-40" in str(found)
    planned = atoll.plan(
        "bert-large", "a100-40", 8, batch=64, tp=[1, 2], pp=[1, 2], cp=[1], vpp=[1],
        microbatch=[4], recompute=["none"],
    )  # fmt: skip
    html = planned._repr_html_()
    check(html)
    assert "proven fastest of" in html and "proven fastest of" in str(planned)
