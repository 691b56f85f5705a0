"""Small questions to every program get the answers on record, every number to 1e-9."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .questions import GOLDENS, QUESTIONS, kept

TOLERANCE = 1e-9
ROUNDING = 1e-12
"""Differences of two numbers that are the same but for rounding."""


def differences(golden: Any, answer: Any, where: str = "") -> list[str]:
    """Where an answer is not its golden; more keys than the golden's are allowed."""
    if isinstance(golden, dict):
        if not isinstance(answer, dict):
            return [f"{where}: {answer!r} instead of an object"]
        missing = [f"{where}.{key}: missing" for key in golden if key not in answer]
        return missing + [
            found
            for key, value in golden.items()
            if key in answer
            for found in differences(value, answer[key], f"{where}.{key}")
        ]
    if isinstance(golden, list):
        if not isinstance(answer, list) or len(answer) != len(golden):
            return [f"{where}: another list"]
        pairs = enumerate(zip(golden, answer, strict=True))
        return [d for i, (g, a) in pairs for d in differences(g, a, f"{where}[{i}]")]
    if isinstance(golden, float) and isinstance(answer, (int, float)):
        near = abs(answer - golden) <= max(ROUNDING, TOLERANCE * max(abs(golden), abs(answer)))
        return [] if near else [f"{where}: {answer!r} instead of {golden!r}"]
    return [] if answer == golden else [f"{where}: {answer!r} instead of {golden!r}"]


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_answer_on_record(name):
    golden = json.loads((GOLDENS / f"{name}.json").read_text(encoding="utf-8"))
    answer = json.loads(json.dumps(kept(QUESTIONS[name]())))
    found = differences(golden, answer)
    assert not found, "\n".join(found[:20])


def test_every_golden_has_its_question():
    assert {path.stem for path in GOLDENS.glob("*.json")} == set(QUESTIONS)


def utilisations(value: Any) -> list[float]:
    if isinstance(value, dict):
        own = [value["mfu"]] if "mfu" in value else []
        return own + [found for v in value.values() for found in utilisations(v)]
    return [found for v in value for found in utilisations(v)] if isinstance(value, list) else []


def test_no_golden_uses_more_than_the_whole_device():
    found = {p.stem: utilisations(json.loads(p.read_text("utf-8"))) for p in GOLDENS.glob("*.json")}
    assert sum(map(len, found.values())) > 40
    assert not {name: shares for name, shares in found.items() if max(shares, default=0.0) > 1.0}
