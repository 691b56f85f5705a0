"""What every exporter is given, and what it hands back."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atoll.answers.layout import LaunchFile
from atoll.errors import AtollError, check_count
from atoll.files.yamlfile import shipped_table
from atoll.step.layout import Layout, check_layout
from atoll.step.stages import even_sizes
from atoll.workload.families.model_config import ModelConfig

Values = dict[str, tuple[Any, ...]]
Setting = bool | int | float | str | None | Sequence[str] | Sequence[Sequence[str]]
Settings = dict[str, Setting]
"""Fields of a tool's configuration, by its own names."""

KNOWN: Mapping[str, Any] = shipped_table("atoll.export", "known.yaml")
"""What tools know of models, under their own names."""
PRECISIONS = ("bf16", "fp16", "fp8", "mxfp8", "nvfp4")


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """One checked training run."""

    model: ModelConfig
    layout: Layout
    sequence: int
    global_batch: int
    precision: str
    nodes: int
    per_node: int
    """Processes on each node, one a device."""
    stages: tuple[int, ...]
    """Blocks of each model chunk, in the model's order."""
    exchanges_heads: bool = False
    """Context parallelism by heads (all-to-all) instead of a ring."""
    hides_tensor: bool = False
    """Tensor collectives run inside the products beside them."""

    @property
    def microbatches(self) -> int:
        return self.layout.microbatches(self.global_batch)

    def slurm_job(self, start: str) -> str:
        """A command that starts it under Slurm, whose batch job runs on the first node."""
        job = f"export MASTER_ADDR=$(hostname); srun {start}"
        return (
            f"sbatch --nodes {self.nodes} --ntasks-per-node 1 --gpus-per-node {self.per_node} "
            f"--exclusive --wrap {shlex.quote(job)}"
        )

    @property
    def even(self) -> bool:
        """All model chunks hold the same number of blocks."""
        return len(set(self.stages)) == 1

    @property
    def title(self) -> str:
        """The run on one line, for comments."""
        name = " ".join(self.model.name.split())
        return (
            f"{name}, {self.layout}, {self.layout.devices} devices, sequence "
            f"{self.sequence}, global batch {self.global_batch}, {self.precision}"
        )


@dataclass(frozen=True, slots=True)
class Exporter:
    """A training tool that launch files are written for."""

    name: str
    write: Callable[[LaunchPlan], LaunchFile]
    """The file of a run, or one AtollError that says why the tool cannot run it so."""
    values: Values = field(default_factory=dict)
    """What a plan for the tool tries on some axes, unless it is told otherwise."""
    runs_as: Callable[[str], Mapping[str, str]] = field(default=lambda precision: {})
    """`stack`, `optimizer` and `overlap` of a run of its file on GPUs, by precision, unless told
    otherwise.
    """


def make_plan(
    model: ModelConfig,
    layout: Layout,
    sequence: int,
    global_batch: int,
    precision: str,
    devices_per_node: int,
    stages: Sequence[int] | None,
    exchanges_heads: bool = False,
    hides_tensor: bool = False,
) -> LaunchPlan:
    check_count("sequence", sequence)
    check_count("global batch", global_batch)
    check_count("devices per node", devices_per_node)
    check_layout(layout, model, layout.devices, global_batch, sequence)
    if precision not in PRECISIONS:
        raise AtollError(f"precision is {precision!r}, but exports know {', '.join(PRECISIONS)}")
    per_node = min(devices_per_node, layout.devices)
    if layout.devices % per_node:
        raise AtollError(
            f"the layout has {layout.devices} devices, which do not fill nodes of "
            f"{devices_per_node}; change the layout or the devices per node"
        )
    chunks = layout.pp * layout.rounds
    return LaunchPlan(
        model=model,
        layout=layout,
        sequence=sequence,
        global_batch=global_batch,
        precision=precision,
        nodes=layout.devices // per_node,
        per_node=per_node,
        stages=_stages(stages, model.layers, chunks),
        exchanges_heads=exchanges_heads,
        hides_tensor=hides_tensor,
    )


def _stages(given: Sequence[int] | None, layers: int, chunks: int) -> tuple[int, ...]:
    if given is None:
        return even_sizes(layers, chunks)
    stages = tuple(given)
    if len(stages) != chunks or sum(stages) != layers or min(stages) < 1:
        raise AtollError(
            f"stages are {list(stages)}, but must be {chunks} positive numbers, one a model "
            f"chunk, that sum up to the model's {layers} blocks"
        )
    return stages


def refuse(target: str, reason: str) -> AtollError:
    """The error for a layout that a target cannot say."""
    return AtollError(f"export to {target}: {reason}")


def check(target: str, reasons: Iterable[str]) -> None:
    """Raise the first reason why a target cannot say a layout, if there is one."""
    for reason in reasons:
        raise refuse(target, reason)
