"""The smaller questions: what is known, what was measured, what a run has kept."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, model_validator

from atoll.base.registry import import_named
from atoll.files.yamlfile import Count
from atoll.questions import fields as f
from atoll.questions.devices import (
    LaunchQuestion,
    LayoutQuestion,
    LengthQuestion,
    RunQuestion,
    SiteFile,
)
from atoll.questions.fields import LAUNCH, LAYOUT, RUN_LENGTH, SYSTEM, TRAINED, NonNegative
from atoll.questions.question import (
    OUTPUT,
    Named,
    Question,
    Seconds,
    Several,
    TokenCount,
    locate,
    option,
)

MEASURED, MODEL, ROWS, SERVER = "Measurements", "Model", "Rows", "Server"
Folder = Annotated[
    Path, option("Folder that `atoll search --out` or `atoll plan --out` wrote.", OUTPUT)
]
Measured = Annotated[f.DeviceName, option("The device that was measured.", MEASURED, old=("gpu",))]
Texts = Annotated[tuple[str, ...], Several]
CommandName = Annotated[str, Named("atoll.questions:COMMANDS")]


class PlaceQuestion(Question):
    """Place your own layers on devices: the exact optimum for a table of layer costs."""

    file: Path = option("Layer table (JSON): times, bytes and edges.", "Layers", old=("table",))
    profile: f.ProfileName = option("Cost model of the table.", "Layers", "phaze")
    example = "atoll place layers.json"
    arguments = positional = ("file",)


class ModelsQuestion(Question):
    """List the models, or show one: parameters, layers, operators."""

    name: Annotated[str, Named(offers="atoll.workload:zoo_names")] | None = option(
        "Zoo name, config.json or model file.", TRAINED, None, shown="the zoo"
    )
    microbatch: Count = option("Sequences in a microbatch.", LAYOUT, 1)
    sequence: f.Sequence = None
    tp: Count = option("Tensor parallel degree.", LAYOUT, 1, old=("tensor",))
    example = "atoll models llama3-8b --tp 4"
    arguments = positional = ("name",)


class HardwareQuestion(Question):
    """List devices, chips, networks, spaces and wafers, or show one: area, power, peak rates."""

    name: Annotated[str, Named(offers="atoll.catalogue:hardware_names")] | None = option(
        "Device, accelerator, network (network/NAME if a device has its name), space or wafer, or "
        "a file of one (YAML).",
        SYSTEM, None, shown="the catalogue",
    )  # fmt: skip
    yaml: bool = option("Print its file (YAML), to edit.", OUTPUT, False, exclude=True)
    example = "atoll hardware h100"
    arguments = ("name",)


class CalibrateQuestion(Question):
    """Fit Atoll to measurements: training runs, a profile, nccl-tests, or operators.

    From runs, profiles and nccl-tests it writes a site file for --site of estimate, plan and
    validate: host time, overlap, slack and bandwidths with intervals. From operator timings it
    writes the calibration of a device; half of the rows are kept to test it.
    """

    data: Path | None = option(
        "Training runs, steps, or operators (CSV).", MEASURED, None, shown="our H200's operators"
    )
    trace: Path | None = option("Trace of the PyTorch profiler (JSON, .gz).", MEASURED, None)
    nccl_tests: f.Paths = option("Logs of nccl-tests.", MEASURED, (), shown="none")
    device: Measured = "h200"
    out: Path | None = option("Write the site or the calibration (YAML) here.", OUTPUT, None)
    example = "atoll calibrate runs.csv --out site.yaml"
    arguments = positional = ("data",)


class ValidateQuestion(Question):
    """Compare predictions with measurements: errors overall and by group, worst rows, regret.

    With --chips, it compares the modelled area and power of chips with published ones.
    """

    data: Path | None = option(
        "Operators, steps, training runs, powers or process nodes (CSV).",
        MEASURED,
        None,
        shown="our H200's",
    )
    chips: Path | None = option("Published chips (CSV).", MEASURED, None, shown="none")
    wafer: Path | None = option(
        "Runs on wafers and slices of TPUs (CSV).", MEASURED, None, shown="none"
    )
    device: Measured = "h200"
    expect: Literal["oom"] | None = option(
        "The runs in the file ran out of memory.", MEASURED, None
    )
    site: SiteFile | None = option("Predict runs at this site (YAML).", MEASURED, None)
    out: Path | None = option(
        "Write one line per row, with prediction and error (CSV).", OUTPUT, None, writes=True
    )
    example = "atoll validate --data runs.csv"
    positional = ("data",)


class BenchQuestion(Question):
    """Compare predictors on the same measured runs: errors, memory, regret, speed.

    The predictors are Atoll, a rule of thumb, a roofline, llm-analysis if it is installed, and
    plug-ins. Runs that a predictor cannot express are counted separately.
    """

    files: f.Paths = option("Tables of training runs or steps (CSV).", MEASURED)
    oom: f.Paths = option("Tables of runs that ran out of memory (CSV).", MEASURED, ())
    predictors: Annotated[
        tuple[Annotated[str, Named("atoll.predictors.registry:PREDICTORS")], ...], Several
    ] = option("Predictors; others are compared with the first.", MEASURED, (), shown="all")
    device: Measured = "h200"
    out: Path | None = option(
        "Write one line per row and predictor, with prediction and error (CSV).",
        OUTPUT,
        None,
        writes=True,
    )
    example = "atoll bench runs.csv --oom failed.csv"
    arguments = positional = ("files",)


class CaptureQuestion(Question):
    """Capture a PyTorch module or an ONNX graph, forward and backward, without its weights.

    Every --model option takes the file that it writes.
    """

    target: str = option(
        "package.module:builder, a config.json (with the transformers library), or an ONNX file "
        "(with the onnx package).", MODEL,
    )  # fmt: skip
    out: Path = option("Write the atoll-model file here.", OUTPUT)
    inputs: Texts = option('Type and shape, "int64[1,4096]" or "labels=int64[1,4096]".', MODEL, ())
    name: str | None = option("Name of the model.", MODEL, None, shown="the target's")
    sequence: Count | None = option(
        "Tokens in a sample; the open dimension of an ONNX file.", MODEL, None
    )
    batch_dim: int = option("Dimension of inputs that counts samples; -1 for none.", MODEL, 0)
    dtype: str = option("Type of weights and floating inputs; keep: unchanged.", MODEL, "bfloat16")
    keep: Literal["fused", "eager"] = option(
        "Kernels and stored tensors: of a fusing compiler, or of eager PyTorch.", MODEL, "fused"
    )
    example = "atoll capture mine.model:build --inputs 'int64[1,4096]' --out mine.json"
    arguments = ("target",)


class DesignsQuestion(Question):
    """List what a search has evaluated, also while it runs."""

    folder: Folder
    where: Texts = option('Filters: "width=128", "area_mm2<=200", "score>=1000".', ROWS, ())
    sort: str = option("Column to sort by.", ROWS, "score")
    limit: Count = option("Rows to show.", ROWS, 20)
    offset: NonNegative = option("Rows to skip.", ROWS, 0)
    front: str | None = option("Only the Pareto front of score against this column.", ROWS, None)
    parquet: Path | None = option(
        "Write every design to this Parquet file.", OUTPUT, None, writes=True
    )
    example = "atoll designs runs/mine --where 'area_mm2<=200' --limit 5"
    arguments = ("folder",)


class ExplainQuestion(Question):
    """Explain an answer: where the time goes, what limits it, why the runner-up is slower.

    For a searched chip, it also evaluates the next larger and smaller value of each part, and
    compares the chip with existing devices step by step. For a wafer, it says what more of each
    resource is worth.
    """

    folder: Folder
    beside: f.DeviceNames = option(
        "Of a searched chip: existing devices to compare with, names or files.", OUTPUT, (),
        shown="those of the search",
    )  # fmt: skip
    ablate: bool = option(
        "Of a wafer's mapping: solve it again, with one decision variable frozen at a time.",
        OUTPUT,
        False,
    )
    zigzag: Path | None = option(
        "Write the chip and the mappings of its matrix products here, as input files of ZigZag.",
        OUTPUT,
        None,
    )
    example = "atoll explain runs/mine"
    arguments = ("folder",)


class ReportQuestion(Question):
    """Draw an answer: one HTML file that opens offline in any browser.

    It shows the answer and its proof, the chip, all chips of the space, time by cause, schedules,
    the pipeline, memory, and what more of each part would change.
    """

    folder: Folder
    out: Path | None = option("The file.", OUTPUT, None, shown="report.html in the folder")
    example = "atoll report runs/mine"
    arguments = ("folder",)


class CompareQuestion(Question):
    """Compare runs: options and results in one table."""

    runs: tuple[Path, ...] = option(
        "Folders that search, plan or estimate wrote (--out), or files of answers (--json).", "Runs"
    )
    out: Path | None = option("Also draw it: one HTML file.", OUTPUT, None, writes=True)
    example = "atoll compare runs/mine runs/other"
    arguments = ("runs",)


class TraceQuestion(Question):
    """Write a step as a Chrome trace, which Perfetto and chrome://tracing open."""

    folder: Folder
    out: Path | None = option("The file.", OUTPUT, None, shown="trace.json in the folder")
    example = "atoll trace runs/mine"
    arguments = ("folder",)


class ServeQuestion(Question):
    """Explore stored runs in a browser, also while a search runs. Nothing is written."""

    folders: tuple[Path, ...] = option("Folders of runs, or folders that contain them.", "Runs")
    port: NonNegative = option("Port; 0 takes a free one.", SERVER, 8737)
    host: str = option(
        "Address to listen on; other than loopback, requests need a token.", SERVER, "127.0.0.1"
    )
    token: Annotated[str, Field(min_length=8)] | None = option(
        "The token to ask for, or ATOLL_TOKEN of the environment.", SERVER, None,
        shown="none on loopback, a new one elsewhere",
    )  # fmt: skip
    allow_host: Texts = option("Other host names to answer to.", SERVER, ())
    open: bool = option("Open a browser.", SERVER, False)
    example = "atoll serve runs/mine runs/other"
    arguments = ("folders",)


class CheckQuestion(LaunchQuestion, LengthQuestion):
    """Check a launch file: does it fit, how long is a step, which layout would be better.

    It reads Megatron-LM scripts (parsed, never run), torchtitan TOML and Python, DeepSpeed JSON,
    NeMo, accelerate, axolotl, nanotron and GPT-NeoX YAML.
    """

    file: Path = option("The launch file.", f.LAUNCH)
    device: f.Device
    devices: Count | None = option("Number of devices.", SYSTEM, None, shown="the file's")
    model: str | None = option(
        "Zoo name or config.json, where the file does not describe the model.",
        TRAINED,
        None,
        shown="the file's",
    )
    batch: Count | None = option("Sequences in a step.", TRAINED, None, shown="the file's")
    sequence: TokenCount | None = option(
        'Tokens in a sequence, 8192 or "8k".', TRAINED, None, shown="the file's"
    )
    network: f.DeviceNetwork = None
    stack: str | None = option("Training software.", SYSTEM, None, shown="the file's")
    headroom: f.Headroom = 0.0
    power_cap: f.PowerCap = None
    log: Path | None = option(
        "A log of the run: Megatron-LM, NeMo, torchtitan, DeepSpeed, MLPerf.", "Measurements",
        None, shown="none",
    )  # fmt: skip
    trace: Path | None = option(
        "Trace of the PyTorch profiler (JSON, .gz).", "Measurements", None, shown="none"
    )
    append: Path | None = option(
        "Add the measured run to this table (CSV), for validate and calibrate.", "Measurements",
        None, shown="none", writes=True,
    )  # fmt: skip
    strict: bool = option("Refuse a file with arguments that are not priced.", OUTPUT, False)
    least: f.Part = option("A layout must save this share of a step to be named.", OUTPUT, 0.01)
    steps: Count | None = option(
        "Steps of the run, to compute what it saves.", RUN_LENGTH, None, shown="the file's"
    )
    time_limit: f.TimeLimit = 3600.0
    example = "atoll check pretrain.sh --device h100 --devices 512"
    script_args: Texts = option(
        "Arguments of the script, after --: its $1, $2 and the like.", f.LAUNCH, (), shown="none"
    )
    arguments = ("file", "script_args")
    positional = ("file",)


class MeasureQuestion(LayoutQuestion, RunQuestion):
    """Run ranks of a layout on the local GPU without communication: peak memory, compute time.

    The training tool runs in a child process, with random weights and a fake process group for all
    other ranks. `atoll validate` and `atoll calibrate` read the rows that it writes.
    """

    from_: f.FileName | None = option(
        "Folder that `atoll plan --out` wrote, or a launch file; options override it.",
        LAUNCH, None, shown="none",
    )  # fmt: skip
    device: Measured = "h200"
    devices: f.Devices = 1
    batch: f.Batch = 1
    ranks: Annotated[tuple[Literal["first", "last", "fullest"], ...], Several] = option(
        "Pipeline stages to run a rank of: the first, the last, the fullest in memory.",
        MEASURED, ("first", "last", "fullest"),
    )  # fmt: skip
    backend: Literal["cuda", "cpu"] = option("Where ranks run; cpu is for tests.", MEASURED, "cuda")
    limit: Seconds = option("Time limit of a rank.", MEASURED, 600.0, shown="10 min")
    append: Path = option(
        "Add a row per rank to this table (CSV).", OUTPUT, Path("measured.csv"), writes=True
    )
    dry_run: bool = option("Print the command and its jobs, and run nothing.", OUTPUT, False)
    device_profile: Path | None = option(
        "Time this GPU's operators instead, and write its device file (YAML) here.", MEASURED,
        None, shown="none", writes=True,
    )  # fmt: skip
    example = "atoll measure --from plans/mine --dry-run"

    @classmethod
    def needed(cls, given: Container[str]) -> list[str]:
        return [] if "device_profile" in given else super().needed(given)

    @model_validator(mode="before")
    @classmethod
    def _apply_plan(cls, fields: Any, info: ValidationInfo) -> Any:
        """Fill fields that are not set from the plan in `from_`; leave launch files to others."""
        if not isinstance(fields, dict) or fields.get("from_") is None:
            return fields
        file = locate(str(fields["from_"]), info)
        planned = import_named("atoll.answers.plan:plan_fields")(cls, file)
        return fields if planned is None else planned | {**fields, "from_": None}


class McpQuestion(Question):
    """Serve the read-only commands to agents over the Model Context Protocol (stdio).

    This needs the extra `mcp` (pip install 'atoll[mcp]').
    """

    folders: f.Paths = option(
        "Folders whose files an agent may name.", "Files", (), shown="the working directory"
    )
    calls: Annotated[Count, Field(le=64)] = option("Calls that may run at once.", "Files", 4)
    example = "atoll mcp --folders runs,jobs"


class EnvQuestion(Question):
    """Print versions, processor, kernel cache and extras, for a bug report."""

    example = "atoll env"


class SchemaQuestion(Question):
    """Print the JSON Schema of a command's options, job file and `--json` answer."""

    command: CommandName = option("The command.", "Schema")
    example = "atoll schema search"
    arguments = ("command",)
