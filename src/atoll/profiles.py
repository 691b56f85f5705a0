"""The profiles by name: `DEFAULT` is physically honest, `PHAZE` has the assumptions of the PHAZE
system, so that the two can be laid side by side."""

from __future__ import annotations

from atoll.phaze.profile import PHAZE
from atoll.placement.placer import ExactPlacer
from atoll.profile import Profile
from atoll.registry import Registry

DEFAULT = Profile(
    name="default",
    attention="flash",
    fusion="default",
    sequence_parallel=True,
    glb_share=0.5,
    tensor_slots=2,
    vector_operations="default",
    vector_memory=True,
    free_spread=True,
    link_on_vector=False,
    hbm_bandwidth_Bps=None,
    glb_bandwidth_Bpc=None,
    network="dgx-a100",
    optimizer="mixed",
    placer=ExactPlacer(),
    widens_space=True,
)

PROFILES = Registry("profiles", Profile, (DEFAULT, PHAZE))
