"""The public functions: the same jobs as on the command line, from Python.

>>> import atoll
>>> atoll.describe_model("gpt2-xl").parameters
1557611200
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from atoll.answers.answer import Answer, made_of, read_answer
from atoll.errors import AtollError
from atoll.questions import (
    EstimateQuestion,
    MappingQuestion,
    PlanQuestion,
    SearchQuestion,
    WaferQuestion,
    verbs,
)
from atoll.questions.ask import ask
from atoll.questions.texts import described_by

if TYPE_CHECKING:
    from atoll.answers.design import TablePlan
    from atoll.answers.hardware import CatalogueAnswer, HardwareAnswer
    from atoll.answers.models import ModelAnswer, ModelsAnswer
    from atoll.answers.validation import (
        CalibrationAnswer,
        OperatorsValidation,
        RunsValidation,
        SiteCalibration,
    )
    from atoll.driver import Progress
    from atoll.explore.answer.result import SearchResult
    from atoll.launch.check import Checked
    from atoll.questions import keywords
    from atoll.stopping import Stop
    from atoll.training.estimate import Estimate
    from atoll.training.planner.plan import Plan
    from atoll.wafer.answer.result import WaferEstimate, WaferResult
    from atoll.workload import StoredModel


_SEARCHED: dict[str, type[SearchQuestion | WaferQuestion]] = {
    "chips": SearchQuestion,
    "wafer": WaferQuestion,
}
_ESTIMATED: dict[str, type[EstimateQuestion | WaferQuestion]] = {
    "devices": EstimateQuestion,
    "wafer": MappingQuestion,
}


@described_by(SearchQuestion, WaferQuestion)
def search(
    job: SearchQuestion | WaferQuestion | str | Path | None = None,
    *,
    stop: Stop | None = None,
    progress: Progress | None = None,
    **fields: Unpack[keywords.SearchFields],
) -> SearchResult | WaferResult:
    """Find the best chip, schedule and placement, or the best mapping on a wafer, with proof.

    `job` is a question or a job file; keywords override its fields. Quantities take units
    ("80 GiB", "280 mm2", "250 W", "10 min"); plain numbers are bytes, mm2, W and s.

    With `out` every result is kept in that folder, and the same search started again continues.
    `workers` (local processes) and `cluster` (a Dask scheduler, or "local:N") do not change the
    answer.
    """
    question = ask(_SEARCHED, job, fields)
    _check_files(question)
    if isinstance(question, WaferQuestion):
        from atoll.wafer.api import search_wafer

        found = search_wafer(question, stop=stop, progress=progress)
        _trace_search(found, question.trace)
        return found
    from atoll.explore.run import run_search

    result = run_search(
        question,
        progress,
        out=question.out,
        workers=question.workers,
        cluster=question.cluster,
        stop=stop,
        beside=question.beside,
    )
    _trace_search(result, question.trace)
    return result


def _trace_search(result: SearchResult | WaferResult, path: Path | None) -> None:
    if path is not None:
        from atoll.report.trace import search_trace, write_trace

        write_trace(search_trace(result.answer), path)


@described_by(verbs.PlaceQuestion)
def place(file: str | Path | None = None, **fields: Unpack[keywords.PlaceFields]) -> TablePlan:
    """The optimal placement of a table of layer costs (JSON) on its devices."""
    from atoll.phaze.table import read_table
    from atoll.phaze.table_dp import solve_table

    question = ask({"place": verbs.PlaceQuestion}, None, {"file": file, **fields})
    if question.profile != "phaze":
        raise AtollError(
            f"profile: layer tables are priced under profile 'phaze' only, got "
            f"{question.profile!r}; the default profile needs a model: use atoll search."
        )
    return solve_table(read_table(question.file))


def list_models() -> ModelsAnswer:
    """The zoo: one row a model."""
    from atoll.answers.models import ModelsAnswer, ZooModel
    from atoll.workload import build_model, load_config, zoo_names

    configs = {name: load_config(name) for name in zoo_names()}
    return ModelsAnswer(
        models=tuple(
            made_of(ZooModel, config, name=name, parameters=build_model(config, 1).parameters)
            for name, config in configs.items()
        )
    )


@described_by(verbs.ModelsQuestion)
def describe_model(name: str, **fields: Unpack[keywords.ModelsFields]) -> ModelAnswer:
    """Parameters and the layer table of a model, with its operators."""
    from atoll.answers.models import ModelAnswer, layer_table
    from atoll.workload import StoredModel, load_model, prepare
    from atoll.workload.stored import warnings_of

    asked = ask({"models": verbs.ModelsQuestion}, None, {"name": name, **fields})
    config, tp = load_model(name), asked.tp
    model = prepare(config, asked.microbatch, asked.sequence, tp, tp > 1)
    whole = model if tp == 1 else prepare(config, asked.microbatch, asked.sequence)
    return ModelAnswer(
        name=name,
        parameters=whole.parameters,
        active_parameters=whole.active_parameters,
        part="" if isinstance(config, StoredModel) else config.part,
        microbatch=asked.microbatch,
        sequence=model.sequence,
        tensor_parallel=tp,
        layers=layer_table(model),
        warnings=tuple(warnings_of(config)),
    )


def capture(
    module: Any,
    example_inputs: Any,
    *,
    name: str | None = None,
    sequence: int | None = None,
    batch_dim: int | None = 0,
    dtype: str | None = "bfloat16",
    loss: Any = None,
    keep: str = "fused",
) -> StoredModel:
    """A model from a torch module (or a function that builds one), on fake tensors.

    The result's `save(path)` writes a file that every `model=` takes; see docs/capture.md.
    """
    from atoll.tracing import capture as run

    return run(
        module, example_inputs, name=name, sequence=sequence, batch_dim=batch_dim,
        dtype=dtype, loss=loss, keep=keep,
    )  # fmt: skip


def describe_hardware(name: str | None = None) -> CatalogueAnswer | HardwareAnswer:
    """The catalogue, or one device, accelerator, network, space or wafer of it or of a file."""
    from atoll.catalogue import catalogue, describe

    return catalogue() if name is None else describe(name)


@described_by(verbs.CalibrateQuestion)
def calibrate(
    data: str | Path | None = None, **fields: Unpack[keywords.CalibrateFields]
) -> CalibrationAnswer | SiteCalibration:
    """Fit a site to training runs, a profile or NCCL's tests, or a device to timed operators.

    The columns of the file say which; operators are judged on rows that were kept out.
    """
    from atoll.calibrate import calibrate as fit
    from atoll.calibrate.rows import H200_OPERATORS
    from atoll.calibrate.site import calibrate_site
    from atoll.files.csvfile import read_csv

    asked = ask({"calibrate": verbs.CalibrateQuestion}, None, {"data": data, **fields})
    header = [] if asked.data is None else read_csv(asked.data)[0]
    operators = "kind" in header and "us" in header
    measured = asked.trace is not None or asked.nccl_tests
    if operators and measured:
        raise AtollError(f"{asked.data}: timed operators make a device, not a site; fit them alone")
    if measured or (asked.data is not None and not operators):
        return calibrate_site(
            asked.data, asked.trace, asked.nccl_tests, str(asked.device), asked.out
        )
    return fit(asked.data or H200_OPERATORS, gpu=asked.device, out=asked.out)


@described_by(verbs.ValidateQuestion)
def validate(
    data: str | Path | None = None, **fields: Unpack[keywords.ValidateFields]
) -> OperatorsValidation | RunsValidation:
    """Predicted against measured: operators, whole steps of one device, or training runs.

    The file's columns say which. Without data: our H200 operators, on the rows that the shipped
    calibration did not see, and under `steps` our H200 training steps.
    """
    from atoll.calibrate import validate_operators
    from atoll.calibrate.many_devices import is_device_table, validate_devices
    from atoll.files.csvfile import read_csv
    from atoll.training.site import load_site
    from atoll.validation.step_rows import H200_STEPS, H200_STEPS_LATER, is_step_file
    from atoll.validation.validate import validate_runs, validate_steps

    asked = ask({"validate": verbs.ValidateQuestion}, None, {"data": data, **fields})
    gpu, expect, out = asked.device, asked.expect, asked.out
    site = None if asked.site is None else load_site(asked.site)
    header = [] if data is None else read_csv(data)[0]
    operators = data is None or ("kind" in header and "us" in header)
    several = is_device_table(header)
    if expect is not None and (operators or several or is_step_file(header)):
        raise AtollError(
            f"expect is {expect!r}, but is for files of training runs (--data FILE) only"
        )
    if data is None:
        steps = {
            "fitted": validate_steps(H200_STEPS, gpu),
            "later": validate_steps(H200_STEPS_LATER, gpu),
        }
        return replace(validate_operators(gpu=gpu, held_out=True, out=out), steps=steps)
    if operators:
        return validate_operators(data, gpu=gpu, out=out)
    if several:
        return validate_devices(data, out=out)
    if is_step_file(header):
        return validate_steps(data, gpu, out=out, site=site)
    return validate_runs(data, expect=expect, out=out, site=site)


@described_by(EstimateQuestion, MappingQuestion)
def estimate(
    model: str | None = None,
    device: str | None = None,
    devices: int | None = None,
    *,
    job: EstimateQuestion | WaferQuestion | str | Path | None = None,
    **fields: Unpack[keywords.EstimateFields],
) -> Estimate | WaferEstimate:
    """What one layout of a training run, or one mapping on a wafer, costs in time and memory.

    >>> import atoll
    >>> result = atoll.estimate("llama3-70b", "h100", 512, tp=8, pp=4, batch=1024)
    >>> result.fits
    True
    """
    from atoll.export import launch_files
    from atoll.training.estimate import estimate as run
    from atoll.training.request import layout_of, run_of

    given = {"model": model, "device": device, "devices": devices, **fields}
    question = ask(_ESTIMATED, job, given)
    _check_files(question)
    if isinstance(question, WaferQuestion):
        from atoll.wafer.api import estimate_wafer

        return estimate_wafer(question)
    asked = run_of(question)
    result = run(asked, layout_of(asked, question))
    result = replace(result, launch=launch_files(asked, result.layout))
    if question.out is not None:
        from atoll.report.plan_file import write_plan

        write_plan(result, question.out)
    _write_trace(result, question)
    return result


@described_by(PlanQuestion)
def plan(
    model: str | None = None,
    device: str | None = None,
    devices: int | None = None,
    *,
    job: PlanQuestion | str | Path | None = None,
    stop: Stop | None = None,
    progress: Progress | None = None,
    **fields: Unpack[keywords.PlanFields],
) -> Plan:
    """The fastest layout that fits, proven over the values that each axis may take.

    `job` is a `PlanQuestion` or a job file (kind: devices); keywords override its fields. Folder,
    workers and cluster are as for `search`.
    """
    from atoll.driver import Means, drive
    from atoll.export import EXPORTERS, launch_files, refusals
    from atoll.training.planner.problem import PlanProblem
    from atoll.training.request import axes_of, run_of

    given = {"model": model, "device": device, "devices": devices, **fields}
    question = ask({"devices": PlanQuestion}, job, given)
    _check_files(question)
    means = Means(question.out, question.workers, question.cluster)

    def prepare(limit: Stop) -> PlanProblem:
        run, target = run_of(question), question.export or ""
        axes = axes_of(question, EXPORTERS[target].values if target else {})
        usable = refusals(target, run) if target else None
        now = stop is not None or means != Means()  # else reasons wait until they are asked for
        return PlanProblem(question, run, axes, usable, now, launch_files)

    first = "a layout was estimated"
    result = drive(prepare, means, stop, question.time_limit, progress, first)
    _write_trace(result, question)
    return result


def load(path: str | Path) -> Answer:
    """The answer in a file that `save`, `--json` or `--out` wrote, as the type that it has."""
    from atoll.answers.kinds import ANSWERS

    return read_answer(Path(path), *(kind for kinds in ANSWERS.values() for kind in kinds))


@described_by(verbs.CheckQuestion)
def check(file: str | Path, **fields: Unpack[keywords.CheckFields]) -> Checked:
    """A launch file judged: whether it fits, its step time, and the proven best layout for the
    same job under the same software.
    """
    from atoll.launch.check import check as run

    return run(ask({"check": verbs.CheckQuestion}, None, {"file": file, **fields}))


def _check_files(
    question: SearchQuestion | WaferQuestion | PlanQuestion | EstimateQuestion,
) -> None:
    """Refuse, before any work, what could not be written in the end. The modules that write take
    longer to import than a plan.
    """
    if question.out is not None:
        from atoll.files.wholefile import check_folder

        check_folder(question.out)
    if question.trace is not None:
        from atoll.report.trace import check_trace_path

        check_trace_path(question.trace)


def _write_trace(result: Plan | Estimate, question: PlanQuestion | EstimateQuestion) -> None:
    if question.trace is not None:
        from atoll.report.trace import plan_trace, write_trace

        write_trace(plan_trace(result.answer), question.trace)
