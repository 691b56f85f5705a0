"""Tiny models and small random spaces, small enough to try everything."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from atoll.explore.pricing.layouts import SearchSetting
from atoll.explore.pricing.workloads import Spreads, Variants, Workload, make_variants
from atoll.fabric.network import FabricLevel, Network
from atoll.hardware.accelerator import GIB, MIB, GlbBandwidth, Hbm
from atoll.hardware.product_space import ProductSpace
from atoll.hardware.silicon.systolic import SYSTOLIC
from atoll.hardware.space import DesignAxes, DesignLimits, DesignSpace
from atoll.hardware.template.template import ChipTemplate
from atoll.profile import Profile
from atoll.profiles import PHAZE
from atoll.step.layout import ZERO_STAGES
from atoll.step.orders import ORDERS
from atoll.step.states import load_states
from atoll.workload import ModelConfig, config_from_hf

NETWORK = Network(
    "test", (FabricLevel("node", 4, 100e9, 2e-6), FabricLevel("cluster", 1 << 20, 10e9, 8e-6))
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


def tiny_setting(profile: Profile, devices: int, recompute: str = "optimal") -> SearchSetting:
    network = (
        NETWORK
        if profile is not PHAZE
        else Network("flat", (FabricLevel("all", 1 << 20, 4e9, 0.0),))
    )
    states = load_states(profile.optimizer)
    return SearchSetting(
        network=network, profile=profile, states=states, devices=devices, recompute=recompute
    )


def random_space(
    seed: int,
    chips: int,
    hbm_bytes: tuple[int, ...] = (16 * GIB,),
    hbm_Bps: tuple[float, ...] = (200e9,),
    template: ChipTemplate = SYSTOLIC,
) -> DesignSpace:
    """A random part of a product space of some thousand chips."""
    axes = DesignAxes.with_defaults(
        template,
        tensor_cores=(1, 2, 4, 8, 16),
        vector_cores=(1, 2, 8, 32),
        width=(8, 16, 32, 64),
        depth=(8, 16, 32, 64),
        glb_bytes=(1 * MIB, 2 * MIB, 8 * MIB),
        vector_width=(16, 64),
    )
    options = tuple(Hbm(size, speed) for size in hbm_bytes for speed in hbm_Bps)
    whole = ProductSpace(
        "random", axes, options, GlbBandwidth(per_mib_Bpc=128.0), DesignLimits()
    ).build()
    chosen = np.random.default_rng(seed).choice(len(whole), size=chips, replace=False)
    return whole.subset(np.sort(chosen))


def _fields(family: str, layers: int, hidden: int, heads: int) -> dict[str, Any]:
    common = {
        "model_type": family,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "intermediate_size": 2 * hidden,
        "vocab_size": 512,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
    }
    return (
        common
        | {
            "llama": {},
            "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
            "bert": {"type_vocab_size": 2},
            "vit": {"image_size": 64, "patch_size": 8},
            "t5": {
                "d_model": hidden,
                "num_layers": 1,
                "num_decoder_layers": layers - 1,
                "num_heads": heads,
                "d_kv": hidden // heads,
                "d_ff": 2 * hidden,
            },
        }[family]
    )


FAMILIES = ("llama", "mixtral", "bert", "vit", "t5")


@dataclass(frozen=True)
class DrawnJob:
    """A small search in which anything may bind: cores, buffer, HBM, links, memory, rounds."""

    space: DesignSpace
    variants: Variants
    setting: SearchSetting
    batch: int


WIDE = Spreads(cp=(1, 2), ep=(1, 2, 4), sp=(True, False), apart=True)


def drawn_job(
    seed: int,
    chips: int,
    profile: Profile,
    template: ChipTemplate = SYSTOLIC,
    *,
    wide: bool = False,
) -> DrawnJob:
    """A random job; the family and whether tensor widths exceed 1 follow the seed in turn. With
    `wide` over every axis of a layout, otherwise over data, tensor and pipeline parallelism.
    """
    rng = np.random.default_rng(seed)
    layers, heads = int(rng.integers(2, 4)), 4
    hidden = int(rng.choice([64, 128, 256]))
    fields = _fields(FAMILIES[seed % 5], layers, hidden, heads)
    if wide and seed % 3 == 0:  # the head is worth several blocks
        fields["vocab_size"] = 16 * hidden * layers
    config = config_from_hf(fields, "drawn")
    sequence = config.sequence if FAMILIES[seed % 5] == "vit" else int(rng.choice([64, 128, 256]))
    devices = int(rng.choice([4, 6, 8, 12]))
    batch = int(rng.choice([4, 8, 32]))
    widths = ((2,), (2, 4), (1, 2))[int(rng.integers(3))] if seed % 2 else (1,)
    microbatches = ((4,), (1, 2), (2, 4))[int(rng.integers(3))]
    variants = make_variants(
        [Workload("drawn", config, sequence, batch)], microbatches, widths, devices, "optimal",
        profile, spreads=WIDE if wide else Spreads(),
    )  # fmt: skip
    inside, outside = 10 ** rng.uniform(10.0, 12.5), 10 ** rng.uniform(9.5, 11.0)
    levels = (
        FabricLevel("node", 4, inside, 10 ** rng.uniform(-8.0, -5.5)),
        FabricLevel("cluster", 1 << 20, outside, 10 ** rng.uniform(-6.0, -5.0)),
    )
    network = Network("drawn", levels)
    states = load_states(profile.optimizer)
    setting = SearchSetting(
        network=network, profile=profile, states=states, devices=devices, recompute="optimal"
    )
    if wide:
        setting = replace(setting, zero=ZERO_STAGES, orders=ORDERS, hsdp=())
    memory = (int(10 ** rng.uniform(6.5, 8.0)) if rng.random() < 0.4 else 16 * GIB,)
    speeds = tuple(10 ** rng.uniform(10.0, 12.0, int(rng.integers(1, 3))))
    space = random_space(seed, chips, memory, speeds, template)
    return DrawnJob(space, variants, setting, batch)
