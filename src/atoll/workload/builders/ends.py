"""The two ends of the chain: embedding, output head and loss; of a vision transformer
(arXiv:2010.11929) patches in, one class an image out."""

from __future__ import annotations

from dataclasses import replace

from atoll.workload.builders.graph import FLOAT, HALF, TOKEN, GraphBuilder
from atoll.workload.graph.operator import Region, Uneven


def embedding(graph: GraphBuilder) -> tuple[str, str]:
    """Token ids to the residual stream: look-up, positions, token types, norm, dropout."""
    config, b, s = graph.config, graph.microbatch, graph.sequence
    tokens = graph.add("tokens", (b, s), TOKEN)
    graph.weight("word.weight", (config.vocab, config.word_width), 0, uneven=Uneven.PAD)
    # The table is a parameter, but only the rows of this microbatch's tokens are read: on each
    # device those that fall into its part of the vocabulary.
    shape = (graph.tokens, config.word_width)
    rows = graph.add("word.rows", shape, HALF, Region.TENSOR, uneven=Uneven.PAD)
    x = graph.stream("word", config.word_width)
    graph.run("word", "lookup", (tokens, rows), (x,), exits=True)
    if config.embedding_width:
        wide = graph.stream("project_in", config.hidden)
        x = graph.linear("project_in", x, wide, bias=False, split="m")
    if config.embedding_scale:
        x = graph.scale("scale", x)
    x = add_positions(graph, x)
    if config.embedding_norm:
        x = graph.norm("embedding_norm", x)
    return tokens, graph.dropout("embedding_dropout", x, config.embedding_dropout)


def add_positions(graph: GraphBuilder, x: str) -> str:
    """Learned positions and token types: small tables, added row by row."""
    config = graph.config
    rows = []
    if config.positions == "learned":
        graph.weight("positions.weight", (config.position_rows, config.hidden))
        shape, uneven = (graph.sequence, config.hidden), graph.uneven
        rows.append(graph.add("positions.rows", shape, HALF, Region.SEQUENCE, uneven=uneven))
    if config.token_types:
        rows.append(graph.weight("types.weight", (config.token_types, config.hidden)))
    if not rows:
        return x
    out = graph.like("embedded", x)
    adds = tuple(graph.vector("add", x) for _ in rows)
    graph.run("positions", "table_add", (x, *rows), (out,), vectors=adds)
    return out


def head(graph: GraphBuilder) -> tuple[str, str]:
    """The residual stream to logits."""
    source = graph.stream("x", graph.config.hidden)
    return source, build_logits(graph, source)


def build_logits(graph: GraphBuilder, x: str) -> str:
    """Last norm, the family's own transform, vocabulary."""
    config = graph.config
    if config.final_norm:
        x = graph.norm("final_norm", x)
    x = graph.dropout("final_dropout", x, config.inner_dropout)
    if config.mlm_head:
        wide = graph.stream("transform", config.hidden)
        x = graph.linear("transform", x, wide, bias=config.mlm_bias, split="m")
        x = graph.activation("transform_act", x, graph.stream("transform_act", config.hidden))
        x = graph.norm("transform_norm", x)
    if config.embedding_width:
        narrow = graph.stream("project_out", config.word_width)
        x = graph.linear("project_out", x, narrow, bias=False, split="m")
    if config.head_scale:
        x = graph.scale("head_scale", x)
    logits = graph.columns("logits", config.vocab, uneven=Uneven.PAD)
    # A weight of the same name in two layers is one weight: that is how tying is written.
    table = "word" if config.tied_embeddings else "decoder"
    shape, biased = (config.word_width, config.vocab), config.mlm_head or config.head_bias
    weight = graph.weight(f"{table}.weight", shape, 1, uneven=Uneven.PAD)
    biases = graph.bias("decoder", logits, "n") if biased else ()
    graph.product("logits", x, (weight, *biases), (logits,), "n")
    if config.logit_scale:
        logits = graph.scale("logits.scale", logits)
    if not config.logit_cap:
        return logits
    return graph.cap("logit_cap", logits, graph.like("logits.capped", logits))


def loss(graph: GraphBuilder, fused: bool) -> tuple[str, str]:
    """Softmax cross entropy. Its output is two fp32 numbers per token: the log-sum-exp and the
    target's logit, whose difference is that token's loss.

    Unless `fused`, the softmax is kept in fp32 for the backward pass, as Megatron-LM and PyTorch
    do: 4 s b v bytes (Korthikanti et al., arXiv:2205.05198, section 4.3).
    """
    b, s = graph.microbatch, graph.sequence
    vision = bool(graph.config.patch_inputs)
    if vision:  # one label an image, on every device
        s, logits = 1, class_logits(graph)
    else:
        logits = graph.columns("logits", graph.config.vocab, uneven=Uneven.PAD)
    labels, out = graph.add("labels", (b, s), TOKEN), graph.add("loss", (b, s, 2), FLOAT)
    softmax = () if fused else (graph.like("softmax", logits, FLOAT),)
    work, writes = (graph.vector("cross_entropy", logits),), (out, *softmax)
    graph.run("loss", "cross_entropy", (logits, labels), writes, vectors=work, exits=not vision)
    return logits, out


def class_logits(graph: GraphBuilder) -> str:
    """Logits of an image classifier."""
    return graph.add("logits", (graph.microbatch, 1, graph.config.vocab))


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
