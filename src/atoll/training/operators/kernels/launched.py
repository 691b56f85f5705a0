"""Kernels that a software stack launches beyond a model's operators, as passes of their graph.

Bytes are those that a kernel reads and writes per element, at the rate of a streaming kernel; one
that runs below this rate counts as many more bytes (H200, torch 2.11, transformers 5.17).
"""

from __future__ import annotations

from dataclasses import replace

from atoll.base.errors import AtollError
from atoll.cost.gpu_attention import BACKWARD_QUERY_PASSES
from atoll.hardware.gpu import Gpu
from atoll.tools.stack import KERNELS, Stack, VectorPasses
from atoll.training.operators.kernels.adapter_passes import with_adapter_passes
from atoll.training.operators.kernels.wide_products import FLOAT, is_math
from atoll.training.operators.kernels.wide_streams import autocast, in_fp32
from atoll.training.operators.roles import multiplies_experts
from atoll.training.run import Run
from atoll.workload.families.model_config import ModelConfig
from atoll.workload.graph.layer import Layer
from atoll.workload.graph.operator import Operator, Role, Tensor, VectorWork, pass_over

HALF = 2  # bytes

COUNTED = {name: VectorPasses(**moved) for name, moved in KERNELS["modules"].items()}
"""Passes without entry in a stack or calibration."""

HALF_SOFTMAX = ("bert", "roberta", "vit", "gpt2", "t5", "mt5", "umt5", "bart")
"""Families whose modules do not cast scores to fp32 (transformers 5.17)."""
JOINED_GATES = ("phi3", "modernbert", "glm", "glm4")
"""Families whose modules compute gate and up in one product."""
WIDE_FUNCTIONS = frozenset({"layernorm", "layernorm_bwd", "rotary", "rotary_bwd"})
"""Functions that autocast runs in fp32; RMSNorm does so anyway."""
FP32_ALREADY = ("softmax", "safe_softmax", "cross_entropy", "rmsnorm", "score_", "mask_")
"""First letters of functions that are counted in fp32."""
KEPT_SQUARES = 5
"""fp32 squares that a plain scan keeps per head: sums of decays, their exponentials, scores, scores
times decays, and times steps."""
MODULE_PASSES = {"mul": "score_scale", "mul_bwd": "score_scale", "add": "score_mask"}
"""Passes of plain modules by those of the graph."""
SOFTMAX_PASSES = {
    ("half", "softmax"): ["softmax"],
    ("half", "softmax_bwd"): ["softmax_bwd"],
    ("fp32", "softmax"): ["score_cast", "softmax", "score_round"],
    ("fp32", "softmax_bwd"): ["score_cast", "score_product", "softmax_bwd", "score_round"],
    ("math", "softmax"): ["safe_softmax", "softmax"],
    ("math", "softmax_bwd"): ["score_product", "softmax_bwd"],
    # A column for the sink is appended, the maximum subtracted and the column dropped.
    ("sinks", "softmax"): ["sink_append", "sink_maximum", "score_mask", "softmax"],
    ("sinks", "softmax_bwd"): ["sink_drop", "softmax_bwd", "sink_drop"],
}
"""Passes of a module's softmax by its form and direction."""
LARGEST_WINDOW = 0.49
"""Share of the scores that a window leaves at most; a causal mask leaves more than half."""

# FlashAttention-2 is about twice as fast as the first version (arXiv:2307.08691, abstract).
FIRST_FLASH = 2.0
# Kernels written for Ampere leave Hopper's asynchronous products unused: the third version is 1.5
# to 2 times as fast as the second (arXiv:2407.08608, abstract). Fitted to runs with the second.
AMPERE_ON_HOPPER = 1.6
# Main kernels of cuDNN on an H200 over those of plain attention, for as many scores, forwards and
# backwards: with an additive mask, which every head reads through L2; with dropout, whose random
# numbers every score needs; with heads of more than 192 columns, which have kernels of their own.
DENSE_MASK = {"attention": 1.8, "attention_bwd": 1.7}
DROPOUT = {"attention": 2.25, "attention_bwd": 1.4}
WIDE_HEADS = {"attention": 0.8, "attention_bwd": 1.33}
WIDE_MASK = {"attention": 1.8, "attention_bwd": 2.3}
WIDE_COLUMNS = 192
FP32_ATTENTION = 7.0  # SDPA's fmha_cutlassF_f32 and fmha_cutlassB_f32 over 16-bit cuDNN


def attention_factor(gpu: Gpu, stack: Stack, attention: str) -> float:
    """Return the time of attention over that of the fastest kernels for as many scores."""
    factor = FIRST_FLASH if attention == "flash1" else 1.0
    if attention in ("flash1", "flash2") and gpu.tensor_per_exp >= 1:
        factor *= AMPERE_ON_HOPPER
    return factor * (FP32_ATTENTION if stack.wide else 1.0)


def launched(layer: Layer, run: Run, samples: int) -> Layer:
    """Return a layer with the passes and kept tensors that the run's software adds; a microbatch
    has `samples` sequences.
    """
    stack = run.stack
    if stack.dense_mask:
        layer = _dense_mask(layer, stack, samples)
    if stack.plain_mixers:
        layer = _plain_scan(layer)
    if stack.plain_scores and run.model.family in JOINED_GATES:
        layer = _joined_gates(layer)
    if stack.module_experts:
        layer = _module_experts(layer, stack.module_experts)
    if run.autocast:
        wide = WIDE_FUNCTIONS | ({"gelu", "gelu_bwd"} if run.alias else set())
        fused_norms = "rmsnorm_mixed" in stack.passes
        if fused_norms:
            wide |= {"rmsnorm", "rmsnorm_bwd"}
        layer = autocast(layer, wide, fused_norms)
    if run.adapters is not None and stack.plain_scores:
        layer = with_adapter_passes(layer, stack)
    if run.half_logits and stack.plain_scores:
        layer = _half_loss(layer, stack)
    if stack.loss_chunks > 1:
        layer = _chunked_loss(layer, stack)
    if any(op.kind == "softmax" for op in layer.forward):
        if stack.math_attention:
            layer = _fp32_scores(layer, stack.plain_scores)
        if stack.plain_scores:
            form = "math" if stack.math_attention else _softmax_form(run.model)
            layer = _module_scores(layer, form)
    return in_fp32(layer, FP32_ALREADY) if stack.wide else layer


def attention_form(run: Run) -> str:
    """Return the attention that a model is built with: flash, unfused, or unfused where scores have
    trained position biases, for which SDPA has no fused kernel.
    """
    if run.attention == "unfused":
        return "unfused"
    return "unfused-biased" if run.stack.math_attention else "flash"


def kernel_factor(op: Operator, stack: Stack) -> float:
    """Return the time of attention's main kernel over that of plain attention."""
    is_wide_head = op.matmuls[0].k > WIDE_COLUMNS
    factor = WIDE_HEADS[op.kind] if is_wide_head else 1.0
    if mask_passes(op):
        factor *= (WIDE_MASK if is_wide_head else DENSE_MASK)[op.kind]
    if stack.plain_scores and any(work.function.startswith("dropout") for work in op.vectors):
        factor *= DROPOUT[op.kind]
    return factor


def query_passes_s(gpu: Gpu, op: Operator) -> float:
    """Return the seconds of the kernels before and after the main one of attention: backwards a
    fixed number of passes over the queries.
    """
    if op.kind != "attention_bwd":
        return 0.0
    scores = op.matmuls[0]
    moved = HALF * BACKWARD_QUERY_PASSES * scores.batch * scores.m * scores.k
    return moved / (gpu.calibration.hbm * gpu.hbm_Bps)


def mask_passes(op: Operator) -> tuple[VectorWork, ...]:
    """Return the passes over the dense mask of a fused attention."""
    return tuple(work for work in op.vectors if work.function.startswith("mask_"))


def _dense_mask(layer: Layer, stack: Stack, samples: int) -> Layer:
    """Compute the full square of masked attention. Eager modules cast the mask in every block and
    keep the result for the backward pass.
    """
    tensors = dict(layer.tensors)

    def masked(op: Operator) -> Operator:
        scores = op.matmuls[0] if op.kind in ("attention", "attention_bwd") else None
        if scores is None or (stack.dense_mask == "windows" and scores.fraction > LARGEST_WINDOW):
            return op
        name = f"{op.name.removesuffix('.bwd')}.mask"
        rows = samples * scores.m // max(1, scores.m // scores.n)
        op = replace(op, matmuls=tuple(replace(product, fraction=1.0) for product in op.matmuls))
        if not stack.plain_scores:
            return replace(op, vectors=(*op.vectors, VectorWork("mask_read", rows, scores.n)))
        if op.kind == "attention_bwd":
            read = VectorWork("mask_read", rows, scores.n)
            return replace(op, vectors=(*op.vectors, read), reads=(*op.reads, name))
        tensors[name] = Tensor(name, (rows, scores.n), HALF, Role.ACTIVATION)
        cast = VectorWork("mask_cast", rows, scores.n)
        return replace(op, vectors=(*op.vectors, cast), writes=(*op.writes, name))

    forward, backward = tuple(map(masked, layer.forward)), tuple(map(masked, layer.backward))
    return replace(layer, tensors=tensors, forward=forward, backward=backward)


def _joined_gates(layer: Layer) -> Layer:
    """Add what strided halves of the output of a gated layer's first product cost."""
    functions = {"linear": "gate_halves", "linear_dgrad": "gate_halves_bwd"}

    def joined(op: Operator) -> Operator:
        if not op.name.partition(".")[0].endswith("fc1") or op.kind not in functions:
            return op
        wide = op.writes[0] if op.kind == "linear" else op.reads[0]
        work = pass_over(functions[op.kind], layer.tensors[wide])
        return replace(op, vectors=(*op.vectors, work))

    forward, backward = tuple(map(joined, layer.forward)), tuple(map(joined, layer.backward))
    return replace(layer, forward=forward, backward=backward)


def _softmax_form(model: ModelConfig) -> str:
    """Return how Hugging Face's modules compute a softmax: in fp32, in 16 bits in some families, or
    with a column for the sink.
    """
    if model.sinks:
        return "sinks"
    return "half" if model.family in HALF_SOFTMAX else "fp32"


def _fp32_scores(layer: Layer, plain: bool) -> Layer:
    """Keep the operands and the squares of unfused attention in fp32, casting and scaling queries,
    keys and values, and their gradients, each in kernels of its own if `plain`.
    """
    wide = {n for op in layer.forward if is_math(op) for n in op.reads}
    squares = {n for op in layer.forward if op.kind == "attention_scores" for n in op.writes}
    tensors = {
        name: replace(tensor, element_bytes=FLOAT) if name in wide | squares else tensor
        for name, tensor in layer.tensors.items()
    }
    largest = max(tensors[name].elements for name in squares)

    def cast(op: Operator) -> Operator:
        if not is_math(op):
            return op
        names, function = op.reads, "math_operand"
        if op.kind == "attention_dgrad":
            names, function = op.writes, "math_gradient"
        function = function if plain else "cast_down"
        works = [pass_over(function, tensors[n]) for n in names if tensors[n].elements < largest]
        return replace(op, vectors=(*op.vectors, *works))

    forward, backward = tuple(map(cast, layer.forward)), tuple(map(cast, layer.backward))
    return replace(layer, tensors=tensors, forward=forward, backward=backward)


def _module_scores(layer: Layer, form: str) -> Layer:
    """Compute unfused attention as plain modules do: scores are scaled, masked, and cast to fp32
    for a softmax whose result is kept beside its 16-bit copy.
    """
    tensors = dict(layer.tensors)

    def scored(op: Operator) -> Operator:
        if op.kind not in ("softmax", "softmax_bwd"):
            return op
        name, work = f"{op.name.removesuffix('.bwd')}.fp32", op.vectors[0]
        passes = [MODULE_PASSES.get(v.function, v.function) for v in op.vectors]
        at = passes.index(op.kind)
        passes[at : at + 1] = SOFTMAX_PASSES[form, op.kind]
        if form == "math":  # queries and keys are scaled; the mask is counted with the softmax
            passes = [name for name in passes if name not in MODULE_PASSES.values()]
        if form == "fp32" and op.kind == "softmax":
            tensors[name] = replace(tensors[op.writes[0]], name=name, element_bytes=FLOAT)
            op = replace(op, writes=(*op.writes, name))
        elif form == "fp32":
            op = replace(op, reads=(*op.reads, name))
        # A 16-bit softmax moves half of the bytes that are counted in fp32.
        rows = dict.fromkeys(("softmax", "softmax_bwd"), work.rows // 2)
        rows = {} if form != "half" else rows
        sized = (work.by(f).sized(rows.get(f, work.rows), work.cols) for f in passes)
        return replace(op, vectors=tuple(sized))

    forward, backward = tuple(map(scored, layer.forward)), tuple(map(scored, layer.backward))
    return replace(layer, tensors=tensors, forward=forward, backward=backward)


def _half_loss(layer: Layer, stack: Stack) -> Layer:
    """Compute the loss of masked language models and of T5 on 16-bit logits."""
    if "cross_entropy" in stack.passes or layer.name != "loss":
        return layer

    def halved(op: Operator) -> Operator:
        works = (
            work.by(work.function.replace("cross_entropy", "cross_entropy_half"))
            for work in op.vectors
        )
        return replace(op, vectors=tuple(works))

    forward, backward = tuple(map(halved, layer.forward)), tuple(map(halved, layer.backward))
    return replace(layer, forward=forward, backward=backward)


def _chunked_loss(layer: Layer, stack: Stack) -> Layer:
    """Add every chunk's gradient of the head to those before, and compute logits and loss again
    where they are checkpointed.
    """
    if layer.name not in ("head", "loss"):
        return layer
    tensors, backward = dict(layer.tensors), []
    for op in layer.backward:
        if op.name == "logits.wgrad" and stack.recomputes_loss:
            gradient = tensors[op.writes[0]]
            sums = VectorWork("add", (stack.loss_chunks - 1) * gradient.rows, gradient.shape[-1])
            op = replace(op, vectors=(*op.vectors, sums))
        backward.append(op)
    again = [op for op in layer.forward if op.name in ("logits", "loss") and stack.recomputes_loss]
    for op in again:
        names = tuple(f"{name}.again" for name in op.writes)
        for name, old in zip(names, op.writes, strict=True):
            tensors[name] = replace(tensors[old], name=name)
        backward.insert(0, replace(op, name=f"{op.name}.again", writes=names))
    return replace(layer, tensors=tensors, backward=tuple(backward))


def _module_experts(layer: Layer, form: str) -> Layer:
    """Add the passes of Hugging Face's experts. "grouped" zeroes rows without expert in the input
    and the outputs of every grouped product; "sliced" runs a loop over slices of stacked weights,
    each of whose gradients is as large as all of them and added to the sum.
    """
    sent = {n for op in layer.forward if op.kind == "dispatch" for n in op.writes}

    def passes(op: Operator) -> list[VectorWork]:
        if not op.kind.startswith("linear") or not multiplies_experts(layer, op):
            return []
        if op.kind == "linear_wgrad" and form == "sliced":
            gradients = [layer.tensors[name] for name in op.writes]
            experts = gradients[0].shape[0]
            counts = {"expert_zeros": experts, "add": experts - 1}
            return [
                VectorWork(function, count * t.rows, t.shape[-1])
                for t in gradients
                for function, count in counts.items()
            ]
        if op.kind == "linear_wgrad" or form == "sliced":
            return []
        names = [op.writes[0] if op.kind == "linear" else op.reads[0]]
        names += [n for n in (*op.reads, *op.writes) if n.removeprefix("d") in sent]
        return [pass_over("expert_mask", layer.tensors[name]) for name in names]

    def changed(op: Operator) -> Operator:
        return replace(op, vectors=(*op.vectors, *passes(op)))

    forward, backward = tuple(map(changed, layer.forward)), tuple(map(changed, layer.backward))
    return replace(layer, forward=forward, backward=backward)


def _plain_scan(layer: Layer) -> Layer:
    """Compute Mamba-2's scan as modules without its kernels do: products over a chunk's square are
    fp32 tensors with a column per state or channel, which are then summed; two of them coexist in
    the backward pass.
    """
    if not any(op.kind == "scan" for op in layer.forward):
        return layer
    tensors = dict(layer.tensors)

    def passes(op: Operator) -> tuple[Operator, ...]:
        if op.kind not in ("scan", "scan_bwd"):
            return (op,)
        if len(op.matmuls) < 4:
            raise AtollError(
                "plain_mixers: only Mamba-2 without its kernels is modelled; leave the flag out"
            )
        (scores, states, *_), name = op.matmuls, f"{op.name.removesuffix('.bwd')}.squares"
        rows = states.batch * scores.m * scores.n
        # Scores and values have a square for every column; the states of a chunk, and what comes of
        # those before it, a matrix for every row.
        matrices = VectorWork(
            f"{op.kind}_squares", 2 * states.batch * scores.m, states.m * states.n
        )
        work = VectorWork(f"{op.kind}_squares", rows, states.m + states.n)
        if op.kind == "scan":
            tensors[name] = Tensor(name, (rows, KEPT_SQUARES), FLOAT, Role.ACTIVATION)
            return op, Operator(name, "squares", op.writes[:1], (name,), vectors=(work, matrices))
        product, back = f"{name}.products", f"{name}.bwd"
        tensors[product] = Tensor(product, (rows, 2 * states.m), FLOAT, Role.ACTIVATION_GRADIENT)
        return op, Operator(back, "squares_bwd", (name,), (product,), vectors=(work, matrices))

    forward, backward = (
        tuple(new for op in operators for new in passes(op))
        for operators in (layer.forward, layer.backward)
    )
    return replace(layer, tensors=tensors, forward=forward, backward=backward)
