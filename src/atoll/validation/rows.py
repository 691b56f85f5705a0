"""Each row of a table of measured runs as a run and a layout."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
from atoll.training.stack import Stack, fused_loss, load_stack
from atoll.validation.row_model import model_of
from atoll.validation.run_table import RunRow
from atoll.validation.sources import SourceFile, facts_of
from atoll.workload.families.config_fields import MOST_LAYERS

USUAL_GB = 80
"""Of a device that comes with several sizes, where a table does not say."""


def run_of(row: RunRow) -> tuple[Run, Layout]:
    """The run and the layout that a row describes; what cannot be expressed is refused."""
    facts = facts_of(row)
    gpu = device_of(row)
    zero = row.whole("zero_stage", 1)
    if row.whole("fsdp", 0) and zero < 2:
        zero = 3
    stack = _stack(row, facts, zero)
    precision = row.text("precision", "bf16")
    if precision not in ("bf16", "fp16", "fp8"):
        raise AtollError(f"precision {precision} is not modelled")
    half = gpu.half_dtype if precision in ("bf16", "fp16") else precision
    network = load_network(facts.network or gpu.network)
    devices = row.count("devices")
    tp, cp = row.count("tp", 1), row.count("cp", 1)
    pp = row.count("pp", 1) + row.whole("encoder_pp", 0)  # stages of an encoder of its own
    ep, vpp = row.count("ep", 1), row.count("vpp", 1)
    dp = row.count("dp", max(1, devices // (tp * pp * cp)))
    layout = Layout(
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        # Experts that data and context alone cannot spread are folded over the tensor ranks.
        etp=row.whole("etp", 0) or (1 if (dp * cp) % ep else tp),
        vpp=vpp,
        microbatch=row.count("micro_batch", 1),
        sp=bool(row.whole("sp", 0)),
        zero=zero,
        recompute=_recompute(row, facts),
        schedule=_schedule(row, vpp),
        blocks=_blocks(row, pp, vpp),
    )
    run = Run(
        model=model_of(row, facts.family, facts.dropout, facts.head_dim),
        gpu=gpu,
        network=network,
        devices=devices,
        sequence=row.count("seq"),
        global_batch=row.count("global_batch"),
        stack=stack,
        states=STATES[facts.states or _states(row, zero)],
        precision=half,
        attention=_attention(row) or facts.attention or "flash",
    )
    return run, layout


def peak_of(row: RunRow, stages: Sequence[Memory]) -> float:
    """The prediction of what a row's peak counts: on its first, its last or its fullest rank."""
    facts = facts_of(row)
    ranks = {"first": stages[0], "last": stages[-1]}
    memory = ranks.get(row.text("memory_rank")) or max(stages, key=lambda m: m.needed)
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


def _stack(row: RunRow, facts: SourceFile, zero: int) -> Stack:
    """The software, with what a launch file says of its kernels."""
    sharded = zero == 3 and not row.text("fsdp_impl").startswith("megatron")
    stack = load_stack(facts.stack or ("fsdp" if sharded else "megatron"))
    stack = replace(
        stack,
        slack=stack.slack * facts.slack,
        loss_bytes=stack.loss_bytes if facts.loss_bytes is None else facts.loss_bytes,
        deferred_heads=row.whole("wgrad_deferral_limit", 0),
    )
    if not row.whole("moe_grouped_gemm", 1):
        stack = replace(stack, expert_workspaces=0)
    if row.whole("fp8_param_gather", 0):
        stack = replace(stack, fp8_copies=0)
    if row.text("transformer_impl") == "local":
        stack = replace(stack, workspaces=2)
    return fused_loss(stack) if row.text("cross_entropy_fusion") == "te" else stack


def _states(row: RunRow, zero: int) -> str:
    """Bytes a parameter, by the precisions of weights and gradients."""
    if row.text("params_dtype") == "fp16":
        return "mixed-both"  # gradients stay in 16 bit and are copied to fp32 when they are scaled
    if row.whole("grad_reduce_in_bf16", 0):
        return "mixed16"
    return "mixed" if zero < 3 else "mixed16"


def _attention(row: RunRow) -> str:
    """The kernel, where a row tells it; Megatron's own layers have no fused one."""
    words = {"unfused": "unfused", "flash": "flash", "fused": "flash"}
    backend = row.text("attention_backend")
    if backend == "auto":
        backend = row.text("attn_inferred").removeprefix("local ").partition("/")[0]
        backend = backend or ("unfused" if row.text("transformer_impl") == "local" else "")
    if row.text("flash_attention") in ("0", "0.0"):
        return "unfused"
    return words.get(backend, "")


def _blocks(row: RunRow, pp: int, vpp: int) -> tuple[int, ...]:
    """Blocks of every model chunk where a row gives them: by Megatron's pipeline layout, by the
    stages of a pattern, by the numbers of the two ends, or with the ends counted as blocks.
    """
    written = row.text("pp_layout_expanded").replace("\\", "")
    pattern = row.text("hybrid_pattern").partition("/")[0]
    if written:
        return tuple(part.count("t") for part in written.split("|"))
    if "|" in pattern:
        return tuple(len(part) for part in pattern.split("|"))
    layers, chunks = row.count("layers", most=MOST_LAYERS), pp * vpp
    first, last = row.whole("decoder_first_pp_layers", 0), row.whole("decoder_last_pp_layers", 0)
    if (first or last) and pp > 1:
        others = pp - (first > 0) - (last > 0)
        share = (layers - first - last) // others if others else 0
        stages = first or share, *(share,) * (pp - 2), last or share
        return tuple(size // vpp for size in stages) * vpp
    ends = [row.whole(f"account_{end}_in_pp", 0) for end in ("embedding", "loss")]
    if any(ends) and chunks > 1 and (layers + sum(ends)) % chunks == 0:
        share = (layers + sum(ends)) // chunks
        return (share - ends[0], *(share,) * (chunks - 2), share - ends[1])
    return ()


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
