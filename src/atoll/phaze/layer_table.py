"""Layer tables: a user's own layer costs, one graph of layers per tensor-parallel width.

The file is the JSON that PHAZE feeds its placement solver: `maxDevices`, `maxMemoryPerDevice`
(bytes), `bandwidth` (bytes/s), `mbsInBatch` (microbatches), `activationRecomputation`,
`optimizerAlgorithm`, and for every width `nodes` and `edges`. Other fields are ignored, among them
`fixedPP`, `fixedTMPC`, `fixedDP` and `numTransformerLayers`, which describe a baseline.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from atoll.base.errors import AtollError
from atoll.files.inputs import read_input_text
from atoll.files.jsonfile import MOST_BYTES, parse_object
from atoll.files.yamlfile import FileModel, validate_dict

LARGEST_COUNT = 10**9
"""Most devices, microbatches or width: keeps every product of counts exact in 64 bits."""


def _whole(value: Any) -> Any:
    """Return 4.0 as 4."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Amount = Annotated[float, Field(ge=0, strict=True)]
Whole = Annotated[int, BeforeValidator(_whole), Field(strict=True)]
Flag = Annotated[bool, Field(strict=True)]


@dataclass(frozen=True, slots=True)
class LayerNode:
    """One layer on one device of a tensor-parallel group, for one microbatch."""

    id: Whole
    weight_bytes: Annotated[Amount, Field(alias="parameterSize")]
    activation_bytes: Annotated[Amount, Field(alias="activationSize")]
    forward_s: Annotated[Amount, Field(alias="optimalLatencyFw")]
    backward_s: Annotated[Amount, Field(alias="optimalLatencyBw")]
    tensor_parallel: Annotated[Flag, Field(alias="isTensorParallelized")]


@dataclass(frozen=True, slots=True)
class LayerEdge:
    source: Annotated[Whole, Field(alias="sourceId")]
    target: Annotated[Whole, Field(alias="destId")]
    size_bytes: Annotated[Amount, Field(alias="communicationCost")]


@dataclass(frozen=True)
class LayerGraph:
    nodes: tuple[LayerNode, ...]
    edges: tuple[LayerEdge, ...]


@dataclass(frozen=True)
class LayerTable:
    devices: int
    memory_bytes: float
    bandwidth_Bps: float
    microbatches: int
    recompute: bool  # stages other than the last recompute their whole forward pass
    optimizer: str
    widths: Mapping[int, LayerGraph]
    source: str = field(default="layer table", compare=False)  # names the table in errors


class LayerTableFile(FileModel):
    """A layer table as its file has it."""

    model_config = ConfigDict(extra="ignore")

    devices: Annotated[Whole, Field(alias="maxDevices", ge=1, le=LARGEST_COUNT)]
    memory_bytes: Annotated[Amount, Field(alias="maxMemoryPerDevice")]
    bandwidth_Bps: Annotated[float, Field(alias="bandwidth", gt=0, strict=True)]
    # PHAZE divides the batch by the microbatch size and truncates; a part of one is dropped.
    microbatches: Annotated[
        float, Field(alias="mbsInBatch", ge=1, lt=LARGEST_COUNT + 1, strict=True)
    ]
    recompute: Annotated[Flag, Field(alias="activationRecomputation")]
    optimizer: Annotated[Literal["SGD", "Adam"], Field(alias="optimizerAlgorithm")]
    nodes: Annotated[
        dict[str, Annotated[tuple[LayerNode, ...], Field(min_length=1)]], Field(min_length=1)
    ]
    edges: dict[str, tuple[LayerEdge, ...]]

    def table(self, source: str) -> LayerTable:
        """Return the table with a graph per width, narrow ones first."""
        if len(self.nodes.keys() ^ self.edges.keys()):
            width = min(self.nodes.keys() ^ self.edges.keys())
            raise AtollError(f"{source}: width {width:.40}: expected both nodes and edges")
        widths = {_width(key, source): self._graph(key, source) for key in self.nodes}
        values = dict(self) | {"microbatches": int(self.microbatches), "source": source}
        del values["nodes"], values["edges"]
        return LayerTable(**values, widths=dict(sorted(widths.items())))

    def _graph(self, key: str, source: str) -> LayerGraph:
        nodes, edges = self.nodes[key], self.edges[key]
        ids: set[int] = set()
        for number, node in enumerate(nodes):
            if node.id in ids:
                raise AtollError(f"{source}: nodes.{key}.{number}.id: {node.id} is there twice")
            ids.add(node.id)
        for number, edge in enumerate(edges):
            if missing := {edge.source, edge.target} - ids:
                where = f"{source}: edges.{key}.{number}"
                raise AtollError(f"{where}: {min(missing)} is no id of a layer of nodes.{key}")
        graph = LayerGraph(nodes, edges)
        topological_order(graph, f"{source}: edges.{key}")
        return graph


def _width(key: str, source: str) -> int:
    digits = key.isascii() and key.isdecimal() and not key.startswith("0")
    if not digits or len(key) > 10 or int(key) > LARGEST_COUNT:
        raise AtollError(
            f"{source}: nodes: expected widths from 1 to {LARGEST_COUNT}, got {key[:40]!r}"
        )
    return int(key)


def read_table(path: str | Path) -> LayerTable:
    """Read and check a layer table; every fault is an `AtollError` naming file and field."""
    return parse_table(read_input_text(path, MOST_BYTES), str(path))


def parse_table(text: str, source: str = "layer table") -> LayerTable:
    """The table written in `text`; `source` names it in errors."""
    data = parse_object(text, source, unique=True)
    return validate_dict(data, LayerTableFile, source).table(source)


def topological_order(graph: LayerGraph, where: str = "layer table: edges") -> tuple[int, ...]:
    """Positions in `graph.nodes`, sources first; ties in file order. A cycle is an error."""
    position = {node.id: i for i, node in enumerate(graph.nodes)}
    sorter: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(range(len(graph.nodes)), ()))
    for edge in graph.edges:
        sorter.add(position[edge.target], position[edge.source])
    try:
        sorter.prepare()
    except CycleError as error:
        cycle = " -> ".join(str(graph.nodes[i].id) for i in error.args[1])
        raise AtollError(f"{where} form the cycle {cycle}; a layer graph must have none.") from None
    ready: list[int] = list(sorter.get_ready())
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        order.append(heapq.heappop(ready))
        sorter.done(order[-1])
        for after in sorter.get_ready():
            heapq.heappush(ready, after)
    return tuple(order)
