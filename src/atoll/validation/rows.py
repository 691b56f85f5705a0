"""Each row of a table of measured runs as a run and a layout."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from atoll.errors import AtollError
from atoll.fabric.network import Network
from atoll.hardware.gpu import PRECISIONS, Gpu, written_gpu
from atoll.step.layout import HOST, SOME, Layout
from atoll.step.orders import ORDERS
from atoll.training.memory import Memory
from atoll.training.run import Run
from atoll.training.site import Site
from atoll.training.stack import Stack, with_adapters
from atoll.validation.facts import SOME_BLOCKS, Facts, facts_of
from atoll.validation.row_model import method_of, model_of
from atoll.validation.run_table import RunRow
from atoll.workload.families.config_fields import MOST_LAYERS

Reader = Callable[[RunRow], tuple[Run, Layout]]


def run_of(row: RunRow) -> tuple[Run, Layout]:
    """The run and the layout that a row describes; what cannot be expressed is refused."""
    gpu = device_of(row)
    zero = zero_of(row)
    facts = facts_of(row, gpu, zero)
    precision = row.text("precision", "bf16").lower()
    if precision not in PRECISIONS:
        raise AtollError(f"precision {precision} is not modelled")
    half = gpu.half_dtype if precision in ("bf16", "fp16") else precision
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
        microbatch=_microbatch(row, facts.stack, dp, pp),
        # MaxText divides the embedding of activations over its tensor axis.
        sp=bool(row.whole("sp", 0)) or (facts.stack.name == "xla" and tp > 1),
        zero=zero,
        hsdp=_replicas(facts.network.cut(devices), devices, tp * pp * cp, zero),
        recompute=_recompute(row, facts, zero),
        schedule=_schedule(row, vpp),
        blocks=_blocks(row, pp, vpp),
    )
    adapters = method_of(row)
    run = Run(
        model=model_of(row, facts.dropout),
        gpu=gpu,
        network=facts.network,
        devices=devices,
        sequence=row.count("seq"),
        global_batch=row.count("global_batch"),
        stack=with_adapters(facts.stack) if adapters else facts.stack,
        states=facts.states,
        precision=half,
        attention=facts.attention,
        adapters=adapters,
        fine_tuned=row.text("method", "pretrain") != "pretrain",
    )
    return run, layout


def run_at(row: RunRow, site: Site, reader: Reader = run_of) -> tuple[Run, Layout]:
    """A row's run at a site, whose software it has where it states none."""
    told = {"framework": site.stack}
    if site.attention != "unfused" or not row.text("flash_attention"):
        told["attention_kernel"] = site.attention
    added = {name: word for name, word in told.items() if word and not row.text(name)}
    run, layout = reader(replace(row, values={**row.values, **added}))
    return run.at(site), layout


def counted_of(row: RunRow) -> tuple[str, str]:
    """What a row's peak counts (`Facts.peak`), and on which rank: first, last or any."""
    return facts_of(row, device_of(row), zero_of(row)).peak, row.text("memory_rank")


def peak_of(counted: tuple[str, str], stages: Sequence[Memory]) -> float:
    """The prediction of what a peak counts: on its first, its last or its fullest rank."""
    counts, rank = counted
    ranks = {"first": stages[0], "last": stages[-1]}
    memory = ranks.get(rank) or max(stages, key=lambda m: m.needed)
    if counts == "reserved":
        return memory.reserved
    if counts == "device":
        return memory.reserved + memory.context_bytes
    return memory.allocated


def _schedule(row: RunRow, vpp: int) -> str:
    given = row.text("schedule").lower()
    named = {"zb-1p": "zb-h1", "zb-2p": "zb-h2", "zbv": "zb-v"}.get(given, given)
    if named in ORDERS and named not in ("1f1b", "interleaved"):
        return named
    return "interleaved" if vpp > 1 else "1f1b"


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


def _replicas(network: Network, devices: int, inner: int, zero: int) -> int:
    """Weights are divided inside of a torus and copied to others over the network between them, as
    MaxText's dcn_data_parallelism does.
    """
    slices, rest = divmod(devices, network.levels[0].devices)
    inside = network.levels[0].torus and zero and not rest and not devices % (slices * inner)
    return slices if inside else 1


def _microbatch(row: RunRow, stack: Stack, dp: int, pp: int) -> int:
    """Sequences that a replica takes at once. Programs of XLA state batches by device and take a
    step's at once, unless a pipeline divides it.
    """
    each = row.count("micro_batch", 1)
    whole, rest = divmod(row.count("global_batch"), dp)
    return whole if stack.name == "xla" and pp == 1 and not rest else each


def unread_of(row: RunRow) -> tuple[str, ...]:
    """Words of a row that nobody knows here: it was priced without them."""
    return facts_of(row, device_of(row), zero_of(row)).unread


def zero_of(row: RunRow) -> int:
    """The ZeRO stage; fully sharded data parallelism is the third."""
    zero = row.whole("zero_stage", 1)
    return 3 if row.whole("fsdp", 0) and zero < 2 else zero


def _recompute(row: RunRow, facts: Facts, zero: int) -> str:
    given = row.text("recompute", "none").lower()
    if given == "none" and zero == 3 and facts.stack.hosts_blocks:
        return HOST
    if given == "selective":
        told = row.text("selective_means")
        # "selective" by itself is the software's own, as without the column
        return facts.selective if told in ("", "selective") else told
    blocks = SOME_BLOCKS.search(row.text("recompute_modules"))
    if given == "full" and blocks:
        return f"{SOME}{blocks[1]}"
    if given not in ("none", "full", "alternate"):
        raise AtollError(f"recompute {given!r} is not modelled")
    return given


def device_of(row: RunRow) -> Gpu:
    """The catalogue's device for a table's name of it; the memory tells some apart."""
    memory_GB = row.number("device_mem_GB")
    given = "" if math.isnan(memory_GB) else f" {memory_GB:.0f}GB"
    return written_gpu(row.device, given)
