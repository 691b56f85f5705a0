"""Software, network and optimizer states of a row of a table of measured runs.

Words are recognised whatever their case, spelling or release number. Missing cells have
the defaults of a typical run on the device; unknown words are listed in `RowSettings.unread`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from atoll.base.errors import AtollError
from atoll.fabric.network import Network
from atoll.hardware.catalog import entry_names, load_network
from atoll.hardware.gpu import Gpu
from atoll.step.layout import HOSTED, MODULES
from atoll.step.states import ALIASES, STATES, States
from atoll.tools.software import (
    ATTENTION,
    flagged,
    graphed,
    named,
    overlapping,
    released,
    stack_named,
)
from atoll.tools.stack import STACKS, Stack
from atoll.validation.row_model import row_family
from atoll.validation.tables import RunRow

PARTIAL_BLOCKS = re.compile(r"block (\d+) layers")
PEAKS = ("allocated", "reserved", "device")
COUNT = re.compile(r"(\d+)\s*x(?![a-z])|(\d+)\s*x(?=[A-Z])")
GIGABITS = re.compile(r"(\d+)\s*(?:G\b|Gb)")  # bits; links inside a node are stated in GB/s
SLOWEST_PORT = 100  # Gb/s; slower ones are for management
_cached_network = lru_cache(maxsize=64)(load_network)
NODE, TRAY = 8, 4
"""Devices that share a node's ports; in a rack that is one NVLink domain, a tray's."""
UNUSED_PORTS = ("storage", "management", "gig ethernet")
"""Ports of a node that training does not use."""


@dataclass(frozen=True, slots=True)
class RowSettings:
    """A row's software, network and states, and its unknown words."""

    stack: Stack
    network: Network
    states: States
    attention: str
    dropout: float
    peak: str = "allocated"
    """What its peak counts: allocated, reserved (with cached blocks), device (with the driver)."""
    selective: str = "selective"
    """Policy or modules that "selective" recomputation means."""
    unread: tuple[str, ...] = ()


def read_settings(row: RunRow, gpu: Gpu, zero: int) -> RowSettings:
    """Read a row's settings."""
    unread: list[str] = []
    _check_offload(row, unread)
    stack = _stack(row, gpu, zero, unread)
    return RowSettings(
        stack=stack,
        network=_network(row, gpu, unread),
        states=_states(row, stack, unread),
        attention=_attention(row, gpu, stack, unread),
        dropout=row.number("dropout", 0.1 if stack.name in EARLY else 0.0),
        peak=_peak(row, unread),
        selective=_selective(row, stack, unread),
        unread=tuple(unread),
    )


HOST_OPTIMIZER = re.compile(r"\boptimi[sz]er\b.*\bhost\b|\bpaged", re.IGNORECASE)
"""Matches optimizer states on the host, or paged to it (bitsandbytes)."""
INPUTS_ON_HOST = re.compile(r"\blayer inputs?\b.*\bhost\b", re.IGNORECASE)
"""Matches inputs of recomputed blocks on the host."""
EIGHT_BIT = re.compile(r"8.?bit", re.IGNORECASE)
IN_BACKWARD = re.compile(r"\bin backward\b", re.IGNORECASE)
"""Matches an optimizer that updates a weight as soon as its gradient is known, and frees it."""


def _check_offload(row: RunRow, unread: list[str]) -> None:
    """Report offload of tensors other than optimizer states and inputs of blocks."""
    offload = row.text("offload")
    priced = HOST_OPTIMIZER.search(offload) or INPUTS_ON_HOST.search(offload)
    if offload and not priced and not row.text("activation_offload"):
        unread.append(f"offload {offload!r}")


BEFORE_HOPPER = ("v100", "a100")
EARLY = ("megatron-2021", "zero3-2021")
"""Software from before fused attention, when models were trained with dropout."""


def _stack(row: RunRow, gpu: Gpu, zero: int, unread: list[str]) -> Stack:
    """Return the software with its kernels, flags and overlaps."""
    framework = row.text("framework")
    name = stack_named(framework) if framework else None
    if framework and name is None:
        unread.append(f"framework {framework!r}")
    if name == "fsdp" and _first_flash(row):
        name = "fsdp-2023"
    usual = released(STACKS[name or _default_stack(row, gpu, zero)], framework)
    stack, words = overlapping(usual, row.text("overlap"))
    unread += [f"overlap {word!r}" for word in words]
    # MPT's fused cross entropy overwrites 16-bit logits.
    loss_bytes = 4.0 if row_family(row) == "mpt" else stack.loss_bytes
    stack = graphed(stack, row.text("cuda_graphs"))
    stack = replace(stack, loss_bytes=row.number("loss_bytes_per_logit", loss_bytes))
    if not row.integer("moe_grouped_gemm", 1):
        stack = replace(stack, expert_workspaces=0)
    flags = {
        "fp8_params": row.integer("fp8_param_gather", 0),
        "local": row.text("transformer_impl") == "local",
        "te_loss": row.text("cross_entropy_fusion") == "te",
        "host_optimizer": HOST_OPTIMIZER.search(row.text("offload")),
        f"head_wgrad={row.integer('wgrad_deferral_limit', 0)}": True,
        # modeling_qwen.py imports them wherever it finds flash-attn.
        "flash_modules": stack.plain_scores
        and row_family(row) == "qwen"
        and "flash" in row.text("attention_kernel").lower(),
    }
    stack = flagged(stack, " ".join(name for name, on in flags.items() if on))
    for word in row.text("flags").replace(",", " ").split():
        try:
            stack = flagged(stack, word)
        except AtollError:
            unread.append(f"flags {word!r}")
    return stack


def _first_flash(row: RunRow) -> bool:
    """Return whether attention uses FlashAttention 1, as stated or as in MPT (Triton's)."""
    kernel = row.text("attention_kernel")
    return named(kernel, ATTENTION) == "flash1" if kernel else row_family(row) == "mpt"


def _default_stack(row: RunRow, gpu: Gpu, zero: int) -> str:
    """Return the typical software: gated blocks and fused attention since 2022, fp8 with Hopper."""
    if gpu.stack != "megatron" or row.text("transformer_impl"):
        return gpu.stack
    gated, early = row.integer("mlp_gated", 0), gpu.name.startswith(BEFORE_HOPPER)
    fused = row.number("flash_attention", float(bool(gated) or not early))
    if not gated and not fused:
        return "zero3-2021" if zero == 3 else "megatron-2021"
    if zero >= 2 and not row.text("fsdp_impl").startswith("megatron"):
        return "fsdp-2023" if _first_flash(row) else "fsdp"
    if early:
        # Fused norms of the time saved what recomputation drops.
        return "modular-norm" if row.text("recompute", "none") == "none" else "modular"
    return "nemo" if row.integer("sp", 0) and gpu.fp8_flops is not None else "megatron"


def _states(row: RunRow, stack: Stack, unread: list[str]) -> States:
    """Return the optimizer states, by name or by the precisions of weights and gradients."""
    offload = row.text("offload")
    text = "8bit" if EIGHT_BIT.search(offload) else row.text("optimizer_states").lower()
    name = ALIASES.get(text, text)
    if name in STATES:
        freed = IN_BACKWARD.search(offload)
        return replace(STATES[name], gradient=0.0) if freed else STATES[name]
    if text:
        unread.append(f"optimizer_states {text!r}")
    if row.text("params_dtype") == "fp16":
        return STATES["mixed-both"]  # 16-bit gradients, copied to fp32 when they are scaled
    gradient = row.text("grad_dtype").lower()
    if row.text("grad_reduce_in_bf16"):
        gradient = "bf16" if row.integer("grad_reduce_in_bf16", 0) else "fp32"
    if gradient in ("bf16", "bfloat16", "fp16", "torch.bfloat16"):
        return STATES["mixed16"]
    if gradient in ("fp32", "float32", "torch.float32"):
        return STATES["mixed"]
    if gradient:
        unread.append(f"grad_dtype {gradient!r}")
    return STATES[stack.states]


def _attention(row: RunRow, gpu: Gpu, stack: Stack, unread: list[str]) -> str:
    """Return the attention kernel: by name, by backend, or the software's default."""
    if row.number("flash_attention", 1) == 0:
        return "unfused"
    if text := row.text("attention_kernel"):
        if kernel := named(text, ATTENTION):
            return kernel
        unread.append(f"attention_kernel {text!r}")
    backend = row.text("attention_backend")
    if backend == "auto":
        backend = row.text("attn_inferred").removeprefix("local ").partition("/")[0]
        backend = backend or ("unfused" if row.text("transformer_impl") == "local" else "")
    if backend in ("unfused", "flash", "fused"):
        return "unfused" if backend == "unfused" else "flash"
    if gpu.flash2_flops is not None and not row.text("framework"):
        return "flash"  # on Blackwell cuDNN's is three times as fast as FlashAttention-2
    return "flash1" if _first_flash(row) else stack.attention


SELECTIVE = {
    **dict.fromkeys(("fsdp", "torchtitan", "torchtitan-compiled"), "alternate"),
    # MaxText's recipes of Trillium (tpu-recipes): inputs of blocks, queries, keys, values and
    # attention's output projection go to the host ("offload"), the rest runs again.
    "xla": "core_attn+layernorm+mlp+moe+host",
}
"""Meaning of "selective" in software where it is not attention's core."""


def _selective(row: RunRow, stack: Stack, unread: list[str]) -> str:
    """Return recomputed modules by Megatron-Core's names, or the stack's selective policy."""
    text = row.text("recompute_modules").lower().replace("attention core", "core_attn")
    words = text.replace(",", " ").split()
    hosted = row.text("activation_offload").lower().replace(",", " ").split()
    if words and all(word in MODULES for word in words) and set(hosted) <= set(HOSTED):
        modules = (*words, *(f"{module}@host" for module in hosted))
        return "selective" if modules == ("core_attn",) else "+".join(modules)
    if text and "sac" not in words and not PARTIAL_BLOCKS.search(text):
        unread.append(f"recompute_modules {text!r}")
    return SELECTIVE.get(stack.name, "selective")


def _peak(row: RunRow, unread: list[str]) -> str:
    text = row.text("peak_counts", "allocated").lower()
    if text not in PEAKS:
        unread.append(f"peak_counts {text!r}")
        return "allocated"
    return text


def _network(row: RunRow, gpu: Gpu, unread: list[str]) -> Network:
    """Return a catalogue network by name, or the device's default with the stated ports."""
    text = row.text("network")
    usual = _cached_network(gpu.network)
    if not text:
        return usual
    if text.lower() in entry_names("network"):
        return _cached_network(text.lower())
    device_Bps = port_Bps(text, TRAY if usual.levels[0].devices > NODE else NODE)
    if device_Bps is None or len(usual.levels) < 2:
        if len(usual.levels) > 1:
            unread.append(f"network {text!r}")
        return usual
    *inner, outer = usual.levels
    return replace(usual, levels=(*inner, replace(outer, bandwidth_Bps=device_Bps)))


def port_Bps(text: str, node: int) -> float | None:
    """Return a device's share of a node's ports ("8x ConnectX-7 400Gb/s"); None if not stated."""
    device_rates_Bps = []
    for part in re.split(r"[|,;+]", text):
        unused = any(word in part.lower() for word in UNUSED_PORTS)
        rates = [float(r) for r in GIGABITS.findall(part) if float(r) >= SLOWEST_PORT]
        if not rates or (unused and "compute" not in part.lower()):
            continue
        count = COUNT.search(part)
        ports = int(count[1] or count[2]) if count else 1
        device_rates_Bps.append(max(rates) * 1e9 / 8 * (1 if "per GPU" in part else ports / node))
    return max(device_rates_Bps, default=None)
