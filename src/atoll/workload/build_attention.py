"""The attention half of a block: projections, rotary positions, attention, output projection."""

from __future__ import annotations

from atoll.workload.graph import FLOAT, HALF, MASK, Graph
from atoll.workload.operator import Region, Role, Tensor, Uneven, VectorWork
from atoll.workload.products import attention_fraction, scores_product, values_product


def attention(graph: Graph, x: str, kind: str) -> str:
    """From the (normed) block input to the output projection."""
    config = graph.config
    q, k, v = _projections(graph, x)
    if config.positions == "rotary":
        q, k = _rotary(graph, q, k)
    core = _flash if kind == "flash" else _unfused
    context = core(graph, q, k, v)
    out = graph.stream("proj", config.hidden)
    return graph.linear("proj", context, out, bias=config.attention_bias, split="k")


def _projections(graph: Graph, x: str) -> tuple[str, str, str]:
    """Queries, keys and values in one product."""
    config = graph.config
    weights: list[str] = []
    biases: list[str] = []
    outs: list[str] = []
    for name, heads in (("q", config.heads), ("k", config.kv_heads), ("v", config.kv_heads)):
        uneven = Uneven.REFUSE if name == "q" else Uneven.REPLICATE
        width = heads * config.head_dim
        weights.append(graph.weight(f"{name}.weight", (config.hidden, width), 1, heads, uneven))
        outs.append(graph.columns(name, width, heads, uneven))
        if config.attention_bias:
            biases += graph.bias(name, name, "n")
    graph.product("qkv", x, tuple(weights), tuple(biases), tuple(outs), "n")
    return "q", "k", "v"


def _rotary(graph: Graph, q: str, k: str) -> tuple[str, str]:
    outs = graph.like(f"{q}.rotated", q), graph.like(f"{k}.rotated", k)
    vectors = graph.vector("rotary", q), graph.vector("rotary", k)
    graph.run("rotary", "rotary", (q, k), outs, vectors=vectors)
    return outs


def _flash(graph: Graph, q: str, k: str, v: str) -> str:
    """Attention that keeps its scores on chip and masked tiles out (Dao, arXiv:2307.08691)."""
    config, b, s = graph.config, graph.microbatch, graph.sequence
    fraction = attention_fraction(s, config.causal, config.window)
    scores = scores_product(b, s, config.heads, config.kv_heads, config.head_dim, fraction)
    out = graph.like("context", q)
    # One fp32 log-sum-exp a row: all that the backward pass needs to make the scores again.
    statistics = graph.add(
        Tensor(
            "context.lse",
            (b, config.heads, s),
            FLOAT,
            Role.ACTIVATION,
            Region.TENSOR,
            1,
            config.heads,
        )
    )
    rows, columns = b * config.heads * s, max(1, round(fraction * s))
    vectors = [VectorWork("softmax", rows, columns, Region.TENSOR)]
    if config.attention_dropout:
        vectors.append(VectorWork("dropout", rows, columns, Region.TENSOR))
    graph.run(
        "attention",
        "attention",
        (q, k, v),
        (out, statistics),
        matmuls=(scores, values_product(scores)),
        vectors=tuple(vectors),
        on_chip=True,
    )
    return out


def _unfused(graph: Graph, q: str, k: str, v: str) -> str:
    """Attention operator by operator, with its s x s tensors in memory."""
    config, b, s = graph.config, graph.microbatch, graph.sequence
    product = scores_product(b, s, config.heads, config.kv_heads, config.head_dim, 1.0)

    def square(name: str, element_bytes: int = HALF) -> str:
        shape = (b, config.heads, s, s)
        return graph.add(
            Tensor(name, shape, element_bytes, Role.ACTIVATION, Region.TENSOR, 1, config.heads)
        )

    scores = square("scores")
    graph.run("scores", "attention_scores", (q, k), (scores,), matmuls=(product,))
    probabilities = square("probabilities")
    functions = ("mul", "add", "softmax")  # scale, mask, softmax
    vectors = tuple(graph.vector(function, scores) for function in functions)
    graph.run("softmax", "softmax", (scores,), (probabilities,), vectors=vectors)
    if config.attention_dropout:
        kept, mask = square("probabilities.kept"), square("probabilities.mask", MASK)
        graph.run(
            "probabilities.dropout",
            "dropout",
            (probabilities,),
            (kept, mask),
            vectors=(graph.vector("dropout", probabilities),),
        )
        probabilities = kept
    out = graph.like("context", q)
    graph.run(
        "values", "attention_values", (probabilities, v), (out,), matmuls=(values_product(product),)
    )
    return out
