"""The feed-forward half of a block: two (or three) linears, or a mixture of experts."""

from __future__ import annotations

from atoll.workload.graph import FLOAT, HALF, INDEX, Graph
from atoll.workload.operator import Region, Role, Tensor, VectorWork


def mlp(graph: Graph, x: str) -> str:
    """From the (normed) middle of the block to the second linear."""
    config = graph.config
    if config.experts:
        return _experts(graph, x)
    # Gate and up projection run as one product of twice the columns.
    opened = graph.columns("fc1", config.ffn * (2 if config.gated else 1), config.ffn)
    graph.linear("fc1", x, opened, bias=config.mlp_bias, split="n")
    acted = graph.activation("act", opened, graph.columns("act", config.ffn))
    out = graph.stream("fc2", config.hidden)
    return graph.linear("fc2", acted, out, bias=config.mlp_bias, split="k")


def _experts(graph: Graph, x: str) -> str:
    """Router, dispatch, one batched product a linear, combine.

    Every expert gets its fair share of the tokens (rounded up): imbalance is not modelled. Tensor
    parallelism cuts inside each expert, and every device dispatches all tokens.
    """
    config = graph.config
    chosen, experts = config.experts_per_token, config.experts
    logits = graph.stream("router", experts)
    graph.linear("router", x, logits, bias=False, split="m")
    gates = graph.stream("gates", chosen, FLOAT)
    choices = graph.stream("choices", chosen, INDEX)
    functions = graph.vector("softmax", logits), graph.vector("topk", logits)
    graph.run("choose", "router", (logits,), (gates, choices), vectors=functions)

    share = -(-graph.tokens * chosen // experts)

    def bundle(name: str, width: int, units: int = 0) -> str:
        region = Region.TENSOR if units else Region.WHOLE
        return graph.add(
            Tensor(name, (experts, share, width), HALF, Role.ACTIVATION, region, 2, units)
        )

    sent = bundle("sent", config.hidden)
    graph.run("dispatch", "dispatch", (x, choices), (sent,), enters=(x, choices))
    wide = config.ffn * (2 if config.gated else 1)
    opened = bundle("fc1", wide, config.ffn)
    fc1 = graph.weight("fc1.weight", (experts, config.hidden, wide), 2, config.ffn)
    graph.product("fc1", sent, (fc1,), (), (opened,), "n", inside=True)
    acted = graph.activation("act", opened, bundle("act", config.ffn, config.ffn))
    fc2 = graph.weight("fc2.weight", (experts, config.ffn, config.hidden), 1, config.ffn)
    done = bundle("fc2", config.hidden)
    graph.product("fc2", acted, (fc2,), (), (done,), "k", inside=True)

    out = graph.stream("combined", config.hidden)
    rows = experts * share
    # Gates weigh the partial sums, so that one reduction of the combined tokens suffices.
    weigh = VectorWork("mul", rows, config.hidden), VectorWork("add", rows, config.hidden)
    graph.run(
        "combine",
        "combine",
        (done, gates, choices),
        (out,),
        vectors=weigh,
        enters=(gates, choices),
        exits=True,
    )
    return out
