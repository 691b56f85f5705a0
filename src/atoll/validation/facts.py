"""What decides a run's speed and memory beside model and layout, in the words of tables.

Nothing is known of a run but what its row says. Words are read whatever their case, spelling or
release number; what a row leaves out is as in a typical run on its device, and what it says in
words that nobody knows here is told (`Facts.unread`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from atoll.errors import AtollError
from atoll.fabric.network import Network
from atoll.hardware.catalog import entry_names, load_network
from atoll.hardware.gpu import Gpu
from atoll.step.layout import HOSTED, MODULES
from atoll.step.states import ALIASES, STATES, States
from atoll.training.software import (
    ATTENTION,
    DEFERRED,
    flagged,
    graphed,
    named,
    overlapping,
    released,
    stack_named,
)
from atoll.training.stack import STACKS, Stack
from atoll.validation.row_model import family_of
from atoll.validation.run_table import RunRow

SOME_BLOCKS = re.compile(r"block (\d+) layers")
PEAKS = ("allocated", "reserved", "device")
COUNT = re.compile(r"(\d+)\s*x(?![a-z])|(\d+)\s*x(?=[A-Z])")
GIGABITS = re.compile(r"(\d+)\s*(?:G\b|Gb)")  # of bits: links inside a node are given in GB/s
SLOWEST_PORT = 100  # Gb/s; slower ones are for management
NODE, TRAY = 8, 4
"""Devices of a node with its ports; of a rack that is one NVLink domain, of one tray."""
PORTS_APART = ("storage", "management", "gig ethernet")
"""Of a node's ports, those that training does not use."""


@dataclass(frozen=True, slots=True)
class Facts:
    """A row's software, network and states, and which of its words were not understood."""

    stack: Stack
    network: Network
    states: States
    attention: str
    dropout: float
    peak: str = "allocated"
    """What its peak counts: allocated, reserved (blocks held back too), or device (the driver's
    share too)."""
    selective: str = "selective"
    """What it recomputes where it says "selective": a policy, or modules."""
    unread: tuple[str, ...] = ()


def facts_of(row: RunRow, gpu: Gpu, zero: int) -> Facts:
    """Everything beside model and layout."""
    unread: list[str] = []
    _check_offload(row, unread)
    stack = _stack(row, gpu, zero, unread)
    return Facts(
        stack=stack,
        network=_network(row, gpu, unread),
        states=_states(row, stack, unread),
        attention=_attention(row, stack, unread),
        dropout=row.number("dropout", 0.1 if stack.name in EARLY else 0.0),
        peak=_peak(row, unread),
        selective=_selective(row, stack, unread),
        unread=tuple(unread),
    )


HOST_OPTIMIZER = re.compile(r"\boptimi[sz]er\b.*\bhost\b|\bpaged", re.IGNORECASE)
"""Optimizer states on the host, or paged to it (bitsandbytes)."""


def _check_offload(row: RunRow, unread: list[str]) -> None:
    """Refuse rows whose optimizer runs on the host; other tensors there are priced without it."""
    given = row.text("offload")
    if HOST_OPTIMIZER.search(given):
        raise AtollError(f"offload {given!r}: an optimizer on the host is not modelled")
    if given and not row.text("activation_offload"):
        unread.append(f"offload {given!r}")


BEFORE_HOPPER = ("v100", "a100")
EARLY = ("megatron-2021", "zero3-2021")
"""Software of a time when models were trained with dropout and without fused attention."""


def _stack(row: RunRow, gpu: Gpu, zero: int, unread: list[str]) -> Stack:
    """The software, with what a launch file says of its kernels and of what hides what."""
    given = row.text("framework")
    name = stack_named(given) if given else None
    if given and name is None:
        unread.append(f"framework {given!r}")
    if name == "fsdp" and _first_flash(row):
        name = "fsdp-2023"
    usual = released(STACKS[name or _usual_stack(row, gpu, zero)], given)
    stack, words = overlapping(usual, row.text("overlap"))
    unread += [f"overlap {word!r}" for word in words]
    stack = replace(
        graphed(stack, row.text("cuda_graphs")),
        loss_bytes=row.number("loss_bytes_per_logit", _loss_bytes(row, stack)),
    )
    if not row.whole("moe_grouped_gemm", 1):
        stack = replace(stack, expert_workspaces=0)
    flags = {
        "fp8_params": row.whole("fp8_param_gather", 0),
        "local": row.text("transformer_impl") == "local",
        "te_loss": row.text("cross_entropy_fusion") == "te",
        f"{DEFERRED}{row.whole('wgrad_deferral_limit', 0)}": True,
    }
    return flagged(stack, " ".join(name for name, on in flags.items() if on))


def _first_flash(row: RunRow) -> bool:
    """Whether attention's kernel is of 2022: said so, or in MPT, which came with Triton's."""
    given = row.text("attention_kernel")
    return named(given, ATTENTION) == "flash1" if given else family_of(row) == "mpt"


def _loss_bytes(row: RunRow, stack: Stack) -> float:
    """MPT's fused cross entropy turns 16-bit logits into their gradient in place."""
    return 4.0 if family_of(row) == "mpt" else stack.loss_bytes


def _usual_stack(row: RunRow, gpu: Gpu, zero: int) -> str:
    """What typically runs such a layout on such a device: gated blocks came after 2022, and so did
    fused attention; fp8 with Hopper.
    """
    if gpu.stack != "megatron" or row.text("transformer_impl"):
        return gpu.stack
    gated, early = row.whole("mlp_gated", 0), gpu.name.startswith(BEFORE_HOPPER)
    fused = row.number("flash_attention", float(bool(gated) or not early))
    if not gated and not fused:
        return "zero3-2021" if zero == 3 else "megatron-2021"
    if zero >= 2 and not row.text("fsdp_impl").startswith("megatron"):
        return "fsdp-2023" if _first_flash(row) else "fsdp"
    if early:
        # Fused norms of the time saved what recomputation drops.
        return "modular-norm" if row.text("recompute", "none") == "none" else "modular"
    return "nemo" if row.whole("sp", 0) and gpu.fp8_flops is not None else "megatron"


def _states(row: RunRow, stack: Stack, unread: list[str]) -> States:
    """Bytes a parameter, by name or by the precisions of weights and gradients."""
    given = row.text("optimizer_states").lower()
    name = ALIASES.get(given, given)
    if name in STATES:
        return STATES[name]
    if given:
        unread.append(f"optimizer_states {given!r}")
    if row.text("params_dtype") == "fp16":
        return STATES["mixed-both"]  # 16-bit gradients, copied to fp32 when they are scaled
    gradient = row.text("grad_dtype").lower()
    if row.text("grad_reduce_in_bf16"):
        gradient = "bf16" if row.whole("grad_reduce_in_bf16", 0) else "fp32"
    if gradient in ("bf16", "bfloat16", "fp16", "torch.bfloat16"):
        return STATES["mixed16"]
    if gradient in ("fp32", "float32", "torch.float32"):
        return STATES["mixed"]
    if gradient:
        unread.append(f"grad_dtype {gradient!r}")
    return STATES[stack.states]


def _attention(row: RunRow, stack: Stack, unread: list[str]) -> str:
    """The kernel: by name, by a launch file's backend, or as the software usually has it."""
    if row.number("flash_attention", 1) == 0:
        return "unfused"
    if given := row.text("attention_kernel"):
        if kernel := named(given, ATTENTION):
            return kernel
        unread.append(f"attention_kernel {given!r}")
    backend = row.text("attention_backend")
    if backend == "auto":
        backend = row.text("attn_inferred").removeprefix("local ").partition("/")[0]
        backend = backend or ("unfused" if row.text("transformer_impl") == "local" else "")
    if backend in ("unfused", "flash", "fused"):
        return "unfused" if backend == "unfused" else "flash"
    return "flash1" if _first_flash(row) else stack.attention


SELECTIVE = {
    "fsdp": "alternate",
    # MaxText's save_dot_except_mlp, and the recipes that send the same tensors to the host.
    "xla": "core_attn+layernorm+mlp+moe+qkv_linear@host+attn_proj@host",
}
"""What "selective" means to software that does not mean attention's core."""


def _selective(row: RunRow, stack: Stack, unread: list[str]) -> str:
    """Modules as Megatron-Core names them; torchtitan's selective keeps every second product."""
    given = row.text("recompute_modules").lower().replace("attention core", "core_attn")
    words = given.replace(",", " ").split()
    hosted = row.text("activation_offload").lower().replace(",", " ").split()
    if words and all(word in MODULES for word in words) and set(hosted) <= set(HOSTED):
        told = (*words, *(f"{module}@host" for module in hosted))
        return "selective" if told == ("core_attn",) else "+".join(told)
    if given and "sac" not in words and not SOME_BLOCKS.search(given):
        unread.append(f"recompute_modules {given!r}")
    return SELECTIVE.get(stack.name, "selective")


def _peak(row: RunRow, unread: list[str]) -> str:
    given = row.text("peak_counts", "allocated").lower()
    if given not in PEAKS:
        unread.append(f"peak_counts {given!r}")
        return "allocated"
    return given


def _network(row: RunRow, gpu: Gpu, unread: list[str]) -> Network:
    """A network of the catalogue by name, or the device's usual one with the ports of the text."""
    text = row.text("network")
    usual = _known(gpu.network)
    if not text:
        return usual
    if text.lower() in entry_names("network"):
        return _known(text.lower())
    own_Bps = port_Bps(text, TRAY if usual.levels[0].devices > NODE else NODE)
    if own_Bps is None or len(usual.levels) < 2:
        if len(usual.levels) > 1:
            unread.append(f"network {text!r}")
        return usual
    *inner, outer = usual.levels
    return replace(usual, levels=(*inner, replace(outer, bandwidth_Bps=own_Bps)))


@lru_cache(maxsize=64)
def _known(name: str) -> Network:
    return load_network(name)


def port_Bps(text: str, node: int) -> float | None:
    """Bytes a second of one device's share of a node's ports: "400G IB per GPU", "8x ConnectX-7
    400Gb/s"; None where a text does not say.
    """
    found = []
    for part in re.split(r"[|,;+]", text):
        apart = any(word in part.lower() for word in PORTS_APART)
        rates = [float(r) for r in GIGABITS.findall(part) if float(r) >= SLOWEST_PORT]
        if not rates or (apart and "compute" not in part.lower()):
            continue
        count = COUNT.search(part)
        ports = int(count[1] or count[2]) if count else 1
        found.append(max(rates) * 1e9 / 8 * (1 if "per GPU" in part else ports / node))
    return max(found, default=None)
