"""`atoll models`: the zoo, or one model layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from atoll.answers.answer import Answer, build_from
from atoll.workload.graph.layer import Layer, Model
from atoll.workload.graph.operator import Operator


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooModel:
    name: str
    parameters: int
    layers: int
    hidden: int
    heads: int
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsAnswer(Answer):
    """The models that come with Atoll."""

    kind: Literal["models"] = "models"
    format: Literal[1] = 1
    models: tuple[ZooModel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOperator:
    name: str
    kind: str
    pass_: Annotated[str, Field(alias="pass")]
    core: str
    flops: int | float
    bytes: int | float
    link_bytes: int | float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLayer:
    name: str
    repeat: int
    parameters: int
    flops_forward: int | float
    flops_backward: int | float
    saved_bytes: int | float
    boundary_bytes: int | float
    operators: tuple[ModelOperator, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswer(Answer):
    """A model's parameters and layers, with their operators."""

    kind: Literal["model"] = "model"
    format: Literal[1] = 1
    name: str
    parameters: int
    active_parameters: int
    part: str
    """Of a larger model, in words."""
    microbatch: int
    sequence: int
    tensor_parallel: int
    layers: tuple[ModelLayer, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureAnswer(ModelAnswer):
    """A model as it was captured."""

    kind: Literal["capture"] = "capture"  # type: ignore[assignment]
    file: str
    notes: tuple[str, ...]
    seconds: float


def layer_table(model: Model) -> tuple[ModelLayer, ...]:
    """Return the kinds of layers of a model with their operators."""
    return tuple(
        build_from(
            ModelLayer,
            layer,
            repeat=repeat,
            operators=(
                *(_operator(layer, op, "forward") for op in layer.forward),
                *(_operator(layer, op, "backward") for op in layer.backward),
            ),
        )
        for layer, repeat in model.layers
    )


def _operator(layer: Layer, op: Operator, direction: str) -> ModelOperator:
    link = op.collective
    return ModelOperator(
        name=op.name,
        kind=op.kind,
        pass_=direction,
        core=str(op.core),
        flops=op.flops,
        bytes=layer.traffic_bytes(op),
        link_bytes=link.bytes if link else 0,
    )
