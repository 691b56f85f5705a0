"""Launch files for training tools, from a layout.

One module a target. Each either says the layout in the target's own words, or refuses with one
sentence; where only a near equivalent exists, a note says what differs. Nothing here runs a tool:
the tests hand every file to the tools' own parsers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from atoll.answers.layout import LaunchFile
from atoll.errors import AtollError
from atoll.export.deepspeed import VALUES as DEEPSPEED_VALUES
from atoll.export.deepspeed import deepspeed
from atoll.export.deepspeed import runs_as as deepspeed_runs_as
from atoll.export.megatron import megatron
from atoll.export.megatron import runs_as as megatron_runs_as
from atoll.export.megatron_core import VALUES as MEGATRON_VALUES
from atoll.export.nemo import nemo
from atoll.export.plan import Exporter, make_plan
from atoll.export.torchtitan import VALUES as TORCHTITAN_VALUES
from atoll.export.torchtitan import runs_as as torchtitan_runs_as
from atoll.export.torchtitan import torchtitan
from atoll.registry import Registry
from atoll.step.layout import Layout
from atoll.step.stages import even_sizes
from atoll.training.run import Run
from atoll.workload.families.model_config import ModelConfig

EXPORTERS = Registry(
    "exporters",
    Exporter,
    (
        Exporter("megatron", megatron, MEGATRON_VALUES, megatron_runs_as),
        Exporter("torchtitan", torchtitan, TORCHTITAN_VALUES, torchtitan_runs_as),
        Exporter("deepspeed", deepspeed, DEEPSPEED_VALUES, deepspeed_runs_as),
        Exporter("nemo", nemo, MEGATRON_VALUES, lambda precision: {"stack": "nemo"}),
    ),
)

__all__ = [
    "EXPORTERS",
    "Exporter",
    "export",
    "export_run",
    "launch_files",
    "refusals",
]


def export(
    target: str,
    model: ModelConfig,
    layout: Layout,
    *,
    sequence: int,
    global_batch: int,
    precision: str = "bf16",
    devices_per_node: int = 8,
    stages: Sequence[int] | None = None,
    exchanges_heads: bool = False,
    hides_tensor: bool = False,
) -> LaunchFile:
    """The launch file of `target`. `stages`: blocks of each model chunk, in the model's order."""
    exporter = EXPORTERS[target]
    plan = make_plan(
        model,
        layout,
        sequence,
        global_batch,
        precision,
        devices_per_node,
        stages,
        exchanges_heads,
        hides_tensor,
    )
    return exporter.write(plan)


def export_run(target: str, run: Run, layout: Layout) -> LaunchFile:
    """The launch file of a training run under a layout, its stages as they were estimated."""
    if run.adapters is not None:
        raise AtollError(f"{target}: launch files that are written here train all weights")
    made = export(
        target,
        run.model,
        layout,
        sequence=run.sequence,
        global_batch=run.global_batch,
        precision=run.precision,
        devices_per_node=run.network.node,
        stages=layout.blocks or even_sizes(run.model.layers, layout.pp * layout.rounds),
        exchanges_heads=run.stack.gives_heads(run.model.kv_heads // layout.tp, layout.cp),
        hides_tensor=run.stack.overlap.tensor_products > 0,
    )
    return replace(made, notes=(*made.notes, *_unsaid(target, run)))


def _unsaid(target: str, run: Run) -> Iterator[str]:
    """What the estimate has and the file does not say."""
    usual = EXPORTERS[target].runs_as(run.precision).get("optimizer", "mixed")
    if run.states.name != usual:
        yield (
            f"The estimate has {run.states.name} optimizer states, the file those that its tool "
            f"keeps ({usual}): memory and step differ; --optimizer {usual} says what the file "
            "takes."
        )
    if run.stack.graphs:
        yield (
            f"The estimate has CUDA graphs ({run.stack.graphs}), of which the file says nothing: "
            "without them steps take longer wherever launches bind."
        )
    if run.attention == "unfused":
        yield (
            "The estimate has unfused attention, of which the file says nothing: with the tool's "
            "own kernel a step is shorter."
        )


def launch_files(run: Run, layout: Layout) -> tuple[LaunchFile, ...]:
    """The launch file of every tool that can say the layout; of the others, why not."""
    found = []
    for target in EXPORTERS:
        try:
            found.append(export_run(target, run, layout))
        except AtollError as error:
            found.append(LaunchFile(target=target, refused=str(error)))
    return tuple(found)


def refusals(target: str, run: Run) -> Callable[[Layout], str | None]:
    """For layouts of a run: why the target cannot run one, or nothing where it can."""
    EXPORTERS[target]  # refused before any layout is

    def refusal(layout: Layout) -> str | None:
        try:
            export_run(target, run, layout)
        except AtollError as error:
            return str(error)
        return None

    return refusal
