"""Cost tables: every distinct operator on every distinct core configuration, at once.

Models with several microbatch sizes and tp share most operator signatures, and chips share core
configurations. The table has one cost per pair of signature and configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.base.arrays import Floats
from atoll.base.errors import AtollError
from atoll.cost import table_kernels
from atoll.cost.chips import Chips, pick
from atoll.cost.model import MAPPER
from atoll.cost.table_kernels import MAX_PASS, Costs, Passes, fill_problems
from atoll.cost.vector import vector_cycles
from atoll.fabric.nested import collective_s
from atoll.fabric.network import Network
from atoll.hardware.template.cores import (
    CostModel,
    ProductCosts,
    Products,
    ProductShape,
    TensorConfigs,
)
from atoll.hardware.template.stalls import Stalls
from atoll.profile import Profile
from atoll.workload.graph.layer import Layer, predecessors
from atoll.workload.graph.operator import Core, Matmul, Operator

_KINDS: dict[Core, int] = {core: getattr(table_kernels, core.name) for core in Core}


@dataclass(frozen=True)
class OperatorKey:
    """Properties that determine a cost; operators with equal keys share one row of the table."""

    operator: Operator
    bytes: int

    @staticmethod
    def of(operator: Operator, layer: Layer) -> OperatorKey:
        plain = replace(operator, name="", kind="", reads=(), writes=(), enters=(), exits=False)
        return OperatorKey(plain, layer.traffic_bytes(operator))


@dataclass(frozen=True, eq=False)
class PassSet:
    """Flattened forward and backward graphs of layers; layer i has passes 2 i and 2 i + 1."""

    layers: tuple[Layer, ...]
    keys: tuple[OperatorKey, ...]
    arrays: Passes
    rows: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Of a `subset`: indices of `keys` in the larger set."""

    def operators(self, index: int) -> tuple[Operator, ...]:
        layer = self.layers[index // 2]
        return layer.backward if index % 2 else layer.forward

    @cached_property
    def alike(self) -> NDArray[np.int64]:
        """Return per layer the first one with equal operators and graphs, so with equal costs."""
        ptr, op, pred_ptr, pred_idx = self.arrays
        first_by_content: dict[tuple[bytes, ...], int] = {}
        firsts = []
        for layer in range(len(self.layers)):
            first, middle, end = ptr[2 * layer : 2 * layer + 3]
            edges = pred_ptr[first : end + 1]
            of = op[first:middle], op[middle:end], np.diff(edges), pred_idx[edges[0] : edges[-1]]
            firsts.append(first_by_content.setdefault(tuple(part.tobytes() for part in of), layer))
        return np.array(firsts, np.int64)

    def subset(self, chosen: NDArray[np.int64]) -> tuple[PassSet, NDArray[np.int64]]:
        """Return a pass set of these layers only, and their operators' indices in the arrays."""
        ptr, op, pred_ptr, pred_idx = self.arrays
        passes = (2 * chosen[:, None] + np.arange(2)).reshape(-1)
        at = _spans(ptr[passes], np.diff(ptr)[passes])
        edges = np.diff(pred_ptr)[at]
        keys, operator = np.unique(op[at], return_inverse=True)
        arrays = Passes(
            ptr=_ends(np.diff(ptr)[passes]),
            op=operator,
            pred_ptr=_ends(edges),
            pred_idx=np.append(pred_idx[_spans(pred_ptr[at], edges)], 0),
        )
        layers = tuple(self.layers[i] for i in chosen.tolist())
        return PassSet(layers, tuple(self.keys[i] for i in keys.tolist()), arrays, keys), at


def _ends(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])


def _spans(first: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Concatenate the ranges first[i], ..., first[i] + sizes[i] - 1."""
    return np.arange(sizes.sum()) + np.repeat(first - _ends(sizes)[:-1], sizes)


def flatten(layers: Iterable[Layer]) -> PassSet:
    """Number the distinct operators of these layers and flatten their graphs."""
    chosen = tuple(layers)
    rows: dict[OperatorKey, int] = {}
    ptr, pred_ptr = [0], [0]
    ops: list[int] = []
    pred_idx: list[int] = []
    for layer in chosen:
        for operators in (layer.forward, layer.backward):
            if len(operators) > MAX_PASS:
                raise ValueError(f"layer {layer.name} has over {MAX_PASS} operators in a pass")
            for op, before in zip(operators, predecessors(operators), strict=True):
                ops.append(rows.setdefault(OperatorKey.of(op, layer), len(rows)))
                pred_idx.extend(before)
                pred_ptr.append(len(pred_idx))
            ptr.append(len(ops))
    arrays = (np.array(array, np.int64) for array in (ptr, ops, pred_ptr, pred_idx or [0]))
    return PassSet(chosen, tuple(rows), Passes(*arrays))


def capacities(costs: Costs, chips: NDArray[np.int64]) -> Floats:
    """Return the capacity of each resource, shape (chips, resources)."""
    capacity = np.ones((len(chips), table_kernels.RESOURCES + costs.level_Bps.shape[1]))
    capacity[:, table_kernels.R_TENSOR] = costs.tensor_cores[chips]
    capacity[:, table_kernels.R_VECTOR] = costs.vector_cores[chips]
    capacity[:, table_kernels.R_SLOT] = costs.slots
    return capacity


def pass_problems(
    costs: Costs, passes: Passes, node_pass: NDArray[np.int64], node_chip: NDArray[np.int64]
) -> tuple[NDArray[np.int64], Floats, Floats]:
    """Return the scheduling problems of pass-chip pairs: the first operator of each pair, shape
    (pairs + 1,), durations (operators, options) and demands (operators, options, resources).
    """
    ptr = _ends(np.diff(passes.ptr)[node_pass])
    options = costs.tensor_count.shape[1]
    duration = np.empty((ptr[-1], options))
    demand = np.empty((ptr[-1], options, table_kernels.RESOURCES + costs.level_Bps.shape[1]))
    pairs = len(node_pass)
    fill_problems(0, pairs, costs, passes, node_pass, node_chip, ptr, duration, demand)
    return ptr, duration, demand


def pass_problem(costs: Costs, passes: Passes, number: int, chip: int) -> tuple[Floats, Floats]:
    """Return the durations and demands of one pass on one chip."""
    _, *problem = pass_problems(costs, passes, np.array([number]), np.array([chip]))
    return problem[0], problem[1]


def cost_model(chips: Chips, profile: Profile) -> CostModel:
    """Return the cost model of matrix products on these chips."""
    return profile.cost_model or chips.template.cost_model or MAPPER


def build_costs(
    keys: Sequence[OperatorKey],
    chips: Chips,
    network: Network,
    profile: Profile,
    products: Products | None = None,
    wanted: NDArray[np.bool_] | None = None,
) -> Costs:
    """Tabulate the costs of operators on the chips' configurations. `products` replaces the product
    costs of the cost model. Products are priced only where `wanted`, if it is given, shape
    (operators, tensor configurations)."""
    tensor_costs = _tensor_costs(keys, chips, profile, products, wanted)
    of_chips: dict[str, Any] = {n: getattr(chips, n) for n in Costs._fields if hasattr(chips, n)}
    of_chips["hbm_Bps"] = chips.stream_Bps
    return Costs(
        np.array([_KINDS[key.operator.core] for key in keys], np.int64),
        *tensor_costs,
        **of_chips,
        vector_cycles=_vector_cycles(keys, chips, profile),
        bytes=np.array([float(key.bytes) for key in keys]),
        link_s=np.array([link_s(key.operator, network) for key in keys]),
        slots=float(profile.tensor_slots),
        free_spread=profile.free_spread,
        vector_memory=profile.vector_memory,
        link_on_vector=profile.link_on_vector,
        start_s=chips.stalls.start_s,
        exposed=chips.stalls.exposed,
    )


def link_s(operator: Operator, network: Network) -> float:
    collective = operator.collective
    if collective is None:
        return 0.0
    return collective_s(network, collective.kind, collective.bytes, collective.group)


def _tensor_costs(
    keys: Sequence[OperatorKey],
    chips: Chips,
    profile: Profile,
    products: Products | None,
    wanted: NDArray[np.bool_] | None,
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return seconds, and bytes of HBM, GLB and further buffers (operators, configurations)."""
    configs = chips.tensor_configs
    shapes: dict[ProductShape, int] = {}
    uses: list[list[int]] = []
    for key in keys:
        of_operator = product_shapes(key, chips.stalls)
        uses.append([shapes.setdefault(shape, len(shapes)) for shape in of_operator])
    size = (len(keys), len(configs))
    time_s, hbm, glb = np.zeros(size), np.zeros(size), np.zeros(size)
    further = np.zeros((*size, configs.levels))
    if not shapes:
        return time_s, hbm, glb, further
    model = cost_model(chips, profile)
    price = products or model.products
    if wanted is None:
        mapped = price(list(shapes), configs)
    else:
        of_shapes = np.zeros((len(shapes), len(configs)), np.bool_)
        for rows, columns in zip(uses, wanted, strict=True):
            of_shapes[rows] |= columns
        mapped = _priced_where(of_shapes, price, list(shapes), configs)
    if configs.levels and mapped.level_bytes is None:
        raise AtollError(
            f"cost model {model.name} says nothing of the {configs.levels} further buffers of "
            f"template {chips.template.name}; leave cost_model out."
        )
    for index, (key, rows) in enumerate(zip(keys, uses, strict=True)):
        for row in rows:
            time_s[index] += mapped.seconds[row]
            hbm[index] += mapped.hbm_bytes[row]
            glb[index] += mapped.glb_bytes[row]
            if mapped.level_bytes is not None:
                further[index] += mapped.level_bytes[row]
        if key.operator.on_chip:
            hbm[index] = _attention_bytes(key, configs.outer_budget_bytes)
            core_flops = 2.0 * configs.width * configs.depth * configs.clock_Hz
            matmuls = key.operator.matmuls
            core_s = time_s[index] + tail_flops(matmuls, chips.stalls) / core_flops
            core_s += drained_bytes(matmuls, chips.stalls) / configs.glb_Bps
            time_s[index] = overlapped_s(core_s, hbm[index] / configs.hbm_Bps, chips.stalls)
    return time_s, hbm, glb, further


def _priced_where(
    wanted: NDArray[np.bool_],
    price: Products,
    shapes: Sequence[ProductShape],
    configs: TensorConfigs,
) -> ProductCosts:
    """Return the costs of products where `wanted`, shape (products, configurations); else 0."""
    rows_by_columns: dict[bytes, list[int]] = {}
    for row, columns in enumerate(wanted):
        rows_by_columns.setdefault(columns.tobytes(), []).append(row)
    size = wanted.shape
    levels = np.zeros((*size, configs.levels)) if configs.levels else None
    costs = ProductCosts(np.zeros(size), np.zeros(size), np.zeros(size), levels)
    for rows in rows_by_columns.values():
        columns = np.flatnonzero(wanted[rows[0]])
        if not len(columns):
            continue
        part = price([shapes[row] for row in rows], pick(configs, columns))
        if levels is not None and part.level_bytes is None:
            return part
        for all_, some in zip(costs, part, strict=True):
            if all_ is not None:
                all_[np.array(rows)[:, None], columns] = some
    return costs


def product_shapes(key: OperatorKey, stalls: Stalls) -> list[ProductShape]:
    """Return the matrix products of an operator; the first carries the bytes of its epilogue."""
    shapes, (matmuls, on_chip) = [], (key.operator.matmuls, key.operator.on_chip)
    for number, p in enumerate(matmuls):
        fraction = masked_fraction(p, matmuls[0].n, stalls) if on_chip else p.fraction
        extra_bytes = 0.0 if number else _epilogue_bytes(key)
        shapes.append(ProductShape(p.batch, p.m, p.n, p.k, fraction, extra_bytes, on_chip))
    return shapes


def overlapped_s(first_s: Any, second_s: Any, stalls: Stalls) -> Any:
    """Return the time of overlapping work: longer + exposed * shorter."""
    return np.maximum(first_s, second_s) + stalls.exposed * np.minimum(first_s, second_s)


def masked_fraction(product: Matmul, keys: int, stalls: Stalls) -> float:
    """Return the fraction of the outputs of a product of fused attention over `keys` that is
    computed; blocks that are partly masked are computed in full."""
    if product.fraction >= 1.0:
        return product.fraction
    return min(1.0, product.fraction + stalls.mask_rows / (2 * keys))


def tail_flops(matmuls: Sequence[Matmul], stalls: Stalls) -> float:
    """Return the FLOPs of masked attention that one core computes after the others are done."""
    scores = matmuls[0]
    if scores.fraction >= 1.0:
        return 0.0
    rows = min(stalls.mask_rows, scores.m)
    flops = sum(product.flops for product in matmuls)
    return stalls.tail * rows * flops / (scores.batch * scores.m)


def drained_bytes(matmuls: Sequence[Matmul], stalls: Stalls) -> float:
    """Return the bytes of partial sums of fused attention that pass the GLB while cores wait. In
    the backward pass, each block of keys writes and reads the gradient of the queries (4 bytes
    each); the gradients of the keys stay in the core.
    """
    scores = matmuls[0]
    if len(matmuls) == 2 or not stalls.mask_rows:
        return 0.0
    blocks = scores.fraction * scores.n / stalls.mask_rows
    return stalls.drained * 8.0 * scores.batch * scores.m * scores.k * blocks


def _epilogue_bytes(key: OperatorKey) -> float:
    """Return the bytes that an operator moves beyond operands and outputs of its products."""
    if key.operator.on_chip:
        return 0.0
    moved = sum(
        2 * p.batch * (p.m * p.k + p.k * p.n + p.m * p.n * p.fraction) for p in key.operator.matmuls
    )
    return max(0.0, key.bytes - moved)


def _attention_bytes(key: OperatorKey, budget_bytes: Floats) -> Floats:
    """Return the HBM bytes of fused attention, tiled as in FlashAttention (Dao et al.,
    arXiv:2205.14135). A block of one head's queries, or of its keys and values, stays in half of
    the buffer while the other side streams; each additional block streams the other side again.
    """
    scores = key.operator.matmuls[0]
    # Bytes per row and head element: 2 for an input, 4 for a stored sum, 8 for a streamed sum.
    if len(key.operator.matmuls) == 2:
        query_stored, query_passed = 2 + 4, 2 + 8  # q, and sums of the output
        key_stored, key_passed = 2 + 2, 2 + 2  # k and v
    else:
        query_stored, query_passed = 2 + 2 + 4, 2 + 2 + 8  # q and dout, and sums of dq
        key_stored, key_passed = 2 + 2 + 4 + 4, 2 + 2 + 8 + 8  # k and v, and sums of dk and dv
    half = 0.5 * budget_bytes
    queries, keys = float(scores.m * scores.k), float(scores.n * scores.k)
    again = np.minimum(
        (np.ceil(queries * query_stored / half) - 1.0) * keys * key_passed,
        (np.ceil(keys * key_stored / half) - 1.0) * queries * query_passed,
    )
    return np.asarray(key.bytes + again * scores.batch * scores.fraction)


def _vector_cycles(keys: Sequence[OperatorKey], chips: Chips, profile: Profile) -> Floats:
    cores, lanes = chips.vector_configs.cores, chips.vector_configs.lanes
    cycles = np.zeros((len(keys), len(cores)))
    operations = chips.stalls.operations or profile.vector_operations
    for index, key in enumerate(keys):
        for work in key.operator.vectors:
            cycles[index] += vector_cycles(work, cores, lanes, operations)
    return cycles
