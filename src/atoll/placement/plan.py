"""A placement: which layers on which devices, and what a training step costs there."""

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
    """What one microbatch waits for transfers into this stage, of activations and gradients."""
    receive_s: float
    """Transfer of one activation from the stage before; its gradient takes as long back."""
    recompute: str
    """What the stage recomputes, in words."""
    memory_bytes: Mapping[str, float]
    """By part (`step.parts`)."""
    forward_s: float | None = None
    """The forward part of `compute_s`, where it is known."""
    weight_s: float | None = None
    """The weight gradients in `compute_s`, where a schedule runs them for themselves."""
    chunks: tuple[tuple[float, float, float], ...] = ()
    """Forward, backward and weight seconds of each chunk of an even layout's stage."""

    @property
    def load_s(self) -> float:
        """What one microbatch costs this stage."""
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
    """Microbatches of one replica in one step."""
    step_time_s: float
    stages: tuple[PlacementStage, ...]
    time_parts_s: Mapping[str, float] = field(default_factory=dict)
    """The step's time by cause; the parts add up to `step_time_s`."""
    schedule: str = "1f1b"
    zero: int = 0
    """ZeRO stage: what the replicas divide (`step.states`)."""
    cp: int = 1
    ep: int = 1
    etp: int | None = None
    """Tensor width of the experts, where it is not that of the rest."""
    vpp: int = 1
    """Chunks that each stage holds where they are interleaved."""
    hsdp: int = 1
    """Replicas of the group that ZeRO divides over."""

    @property
    def devices(self) -> int:
        return self.data * sum(stage.devices for stage in self.stages)

    @property
    def layout(self) -> str:
        """Its degrees and what else it does, in one phrase; what it does not do is left out."""
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
        """Seconds of recomputation, over all stages, for each second of other computation."""
        busy_s = sum(stage.compute_s for stage in self.stages)
        return sum(stage.recompute_s for stage in self.stages) / busy_s if busy_s else 0.0

    @property
    def recompute(self) -> str:
        """The stages' recomputation in one phrase."""
        kinds = list(dict.fromkeys(stage.recompute for stage in self.stages))
        return kinds[0] if len(kinds) == 1 else "; ".join(kinds)

    def answer(self) -> PlacementAnswer:
        return build_from(
            PlacementAnswer, self, stages=tuple(stage.answer() for stage in self.stages)
        )
