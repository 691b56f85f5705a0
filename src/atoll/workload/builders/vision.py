"""The two ends of a vision transformer (arXiv:2010.11929): patches in, one class an image out."""

from __future__ import annotations

from dataclasses import replace

from atoll.workload.builders.ends import add_positions, class_logits
from atoll.workload.builders.graph import HALF, GraphBuilder
from atoll.workload.graph.operator import Region


def patch_embedding(graph: GraphBuilder) -> tuple[str, str]:
    """A linear over the pixels of each patch, a class token before them, positions, dropout."""
    config, b, patches = graph.config, graph.microbatch, graph.sequence - 1

    def tokens(name: str, width: int) -> str:
        return graph.add(name, (b, patches, width), HALF, Region.SEQUENCE, 1, 0, graph.uneven)

    pixels, embedded = tokens("pixels", config.patch_inputs), tokens("patches", config.hidden)
    graph.linear("patches", pixels, embedded, bias=True, split="m")
    graph.operators[-1] = replace(graph.operators[-1], kind="data_linear")
    token = graph.weight("class.weight", (config.hidden,))
    x = graph.stream("words", config.hidden)
    graph.run("class", "prepend", (embedded, token), (x,))
    x = add_positions(graph, x)
    return pixels, graph.dropout("embedding_dropout", x, config.embedding_dropout)


def classifier(graph: GraphBuilder) -> tuple[str, str]:
    """Last norm, then a small linear over the class token, which every device runs."""
    config = graph.config
    x = graph.stream("x", config.hidden)
    normed = graph.norm("final_norm", x)
    token = graph.add("class", (graph.microbatch, 1, config.hidden))
    graph.run("class", "select", (normed,), (token,))
    logits = class_logits(graph)
    graph.linear("classifier", token, logits, bias=config.head_bias, split="")
    return x, logits
