"""An encoder and a decoder as one chain of layers (T5, arXiv:1910.10683).

Encoder blocks first, then decoder blocks. Besides the residual stream two tensors run along the
chain: relative positions, if it has them, which the first block of each stack makes and its other
blocks read, and the encoder's output, which every decoder block attends to. Blocks at the ends of
a stack make or end these and are layers of their own; the others repeat. The word table lies in
the embedding, in the first decoder block and, where it is tied, in the head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from atoll.workload.builders.attention import attention as build_attention
from atoll.workload.builders.ends import embedding
from atoll.workload.builders.graph import HALF, GraphBuilder
from atoll.workload.builders.mlp import mlp
from atoll.workload.families.model_config import ModelConfig
from atoll.workload.graph.operator import Region


@dataclass(frozen=True, slots=True)
class Part:
    """`repeat` equal blocks of a stack; the first and the last block are parts of their own."""

    name: str
    decoder: bool
    first: bool
    last: bool
    repeat: int = 1


def stack_parts(config: ModelConfig) -> tuple[Part, ...]:
    """The chain between embedding and head."""
    encoder = config.encoder_layers
    return (
        *_parts("encoder", encoder, decoder=False),
        *_parts("decoder", config.layers - encoder, decoder=True),
    )


def _parts(name: str, blocks: int, *, decoder: bool) -> tuple[Part, ...]:
    if blocks == 1:
        return (Part(f"{name}_block", decoder, True, True),)
    middle = Part(f"{name}_block", decoder, False, False, blocks - 2)
    return (
        Part(f"{name}_first", decoder, True, False),
        *((middle,) if middle.repeat else ()),
        Part(f"{name}_last", decoder, False, True),
    )


def stack_part(graph: GraphBuilder, part: Part, attention: str) -> tuple[str, str]:
    """Write one block, with the tensors that it carries to other blocks."""
    graph.config = replace(graph.config, causal=part.decoder)
    write = _decoder if part.decoder else _encoder
    return write(graph, part, attention)


def _encoder(graph: GraphBuilder, part: Part, attention: str) -> tuple[str, str]:
    graph.owner = f"{part.name}."
    x = graph.stream("x", graph.config.hidden)
    positions = _positions(graph, part, attention)
    y = _feed_forward(graph, _self_attention(graph, x, positions, attention))
    if part.last:
        y = graph.norm("final_norm", y)
        y = graph.dropout("final_dropout", y, graph.config.inner_dropout)
    carried = tuple(filter(None, (positions,)))
    graph.more_inputs = () if part.first else carried
    graph.more_outputs = () if part.last else carried
    return x, y


def _decoder(graph: GraphBuilder, part: Part, attention: str) -> tuple[str, str]:
    config = graph.config
    encoded = graph.stream("encoded", config.hidden)
    graph.sequence = config.decoder_sequence or graph.sequence
    # The first block begins with the tokens to be decoded: the chain brings the encoder's output.
    x = embedding(graph)[1] if part.first else graph.stream("x", config.hidden)
    graph.owner = f"{part.name}."
    positions = _positions(graph, part, attention)
    middle = _self_attention(graph, x, positions, attention)
    middle = _cross_attention(graph, middle, encoded, attention)
    y = _feed_forward(graph, middle)
    carried = encoded, *filter(None, (positions,))
    graph.more_inputs = () if part.first else carried
    graph.more_outputs = () if part.last else carried
    return encoded if part.first else x, y


def _positions(graph: GraphBuilder, part: Part, attention: str) -> str:
    """A number for every head and distance. Flash attention looks distances up while it runs, so
    that only the table runs along the chain; otherwise one number for every head and pair of
    tokens does. Nothing where positions are added to the embeddings."""
    if graph.config.positions != "relative":
        return ""
    config, length = graph.config, graph.sequence
    heads, buckets = config.heads, config.position_buckets
    shape, dim = ((buckets, heads), 1) if attention == "flash" else ((heads, length, length), 0)
    positions = graph.add("relative", shape, HALF, Region.TENSOR, dim, heads)
    if part.first:
        table = graph.weight("relative.weight", (buckets, heads), 1, heads)
        graph.run("relative", "relative", (table,), (positions,))
    return positions


def _self_attention(graph: GraphBuilder, x: str, positions: str, attention: str) -> str:
    branch = build_attention(graph, graph.norm("norm1", x), attention, positions=positions)
    branch = graph.dropout("proj_dropout", branch, graph.config.dropout)
    return graph.residual("residual1", branch, x, "middle")


def _cross_attention(graph: GraphBuilder, x: str, encoded: str, attention: str) -> str:
    """Queries of the decoder over all that the encoder wrote."""
    config = graph.config
    graph.prefix, graph.config = "cross.", replace(config, causal=False)
    branch = build_attention(graph, graph.norm("norm", x), attention, source=encoded)
    branch = graph.dropout("proj_dropout", branch, config.dropout)
    y = graph.residual("residual", branch, x, "middle")
    graph.prefix, graph.config = "", config
    return y


def _feed_forward(graph: GraphBuilder, x: str) -> str:
    branch = mlp(graph, graph.norm("norm2", x))
    branch = graph.dropout("fc2_dropout", branch, graph.config.dropout)
    return graph.residual("residual2", branch, x, "y")
