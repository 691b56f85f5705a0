"""From a configuration to a chain of layers: unsharded, unfused, with its backward pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from atoll.errors import AtollError
from atoll.workload.backward import differentiate
from atoll.workload.build_attention import attention as build_attention
from atoll.workload.build_ends import embedding, head, loss
from atoll.workload.build_mlp import mlp
from atoll.workload.config import ModelConfig
from atoll.workload.graph import Graph
from atoll.workload.layer import Layer, Model
from atoll.workload.operator import Role

ATTENTION = ("flash", "unfused")


def build_model(
    config: ModelConfig,
    microbatch: int,
    sequence: int | None = None,
    *,
    attention: str = "flash",
    fused_loss: bool = False,
) -> Model:
    """The model's layers (embedding, block x n, head, loss) for one microbatch on one device."""
    length = config.sequence if sequence is None else sequence
    _check(config, microbatch, length, attention)

    def layer(name: str, write: Callable[[Graph], tuple[str, str]]) -> Layer:
        graph = Graph(config, microbatch, length)
        source, target = write(graph)
        return differentiate(Layer(name, graph.tensors, tuple(graph.operators), (), source, target))

    chain = (
        (layer("embedding", embedding), 1),
        (layer("block", partial(_block, attention=attention)), config.layers),
        (layer("head", head), 1),
        (layer("loss", partial(loss, fused=fused_loss)), 1),
    )
    return Model(
        name=config.name,
        layers=chain,
        microbatch=microbatch,
        sequence=length,
        shared_parameters=shared_parameters(chain),
    )


def shared_parameters(layers: tuple[tuple[Layer, int], ...]) -> int:
    """Elements of weights that two layers of the chain both hold (same name, same weight)."""
    seen: set[str] = set()
    shared = 0
    for layer, _ in layers:
        for tensor in layer.tensors.values():
            if tensor.role is Role.WEIGHT:
                shared += tensor.elements if tensor.name in seen else 0
                seen.add(tensor.name)
    return shared


def _block(graph: Graph, attention: str) -> tuple[str, str]:
    """One transformer block; the norms open the branches, or follow the additions."""
    config = graph.config
    x = graph.stream("x", config.hidden)
    if config.post_norm:
        branch = build_attention(graph, x, attention)
        branch = graph.dropout("proj_dropout", branch, config.dropout)
        middle = graph.norm("norm1", graph.residual("residual1", branch, x, "sum1"))
        branch = graph.dropout("fc2_dropout", mlp(graph, middle), config.dropout)
        return x, graph.norm("norm2", graph.residual("residual2", branch, middle, "sum2"))
    branch = build_attention(graph, graph.norm("norm1", x), attention)
    branch = graph.dropout("proj_dropout", branch, config.dropout)
    middle = graph.residual("residual1", branch, x, "middle")
    branch = mlp(graph, graph.norm("norm2", middle))
    branch = graph.dropout("fc2_dropout", branch, config.dropout)
    return x, graph.residual("residual2", branch, middle, "y")


def _check(config: ModelConfig, microbatch: int, sequence: int, attention: str) -> None:
    for field, value in (("microbatch", microbatch), ("sequence", sequence)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise AtollError(f"{config.name}: {field} is {value!r}, but must be a positive integer")
    if config.positions == "learned" and sequence > config.max_sequence:
        raise AtollError(
            f"{config.name}: sequence is {sequence}, but its position table ends at "
            f"{config.max_sequence}"
        )
    if attention not in ATTENTION:
        raise AtollError(
            f"{config.name}: attention is {attention!r}, but must be one of {', '.join(ATTENTION)}"
        )
