"""Differentiation of a layer: its backward operators follow from its forward ones.

The forward operators are visited in reverse, and each kind has a rule that writes down the
operators of its gradient. What must be kept from the forward pass is then simply what these
operators read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from atoll.base.errors import AtollError
from atoll.workload.graph.layer import Layer
from atoll.workload.graph.operator import CollectiveKind, Matmul, Operator, Role, VectorWork
from atoll.workload.graph.products import data_gradient, keys_gradient, weight_gradient
from atoll.workload.graph.tape import Tape

Rule = Callable[[Tape, Operator], None]
Names = Sequence[str]


def backward_vectors(op: Operator) -> tuple[VectorWork, ...]:
    """Passes of the derivatives, in reverse; an addition passes its gradient on unchanged."""
    return tuple(v.by(f"{v.function}_bwd") for v in reversed(op.vectors) if v.function != "add")


def _sums(op: Operator) -> tuple[VectorWork, ...]:
    """Sums over tokens or batch: gradients of tensors that all samples share."""
    return tuple(v.by("bias_grad") for v in op.vectors)


def _back(
    tape: Tape,
    op: Operator,
    kind: str,
    *,
    outputs: Names | None = None,
    saved: Names = (),
    inputs: Names | None = None,
    label: str = "bwd",
    matmuls: tuple[Matmul, ...] = (),
    vectors: tuple[VectorWork, ...] | None = None,
    on_chip: bool = False,
) -> None:
    """Append the gradient operator of `op`: it reads the gradients of `outputs` (default: all) and
    the `saved` forward tensors, and writes the gradients of `inputs` (default: all). Gradients that
    leave a tensor-parallel region are summed after it."""
    grads = tuple(tape.gradient(name) for name in (op.writes if outputs is None else outputs))
    saved_reads = tuple(tape.saved(name) for name in saved)
    gradients = [tape.give_entering(op, name) for name in (op.reads if inputs is None else inputs)]
    vectors = backward_vectors(op) if vectors is None else vectors
    reads, writes = (*grads, *saved_reads), tuple(name for name, _ in gradients)
    back = Operator(f"{op.name}.{label}", kind, reads, writes, matmuls, vectors, None, on_chip)
    tape.operators += [back, *(step for _, after in gradients for step in after)]


def _parameters(tape: Tape, op: Operator) -> list[str]:
    return [name for name in op.reads[1:] if tape.tensors[name].role is Role.WEIGHT]


def linear(tape: Tape, op: Operator) -> None:
    """Data gradient and weight gradient apart: schedules may delay the second (zero bubble)."""
    x = op.reads[0]
    weights = [name for name in _parameters(tape, op) if len(tape.tensors[name].shape) > 1]
    products = (data_gradient(op.matmuls[0]),)
    saved_input = tape.saved(x)
    _back(tape, op, "linear_dgrad", saved=weights, inputs=(x,), label="dgrad", matmuls=products,
          vectors=())  # fmt: skip
    _linear_weights(tape, op, saved_input)


def data_linear(tape: Tape, op: Operator) -> None:
    """A linear over input data, which needs no data gradient."""
    _linear_weights(tape, op, op.reads[0])


def _linear_weights(tape: Tape, op: Operator, saved_input: str) -> None:
    grads = tuple(tape.gradient(name) for name in op.writes)
    writes = tuple(tape.weight_gradient(name) for name in _parameters(tape, op))
    label, reads, products = (
        f"{op.name}.wgrad",
        (saved_input, *grads),
        (weight_gradient(op.matmuls[0]),),
    )
    tape.operators.append(Operator(label, "linear_wgrad", reads, writes, products, _sums(op)))


def added(tape: Tape, op: Operator) -> None:
    """A separate bias, or rows of small tables added to every sample: the gradient passes through,
    and its sum is their gradient."""
    x, *tables = op.reads
    tape.pass_on(x, tape.gradient(op.writes[0]))
    kind = "bias_grad" if op.kind == "bias" else "table_grad"
    _back(tape, op, kind, inputs=tables, label="grad", vectors=_sums(op))


def activation(tape: Tape, op: Operator) -> None:
    """Save the input; ReLU saves its output, which the next operator saves anyway."""
    (x, *slopes), (y,) = op.reads, op.writes
    functions = [v.function for v in op.vectors]
    saved = y if functions == ["relu"] else x
    vectors = backward_vectors(op)
    if functions == ["mul", "tanh", "mul"]:  # a cap scales by constants: so does its derivative
        vectors = tuple(v if v.function == "mul" else b
                        for v, b in zip(reversed(op.vectors), vectors, strict=True))  # fmt: skip
    _back(tape, op, "activation_bwd", saved=(saved, *slopes), vectors=vectors)


def conv(tape: Tape, op: Operator) -> None:
    """A convolution back over the gradient, one with the input for its taps, and the activation's
    derivative, for which the forward one runs again."""
    taps, acted = op.vectors[: len(op.writes)], op.vectors[len(op.writes) :]
    again = tuple(replace(v, function=f"{v.function}_bwd") for v in acted)
    vectors = (*(taps if again else ()), *again, *taps, *taps)
    _back(tape, op, "conv_bwd", saved=op.reads, vectors=vectors)


def scan(tape: Tape, op: Operator) -> None:
    """Two products per forward product; scores and states are recomputed as in fused kernels, so
    that only the inputs are saved."""
    gradients = (f(p) for p in op.matmuls for f in (data_gradient, weight_gradient))
    again = op.matmuls[:-2]  # all but those that make the output
    vectors = op.vectors * 3  # once more, and once for each side of every product
    _back(tape, op, "scan_bwd", saved=op.reads, matmuls=(*again, *gradients), vectors=vectors)


def add(tape: Tape, op: Operator) -> None:
    dy = tape.gradient(op.writes[0])
    for name in op.reads:
        tape.pass_on(name, dy)


def lookup(tape: Tape, op: Operator) -> None:
    """The gradient of each token is added to its row of the table."""
    tokens, rows = op.reads
    _back(tape, op, "scatter_add", saved=(tokens,), inputs=(rows,), label="scatter", vectors=())


def flash_attention(tape: Tape, op: Operator) -> None:
    """Five products: the scores once more, then dV, dP, dQ and dK (arXiv:2307.08691)."""
    scores, values = op.matmuls
    gradients = weight_gradient(values), data_gradient(values), data_gradient(scores)
    matmuls = (scores, *gradients, keys_gradient(scores))
    vectors = (*backward_vectors(op), *_position_sums(tape, op, op.reads[3:]))
    _back(tape, op, "attention_bwd", outputs=op.writes[:1], saved=(*op.reads, *op.writes),
          matmuls=matmuls, vectors=vectors, on_chip=True)  # fmt: skip


def attention_product(tape: Tape, op: Operator) -> None:
    """Scores or values of unfused attention: a product of two activations has two gradients."""
    left, right = op.reads
    dy = tape.gradient(op.writes[0])
    (product,) = op.matmuls
    second = keys_gradient if op.kind == "attention_scores" else weight_gradient
    for name, reads, gradient in (
        (left, (dy, right), data_gradient(product)),
        (right, (left, dy), second(product)),
    ):
        label, writes = f"{op.name}.d{name}", (tape.give(name),)
        tape.operators.append(Operator(label, "attention_dgrad", reads, writes, (gradient,)))


def softmax(tape: Tape, op: Operator) -> None:
    """Save the output, not the input."""
    vectors = (*backward_vectors(op), *_position_sums(tape, op, op.reads[1:]))
    _back(tape, op, "softmax_bwd", saved=op.writes, vectors=vectors)


def _position_sums(tape: Tape, op: Operator, more: Names) -> tuple[VectorWork, ...]:
    """Gradient of positions added to all samples' scores: the sum of the score gradients."""
    if all(tape.tensors[name].role is Role.WEIGHT for name in more):
        return ()
    return tuple(replace(v, function="bias_grad") for v in op.vectors if v.function == "softmax")


def relative(tape: Tape, op: Operator) -> None:
    """Every pair of positions adds its gradient to the row of its distance."""
    vectors = (tape.vector("bias_grad", op.writes[0]),)
    _back(tape, op, "table_grad", label="grad", vectors=vectors)


def dispatch(tape: Tape, op: Operator) -> None:
    """Each token sums the gradients that its experts send back."""
    x, choices = op.reads
    vectors = (tape.vector("add", op.writes[0]),)
    _back(tape, op, "dispatch_bwd", saved=(choices,), inputs=(x,), vectors=vectors)


def join_keys(tape: Tape, op: Operator) -> None:
    """Split the key gradient per head; the common part is summed over heads."""
    joined = tape.tensors[op.writes[0]]
    columns = joined.shape[-1] - tape.tensors[op.reads[0]].shape[-1]
    vectors = (VectorWork("add", joined.rows, columns, joined.split),)
    _back(tape, op, "split_keys", vectors=vectors)


def prepend(tape: Tape, op: Operator) -> None:
    """A token put before every sequence: its gradient is a sum over the batch."""
    batch, _, width = tape.tensors[op.reads[0]].shape
    _back(tape, op, "prepend_bwd", vectors=(VectorWork("bias_grad", batch, width),))


def cross_entropy(tape: Tape, op: Operator) -> None:
    """Starts the backward pass: softmax minus one at the target."""
    logits, labels = op.reads
    loss, *softmax = op.writes
    keep = (*(softmax or (logits,)), loss, labels)
    _back(tape, op, "cross_entropy_bwd", outputs=(), saved=keep, inputs=(logits,))


def all_reduce(tape: Tape, op: Operator) -> None:
    """Every device holds the gradient of the sum already: nothing to do (Megatron's g)."""
    if tape.has_gradient(op.writes[0]):
        tape.pass_on(op.reads[0], tape.gradient(op.writes[0]))


def conjugate(tape: Tape, op: Operator) -> None:
    """An all-gather turns into a reduce-scatter, and the other way round."""
    if op.collective is None or not tape.has_gradient(op.writes[0]):
        return  # gathered integers have no gradient
    (x,), (y,) = op.reads, op.writes
    dy = tape.gradient(y)
    gathers = op.collective.kind is CollectiveKind.ALL_GATHER
    kind = CollectiveKind.REDUCE_SCATTER if gathers else CollectiveKind.ALL_GATHER
    back = replace(op.collective, kind=kind)
    label, writes = f"{op.name}.bwd", (tape.give(x),)
    tape.insert_early(Operator(label, str(kind), (dy,), writes, collective=back))


RULES: dict[str, Rule] = {
    "linear": linear,
    "data_linear": data_linear,
    "bias": added,
    "table_add": added,
    # Reads the input and the scale again; the shift of a layer norm is not needed.
    "norm": lambda tape, op: _back(tape, op, "norm_bwd", saved=op.reads[:2]),
    # Columns of one tensor as several, each normed: their gradients lie side by side again.
    "split_norm": lambda tape, op: _back(tape, op, "norm_bwd", saved=op.reads),
    "activation": activation,
    # A product of two tensors, one of them activated: each needs the other.
    "glu": lambda tape, op: _back(tape, op, "glu_bwd", saved=op.reads),
    # One gate a token: its gradient is an inner product with what it lets through.
    "gate": lambda tape, op: _back(tape, op, "gate_bwd", saved=op.reads),
    "conv": conv,
    "scan": scan,
    # A product with a constant: the gradient is multiplied by it as well.
    "scale": lambda tape, op: _back(tape, op, "scale", vectors=op.vectors),
    "dropout": lambda tape, op: _back(
        tape, op, "dropout_bwd", outputs=op.writes[:1], saved=op.writes[1:]
    ),
    "add": add,
    "lookup": lookup,
    # The inverse rotation: nothing to keep.
    "rotary": lambda tape, op: _back(tape, op, "rotary_bwd"),
    "attention": flash_attention,
    "attention_scores": attention_product,
    "attention_values": attention_product,
    "softmax": softmax,
    "relative": relative,
    "router": lambda tape, op: _back(
        tape, op, "router_bwd", outputs=op.writes[:1], saved=(op.reads[0], op.writes[1])
    ),
    "dispatch": dispatch,
    # Gradients of the experts' outputs and, by an inner product with these, of the gates.
    "combine": lambda tape, op: _back(tape, op, "combine_bwd", saved=op.reads, inputs=op.reads[:2]),
    "join_keys": join_keys,
    "prepend": prepend,
    # One token of each sequence: the others' gradients are zero.
    "select": lambda tape, op: _back(tape, op, "select_bwd"),
    "cross_entropy": cross_entropy,
    "all_reduce": all_reduce,
    "all_gather": conjugate,
    "reduce_scatter": conjugate,
}


def differentiate(layer: Layer, tensor_parallel: int = 1) -> Layer:
    """The layer with its backward pass, made anew from its (unfused) forward pass.

    `tensor_parallel` is the group over which the gradients of what enters a tensor-parallel region
    are summed; collectives of the forward pass turn into their conjugates.
    """
    tape = Tape(layer, tensor_parallel)
    losses = {n for op in layer.forward if op.kind == "cross_entropy" for n in op.writes}
    for name in (layer.output, *layer.more_outputs):
        if name not in losses:
            tape.give(name)
    for op in reversed(layer.forward):
        if op.kind not in RULES:
            raise AtollError(
                f"layer {layer.name}: operator {op.name} of kind {op.kind!r} has no derivative "
                "(fusing comes last, after sharding and differentiating)"
            )
        RULES[op.kind](tape, op)
    for name, tensor in layer.tensors.items():
        if tensor.role is Role.WEIGHT:
            tape.weight_gradient(name)
    for name in (layer.input, *layer.more_inputs):
        if tape.has_gradient(name):
            tape.gradient(name)
    return replace(layer, tensors=tape.tensors, backward=tuple(tape.operators))
