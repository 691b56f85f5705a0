"""One transformer block: how its two branches and its norms hang together."""

from __future__ import annotations

from atoll.workload.build_attention import attention as build_attention
from atoll.workload.build_mlp import mlp
from atoll.workload.graph import Graph


def block(graph: Graph, x: str, attention: str) -> str:
    """From the residual stream to the residual stream."""
    config = graph.config
    if config.post_norm:
        return _post_norm(graph, x, attention)
    if config.parallel:
        return _parallel(graph, x, attention)
    branch = build_attention(graph, graph.norm("norm1", x), attention)
    if config.branch_norms:
        branch = graph.norm("branch_norm1", branch)
    branch = graph.dropout("proj_dropout", branch, config.dropout)
    middle = graph.residual("residual1", branch, x, "middle")
    branch = mlp(graph, graph.norm("norm2", middle))
    if config.branch_norms:
        branch = graph.norm("branch_norm2", branch)
    branch = graph.dropout("fc2_dropout", branch, config.dropout)
    return graph.residual("residual2", branch, middle, "y")


def _post_norm(graph: Graph, x: str, attention: str) -> str:
    """The norms follow the additions."""
    dropout = graph.config.dropout
    branch = graph.dropout("proj_dropout", build_attention(graph, x, attention), dropout)
    middle = graph.norm("norm1", graph.residual("residual1", branch, x, "sum1"))
    branch = graph.dropout("fc2_dropout", mlp(graph, middle), dropout)
    return graph.norm("norm2", graph.residual("residual2", branch, middle, "sum2"))


def _parallel(graph: Graph, x: str, attention: str) -> str:
    """Both branches start from x. Without dropout between them and the addition, their partial
    sums are added first and reduced once (as GPT-NeoX's training code does), then the biases.
    """
    config = graph.config
    normed = graph.norm("norm1", x)
    other = normed if config.one_norm else graph.norm("norm2", x)
    if config.dropout:
        left = build_attention(graph, normed, attention)
        left = graph.dropout("proj_dropout", left, config.dropout)
        right = graph.dropout("fc2_dropout", mlp(graph, other), config.dropout)
        return graph.residual(
            "residual2", right, graph.residual("residual1", left, x, "middle"), "y"
        )
    left = build_attention(graph, normed, attention, open_end=True)
    right = mlp(graph, other, open_end=True)
    total = graph.reduced_sum("branches", left, right)
    for name, biased in (("proj", config.output_bias), ("fc2", config.mlp_bias)):
        if biased:
            total = graph.late_bias(name, total)
    return graph.residual("residual2", total, x, "y")
