"""The attention half of a block: projections, rotary positions, attention, output projection."""

from __future__ import annotations

from atoll.workload.builders.graph import FLOAT, HALF, MASK, GraphBuilder
from atoll.workload.builders.latent import latent_projections
from atoll.workload.graph.operator import Region, Role, Uneven, VectorWork
from atoll.workload.graph.products import attention_fraction, scores_product, values_product


def attention(
    graph: GraphBuilder,
    x: str,
    kind: str,
    *,
    open_end: bool = False,
    positions: str = "",
    source: str = "",
) -> str:
    """From the (normed) block input to the output projection, which with an `open_end` is left
    without its reduction and its bias. `positions` are added to the scores; keys and values come
    from another `source` than the queries in cross-attention."""
    config = graph.config
    gate: list[str] = []
    if source:  # queries of one sequence, keys and values of another
        (q,), (k, v) = _joint(graph, "q", x, "q"), _joint(graph, "kv", source, "k", "v")
    elif config.latent_kv:
        q, k, v = latent_projections(graph, x)
    else:
        output_gate = ("q.gate",) if config.gated_attention else ()
        q, k, v, *gate = _joint(graph, "qkv", x, "q", "k", "v", *output_gate)
    if config.qk_norm:
        q, k = _query_norm(graph, q), _query_norm(graph, k)
    if config.positions == "rotary" and not config.latent_kv:
        q, k = _rotary(graph, q, k)
    sinks = (graph.weight("sinks", (config.heads,), 0, config.heads),) if config.sinks else ()
    windowed = kind == "unfused-global" and bool(config.window)
    fused = kind == "flash" or windowed or (kind == "unfused-biased" and not positions)
    core = _flash if fused else _unfused
    context = core(graph, q, k, v, (*filter(None, (positions,)), *sinks))
    for name in gate:  # tanh stands for the sigmoid
        context = graph.gate("context.gated", context, name, "tanh")
    return graph.closing("proj", context, bias=config.output_bias, open_end=open_end)


def _joint(graph: GraphBuilder, product: str, x: str, *names: str) -> list[str]:
    """Projections of one tensor in one product."""
    config, parts = graph.config, []
    for name in names:
        shared = name in ("k", "v")
        heads = config.kv_heads if shared else config.heads
        uneven = Uneven.REPLICATE if shared else Uneven.REFUSE
        parts.append((name, heads * config.head_dim, heads, uneven))
    return graph.joint(product, x, parts, bias=config.attention_bias)


def _query_norm(graph: GraphBuilder, x: str) -> str:
    config = graph.config
    if config.qk_norm_form == "wide":
        return graph.norm(f"{x}_norm", x)
    scaled = config.qk_norm_form == "head"
    return graph.head_norm(f"{x}_norm", x, config.head_dim, scaled=scaled)


def _rotary(graph: GraphBuilder, q: str, k: str) -> tuple[str, str]:
    """Only the rotated columns of each head are work."""
    config = graph.config
    outs = graph.like(f"{q}.rotated", q), graph.like(f"{k}.rotated", k)
    columns = (heads * config.rotated for heads in (config.heads, config.kv_heads))
    vectors = tuple(VectorWork("rotary", graph.tokens, n, Region.TENSOR) for n in columns)
    graph.run("rotary", "rotary", (q, k), outs, vectors=vectors)
    return outs


def _flash(graph: GraphBuilder, q: str, k: str, v: str, more: tuple[str, ...]) -> str:
    """Attention that keeps its scores on chip and masked tiles out (Dao, arXiv:2307.08691)."""
    config, b, s = graph.config, graph.microbatch, graph.sequence
    keys = graph.tensors[k].shape[1]
    # Without a window every part of a sequence meets as much of each other as of itself.
    length = s * config.context if config.window else s
    fraction = attention_fraction(length, config.causal, config.window, chunked=config.chunked)
    positions = [name for name in more if graph.tensors[name].role is Role.ACTIVATION]
    scores = scores_product(b, s, config.heads, config.kv_heads, config.head_dim, fraction, keys)
    out = graph.columns("context", config.heads * config.value_width, config.heads)
    # One fp32 log-sum-exp a row: all that the backward pass needs to make the scores again.
    shape = b, config.heads, s
    statistics = graph.add("context.lse", shape, FLOAT, Region.TENSOR, 1, config.heads)
    rows, columns = b * config.heads * s, max(1, round(fraction * keys))
    # The cap's first scaling is the scores' own; scale and mask cost nothing in a product's end.
    functions = ["tanh", "mul"] if config.score_cap else []
    functions += ["add"] if config.positions == "alibi" or positions else []
    functions += ["softmax"]
    functions += ["dropout"] if config.attention_dropout else []
    vectors = tuple(VectorWork(name, rows, columns, Region.TENSOR) for name in functions)
    products, writes = (scores, values_product(scores, config.value_width)), (out, statistics)
    work = {"matmuls": products, "vectors": vectors, "on_chip": True}
    graph.run("attention", "attention", (q, k, v, *more), writes, **work)
    return out


def _unfused(graph: GraphBuilder, q: str, k: str, v: str, more: tuple[str, ...]) -> str:
    """Attention operator by operator, with its s x s tensors in memory."""
    config, b, s = graph.config, graph.microbatch, graph.sequence
    keys = graph.tensors[k].shape[1]
    product = scores_product(b, s, config.heads, config.kv_heads, config.head_dim, 1.0, keys)

    def square(name: str, element_bytes: int = HALF) -> str:
        shape = (b, config.heads, s, keys)
        return graph.add(name, shape, element_bytes, Region.TENSOR, 1, config.heads)

    scores = square("scores")
    graph.run("scores", "attention_scores", (q, k), (scores,), matmuls=(product,))
    probabilities = square("probabilities")
    functions = ["mul", "add", "softmax"]  # scale, mask, softmax
    if config.score_cap:
        scores = graph.cap("score_cap", scores, square("scores.capped"))
        functions = functions[1:]
    if config.positions == "alibi":
        functions.insert(0, "add")
    if config.positions == "relative":  # not scaled; positions and mask are one addend
        functions.remove("mul")
    vectors = tuple(graph.vector(function, scores) for function in functions)
    graph.run("softmax", "softmax", (scores, *more), (probabilities,), vectors=vectors)
    if config.attention_dropout:
        dropped_out, mask = square("probabilities.kept"), square("probabilities.mask", MASK)
        writes, work = (dropped_out, mask), (graph.vector("dropout", probabilities),)
        graph.run("probabilities.dropout", "dropout", (probabilities,), writes, vectors=work)
        probabilities = dropped_out
    out = graph.columns("context", config.heads * config.value_width, config.heads)
    values = values_product(product, config.value_width)
    graph.run("values", "attention_values", (probabilities, v), (out,), matmuls=(values,))
    return out
