"""One block: its mixer, feed-forward layer, norms and residual additions."""

from __future__ import annotations

from atoll.workload.builders.graph import GraphBuilder
from atoll.workload.builders.mixers import mixer
from atoll.workload.builders.mlp import mlp


def block(graph: GraphBuilder, x: str, attention: str) -> str:
    """From the residual stream to the residual stream."""
    config = graph.config
    if config.post_norm:
        return _post_norm(graph, x, attention)
    if config.parallel:
        return _parallel(graph, x, attention)
    if config.mixer != "none":
        normed = x if config.bare_first else _opened(graph, "norm1", x)
        branch = mixer(graph, normed, attention)
        x = close_branch(graph, branch, normed if config.norm_residual else x, "proj", 1)
    if not config.ffn:
        return x
    normed = _opened(graph, "norm2", x)
    source = normed if config.norm_residual else x
    return close_branch(graph, mlp(graph, normed), source, "fc2", 2)


def _opened(graph: GraphBuilder, name: str, x: str) -> str:
    return graph.norm(name, x) if graph.config.opening_norms else x


def close_branch(graph: GraphBuilder, branch: str, x: str, linear: str, number: int) -> str:
    """Add norm, scale, dropout and residual addition after a branch's last linear."""
    config = graph.config
    if config.branch_norms:
        branch = graph.norm(f"branch_norm{number}", branch)
    if config.branch_scale:
        branch = graph.scale(f"branch_scale{number}", branch)
    branch = graph.dropout(f"{linear}_dropout", branch, config.dropout)
    return graph.residual(f"residual{number}", branch, x, "middle" if number == 1 else "y")


def _post_norm(graph: GraphBuilder, x: str, attention: str) -> str:
    """The norms follow the additions."""
    dropout = graph.config.dropout
    branch = graph.dropout("proj_dropout", mixer(graph, x, attention), dropout)
    middle = graph.norm("norm1", graph.residual("residual1", branch, x, "sum1"))
    branch = graph.dropout("fc2_dropout", mlp(graph, middle), dropout)
    return graph.norm("norm2", graph.residual("residual2", branch, middle, "sum2"))


def _parallel(graph: GraphBuilder, x: str, attention: str) -> str:
    """Both branches start from x. Without dropout between them and the addition, their partial
    sums are added first and reduced once (as GPT-NeoX's training code does), then the biases."""
    config = graph.config
    normed = graph.norm("norm1", x)
    ffn_input = normed if config.one_norm else graph.norm("norm2", x)
    if config.dropout:
        left = graph.dropout("proj_dropout", mixer(graph, normed, attention), config.dropout)
        right = graph.dropout("fc2_dropout", mlp(graph, ffn_input), config.dropout)
        middle = graph.residual("residual1", left, x, "middle")
        return graph.residual("residual2", right, middle, "y")
    left = mixer(graph, normed, attention, open_end=True)
    right = mlp(graph, ffn_input, open_end=True)
    total = graph.reduced_sum("branches", left, right)
    for name, biased in (("proj", config.output_bias), ("fc2", config.mlp_bias)):
        if biased:
            total = graph.late_bias(name, total)
    return graph.residual("residual2", total, x, "y")
