"""The type of profiles: assumptions of a question (listed in `profiles.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atoll.hardware.template.cores import CostModel
    from atoll.placement.chain import Placer


@dataclass(frozen=True, slots=True)
class Profile:
    """One set of assumptions."""

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
    """Number of tensor operators that may share the buffer at once."""
    vector_operations: str
    """Operations of vector functions: "default" or "phaze" (`cost.vector`)."""
    vector_memory: bool
    """Whether bytes of vector operators take time."""
    free_spread: bool
    """Spread an operator over any power of two of cores; otherwise over one or all."""
    link_on_vector: bool
    """Collectives occupy a vector core (PHAZE) rather than the network port."""
    hbm_bandwidth_Bps: float | None
    """Overrides the chip's HBM bandwidth if the profile fixes it."""
    glb_bandwidth_Bpc: float | None
    """Overrides the chip's GLB bandwidth (bytes per clock) if the profile fixes it."""
    network: str
    """Name of the default network in the catalogue."""
    optimizer: str
    """Name of the optimizer states (`step.states`)."""
    placer: Placer | None
    """Placement with data, tensor and pipeline parallelism alone; None: the planner's layouts."""
    template: str
    """Chip template of questions that name neither a template nor a space."""
    widens_space: bool
    """Whether a larger area limit adds larger chips to PHAZE's space."""
    stalls: bool
    """Whether the stalls of chips and templates count."""
    cost_model: CostModel | None = None
    """Cost model of products; None: the default mapper."""

    def hbm_Bps(self, own_Bps: float) -> float:
        """Return the HBM bandwidth under this profile."""
        return self.hbm_bandwidth_Bps or own_Bps
