"""An encoder and a decoder as one chain of layers (T5, arXiv:1910.10683).

Encoder blocks first, then decoder blocks. Besides the residual stream two tensors run along the
chain: relative positions, if it has them, which the first block of each stack makes and its other
blocks read, and the encoder's output, which every decoder block attends to. Blocks at the ends of
a stack make or end these and are layers of their own; the others repeat. The word table lies in
the embedding, in the first decoder block and, where it is tied, in the head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from atoll.workload.builders.attention import attention as build_attention
from atoll.workload.builders.block import close_branch
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


def stack_parts(config: ModelConfig) -> Iterator[Part]:
    """The chain between embedding and head."""
    encoder = config.encoder_layers
    for name, blocks in (("encoder", encoder), ("decoder", config.layers - encoder)):
        decoder = name == "decoder"
        if blocks == 1:
            yield Part(f"{name}_block", decoder, True, True)
            continue
        yield Part(f"{name}_first", decoder, True, False)
        if blocks > 2:
            yield Part(f"{name}_block", decoder, False, False, blocks - 2)
        yield Part(f"{name}_last", decoder, False, True)


def stack_part(graph: GraphBuilder, part: Part, attention: str) -> tuple[str, str]:
    """Write one block, with the tensors that it carries to other blocks."""
    config = graph.config = replace(graph.config, causal=part.decoder)
    encoded: tuple[str, ...] = ()
    if part.decoder:
        encoded = (graph.stream("encoded", config.hidden),)
        graph.sequence = config.decoder_sequence or graph.sequence
    # The decoder begins with the tokens to be decoded: the chain brings the encoder's output.
    begins = part.decoder and part.first
    x = embedding(graph)[1] if begins else graph.stream("x", config.hidden)
    graph.owner = f"{part.name}."
    positions = _positions(graph, part, attention)
    branch = build_attention(graph, graph.norm("norm1", x), attention, positions=positions)
    y = close_branch(graph, branch, x, "proj", 1)
    for source in encoded:
        y = _cross_attention(graph, y, source, attention)
    y = close_branch(graph, mlp(graph, graph.norm("norm2", y)), y, "fc2", 2)
    if part.last and not part.decoder:
        y = graph.norm("final_norm", y)
        y = graph.dropout("final_dropout", y, config.inner_dropout)
    carried = *encoded, *filter(None, (positions,))
    graph.more_inputs = () if part.first else carried
    graph.more_outputs = () if part.last else carried
    return encoded[0] if begins else x, y


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


def _cross_attention(graph: GraphBuilder, x: str, encoded: str, attention: str) -> str:
    """Queries of the decoder over all that the encoder wrote."""
    config = graph.config
    graph.prefix, graph.config = "cross.", replace(config, causal=False)
    branch = build_attention(graph, graph.norm("norm", x), attention, source=encoded)
    branch = graph.dropout("proj_dropout", branch, config.dropout)
    y = graph.residual("residual", branch, x, "middle")
    graph.prefix, graph.config = "", config
    return y
