"""The public functions: the same jobs as on the command line, from Python."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from atoll import questions
from atoll.answers.answer import Answer, DrawableResult, build_from, read_answer
from atoll.base.errors import AtollError
from atoll.base.registry import import_named
from atoll.files.atomic_file import check_folder
from atoll.questions.ask import ask
from atoll.questions.texts import described_by

if TYPE_CHECKING:
    from atoll.answers.design import TablePlan
    from atoll.answers.hardware import CatalogueAnswer, HardwareAnswer
    from atoll.answers.models import ModelAnswer, ModelsAnswer
    from atoll.answers.validation import CalibrationAnswer, SiteCalibration, Validation
    from atoll.base.stopping import Stop
    from atoll.driver import Progress
    from atoll.explore.answer.result import SearchResult
    from atoll.launch.check import Checked
    from atoll.questions import (
        EstimateQuestion,
        PlanQuestion,
        SearchQuestion,
        WaferQuestion,
        keywords,
    )
    from atoll.training.estimate import Estimate
    from atoll.training.mixed.plan import MixedPlan
    from atoll.training.planner.plan import Plan
    from atoll.wafer.answer.result import WaferEstimate, WaferResult


R = TypeVar("R", bound=DrawableResult[Any])
E = TypeVar("E", "Plan", "Estimate")


@overload
def search(
    job: SearchQuestion | None = None,
    *,
    stop: Stop | None = None,
    progress: Progress | None = None,
    **fields: Unpack[keywords.ChipFields],
) -> SearchResult: ...
@overload
def search(
    job: SearchQuestion | WaferQuestion | str | Path | None = None,
    *,
    stop: Stop | None = None,
    progress: Progress | None = None,
    **fields: Unpack[keywords.SearchFields],
) -> SearchResult | WaferResult: ...
@described_by("search")
def search(
    job: SearchQuestion | WaferQuestion | str | Path | None = None,
    *,
    stop: Stop | None = None,
    progress: Progress | None = None,
    **fields: Unpack[keywords.SearchFields],
) -> SearchResult | WaferResult:
    """Find the best chip, schedule and placement, or the best mapping on a wafer, with proof.

    Quantities take units ("80 GiB", "280 mm2", "250 W", "10 min"); plain numbers are bytes, mm2, W
    and s. With `out` every result is kept in that folder, and the same search started again
    continues. `workers` and `cluster` do not change the answer.

    Args:
        job: A question, or a job file (kind: chips or wafer); keywords override its fields.
        stop: Asked between pieces of work whether to end, with the best so far.
        progress: Told how far the search is.

    Returns:
        A `SearchResult`; with `wafer`, or for a job of that kind, a `WaferResult`.

    Raises:
        AtollError: A field is wrong; the message names it, what was given and what is allowed.
        InfeasibleError: Nothing in the space satisfies the question.

    Examples:
        >>> import atoll
        >>> result = atoll.search(model="bert-large", space="tiny.yaml", devices=8)
        >>> print(result.certificate.sentence())  # doctest: +ELLIPSIS
        proven optimal over ...
    """
    kinds: dict[str, type[SearchQuestion | WaferQuestion]] = {
        "chips": questions.SearchQuestion,
        "wafer": questions.WaferQuestion,
    }
    question = ask(kinds, job, fields)
    _check_files(question)
    if isinstance(question, questions.WaferQuestion):
        from atoll.wafer.run import search_wafer

        return _traced(search_wafer(question, stop=stop, progress=progress), question.trace)
    from atoll.explore.run import run_search

    result = run_search(
        question,
        progress,
        out=question.out,
        workers=question.workers,
        cluster=question.cluster,
        stop=stop,
        existing_devices=question.beside,
    )
    return _traced(result, question.trace)


@described_by("place")
def place(file: str | Path | None = None, **fields: Unpack[keywords.PlaceFields]) -> TablePlan:
    """Place a table of layer costs on its devices, optimally.

    Returns:
        Stages and the time of a batch; nothing of both where no placement fits.

    Raises:
        AtollError: The table cannot be read, or the profile does not price tables.

    Examples:
        >>> import atoll
        >>> atoll.place("layers.json").data_parallel
        15
    """
    from atoll.phaze.layer_table import read_table
    from atoll.phaze.table_dp import solve_table

    question = ask({"place": questions.verbs.PlaceQuestion}, None, {"file": file, **fields})
    if question.profile != "phaze":
        raise AtollError(
            f"profile: layer tables are priced under profile 'phaze' only, got "
            f"{question.profile!r}; the default profile needs a model: use atoll search."
        )
    return solve_table(read_table(question.file))


def list_models() -> ModelsAnswer:
    """List the models that come with Atoll.

    Returns:
        One row per model: its name, family and sizes.

    Examples:
        >>> import atoll
        >>> "llama3-70b" in [model.name for model in atoll.list_models().models]
        True
    """
    from atoll.answers.models import ModelsAnswer, ZooModel
    from atoll.workload import build_model, load_config, zoo_names

    configs = {name: load_config(name) for name in zoo_names()}
    return ModelsAnswer(
        models=tuple(
            build_from(ZooModel, config, name=name, parameters=build_model(config, 1).parameters)
            for name, config in configs.items()
        )
    )


@described_by("models")
def describe_model(name: str, **fields: Unpack[keywords.ModelsFields]) -> ModelAnswer:
    """Describe a model: parameters, layers and operators.

    Returns:
        What `atoll models NAME --json` prints.

    Raises:
        AtollError: No model has that name, or its file cannot be read.

    Examples:
        >>> import atoll
        >>> atoll.describe_model("gpt2-xl").parameters
        1557611200
    """
    from atoll.answers.models import ModelAnswer, layer_table
    from atoll.workload import StoredModel, load_model, prepare
    from atoll.workload.stored import model_warnings

    question = ask({"models": questions.verbs.ModelsQuestion}, None, {"name": name, **fields})
    config, tp = load_model(name), question.tp
    model = prepare(config, question.microbatch, question.sequence, tp, tp > 1)
    full_model = model if tp == 1 else prepare(config, question.microbatch, question.sequence)
    return ModelAnswer(
        name=name,
        parameters=full_model.parameters,
        active_parameters=full_model.active_parameters,
        part="" if isinstance(config, StoredModel) else config.part,
        microbatch=question.microbatch,
        sequence=model.sequence,
        tensor_parallel=tp,
        layers=layer_table(model),
        warnings=tuple(model_warnings(config)),
    )


def describe_hardware(name: str | None = None) -> CatalogueAnswer | HardwareAnswer:
    """List the catalogue, or describe one device, chip, network, space or wafer.

    Args:
        name: An entry of the catalogue, or a file of one (YAML). Default: all names.

    Returns:
        What `atoll hardware [NAME] --json` prints.

    Raises:
        AtollError: Nothing has that name, or the file cannot be read.

    Examples:
        >>> import atoll
        >>> atoll.describe_hardware("h100").kind
        'hardware-device'
    """
    from atoll.catalogue import catalogue, describe

    return catalogue() if name is None else describe(name)


@described_by("calibrate")
def calibrate(
    data: str | Path | None = None, **fields: Unpack[keywords.CalibrateFields]
) -> CalibrationAnswer | SiteCalibration:
    """Fit a site to training runs, a profile or nccl-tests, or a device to operator timings.

    The columns of the file say which; operators are judged on rows that were kept out.

    Returns:
        What was fitted, with intervals and errors: a `SiteCalibration` or a `CalibrationAnswer`.

    Raises:
        AtollError: The file cannot be read, or has columns of both kinds.

    Examples:
        >>> import atoll
        >>> atoll.calibrate("runs.csv", out="site.yaml").out
        'site.yaml'
    """
    from atoll.calibration.file_kinds import calibrate_file

    kinds = {"calibrate": questions.verbs.CalibrateQuestion}
    return calibrate_file(ask(kinds, None, {"data": data, **fields}))


@described_by("validate")
def validate(
    data: str | Path | None = None, **fields: Unpack[keywords.ValidateFields]
) -> Validation:
    """Compare predictions with measurements of operators, steps, training runs, power or chips.

    The file's columns say which; of `wafer`, rows of wafers and of TPUs are priced. Without either:
    our H200 operators, on the rows that the shipped calibration did not see, and under `steps` our
    H200 training steps. With `chips`: area and rated power of published chips, each from the chips
    of other vendors.

    Returns:
        Errors overall and by group, and the worst rows.

    Raises:
        AtollError: The file cannot be read, or a keyword is not for its kind.

    Examples:
        >>> import atoll
        >>> atoll.validate("runs.csv").predicted
        6
    """
    from atoll.calibration.file_kinds import validate_file
    from atoll.wafer.measured_runs import judge_meshes

    question = ask({"validate": questions.verbs.ValidateQuestion}, None, {"data": data, **fields})
    return validate_file(question) if question.wafer is None else judge_meshes(question)


@overload
def estimate(
    model: str, device: str, devices: int | None = None, **fields: Unpack[keywords.EstimateFields]
) -> Estimate: ...
@overload
def estimate(
    model: str | None = None,
    device: str | None = None,
    devices: int | None = None,
    *,
    job: EstimateQuestion | WaferQuestion | str | Path | None = None,
    **fields: Unpack[keywords.EstimateFields],
) -> Estimate | WaferEstimate: ...
@described_by("estimate")
def estimate(
    model: str | None = None,
    device: str | None = None,
    devices: int | None = None,
    *,
    job: EstimateQuestion | WaferQuestion | str | Path | None = None,
    **fields: Unpack[keywords.EstimateFields],
) -> Estimate | WaferEstimate:
    """Estimate time and memory of one layout of a training run, or of one mapping on a wafer.

    Args:
        job: A question, or a job file (kind: devices or wafer); keywords override its fields.

    Returns:
        An `Estimate`; with `wafer` and `mapping` a `WaferEstimate`.

    Raises:
        AtollError: A field is wrong, or the layout does not divide the run.

    Examples:
        >>> import atoll
        >>> estimate = atoll.estimate("llama3-70b", "h100", 512, tp=8, pp=4, batch=1024)
        >>> estimate.fits
        True
    """
    from atoll.training.estimate import estimate as run
    from atoll.training.request import layout_from_question, run_from_question

    arguments = {"model": model, "device": device, "devices": devices, **fields}
    kinds: dict[str, type[EstimateQuestion | WaferQuestion]] = {
        "devices": questions.EstimateQuestion,
        "wafer": questions.MappingQuestion,
    }
    question = ask(kinds, job, arguments)
    _check_files(question)
    if isinstance(question, questions.WaferQuestion):
        from atoll.wafer.estimate import estimate_wafer

        return estimate_wafer(question)
    if question.messages is not None:
        import_named("atoll.export.messages:check_messages_path")(question.messages)
    training_run = run_from_question(question)
    result = replace(run(training_run, layout_from_question(training_run, question)), launched=True)
    if question.messages is not None:
        from atoll.export.messages import step_messages, write_messages

        write_messages(step_messages(result), question.messages)
    if question.chakra is not None:
        import_named("atoll.export.chakra:write_chakra")(result, question.chakra)
    if question.out is not None:
        import_named("atoll.report.folder:write_plan")(result, question.out)
    return _written(result, question)


@overload
def plan(
    model: str,
    device: str,
    devices: int | None = None,
    *,
    stop: Stop | None = None,
    progress: Progress | None = None,
    **fields: Unpack[keywords.PlanFields],
) -> Plan: ...
@overload
def plan(
    model: str | None = None,
    device: str | None = None,
    devices: int | None = None,
    *,
    job: PlanQuestion | str | Path | None = None,
    stop: Stop | None = None,
    progress: Progress | None = None,
    **fields: Unpack[keywords.PlanFields],
) -> Plan | MixedPlan: ...
@described_by("plan")
def plan(
    model: str | None = None,
    device: str | None = None,
    devices: int | None = None,
    *,
    job: PlanQuestion | str | Path | None = None,
    stop: Stop | None = None,
    progress: Progress | None = None,
    **fields: Unpack[keywords.PlanFields],
) -> Plan | MixedPlan:
    """Find the fastest training layout that fits, with proof.

    Args:
        job: A question, or a job file (kind: devices or pods); keywords override its fields.
        stop: Asked between pieces of work whether to end, with the best so far.
        progress: Told how far the plan is.

    Returns:
        The best layout with its proof, its runners-up and the reasons; with `pods` a `MixedPlan`.

    Raises:
        AtollError: A field is wrong, or no layout that fits can be run by the tool of `export`.
        InfeasibleError: No layout fits; the message says what would.

    Examples:
        >>> import atoll
        >>> plan = atoll.plan("llama3-8b", "h100", 64, batch=256, cp=[1], export="megatron")
        >>> print(plan.best.layout)
        tp1 pp1 dp64 mbs1 zero3 recompute-none
        >>> plan.export("megatron").save("megatron.sh").name
        'megatron.sh'
    """
    from atoll.driver import ExecutionOptions, drive
    from atoll.training.planner.problem import PlanProblem
    from atoll.training.request import axes_from_question, run_from_question

    values = {"model": model, "device": device, "devices": devices, **fields}
    question = ask({"devices": questions.PlanQuestion, "pods": questions.PodsQuestion}, job, values)
    _check_files(question)
    if isinstance(question, questions.PodsQuestion):
        pods: MixedPlan = import_named("atoll.training.mixed.plan:plan_pods")(
            question, stop, progress
        )
        return pods
    if question.deadline is not None or question.budget is not None:
        question = import_named("atoll.several.device_count:with_devices")(question, stop)
    if question.measure is not None:
        measured: Plan = import_named("atoll.measurement.measure:plan_measured")(
            question, lambda again: plan(job=again, stop=stop, progress=progress)
        )
        return measured
    means = ExecutionOptions(question.out, question.workers, question.cluster)

    def prepare(limit: Stop) -> PlanProblem:
        run = run_from_question(question)
        axes = axes_from_question(question, run)
        usable = import_named("atoll.export:refusals")(run)
        explained = means != ExecutionOptions()  # else on first use
        return PlanProblem(question, run, axes, usable, explained, stop is not None)

    best_plan = drive(prepare, means, stop, question.time_limit, progress, "a layout was estimated")
    if question.layouts is not None:
        import_named("atoll.training.planner.answer:write_layouts")(best_plan, question.layouts)
    return _written(best_plan, question)


def load(path: str | Path) -> Answer:
    """Read the answer in a file, as an object of its type.

    Args:
        path: What `save`, `--json` or `--out` wrote.

    Returns:
        One of the types of `atoll.answers`; those of a search or a plan have `explain`, `report`
        and `trace`.

    Raises:
        AtollError: It holds no answer, was damaged, or was written by another version.

    Examples:
        >>> import atoll
        >>> file = atoll.estimate("gpt2-xl", "h100", 8, batch=64).save("estimate.json")
        >>> type(atoll.load(file)).__name__
        'EstimateAnswer'
    """
    from atoll.answers.kinds import ANSWERS

    return read_answer(path, *(kind for kinds in ANSWERS.values() for kind in kinds))


@described_by("check")
def check(file: str | Path, **fields: Unpack[keywords.CheckFields]) -> Checked:
    """Check a launch file: does it fit, how long is a step, which layout would be better.

    Returns:
        The estimate of the file's layout, the plan of the best one for the same job under the
        same software, and what it would save.

    Raises:
        AtollError: The file cannot be read, or starts no training program that is known.

    Examples:
        >>> import atoll
        >>> checked = atoll.check("pretrain.sh", device="h100", price=2.0)
        >>> checked.better.saved_percent > 10
        True
    """
    from atoll.launch.check import check as run

    return run(ask({"check": questions.verbs.CheckQuestion}, None, {"file": file, **fields}))


def _check_files(
    question: SearchQuestion | WaferQuestion | PlanQuestion | EstimateQuestion,
) -> None:
    """Refuse output files that cannot be written, before any work and without importing writers."""
    if getattr(question, "sweep", ()):
        raise AtollError("sweep: one answer is asked for here; atoll.sweep has one for every value")
    if question.out is not None:
        check_folder(question.out)
    if question.trace is not None:
        import_named("atoll.report.trace:check_trace_path")(question.trace)


def _written(result: E, question: PlanQuestion | EstimateQuestion) -> E:
    if question.launch_file is not None:
        result.export(result.tool.name).save(question.launch_file)
    return _traced(result, question.trace)


def _traced(result: R, path: Path | None) -> R:
    if path is not None:
        result.trace(path)
    return result
