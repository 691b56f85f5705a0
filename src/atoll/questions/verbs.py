"""The smaller questions: what is known, what was measured, what a run has kept."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from atoll.questions import fields as f
from atoll.questions.question import Named, Question, Several, option
from atoll.yamlfile import Count

Folder = Annotated[
    Path, option("Folder that `atoll search --out` or `atoll plan --out` wrote.", f.OUTPUT)
]
Measured = Annotated[
    f.DeviceName, option("The device that was measured.", "Measurements", old=("gpu",))
]


class PlaceQuestion(Question):
    """Place your own layers on devices: the exact optimum for a table of layer costs."""

    file: Annotated[Path, option("Layer table (JSON): times, bytes and edges.", "Layers")]
    profile: Annotated[
        Annotated[str, Named("atoll.profiles:PROFILES")],
        option("Cost model of the table.", "Layers"),
    ] = "phaze"
    example: ClassVar[str] = "atoll place layers.json"
    arguments = positional = ("file",)


class ModelsQuestion(Question):
    """List the models, or show one: parameters, layers, operators."""

    name: Annotated[
        str | None, option("Zoo name, config.json or model file.", f.TRAINED, shown="the zoo")
    ] = None
    microbatch: Annotated[Count, option("Sequences in a microbatch.", f.LAYOUT)] = 1
    sequence: f.Sequence = None
    tp: Annotated[Count, option("Tensor parallel degree.", f.LAYOUT, old=("tensor",))] = 1
    example: ClassVar[str] = "atoll models llama3-8b --tp 4"
    arguments = positional = ("name",)


class HardwareQuestion(Question):
    """List devices, chips, networks, spaces and wafers, or show one: area, power, peak rates."""

    name: Annotated[
        str | None,
        option("Device, accelerator, network, space or wafer, or a file of one (YAML).", f.SYSTEM,
               shown="the catalogue"),
    ] = None  # fmt: skip
    example: ClassVar[str] = "atoll hardware h100"
    arguments = positional = ("name",)


class CalibrateQuestion(Question):
    """Fit the GPU operator model on measured timings; half of the rows are kept to judge it."""

    data: Annotated[
        Path | None, option("Operators (CSV).", "Measurements", shown="our H200's")
    ] = None
    device: Measured = "h200"
    out: Annotated[Path | None, option("Write the calibration (YAML) here.", f.OUTPUT)] = None
    example: ClassVar[str] = "atoll calibrate timings.csv --device h100 --out h100.yaml"
    arguments = positional = ("data",)


class ValidateQuestion(Question):
    """Hold predictions against measurements: errors overall and by group, worst rows, regret."""

    data: Annotated[
        Path | None,
        option("Operators, steps or training runs (CSV).", "Measurements", shown="our H200's"),
    ] = None
    device: Measured = "h200"
    expect: Annotated[
        Literal["oom"] | None, option("The file's runs went out of memory.", "Measurements")
    ] = None
    out: Annotated[
        Path | None, option("Write one line a row, with prediction and error (CSV).", f.OUTPUT)
    ] = None
    example: ClassVar[str] = "atoll validate --data runs.csv"
    positional: ClassVar[tuple[str, ...]] = ("data",)


class CaptureQuestion(Question):
    """Capture a PyTorch module or an ONNX graph, forward and backward, without its weights.

    The file can be given wherever a command takes --model.
    """

    target: Annotated[
        str,
        option("package.module:builder, a config.json (with the transformers library), or an ONNX "
               "file (with the onnx package).", "Model"),
    ]  # fmt: skip
    out: Annotated[Path, option("Write the atoll-model file here.", f.OUTPUT)]
    inputs: Annotated[
        tuple[str, ...], Several,
        option('Type and shape, "int64[1,4096]" or "labels=int64[1,4096]".', "Model"),
    ] = ()  # fmt: skip
    name: Annotated[
        str | None, option("Name of the model in the file.", "Model", shown="the target's")
    ] = None
    sequence: Annotated[
        Count | None,
        option("Tokens in a sample; the open dimension of an ONNX file.", "Model"),
    ] = None
    batch_dim: Annotated[
        int, option("Dimension of the inputs that counts samples; -1 for none.", "Model")
    ] = 0
    dtype: Annotated[
        str, option("Type of weights and floating inputs; keep leaves them.", "Model")
    ] = "bfloat16"
    keep: Annotated[
        Literal["fused", "eager"],
        option("Kernels and what they keep: a compiler's, or PyTorch's own.", "Model"),
    ] = "fused"
    example: ClassVar[str] = (
        "atoll capture mine.model:build --inputs 'int64[1,4096]' --out mine.json"
    )
    arguments: ClassVar[tuple[str, ...]] = ("target",)


class DesignsQuestion(Question):
    """List what a search has evaluated, also while it runs."""

    folder: Folder
    where: Annotated[
        tuple[str, ...], Several,
        option('Filters: "width=128", "area_mm2<=200", "score>=1000".', "Rows"),
    ] = ()  # fmt: skip
    sort: Annotated[str, option("Column to sort by.", "Rows")] = "score"
    limit: Annotated[Count, option("Rows to show.", "Rows")] = 20
    offset: Annotated[int, Field(ge=0), option("Rows to skip.", "Rows")] = 0
    front: Annotated[
        str | None, option("Only the front of score against this column.", "Rows")
    ] = None
    parquet: Annotated[
        Path | None, option("Write every design to this Parquet file.", f.OUTPUT)
    ] = None
    example: ClassVar[str] = "atoll designs runs/mine --where 'area_mm2<=200' --limit 5"
    arguments: ClassVar[tuple[str, ...]] = ("folder",)


class ExplainQuestion(Question):
    """Say why this answer: where the time goes, what limits it, what the runner-up lacks.

    On a wafer's folder also what more of each resource would be worth.
    """

    folder: Folder
    example: ClassVar[str] = "atoll explain runs/mine"
    arguments: ClassVar[tuple[str, ...]] = ("folder",)


class ReportQuestion(Question):
    """Draw an answer: one HTML file that opens offline in any browser.

    The answer with its proof, the chip to scale, every chip of the space, where the time goes,
    schedules, the pipeline, memory, and what a little more of each part would be worth.
    """

    folder: Folder
    out: Annotated[
        Path | None, option("The file to write.", f.OUTPUT, shown="report.html in the folder")
    ] = None
    example: ClassVar[str] = "atoll report runs/mine"
    arguments: ClassVar[tuple[str, ...]] = ("folder",)


class TraceQuestion(Question):
    """Write a step as a Chrome trace, which Perfetto and chrome://tracing open."""

    folder: Folder
    out: Annotated[
        Path | None, option("The file to write.", f.OUTPUT, shown="trace.json in the folder")
    ] = None
    example: ClassVar[str] = "atoll trace runs/mine"
    arguments: ClassVar[tuple[str, ...]] = ("folder",)


class ServeQuestion(Question):
    """Explore stored runs in a browser, also while a search is writing them. Reads only."""

    folders: Annotated[
        tuple[Path, ...],
        option("Folders that `--out` writes, or that hold such folders.", "Runs"),
    ]
    port: Annotated[int, Field(ge=0), option("Port; 0 takes a free one.", "Server")] = 8737
    host: Annotated[
        str, option("Address to bind; off loopback every request needs a token.", "Server")
    ] = "127.0.0.1"
    token: Annotated[
        Annotated[str, Field(min_length=8)] | None,
        option("The token to ask for, or ATOLL_TOKEN of the environment.", "Server",
               shown="none on loopback, a new one elsewhere"),
    ] = None  # fmt: skip
    allow_host: Annotated[
        tuple[str, ...], Several, option("Other host names to answer to.", "Server")
    ] = ()
    open: Annotated[bool, option("Open a browser.", "Server")] = False
    example: ClassVar[str] = "atoll serve runs/mine runs/other"
    arguments: ClassVar[tuple[str, ...]] = ("folders",)


class SchemaQuestion(Question):
    """JSON Schema of what a command asks: the fields of its options, keywords and job files."""

    command: Annotated[
        Annotated[str, Named("atoll.questions:COMMANDS")], option("The command.", "Schema")
    ]
    example: ClassVar[str] = "atoll schema search"
    arguments: ClassVar[tuple[str, ...]] = ("command",)
