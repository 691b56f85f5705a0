"""The assumptions of PHAZE (ICML 2024), with correct units, the weight-gradient products, the
microbatch and a core count that matters.

Constants of the release: 128 words per cycle from DRAM and 256 from the GLB, two bytes per word, at
1.05 GHz; flat 4 GiB/s network; SGD; whole-stage activation recomputation.
"""

from __future__ import annotations

from atoll.hardware.silicon.systolic import CLOCK_HZ, SYSTOLIC
from atoll.phaze.placer import PhazePlacer
from atoll.profile import Profile

PHAZE = Profile(
    name="phaze",
    attention="unfused",
    fusion="phaze",
    sequence_parallel=False,
    glb_share=1.0,
    tensor_slots=1 << 20,
    vector_operations="phaze",
    vector_memory=False,
    free_spread=False,
    link_on_vector=True,
    hbm_bandwidth_Bps=128 * 2 * CLOCK_HZ,
    glb_bandwidth_Bpc=256 * 2.0,
    network="flat-4gib",
    optimizer="sgd",
    placer=PhazePlacer(),
    template=SYSTOLIC.name,
    widens_space=False,
    stalls=False,
)
