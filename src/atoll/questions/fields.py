"""Fields shared by several questions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationInfo

from atoll.base.errors import AtollError
from atoll.base.registry import import_named
from atoll.base.units import parse_tokens
from atoll.files.yamlfile import Count, DeviceCount
from atoll.questions.question import (
    OUTPUT,
    Named,
    Power,
    Seconds,
    Several,
    Share,
    TokenCount,
    locate,
    option,
)

TRAINED, LAYOUT, SYSTEM = "What is trained", "Layout", "Devices and software"
CHIPS, WAFER, SEARCH = "Chips", "Wafer", "Search"
LAUNCH = "Launch file"
RUN_LENGTH = "The whole run"
ADVANCED = "Advanced"

Counts = Annotated[tuple[Count, ...], Several]
NonNegative = Annotated[int, Field(strict=True, ge=0)]


def block_counts(value: Any) -> Any:
    """Return the counts of text as answers print it, "15+17x2+15"; other values as they are."""
    parts = value if isinstance(value, list | tuple) else [value]
    counts: list[int] = []
    for part in parts:
        text = part.removeprefix("blocks-") if isinstance(part, str) else ""
        if not _BLOCK_RUNS.fullmatch(text):
            return value  # which the field takes or refuses
        for run in text.split("+"):
            size, _, times = run.partition("x")
            counts += [int(size)] * int(times or 1)
    return counts


_BLOCK_RUNS = re.compile(r"\d{1,4}(x\d{1,4})?(\+\d{1,4}(x\d{1,4})?)*")
BlockCounts = Annotated[Counts, BeforeValidator(block_counts)]


def named_file(module: str, loader: str, offers: str) -> Named:
    """Return what a name, or a file of the same kind, is loaded by, and what lists the names."""
    return Named(loader=f"{module}{loader}", file=True, offers=f"{module}{offers}")


ModelName = Annotated[str, named_file("atoll.workload:", "load_model", "zoo_names")]
NetworkName = Annotated[str, named_file("atoll.hardware.catalog:", "load_network", "network_names")]
DeviceName = Annotated[str, named_file("atoll.hardware.device:", "load_device", "device_names")]
OptimizerName = Annotated[str, Named("atoll.step.states:STATES", "atoll.step.states:load_states")]
ProfileName = Annotated[str, Named("atoll.profiles:PROFILES")]
ZeroStage = Annotated[int, Named("atoll.step.layout:ZERO_STAGES")]
RecomputeName = Annotated[str, Named("atoll.step.layout:RECOMPUTE")]
PolicyName = Annotated[
    str, Named("atoll.step.layout:RECOMPUTE", "atoll.step.layout:check_recompute")
]
OrderName = Annotated[str, Named("atoll.step.orders:ORDERS")]
ZeroStages = Annotated[tuple[ZeroStage, ...], Several]
OrderNames = Annotated[tuple[OrderName, ...], Several]
DeviceNames = Annotated[tuple[DeviceName, ...], Several]
Paths = Annotated[tuple[Path, ...], Several]

Device = Annotated[
    DeviceName,
    option("GPU or TPU: name (`atoll hardware`: h100, tpu-v5p) or file.", SYSTEM, old=("gpu",)),
]
DeviceNetwork = Annotated[
    NetworkName | None,
    option(
        "Network: name, file, links (switch-8@450GB/s; nodes are joined by 25 GB/s of InfiniBand "
        "per device), or a level's bandwidth per device (dgx-h100:infiniband=50GB/s).",
        SYSTEM, shown="the device's",
    ),
]  # fmt: skip
Devices = Annotated[DeviceCount, option("Number of devices.", TRAINED)]
Batch = Annotated[Count, option("Sequences in a step.", TRAINED, old=("global_batch",))]
BatchTokens = Annotated[
    TokenCount | None,
    option(
        'Tokens in a step instead of --batch, "4M" (powers of 1,024, as sequences are counted): a '
        "multiple of the sequence.",
        TRAINED, exclude=True,
    ),
]  # fmt: skip
Sequence = Annotated[
    TokenCount | None,
    option('Tokens in a sequence, 8192 or "8k".', TRAINED, old=("seq",), shown="the model's"),
]
AtLeastOne = Field(min_length=1)
MODEL_HELP = "Zoo name (`atoll models`), config.json or its folder, Hugging Face id, captured file."
FileName = Annotated[str, Named(file=True)]
Part = Annotated[float, Field(ge=0, lt=1)]
Price = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Microbatches = Annotated[
    Counts, AtLeastOne, option("Sequences in a microbatch.", LAYOUT, old=("microbatches",))
]
Headroom = Annotated[
    Share, option('Share of each device\'s memory to keep free, "10%".', SYSTEM, shown="none")
]
PowerCap = Annotated[
    Power | None, option('Power limit of each device, "500 W".', SYSTEM, shown="its rating")
]
Seed = Annotated[NonNegative, option("Seed of random samples.", ADVANCED)]
TimeLimit = Annotated[Seconds, option('Stop after "10 min".', SEARCH, shown="1 h")]
Pareto = Annotated[
    bool, option("Also find the fronts against area, power, cost and energy.", SEARCH)
]
Baselines = Annotated[bool, option("Compare the answer with known designs.", SEARCH)]
Workers = Annotated[
    NonNegative | None,
    option("Local processes; 0: this one.", SEARCH, shown="as the work needs", exclude=True),
]
Cluster = Annotated[str | None, option("Dask: tcp://host:8786, or local:4.", SEARCH, exclude=True)]
OutFolder = Annotated[
    Path | None,
    option("Keep the run in this folder; the same command continues it.", OUTPUT, exclude=True),
]
Out = Annotated[
    Path | None, option("Keep the answer in this folder, for atoll report.", OUTPUT, exclude=True)
]
Sweep = Annotated[
    tuple[str, ...], Several,
    option("NAME=VALUE,...: answer for each value of an option, or all combinations of several.",
           OUTPUT, shown="none", exclude=True),
]  # fmt: skip
Messages = Annotated[
    Path | None,
    option("Write all messages of a step to this file (.json, .csv).", OUTPUT, exclude=True),
]
ChakraFolder = Annotated[
    Path | None,
    option("Write the step as Chakra execution traces to this folder.", OUTPUT, exclude=True),
]
Trace = Annotated[
    Path | None,
    option("Write the step as a Chrome trace (Perfetto) to this file.", OUTPUT, exclude=True),
]


def with_batch_of_tokens(fields: Any, info: ValidationInfo, default_model: str = "") -> Any:
    """Replace `batch_tokens` by the sequences that have so many tokens."""
    if not isinstance(fields, dict) or fields.get("batch_tokens") is None:
        return fields
    if fields.get("batch") is not None or fields.get("from_") is not None:
        raise AtollError("batch_tokens: the batch is given already; leave one of them out")
    if "sequence=" in "".join(fields.get("sweep") or ()):
        raise AtollError("batch_tokens: goes with one sequence; sweep batch instead")
    try:
        tokens, sequence = (parse_tokens(fields.get(n)) for n in ("batch_tokens", "sequence"))
    except ValueError:
        return {**fields, "batch": 1}  # refused, with a sentence for each field
    model = fields.get("model") or default_model
    models = model if isinstance(model, list | tuple) else (model,)
    if len(models) > 1 or isinstance(models[0], dict):
        raise AtollError("batch_tokens: goes with the name of one model; give batch instead")
    if sequence is None and models[0] and isinstance(models[0], str | Path):
        named = locate(str(models[0]), info)
        sequence = import_named("atoll.workload:load_model")(named).sequence
    if not isinstance(tokens, int) or not isinstance(sequence, int):
        return {**fields, "batch": 1}  # refused likewise
    if tokens % sequence or tokens < sequence:
        near = max(1, round(tokens / sequence)) * sequence
        raise AtollError(
            f"batch_tokens: {tokens:,} is not a multiple of the sequence of {sequence:,} "
            f"tokens; {near:,} is"
        )
    return {**fields, "batch": tokens // sequence, "batch_tokens": None}
