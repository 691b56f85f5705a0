"""What a profile is: the assumptions under which a question is asked (listed in `profiles.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atoll.hardware.template.cores import CostModel
    from atoll.placement.placer import Placer


@dataclass(frozen=True, slots=True)
class Profile:
    """One set of assumptions, read by every package below the workload."""

    name: str
    attention: str
    """"flash" (one fused operator) or "unfused" (scores go through memory)."""
    fusion: str
    """Fusion level of the workload: "default" or "phaze"."""
    sequence_parallel: bool
    """Sequence parallelism wherever the tensor width exceeds one."""
    glb_share: float
    """Part of the shared buffer that one tensor operator may fill."""
    tensor_slots: int
    """How many tensor operators may own a part of the buffer at once."""
    vector_operations: str
    """Operations of vector functions: "default" or "phaze" (`cost.vector`)."""
    vector_memory: bool
    """Whether vector operators pay for the bytes they move."""
    free_spread: bool
    """Spread an operator over any power of two of cores; otherwise over one or all."""
    link_on_vector: bool
    """Collectives occupy a vector core (PHAZE) rather than the network port."""
    hbm_bandwidth_Bps: float | None
    """Overrides the chip's HBM bandwidth where the profile fixes it."""
    glb_bandwidth_Bpc: float | None
    """Overrides the chip's GLB bandwidth (bytes a clock) where the profile fixes it."""
    network: str
    """Name of the default network in the catalogue."""
    optimizer: str
    """States that it keeps, by name (`step.states`)."""
    placer: Placer
    """Its rule of placement: stages, memory, recomputation."""
    template: str
    """Kind of chip of questions that name neither a kind nor a space."""
    widens_space: bool
    """Whether a larger area limit adds larger chips to PHAZE's space."""
    stalls: bool
    """Whether chips lose what they, or their kind, say that they lose."""
    cost_model: CostModel | None = None
    """What prices products; none: our mapper."""

    def hbm_Bps(self, own_Bps: float) -> float:
        """Bandwidth of an HBM whose own is this."""
        return self.hbm_bandwidth_Bps or own_Bps
