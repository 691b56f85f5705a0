"""Cost tables: every distinct operator on every distinct core configuration, at once.

Models for several microbatches and tensor widths share most of their operators' signatures, and
chips share their core configurations; the table holds one cost for each pair of the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atoll.cost import gemm_kernels, table_kernels
from atoll.cost.chips import Chips
from atoll.cost.collective import collective_s
from atoll.cost.table_kernels import Costs, Passes
from atoll.cost.vector import ROW_FUNCTIONS, operations_per_element
from atoll.hardware.network import Network
from atoll.jit import over_ranges
from atoll.profile import Profile
from atoll.workload.layer import Layer, predecessors
from atoll.workload.operator import Core, Operator

FloatArray = NDArray[np.float64]

_KINDS = {
    Core.TENSOR: table_kernels.TENSOR,
    Core.VECTOR: table_kernels.VECTOR,
    Core.PAIR: table_kernels.PAIR,
    Core.LINK: table_kernels.LINK,
    Core.NONE: table_kernels.NONE,
}
_MAX_PASS = 256  # operators in one pass, the compiled bounds' scratch size


@dataclass(frozen=True)
class OperatorKey:
    """What a cost depends on; operators with the same key share one row of the table."""

    operator: Operator
    bytes: int

    @staticmethod
    def of(operator: Operator, layer: Layer) -> OperatorKey:
        moved = sum(layer.tensors[name].bytes for name in (*operator.reads, *operator.writes))
        plain = Operator(
            name="",
            kind="",
            reads=(),
            writes=(),
            matmuls=operator.matmuls,
            vectors=operator.vectors,
            collective=operator.collective,
            on_chip=operator.on_chip,
        )
        return OperatorKey(plain, moved)


@dataclass(frozen=True, eq=False)
class PassSet:
    """Layers' forward and backward graphs, flattened; layer i has passes 2 i and 2 i + 1."""

    layers: tuple[Layer, ...]
    keys: tuple[OperatorKey, ...]
    arrays: Passes

    def operators(self, index: int) -> tuple[Operator, ...]:
        layer = self.layers[index // 2]
        return layer.backward if index % 2 else layer.forward


def flatten(layers: Iterable[Layer]) -> PassSet:
    """Number the distinct operators of these layers and lay out their graphs."""
    chosen = tuple(layers)
    rows: dict[OperatorKey, int] = {}
    ptr, pred_ptr = [0], [0]
    ops: list[int] = []
    pred_idx: list[int] = []
    for layer in chosen:
        for operators in (layer.forward, layer.backward):
            if len(operators) > _MAX_PASS:
                raise ValueError(f"layer {layer.name} has over {_MAX_PASS} operators in a pass")
            for op, before in zip(operators, predecessors(operators), strict=True):
                ops.append(rows.setdefault(OperatorKey.of(op, layer), len(rows)))
                pred_idx.extend(before)
                pred_ptr.append(len(pred_idx))
            ptr.append(len(ops))
    arrays = Passes(
        ptr=np.array(ptr, np.int64),
        op=np.array(ops, np.int64),
        pred_ptr=np.array(pred_ptr, np.int64),
        pred_idx=np.array(pred_idx or [0], np.int64),
    )
    return PassSet(chosen, tuple(rows), arrays)


def build_costs(
    keys: Sequence[OperatorKey], chips: Chips, network: Network, profile: Profile
) -> Costs:
    """Tabulate the operators on the chips' configurations."""
    tensor_s, hbm_bytes, glb_bytes = _tensor_costs(keys, chips, profile)
    return Costs(
        kind=np.array([_KINDS[key.operator.core] for key in keys], np.int64),
        tensor_s=tensor_s,
        hbm_bytes=hbm_bytes,
        glb_bytes=glb_bytes,
        vector_cycles=_vector_cycles(keys, chips, profile),
        bytes=np.array([float(key.bytes) for key in keys]),
        link_s=np.array([link_s(key.operator, network) for key in keys]),
        tensor_cores=chips.tensor_cores,
        vector_cores=chips.vector_cores,
        hbm_Bps=chips.hbm_Bps,
        glb_Bps=chips.glb_Bps,
        clock_Hz=chips.clock_Hz,
        tensor_count=chips.tensor_count,
        tensor_config=chips.tensor_config,
        pair_count=chips.pair_count,
        pair_config=chips.pair_config,
        vector_count=chips.vector_count,
        vector_config=chips.vector_config,
        slots=float(profile.tensor_slots),
        free_spread=profile.free_spread,
        vector_memory=profile.vector_memory,
        link_on_vector=profile.link_on_vector,
    )


def link_s(operator: Operator, network: Network) -> float:
    collective = operator.collective
    if collective is None:
        return 0.0
    return collective_s(network, collective.kind, collective.bytes, collective.group)


def _tensor_costs(
    keys: Sequence[OperatorKey], chips: Chips, profile: Profile
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Seconds, HBM and GLB bytes of the operators' products on each tensor configuration."""
    configs = chips.tensor_configs
    shapes: dict[tuple[int, int, int, int, float, float, bool], int] = {}
    uses: list[list[int]] = []
    for key in keys:
        rows = []
        for position, product in enumerate(key.operator.matmuls):
            operands = 2 * product.batch * (product.m * product.k + product.k * product.n)
            operands += int(2 * product.batch * product.m * product.n * product.fraction)
            on_chip = key.operator.on_chip
            extra = 0.0 if on_chip or position else float(max(0, key.bytes - operands))
            shape = (
                product.batch, product.m, product.n, product.k, product.fraction, extra, on_chip
            )  # fmt: skip
            rows.append(shapes.setdefault(shape, len(shapes)))
        uses.append(rows)
    size = (len(keys), len(configs))
    time_s, hbm, glb = np.zeros(size), np.zeros(size), np.zeros(size)
    if not shapes:
        return time_s, hbm, glb
    columns = list(zip(*shapes, strict=True))
    arguments = (
        np.array(columns[:4], np.int64).T.copy(),
        np.array(columns[4], np.float64),
        np.array(columns[5], np.float64),
        np.array(columns[6], np.bool_),
        configs.cores,
        configs.width,
        configs.depth,
        configs.core_buffer_bytes,
        configs.glb_budget_bytes,
        configs.hbm_Bps,
        configs.glb_Bps,
        configs.clock_Hz,
    )
    mapped = tuple(np.zeros((len(shapes), len(configs))) for _ in range(3))
    over_ranges(
        lambda start, stop: gemm_kernels.map_range(start, stop, *arguments, *mapped),
        len(shapes) * len(configs),
    )
    for index, (key, rows) in enumerate(zip(keys, uses, strict=True)):
        for row in rows:
            time_s[index] += mapped[0][row]
            hbm[index] += mapped[1][row]
            glb[index] += mapped[2][row]
        if key.operator.on_chip:
            hbm[index] = _attention_bytes(key, configs.glb_budget_bytes)
            glb[index] += key.bytes
    return time_s, hbm, glb


def _attention_bytes(key: OperatorKey, glb_budget_bytes: FloatArray) -> FloatArray:
    """HBM bytes of fused attention: keys and values are fetched again for every block of queries
    when those of one head do not fit the buffer (tiling of FlashAttention, Dao et al. 2022)."""
    scores = key.operator.matmuls[0]
    head_bytes = 2.0 * 2.0 * scores.n * scores.k
    query_bytes = 2.0 * 2.0 * scores.k  # a query row and its output row
    blocks = np.ceil(scores.m * query_bytes / (0.5 * glb_budget_bytes))
    again = np.where(head_bytes <= 0.5 * glb_budget_bytes, 0.0, blocks - 1.0)
    return key.bytes + again * head_bytes * scores.batch * scores.fraction


def _vector_cycles(keys: Sequence[OperatorKey], chips: Chips, profile: Profile) -> FloatArray:
    cores, lanes = chips.vector_configs.cores, chips.vector_configs.lanes
    cycles = np.zeros((len(keys), len(cores)))
    for index, key in enumerate(keys):
        for work in key.operator.vectors:
            each = operations_per_element(work.function, profile.name)
            if work.function in ROW_FUNCTIONS:
                cycles[index] += -(-work.rows // cores) * -(-work.cols // lanes) * each
            else:
                cycles[index] += -(-work.elements // (cores * lanes)) * each
    return cycles
