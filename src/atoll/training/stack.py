"""The software under a training run: which kernels it launches, what they move and keep.

The same layer costs differently in eager PyTorch (every element-wise step is a kernel with its own
round trip through HBM) and in a framework with fused kernels. Bytes per element below are counted
from what each kernel reads and writes (16-bit tensors, fp32 where the framework casts); functions
that are not listed take the bytes that the calibration measured for PyTorch's single kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from atoll.hardware.gpu import SCALED
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
    gather: float = 0.0
    """Weight gathers and gradient scatters of fully sharded layers, behind their neighbours."""
    tensor: float = 0.0
    """Backward collectives of tensor parallelism, behind weight gradients."""
    tensor_products: float = 0.0
    """All collectives of tensor parallelism, chunk by chunk behind the products beside them."""
    pipeline: float = 0.0
    """Sends between stages, behind the next microbatch."""
    experts: float = 0.0
    """All-to-all of tokens, behind the dense part of a layer."""
    ring: float = 1.0
    """Keys and values of ring attention, behind the block being computed."""


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

    def gives_heads(self, kv_heads: int, cp: int) -> bool:
        """Whether context parallelism exchanges heads: as long as key heads divide."""
        return self.exchanges_heads and cp > 1 and kv_heads % cp == 0


# LlamaRMSNorm: cast up, square, mean, scale, cast down, weight; its backward undoes each.
_RMSNORM = Passes(38, 7)
_RMSNORM_BWD = Passes(86, 13)
# apply_rotary_pos_emb: two products, negate and concatenate the halves, add.
_ROTARY = Passes(24, 5)
_ROTARY_BWD = Passes(34, 9)
# NewGELUActivation spells the tanh formula out: pow, mul, add, mul, tanh, add, mul, mul.
_GELU_NEW = Passes(36, 8)
_GELU_NEW_BWD = Passes(56, 12)
# (BigCode calls the fused one; T5 1.1 and mT5 have it in their gate, BLOOM a formula of its own.)
COMPOSED_GELU = frozenset({"gpt2", "gptj", "gpt_neo", "phi", "bloom", "t5", "mt5"})

# torch.distributed.pipelining's, and DeepSeek's release of DualPipe.
TORCH_ORDERS = ("1f1b", "interleaved", "gpipe", "zb-v", "dualpipe")
# Before zero bubble (arXiv:2401.10241, published as a change of Megatron-LM), and today in NeMo and
# in programs of XLA, which hold whole backward passes.
FUSED_ORDERS = ("1f1b", "interleaved", "gpipe")

# Host times: fitted on small models of h200_steps.csv, which launches bind (docs/training.md).
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
    kept={"rmsnorm": 4, "gate": 2, "gelu_new": 6},
    split_products=True,
    composed_gelu=True,
    padded=False,
    # log-softmax, the loss's gradient and the logits' gradient, all fp32.
    loss_bytes=12,
    loss_kept=4,
    half_loss_bytes=6,
    vocabulary_parallel=True,
    keeps_gathered=False,
    overlap=Overlap(gradient=1.0),
    late_gradients=True,
    step_s=0.7e-3,
    host_layer_s=1.4e-3,
    host_kernel_s=10.7e-6,
    host_checkpoint_s=2.2e-3,
    host_expert_s=0.2e-3,
    routed_bytes=37,  # h200_moe.csv: 49 to add rows up again, 55 for both gradients
    orders=TORCH_ORDERS,
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
    "softmax": Passes(4, 1),
    "softmax_bwd": Passes(6, 1),
    "silu": Passes(2, 0),  # with `mul`: gate and up read, product written
    "mul": Passes(4, 1),
    "silu_bwd": Passes(4, 0),
    "mul_bwd": Passes(6, 1),
}

COMPILED = Stack(
    name="compiled",
    passes=_FUSED_PASSES,
    kept={},
    split_products=True,
    composed_gelu=False,
    padded=True,
    loss_bytes=7.5,
    loss_kept=4,
    half_loss_bytes=6,
    vocabulary_parallel=True,
    keeps_gathered=False,
    overlap=Overlap(gradient=1.0),
    late_gradients=True,
    orders=TORCH_ORDERS,
)

# Megatron-LM since 2023: fused kernels, gradients reduced while the last backward pass runs.
MEGATRON = Stack(
    name="megatron",
    passes=_FUSED_PASSES,
    kept={},
    split_products=False,
    composed_gelu=False,
    padded=True,
    # Vocabulary-parallel cross entropy: 16-bit logits and fp32 ones, which turn into probabilities
    # and into their own gradient in place.
    loss_bytes=6,
    loss_kept=4,
    half_loss_bytes=6,
    vocabulary_parallel=True,
    keeps_gathered=False,
    overlap=Overlap(gradient=0.9, gather=0.8, tensor=0.3, pipeline=0.5),
    late_gradients=False,
    # PyTorch's handles of the forward and of the backward thread, Transformer Engine's own; its
    # grouped products run on four streams.
    adds_in_products=True,
    workspaces=3,
    expert_workspaces=4,
    fp8_copies=2,  # one by rows and one by columns
    scaled_inputs=True,  # as Transformer Engine keeps them
    # Host times are 0.8 of eager PyTorch's.
    host_layer_s=1.1e-3,
    host_kernel_s=8.6e-6,
    host_checkpoint_s=1.8e-3,
    host_routed_s=5.5e-3,
    routed_bytes=22,
)

# Megatron-LM and Megatron-DeepSpeed before that: reductions and sends wait their turn.
# The loss made its gradient in new memory; workspaces were the library's own memory.
MEGATRON_2021 = replace(
    MEGATRON,
    name="megatron-2021",
    loss_bytes=10,
    half_loss_bytes=10,
    workspaces=0,
    expert_workspaces=0,
    overlap=Overlap(tensor=0.3),
    straggling=1.06,
    attention="unfused",
    # Batched products off 16-byte addresses left the tensor cores: 5 times as slow as by today's
    # libraries, as seven runs with heads of 108 and of 150 show.
    ragged_heads=5.0,
    orders=FUSED_ORDERS,
)

# DeepSpeed's ZeRO 3 of the same time gathered parameter by parameter, each from its owner.
ZERO3_2021 = replace(MEGATRON_2021, name="zero3-2021", gather_efficiency=0.2)

# NeMo and Megatron-Core with user buffers: tensor-parallel collectives hide inside products. Its
# fp8 recipes keep weights in fp8 alone.
NEMO = replace(
    MEGATRON,
    name="nemo",
    # Reductions beside a backward pass take part of its bandwidth and cores.
    overlap=replace(MEGATRON.overlap, gradient=0.5, tensor_products=0.6, pipeline=0.8),
    adapters_exchange_heads=True,  # cp_comm_type of its configurations for adapters
    fp8_copies=0,
    scaled_weights=True,
    fused_casts=("mxfp8", "nvfp4"),
    sends_once=True,
    weighs_inside=True,
    states="mixed16",
    fragmentation=0.03,  # its recipes let segments of the allocator grow
    orders=FUSED_ORDERS,
)

# PyTorch modules with flash attention and nothing else fused, under Megatron-like parallelism.
MODULAR = replace(
    EAGER,
    name="modular",
    padded=True,
    vocabulary_parallel=False,
    keeps_gathered=True,
    # Rotary positions computed in fp32 keep their input, an fp32 residual stream its two sums.
    kept={**EAGER.kept, "rotary": 4, "add": 2},
    # 16-bit and fp32 logits beside the loss's own three fp32 tensors.
    loss_bytes=18,
    overlap=Overlap(gradient=0.5),
    late_gradients=False,
    step_s=5e-3,
    slack=1.12,
    states="mixed16",
    attention="flash2",
)

# The same with a fused norm.
MODULAR_NORM = replace(
    MODULAR,
    name="modular-norm",
    passes={k: v for k, v in EAGER.passes.items() if not k.startswith("rmsnorm")}
    | {k: v for k, v in _FUSED_PASSES.items() if k.startswith("rmsnorm")},
    kept={k: v for k, v in MODULAR.kept.items() if k != "rmsnorm"},
)

# The same with the loss on divided logits and a 16-bit residual stream.
MODULAR_LEAN = replace(
    MODULAR,
    name="modular-lean",
    vocabulary_parallel=True,
    kept=EAGER.kept,
    loss_bytes=6,
    slack=1.06,
    host_layer_s=4.7e-3,  # of nanotron, as its small models show
)

# PyTorch's fully sharded data parallelism around such modules.
FSDP = replace(
    MODULAR_LEAN,
    name="fsdp",
    padded=False,
    keeps_gathered=False,
    loss_bytes=12,
    regathers=True,
    slack=1.03,
    host_layer_s=EAGER.host_layer_s,
    overlap=Overlap(gradient=1.0, gather=0.8),
)

# As of 2023, before weights were gathered well ahead of their use in both passes.
FSDP_2023 = replace(
    FSDP, name="fsdp-2023", overlap=replace(FSDP.overlap, gather=0.3), attention="flash1"
)

# XLA: one compiled program a step, collectives scheduled beside computation.
XLA = replace(
    MEGATRON,
    name="xla",
    # What hides behind products, and how long several slices wait for the slowest: fitted on half
    # of the TPU runs of published_runs.csv (`benchmarks/fit_training.py`).
    overlap=Overlap(gradient=0.9, gather=0.9, tensor=0.9, tensor_products=0.8, pipeline=0.9),
    straggling=1.06,
    fused_casts=SCALED,
    late_gradients=True,
    gathered_layers=0.5,
    loss_bytes=10,
    half_loss_bytes=10,
    workspaces=0,
    expert_workspaces=0,
    fp8_copies=0,
    host_layer_s=0.0,
    host_kernel_s=0.0,
    host_checkpoint_s=0.0,
    # Buffers are laid out when the program is compiled; the runtime takes a little.
    fragmentation=0.03,
    context_bytes=0.5e9,
    orders=FUSED_ORDERS,
)

# A chip of the template: a compiler places tensors and schedules operators; nothing hides behind a
# pass but what its schedule holds, and the loss keeps what its graph says.
CHIP = Stack(
    name="chip",
    passes={},
    kept={},
    split_products=False,
    composed_gelu=False,
    padded=False,
    loss_bytes=0,
    loss_kept=0,
    half_loss_bytes=0,
    vocabulary_parallel=True,
    keeps_gathered=False,
    overlap=Overlap(ring=0.0),
    late_gradients=False,
    temporaries=0.0,
    accumulated_bytes=0.0,
    sends_held=2,
    fragmentation=0.0,
    context_bytes=0.0,
    step_s=0.0,
)

STACKS = Registry(
    "stacks",
    Stack,
    (
        CHIP,
        XLA,
        EAGER,
        COMPILED,
        MODULAR,
        MODULAR_NORM,
        MODULAR_LEAN,
        MEGATRON,
        MEGATRON_2021,
        ZERO3_2021,
        NEMO,
        FSDP,
        FSDP_2023,
    ),
)


def with_adapters(stack: Stack) -> Stack:
    """The stack where weights are frozen. Composed norms of scales that are not trained neither
    keep the normed value nor make the product with it and its sum.
    """
    stack = replace(stack, exchanges_heads=stack.adapters_exchange_heads)
    if "rmsnorm" not in stack.kept:
        return stack
    passes = {
        **stack.passes,
        "rmsnorm_bwd": Passes(_RMSNORM_BWD.bytes - 10, _RMSNORM_BWD.kernels - 2),
    }
    return replace(stack, passes=passes, kept={**stack.kept, "rmsnorm": 2})


def fused_loss(stack: Stack) -> Stack:
    """With a loss that turns 16-bit logits into their gradient in place, as Transformer Engine's
    and Liger's kernels do.
    """
    # Read for the largest and the sum, and again for the gradient that is written; then scaled.
    passes = {**stack.passes, "cross_entropy": Passes(6, 1), "cross_entropy_bwd": Passes(4, 1)}
    return replace(stack, passes=passes, loss_bytes=2, loss_kept=2, half_loss_bytes=2)
