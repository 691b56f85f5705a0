"""Layer tables: a user's own layer costs, one graph of layers per tensor-parallel width.

The file is the JSON that PHAZE feeds its placement solver: `maxDevices`, `maxMemoryPerDevice`
(bytes), `bandwidth` (bytes/s), `mbsInBatch` (microbatches), `activationRecomputation`,
`optimizerAlgorithm`, and for every width `nodes` and `edges`. Other fields are ignored, among them
`fixedPP`, `fixedTMPC`, `fixedDP` and `numTransformerLayers`, which describe a baseline.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, NoReturn

from atoll.base.errors import AtollError
from atoll.files.inputs import read_input_text
from atoll.files.jsonfile import MOST_BYTES

OPTIMIZERS = ("SGD", "Adam")
LARGEST_COUNT = 10**9
"""Most devices, microbatches or width: keeps every product of counts exact in 64 bits."""


@dataclass(frozen=True, slots=True)
class LayerNode:
    """One layer on one device of a tensor-parallel group, for one microbatch."""

    id: int
    weight_bytes: float
    activation_bytes: float
    forward_s: float
    backward_s: float
    tensor_parallel: bool


@dataclass(frozen=True, slots=True)
class LayerEdge:
    source: int
    target: int
    size_bytes: float


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


def read_table(path: str | Path) -> LayerTable:
    """Read and check a layer table; every fault is an `AtollError` naming file and field."""
    return parse_table(read_input_text(path, MOST_BYTES), str(path))


def parse_table(text: str, source: str = "layer table") -> LayerTable:
    """The table written in `text`; `source` names it in errors."""
    try:
        data = json.loads(text, object_pairs_hook=_without_duplicates)
    except json.JSONDecodeError as error:
        raise AtollError(
            f"{source}: line {error.lineno} column {error.colno} is not valid JSON ({error.msg}); "
            "a layer table is one complete JSON object."
        ) from None
    except _DuplicateKeyError as error:
        raise AtollError(
            f"{source}: the field {error.key} is given twice in one object; give it once."
        ) from None
    except (ValueError, RecursionError) as error:
        raise AtollError(
            f"{source}: is not readable as JSON ({error}); a layer table is one JSON object."
        ) from None
    if not isinstance(data, dict):
        raise AtollError(f"{source}: holds {_shown(data)}; a layer table is one JSON object.")
    return _TableReader(source).table(data)


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


class _DuplicateKeyError(Exception):
    def __init__(self, key: str) -> None:
        self.key = key


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON lets a later field silently replace an earlier one; a table must not."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        keys = [key for key, _ in pairs]
        raise _DuplicateKeyError(next(key for key in keys if keys.count(key) > 1))
    return fields


def _shown(value: object) -> str:
    return _brief(json.dumps(value))


@dataclass(frozen=True)
class _TableReader:
    """Takes checked values out of parsed JSON; paths are dotted, like nodes.4[3].id."""

    source: str

    def fail(self, path: str, problem: str, allowed: str) -> NoReturn:
        raise AtollError(f"{self.source}: {path} {problem}; {allowed}.")

    def value(self, data: dict[str, Any], parent: str, key: str, allowed: str) -> Any:
        if key not in data:
            self.fail(_join(parent, key), "is missing", allowed)
        return data[key]

    def number(self, data: dict[str, Any], parent: str, key: str, unit: str) -> float:
        """A finite number, zero or more."""
        allowed = f"it must be a finite number of {unit}, zero or more"
        value = self.value(data, parent, key, allowed)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fail(_join(parent, key), f"is {_shown(value)}", allowed)
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number) or number < 0:
            self.fail(_join(parent, key), f"is {_shown(value)}", allowed)
        return number

    def integer(self, data: dict[str, Any], parent: str, key: str, allowed: str) -> int:
        """An integer; 4.0 counts as one, true does not."""
        value = self.value(data, parent, key, allowed)
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(_join(parent, key), f"is {_shown(value)}", allowed)
        return value

    def flag(self, data: dict[str, Any], parent: str, key: str) -> bool:
        allowed = "it must be true or false"
        value = self.value(data, parent, key, allowed)
        if not isinstance(value, bool):
            self.fail(_join(parent, key), f"is {_shown(value)}", allowed)
        return value

    def table(self, data: dict[str, Any]) -> LayerTable:
        devices_allowed = f"it must be a whole number of devices from 1 to {LARGEST_COUNT}"
        devices = self.integer(data, "", "maxDevices", devices_allowed)
        if not 1 <= devices <= LARGEST_COUNT:
            self.fail("maxDevices", f"is {_shown(devices)}", devices_allowed)
        memory_bytes = self.number(data, "", "maxMemoryPerDevice", "bytes")
        bandwidth_Bps = self.number(data, "", "bandwidth", "bytes per second")
        if bandwidth_Bps == 0:
            self.fail("bandwidth", "is 0", "it must be more than 0 bytes per second")
        # PHAZE divides the batch by the microbatch size and truncates; a part of one is dropped.
        microbatches = self.number(data, "", "mbsInBatch", "microbatches")
        if not 1 <= microbatches < LARGEST_COUNT + 1:
            shown = _shown(data["mbsInBatch"])
            self.fail("mbsInBatch", f"is {shown}", f"it must be from 1 to {LARGEST_COUNT}")
        optimizer_allowed = f"allowed are {' and '.join(OPTIMIZERS)}"
        optimizer = self.value(data, "", "optimizerAlgorithm", optimizer_allowed)
        if optimizer not in OPTIMIZERS:
            self.fail("optimizerAlgorithm", f"is {_shown(optimizer)}", optimizer_allowed)
        return LayerTable(
            devices=devices,
            memory_bytes=memory_bytes,
            bandwidth_Bps=bandwidth_Bps,
            microbatches=int(microbatches),
            recompute=self.flag(data, "", "activationRecomputation"),
            optimizer=str(optimizer),
            widths=self.widths(data),
            source=self.source,
        )

    def widths(self, data: dict[str, Any]) -> dict[int, LayerGraph]:
        by_width = "it must be an object with a list for each tensor-parallel width"
        nodes = self.value(data, "", "nodes", by_width)
        edges = self.value(data, "", "edges", by_width)
        for name, value in (("nodes", nodes), ("edges", edges)):
            if not isinstance(value, dict):
                self.fail(name, f"is {_shown(value)}", by_width)
        if not nodes:
            self.fail("nodes", "is {}", "it must hold at least one width")
        for key in edges:
            if key not in nodes:
                self.fail(f"edges.{key}", f"has no nodes.{key} beside it", "give both or neither")
        graphs = {}
        for key in nodes:
            digits = key.isascii() and key.isdecimal() and not key.startswith("0")
            if not digits or len(key) > 10 or int(key) > LARGEST_COUNT:
                allowed = f"a width is a whole number from 1 to {LARGEST_COUNT}"
                self.fail(f"nodes.{_brief(key)}", f"names the width {_brief(key)!r}", allowed)
            graphs[int(key)] = self.graph(nodes[key], edges, key)
        return dict(sorted(graphs.items()))

    def graph(self, nodes: Any, edges: dict[str, Any], key: str) -> LayerGraph:
        node_path, edge_path = f"nodes.{key}", f"edges.{key}"
        edge_items = self.value(edges, "edges", key, "every width needs its list of edges")
        for path, value in ((node_path, nodes), (edge_path, edge_items)):
            if not isinstance(value, list):
                self.fail(path, f"is {_shown(value)}", "it must be a list")
        if not nodes:
            self.fail(node_path, "is []", "it must hold at least one layer")
        by_id: dict[int, LayerNode] = {}
        for i, item in enumerate(nodes):
            node = self.node(item, f"{node_path}[{i}]")
            if node.id in by_id:
                self.fail(f"{node_path}[{i}].id", f"repeats {node.id}", "every id must be unique")
            by_id[node.id] = node
        links = tuple(self.edge(item, key, i, by_id) for i, item in enumerate(edge_items))
        graph = LayerGraph(tuple(by_id.values()), links)
        topological_order(graph, f"{self.source}: {edge_path}")
        return graph

    def node(self, item: Any, path: str) -> LayerNode:
        if not isinstance(item, dict):
            self.fail(path, f"is {_shown(item)}", "it must be an object describing one layer")
        return LayerNode(
            id=self.integer(item, path, "id", "it must be a whole number"),
            weight_bytes=self.number(item, path, "parameterSize", "bytes"),
            activation_bytes=self.number(item, path, "activationSize", "bytes"),
            forward_s=self.number(item, path, "optimalLatencyFw", "seconds"),
            backward_s=self.number(item, path, "optimalLatencyBw", "seconds"),
            tensor_parallel=self.flag(item, path, "isTensorParallelized"),
        )

    def edge(self, item: Any, width: str, i: int, nodes: Mapping[int, LayerNode]) -> LayerEdge:
        path = f"edges.{width}[{i}]"
        if not isinstance(item, dict):
            self.fail(path, f"is {_shown(item)}", "it must be an object describing one edge")
        allowed = f"it must be the id of a layer of nodes.{width}"
        ends = {key: self.integer(item, path, key, allowed) for key in ("sourceId", "destId")}
        for key, end in ends.items():
            if end not in nodes:
                self.fail(_join(path, key), f"is {_shown(end)}", allowed)
        size_bytes = self.number(item, path, "communicationCost", "bytes")
        return LayerEdge(ends["sourceId"], ends["destId"], size_bytes)


def _join(parent: str, key: str) -> str:
    return f"{parent}.{key}" if parent else key


def _brief(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."
