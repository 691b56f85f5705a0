"""Questions about devices that exist: what one layout costs, and which layout is best."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from atoll.questions import fields as f
from atoll.questions.fields import AnyCounts, Counts
from atoll.questions.question import Named, Question, Several, option
from atoll.yamlfile import Count


class RunQuestion(Question):
    """A training run on devices that exist, but for its layout."""

    kind: Literal["devices"] = "devices"
    model: f.Model
    device: f.Device
    devices: f.Devices
    batch: f.Batch
    sequence: f.Sequence = None
    network: f.Network = None
    stack: Annotated[
        Annotated[str, Named("atoll.training.stack:STACKS")] | None,
        option("Training software.", f.SYSTEM, shown="the device's"),
    ] = None
    optimizer: Annotated[
        f.Optimizer, option("Bytes of its states.", f.TRAINED, old=("states",))
    ] = "mixed"
    precision: Annotated[
        Literal["bf16", "fp16", "fp8"] | None,
        option("Type of matrix products.", f.SYSTEM, shown="the device's"),
    ] = None
    attention: Annotated[
        Literal["flash", "flash2", "flash1", "unfused"], option("Attention kernel.", f.SYSTEM)
    ] = "flash"
    imbalance: Annotated[
        float, Field(ge=1), option("Tokens of the busiest expert over the mean.", f.TRAINED)
    ] = 1.0
    positional: ClassVar[tuple[str, ...]] = ("model", "device", "devices")


class LayoutQuestion(Question):
    """One layout of a run."""

    tp: Annotated[Count, option("Tensor parallel degree.", f.LAYOUT)] = 1
    pp: Annotated[Count, option("Pipeline stages.", f.LAYOUT)] = 1
    cp: Annotated[Count, option("Context parallel degree.", f.LAYOUT)] = 1
    ep: Annotated[Count, option("Expert parallel degree.", f.LAYOUT)] = 1
    etp: Annotated[
        Count | None, option("Tensor width of the experts.", f.LAYOUT, shown="tp")
    ] = None
    dp: Annotated[
        Count | None, option("Data parallel degree.", f.LAYOUT, shown="what the others leave")
    ] = None
    vpp: Annotated[Count, option("Model chunks a stage (interleaving).", f.LAYOUT)] = 1
    microbatch: Annotated[Count, option("Sequences in a microbatch.", f.LAYOUT)] = 1
    sp: Annotated[
        bool | None, option("Sequence parallelism.", f.LAYOUT, shown="where tp is above 1")
    ] = None
    zero: Annotated[f.Stages, option("ZeRO stage; 3: fully sharded.", f.LAYOUT)] = 1
    hsdp: Annotated[
        Count, option("Replicas of the group that ZeRO divides over.", f.LAYOUT)
    ] = 1
    recompute: Annotated[f.Recompute, option("What is computed again.", f.LAYOUT)] = "none"
    order: Annotated[
        f.Order | None,
        option("Pipeline order.", f.LAYOUT, shown="1f1b or interleaved", old=("schedule",)),
    ] = None


class Files(Question):
    """Where answers about devices go."""

    export: Annotated[
        Annotated[str, Named("atoll.export:EXPORTERS")] | None,
        option("Write a launch file; a plan then has only layouts that it can run.", f.OUTPUT),
    ] = None
    export_to: Annotated[
        Path | None, option("Where to write it.", f.OUTPUT, shown="the target's own name")
    ] = None
    out: f.Out = None
    trace: f.Trace = None


class EstimateQuestion(Files, LayoutQuestion, RunQuestion):
    """What one layout costs: step time, MFU, memory, and where they go."""

    devices: f.Devices = 1
    batch: f.Batch = 1
    example: ClassVar[str] = (
        "atoll estimate --model llama3-70b --device h100 --devices 512 --tp 8 --pp 4"
    )


class PlanQuestion(Files, RunQuestion):
    """The fastest layout that fits, proven over all layouts of the space, with the runners-up."""

    tp: Annotated[
        AnyCounts, option("Tensor parallel degrees.", f.LAYOUT, shown="powers of 2 in a node")
    ] = ()
    pp: Annotated[AnyCounts, option("Pipeline stages.", f.LAYOUT, shown="all divisors")] = ()
    cp: Annotated[
        AnyCounts, option("Context parallel degrees.", f.LAYOUT, shown="1, 2; long sequences: to 8")
    ] = ()
    ep: Annotated[
        AnyCounts, option("Expert parallel degrees.", f.LAYOUT, shown="powers of 2")
    ] = ()
    etp: Annotated[AnyCounts, option("Tensor widths of the experts.", f.LAYOUT, shown="tp")] = ()
    vpp: Annotated[AnyCounts, option("Model chunks a stage.", f.LAYOUT, shown="all divisors")] = ()
    microbatch: Annotated[Counts, option("Sequences in a microbatch.", f.LAYOUT)] = (1, 2, 4, 8)
    zero: Annotated[
        tuple[f.Stages, ...], Several, option("ZeRO stages.", f.LAYOUT)
    ] = (0, 1, 2, 3)
    hsdp: Annotated[
        Counts, option("Replicas of the group that ZeRO divides over.", f.LAYOUT)
    ] = (1,)
    recompute: Annotated[
        tuple[f.Recompute, ...], Several, option("What is computed again.", f.LAYOUT)
    ] = ("none", "selective", "full", "optimal")
    order: Annotated[
        tuple[f.Order, ...], Several,
        option("Pipeline orders; 1f1b has interleaved in it.", f.LAYOUT, old=("schedule",)),
    ] = ("1f1b",)  # fmt: skip
    example: ClassVar[str] = (
        "atoll plan --model gpt3-175b --device h100 --devices 1024 --batch 2048"
    )
