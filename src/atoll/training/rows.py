"""Each row of a table of measured runs as a run and a layout."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from atoll.errors import AtollError
from atoll.hardware.catalog import load_network
from atoll.hardware.gpu import Gpu, gpu_name, load_gpu
from atoll.step.layout import Layout
from atoll.step.orders import ORDERS
from atoll.step.states import STATES
from atoll.training.memory import Memory
from atoll.training.run import Run
from atoll.training.run_table import MOST_LAYERS, RunRow
from atoll.training.sources import SourceFile, facts_of
from atoll.training.stack import load_stack
from atoll.workload.config import load_config
from atoll.workload.model_config import ModelConfig

USUAL_GB = 80
"""Of a device that comes with several sizes, where a table does not say."""


def run_of(row: RunRow) -> tuple[Run, Layout]:
    """The run and the layout that a row describes; what cannot be expressed is refused."""
    facts = facts_of(row)
    gpu = device_of(row)
    zero = row.whole("zero_stage", 1)
    if row.whole("fsdp", 0) and zero < 2:
        zero = 3
    stack_name = facts.stack or ("fsdp" if zero == 3 else "megatron")
    stack = load_stack(stack_name)
    stack = replace(
        stack,
        slack=stack.slack * facts.slack,
        loss_bytes=stack.loss_bytes if facts.loss_bytes is None else facts.loss_bytes,
    )
    precision = row.text("precision", "bf16")
    if precision not in ("bf16", "fp16", "fp8"):
        raise AtollError(f"precision {precision} is not modelled")
    half = gpu.half_dtype if precision in ("bf16", "fp16") else precision
    network = load_network(facts.network or gpu.network)
    devices = row.count("devices")
    tp, pp, cp = row.count("tp", 1), row.count("pp", 1), row.count("cp", 1)
    ep, vpp = row.count("ep", 1), row.count("vpp", 1)
    dp = row.count("dp", max(1, devices // (tp * pp * cp)))
    layout = Layout(
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        etp=row.whole("etp", tp),
        vpp=vpp,
        microbatch=row.count("micro_batch", 1),
        sp=bool(row.whole("sp", 0)),
        zero=zero,
        recompute=_recompute(row, facts),
        schedule=_schedule(row, vpp),
    )
    states = STATES[facts.states] if facts.states else STATES["mixed" if zero < 3 else "mixed16"]
    unfused = row.text("flash_attention") in ("0", "0.0")
    attention = "unfused" if unfused else facts.attention or "flash"
    run = Run(
        model=model_of(row, facts.family, facts.dropout, facts.head_dim),
        gpu=gpu,
        network=network,
        devices=devices,
        sequence=row.count("seq"),
        global_batch=row.count("global_batch"),
        stack=stack,
        states=states,
        precision=half,
        attention=attention,
    )
    return run, layout


def peak_of(row: RunRow, memory: Memory) -> float:
    """The prediction of what a row's peak counts."""
    facts = facts_of(row)
    if facts.memory == "reserved":
        return memory.reserved
    if facts.memory == "device":
        return memory.reserved + memory.context_bytes
    return memory.allocated


def _schedule(row: RunRow, vpp: int) -> str:
    given = row.text("schedule").lower()
    named = {"zb-1p": "zb-h1", "zb-2p": "zb-h2", "zbv": "zb-v"}.get(given, given)
    if named in ORDERS and named not in ("1f1b", "interleaved"):
        return named
    return "interleaved" if vpp > 1 else "1f1b"


def _recompute(row: RunRow, facts: SourceFile) -> str:
    given = row.text("recompute", "none")
    if given == "selective":
        return facts.selective
    if given not in ("none", "full", "alternate"):
        raise AtollError(f"recompute {given!r} is not modelled")
    return given


def device_of(row: RunRow) -> Gpu:
    """The catalogue's device for a table's name of it; the memory tells some apart."""
    memory_GB = row.number("device_mem_GB")
    given = "" if math.isnan(memory_GB) else f" {memory_GB:.0f}GB"
    for spelling in (row.device + given, row.device, f"{row.device} {USUAL_GB}GB"):
        if (name := gpu_name(spelling)) is not None:
            return _gpu(name)
    return load_gpu(row.device)  # which refuses it


@lru_cache(maxsize=32)
def _gpu(name: str) -> Gpu:
    return load_gpu(name)


def model_of(
    row: RunRow, family: str | None, dropout: float, head_dim: int | None = None
) -> ModelConfig:
    """A transformer of the row's shape: gated ones like Llama, others like GPT."""
    hidden, layers, sequence = (
        row.count("hidden"),
        row.count("layers", most=MOST_LAYERS),
        row.count("seq"),
    )
    heads = row.count("heads", max(1, hidden // 128))
    if hidden % heads:
        raise AtollError(f"line {row.line} ({row.id}): heads {heads} do not divide hidden {hidden}")
    gated = bool(row.whole("mlp_gated", 0))
    experts = row.whole("n_experts", 0)
    plain = family == "mpt"
    config = ModelConfig(
        name=row.text("model", row.id),
        family="llama" if gated else "gpt",
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=row.count("kv_heads", heads),
        head_dim=head_dim or hidden // heads,
        ffn=row.count("ffn", 4 * hidden),
        vocab=row.count("vocab", 51200),
        max_sequence=sequence,
        position_rows=sequence,
        gated=gated,
        activation="silu" if gated else "gelu",
        norm="rmsnorm" if gated else "layernorm",
        positions="rotary" if gated else ("alibi" if family == "bloom" else "learned"),
        tied_embeddings=not gated,
        attention_bias=not gated and not plain,
        output_bias=not gated and not plain,
        mlp_bias=not gated and not plain,
        dropout=dropout,
        attention_dropout=dropout,
        embedding_dropout=dropout,
        embedding_norm=family == "bloom",
        experts=experts,
        experts_per_token=row.count("top_k", 1) if experts else 0,
    )
    return _deepseek(config) if "deepseek" in config.name.lower() else config


def _deepseek(config: ModelConfig) -> ModelConfig:
    """A DeepSeek model, perhaps with fewer layers: what tables leave out is in its configuration.

    A truncated model keeps one dense layer.
    """
    full = load_config("deepseek-v3" if config.experts == 256 else "deepseek-v2")
    dense = full.dense_layers if config.layers >= full.layers else (0,)
    return replace(
        full,
        name=config.name,
        layers=config.layers,
        dense_layers=dense,
        vocab=config.vocab,
        max_sequence=max(config.max_sequence, full.max_sequence),
    )
