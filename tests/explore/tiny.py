"""Tiny models and small random spaces, small enough to try everything."""

from __future__ import annotations

import numpy as np

from atoll.explore.layouts import Setting
from atoll.explore.workloads import Variants, Workload, make_variants
from atoll.fabric.network import Level, Network
from atoll.hardware import GIB, MIB, Axes, GlbBandwidth, Hbm, Limits, Space, build_space
from atoll.profile import Profile
from atoll.step.states import load_states
from atoll.workload import ModelConfig, config_from_hf

NETWORK = Network(
    "test", (Level("node", 4, 100e9, 2e-6), Level("cluster", 1 << 20, 10e9, 8e-6))
)


def tiny_config(layers: int, hidden: int, heads: int, vocab: int = 512) -> ModelConfig:
    fields = {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "intermediate_size": 3 * hidden,
        "vocab_size": vocab,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    }
    return config_from_hf(fields, "tiny")


def tiny_variants(
    profile: Profile,
    devices: int,
    *,
    layers: int = 3,
    hidden: int = 256,
    sequence: int = 128,
    batch: int = 16,
    recompute: str = "optimal",
) -> Variants:
    workload = Workload("tiny", tiny_config(layers, hidden, 4), sequence, batch)
    return make_variants([workload], (1, 2, 4), (1, 2), devices, recompute, profile)


def tiny_setting(profile: Profile, devices: int, recompute: str = "optimal") -> Setting:
    network = NETWORK if not profile.whole_stage_recompute else Network(
        "flat", (Level("all", 1 << 20, 4e9, 0.0),)
    )
    return Setting(network, profile, load_states(profile.optimizer), devices, recompute)


def random_space(seed: int, chips: int, hbm_bytes: tuple[int, ...] = (16 * GIB,)) -> Space:
    """A random part of a product space of some thousand chips."""
    axes = Axes(
        tensor_cores=(1, 2, 4, 8, 16),
        vector_cores=(1, 2, 8, 32),
        width=(8, 16, 32, 64),
        depth=(8, 16, 32, 64),
        glb_bytes=(1 * MIB, 2 * MIB, 8 * MIB),
        vector_width=(16, 64),
    )
    options = tuple(Hbm(size, 200e9) for size in hbm_bytes)
    whole = build_space("random", axes, options, GlbBandwidth(per_mib_Bpc=128.0), Limits())
    chosen = np.random.default_rng(seed).choice(len(whole), size=chips, replace=False)
    return whole.subset(np.sort(chosen))
