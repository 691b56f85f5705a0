"""What mixes tokens in a block: attention, scans that carry a state, short convolutions.

Projections in and out are cut by heads as attention's are; between them every device has heads (or
channels) of its own, and keys and queries that heads share are copied where they are too few.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from atoll.workload.builders.attention import attention
from atoll.workload.builders.graph import GraphBuilder
from atoll.workload.families.model_config import StateSpace
from atoll.workload.graph.operator import Names, Region, Uneven, VectorWork
from atoll.workload.graph.products import scan_products


def mixer(graph: GraphBuilder, x: str, kind: str, *, open_end: bool = False) -> str:
    """From the (normed) block input to the output projection, which with an `open_end` is left
    without its reduction and its bias. `kind` is that of attention."""
    name = graph.config.mixer
    if name == "attention":
        return attention(graph, x, kind, open_end=open_end)
    bias = _shape(graph).bias
    if name == "attention+mamba2":  # partial sums are added, then reduced once (Falcon-H1)
        left = attention(graph, x, kind, open_end=True)
        right = graph.closing("out_proj", _mamba2(graph, x), bias=bias, open_end=True)
        total = graph.reduced_sum("mixers", left, right)
        for linear, biased in (("proj", graph.config.output_bias), ("out_proj", bias)):
            total = graph.late_bias(linear, total) if biased else total
        return total
    return graph.closing("out_proj", _MIXERS[name](graph, x), bias=bias, open_end=open_end)


def _mamba2(graph: GraphBuilder, x: str) -> str:
    """Dao and Gu, arXiv:2405.21060: one product in, convolution, scan, gated norm, product out."""
    shape = _shape(graph)
    keys = shape.groups * shape.state
    parts = (("z", shape.inner), ("values", shape.inner), ("b", keys), ("c", keys))
    z, values, b, c, step = _projected(graph, x, (*parts, ("step", shape.heads)))
    values, b, c = _conv(graph, (values, b, c), "silu")
    weights = _head_weights(graph, "decay", "skip", "step_bias")
    y = _scan(graph, values, (b, c, step), weights)
    y = graph.gate("scan.gated", y, z, "silu")
    return graph.norm("scan_norm", y) if shape.norm else y


def _mamba1(graph: GraphBuilder, x: str) -> str:
    """Gu and Dao, arXiv:2312.00752, with Jamba's norms: steps, keys and queries come from a narrow
    projection, whose parts every device needs whole."""
    shape = _shape(graph)
    values, z = _projected(graph, x, (("values", shape.inner), ("z", shape.inner)))
    (values,) = _conv(graph, (values,), "silu")
    narrow = graph.partial("x_proj", shape.rank + 2 * shape.state)
    graph.linear("x_proj", values, narrow, bias=False, split="k")
    widths = (("step", shape.rank), ("b", shape.state), ("c", shape.state))
    step, b, c = (graph.partial(name, width) for name, width in widths)
    scales = tuple(graph.weight(f"{name}_norm.weight", (width,)) for name, width in widths)
    works = tuple(graph.vector("rmsnorm", part) for part in (step, b, c))
    graph.run("x_split", "split_norm", (narrow, *scales), (step, b, c), vectors=works)
    steps = graph.columns("steps", shape.inner, shape.heads)
    graph.linear("step_proj", step, steps, bias=True, split="n")
    decay = graph.weight("scan.decay", (shape.inner, shape.state), 0, shape.heads)
    skip = graph.weight("scan.skip", (shape.inner,), 0, shape.heads)
    y = _scan(graph, values, (b, c, steps), (decay, skip))
    return graph.gate("scan.gated", y, z, "silu")


def _delta(graph: GraphBuilder, x: str) -> str:
    """A gated delta net (Yang et al., arXiv:2412.06464): convolved queries, keys and values, a
    scan that overwrites what a key stood for, a norm of each head, a gate."""
    shape = _shape(graph)
    keys = shape.groups * shape.state
    parts = (("queries", keys), ("keys", keys), ("values", shape.inner), ("z", shape.inner))
    rates = (("rate", shape.heads), ("step", shape.heads))
    queries, k, values, z, rate, step = _projected(graph, x, (*parts, *rates))
    queries, k, values = _conv(graph, (queries, k, values), "silu")
    weights = _head_weights(graph, "decay", "step_bias")
    y = _scan(graph, values, (k, queries, rate, step), weights, delta=True)
    return graph.gate("scan.gated", graph.head_norm("scan_norm", y, shape.head_dim), z, "silu")


def _lightning(graph: GraphBuilder, x: str) -> str:
    """Linear attention with a fixed decay for each head (MiniMax-01, arXiv:2501.08313)."""
    shape = _shape(graph)
    names = ("queries", "keys", "values", "z")
    *inputs, z = _projected(graph, x, tuple((name, shape.inner) for name in names))
    queries, keys, values = (
        graph.activation(f"{name}_act", t, graph.like(f"{name}_act", t))
        for name, t in zip(names, inputs, strict=False)
    )
    y = graph.norm("scan_norm", _scan(graph, values, (keys, queries), ()))
    return graph.gate("scan.gated", y, z, "tanh")  # tanh stands for the sigmoid


def _short_conv(graph: GraphBuilder, x: str) -> str:
    """A convolution of a few taps between two gates (LFM2)."""
    width = _shape(graph).inner
    b, c, values = _projected(graph, x, (("b", width), ("c", width), ("values", width)))
    (y,) = _conv(graph, (graph.gate("gated", values, b),), "")
    return graph.gate("conv.gated", y, c)


_MIXERS: dict[str, Callable[[GraphBuilder, str], str]] = {
    "mamba2": _mamba2,
    "mamba1": _mamba1,
    "delta": _delta,
    "lightning": _lightning,
    "conv": _short_conv,
}


def _shape(graph: GraphBuilder) -> StateSpace:
    assert graph.config.scan is not None  # a reader that names such a mixer gives its shape
    return graph.config.scan


def _head_weights(graph: GraphBuilder, *names: str) -> tuple[str, ...]:
    """Weights of the scan with a number for each head."""
    heads = _shape(graph).heads
    return tuple(graph.weight(f"scan.{name}", (heads,), 0, heads) for name in names)


def _projected(graph: GraphBuilder, x: str, parts: Sequence[tuple[str, int]]) -> list[str]:
    """Projections of one tensor in one product, cut by heads, or groups of keys and queries."""
    shape, cut = _shape(graph), []
    for name, width in parts:
        shared = name in ("b", "c", "keys", "queries") and shape.groups < shape.heads
        units = shape.groups if shared else shape.heads
        cut.append((name, width, units, Uneven.REPLICATE if shared else Uneven.REFUSE))
    return graph.joint("in_proj", x, cut, bias=shape.bias)


def _conv(graph: GraphBuilder, inputs: tuple[str, ...], function: str) -> list[str]:
    """A causal convolution of every channel by itself, then its activation."""
    shape = _shape(graph)
    weights: list[str] = []
    outs = []
    for x in inputs:
        t = graph.tensors[x]
        label = x.removeprefix(graph.prefix)
        taps = t.shape[-1], shape.kernel
        weights.append(graph.weight(f"{label}.taps", taps, 0, t.units, t.uneven))
        if shape.conv_bias:
            weights.append(graph.weight(f"{label}.taps_bias", taps[:1], 0, t.units, t.uneven))
        outs.append(graph.like(f"{label}.conv", x))
    # A multiply-add for each tap; the taps lie side by side to the vector cores.
    wide = (graph.vector("mul", x) for x in inputs)
    passes = [v.sized(v.rows, v.cols * shape.kernel) for v in wide]
    passes += [graph.vector(function, x) for x in inputs if function]
    graph.run("conv", "conv", (*inputs, *weights), tuple(outs), vectors=tuple(passes))
    return outs


def _scan(
    graph: GraphBuilder, values: str, others: Names, weights: Names, *, delta: bool = False
) -> str:
    """The scan itself: `others` are the keys, the queries, then what sets decays and steps."""
    shape = _shape(graph)
    out = graph.like("scan", values)
    chunk = min(shape.chunk, graph.sequence)
    reads = values, *others, *weights
    if not chunk:  # token by token: decay, product with the value, sum, product with the query
        cols = shape.inner * shape.state
        names = ("exp", "mul", "mul", "add", "mul", "add")
        works = tuple(VectorWork(n, graph.tokens, cols, Region.TENSOR) for n in names)
        # Keys and queries, not cut by heads, are whole on every device.
        graph.run("scan", "scan", reads, (out,), vectors=works, enters=others[:2])
        return out
    # Decays within a chunk lie over its triangle of scores; states are handed from chunk to chunk.
    triangle = shape.heads * (chunk + 1) // 2
    names_ = [("exp", triangle), ("mul", triangle)]
    names_ += [("mul", triangle * chunk // 3)] if delta else []  # the triangle's inverse
    works = tuple(VectorWork(n, graph.tokens, cols, Region.TENSOR) for n, cols in names_)
    rows = graph.microbatch * -(-graph.sequence // chunk)
    states = shape.inner * shape.state
    works += tuple(VectorWork(n, rows, states, Region.TENSOR) for n in ("mul", "add"))
    products = scan_products(graph.tensors[values], graph.tensors[others[0]], chunk, delta=delta)
    graph.run("scan", "scan", reads, (out,), matmuls=products, vectors=works)
    return out
