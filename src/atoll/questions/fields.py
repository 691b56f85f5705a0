"""Fields that several questions have: one name, one sentence, one type for each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from atoll.questions.question import Named, Several, option
from atoll.yamlfile import Count

TRAINED = "What is trained"
LAYOUT = "Layout"
SYSTEM = "Devices and software"
CHIPS = "Chips"
SEARCH = "Search"
WAFER = "Wafer"
OUTPUT = "Output"

AnyCounts = Annotated[tuple[Count, ...], Several]
Counts = Annotated[AnyCounts, Field(min_length=1)]

ModelName = Annotated[str, Named(loader="atoll.workload:load_model", file=True)]
NetworkName = Annotated[str, Named(loader="atoll.hardware.catalog:load_network", file=True)]
DeviceName = Annotated[str, Named(loader="atoll.hardware.device:load_device", file=True)]
Optimizer = Annotated[str, Named("atoll.step.states:STATES", "atoll.step.states:load_states")]

Model = Annotated[
    ModelName, option("Zoo name, config.json, captured model, folder or cached id.", TRAINED)
]
Device = Annotated[
    DeviceName, option("Device of the catalogue (h100, tpu-v5p...) or a file.", SYSTEM)
]
Devices = Annotated[Count, option("Number of devices.", TRAINED)]
Batch = Annotated[Count, option("Sequences in a step.", TRAINED, old=("global_batch",))]
Sequence = Annotated[
    Count | None, option("Tokens in a sequence.", TRAINED, old=("seq",), shown="the model's")
]
Network = Annotated[
    NetworkName | None, option("Network of the catalogue or a file.", SYSTEM, shown="the device's")
]
Stages = Annotated[int, Named("atoll.step.layout:ZERO_STAGES")]
Recompute = Annotated[str, Named("atoll.step.layout:RECOMPUTE")]
Order = Annotated[str, Named("atoll.step.orders:ORDERS")]

Microbatches = Annotated[
    Counts, option("Sequences in a microbatch.", LAYOUT, old=("microbatches",))
]
Seed = Annotated[int, Field(ge=0), option("Seed of what is sampled.", SEARCH)]
Pareto = Annotated[bool, option("Also find the fronts against area, power and energy.", SEARCH)]
Baselines = Annotated[bool, option("Lay known designs beside the answer.", SEARCH)]

Out = Annotated[
    Path | None,
    option("Keep it in this folder, for atoll report and atoll trace.", OUTPUT, exclude=True),
]
Trace = Annotated[
    Path | None,
    option("Write the step as a Chrome trace (Perfetto) to this file.", OUTPUT, exclude=True),
]
