"""For each kind of forward operator, the operators of its gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from atoll.workload.operator import Collective, CollectiveKind, Operator, Role, VectorWork
from atoll.workload.products import data_gradient, keys_gradient, weight_gradient
from atoll.workload.tape import Tape

Rule = Callable[[Tape, Operator], None]


def backward_vectors(op: Operator) -> tuple[VectorWork, ...]:
    """The derivatives' passes, last one first; an addition hands its gradient on unchanged."""
    return tuple(
        replace(v, function=f"{v.function}_bwd")
        for v in reversed(op.vectors)
        if v.function != "add"
    )


def linear(tape: Tape, op: Operator) -> None:
    """Data gradient and weight gradient apart: schedules may delay the second (zero bubble)."""
    x = op.reads[0]
    weights = tuple(name for name in _parameters(tape, op) if len(tape.tensors[name].shape) > 1)
    grads = tuple(tape.gradient(name) for name in op.writes)
    (product,) = op.matmuls
    kept = tape.saved(x)
    dx, after = tape.give_entering(op, x)
    tape.run(
        f"{op.name}.dgrad",
        "linear_dgrad",
        (*grads, *weights),
        (dx,),
        matmuls=(data_gradient(product),),
    )
    tape.operators.extend(after)
    _linear_weights(tape, op, kept, grads)


def data_linear(tape: Tape, op: Operator) -> None:
    """A linear over the model's data, whose gradient no one asks for."""
    _linear_weights(tape, op, op.reads[0], tuple(tape.gradient(name) for name in op.writes))


def _parameters(tape: Tape, op: Operator) -> list[str]:
    return [name for name in op.reads[1:] if tape.tensors[name].role is Role.WEIGHT]


def _linear_weights(tape: Tape, op: Operator, kept: str, grads: tuple[str, ...]) -> None:
    (product,) = op.matmuls
    tape.run(
        f"{op.name}.wgrad",
        "linear_wgrad",
        (kept, *grads),
        tuple(tape.weight_gradient(name) for name in _parameters(tape, op)),
        matmuls=(weight_gradient(product),),
        vectors=tuple(replace(v, function="bias_grad") for v in op.vectors),
    )


def bias(tape: Tape, op: Operator) -> None:
    """A bias apart from its product: the gradient passes, and is summed over the tokens."""
    x, parameter = op.reads
    dy = tape.gradient(op.writes[0])
    tape.pass_on(x, dy)
    vectors = tuple(replace(v, function="bias_grad") for v in op.vectors)
    writes = (tape.weight_gradient(parameter),)
    tape.run(f"{op.name}.grad", "bias_grad", (dy,), writes, vectors=vectors)


def norm(tape: Tape, op: Operator) -> None:
    """Reads the input again; the shift of a layer norm is not needed."""
    x, *weights = op.reads
    dy = tape.gradient(op.writes[0])
    writes = (tape.give(x), *(tape.weight_gradient(name) for name in weights))
    vectors = backward_vectors(op)
    tape.run(f"{op.name}.bwd", "norm_bwd", (dy, x, *weights[:1]), writes, vectors=vectors)


def activation(tape: Tape, op: Operator) -> None:
    """Reads its input again; ReLU its output, which what follows keeps anyway."""
    (x, *slopes), (y,) = op.reads, op.writes
    dy = tape.gradient(y)
    functions = [v.function for v in op.vectors]
    kept = y if functions == ["relu"] else x
    vectors = backward_vectors(op)
    if functions == ["mul", "tanh", "mul"]:  # a cap scales by constants: so does its derivative
        vectors = tuple(v if v.function == "mul" else b
                        for v, b in zip(reversed(op.vectors), vectors, strict=True))  # fmt: skip
    writes = (tape.give(x), *(tape.weight_gradient(name) for name in slopes))
    tape.run(f"{op.name}.bwd", "activation_bwd", (dy, kept, *slopes), writes, vectors=vectors)


def glu(tape: Tape, op: Operator) -> None:
    """A product of two tensors, one of them activated: each needs the other."""
    x, opening = op.reads
    dy = tape.gradient(op.writes[0])
    writes = tape.give(x), tape.give(opening)
    vectors = backward_vectors(op)
    tape.run(f"{op.name}.bwd", "glu_bwd", (dy, x, opening), writes, vectors=vectors)


def conv(tape: Tape, op: Operator) -> None:
    """A convolution back over the gradient, one with the input for its taps, and the activation's
    derivative, for which the forward one runs again.
    """
    count = len(op.writes)
    inputs, weights = op.reads[:count], op.reads[count:]
    grads = tuple(tape.gradient(name) for name in op.writes)
    taps = op.vectors[:count]
    writes = (*(tape.give(n) for n in inputs), *(tape.weight_gradient(n) for n in weights))
    again = tuple(replace(v, function=f"{v.function}_bwd") for v in op.vectors[count:])
    vectors = (*(taps if again else ()), *again, *taps, *taps)
    tape.run(f"{op.name}.bwd", "conv_bwd", (*grads, *inputs, *weights), writes, vectors=vectors)


def scan(tape: Tape, op: Operator) -> None:
    """Two products for each of the forward's, whose scores and states are made again, as fused
    kernels do: only what the scan read is kept.
    """
    weights = _parameters(tape, op)
    inputs = [name for name in op.reads if name not in weights]
    dy = tape.gradient(op.writes[0])
    kept = tuple(tape.saved(name) for name in inputs)
    given = [tape.give_entering(op, name) for name in inputs]
    gradients = (f(p) for p in op.matmuls for f in (data_gradient, weight_gradient))
    again = op.matmuls[:-2]  # all but those that make the output
    tape.run(
        f"{op.name}.bwd",
        "scan_bwd",
        (dy, *kept, *weights),
        (*(name for name, _ in given), *(tape.weight_gradient(name) for name in weights)),
        matmuls=(*again, *gradients),
        vectors=op.vectors * 3,  # once more, and once for each side of every product
    )
    for _, after in given:
        tape.operators.extend(after)


def split_norm(tape: Tape, op: Operator) -> None:
    """Columns of one tensor as several, each normed: their gradients lie side by side again."""
    x, *scales = op.reads
    grads = tuple(tape.gradient(name) for name in op.writes)
    writes = (tape.give(x), *(tape.weight_gradient(name) for name in scales))
    vectors = backward_vectors(op)
    tape.run(f"{op.name}.bwd", "norm_bwd", (*grads, x, *scales), writes, vectors=vectors)


def scale(tape: Tape, op: Operator) -> None:
    """A product with a constant: the gradient is multiplied by it as well."""
    (x,) = op.reads
    dy = tape.gradient(op.writes[0])
    tape.run(f"{op.name}.bwd", "scale", (dy,), (tape.give(x),), vectors=op.vectors)


def dropout(tape: Tape, op: Operator) -> None:
    (x,), (y, mask) = op.reads, op.writes
    dy = tape.gradient(y)
    vectors = backward_vectors(op)
    tape.run(f"{op.name}.bwd", "dropout_bwd", (dy, mask), (tape.give(x),), vectors=vectors)


def add(tape: Tape, op: Operator) -> None:
    dy = tape.gradient(op.writes[0])
    for name in op.reads:
        tape.pass_on(name, dy)


def table_add(tape: Tape, op: Operator) -> None:
    """Rows of small tables added to every sample: their gradients are sums over the batch."""
    x, *tables = op.reads
    dy = tape.gradient(op.writes[0])
    tape.pass_on(x, dy)
    writes = tuple(
        tape.weight_gradient(name) if tape.tensors[name].role is Role.WEIGHT else tape.give(name)
        for name in tables
    )
    vectors = tuple(replace(v, function="bias_grad") for v in op.vectors)
    tape.run(f"{op.name}.grad", "table_grad", (dy,), writes, vectors=vectors)


def lookup(tape: Tape, op: Operator) -> None:
    """The gradient of each token is added to its row of the table."""
    tokens, rows = op.reads
    dy = tape.gradient(op.writes[0])
    tape.run(f"{op.name}.scatter", "scatter_add", (dy, tokens), (tape.give(rows),))


def rotary(tape: Tape, op: Operator) -> None:
    """The inverse rotation: nothing to keep."""
    grads = tuple(tape.gradient(name) for name in op.writes)
    outs = tuple(tape.give(name) for name in op.reads)
    tape.run(f"{op.name}.bwd", "rotary_bwd", grads, outs, vectors=backward_vectors(op))


def flash_attention(tape: Tape, op: Operator) -> None:
    """Five products: the scores once more, then dV, dP, dQ and dK (arXiv:2307.08691)."""
    q, k, v, *more = op.reads
    out, statistics = op.writes
    dout = tape.gradient(out)
    scores, values = op.matmuls
    matmuls = (
        scores,
        weight_gradient(values),
        data_gradient(values),
        data_gradient(scores),
        keys_gradient(scores),
    )
    tape.run(
        f"{op.name}.bwd",
        "attention_bwd",
        (dout, q, k, v, *more, out, statistics),
        tuple(_given(tape, name) for name in op.reads),
        matmuls=matmuls,
        vectors=(*backward_vectors(op), *_position_sums(tape, op, more)),
        on_chip=True,
    )


def attention_product(tape: Tape, op: Operator) -> None:
    """Scores or values of unfused attention: a product of two activations has two gradients."""
    left, right = op.reads
    dy = tape.gradient(op.writes[0])
    (product,) = op.matmuls
    second = keys_gradient if op.kind == "attention_scores" else weight_gradient
    tape.run(
        f"{op.name}.d{left}",
        "attention_dgrad",
        (dy, right),
        (tape.give(left),),
        matmuls=(data_gradient(product),),
    )
    tape.run(
        f"{op.name}.d{right}",
        "attention_dgrad",
        (left, dy),
        (tape.give(right),),
        matmuls=(second(product),),
    )


def softmax(tape: Tape, op: Operator) -> None:
    """Needs its output, not its input."""
    (y,) = op.writes
    dy = tape.gradient(y)
    vectors = (*backward_vectors(op), *_position_sums(tape, op, op.reads[1:]))
    outs = tuple(_given(tape, name) for name in op.reads)
    tape.run(f"{op.name}.bwd", "softmax_bwd", (dy, y), outs, vectors=vectors)


def _given(tape: Tape, name: str) -> str:
    """The gradient of something read: of a weight (attention's sinks) its own."""
    weight = tape.tensors[name].role is Role.WEIGHT
    return tape.weight_gradient(name) if weight else tape.give(name)


def _position_sums(tape: Tape, op: Operator, more: Sequence[str]) -> tuple[VectorWork, ...]:
    """The gradient of what is added to every sample's scores: their gradients' sum."""
    if all(tape.tensors[name].role is Role.WEIGHT for name in more):
        return ()
    return tuple(replace(v, function="bias_grad") for v in op.vectors if v.function == "softmax")


def relative(tape: Tape, op: Operator) -> None:
    """Every pair of positions adds its gradient to the row of its distance."""
    (table,), (positions,) = op.reads, op.writes
    dy = tape.gradient(positions)
    writes = (tape.weight_gradient(table),)
    vectors = (tape.vector("bias_grad", positions),)
    tape.run(f"{op.name}.grad", "table_grad", (dy,), writes, vectors=vectors)


def router(tape: Tape, op: Operator) -> None:
    (logits,), (gates, choices) = op.reads, op.writes
    dgates = tape.gradient(gates)
    tape.run(
        f"{op.name}.bwd",
        "router_bwd",
        (dgates, logits, choices),
        (tape.give(logits),),
        vectors=backward_vectors(op),
    )


def dispatch(tape: Tape, op: Operator) -> None:
    """Each token sums the gradients that its experts send back."""
    x, choices = op.reads
    dy = tape.gradient(op.writes[0])
    kept = tape.saved(choices)
    dx, after = tape.give_entering(op, x)
    vectors = (tape.vector("add", op.writes[0]),)
    tape.run(f"{op.name}.bwd", "dispatch_bwd", (dy, kept), (dx,), vectors=vectors)
    tape.operators.extend(after)


def combine(tape: Tape, op: Operator) -> None:
    """Gradients of the experts' outputs and, by an inner product with these, of the gates."""
    done, gates, choices = op.reads
    dy = tape.gradient(op.writes[0])
    kept = tape.saved(gates), tape.saved(choices)
    dgates, after = tape.give_entering(op, gates)
    tape.run(
        f"{op.name}.bwd",
        "combine_bwd",
        (dy, done, *kept),
        (tape.give(done), dgates),
        vectors=backward_vectors(op),
    )
    tape.operators.extend(after)


def gate(tape: Tape, op: Operator) -> None:
    """One gate a token: its gradient is an inner product with what it lets through."""
    x, opening = op.reads
    dy = tape.gradient(op.writes[0])
    kept = tape.saved(opening)
    dgate, after = tape.give_entering(op, opening)
    tape.run(
        f"{op.name}.bwd",
        "gate_bwd",
        (dy, x, kept),
        (tape.give(x), dgate),
        vectors=backward_vectors(op),
    )
    tape.operators.extend(after)


def join_keys(tape: Tape, op: Operator) -> None:
    """Of the keys' gradient each head keeps its own part; the common part sums over the heads."""
    own, common = op.reads
    dy = tape.gradient(op.writes[0])
    joined = tape.tensors[op.writes[0]]
    columns = joined.shape[-1] - tape.tensors[own].shape[-1]
    dcommon, after = tape.give_entering(op, common)
    tape.run(
        f"{op.name}.bwd",
        "split_keys",
        (dy,),
        (tape.give(own), dcommon),
        vectors=(VectorWork("add", joined.rows, columns, joined.split),),
    )
    tape.operators.extend(after)


def prepend(tape: Tape, op: Operator) -> None:
    """A token put before every sequence: its gradient is a sum over the batch."""
    x, token = op.reads
    dy = tape.gradient(op.writes[0])
    batch, _, width = tape.tensors[x].shape
    vectors = (VectorWork("bias_grad", batch, width),)
    writes = (tape.give(x), tape.weight_gradient(token))
    tape.run(f"{op.name}.bwd", "prepend_bwd", (dy,), writes, vectors=vectors)


def select(tape: Tape, op: Operator) -> None:
    """One token of each sequence: the others' gradients are zero."""
    dy = tape.gradient(op.writes[0])
    tape.run(f"{op.name}.bwd", "select_bwd", (dy,), (tape.give(op.reads[0]),))


def cross_entropy(tape: Tape, op: Operator) -> None:
    """Starts the backward pass: softmax minus one at the target."""
    logits, labels = op.reads
    loss, *softmax = op.writes
    source = softmax[0] if softmax else logits
    tape.run(
        f"{op.name}.bwd",
        "cross_entropy_bwd",
        (source, tape.saved(loss), labels),
        (tape.give(logits),),
        vectors=backward_vectors(op),
    )


def all_reduce(tape: Tape, op: Operator) -> None:
    """Every device holds the gradient of the sum already: nothing to do (Megatron's g)."""
    if tape.has_gradient(op.writes[0]):
        tape.pass_on(op.reads[0], tape.gradient(op.writes[0]))


_CONJUGATES = {
    CollectiveKind.ALL_GATHER: CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.REDUCE_SCATTER: CollectiveKind.ALL_GATHER,
}


def conjugate(tape: Tape, op: Operator) -> None:
    """An all-gather turns into a reduce-scatter, and the other way round."""
    if op.collective is None or not tape.has_gradient(op.writes[0]):
        return  # gathered integers have no gradient
    (x,), (y,) = op.reads, op.writes
    dy = tape.gradient(y)
    kind = _CONJUGATES[op.collective.kind]
    collective = Collective(kind, op.collective.bytes, op.collective.group)
    back = Operator(f"{op.name}.bwd", str(kind), (dy,), (tape.give(x),), collective=collective)
    tape.insert_early(back)


RULES: dict[str, Rule] = {
    "linear": linear,
    "data_linear": data_linear,
    "bias": bias,
    "norm": norm,
    "activation": activation,
    "glu": glu,
    "conv": conv,
    "scan": scan,
    "split_norm": split_norm,
    "scale": scale,
    "dropout": dropout,
    "add": add,
    "table_add": table_add,
    "lookup": lookup,
    "rotary": rotary,
    "attention": flash_attention,
    "attention_scores": attention_product,
    "attention_values": attention_product,
    "softmax": softmax,
    "relative": relative,
    "router": router,
    "dispatch": dispatch,
    "combine": combine,
    "gate": gate,
    "join_keys": join_keys,
    "prepend": prepend,
    "select": select,
    "cross_entropy": cross_entropy,
    "all_reduce": all_reduce,
    "all_gather": conjugate,
    "reduce_scatter": conjugate,
}
