"""Profiles: the assumptions under which a question is asked.

`DEFAULT` is physically honest; `PHAZE` reproduces the assumptions of the PHAZE system (ICML 2024)
with correct units, the weight-gradient products, the microbatch and a core count that matters, so
that the two can be laid side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

from atoll.errors import AtollError


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
    vector_memory: bool
    """Whether vector operators pay for the bytes they move."""
    free_spread: bool
    """Spread an operator over any power of two of cores; otherwise over one or all."""
    link_on_vector: bool
    """Collectives occupy a vector core (the seed) rather than the network port."""
    hbm_bandwidth_Bps: float | None
    """Overrides the chip's HBM bandwidth where the profile fixes it."""
    glb_bandwidth_Bpc: float | None
    """Overrides the chip's GLB bandwidth (bytes a clock) where the profile fixes it."""
    network: str
    """Name of the default network in the catalogue."""
    optimizer: str
    """States that it keeps, by name (`step.states`)."""
    whole_stage_recompute: bool
    """Recomputation is one global bit for whole stages (the seed) instead of per operator."""


DEFAULT = Profile(
    name="default",
    attention="flash",
    fusion="default",
    sequence_parallel=True,
    glb_share=0.5,
    tensor_slots=2,
    vector_memory=True,
    free_spread=True,
    link_on_vector=False,
    hbm_bandwidth_Bps=None,
    glb_bandwidth_Bpc=None,
    network="dgx-a100",
    optimizer="mixed16",
    whole_stage_recompute=False,
)

# Constants of the release: 128 words a cycle from DRAM and 256 from the GLB, two bytes a word, at
# 1.05 GHz; flat 4 GiB/s network; SGD; whole-stage activation recomputation.
PHAZE = Profile(
    name="phaze",
    attention="unfused",
    fusion="phaze",
    sequence_parallel=False,
    glb_share=1.0,
    tensor_slots=1 << 20,
    vector_memory=False,
    free_spread=False,
    link_on_vector=True,
    hbm_bandwidth_Bps=128 * 2 * 1.05e9,
    glb_bandwidth_Bpc=256 * 2,
    network="flat-4gib",
    optimizer="sgd",
    whole_stage_recompute=True,
)

PROFILES = {profile.name: profile for profile in (DEFAULT, PHAZE)}


def get_profile(name: str) -> Profile:
    """The profile of that name."""
    if name not in PROFILES:
        known = ", ".join(PROFILES)
        raise AtollError(f"profile: unknown profile {name!r}; known profiles are {known}.")
    return PROFILES[name]
