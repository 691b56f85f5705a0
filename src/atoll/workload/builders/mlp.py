"""The feed-forward half of a block: two (or three) linears, or a mixture of experts."""

from __future__ import annotations

from atoll.workload.builders.graph import FLOAT, HALF, INDEX, GraphBuilder
from atoll.workload.graph.operator import Region, VectorWork


def mlp(graph: GraphBuilder, x: str, *, open_end: bool = False) -> str:
    """From the (normed) middle of the block to the second linear, which with an `open_end` is
    left without its reduction and its bias."""
    config = graph.config
    if config.experts:
        return _experts(graph, x)
    return _feed_forward(graph, x, "fc", config.ffn, open_end)


def _feed_forward(graph: GraphBuilder, x: str, name: str, width: int, open_end: bool) -> str:
    config = graph.config
    first, second, act = f"{name}1", f"{name}2", "act" if name == "fc" else f"{name}_act"
    # Gate and up projection run as one product of twice the columns.
    opened = graph.columns(first, width * (2 if config.gated else 1), width)
    graph.linear(first, x, opened, bias=config.mlp_bias, split="n")
    acted = graph.activation(act, opened, graph.columns(act, width))
    acted = graph.dropout(f"{act}_dropout", acted, config.inner_dropout)
    return graph.closing(second, acted, bias=config.mlp_bias, open_end=open_end)


def _experts(graph: GraphBuilder, x: str) -> str:
    """Router, dispatch, one batched product per linear, combine.

    Every expert gets its fair share of the tokens (rounded up): imbalance is not modelled. Tensor
    parallelism cuts inside each expert, and every device dispatches all tokens.
    """
    config = graph.config
    chosen, experts = config.experts_per_token, config.experts
    logits = graph.stream("router", experts)
    graph.linear("router", x, logits, bias=config.router_bias, split="m")
    gates = graph.stream("gates", chosen, FLOAT)
    choices = graph.stream("choices", chosen, INDEX)
    # A sigmoid is an exponential and a division, as tanh is.
    score = "softmax" if config.router == "softmax" else "tanh"
    functions = graph.vector(score, logits), graph.vector("topk", logits)
    if config.router_correction:
        # Balances the experts; set by rule and not by gradient (arXiv:2408.15664).
        graph.weight("router.correction", (experts,))
    graph.run("choose", "router", (logits,), (gates, choices), vectors=functions)

    share = -(-graph.tokens * chosen // experts)

    def bundle(name: str, width: int, units: int = 0) -> str:
        region = Region.TENSOR if units else Region.UNDIVIDED
        return graph.add(name, (experts, share, width), HALF, region, 2, units)

    sent = bundle("sent", config.hidden)
    graph.run("dispatch", "dispatch", (x, choices), (sent,), enters=(x, choices))
    wide = config.ffn * (2 if config.gated else 1)
    opened = bundle("fc1", wide, config.ffn)
    fc1 = graph.weight("fc1.weight", (experts, config.hidden, wide), 2, config.ffn)
    graph.product("fc1", sent, (fc1,), (opened,), "n", inside=True)
    if config.expert_bias:
        opened = graph.late_bias("fc1", opened, experts)
    acted = graph.activation("act", opened, bundle("act", config.ffn, config.ffn))
    fc2 = graph.weight("fc2.weight", (experts, config.ffn, config.hidden), 1, config.ffn)
    done = bundle("fc2", config.hidden)
    graph.product("fc2", acted, (fc2,), (done,), "k", inside=True)
    if config.expert_bias:  # of partial sums, those of one device get it
        done = graph.late_bias("fc2", done, experts)

    shared = _shared_experts(graph, x) if config.shared_ffn else ""
    add_out = graph.partial if shared else graph.stream
    out = add_out("combined", config.hidden)
    # Gates weigh the partial sums, so that one reduction of the combined tokens suffices.
    weigh = tuple(VectorWork(name, experts * share, config.hidden) for name in ("mul", "add"))
    work = {"vectors": weigh, "enters": (gates, choices), "exits": not shared}
    graph.run("combine", "combine", (done, gates, choices), (out,), **work)
    return graph.reduced_sum("all_experts", out, shared) if shared else out


def _shared_experts(graph: GraphBuilder, x: str) -> str:
    """Experts that see every token: one wide feed-forward layer, perhaps behind a gate."""
    config = graph.config
    out = _feed_forward(graph, x, "shared", config.shared_ffn, open_end=True)
    if not config.shared_gate:
        return out
    gate = graph.stream("shared_gate", 1)
    graph.linear("shared_gate", x, gate, bias=False, split="m")
    gated = graph.partial("shared_gated", config.hidden)
    # Gates weigh partial sums, as those of the routed experts do. tanh stands for the sigmoid.
    vectors = VectorWork("tanh", graph.tokens, 1), graph.vector("mul", out)
    graph.run("shared_gated", "gate", (out, gate), (gated,), vectors=vectors, enters=(gate,))
    return gated
