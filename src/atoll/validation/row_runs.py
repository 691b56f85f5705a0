"""Rows of a table of measured runs as runs and layouts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from atoll.base.errors import AtollError
from atoll.fabric.network import Network
from atoll.hardware.gpu import PRECISIONS, Gpu, written_gpu
from atoll.step.layout import FULL_BLOCKS, HOST, HOSTED_INPUTS, Layout
from atoll.step.orders import ORDERS
from atoll.tools.software import flagged, stack_named
from atoll.tools.stack import Stack, with_adapters
from atoll.training.memory import Memory
from atoll.training.run import Run
from atoll.training.site import Site
from atoll.validation.row_model import adapters_from_row, model_from_row
from atoll.validation.row_settings import INPUTS_ON_HOST, PARTIAL_BLOCKS, RowSettings, read_settings
from atoll.validation.step_rows import WIDE, run_from_step, unpriced_words
from atoll.validation.tables import RunRow

REPLICATED = ("eager", "compiled", "gaudi")
"""Software whose data parallelism keeps all weights and states on every device by default."""


def run_from_row(row: RunRow) -> tuple[Run, Layout]:
    """Return a row's run and layout; refuse what cannot be expressed."""
    if row.is_step:
        return run_from_step(row)
    gpu = row_gpu(row)
    zero = row_zero(row)
    settings = read_settings(row, gpu, zero)
    precision = row.text("precision", "bf16").lower()
    if precision in WIDE:
        settings = replace(settings, stack=flagged(settings.stack, precision))
        precision = "bf16"
    if precision not in PRECISIONS:
        raise AtollError(f"precision {precision} is not modelled")
    half = gpu.half_dtype if precision in ("bf16", "fp16") else precision
    devices = row.integer("devices")
    tp, cp = row.integer("tp", 1), row.integer("cp", 1)
    pp = row.integer("pp", 1) + row.integer("encoder_pp", 0)  # stages of a separate encoder
    ep, vpp = row.integer("ep", 1), row.integer("vpp", 1)
    dp = row.integer("dp", max(1, devices // (tp * pp * cp)))
    layout = Layout(
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        # Experts that data and context alone cannot spread are folded over the tensor ranks.
        etp=row.integer("etp", 0) or (1 if (dp * cp) % ep else tp),
        vpp=vpp,
        microbatch=_microbatch(row, settings.stack, dp, pp),
        # MaxText divides the embedding of activations over its tensor axis.
        sp=bool(row.integer("sp", 0)) or (settings.stack.name == "xla" and tp > 1),
        zero=zero,
        hsdp=_replicas(settings.network.cut(devices), devices, tp * pp * cp, zero),
        recompute=_recompute(row, settings, zero),
        schedule=_schedule(row, vpp),
        blocks=_blocks(row, pp, vpp),
    )
    adapters = adapters_from_row(row)
    run = Run(
        model=model_from_row(row, settings.dropout),
        gpu=gpu,
        network=settings.network,
        network_assumed=not row.text("network"),
        devices=devices,
        sequence=row.integer("seq"),
        global_batch=row.integer("global_batch"),
        stack=with_adapters(settings.stack) if adapters else settings.stack,
        states=settings.states,
        precision=half,
        attention=settings.attention,
        adapters=adapters,
        fine_tuned=row.text("method", "pretrain") != "pretrain",
    )
    return run, layout


def run_at_site(row: RunRow, site: Site) -> tuple[Run, Layout]:
    """Return a row's run at a site, with the site's software if the row states none."""
    software = {"framework": site.stack}
    if site.attention != "unfused" or not row.text("flash_attention"):
        software["attention_kernel"] = site.attention
    added = {name: word for name, word in software.items() if word and not row.text(name)}
    run, layout = run_from_row(replace(row, values={**row.values, **added}))
    return run.at(site), layout


def peak_meaning(row: RunRow) -> tuple[str, str]:
    """Return what a row's peak counts (`RowSettings.peak`), and the rank: first, last or any."""
    if row.is_step:
        return "allocated", ""
    return read_settings(row, row_gpu(row), row_zero(row)).peak, row.text("memory_rank")


def predicted_peak_bytes(counted_peak: tuple[str, str], stages: Sequence[Memory]) -> float:
    """Return the predicted bytes that a peak counts, on its first, last or fullest rank."""
    counts, rank = counted_peak
    ranks = {"first": stages[0], "last": stages[-1]}
    memory = ranks.get(rank) or max(stages, key=lambda m: m.needed)
    if counts == "reserved":
        return memory.reserved
    if counts == "device":
        return memory.reserved + memory.context_bytes
    return memory.allocated


def _schedule(row: RunRow, vpp: int) -> str:
    text = row.text("schedule").lower()
    order = {"zb-1p": "zb-h1", "zb-2p": "zb-h2", "zbv": "zb-v"}.get(text, text)
    if order in ORDERS and order not in ("1f1b", "interleaved"):
        return order
    return "interleaved" if vpp > 1 else "1f1b"


def _blocks(row: RunRow, pp: int, vpp: int) -> tuple[int, ...]:
    """Return blocks per model chunk, () if not stated: by Megatron's pipeline layout, the stages of
    a pattern, the layers of first and last stage, or with embedding and loss counted as blocks.
    """
    pipeline_layout = row.text("pp_layout_expanded").replace("\\", "")
    pattern = row.text("hybrid_pattern").partition("/")[0]
    if pipeline_layout:
        return tuple(part.count("t") for part in pipeline_layout.split("|"))
    if "|" in pattern:
        return tuple(len(part) for part in pattern.split("|"))
    layers, chunks = row.integer("layers"), pp * vpp
    first, last = (row.integer(f"decoder_{end}_pp_layers", 0) for end in ("first", "last"))
    if (first or last) and pp > 1:
        middle_stages = pp - (first > 0) - (last > 0)
        share = (layers - first - last) // middle_stages if middle_stages else 0
        stages = first or share, *(share,) * (pp - 2), last or share
        return tuple(size // vpp for size in stages) * vpp
    ends = [row.integer(f"account_{end}_in_pp", 0) for end in ("embedding", "loss")]
    if any(ends) and chunks > 1 and (layers + sum(ends)) % chunks == 0:
        share = (layers + sum(ends)) // chunks
        return (share - ends[0], *(share,) * (chunks - 2), share - ends[1])
    return ()


def _replicas(network: Network, devices: int, inner: int, zero: int) -> int:
    """Return hsdp: weights are sharded within a torus (MaxText's dcn_data_parallelism)."""
    slices, remainder = divmod(devices, network.levels[0].devices)
    fills = zero and not remainder and not devices % (slices * inner)
    return slices if network.levels[0].torus and fills else 1


def _microbatch(row: RunRow, stack: Stack, dp: int, pp: int) -> int:
    """Return the microbatch; XLA runs a device's batch at once, unless it has a pipeline."""
    stated = row.integer("micro_batch", 1)
    per_replica, remainder = divmod(row.integer("global_batch"), dp)
    return per_replica if stack.name == "xla" and pp == 1 and not remainder else stated


def unread_words(row: RunRow) -> tuple[str, ...]:
    """Return the unknown words of a row, which are ignored."""
    if row.is_step:
        return unpriced_words(row)
    return read_settings(row, row_gpu(row), row_zero(row)).unread


def row_zero(row: RunRow) -> int:
    """Return the ZeRO stage; fully sharded data parallelism is stage 3. Trainers of Hugging Face
    that state none run plain data parallelism.
    """
    replicated = stack_named(row.text("framework")) in REPLICATED
    zero = row.integer("zero_stage", 0 if replicated else 1)
    return 3 if row.integer("fsdp", 0) and zero < 2 else zero


def _recompute(row: RunRow, settings: RowSettings, zero: int) -> str:
    policy = row.text("recompute", "none").lower()
    if policy == "none" and zero == 3 and settings.stack.hosts_blocks:
        return HOST
    if policy == "selective":
        meaning = row.text("selective_means")
        # "selective" means the software's policy, as without the column
        return settings.selective if meaning in ("", "selective") else meaning
    if policy == "full" and INPUTS_ON_HOST.search(row.text("offload")):
        return HOSTED_INPUTS
    blocks = PARTIAL_BLOCKS.search(row.text("recompute_modules"))
    if policy == "full" and blocks:
        return f"{FULL_BLOCKS}{blocks[1]}"
    if policy not in ("none", "full", "alternate"):
        raise AtollError(f"recompute {policy!r} is not modelled")
    return policy


def row_gpu(row: RunRow) -> Gpu:
    """Return the catalogue's device by name and, if stated, memory."""
    memory_GB = row.number("device_mem_GB", math.nan)
    memory_text = "" if math.isnan(memory_GB) else f" {memory_GB:.0f}GB"
    return written_gpu(row.device, memory_text)
