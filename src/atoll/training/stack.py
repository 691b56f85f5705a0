"""The software under a training run: which kernels it launches, what they move and keep.

The same layer costs differently in eager PyTorch (every element-wise step is a kernel with its own
round trip through HBM) and in a framework with fused kernels. Bytes per element below are counted
from what each kernel reads and writes (16-bit tensors, fp32 where the framework casts); functions
that are not listed take the bytes that the calibration measured for PyTorch's single kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from atoll.errors import AtollError
from atoll.yamlfile import suggestion


@dataclass(frozen=True, slots=True)
class Passes:
    """A vector function as this stack runs it."""

    bytes: float  # moved through HBM, per element
    kernels: int


@dataclass(frozen=True)
class Stack:
    """One framework's habits."""

    name: str
    passes: Mapping[str, Passes]
    """Functions whose traffic differs from the calibrated single kernel."""
    kept: Mapping[str, float]
    """Bytes per element that a function keeps for backward beyond its input and output."""
    split_products: bool
    """Queries, keys and values (gate and up) are products of their own, not one."""
    loss_bytes: float
    """Bytes per logit alive at the peak of the loss."""
    loss_kept: float
    """Bytes per logit kept from the forward to the backward pass of the loss."""
    host_s: float
    """Host time per kernel launched one by one; 0 where launches run ahead of the device."""


# LlamaRMSNorm: cast up, square, mean, scale, cast down, weight; its backward undoes each.
_RMSNORM = Passes(38, 7)
_RMSNORM_BWD = Passes(86, 13)
# apply_rotary_pos_emb: two products, negate and concatenate the halves, add.
_ROTARY = Passes(24, 5)
_ROTARY_BWD = Passes(34, 9)
# NewGELUActivation spells the tanh formula out: pow, mul, add, mul, tanh, add, mul, mul.
_GELU_NEW = Passes(36, 8)
_GELU_NEW_BWD = Passes(56, 12)

EAGER = Stack(
    name="eager",
    passes={
        "rmsnorm": _RMSNORM,
        "rmsnorm_bwd": _RMSNORM_BWD,
        "rotary": _ROTARY,
        "rotary_bwd": _ROTARY_BWD,
        "gelu_new": _GELU_NEW,
        "gelu_new_bwd": _GELU_NEW_BWD,
    },
    # rmsnorm keeps an fp32 input and the normed value; a gated layer keeps silu(gate) too;
    # gelu_new keeps x/2, tanh and 1 + tanh beside its input.
    kept={"rmsnorm": 4, "silu_gate": 2, "gelu_new": 6},
    split_products=True,
    # log-softmax, the loss's gradient and the logits' gradient, all fp32.
    loss_bytes=12,
    loss_kept=4,
    host_s=6e-6,
)

# Fused: one kernel reads each operand once and writes its result once.
_FUSED_PASSES = {
    "rmsnorm": Passes(4, 1),
    "rmsnorm_bwd": Passes(8, 2),
    "layernorm": Passes(4, 1),
    "layernorm_bwd": Passes(8, 2),
    "rotary": Passes(4, 1),
    "rotary_bwd": Passes(4, 1),
    "dropout": Passes(1, 0),  # the mask; the rest belongs to the addition that follows
    "dropout_bwd": Passes(5, 1),
    "silu": Passes(2, 0),  # with `mul`: gate and up read, product written
    "mul": Passes(4, 1),
    "silu_bwd": Passes(4, 0),
    "mul_bwd": Passes(6, 1),
}

FUSED = Stack(
    name="fused",
    passes=_FUSED_PASSES,
    kept={},
    split_products=False,
    # Vocabulary-parallel cross entropy: fp32 logits turned into probabilities in place, and the
    # 16-bit logits and their gradient.
    loss_bytes=8,
    loss_kept=4,
    host_s=0.0,
)

STACKS = {stack.name: stack for stack in (EAGER, FUSED)}


def load_stack(name: str) -> Stack:
    """A stack by its name."""
    if name not in STACKS:
        raise AtollError(f"stack {name!r} is not known{suggestion(name, STACKS)}")
    return STACKS[name]
