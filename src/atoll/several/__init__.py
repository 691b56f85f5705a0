"""Several answers together: one question with other values (`sweep`), runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atoll.answers.designs import CompareAnswer, SweepAnswer
    from atoll.questions import EstimateQuestion, PlanQuestion, SearchQuestion


def sweep(
    question: PlanQuestion | EstimateQuestion | SearchQuestion, **axes: Sequence[Any]
) -> SweepAnswer:
    """Ask a question for every value of some of its fields, of several for all combinations.

    Args:
        question: What all of them share; with `out` the answer and its table are kept there.
        axes: Values by the names of fields. Default: what the question has under `sweep`.

    Returns:
        A row for each combination, with the figures or the reason why there are none; it has
        `to_dataframe`, `to_csv` and `report`.

    Raises:
        AtollError: A name is no field, or no combination has an answer.

    Example:
        >>> import atoll
        >>> asked = atoll.EstimateQuestion.of(model="gpt2-xl", device="h100", batch=64)
        >>> [row.figures["fits"] for row in atoll.sweep(asked, devices=[8, 16]).rows]
        [True, True]
    """
    from atoll.several.ask import axes_of, keep, swept

    found = swept(question, axes or axes_of(question, question.sweep))
    if question.out is not None:
        keep(found, question.out)
    return found


def compare(*runs: str | Path) -> CompareAnswer:
    """Lay runs side by side: what was asked of each, and what came out.

    Args:
        runs: Folders that `out` filled, or files of answers.

    Returns:
        A row for each thing, a value for each run, with ratios to the first; it has `report`.

    Raises:
        AtollError: One of them holds no answer.

    Example:
        >>> import atoll
        >>> small = atoll.estimate("gpt2-xl", "h100", 8, batch=64).save("small.json")
        >>> large = atoll.estimate("gpt2-xl", "h100", 16, batch=64).save("large.json")
        >>> [row.name for row in atoll.compare(small, large).asked if row.differs]
        ['devices']
    """
    from atoll.several.compared import compared

    return compared([Path(one) for one in runs])
