"""What the training tests share: small models and clusters, and random runs with their layouts."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from random import Random

import numpy as np
from hypothesis import strategies as st

from atoll.base.errors import AtollError
from atoll.fabric.network import FabricLevel, Network
from atoll.hardware.catalog import load_network
from atoll.hardware.device import TemplateChip
from atoll.hardware.gpu import Gpu, load_gpu
from atoll.step.layout import Layout, check_layout
from atoll.step.states import STATES
from atoll.tools.stack import STACKS
from atoll.training.estimate import Estimate, Estimator
from atoll.training.planner.space import Axes, block_of, families
from atoll.training.run import Run
from atoll.workload.adapters import Adapters
from atoll.workload.families.model_config import ModelConfig

GB = 1e9
GIB = 1 << 30


def dense(layers: int = 4, **changes: object) -> ModelConfig:
    """A small GPT: 8 heads of 64."""
    base = ModelConfig(
        name="small",
        family="gpt",
        hidden=512,
        layers=layers,
        heads=8,
        kv_heads=8,
        head_dim=64,
        ffn=2048,
        vocab=8192,
        max_sequence=1024,
        position_rows=1024,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def grouped(layers: int = 4, **changes: object) -> ModelConfig:
    """A small Llama with two key and value heads."""
    base = replace(
        dense(layers),
        name="small-gqa",
        family="llama",
        kv_heads=2,
        gated=True,
        activation="silu",
        norm="rmsnorm",
        positions="rotary",
        tied_embeddings=False,
        attention_bias=False,
        output_bias=False,
        mlp_bias=False,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def mixture(layers: int = 4, **changes: object) -> ModelConfig:
    """A small mixture of four experts whose first layer is dense."""
    base = replace(
        grouped(layers),
        name="small-moe",
        experts=4,
        experts_per_token=2,
        dense_layers=(0,),
        dense_ffn=1024,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


@cache
def gpu(name: str = "h100") -> Gpu:
    return load_gpu(name)


@cache
def network(name: str = "dgx-h100") -> Network:
    return load_network(name)


def flat(bandwidth_Bps: float = 10 * GB, latency_s: float = 0.0, devices: int = 4096) -> Network:
    """One level for all, at its full bandwidth."""
    return Network("flat", (FabricLevel("only", devices, bandwidth_Bps, latency_s),))


def small_run(
    model: ModelConfig | None = None, devices: int = 8, global_batch: int = 32, **changes: object
) -> Run:
    run = Run(
        model=model or dense(),
        gpu=gpu(),
        network=network(),
        devices=devices,
        sequence=1024,
        global_batch=global_batch,
        stack=STACKS["megatron"],
        states=STATES["mixed"],
    )
    return replace(run, **changes)  # type: ignore[arg-type]


def with_memory(run: Run, hbm_bytes: float) -> Run:
    """Return the run on devices with so much memory."""
    if isinstance(run.gpu, TemplateChip):
        accelerator = run.gpu.accelerator
        memory = replace(accelerator.hbm, capacity_bytes=int(hbm_bytes))
        return replace(run, gpu=replace(run.gpu, accelerator=replace(accelerator, hbm=memory)))
    return replace(run, gpu=replace(run.gpu, hbm_bytes=int(hbm_bytes)))


def all_layouts(run: Run, axes: Axes) -> list[Layout]:
    """Every layout of a space, one by one."""
    found = []
    for family in families(run, axes):
        block = block_of(run, axes, family)
        for policy in axes.recompute:
            found += block.layouts(np.arange(len(block)), policy)
    return found


def restricted(run: Run, axes: Axes, random: Random) -> Axes:
    """Some of the values that a space has on some of its axes."""
    listed = all_layouts(run, replace(axes, recompute=("none",)))
    changes: dict[str, object] = {}
    for item in fields(Axes):
        if random.random() < 0.6 or not listed:
            continue
        values = sorted({getattr(layout, item.name) for layout in listed})
        if item.name == "recompute":
            values = list(axes.recompute)
        if item.name == "schedule":
            values = list(axes.orders(run))
        changes[item.name] = tuple(random.sample(values, random.randint(1, len(values))))
    return replace(axes, **changes)  # type: ignore[arg-type]


def estimates(run: Run, axes: Axes) -> list[Estimate]:
    """Every layout of a space, estimated."""
    estimator = Estimator(run)
    return [estimator.estimate(layout) for layout in all_layouts(run, axes)]


def is_allowed(layout: Layout, run: Run) -> bool:
    try:
        check_layout(layout, run.model, run.devices, run.global_batch, run.sequence)
    except AtollError:
        return False
    return True


@st.composite
def random_runs(draw: st.DrawFn) -> Run:
    """Small models of every kind on a few devices of every kind."""
    layers = draw(st.integers(2, 7))
    kind = draw(st.sampled_from((dense, grouped, mixture)))
    model = kind(layers, vocab=draw(st.sampled_from((1000, 8192, 50257, 131072))))
    name = draw(st.sampled_from(("h100", "a100-40", "tpu-v5e")))
    run = small_run(
        model,
        devices=draw(st.sampled_from((2, 4, 8, 12, 16, 32))),
        global_batch=draw(st.sampled_from((8, 24, 32, 96))),
        gpu=gpu(name),
        network=network(gpu(name).network),
        stack=STACKS[draw(st.sampled_from(sorted(STACKS)))],
        states=STATES[draw(st.sampled_from(sorted(STATES)))],
        sequence=draw(st.sampled_from((128, 512, 1024))),
        attention=draw(st.sampled_from(("flash", "unfused"))),
        imbalance=draw(st.sampled_from((1.0, 1.5))),
        adapters=draw(st.sampled_from((None, None, Adapters(8), Adapters(4, ("q", "down"))))),
    )
    return run


WIDE = Axes(
    cp=(1, 2),
    microbatch=(1, 2),
    sp=(True, False),
    zero=(0, 1, 2, 3),
    hsdp=(1, 2, 3),
    recompute=("none", "selective", "alternate", "full"),
    schedule=("1f1b", "zb-h1", "zb-h2", "gpipe", "zb-v", "dualpipe"),
)
