"""From a configuration to a chain of layers: unsharded, unfused, with its backward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from atoll.base.errors import AtollError, check_count
from atoll.workload.builders.block import block
from atoll.workload.builders.block_runs import BlockRun, block_runs
from atoll.workload.builders.encoder_decoder import stack_part, stack_parts
from atoll.workload.builders.ends import (
    build_logits,
    classifier,
    embedding,
    head,
    loss,
    patch_embedding,
)
from atoll.workload.builders.graph import GraphBuilder
from atoll.workload.families.model_config import ModelConfig
from atoll.workload.graph.backward import differentiate
from atoll.workload.graph.layer import Layer, Model
from atoll.workload.graph.operator import Role

ATTENTION = ("flash", "unfused", "unfused-biased", "unfused-global")


def build_model(
    config: ModelConfig,
    microbatch: int,
    sequence: int | None = None,
    *,
    attention: str = "flash",
    fused_loss: bool = False,
    merge_periods: bool = True,
    backward: bool = True,
) -> Model:
    """The model's layers (embedding, blocks x n, head, loss) for one microbatch on one device.

    Alternating blocks become one layer per period, or with `merge_periods` false one layer each,
    which then occurs several times. Without `backward` the caller shards, which differentiates.
    """
    length = config.sequence if sequence is None else sequence
    last = config.decoder_sequence or length
    _check(config, microbatch, length, attention)

    def layer(name: str, write: Callable[[GraphBuilder], tuple[str, str]]) -> Layer:
        graph = GraphBuilder(config, microbatch, last if name in ("head", "loss") else length)
        source, target = write(graph)
        forward = Layer(
            name=name,
            tensors=graph.tensors,
            forward=tuple(graph.operators),
            backward=(),
            input=source,
            output=target,
            more_inputs=graph.more_inputs,
            more_outputs=graph.more_outputs,
        )
        return differentiate(forward) if backward else forward

    vision = bool(config.patch_inputs)
    blocks: list[tuple[str, Callable[[GraphBuilder], tuple[str, str]], int]]
    if config.encoder_layers:
        blocks = [
            (part.name, partial(stack_part, part=part, attention=attention), part.repeat)
            for part in stack_parts(config)
        ]
    else:
        blocks = [
            (run.name, partial(_blocks, run=run, attention=attention), run.repeat)
            for run in block_runs(config, length * config.context, merge_periods=merge_periods)
        ]
    distinct = {name: layer(name, write) for name, write, _ in reversed(blocks)}
    further = partial(_further, attention=attention)
    chain = (
        (layer("embedding", patch_embedding if vision else embedding), 1),
        *((distinct[name], repeat) for name, _, repeat in blocks),
        *((layer(f"mtp{i or ''}", further), 1) for i in range(config.mtp_layers)),
        (layer("head", classifier if vision else head), 1),
        (layer("loss", partial(loss, fused=fused_loss)), 1),
    )
    shared = shared_parameters(chain)
    return Model(config.name, chain, microbatch, length, shared_parameters=shared)


def shared_parameters(layers: tuple[tuple[Layer, int], ...]) -> int:
    """Elements of weights that two layers of the chain both hold (same name, same weight)."""
    names: set[str] = set()
    shared = 0
    for layer in {id(layer): layer for layer, _ in layers}.values():
        for tensor in layer.tensors.values():
            if tensor.role is Role.WEIGHT:
                shared += tensor.elements if tensor.name in names else 0
                names.add(tensor.name)
    return shared


def _blocks(graph: GraphBuilder, run: BlockRun, attention: str) -> tuple[str, str]:
    """The blocks of one layer of the chain, usually a single one."""
    graph.prefix = run.blocks[0][0]
    source = x = graph.stream("x", graph.config.hidden)
    for prefix, config in run.blocks:
        graph.prefix, graph.config = prefix, config
        x = block(graph, x, attention)
    return source, x


def _further(graph: GraphBuilder, attention: str) -> tuple[str, str]:
    """Write a multi-token-prediction block with its loss; the stream passes through unchanged. The
    projection of its two concatenated inputs is written as the sum of two products."""
    config = graph.config
    source = graph.stream("x", config.hidden)
    _, word = embedding(graph)
    graph.prefix = "mtp."
    graph.config = replace(
        config, mixer="attention", mixers=(), windows=(), dense_layers=(), one_branch=False
    )
    following, before = (
        graph.linear(
            f"{name}_proj", graph.norm(f"{name}_norm", x), graph.stream(name, config.hidden),
            bias=False, split="m",
        )
        for name, x in (("next", word), ("hidden", source))
    )  # fmt: skip
    y = block(graph, graph.residual("joined", following, before, "joined"), attention)
    graph.prefix, graph.config = "", config
    build_logits(graph, y)
    loss(graph, fused=False)
    return source, source


def _check(config: ModelConfig, microbatch: int, sequence: int, attention: str) -> None:
    check_count(f"{config.name}: microbatch", microbatch)
    check_count(f"{config.name}: sequence", sequence)
    if config.positions == "learned" and sequence > config.max_sequence:
        raise AtollError(
            f"{config.name}: sequence is {sequence}, but its position table ends at "
            f"{config.max_sequence}"
        )
    if config.patch_inputs and sequence < 2:
        raise AtollError(
            f"{config.name}: sequence is {sequence}, but must hold the class token and a patch"
        )
    if attention not in ATTENTION:
        raise AtollError(
            f"{config.name}: attention is {attention!r}, but must be one of {', '.join(ATTENTION)}"
        )
