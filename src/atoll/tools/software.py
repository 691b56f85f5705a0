"""Software stacks from free text: frameworks with releases, overlap, CUDA graphs, kernels.

Case, spelling and release numbers do not matter. Unrecognised words are returned to the caller.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from atoll.base.errors import AtollError
from atoll.cost.gpu_experts import GATE_BACKWARD_BYTES, GATE_BYTES
from atoll.tools.stack import (
    NEMO,
    SOFTWARE,
    STACKS,
    Stack,
    compiled_kernels,
    compiled_loss,
    eager_loss,
    fused_kernels,
    fused_loss,
    liger_kernels,
    linear_loss,
    traced_model,
)

Patterns = Sequence[tuple[str, str]]
Frameworks = Sequence[tuple[str, str, str]]

FRAMEWORKS: Frameworks = SOFTWARE["frameworks"]
# Kernels that a framework's words name beside its parallelism.
KERNELS_NAMED: Sequence[tuple[str, Callable[[Stack], Stack]]] = (
    (r"compile|inductor", compiled_kernels),
    (r"transformer.?engine", lambda stack: replace(fused_kernels(stack), attention="flash")),
    (r"fused kernels", lambda stack: fused_loss(fused_kernels(stack))),
)
ATTENTION: Patterns = SOFTWARE["attention"]
HIDDEN_EXCHANGE = 0.8
"""Hidden share of a token exchange that overlaps with another microbatch's dense layers."""
OVERLAPS = ("tp_comm", "grad_reduce", "zero_grad_reduce", "no_grad_reduce", "p2p", "ep_a2a")
DISPATCHER = "dispatcher="
SENDING_ONCE = ("deepep", "hybridep")
LISTED = ("param_gather", "param_gather_with_optim", "delay_wgrad", "1f1b", "sharp")
"""Words about overlap without effect on the model."""
FLAGS: Mapping[str, Callable[[Stack], Stack]] = {
    **{name: partial(replace, **fields) for name, fields in SOFTWARE["flags"].items()},
    # gate and up are kept for the backward pass in 8 bits
    "fp8_act": lambda stack: replace(
        stack, kept={**stack.kept, "gate": stack.kept.get("gate", 0.0) - 2}
    ),
    "te_loss": fused_loss,
    "liger_loss": linear_loss,
    "compiled_loss": compiled_loss,
    "eager_loss": eager_loss,
    "traced": traced_model,
    "liger": liger_kernels,
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
NUMBERED: Mapping[str, Callable[[Stack, int], Stack]] = {
    # microbatches whose weight gradient of the head is computed at the end of the step
    "head_wgrad=": lambda stack, number: replace(stack, deferred_heads=number),
    # parts of the tokens that run head, loss and their backward pass one after another
    "loss_chunks=": lambda stack, number: replace(stack, loss_chunks=max(1, number)),
    # words of the vocabulary whose logits exist at a time
    "loss_columns=": lambda stack, number: replace(stack, loss_columns=number),
}
"""Flags that are followed by a number."""
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
        stack = replace(fused_loss(stack), hosts_blocks=True)
    for pattern, kernels in KERNELS_NAMED:
        if stack.composed_gelu and re.search(pattern, words, re.IGNORECASE):
            stack = kernels(stack)
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
        raise AtollError(
            f"overlap: {unread[0]!r} is not known; known are {', '.join((*OVERLAPS, *LISTED))}"
        )
    return flagged(graphed(stack, cuda_graphs or ""), flags or "")


def flagged(stack: Stack, words: str) -> Stack:
    """Apply further flags of a launch file: kernels, and copies of weights."""
    for word in words.replace(",", " ").split():
        name, equals, number = word.partition("=")
        if name + equals in NUMBERED and number.isdigit():
            stack = NUMBERED[name + equals](stack, int(number))
        elif word in FLAGS:
            stack = FLAGS[word](stack)
        else:
            numbered = ", ".join(f"{flag}N" for flag in NUMBERED)
            raise AtollError(
                f"flags: {word!r} is not known; known are {', '.join(FLAGS)}, {numbered}"
            )
    return stack


def overlapping(stack: Stack, words: str) -> tuple[Stack, tuple[str, ...]]:
    """Apply a launch file's overlap settings, and return the unknown words. Known are tp_comm,
    grad_reduce, zero_grad_reduce (with ZeRO outside of a pipeline, as in DeepSpeed),
    no_grad_reduce, p2p, ep_a2a. With any setting, tensor collectives overlap only if listed.
    """
    all_words = words.lower().replace(",", " ").split()
    listed = [word for word in all_words if not word.startswith(DISPATCHER)]
    overlap, usual = stack.overlap, NEMO.overlap
    if listed:
        inside = usual.tensor_products if "tp_comm" in listed else 0.0
        summed = overlap.summed if overlap.tensor_products else usual.summed
        overlap = replace(overlap, tensor_products=inside, summed=summed)
    if "grad_reduce" in listed:
        overlap = replace(overlap, gradient=max(overlap.gradient, usual.gradient))
    if "zero_grad_reduce" in listed:
        overlap = replace(overlap, undivided=0.0, piped=0.0)
    if "no_grad_reduce" in listed:  # the file does not switch it on
        overlap = replace(overlap, gradient=0.0)
    if "p2p" in listed:
        overlap = replace(overlap, pipeline=max(overlap.pipeline, usual.pipeline))
    if "ep_a2a" in listed:
        overlap = replace(overlap, experts=max(overlap.experts, HIDDEN_EXCHANGE))
    if "delay_wgrad" in listed and "grad_reduce" not in listed:
        # Delayed weight gradients leave nothing to hide behind.
        overlap = replace(overlap, gradient=0.0)
    unread = tuple(word for word in listed if word not in (*OVERLAPS, *LISTED))
    dispatchers = [
        word.removeprefix(DISPATCHER) for word in all_words if word.startswith(DISPATCHER)
    ]
    once = dispatchers[-1] in SENDING_ONCE if dispatchers else stack.sends_once
    return replace(stack, overlap=overlap, sends_once=once), unread


def graphed(stack: Stack, words: str) -> Stack:
    """Apply CUDA graphs: of iterations or layers, which leave no launches to the host, or of parts
    of layers, which leave half.
    """
    graphs = words.strip().lower()
    if graphs in OFF:
        return stack
    parts = "attn" in graphs or "moe" in graphs or "mlp" in graphs
    left = 0.5 if parts and "iteration" not in graphs else 0.0
    return replace(
        stack,
        graphs=graphs,
        host_layer_s=left * stack.host_layer_s,
        host_kernel_s=left * stack.host_kernel_s,
        host_tensor_s=left * stack.host_tensor_s,
        host_checkpoint_s=left * stack.host_checkpoint_s,
        host_routed_s=left * stack.host_routed_s,
    )
