"""What is said about a proof is true: the gap is of the bound, "better" is of the answer."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from atoll.answers.certificate import ArchitectureProof
from atoll.base.units import counted
from atoll.report.search_view import certificate_words
from atoll.step.certificate import (
    Certificate,
    is_optimal,
    most_better,
    proof_sentence,
    relative_gap,
)


def said_better(sentence: str) -> float:
    if sentence.endswith(": none is better"):
        return 0.0
    found = re.search(r"([\d.]+)% better", sentence)
    assert found is not None
    return float(found.group(1)) / 100


@given(st.floats(0.01, 1e6), st.floats(1.0, 10.0), st.floats(0.0, 0.5))
def test_no_answer_within_the_bound_is_better_by_more_than_the_sentence_says(
    score: float, ratio: float, tolerance: float
) -> None:
    bound = score * ratio
    sentence = proof_sentence(relative_gap(score, bound), tolerance, "10 architectures")
    assert bound <= score * (1.0 + said_better(sentence)) * (1.0 + 1e-9)


@given(st.floats(0.01, 1e6), st.floats(1.0, 10.0), st.floats(0.0, 0.5))
def test_optimal_means_that_none_is_better_by_more_than_the_tolerance(
    score: float, ratio: float, tolerance: float
) -> None:
    gap = relative_gap(score, score * ratio)
    assert abs(most_better(gap) - (ratio - 1.0)) <= 1e-6 * (ratio - 1.0) + 1e-14
    if is_optimal(gap, tolerance):
        assert ratio - 1.0 <= tolerance + 1e-8


def test_a_gap_of_46_77_percent_leaves_87_87_percent() -> None:
    proof = Certificate(
        score=0.5323, bound=1.0, tolerance=0.01, items=1, kind="architecture",
        evaluated=1, ruled_out={},
        subject="all mappings on this wafer",
    )  # fmt: skip
    expected = (
        "not proven optimal: the best of all mappings on this wafer may be up to 87.87% better "
        "(gap 46.77%)"
    )
    assert proof.sentence() == expected
    # Terminal, report and explorer say the same.
    told = ArchitectureProof.of(proof, architectures=proof.items)
    assert told.sentence == f"N{expected[1:]}."
    assert certificate_words(told).startswith(f"N{expected[1:]}.")


def test_one_is_not_many() -> None:
    assert [counted(n, "design") for n in (0, 1, 2, 1024)] == [
        "0 designs", "1 design", "2 designs", "1,024 designs",
    ]  # fmt: skip
