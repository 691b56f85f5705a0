"""Several answers together: one question with other values (`sweep`), runs side by side, other
predictors' answers (`bench`) and measured ranks (`measure`) beside ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from atoll import questions
from atoll.answers.answer import DrawableResult
from atoll.base.errors import as_path
from atoll.questions.ask import ask
from atoll.questions.texts import described_by

if TYPE_CHECKING:
    from atoll.answers.designs import CompareAnswer, SweepAnswer
    from atoll.answers.plan import MeasureAnswer
    from atoll.answers.validation import BenchAnswer, CalibrationAnswer
    from atoll.questions import EstimateQuestion, PlanQuestion, SearchQuestion, keywords
    from atoll.questions.verbs import MeasureQuestion

    Swept = PlanQuestion | EstimateQuestion | SearchQuestion


def sweep(question: Swept | type[Swept], **fields: Any) -> SweepAnswer:
    """Ask a question for every value of a field, or all combinations of several fields.

    Args:
        question: What all of them share; with `out` the answer and its table are kept there. Or its
            class: fields without a list of values are then what all of them share.
        fields: Lists of values by the names of fields. Default: what the question has under
            `sweep`.

    Returns:
        A row for each combination, with the figures or the reason why there are none; it has
        `to_dataframe`, `chart`, `to_csv` and `report`.

    Raises:
        AtollError: A name is no field, or no combination has an answer.

    Examples:
        >>> import atoll
        >>> asked = atoll.EstimateQuestion.of(model="gpt2-xl", device="h100", batch=64)
        >>> [row.figures["fits"] for row in atoll.sweep(asked, devices=[8, 16]).rows]
        [True, True]
        >>> shared = {"model": "gpt2-xl", "device": "h100", "batch": 64}
        >>> [row.asked for row in atoll.sweep(atoll.PlanQuestion, **shared, devices=[8, 16]).rows]
        [{'devices': 8}, {'devices': 16}]
    """
    from atoll.several.sweep_axes import run_sweep, shared_question, write_sweep

    question, axes = shared_question(question, fields)
    answer = run_sweep(question, axes)
    if question.out is not None:
        write_sweep(answer, question.out)
    return answer


def compare(*runs: str | Path | DrawableResult[Any]) -> CompareAnswer:
    """Compare runs: options and results in one table.

    Args:
        runs: Folders that `out` filled, files of answers, or what `plan`, `estimate` and `search`
            return.

    Returns:
        A row for each thing, a value for each run, with ratios to the first; it has
        `to_dataframe`, `chart` and `report`.

    Raises:
        AtollError: One of them holds no answer.

    Examples:
        >>> import atoll
        >>> small = atoll.estimate("gpt2-xl", "h100", 8, batch=64).save("small.json")
        >>> large = atoll.estimate("gpt2-xl", "h100", 16, batch=64).save("large.json")
        >>> [row.name for row in atoll.compare(small, large).asked if row.differs]
        ['devices']
        >>> plan = atoll.plan("gpt2-xl", "h100", 8, batch=64, tp=[1, 2], pp=[1])
        >>> atoll.compare(plan, small).to_dataframe().loc["fits"].tolist()
        [True, True]
    """
    from atoll.several.comparison import compare_answers, read_run

    named = [
        (f"run {number}", run.answer)
        if isinstance(run, DrawableResult)
        else (str(run), read_run(as_path("runs", run)))
        for number, run in enumerate(runs, 1)
    ]
    return compare_answers([name for name, _ in named], [answer for _, answer in named])


@described_by("bench")
def bench(
    files: Sequence[str | Path] | str | Path, **fields: Unpack[keywords.BenchFields]
) -> BenchAnswer:
    """Compare predictors on the same measured runs.

    A predictor may be given as an object (`atoll.plugins.Predictor`) instead of by its name.

    Returns:
        Errors of each overall, on the rows that all can express and by group; memory verdicts,
        regret, rows a second, and what each cannot express.

    Raises:
        AtollError: A file cannot be read, or a named predictor cannot be asked.

    Examples:
        >>> import atoll
        >>> found = atoll.bench("runs.csv", predictors=["atoll", "rule-of-thumb"])
        >>> [one.name for one in found.predictors], found.shared
        (['atoll', 'rule-of-thumb'], 6)
    """
    from atoll.predictors.bench import bench_files

    return bench_files(
        ask({"bench": questions.verbs.BenchQuestion}, None, {"files": files, **fields})
    )


@described_by("measure")
def measure(
    model: str | None = None,
    device: str | None = None,
    devices: int | None = None,
    *,
    job: MeasureQuestion | None = None,
    **fields: Unpack[keywords.MeasureFields],
) -> MeasureAnswer | CalibrationAnswer:
    """Run ranks of a layout on the local GPU without communication.

    Args:
        job: A question; keywords override its fields.

    Returns:
        Time and memory of every rank, predicted and measured; with `device_profile` the
        calibration of the GPU.

    Raises:
        AtollError: There is no GPU, the tool is not installed, or it cannot run the layout.

    Examples:
        >>> import atoll
        >>> answer = atoll.measure("llama3-8b", "h200", 8, batch=8, tool="torchtitan",
        ...                        dry_run=True)
        >>> answer.jobs[0]["fsdp"]
        8
    """
    from atoll.measurement.measure import measure as run

    arguments = {"model": model, "device": device, "devices": devices, **fields}
    return run(ask({"measure": questions.verbs.MeasureQuestion}, job, arguments))
