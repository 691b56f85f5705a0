"""What an answer says of layouts to benchmark in addition to the best."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from atoll.answers.layout import candidates_words


@pytest.mark.parametrize(("slower", "says"), [(-0.03, True), (0.04, True), (-0.061, False)])
def test_only_small_differences_are_called_model_error(slower: float, says: bool) -> None:
    candidate: Any = SimpleNamespace(layout="tp2", slower=slower, tight=False)
    words = candidates_words([candidate], 0.05)
    assert words.endswith("benchmark too")
    assert ("within the model error of 5%" in words) is says


def test_layouts_that_may_run_out_of_memory_are_marked() -> None:
    candidate: Any = SimpleNamespace(layout="tp2", slower=-0.02, tight=True)
    assert candidates_words([candidate], 0.05).startswith("tp2 (2.0% faster, tight); ")
