"""A placement: the layers on each device, and the time and memory of a training step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from atoll.answers.answer import build_from
from atoll.answers.design import PlacedStageAnswer, PlacementAnswer


@dataclass(frozen=True)
class PlacementStage:
    """One pipeline stage, on one tensor-parallel group of devices."""

    layers: tuple[str, ...]
    """Layer names with their counts, for example ("embedding", "block x8")."""
    first: int
    last: int
    """Layers first..last-1 of the chain."""
    devices: int
    compute_s: float
    """Forward and backward of one microbatch, without recomputation."""
    recompute_s: float
    transfer_s: float
    """Seconds of transfers into this stage per microbatch, of activations and gradients."""
    receive_s: float
    """Seconds to receive one activation from the previous stage; its gradient takes as long."""
    recompute: str
    """Names of the recomputed operators."""
    memory_bytes: Mapping[str, float]
    """Bytes by part (`step.parts`)."""
    forward_s: float | None = None
    """Forward part of `compute_s`, if known."""
    weight_s: float | None = None
    """Weight gradients in `compute_s`, if the schedule runs them separately."""
    chunks: tuple[tuple[float, float, float], ...] = ()
    """Forward, backward and weight seconds of each chunk; empty for PHAZE's placement."""

    @property
    def load_s(self) -> float:
        """Return the seconds of one microbatch in this stage."""
        return self.compute_s + self.recompute_s + self.transfer_s

    @property
    def total_memory_bytes(self) -> float:
        return sum(self.memory_bytes.values())

    def answer(self) -> PlacedStageAnswer:
        parts = dict(self.memory_bytes) | {"total": self.total_memory_bytes}
        return build_from(PlacedStageAnswer, self, memory_bytes=parts)


@dataclass(frozen=True)
class Placement:
    """The distribution of one training step over all devices."""

    pipeline: int
    tensor: int
    data: int
    microbatch: int
    microbatches: int
    """Microbatches per replica and step."""
    step_time_s: float
    stages: tuple[PlacementStage, ...]
    time_parts_s: Mapping[str, float] = field(default_factory=dict)
    """Step time by cause; the parts add up to `step_time_s`."""
    schedule: str = "1f1b"
    zero: int = 0
    """ZeRO stage (`step.states`)."""
    cp: int = 1
    ep: int = 1
    etp: int | None = None
    """Tensor-parallel degree of the experts; None if it equals `tensor`."""
    vpp: int = 1
    """Chunks per stage of the interleaved schedule."""
    hsdp: int = 1
    """Replicas of the group that ZeRO divides over."""

    @property
    def devices(self) -> int:
        return self.data * sum(stage.devices for stage in self.stages)

    @property
    def layout(self) -> str:
        """Return the degrees and features of the layout in one phrase, without unused ones."""
        words = [f"pipeline {self.pipeline} x tensor {self.tensor} x data {self.data}"]
        words[0] += f" x context {self.cp}" if self.cp > 1 else ""
        if self.ep > 1 or self.etp:
            expert_words = f" of tensor width {self.etp}" if self.etp else ""
            words.append(f"experts{expert_words} over {self.ep}")
        if self.schedule != "1f1b":
            words.append(f"{self.schedule} x{self.vpp}" if self.vpp > 1 else self.schedule)
        words += [f"{self.hsdp} replicas of shards"] if self.hsdp > 1 else []
        return ", ".join(words)

    @property
    def recompute_share(self) -> float:
        """Return the seconds of recomputation per second of other computation, over all stages."""
        busy_s = sum(stage.compute_s for stage in self.stages)
        return sum(stage.recompute_s for stage in self.stages) / busy_s if busy_s else 0.0

    @property
    def recompute(self) -> str:
        """Return the recomputation of the stages in one phrase."""
        kinds = list(dict.fromkeys(stage.recompute for stage in self.stages))
        return kinds[0] if len(kinds) == 1 else "; ".join(kinds)

    def answer(self) -> PlacementAnswer:
        return build_from(
            PlacementAnswer, self, stages=tuple(stage.answer() for stage in self.stages)
        )
