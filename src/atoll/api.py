"""The public functions: the same jobs as on the command line, from Python.

>>> import atoll
>>> atoll.describe_model("gpt2-xl")["parameters"]
1557611200
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll import units
from atoll.errors import AtollError
from atoll.keywords import taken_by

if TYPE_CHECKING:
    from atoll.explore.branch_and_bound import Progress
    from atoll.explore.job import Job
    from atoll.explore.result import SearchResult
    from atoll.explore.stop import Stop
    from atoll.phaze.table_dp import TablePlan
    from atoll.training.estimate import Estimate
    from atoll.training.plan import Plan
    from atoll.workload import StoredModel


def search(
    job: Job | str | Path | None = None,
    *,
    model: str | None = None,
    models: Sequence[str] | None = None,
    devices: int | None = None,
    global_batch: int | None = None,
    sequence: int | None = None,
    microbatches: Sequence[int] | None = None,
    tensor_widths: Sequence[int] | None = None,
    zero: Sequence[int] | None = None,
    hbm: Sequence[str | int] | None = None,
    recompute: str | None = None,
    profile: str | None = None,
    space: str | None = None,
    network: str | None = None,
    optimizer: str | None = None,
    objective: str | None = None,
    strategy: str | None = None,
    evaluations: int | None = None,
    max_area: str | float | None = None,
    max_power: str | float | None = None,
    tolerance: float | None = None,
    time_limit: str | float | None = None,
    seed: int | None = None,
    pareto: bool | None = None,
    baselines: bool | None = None,
    beside: Sequence[str] = (),
    out: str | Path | None = None,
    workers: int | None = None,
    cluster: str | None = None,
    stop: Stop | None = None,
    progress: Progress | None = None,
) -> SearchResult:
    """Find the best chip, schedule and placement, with proof.

    `job` is a `Job` or a job file; keywords override its fields. Quantities take units
    ("80 GiB", "280 mm2", "250 W", "10 min"); plain numbers are bytes, mm2, W and s.

    With `out` every result is kept in that folder, and the same search started again continues.
    Devices of the catalogue (or files) named in `beside` are planned for the same job.
    `workers` (local processes) and `cluster` (a Dask scheduler, or "local:N") do not change the
    answer.
    """
    options = dict(locals())
    from atoll.explore.job import Job, ModelJob, load_job
    from atoll.explore.run import run_search

    given = taken_by(Job, options)
    base = Job() if job is None else job if isinstance(job, Job) else load_job(job)
    lists = ("microbatches", microbatches), ("tensor_widths", tensor_widths), ("zero", zero)
    for field, several in lists:
        given[field] = None if several is None else tuple(several)
    if hbm is not None:
        given["hbm_capacities_bytes"] = tuple(_capacity_bytes(value) for value in hbm)
    for name, field, value, dimension, unit in (
        ("max_area", "max_area_mm2", max_area, units.AREA, "mm2"),
        ("max_power", "max_power_W", max_power, units.POWER, "W"),
        ("time_limit", "time_limit_s", time_limit, units.TIME, "s"),
    ):
        if value is not None:
            given[field] = _quantity(name, value, dimension, unit)
    names = [model] if model is not None else models
    given["models"] = None
    if names:
        given["models"] = tuple(ModelJob(name, sequence=sequence) for name in names)
    elif sequence is not None:
        given["models"] = tuple(replace(entry, sequence=sequence) for entry in base.models)
    chosen = {name: value for name, value in given.items() if value is not None}
    return run_search(
        replace(base, **chosen),
        progress,
        out=None if out is None else Path(out),
        workers=workers,
        cluster=cluster,
        stop=stop,
        beside=beside,
    )


def _capacity_bytes(value: str | int) -> int:
    """A memory's size; text needs its unit, since nobody who types 80 means bytes."""
    try:
        return units.parse_bytes(value) if isinstance(value, str) else int(value)
    except AtollError as error:
        meant = f'; did you mean "{value} GiB"?' if str(value).strip().isdecimal() else ""
        raise AtollError(f"hbm: {error}{meant}") from None


def _quantity(field: str, value: str | float, dimension: units.Dimension, unit: str) -> float:
    """Parse a quantity and name the field in a complaint."""
    try:
        return units.parse_quantity(value, dimension, unit)
    except AtollError as error:
        raise AtollError(f"{field}: {error}") from None


def place(table: str | Path, *, profile: str = "phaze") -> TablePlan:
    """The optimal placement of a table of layer costs (JSON) on its devices."""
    from atoll.phaze.table import read_table
    from atoll.phaze.table_dp import solve_table

    if profile != "phaze":
        raise AtollError(
            f"profile: layer tables are priced under profile 'phaze' only, got {profile!r}; "
            "the default profile needs a model: use atoll search."
        )
    return solve_table(read_table(table))


def list_models() -> list[dict[str, Any]]:
    """The zoo: one row a model."""
    from atoll.workload import build_model, load_config, zoo_names

    rows = []
    for name in zoo_names():
        config = load_config(name)
        rows.append(
            {
                "name": name,
                "parameters": build_model(config, 1).parameters,
                "layers": config.layers,
                "hidden": config.hidden,
                "heads": config.heads,
                "sequence": config.sequence,
            }
        )
    return rows


def describe_model(
    name: str, *, microbatch: int = 1, sequence: int | None = None, tensor: int = 1
) -> dict[str, Any]:
    """Parameters and the layer table of a model, with its operators."""
    from atoll.workload import StoredModel, layer_table, load_model, prepare
    from atoll.workload.stored import warnings_of

    for field, value in (("microbatch", microbatch), ("sequence", sequence), ("tensor", tensor)):
        if value is not None and value < 1:
            raise AtollError(f"{field}: expected a positive whole number, got {value}.")
    config = load_model(name)
    model = prepare(config, microbatch, sequence, tensor, tensor > 1)
    whole = model if tensor == 1 else prepare(config, microbatch, sequence)
    return {
        "name": name,
        "parameters": whole.parameters,
        "active_parameters": whole.active_parameters,
        "part": "" if isinstance(config, StoredModel) else config.part,
        "microbatch": microbatch,
        "sequence": model.sequence,
        "tensor_parallel": tensor,
        "layers": layer_table(model),
        "warnings": list(warnings_of(config)),
    }


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


def describe_hardware(name: str | None = None) -> dict[str, Any]:
    """The catalogue, or one device, accelerator, network, space or wafer of it or of a file."""
    from atoll.catalogue import catalogue, describe

    return catalogue() if name is None else describe(name)


def calibrate(
    data: str | Path | None = None, *, gpu: str = "h200", out: str | Path | None = None
) -> dict[str, Any]:
    """Fit the GPU operator model on timings (CSV) and judge it on the rows that were kept out."""
    from atoll.calibrate import calibrate as fit

    return fit(gpu=gpu, out=out) if data is None else fit(data, gpu=gpu, out=out)


def validate(
    data: str | Path | None = None,
    *,
    gpu: str = "h200",
    expect: str | None = None,
    out: str | Path | None = None,
) -> dict[str, Any]:
    """Predicted against measured: operators, whole steps of one device, or training runs.

    The file's columns say which. Without data: our H200 operators, on the rows that the shipped
    calibration did not see, and under `steps` our H200 training steps.
    """
    from atoll.calibrate import validate_operators
    from atoll.csvfile import read_csv
    from atoll.training.step_rows import H200_STEPS, H200_STEPS_LATER, is_step_file
    from atoll.training.validate import validate_runs, validate_steps

    header = [] if data is None else read_csv(data)[0]
    operators = data is None or ("kind" in header and "us" in header)
    if expect is not None and (operators or is_step_file(header)):
        raise AtollError(
            f"expect is {expect!r}, but is for files of training runs (--data FILE) only"
        )
    if data is None:
        steps = {
            "fitted": validate_steps(H200_STEPS, gpu),
            "later": validate_steps(H200_STEPS_LATER, gpu),
        }
        return {**validate_operators(gpu=gpu, held_out=True, out=out), "steps": steps}
    if operators:
        return validate_operators(data, gpu=gpu, out=out)
    if is_step_file(header):
        return validate_steps(data, gpu, out=out)
    return validate_runs(data, expect=expect, out=out)


def estimate(
    model: str,
    device: str,
    devices: int = 1,
    *,
    global_batch: int = 1,
    sequence: int | None = None,
    tp: int = 1,
    pp: int = 1,
    cp: int = 1,
    ep: int = 1,
    etp: int | None = None,
    dp: int | None = None,
    vpp: int = 1,
    microbatch: int = 1,
    sp: bool | None = None,
    zero: int = 1,
    hsdp: int = 1,
    recompute: str = "none",
    schedule: str | None = None,
    network: str | None = None,
    stack: str | None = None,
    states: str = "mixed",
    precision: str | None = None,
    attention: str = "flash",
    imbalance: float = 1.0,
) -> Estimate:
    """What one layout of a training run costs in time and memory.

    >>> import atoll
    >>> result = atoll.estimate("llama3-70b", "h100", 512, tp=8, pp=4, global_batch=1024)
    >>> result.fits
    True
    """
    given = dict(locals())
    from atoll.training.estimate import estimate as run
    from atoll.training.request import make_layout, make_run

    job = make_run(**taken_by(make_run, given))
    return run(job, make_layout(job, **taken_by(make_layout, given)))


def plan(
    model: str,
    device: str,
    devices: int,
    *,
    global_batch: int,
    sequence: int | None = None,
    tp: Sequence[int] | None = None,
    pp: Sequence[int] | None = None,
    cp: Sequence[int] | None = None,
    ep: Sequence[int] | None = None,
    etp: Sequence[int] | None = None,
    vpp: Sequence[int] | None = None,
    microbatch: Sequence[int] | None = None,
    zero: Sequence[int] | None = None,
    hsdp: Sequence[int] | None = None,
    recompute: Sequence[str] | None = None,
    schedule: Sequence[str] | None = None,
    network: str | None = None,
    stack: str | None = None,
    states: str = "mixed",
    precision: str | None = None,
    attention: str = "flash",
    imbalance: float = 1.0,
    export: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """The fastest layout that fits, proven over the values that each axis may take.

    With `export`, of those that this tool can run: megatron, torchtitan, deepspeed or nemo.
    """
    given = dict(locals())
    from atoll.export import VALUES, refusals
    from atoll.training.plan import plan as run
    from atoll.training.request import make_run
    from atoll.training.space import Axes

    job = make_run(**taken_by(make_run, given))
    chosen = {name: tuple(values) for name, values in taken_by(Axes, given).items() if values}
    usable = None
    if export:
        usable = refusals(export, job)
        chosen = VALUES[export] | chosen
    return run(job, Axes(**chosen), usable=usable, target=export or "", progress=progress)
