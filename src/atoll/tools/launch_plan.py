"""A checked training run, as writers of launch files take it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pprint import pformat
from string import Template
from typing import Any

from atoll.base.errors import AtollError, UnusableError, check_count
from atoll.step.layout import Layout, check_layout, divisors
from atoll.step.stages import even_sizes
from atoll.workload.adapters import Adapters
from atoll.workload.families.model_config import ModelConfig

Settings = dict[str, Any]
"""Fields of a tool's configuration by the tool's names."""
ADDRESS = "${MASTER_ADDR:?set it to the address of node 0}"
"""Address of the first node, or the shell's error."""
TRIAL_STEPS = 20
"""Steps of a run whose length is not given."""
SAVE_INTERVAL = 500
"""Steps between checkpoints of such a run."""
LEARNING_RATE = "3e-4"
"""Default peak learning rate of pretraining, that of Llama 2 7B (Touvron et al., 2023)."""


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """One checked training run."""

    model: ModelConfig
    layout: Layout
    sequence: int
    global_batch: int
    nodes: int
    per_node: int
    """Processes per node, one per device."""
    stages: tuple[int, ...]
    """Blocks per model chunk, in the model's order."""
    precision: str = "bf16"
    exchanges_heads: bool = False
    """Context parallelism by heads (all-to-all) instead of a ring."""
    hides_tensor: bool = False
    """Tensor collectives overlap with the adjacent products."""
    method: str = "pretrain"
    """What is trained: pretrain and sft train all weights, lora trains adapters."""
    adapters: Adapters | None = None
    attention: str = ""
    """Attention kernel (`training.site.Attention`); empty: the tool's."""
    loss_chunks: int = 1
    """Parts of a microbatch's tokens whose loss is computed one after another."""
    steps: int = TRIAL_STEPS
    """Optimizer steps."""
    save_interval: int | None = None
    """Optimizer steps between checkpoints, if the run's length is given."""
    software: tuple[str, ...] = ()
    """Words of `--overlap` and `--flags` that the run has beside its tool's own."""
    versions: str = ""
    """Releases of the tool for which its file is written."""
    carried: Settings = field(default_factory=dict)
    """Arguments of the user's own file of the tool, which no layout changes."""
    variables: Mapping[str, str | None] = field(default_factory=dict)
    """Variables of that file, with their values; None: no argument has it."""
    source: str = ""
    """Name of that file."""

    @property
    def microbatches(self) -> int:
        return self.layout.microbatches(self.global_batch)

    @property
    def torchrun(self) -> str:
        """Command that starts one process per device, on every node alike."""
        if self.nodes == 1:
            return f"torchrun --nproc-per-node {self.per_node}"
        return (
            f"torchrun --nnodes {self.nodes} --nproc-per-node {self.per_node} "
            f"--rdzv-backend c10d --rdzv-endpoint {ADDRESS}:29500"
        )

    def header(self, start: str, *more: str) -> str:
        """Return the comments that open a launch file: run, release of the tool, how to start it.
        Slurm runs a batch job on the first node.
        """
        job = f"export MASTER_ADDR=$(hostname); srun {start}"
        if self.nodes > 1 and ADDRESS in start:
            address = "export MASTER_ADDR=<address of node 0>"
            start = f"On each of the {self.nodes} nodes: {address}; {start}"
        elif self.nodes > 1:
            values = "NODE_RANK=i MASTER_ADDR=<address of node 0>"
            start = f"On node i of {self.nodes}, counted from 0: {values} {start}"
        else:
            start = f"Start: {start}"
        lines = (
            self.title,
            f"Written for {self.versions}.",
            start,
            f"Under Slurm: sbatch --nodes {self.nodes} --ntasks-per-node 1 --gpus-per-node "
            f"{self.per_node} --exclusive --wrap {shlex.quote(job)}",
            *more,
        )
        return "\n".join(f"# {line}" for line in lines)

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
    devices_per_node: int = 8,
    stages: Sequence[int] | None = None,
    **more: Any,
) -> LaunchPlan:
    """Return the checked plan; `more` are further fields of it."""
    check_count("sequence", sequence)
    check_count("global batch", global_batch)
    check_count("devices per node", devices_per_node)
    check_layout(layout, model, layout.devices, global_batch, sequence)
    # Launchers start as many processes on every node.
    per_node = max(size for size in divisors(layout.devices) if size <= devices_per_node)
    return LaunchPlan(
        model=model,
        layout=layout,
        sequence=sequence,
        global_batch=global_batch,
        nodes=layout.devices // per_node,
        per_node=per_node,
        stages=_stages(stages, model.layers, layout.pp * layout.rounds),
        **more,
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


def trial_note(*variables: str) -> str:
    """Return what a file trains until its user sets its variables."""
    nothing = " and saves nothing" if "SAVE" in variables else ""
    names = ", ".join(variables)
    return f"As it is, the file trains on random tokens{nothing}: set {names} at its top."


def refuse(target: str, reason: str) -> AtollError:
    """Return the error for a layout that a target cannot express."""
    return AtollError(f"export to {target}: {reason}")


def refuse_model(target: str, reason: str) -> UnusableError:
    """Return the error for a model that a target cannot train under any layout."""
    return UnusableError(str(refuse(target, reason)))


def check(target: str, reasons: Iterable[str]) -> None:
    """Raise the first reason why a target cannot express a layout, if any."""
    for reason in reasons:
        raise refuse(target, reason)


GROWING = "ALLOC_CONF=expandable_segments:True"
"""Setting of PyTorch's allocator: segments that grow."""


def literal(value: Mapping[str, Any]) -> str:
    """Return a mapping as Python writes it, over several lines."""
    return pformat(dict(value), width=96, sort_dicts=False)


def fill_script(
    folder: str, plan: LaunchPlan, header: str, settings: Mapping[str, Any], **values: str
) -> str:
    """Return the tool's script with its settings, which readers find as the literal SETTINGS."""
    text = (files(f"atoll.tools.{folder}") / "script.py.txt").read_text(encoding="utf-8")
    usual = {"rate": LEARNING_RATE, "save_interval": str(plan.save_interval or SAVE_INTERVAL)}
    words = {**usual, **values, "header": header, "settings": literal(settings)}
    return Template(text).substitute(words)
