"""The software under a training run: which kernels it launches, what they move and keep.

The same layer costs differently in eager PyTorch (every element-wise step is a kernel with its own
round trip through HBM) and in a framework with fused kernels. Bytes per element below are counted
from what each kernel reads and writes (16-bit tensors, fp32 where the framework casts); functions
that are not listed take the bytes that the calibration measured for PyTorch's single kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from atoll.files.yamlfile import shipped_table
from atoll.registry import Registry
from atoll.step.orders import ORDERS


@dataclass(frozen=True, slots=True)
class Passes:
    """A vector function as this stack runs it."""

    bytes: float  # moved through HBM, per element
    kernels: int


@dataclass(frozen=True, slots=True)
class Overlap:
    """Which communication runs beside computation: the share of it that may hide, by kind."""

    gradient: float = 0.0
    """Gradient reduction, behind the last microbatch's backward pass."""
    undivided: float = 1.0
    """Of that share, what is left where ZeRO divides nothing."""
    piped: float = 1.0
    """Of that share, what is left in a pipeline."""
    gather: float = 0.0
    """Weight gathers and gradient scatters of fully sharded layers, behind their neighbours."""
    tensor: float = 0.0
    """Backward collectives of tensor parallelism, behind weight gradients."""
    tensor_products: float = 0.0
    """All collectives of tensor parallelism, chunk by chunk behind the products beside them."""
    summed: bool = True
    """Whether all-reduces hide so too; else gathers and scatters alone, which sequence parallelism
    has (user buffers of Transformer Engine, torch's asynchronous tensor parallelism)."""
    pipeline: float = 0.0
    """Sends between stages, behind the next microbatch."""
    experts: float = 0.0
    """All-to-all of tokens, behind the dense part of a layer."""
    ring: float = 1.0
    """Keys and values of ring attention, behind the block being computed."""

    def in_products(self, sp: bool) -> float:
        """Share of tensor parallelism's collectives that hides inside products, with sequence
        parallelism or without.
        """
        return self.tensor_products if sp or self.summed else 0.0

    def hidden_gradient(self, zero: int, pp: int) -> float:
        """Share of the gradient reduction that may hide, under a ZeRO stage in so many stages of a
        pipeline.
        """
        return self.gradient * (1.0 if zero else self.undivided) * (1.0 if pp == 1 else self.piped)


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
    composed_gelu: bool
    """Models that spell the tanh formula of GELU out really run it step by step."""
    padded: bool
    """Vocabularies are padded to whole vectors (128 times the tensor width in Megatron-LM)."""
    loss_bytes: float
    """Bytes per logit alive at the peak of the loss."""
    loss_kept: float
    """Bytes per logit kept from the forward to the backward pass of the loss."""
    half_loss_bytes: float
    """The same at the peak where the loss takes 16-bit logits (masked language models)."""
    vocabulary_parallel: bool
    """The loss works on each tensor rank's part of the logits, not on gathered ones."""
    keeps_gathered: bool
    """Sequence parallelism keeps gathered inputs for backward instead of gathering them again."""
    overlap: Overlap
    late_gradients: bool
    """Gradients are allocated as the backward pass makes them, not before the step."""
    accumulated_bytes: float = 6.0
    """Bytes per parameter that a microbatch's gradients take to be added to those before: three
    16-bit passes of a kernel of its own."""
    adds_in_products: bool = False
    """They are added by the products that make them instead, which read and write the sum where
    they would write a 16-bit result."""
    temporaries: float = 1.0
    """Share of the widest operator's tensors that is alive beside a block's."""
    sends_held: int = 0
    """Activations in transfer that a stage holds beside those of its microbatches."""
    fragmentation: float = 0.07
    """Of what is allocated, lost between blocks."""
    context_bytes: float = 3.6e9
    """Outside the allocator: driver context (1.6 GB) and buffers of collectives."""
    fp8_copies: float = 0.0
    """Bytes a parameter of fp8 copies of blocks' weights, kept beside the 16-bit ones."""
    scaled_weights: bool = False
    """Frozen weights of fp8 and fp4 products are kept in that format alone."""
    scaled_inputs: bool = False
    """Inputs of fp8 and fp4 products are kept for their weight gradients as they were cast."""
    workspaces: int = 0
    """Handles of matrix libraries, each with a workspace of its own."""
    expert_workspaces: int = 0
    """More of them where experts' products run side by side."""
    deferred_heads: int = 0
    """Microbatches whose weight gradient of the head waits for the end of the step."""
    step_s: float = 5e-3
    """Once a step: data, clipping, logging."""
    gather_efficiency: float = 1.0
    """Of the network's own, when weights are gathered: below 1 where tensor by tensor."""
    gathered_layers: float = 2.0
    """Layers whose divided weights are whole at the same time under ZeRO 3."""
    regathers: bool = False
    """Under ZeRO 2 weights are divided between microbatches too and gathered again for each, as
    FSDP's SHARD_GRAD_OP does; others gather them once, behind the optimizer's step."""
    slack: float = 1.0
    """Time of a step over what its parts explain: allocator, interpreter, waiting."""
    straggling: float = 1.0
    """The same where several nodes wait for the slowest of them."""
    exchanges_heads: bool = False
    """Context parallelism gives every device whole sequences of some heads, where these divide
    (all-to-all, as DeepSpeed-Ulysses), instead of keys and values that go round a ring."""
    adapters_exchange_heads: bool = False
    """The same of runs with adapters."""
    host_layer_s: float = 0.0
    """Host time of a layer's forward and backward pass beside its kernels."""
    host_kernel_s: float = 0.0
    """Host time of a kernel launched one by one."""
    host_checkpoint_s: float = 0.0
    """Host time of recomputing a layer beside its kernels (random states, nested graphs)."""
    host_expert_s: float = 0.0
    """Host time of one expert in one pass: indices that must be read back to be used."""
    host_routed_s: float = 0.0
    """Host time of a layer with experts in one pass beside that of others: routing, permutation and
    exchange are many small kernels, launched one by one."""
    graphs: str = ""
    """CUDA graphs that its host times are those of; none where kernels are launched one by one."""
    routed_bytes: float = 0.0
    """Bytes per element of the rows that go to experts, in each pass: copied to and from buffers of
    the exchange, sorted by expert, padded."""
    halves_bytes: Mapping[str, float] = field(default_factory=dict)
    """Bytes per element of experts' gates by kind of operator, beyond those of their functions:
    gate and up are halves of one tensor."""
    fused_casts: tuple[str, ...] = ()
    """Formats to which experts' inputs are cast by the kernels that make them; to others expert by
    expert."""
    weighs_inside: bool = False
    """Gates weigh what experts do in their activation, so that their results are not kept."""
    sends_once: bool = False
    """A token goes once to a node and to a device in it, however many of its experts lie there
    (DeepEP, HybridEP), not once for each of them."""
    ragged_heads: float = 1.0
    """How much longer unfused attention's products take than others off 16-byte addresses, where a
    head is no multiple of 8 elements."""
    hosts_blocks: bool = False
    """Fully sharded blocks that keep all leave what does not fit in the host's memory ("host")."""
    states: str = "mixed"
    """Bytes of weights, gradients and optimizer that it usually keeps (`step.states`)."""
    attention: str = "flash"
    """The kernel that it usually has: flash, flash2, flash1 or unfused."""
    orders: tuple[str, ...] = ORDERS
    """Pipeline orders that it runs, itself or by an implementation published for it."""
    balances: bool = True
    """Stages may hold fewer blocks where more stands beside them; else as even numbers as can be.
    """

    def gives_heads(self, kv_heads: int, cp: int) -> bool:
        """Whether context parallelism exchanges heads: as long as key heads divide."""
        return self.exchanges_heads and cp > 1 and kv_heads % cp == 0


# Families that call the formula of GELU step by step. (BigCode calls the fused one; T5 1.1 and mT5
# have it in their gate, BLOOM a formula of its own.)
COMPOSED_GELU = frozenset({"gpt2", "gptj", "gpt_neo", "phi", "bloom", "t5", "mt5"})


def _stack(name: str, given: dict[str, Any]) -> Stack:
    """One of stacks.yaml."""
    told: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in given.items()}
    passes = {function: Passes(**moved) for function, moved in given["passes"].items()}
    return Stack(**told | {"name": name, "passes": passes, "overlap": Overlap(**given["overlap"])})


_READ = shipped_table("atoll.training", "stacks.yaml")["stacks"]
_OURS = {name: _stack(name, given) for name, given in _READ.items()}
CHIP, XLA, EAGER, COMPILED = (_OURS[name] for name in ("chip", "xla", "eager", "compiled"))
MEGATRON, NEMO, FSDP = (_OURS[name] for name in ("megatron", "nemo", "fsdp"))
STACKS = Registry("stacks", Stack, (
    CHIP, XLA, EAGER, COMPILED, _OURS["modular"], _OURS["modular-norm"], _OURS["modular-lean"],
    MEGATRON, _OURS["megatron-2021"], _OURS["zero3-2021"], NEMO, FSDP, _OURS["fsdp-2023"],
))  # fmt: skip
"""In the order in which they are listed."""


def with_adapters(stack: Stack) -> Stack:
    """The stack where weights are frozen. Composed norms of scales that are not trained neither
    keep the normed value nor make the product with it and its sum.
    """
    stack = replace(stack, exchanges_heads=stack.adapters_exchange_heads)
    if "rmsnorm" not in stack.kept:
        return stack
    back = EAGER.passes["rmsnorm_bwd"]
    passes = {
        **stack.passes,
        "rmsnorm_bwd": Passes(back.bytes - 10, back.kernels - 2),
    }
    return replace(stack, passes=passes, kept={**stack.kept, "rmsnorm": 2})


def fused_loss(stack: Stack) -> Stack:
    """With a loss that turns 16-bit logits into their gradient in place, as Transformer Engine's
    and Liger's kernels do.
    """
    # Read for the largest and the sum, and again for the gradient that is written; then scaled.
    passes = {**stack.passes, "cross_entropy": Passes(6, 1), "cross_entropy_bwd": Passes(4, 1)}
    return replace(stack, passes=passes, loss_bytes=2, loss_kept=2, half_loss_bytes=2)
