"""Bytes per microbatch over every link of the mesh: collectives within stages, activations and
their gradients between stages, offloaded tensors. Traffic once per step (gradient sums, gathers of
updated weights) is spread over its microbatches.

Collectives are the messages of the detailed mode (`detailed.py`), their bytes added along their
routes. Weights streamed from outside the wafer are excluded: the model does not fix their routes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from atoll.base.arrays import Floats, Ints
from atoll.fabric.mesh import Link
from atoll.fabric.mesh_collectives import exchange_messages, pass_messages
from atoll.fabric.mesh_events import LinkMessage
from atoll.fabric.routes import boundaries, journeys
from atoll.hardware.wafer import Wafer
from atoll.wafer.costs.layer_cost import (
    DigitCollective,
    TransitionCost,
    collectives_between,
    edge_transfers,
    mapped_operators,
    mapping_tables,
    stored_layout,
)
from atoll.wafer.costs.tables import CostSetting, NodeTable
from atoll.wafer.encoding import role_kernels as roles
from atoll.wafer.encoding.block_parts import KINDS, RECOMPUTE, WaferBlock
from atoll.wafer.encoding.codes import parts_of, stream_layout
from atoll.wafer.encoding.mapping import StageMapping
from atoll.wafer.evaluate import MappingCost, head_tables, setting_of

STATISTICS_BYTES = 8.0
"""Per row that a norm sums if its columns are cut between dies."""


def link_loads(
    wafer: Wafer, evaluation: MappingCost, dead_links: Sequence[Link] = ()
) -> dict[Link, float]:
    """Return the bytes per microbatch over each loaded link, by direction."""
    mapping, block = evaluation.mapping, evaluation.mapping.blocks()
    rectangles = [stage.rectangle for stage in mapping.stages]
    loads: defaultdict[Link, float] = defaultdict(float)
    sent = boundaries(wafer.mesh, rectangles, block.stream_bytes, dead_links).loads
    for (a, b), size in sent.items():  # gradients return on the same route
        loads[a, b] += size
        loads[b, a] += size
    helpers = [stage.helper for stage in mapping.stages]
    to_helpers = journeys(wafer.mesh, rectangles, helpers, dead_links)
    for stage, cost, journey in zip(mapping.stages, evaluation.stages, to_helpers, strict=True):
        for link, share in journey.loads.items() if journey else ():
            loads[link] += share * stage.layers * cost.block.away_bytes
    last = len(mapping.stages) - 1
    stage_loads: dict[Any, _StageLoads] = {}
    for number, stage in enumerate(mapping.stages):
        key = stage.digits, stage.block
        inner = stage_loads.setdefault(key, _StageLoads(block, stage, setting_of(wafer, mapping)))
        total = stage.layers * inner.layer + inner.ends(stage, number == 0, number == last)
        x, y = stage.rectangle.x, stage.rectangle.y
        for (die, neighbour), size in zip(inner.links, total.tolist(), strict=True):
            loads[(die[0] + x, die[1] + y), (neighbour[0] + x, neighbour[1] + y)] += size
    return {link: size for link, size in loads.items() if size > 0.0}


class _StageLoads:
    """Bytes over the links of a stage's rectangle, as arrays in the order of `links`."""

    def __init__(self, block: WaferBlock, stage: StageMapping, setting: CostSetting) -> None:
        self._block, self._genes, self._setting = block, stage.block, setting
        self._digits, self._mesh = stage.digits, setting.wafer.mesh
        dies = {(x, y) for x in range(stage.digits.width) for y in range(stage.digits.height)}
        self.links = [(die, neighbour) for die in sorted(dies)
                      for neighbour in self._mesh.neighbours(die) if neighbour in dies]  # fmt: skip
        self._place = {link: number for number, link in enumerate(self.links)}

    @cached_property
    def layer(self) -> Floats:
        """Bytes of one layer, forward and backward."""
        tables = mapping_tables(self._block, self._digits, self._setting, self._genes)
        norm = self._norm()
        total: Any = 2.0 * len(tables.nodes) * norm
        for crossing in chain.from_iterable(edge_transfers(tables, self._genes, self._move)):
            total = total + sum(crossing.forward[:3]) + sum(crossing.backward[:3])
            total = total + sum(crossing.fetch[1:3])
            if crossing.fate == RECOMPUTE:
                total = total + sum(crossing.forward[:2])
                total = total + (norm if crossing.writer.node.unit is None else 0.0)
        for visit, home in zip(
            mapped_operators(tables, self._genes), self._genes.homes, strict=True
        ):
            if visit.node.parameters.any() and home != "external":
                entries = visit.forward, visit.data, visit.weight
                total = total + self._home(visit.node, home, entries, visit.algorithm)
        return np.asarray(total)

    def ends(self, stage: StageMapping, first: bool, last: bool) -> Floats:
        """Return the bytes of embedding and head, if the stage has them."""
        total: Any = np.zeros(len(self.links))
        layout = stream_layout(self._genes.stream)
        algorithms, size = ("auto", "auto"), self._block.stream_bytes
        if first:
            sums = np.full(self._digits.count, roles.PARTIAL, np.int64)
            total = total + 2.0 * sum(self._move(size, sums, sums, layout, *algorithms)[:3])
        if last and self._block.head is not None:
            tables = head_tables(self._block, self._digits, self._setting, stage.head)
            node = tables.unit_nodes(self._block.head)
            read = node.reads[0, 0]
            target = np.where(read == roles.COLUMNS, roles.REPLICATED, read)
            total = total + 3.0 * sum(self._move(size, layout, layout, target, *algorithms)[:3])
            if "external" not in self._genes.homes:
                total = total + self._home(node, "optimizer", (0, 0, 0), self._setting.algorithm)
        return np.asarray(total)

    def _move(
        self, total: float, source: Ints, via: Ints, target: Ints, scatter: str,
        gather: str,
    ) -> TransitionCost:  # fmt: skip
        """Return a transition in bytes by link instead of seconds: `walk` only adds them."""
        have, want = stored_layout(source, via), tuple(target.tolist())
        passes = collectives_between(self._digits, total, have, want)
        exchanged = (m for cut in passes.exchange for m in exchange_messages(self._digits, *cut))
        reduced: Any = sum(self._reduced(collective, scatter) for collective in passes.scatter)
        moved: Any = self._added(exchanged)
        gathered: Any = sum(self._gathered(collective, gather) for collective in passes.gather)
        return TransitionCost(reduced, moved, gathered, passes.stored_bytes)

    def _home(self, node: NodeTable, home: str, entries: tuple[int, ...], algorithm: str) -> Floats:
        """Return the bytes to gather a weight, sum its gradient and re-shard it for passes."""
        assert node.unit is not None
        forward, data, weight = entries
        states, rounds = self._setting.states, self._setting.microbatches
        kind, parameters, layouts = KINDS[node.unit.kind], node.unit.parameters, node.weight_layouts

        def copies(entry: int, element_bytes: float) -> DigitCollective:
            member = [tag not in kind.weight for tag in node.codes[entry]]
            return member, element_bytes * float(node.parameters[entry])

        def moved(element_bytes: float, have: int, want: int) -> Any:
            old, new = layouts[have, 0], layouts[want, 0]
            size = element_bytes * parameters
            transition: Any = self._move(size, old, old, new, algorithm, algorithm)
            return transition.exchange_s + transition.gather_s

        summed = self._reduced(copies(weight, states.reduced), algorithm)
        gathered_bytes = states.reduced if home == "replicated" else states.weight
        gathered = self._gathered(copies(forward, gathered_bytes), algorithm)
        total: Any = summed / (1 if home in ("gradients", "weights") else rounds)
        total = total + gathered * (2.0 if home == "weights" else 1.0 / rounds)
        if data != forward:
            total = total + moved(states.weight, forward, data)
        if weight != forward:
            total = total + moved(states.reduced, weight, forward) / rounds
        return np.asarray(total)

    def _norm(self) -> Floats:
        """Return the bytes to sum row statistics over dies that cut columns, per pass of a norm."""
        code = self._genes.stream
        parts = parts_of(code, self._digits)
        cut = parts.get("b", 1) * parts.get("s", 1)
        rows = self._block.microbatch * self._block.sequence / cut
        collective = [tag == "c" for tag in code], STATISTICS_BYTES * rows
        algorithm = self._setting.algorithm
        return self._reduced(collective, algorithm) + self._gathered(collective, algorithm)

    def _gathered(self, collective: DigitCollective, algorithm: str) -> Floats:
        halves = pass_messages(self._digits, *collective, self._mesh, algorithm)
        return self._added(message for messages in halves for message in messages)

    def _reduced(self, collective: DigitCollective, algorithm: str) -> Floats:
        """Return a reduce-scatter's bytes: those of an all-gather with every link reversed."""
        gathered = self._gathered(collective, algorithm)
        return gathered[[self._place[b, a] for a, b in self.links]]

    def _added(self, messages: Iterable[LinkMessage]) -> Floats:
        total = np.zeros(len(self.links))
        for message in messages:
            for link in message.route:
                total[self._place[link]] += message.bytes
        return total
