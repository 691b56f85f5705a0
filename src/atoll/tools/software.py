"""Software stacks from free text: frameworks with releases, overlap, CUDA graphs, kernels.

Case, spelling and release numbers do not matter. Unrecognised words are returned to the caller.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from atoll.base.errors import AtollError, suggestion
from atoll.cost.gpu_experts import GATE_BACKWARD_BYTES, GATE_BYTES
from atoll.tools.stack import NEMO, SOFTWARE, STACKS, Stack, changed

Patterns = Sequence[tuple[str, str]]
Frameworks = Sequence[tuple[str, str, str]]

FRAMEWORKS: Frameworks = SOFTWARE["frameworks"]
ATTENTION: Patterns = SOFTWARE["attention"]
HIDDEN_EXCHANGE = 0.8
"""Hidden share of a token exchange that overlaps with another microbatch's dense layers."""
OVERLAPS = ("tp_comm", "grad_reduce", "zero_grad_reduce", "no_grad_reduce", "p2p", "ep_a2a")
DISPATCHER = "dispatcher="
SENDING_ONCE = ("deepep", "hybridep")
LISTED = ("param_gather", "param_gather_with_optim", "delay_wgrad", "1f1b", "sharp")
"""Words about overlap without effect on the model."""
FLAGS: Mapping[str, Callable[[Stack], Stack]] = {
    **{name: partial(changed, changes=fields) for name, fields in SOFTWARE["flags"].items()},
    # gate and up are kept for the backward pass in 8 bits
    "fp8_act": lambda stack: replace(
        stack, kept={**stack.kept, "gate": stack.kept.get("gate", 0.0) - 2}
    ),
    # Hugging Face's SDPA: sliding windows
    "dense_window": lambda stack: replace(stack, dense_mask=stack.dense_mask or "windows"),
    # Experts by torch's grouped products, gate and up in one: no loop over experts on the host. 10
    # and 18 bytes are those of the gate's functions.
    "grouped_mm": lambda stack: replace(
        stack,
        host_expert_s=0.0,
        halves_bytes={"activation": GATE_BYTES - 10, "activation_bwd": GATE_BACKWARD_BYTES - 18},
    ),
}
"""Further flags of launch files, and their effect."""
NUMBERED: Mapping[str, tuple[str, int]] = SOFTWARE["numbered"]
"""Field and least value of flags that are followed by a number."""
OFF = ("", "0", "none", "no", "false")


def named(words: str, patterns: Patterns) -> str | None:
    """Return the first name whose pattern matches."""
    return next((name for p, name in patterns if re.search(p, words, re.IGNORECASE)), None)


def stack_named(words: str) -> str | None:
    """Return the stack's name for its exact name or a framework ("Megatron-Bridge 26.04")."""
    exact = next((name for name in (words.strip(), words.strip().lower()) if name in STACKS), None)
    return exact or named(words, [(pattern, stack) for pattern, stack, _ in FRAMEWORKS])


def released(stack: Stack, words: str) -> Stack:
    """Adapt the stack to a release: Megatron-Bridge's recipes have Transformer Engine's fused loss,
    offload activations of fully sharded blocks (cpu_offloading_num_layers in all of these), and
    cast the inputs of all experts at once since 26.06.
    """
    if re.search(r"megatron.?bridge", words, re.IGNORECASE):
        stack = replace(flagged(stack, "te_loss"), hosts_blocks=True)
    for pattern, kernels in SOFTWARE["kernels"]:
        fits = "kernels" not in kernels or stack.composed_gelu
        if fits and re.search(pattern, words, re.IGNORECASE):
            stack = changed(stack, kernels)
    number = re.search(r"\b(2\d)\.(\d\d)\b", words)
    if number and (int(number[1]), int(number[2])) < (26, 6):
        return replace(stack, fused_casts=())
    return stack


def find_stack(words: str) -> Stack:
    """Return the stack of these words, or raise an error."""
    return released(STACKS[stack_named(words) or words], words)


def software(
    words: str, overlap: str | None, cuda_graphs: str | None, flags: str | None = None
) -> Stack:
    """Return a stack with a launch file's settings; raise an error for unknown words."""
    stack, unread = overlapping(find_stack(words), overlap or "")
    if unread:
        known = suggestion(unread[0], (*OVERLAPS, *LISTED))
        raise AtollError(f"overlap: {unread[0]!r} is not known{known}")
    return flagged(graphed(stack, cuda_graphs or ""), flags or "")


def flagged(stack: Stack, words: str) -> Stack:
    """Apply further flags of a launch file: kernels, and copies of weights."""
    for word in words.replace(",", " ").split():
        name, equals, number = word.partition("=")
        if equals and name in NUMBERED and number.isdigit():
            field, least = NUMBERED[name]
            changes: dict[str, Any] = {field: max(least, int(number))}
            stack = replace(stack, **changes)
        elif word in FLAGS:
            stack = FLAGS[word](stack)
        else:
            known = suggestion(word, (*FLAGS, *(f"{flag}=N" for flag in NUMBERED)))
            raise AtollError(f"flags: {word!r} is not known{known}")
    return stack


def overlapping(stack: Stack, words: str) -> tuple[Stack, tuple[str, ...]]:
    """Apply a launch file's overlap settings, and return the unknown words. Known are tp_comm,
    grad_reduce, zero_grad_reduce (with ZeRO outside of a pipeline, as in DeepSpeed),
    no_grad_reduce, p2p, ep_a2a. With any setting, tensor collectives overlap only if listed.
    """
    all_words = words.lower().replace(",", " ").split()
    listed = [word for word in all_words if not word.startswith(DISPATCHER)]
    overlap, usual = stack.overlap, NEMO.overlap
    shares: dict[str, Any] = {
        name: max(getattr(overlap, name), share)
        for word, name, share in (
            ("grad_reduce", "gradient", usual.gradient),
            ("p2p", "pipeline", usual.pipeline),
            ("ep_a2a", "experts", HIDDEN_EXCHANGE),
        )
        if word in listed
    }
    if listed:
        shares["tensor_products"] = usual.tensor_products if "tp_comm" in listed else 0.0
        shares["summed"] = overlap.summed if overlap.tensor_products else usual.summed
    if "zero_grad_reduce" in listed:
        shares |= {"undivided": 0.0, "piped": 0.0}
    # The file does not switch it on, or delayed weight gradients leave nothing to hide behind.
    if "no_grad_reduce" in listed or ("delay_wgrad" in listed and "grad_reduce" not in listed):
        shares["gradient"] = 0.0
    dispatchers = [w.removeprefix(DISPATCHER) for w in all_words if w.startswith(DISPATCHER)]
    once = dispatchers[-1] in SENDING_ONCE if dispatchers else stack.sends_once
    stack = replace(stack, overlap=replace(overlap, **shares), sends_once=once)
    return stack, tuple(word for word in listed if word not in (*OVERLAPS, *LISTED))


def graphed(stack: Stack, words: str) -> Stack:
    """Apply CUDA graphs: of iterations or layers (no launches are left), or of parts (half are)."""
    graphs = words.strip().lower()
    if graphs in OFF:
        return stack
    parts = "attn" in graphs or "moe" in graphs or "mlp" in graphs
    left = 0.5 if parts and "iteration" not in graphs else 0.0
    fields = [f"host_{name}_s" for name in ("layer", "kernel", "tensor", "checkpoint", "routed")]
    host_times_s: dict[str, Any] = {name: left * getattr(stack, name) for name in fields}
    return replace(stack, graphs=graphs, **host_times_s)
