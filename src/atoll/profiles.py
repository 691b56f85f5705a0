"""The profiles by name: `DEFAULT` models bandwidth, vector traffic and memory; `PHAZE` has the
assumptions of the PHAZE system, for comparison."""

from __future__ import annotations

from dataclasses import replace

from atoll.base.registry import Registry
from atoll.cost.model import COST_MODELS
from atoll.phaze.profile import PHAZE
from atoll.profile import Profile
from atoll.questions import SearchQuestion

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
    placer=None,
    template="physical-7nm",
    widens_space=True,
    stalls=True,
)

PROFILES = Registry("profiles", Profile, (DEFAULT, PHAZE))


def job_profile(job: SearchQuestion) -> Profile:
    """Return the profile of a job, with the cost model that it names."""
    profile = PROFILES[job.profile]
    if job.cost_model is None:
        return profile
    return replace(profile, cost_model=COST_MODELS[job.cost_model])
