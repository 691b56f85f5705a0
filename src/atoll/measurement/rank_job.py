"""Description of one rank of a layout, as a child process runs it: plain data, stored as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

GIB = 2**30


@dataclass(frozen=True)
class RankJob:
    """One rank of one layout: the model, the parallel degrees, the software's choices."""

    id: str
    tool: str
    """transformers (FSDP2, DDP, PEFT, DTensor tensor parallelism) or torchtitan."""
    config: dict[str, Any]
    """Hugging Face configuration; its number of layers is that of the whole model."""
    rank: int = 0
    tp: int = 1
    fsdp: int = 1
    """Ranks that divide weights, gradients and optimizer states."""
    replicate: int = 1
    """Replicas of that group; without such a group the ranks of DistributedDataParallel."""
    pp: int = 1
    stage: int = 0
    blocks: tuple[int, int] | None = None
    """First block of the stage and the one after its last; None: all blocks."""
    microbatch: int = 1
    sequence: int = 4096
    microbatches: int = 1
    recompute: str = "none"
    """none, full, alternate (every second product) or every-second-block."""
    weights: str = "fp32"
    compute: str = "bf16"
    reduce: str = "fp32"
    reshard: bool = True
    """Whether weights are divided again after the forward pass (ZeRO 3)."""
    compiled: bool = False
    clip: bool = True
    lora_rank: int = 0
    lora_targets: tuple[str, ...] = ()
    steps: int = 2
    memory_bytes: int = 0
    """Limit of the allocator; 0: the device's memory."""
    labels: dict[str, Any] = field(default_factory=dict)
    """Cells that go into the row unchanged."""

    @property
    def world(self) -> int:
        """Devices of the layout."""
        return self.tp * self.fsdp * self.replicate * self.pp

    @property
    def last(self) -> bool:
        """Whether the rank computes the loss."""
        return self.stage == self.pp - 1

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults."""
        defaults = {f.name: f.default for f in fields(self)}
        return {
            name: value
            for name, value in asdict(self).items()
            if value != defaults[name] and value != {}
        }

    @classmethod
    def from_dict(cls, contents: dict[str, Any]) -> RankJob:
        """Return the job that `to_dict` described."""
        lists = {n: tuple(v) for n, v in contents.items() if isinstance(v, list)}
        return cls(**contents | lists)
