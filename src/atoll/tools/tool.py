"""Description of a training tool: what it can run, how fast, and its launch files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from atoll.answers.layout import LaunchFile
from atoll.files.yamlfile import shipped_table
from atoll.tools.launch_plan import LaunchPlan

AxisValues = Mapping[str, tuple[Any, ...]]
UNRESTRICTED = "none"
"""Name of the tool that runs every layout."""
Writer = Callable[[LaunchPlan], LaunchFile]


@dataclass(frozen=True)
class Tool:
    """A training tool: the software of its runs, the layouts that it can run, and its files."""

    name: str
    title: str
    """Name as its authors write it."""
    software: str
    """Stack that its runs have (`STACKS`); empty: that of the device."""
    versions: str = ""
    """Releases that its files are written for and checked against."""
    aliases: tuple[str, ...] = ()
    """Other names of it, as options and earlier releases of Atoll have them."""
    software_by_precision: Mapping[str, str] = field(default_factory=dict)
    """Stacks of precisions for which the software differs."""
    overlap: str | None = None
    """Overlaps that its launch files switch on (`software.OVERLAPS`)."""
    optimizer: str | None = None
    """Its optimizer states, where they are not those of the question's default."""
    optimizer_by_method: Mapping[str, str] = field(default_factory=dict)
    """Its optimizer states for methods for which they differ."""
    attention: str | None = None
    """Attention kernel that its runs have, where it is not the fastest."""
    flags: str | None = None
    """Kernels and losses that its runs have by default (`software.FLAGS`)."""
    zero: int = 1
    """ZeRO stage of a layout that names none."""
    selective: str = "selective"
    """Recomputation that its word "selective" means."""
    axes: AxisValues = field(default_factory=dict)
    """Values of a plan's axes that it can run; axes that are not listed are free."""
    zero_beside_parallel: tuple[int, ...] = ()
    """ZeRO stages that it runs beside tensor or context parallelism; empty: all."""
    precisions: tuple[str, ...] = ("bf16", "fp16")
    stated: tuple[str, ...] = ()
    """Words of `--overlap` and `--flags` that its launch files state as arguments."""
    methods: tuple[str, ...] = ("pretrain", "sft")
    write: Writer | None = field(default=None, repr=False)
    """Return the launch file of a run, or raise an AtollError that says why the tool cannot run it.
    None: files of the tool are not written."""

    def runs_as(self, precision: str, method: str = "pretrain") -> dict[str, str]:
        """Return `stack`, `optimizer`, `overlap`, `attention` and `flags` of its runs on GPUs."""
        settings = {
            "stack": self.software_by_precision.get(precision, self.software) or None,
            "overlap": self.overlap,
            "optimizer": self.optimizer_by_method.get(method, self.optimizer),
            "attention": self.attention,
            "flags": self.flags,
        }
        return {name: value for name, value in settings.items() if value is not None}

    def usual_zero(self, ranks: int) -> int:
        """Return the ZeRO stage of a layout that names none, over so many data-parallel ranks."""
        return self.zero if ranks > 1 or self.zero < 2 else 0

    def policy(self, word: str) -> str:
        """Return the recomputation policy that the tool means by a word."""
        return self.selective if word == "selective" else word

    def inabilities(self, plan: LaunchPlan) -> Iterator[str]:
        """Yield why it cannot run a plan, where its axes and precisions say so."""
        layout = plan.layout
        free = {"sp"} if layout.tp == 1 else set()
        if layout.pp == 1 or layout.schedule == "interleaved":  # 1f1b of several chunks
            free.add("schedule")
        for name, allowed in {**self.axes, "precision": self.precisions}.items():
            value = plan.precision if name == "precision" else getattr(layout, name)
            if name not in free and value not in allowed:
                words = " or ".join(map(str, allowed))
                yield f"it runs {name} {words}, not {value}; choose one of these"


def load_tool(package: str, write: Writer | None = None) -> Tool:
    """Load the tool that `tool.yaml` of a package describes."""
    entry = shipped_table(package, "tool.yaml")
    values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in entry.items()}
    values.pop("stacks", None)  # `stack.STACKS`
    values["axes"] = {axis: tuple(allowed) for axis, allowed in entry["axes"].items()}
    return Tool(**values, write=write)
