"""Software stacks: the kernels that a training run launches, and the bytes they move and keep.

A layer costs more in eager PyTorch (every element-wise step is a kernel with a round trip through
HBM) than in a framework with fused kernels. Bytes per element are counted from what each kernel
reads and writes (16-bit tensors, fp32 where the framework casts); functions that are not listed
move the bytes that the calibration measured for PyTorch's single kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from atoll.base.registry import Registry
from atoll.files.yamlfile import shipped_table
from atoll.step.orders import ORDERS


@dataclass(frozen=True, slots=True)
class VectorPasses:
    """Traffic and kernels of a vector function in a stack."""

    bytes: float  # moved through HBM, per element
    kernels: int
    slow_bytes: float = 0.0
    """Those of `bytes` that are moved by kernels which the SMs may limit."""
    slow_elements: float = 0.0
    """Elements that these kernels process, per element (`Gpu.slow_elements_per_s`)."""

    def limited(self, stream_Bps: float, elements_per_s: float) -> VectorPasses:
        """Return the passes with the bytes that streaming kernels move in the same time."""
        if not self.slow_elements or not elements_per_s:
            return self
        slow = max(self.slow_bytes, self.slow_elements * stream_Bps / elements_per_s)
        return replace(self, bytes=self.bytes - self.slow_bytes + slow)


@dataclass(frozen=True, slots=True)
class Overlap:
    """Shares of communication that may hide behind computation, by kind."""

    gradient: float = 0.0
    """Gradient reduction, behind the last microbatch's backward pass."""
    undivided: float = 1.0
    """Factor on `gradient` with ZeRO 0."""
    piped: float = 1.0
    """Factor on `gradient` in a pipeline."""
    gather: float = 0.0
    """Weight gathers and gradient scatters of fully sharded layers, behind their neighbours."""
    tensor: float = 0.0
    """Backward collectives of tensor parallelism, behind weight gradients."""
    tensor_products: float = 0.0
    """All collectives of tensor parallelism, in chunks behind the adjacent products."""
    summed: bool = True
    """Whether `tensor_products` holds for all-reduces; otherwise only for the gathers and scatters
    of sequence parallelism (Transformer Engine's user buffers, torch's asynchronous tp)."""
    pipeline: float = 0.0
    """Sends between stages, behind the next microbatch."""
    experts: float = 0.0
    """All-to-all of tokens, behind the dense part of a layer."""
    ring: float = 1.0
    """Keys and values of ring attention, behind the block being computed."""

    def in_products(self, sp: bool) -> float:
        """Return the share of tensor-parallel collectives that hides inside products."""
        return self.tensor_products if sp or self.summed else 0.0

    def hidden_gradient(self, zero: int, pp: int) -> float:
        """Return the share of the gradient reduction that may hide."""
        return self.gradient * (1.0 if zero else self.undivided) * (1.0 if pp == 1 else self.piped)


@dataclass(frozen=True)
class Stack:
    """Kernels, memory and overlap of one framework."""

    name: str
    passes: Mapping[str, VectorPasses]
    """Functions whose traffic differs from the calibrated single kernel."""
    kept: Mapping[str, float]
    """Bytes per element that a function keeps for backward beyond its input and output."""
    split_products: bool
    """Queries, keys and values (gate and up) are separate products."""
    composed_gelu: bool
    """Models that write out the tanh formula of GELU run it step by step."""
    padded: bool
    """Vocabularies are padded to whole vectors (128 times the tensor width in Megatron-LM)."""
    loss_bytes: float
    """Bytes per logit alive at the peak of the loss."""
    loss_kept: float
    """Bytes per logit kept from the forward to the backward pass of the loss."""
    half_loss_bytes: float
    """`loss_bytes` where the loss takes 16-bit logits (masked language models)."""
    vocabulary_parallel: bool
    """The loss works on each tensor rank's part of the logits, not on gathered logits."""
    divides_table: bool = field(default=True, kw_only=True)
    """Tensor ranks divide the embedding's rows and the loss."""
    keeps_gathered: bool
    """Sequence parallelism keeps gathered inputs for backward instead of gathering them again."""
    keeps_gather_buffer: bool = field(default=False, kw_only=True)
    """Sequences are gathered into a buffer that stays allocated."""
    overlap: Overlap
    late_gradients: bool
    """Gradients are allocated during the backward pass, not before the step."""
    buckets: bool = False
    """Several replicas (ZeRO 0) keep gradients in buckets from step to step, as DDP does."""
    pads_experts: bool = False
    """Experts' weights are divided by experts, and padded to a multiple of the ranks."""
    delays_reduction: bool = False
    """Under FSDP, gradients of several microbatches are kept undivided and reduced once."""
    parallel_loss_bytes: float = 0.0
    """Further bytes per logit at the peak of a loss that is divided over tensor ranks."""
    copies_sequences: bool = False
    """Collectives over sequences copy their tensors, as torch's functional ones do."""
    loss_chunks: int = 1
    """Parts of a microbatch's tokens whose logits exist one after another."""
    loss_columns: int = 0
    """Words of the vocabulary whose logits exist at a time; 0: all."""
    recomputes_loss: bool = False
    """Logits and losses of chunks are computed again in the backward pass."""
    accumulated_bytes: float = 6.0
    """Bytes moved per parameter to accumulate a microbatch's gradients: three 16-bit passes of a
    separate kernel."""
    adds_in_products: bool = False
    """The products of weight gradients accumulate: they read and write the sum instead of writing a
    16-bit result."""
    adds_first: bool = False
    """The first microbatch's gradients are added to zeros like all others."""
    temporaries: float = 1.0
    """Share of the widest operator's tensors that is alive in addition to a block's tensors."""
    optimizer: str = "fused"
    """Kernels of the optimizer: fused, foreach or forloop (`UPDATES`)."""
    update_parameters: float = 0.0
    """Parameters whose gradients the optimizer copies to fp32 at a time; 0: none."""
    scales_gradients: bool = False
    """Gradients are divided by the number of ranks by a kernel before they are reduced."""
    zeroes_gradients: bool = False
    """The buffer of gradients is zeroed for every step."""
    hosts_optimizer: bool = False
    """Optimizer states lie in the host's memory: updated there under ZeRO 2 and 3 (DeepSpeed),
    otherwise paged to the device (bitsandbytes)."""
    clips: bool = False
    """Gradients are scaled to a norm by kernels of their own."""
    sends_held: int = 0
    """Activations in transfer per stage, in addition to those of its microbatches."""
    cached_gathers: float = 0.0
    """Bytes cached under FSDP per byte of weights that are gathered during the loss: buffers of
    gathers belong to other streams."""
    cached_loss: float = 0.0
    """Share of the loss's tensors that FSDP's allocator has to reserve again, as other tensors lie
    in them; 0: the cache is a share of all tensors (`memory.RESERVED`)."""
    fragmentation: float = 0.07
    """Share of allocated bytes lost between blocks."""
    context_bytes: float = 3.6e9
    """Bytes outside of the allocator: driver context (1.6 GB) and buffers of collectives."""
    fp8_copies: float = 0.0
    """Bytes per parameter of fp8 copies of blocks' weights, in addition to 16-bit weights."""
    scaled_weights: bool = False
    """Frozen weights of fp8 and fp4 products are kept only in that format."""
    frozen_bytes: float | None = None
    """Bytes per frozen weight of a block that is stored in few bits; None: as trained ones."""
    fp32_adapters: bool = False
    """Adapters are kept in fp32 beside 16-bit weights, as PEFT does by default."""
    cast_adapters: bool = False
    """Autocast multiplies such adapters in 16 bits, and casts their inputs up and down again."""
    adapter_dropout: bool = False
    """Inputs of adapters go through dropout."""
    scaled_inputs: bool = False
    """Cast inputs of fp8 and fp4 products are kept for their weight gradients."""
    workspaces: int = 0
    """Handles of matrix libraries, each with a workspace."""
    expert_workspaces: int = 0
    """Further handles where experts' products run in parallel."""
    deferred_heads: int = 0
    """Microbatches whose weight gradient of the head is delayed to the end of the step."""
    step_s: float = 5e-3
    """Fixed time per step: data, clipping, logging."""
    gather_efficiency: float = 1.0
    """Factor on the bandwidth of weight gathers: below 1 if they are per tensor."""
    gathered_layers: float = 2.0
    """Layers with gathered weights at a time under ZeRO 3."""
    gathered_at_loss: tuple[str, ...] = ()
    """Layers ("block": the last one) whose gathered weights exist during the loss under ZeRO 3, as
    FSDP has them; empty: as many as in a block's backward pass."""
    regathers: bool = False
    """Under ZeRO 2 weights are gathered again per microbatch, as in FSDP's SHARD_GRAD_OP; otherwise
    once, after the optimizer's step."""
    slack: float = 1.0
    """Step time over the sum of its parts: allocator, interpreter, waiting."""
    reduces_all: bool = False
    """Under ZeRO 2 gradients are all-reduced, and every rank keeps its part (DeepSpeed's
    `reduce_scatter` is off)."""
    exchanges_heads: bool = False
    """Context parallelism exchanges heads where cp divides them (all-to-all, as DeepSpeed-Ulysses),
    instead of sending keys and values round a ring."""
    repeats_heads: bool = False
    """Key heads are repeated where more ranks exchange heads than there are."""
    adapters_exchange_heads: bool = False
    """`exchanges_heads` of runs with adapters."""
    host_layer_s: float = 0.0
    """Host time of a layer's forward and backward pass, without kernel launches."""
    host_kernel_s: float = 0.0
    """Host time per kernel launch."""
    host_checkpoint_s: float = 0.0
    """Host time of recomputing a layer, without launches (random states, nested graphs)."""
    host_expert_s: float = 0.0
    """Host time per expert and pass, for indices that are read back."""
    host_routed_s: float = 0.0
    """Additional host time per pass of a layer with experts: routing, permutation and exchange are
    many small kernels."""
    host_module_s: float = 0.0
    """Additional host time per pass of a module with weights under ZeRO 3: hooks that gather and
    free them."""
    host_gather_s: float = 0.0
    """The same for the collective of several ranks."""
    host_tensor_s: float = 0.0
    """Host time per tensor of a fused optimizer's step; 0: part of `step_s`."""
    graphs: str = ""
    """CUDA graphs included in the host times; empty: single launches."""
    routed_bytes: float = 0.0
    """Bytes per element of the rows sent to experts, per pass: copied to and from buffers of the
    exchange, sorted by expert, padded."""
    halves_bytes: Mapping[str, float] = field(default_factory=dict)
    """Bytes per element of experts' gates by kind of operator, beyond those of their functions:
    gate and up are halves of one tensor."""
    fused_casts: tuple[str, ...] = ()
    """Formats to which experts' inputs are cast by the kernels that write them; to others they are
    cast per expert."""
    weighs_inside: bool = False
    """Gates weight the experts' activations, so that the experts' results are not kept."""
    sends_once: bool = False
    """A token is sent once per node and device (DeepEP, HybridEP), not once per expert."""
    dense_mask: str = ""
    """Fused attention that gets a dense mask and computes the full square: "all", or "windows"."""
    plain_scores: bool = False
    """Unfused attention launches the passes of Hugging Face's modules, of which those of decoders
    keep an fp32 softmax; every block casts its dense mask."""
    math_attention: bool = False
    """SDPA's math back end, in fp32: of unfused attention, or of trained position biases only."""
    autocast_alone: bool = False
    """On one device, weights are fp32 and products under autocast."""
    autocast: bool = False
    """fp32 weights are cast for every product, and the residual stream stays in fp32."""
    module_experts: str = ""
    """Experts of Hugging Face's modules: "grouped" products with masks, or "sliced" in a loop."""
    fp32_table: bool = False
    """Gradients of an embedding are added to an fp32 table, which is then cast (Inductor)."""
    plain_mixers: bool = False
    """State-space blocks run without their fused kernels (Mamba-2's, in fp32)."""
    wide: str = ""
    """Format of products of fp32 activations: fp32 or tf32; empty: 16 bits."""
    ragged_heads: float = 1.0
    """Factor on unfused attention's products if a head is not a multiple of 8 elements."""
    hosts_blocks: bool = False
    """Fully sharded blocks without recomputation use host memory for what does not fit ("host")."""
    states: str = "mixed"
    """Usual bytes of weights, gradients and optimizer (`step.states`)."""
    attention: str = "flash"
    """Usual attention kernel: flash, flash2, flash1 or unfused."""
    orders: tuple[str, ...] = ORDERS
    """Supported pipeline orders, built in or by a published implementation."""
    balances: bool = True
    """Stages with other layers may hold fewer blocks; otherwise blocks are spread evenly."""

    @property
    def choices(self) -> tuple[str, ...]:
        """Kernels that differ from the usual ones, in words."""
        choices = SOFTWARE["choices"]
        words = [text for name, value, text in choices if getattr(self, name) == value]
        return (*words, *[f"loss in {self.loss_chunks} chunks"] * (self.loss_chunks > 1))

    def gives_heads(self, kv_heads: int, cp: int) -> bool:
        """Return whether context parallelism exchanges heads, repeated ones where it may."""
        repeated = self.repeats_heads and kv_heads > 0 and cp % kv_heads == 0
        return self.exchanges_heads and cp > 1 and (kv_heads % cp == 0 or repeated)


SOFTWARE = shipped_table("atoll.tools", "software.yaml")
UPDATES: Mapping[str, float] = {"foreach": 25.2, "forloop": 22.3, "adafactor": 21.2}
"""Elements per parameter that an AdamW of separate kernels reads and writes: 21 (two scalings of 2,
lerp 3, addcmul 4, square root 2, division 2, addition 2, addcdiv 4), of which multi_tensor_apply
moves 3.4 and single kernels 3.9 TB/s on an H200 instead of the streaming rate."""
HOST_UPDATES: Mapping[str, float] = {
    "fused": 1.0, "foreach": 2.0, "forloop": 11.0, "adafactor": 26.0, "8bit": 11.0,
}  # fmt: skip
"""Host time of an optimizer over that of a fused one, which gathers all tensors in Python: a
for-loop launches 8 kernels per tensor, Adafactor 19 (h200_steps_4.csv)."""
CLIP_ELEMENTS = 4.2
"""Elements that clipping moves, likewise: the norm reads 1, the scaling reads and writes 1."""
# Families that compute GELU's formula step by step. (BigCode calls the fused kernel; T5 1.1 and mT5
# have it in their gate, BLOOM has another formula.)
COMPOSED_GELU = frozenset({"gpt2", "gptj", "gpt_neo", "phi", "bloom", "t5", "mt5"})


def _passes(table: str) -> dict[str, VectorPasses]:
    return {name: VectorPasses(**moved) for name, moved in KERNELS[table].items()}


def _load_stacks() -> Iterator[Stack]:
    """Yield the stacks of all tools; an entry that is `like` another states only what differs."""
    entries: dict[str, dict[str, Any]] = {}
    for folder in FOLDERS:
        stacks = shipped_table(f"atoll.tools.{folder}", "tool.yaml").get("stacks", {})
        for name, entry in stacks.items():
            fields: dict[str, Any] = {
                n: tuple(v) if isinstance(v, list) else v for n, v in entry.items()
            }
            like = entries.get(fields.pop("like", ""), {})
            entries[name] = {**like, **fields, "name": name}
            STACK_FOLDERS[name] = folder
    for entry in entries.values():
        passes, overlap = _passes(entry["passes"]), Overlap(**entry["overlap"])
        yield Stack(**entry | {"passes": passes, "overlap": overlap})


FOLDERS = (
    "chip", "pytorch", "megatron_lm", "xla", "deepspeed", "nemo", "torchtitan", "transformers",
    "nanotron", "gpt_neox", "trl", "llama_factory",
)  # fmt: skip
"""One folder per tool; a stack is like one of an earlier folder."""
STACK_FOLDERS: dict[str, str] = {}
"""Folder of the tool that has a stack, by the stack's name."""
KERNELS = shipped_table("atoll.tools", "kernels.yaml")
STACKS = Registry("stacks", Stack, _load_stacks())
CHIP, XLA, EAGER, COMPILED, MEGATRON, NEMO, FSDP = (
    STACKS[name] for name in ("chip", "xla", "eager", "compiled", "megatron", "nemo", "fsdp")
)


def changed(stack: Stack, changes: Mapping[str, Any]) -> Stack:
    """Return the stack with changed fields (`software.yaml`). `kernels` replaces the passes of all
    functions by those of a table, `passes` and `kept` those of the listed functions; null removes.
    """
    changes = dict(changes)
    passes = dict(stack.passes)
    if table := changes.pop("kernels", None):
        passes = _passes(table)
    for name, moved in KERNELS[changes.pop("passes", "single")].items():
        passes[name] = moved and VectorPasses(**moved)
    kept = {**stack.kept, **changes.pop("kept", {})}
    return replace(
        stack,
        passes={name: moved for name, moved in passes.items() if moved is not None},
        kept={name: size for name, size in kept.items() if size is not None},
        **changes,
    )


def with_adapters(stack: Stack) -> Stack:
    """Adapt the stack to frozen weights."""
    stack = replace(stack, exchanges_heads=stack.adapters_exchange_heads)
    return changed(stack, SOFTWARE["frozen_norms"]) if "rmsnorm" in stack.kept else stack
