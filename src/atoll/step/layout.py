"""How a training run is laid out over devices: the vocabulary of parallel axes, and its checks.

Axes follow the field's names. Ranks are ordered tensor fastest, then context, data, pipeline
(Megatron-LM's default order tp-cp-ep-dp-pp): a tensor group lies on neighbouring devices, stages
of a pipeline lie farthest apart. Experts of another tensor width fold over the same tensor, context
and data ranks: expert tensor fastest, then expert, then the ranks that share an expert
(Megatron-Core's MoE parallel folding, arXiv:2504.14960).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from math import isqrt
from typing import Literal, get_args

from atoll.base.errors import AtollError, check_count
from atoll.step.orders import ORDERS, SPLIT, TWO_CHUNKS, chunks_per_stage, model_copies
from atoll.workload.families.model_config import ModelConfig

Recompute = Literal["none", "selective", "alternate", "full", "optimal"]
RECOMPUTE: tuple[str, ...] = get_args(Recompute)
MODULES = ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts")
"""Parts of a block whose recomputation Megatron-Core can ask for, joined by "+"."""
HOSTED = ("attn_norm", "attn_proj", "core_attn", "expert_fc1", "mlp_norm", "moe_act", "qkv_linear")
"""Parts whose saved tensors it can send to the host's memory instead: "core_attn@host"."""
FULL_BLOCKS = "full@"
"""Prefix of a block count: that many blocks per stage are recomputed in full, the others not at all
(Megatron's --recompute-method block)."""
HOSTED_INPUTS = "full@host"
"""All blocks are recomputed, from inputs that wait in host memory (MaxText's decoder_layer_input of
"offload", torchtune's activation offloading)."""
HOST = "host"
"""Nothing is recomputed; saved tensors of the fewest blocks per stage that make it fit, or of the
given number ("host@20"), go to host memory (Megatron-Core's cpu_offloading_num_layers). With
modules ("mlp+host"): those are recomputed, and all other saved tensors go to host memory."""
ZERO_STAGES = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True)
class Layout:
    """Assignment of a training run to devices by parallel axes."""

    dp: int = 1
    """Data parallel degree, expert and fully-sharded dimensions included, context apart."""
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 0
    """Tensor width of the experts; 0 is set to `tp`."""
    vpp: int = 1
    """Interleaved model chunks per pipeline stage; 1 for orders with a fixed number of chunks
    (zb-v, dualpipe)."""
    microbatch: int = 1
    sp: bool = True
    """Sequence parallelism: norms and residuals are divided over the tensor group."""
    zero: int = 1
    """0: nothing is divided; 1: optimizer states are divided; 2: gradients too; 3: weights too."""
    hsdp: int = 1
    """Replicas of the group that ZeRO divides over; gradients are summed over all replicas."""
    recompute: str = "none"
    """none; selective (attention's core); alternate (all but every second product's output);
    full (each layer from its input; "full@21": 21 blocks per stage); optimal (the cheapest set of
    operators that fits); host ("host@20"); or modules (`MODULES`, `HOSTED`),
    "mla_up_proj+core_attn@host"."""
    schedule: str = "1f1b"
    blocks: tuple[int, ...] = ()
    """Blocks per model chunk, in the model's order; empty: as even as possible."""

    def __post_init__(self) -> None:
        if self.etp == 0:
            object.__setattr__(self, "etp", self.tp)

    @property
    def devices(self) -> int:
        return self.dp * self.tp * self.pp * self.cp

    @property
    def model_ranks(self) -> int:
        """Devices that hold one copy of the model."""
        return self.tp * self.pp * self.cp

    @property
    def copies(self) -> int:
        """Copies of the model in a pipeline."""
        return model_copies(self.schedule)

    @property
    def rounds(self) -> int:
        """Chunks per stage that one microbatch passes through."""
        return chunks_per_stage(self.schedule, self.vpp) // self.copies

    @property
    def ranks(self) -> int:
        """Devices that share each dense parameter."""
        return self.dp * self.cp * self.copies

    @property
    def expert_ranks(self) -> int:
        """Devices that share each expert's parameters."""
        return max(1, self.ranks * self.tp // (self.ep * self.etp))

    @property
    def experts_outside(self) -> bool:
        """Whether etp = tp and experts are spread over data-parallel ranks only; otherwise they
        also use context-parallel ranks, or are folded."""
        return self.etp == self.tp and self.dp % self.ep == 0

    def divided(self, dense: float, expert: float) -> float:
        """Return the parameters per rank where the ranks of one replica (hsdp) divide them."""
        return (dense / self.ranks + expert / self.expert_ranks) * self.hsdp

    def microbatches(self, global_batch: int) -> int:
        """Return the microbatches per rank and step."""
        return global_batch // (self.dp * self.microbatch)

    def __str__(self) -> str:
        runs = ((size, len(tuple(alike))) for size, alike in groupby(self.blocks))
        blocks = "+".join(str(size) if n == 1 else f"{size}x{n}" for size, n in runs)
        parts = {
            f"tp{self.tp} pp{self.pp} dp{self.dp}": True,
            f"cp{self.cp}": self.cp > 1,
            f"ep{self.ep}": self.ep > 1,
            f"etp{self.etp}": self.etp != self.tp,
            f"vpp{self.vpp}": self.vpp > 1,
            f"mbs{self.microbatch} zero{self.zero}": True,
            f"hsdp{self.hsdp}": self.hsdp > 1,
            "sp": self.sp and self.tp > 1,
            f"recompute-{self.recompute}": True,
            self.schedule: self.schedule not in ("1f1b", "interleaved"),
            f"blocks-{blocks}": bool(blocks),
        }
        return " ".join(part for part, is_shown in parts.items() if is_shown)


def check_layout(
    layout: Layout, model: ModelConfig, devices: int, global_batch: int, sequence: int
) -> None:
    """Raise an error that says what to change if the layout cannot run."""
    axes = ("dp", "tp", "pp", "cp", "ep", "etp", "vpp", "microbatch", "hsdp")
    check_positive(**{name: getattr(layout, name) for name in axes})
    check_recompute(layout.recompute)
    if layout.schedule not in ORDERS:
        raise AtollError(f"schedule is {layout.schedule!r}, but must be one of {', '.join(ORDERS)}")
    if layout.zero not in ZERO_STAGES:
        raise AtollError(f"zero is {layout.zero!r}, but must be 0, 1, 2 or 3")
    if layout.devices != devices:
        raise AtollError(
            f"tp {layout.tp} x pp {layout.pp} x cp {layout.cp} x dp {layout.dp} make "
            f"{layout.devices} devices, but {devices} are given"
        )
    widths = [("tp", model.heads), *(("tp", width) for width in model.dense_widths)]
    for number, (axis, width) in enumerate([*widths, ("etp", model.expert_width)]):
        if width % getattr(layout, axis):
            name = "tp" if layout.etp == layout.tp else axis
            words = model.width_words(width) if number else "attention heads"
            raise AtollError(
                f"{name} is {getattr(layout, axis)}, but does not divide the {width} {words} of "
                f"{model.name}; choose one of {_divisors(width)}"
            )
    if model.kv_heads % layout.tp and layout.tp % model.kv_heads:
        raise AtollError(
            f"tp is {layout.tp}, but neither divides the {model.kv_heads} key and value heads of "
            f"{model.name} nor is a multiple of them"
        )
    chunks = layout.pp * layout.rounds
    if chunks > model.layers + 2:  # embedding and head may have a chunk to themselves
        raise AtollError(
            f"pp {layout.pp} x {layout.rounds} chunks per stage make {chunks} model chunks, but "
            f"{model.name} has {model.layers} layers beside embedding and head; lower pp or vpp"
        )
    fit = len(layout.blocks) == chunks and sum(layout.blocks) == model.layers
    if layout.blocks and (not fit or min(layout.blocks) < 0):
        raise AtollError(
            f"blocks are {', '.join(map(str, layout.blocks))}, but {model.name} has {model.layers} "
            f"for {chunks} model chunks"
        )
    per_step = layout.dp * layout.microbatch
    if global_batch % per_step:
        raise AtollError(
            f"global batch {global_batch} is not a multiple of dp {layout.dp} x microbatch "
            f"{layout.microbatch} = {per_step}; the nearest above is "
            f"{-(-global_batch // per_step) * per_step}"
        )
    _check_order(layout, layout.microbatches(global_batch))
    if layout.hsdp > 1:
        _check_replicas(layout)
    if layout.cp > 1 and (model.encoder_layers or model.recurrent):
        parts = "blocks that carry a state along the sequence"
        parts = "an encoder and its decoder" if model.encoder_layers else parts
        raise AtollError(
            f"cp is {layout.cp}, but context parallelism of {parts} ({model.name}) is not "
            "modelled; use cp 1"
        )
    if layout.cp > 1 and sequence % (2 * layout.cp):
        raise AtollError(
            f"sequence {sequence} is not a multiple of 2 x cp {layout.cp}, which ring attention "
            "needs to balance a causal mask"
        )
    if layout.sp and layout.tp > 1 and (sequence // layout.cp) % layout.tp:
        raise AtollError(
            f"sequence parallelism divides {sequence // layout.cp} tokens a rank by tp "
            f"{layout.tp}, which leaves a remainder; turn it off or change the sequence"
        )
    if layout.ep > 1 or layout.etp != layout.tp:
        _check_experts(layout, model)
    if layout.zero == 2 and layout.pp > 1:
        raise AtollError(
            "zero 2 divides gradients that a pipeline keeps adding to; use zero 1 with pp above 1"
        )


def check_recompute(name: str) -> None:
    """Raise an error unless `name` is a policy or a list of modules of a block."""
    modules = {*MODULES, HOST, *(f"{module}@host" for module in HOSTED)}
    policy, _, number = name.partition("@")
    is_block_count = policy in ("full", HOST) and number.isdigit()
    is_policy = name in (*RECOMPUTE, HOST, HOSTED_INPUTS) or is_block_count
    if not is_policy and not set(name.split("+")) <= modules:
        raise AtollError(
            f"recompute is {name!r}, but must be one of {', '.join(RECOMPUTE)}, full@N or host@N "
            f"for N blocks of a stage, {HOSTED_INPUTS}, or modules joined by +: "
            f"{', '.join(MODULES)}"
        )


def check_positive(**values: object) -> None:
    """Raise an error for the first value that is not a positive integer."""
    for name, value in values.items():
        check_count(name.replace("_", " "), value)


def _check_experts(layout: Layout, model: ModelConfig) -> None:
    if not model.experts:
        name = "ep" if layout.ep > 1 else "etp"
        raise AtollError(f"{name} is {getattr(layout, name)}, but {model.name} has no experts")
    if model.experts % layout.ep:
        raise AtollError(
            f"ep is {layout.ep}, but does not divide the {model.experts} experts of {model.name}"
        )
    if (layout.dp * layout.cp * layout.tp) % (layout.ep * layout.etp):
        raise AtollError(
            f"ep {layout.ep} x etp {layout.etp} does not divide tp {layout.tp} x cp {layout.cp} x "
            f"dp {layout.dp}, over which experts are spread"
        )
    if layout.etp != layout.tp and layout.tp > 1 and not layout.sp:
        raise AtollError(
            f"etp is {layout.etp} and tp {layout.tp}: experts of another tensor width need tokens "
            "that sequence parallelism divides; turn it on"
        )


def _check_order(layout: Layout, microbatches: int) -> None:
    order, pp = layout.schedule, layout.pp
    if layout.vpp > 1 and pp == 1:
        raise AtollError(f"vpp is {layout.vpp}, but interleaving needs pp above 1")
    if order == "interleaved" and layout.vpp == 1:
        raise AtollError("schedule interleaved has several chunks a stage, but vpp is 1")
    if order == "gpipe" and layout.vpp > 1:
        raise AtollError(
            f"schedule gpipe has one chunk a stage, but vpp is {layout.vpp}; leave vpp 1, or use "
            "interleaved"
        )
    if order in SPLIT and layout.vpp > 1:
        chunks = "two chunks of its own" if order in TWO_CHUNKS else "one chunk"
        raise AtollError(
            f"schedule {order} has {chunks} a stage, but vpp is {layout.vpp}; leave vpp 1"
        )
    if order in TWO_CHUNKS and pp == 1:
        raise AtollError(f"schedule {order} needs pp above 1")
    if order == "dualpipe" and (pp % 2 or microbatches % 2):
        raise AtollError(
            f"schedule dualpipe lets microbatches in at both ends, but pp is {pp} and there are "
            f"{microbatches} of them; both must be even"
        )


def _check_replicas(layout: Layout) -> None:
    if layout.zero == 0:
        raise AtollError(
            f"hsdp is {layout.hsdp}, but zero 0 divides nothing inside its replicas; use zero 1, 2 "
            "or 3"
        )
    shared = {"dp x cp": layout.dp * layout.cp}
    if layout.ep > 1:
        experts = layout.expert_ranks // layout.copies
        shared["the copies of an expert, tp x cp x dp / (ep x etp)"] = experts
    for name, ranks in shared.items():
        if ranks % layout.hsdp:
            raise AtollError(
                f"hsdp is {layout.hsdp}, but does not divide {name} = {ranks}; choose one of "
                f"{_divisors(ranks)}"
            )


def _divisors(n: int) -> str:
    usual = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 64)
    return ", ".join(str(d) for d in usual if n % d == 0)


@lru_cache(maxsize=4096)
def divisors(n: int) -> tuple[int, ...]:
    small = [d for d in range(1, isqrt(n) + 1) if n % d == 0]
    return tuple(sorted({*small, *(n // d for d in small)}))
