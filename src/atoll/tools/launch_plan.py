"""A checked training run, as writers of launch files take it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from atoll.base.errors import AtollError, check_count
from atoll.step.layout import Layout, check_layout, divisors
from atoll.step.stages import even_sizes
from atoll.workload.families.model_config import ModelConfig

SettingValue = bool | int | float | str | None | Sequence[str] | Sequence[Sequence[str]]
Settings = dict[str, SettingValue]
"""Fields of a tool's configuration by the tool's names."""

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
    """Processes per node, one per device."""
    stages: tuple[int, ...]
    """Blocks per model chunk, in the model's order."""
    exchanges_heads: bool = False
    """Context parallelism by heads (all-to-all) instead of a ring."""
    hides_tensor: bool = False
    """Tensor collectives overlap with the adjacent products."""

    @property
    def microbatches(self) -> int:
        return self.layout.microbatches(self.global_batch)

    def slurm_job(self, start: str) -> str:
        """Return a Slurm command that starts it; the batch job runs on the first node."""
        job = f"export MASTER_ADDR=$(hostname); srun {start}"
        return (
            f"sbatch --nodes {self.nodes} --ntasks-per-node 1 --gpus-per-node {self.per_node} "
            f"--exclusive --wrap {shlex.quote(job)}"
        )

    @property
    def even(self) -> bool:
        """Whether all model chunks have the same number of blocks."""
        return len(set(self.stages)) == 1

    @property
    def title(self) -> str:
        """One-line description of the run, for comments."""
        name = " ".join(self.model.name.split())
        return (
            f"{name}, {self.layout}, {self.layout.devices} devices, sequence "
            f"{self.sequence}, global batch {self.global_batch}, {self.precision}"
        )


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
    # Launchers start as many processes on every node.
    per_node = max(size for size in divisors(layout.devices) if size <= devices_per_node)
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


def _stages(requested: Sequence[int] | None, layers: int, chunks: int) -> tuple[int, ...]:
    if requested is None:
        return even_sizes(layers, chunks)
    stages = tuple(requested)
    if len(stages) != chunks or sum(stages) != layers or min(stages) < 1:
        raise AtollError(
            f"stages are {list(stages)}, but must be {chunks} positive numbers, one a model "
            f"chunk, that sum up to the model's {layers} blocks"
        )
    return stages


def refuse(target: str, reason: str) -> AtollError:
    """Return the error for a layout that a target cannot express."""
    return AtollError(f"export to {target}: {reason}")


def check(target: str, reasons: Iterable[str]) -> None:
    """Raise the first reason why a target cannot express a layout, if any."""
    for reason in reasons:
        raise refuse(target, reason)
