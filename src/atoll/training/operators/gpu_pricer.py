"""Seconds of one operator of a layer's graph on one GPU, under one software stack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np

from atoll.base.arrays import Floats
from atoll.cost.gpu_attention import Heads, attention_times_s
from atoll.cost.gpu_experts import TILE_ROWS
from atoll.cost.gpu_gemm import VECTOR_ELEMENTS, fastest_flops, gemm_times_s
from atoll.cost.gpu_vector import KERNELS, LEAST_BYTES, NARROW_COLUMNS, STREAMING, streaming_s
from atoll.cost.pricer import Cost, LayerTimes, total
from atoll.hardware.gpu import ELEMENT_BYTES, SCALED, Gpu
from atoll.tools.stack import Stack, VectorPasses
from atoll.training.operators.kernels.eager import (
    embedding_gradient_bytes,
    norm_elements,
    split_gradient_bytes,
)
from atoll.training.operators.kernels.fp32 import is_wide, wide_product
from atoll.training.operators.kernels.launched import (
    COUNTED,
    kernel_factor,
    library_s,
    mask_passes,
    query_passes_s,
)
from atoll.training.operators.layers import HALF
from atoll.training.operators.roles import (
    even_experts,
    gates_experts,
    is_loss,
    largest_weight,
    multiplies_experts,
    read_again,
    width_by_expert,
    widths,
)
from atoll.training.operators.timings import BETWEEN, TIMED, Timings
from atoll.workload.graph.layer import Layer
from atoll.workload.graph.operator import Matmul, Operator, VectorWork

# Bytes per element to add one ring step's result to the previous ones: two reads, one write.
MERGED_BYTES = 6
# Bytes per element of an input that is cast per expert: padding (4), maximum (2), two reads and
# writes in both orders with scales (6), at half of the streaming rate.
EXPERT_CAST_BYTES = 22
# Biases of experts, per expert: times a token's gate in fp32 (4 written), added (6 read, 4
# written), cast (4, 2) and joined (4); backwards cast twice (12), two products and their sums.
EXPERT_BIAS = {"bias": 24, "bias_grad": 36}
TRANSPOSED_BYTES = 2  # an fp8 weight read and written
# The calibration's names for the functions of a graph.
_CALIBRATED = {"cross_entropy": "xent_fwd", "cross_entropy_bwd": "xent_bwd"}
ROUTED = ("dispatch", "dispatch_bwd")
# One kernel keeps their passes on chip: it costs its products, inputs and outputs.
_FUSED = ("conv", "conv_bwd", "scan", "scan_bwd")
Rows = tuple[tuple[float, ...], ...]


def _directed(function: str) -> str:
    """Return the calibration's name of a function: "gelu_fwd", "gelu_bwd"."""
    return function if function.endswith("_bwd") else f"{function}_fwd"


class Size(NamedTuple):
    """Key of products with the same time."""

    m: int
    n: int
    k: int
    batch: int
    dtype: str
    row: int
    """Elements of an operand's row in memory."""
    kind: str = ""
    """Kind of its operator, if measured times are used."""


class GpuPricer:
    """Prices operators; equal products are priced once."""

    fusion = "none"
    schedules_links = False

    def __init__(
        self,
        gpu: Gpu,
        stack: Stack,
        dtype: str = "bf16",
        alias: Mapping[str, str] | None = None,
        *,
        attention: str = "flash",
        stored: bool = False,
        frozen: bool = False,
        timings: Timings | None = None,
    ) -> None:
        self.gpu = gpu
        self.stack = stack
        self.alias = alias or {}
        self.stored = stored  # each operator of a captured model is one kernel
        # A frozen fp8 weight has one copy; products of devices before fp4 read both operands along
        # the reduction, so it is transposed for every data gradient.
        single_copy = frozen and dtype == "fp8" and stack.scaled_weights
        self.transposes_weights = single_copy and gpu.fp4_flops is None
        self.attention = attention
        self.dtype = dtype
        cast = dtype in SCALED and stack.scaled_inputs
        self.operand_share = ELEMENT_BYTES[dtype] / HALF if cast else 1.0
        self.half = gpu.half_dtype if dtype in SCALED else dtype
        self.timings = timings
        """Measured times of the device's operators, which replace the model's."""
        self._products_s: dict[Size, float] = {}
        self._origins: dict[Size, int] = {}
        self.attention_s = cache(self._attention_s)
        self.vector = cache(self._vector_cost)
        self._beyond = cache(self._beyond_s)

    def layer(self, layer: Layer, ring: int, samples: int) -> LayerTimes:
        """Return the times of a layer whose operators run one after another."""
        self._price_products(layer)
        costs = {
            op.name: self.cost(layer, op, ring, samples) for op in (*layer.forward, *layer.backward)
        }
        data = [op for op in layer.backward if not op.weighs]
        weight = [op for op in layer.backward if op.weighs]
        passes = layer.forward, layer.backward, data, weight
        return LayerTimes(costs, *(total(costs[op.name] for op in part) for part in passes))

    def kept_bytes(self, layer: Layer, dropped: Set[str] = frozenset()) -> float:
        """Return the bytes that functions keep besides inputs and outputs, without `dropped`."""
        kept, gate, extra = self.stack.kept, self.stack.kept.get("gate", 0.0), 0.0
        for op in layer.forward:
            stays = not (dropped and dropped >= set(op.writes))
            for work in op.vectors if stays else ():
                extra += kept.get(self.alias.get(work.function, work.function), 0.0) * work.elements
            if op.kind == "combine" and self.stack.weighs_inside and op.reads[0] not in dropped:
                extra -= layer.tensors[op.reads[0]].bytes
            gated = op.kind == "activation" and len(op.vectors) == 2
            if gated and (op.reads[0] not in dropped if gate < 0 else stays):
                extra += gate * op.vectors[0].elements
        return extra + self._scaled_bytes(layer, dropped)

    def _scaled_bytes(self, layer: Layer, dropped: Set[str]) -> float:
        """Return the bytes spared (negative) by narrow tensors kept only for weight gradients, or
        those of a narrow copy if others read them too. Checkpointed inputs keep 16 bits.
        """
        share, bytes_ = self.operand_share, 0.0
        for name in layer.saved if share < 1 else ():
            kinds = {op.kind for op in layer.backward if name in op.reads}
            if "linear_wgrad" in kinds and name not in dropped:
                bytes_ += layer.tensors[name].bytes * (share - (len(kinds) == 1))
        return bytes_

    @property
    def launch_s(self) -> float:
        fit, least = self.gpu.calibration, 1.0 if self.timings is None else self.timings.least
        kernel_s = min(fit.kernel_s, fit.forward.kernel_s, fit.backward.kernel_s)
        return min(fit.vector_kernel_s, least * kernel_s)

    def least(self, layer: Layer, operators: Iterable[Operator], ring: int) -> Cost:
        """Return a lower bound: products at the fastest rate of any, attention spread evenly, and
        bytes of activations, without launches and costs that do not grow with the samples.
        """
        matrix = attention_s = moved = 0.0
        for op in operators:
            if op.kind in ("attention", "attention_bwd"):
                attention_s += self._attention(op, ring, 1, even=True).attention_s
                continue
            matrix += sum(product.flops * product.fraction for product in op.matmuls)
            if not self.stored:
                weights = largest_weight(layer, op)
                works = [w for w in self.kernel_passes(op) if w.elements > weights]
                moved += sum(w.elements * self._passes(w).bytes for w in works)
        return Cost(matrix / self._fastest_flops, attention_s, moved / self.gpu.stream_Bps)

    def beyond(
        self, layer: Layer, operators: Iterable[Operator], samples: Sequence[int], ep: int
    ) -> Floats:
        """Return the seconds of linear products beyond `least`, by samples, without launches."""
        products: list[tuple[float, ...]] = []
        kinds: list[str] = []
        for op in operators:
            if self.stored or not op.kind.startswith("linear"):
                continue
            for product in op.matmuls:
                if product.batch > 1 and not even_experts(layer):
                    continue
                spread = ep if product.batch > 1 else 1
                grows = op.kind == "linear_wgrad"
                more = self._more_rows(layer, op)
                for m, n, k, batch, _, row, _ in self._sizes(layer, op, product, tiled=False):
                    kinds.append(op.kind)
                    size = (m, n, k * spread) if grows else (m * spread, n, k)
                    products.append((*size, batch // spread, row, grows, more, product.fraction))
        return self._beyond(tuple(products), tuple(kinds), tuple(samples))

    def _beyond_s(self, products: Rows, kinds: tuple[str, ...], samples: tuple[int, ...]) -> Floats:
        if not products:
            return np.zeros(len(samples))
        m, n, k, batch, row, deeper, more, fraction = np.array(products, dtype=float).T[:, :, None]
        times = np.array(samples, dtype=np.float64)[None, :]
        flops = 2 * m * n * k * batch * times
        m = np.where(deeper, m, m * times + more)
        k = np.where(deeper, k * times + more, k)
        exact_s = gemm_times_s(
            self.gpu, m, n, k, batch, self.dtype,
            sustained=True, operand_row=np.broadcast_to(row, m.shape),
        )  # fmt: skip
        if self.timings is not None:
            sizes = [np.broadcast_to(axis, exact_s.shape) for axis in (m, n, k, batch)]
            for i, kind in enumerate(kinds):
                product_sizes = (size[i] for size in sizes)
                exact_s[i] *= self.timings.product(self.dtype, kind, *product_sizes)[0]
        least_s = flops / self._fastest_flops
        more_s = fraction * (exact_s - self.launch_s - least_s)
        return np.asarray(np.maximum(0.0, more_s).sum(axis=0))

    @cached_property
    def _fastest_flops(self) -> float:
        """FLOPs per second that no product exceeds."""
        ratio = 1.0 if self.timings is None else self.timings.least
        return fastest_flops(self.gpu, self.dtype) / ratio

    def cost(self, layer: Layer, op: Operator, ring: int = 1, samples: int = 1) -> Cost:
        """Return the cost of one operator; `ring` devices share the sequences of its attention
        (context parallel), and a microbatch has `samples` sequences.
        """
        if op.collective is not None:
            return total(map(self.vector, op.vectors))
        if op.kind in ("attention", "attention_bwd"):
            return self._attention(op, ring, samples)
        if op.kind == "scatter_add" and self.stack.split_products and not self.stored:
            return self._streamed(embedding_gradient_bytes(layer, op, self.stack.fp32_table))
        if self.stored and not op.matmuls and not is_loss(op):
            if op.steps and self.stack.composed_gelu:  # every step is a kernel
                return self._steps(op)
            again = read_again(layer, op)
            return self._streamed(layer.traffic_bytes(op) + again, kernels=2 if again else 1)
        priced = Cost()
        if op.kind in EXPERT_BIAS and self.stack.routed_bytes and width_by_expert(layer, op):
            added = sum(work.elements for work in op.vectors)
            return self._streamed(EXPERT_BIAS[op.kind] * added)._replace(kernels=4)
        wide = is_wide(self.stack, op)
        for product in op.matmuls:
            fp32 = wide_product(self.gpu, self.stack, product) if wide else None
            priced += fp32 or self._products(layer, op, product)
        for work in self.kernel_passes(op):
            priced += self.vector(work)
        if op.kind == "linear_dgrad" and self.transposes_weights:
            weights = sum(p.batch * p.n * p.k for p in op.matmuls)
            priced += self._streamed(TRANSPOSED_BYTES * weights)
        if op.kind in self.stack.halves_bytes and gates_experts(layer, op):
            moved = self.stack.halves_bytes[op.kind] * op.vectors[0].elements
            priced += self._streamed(moved)._replace(kernels=0)
        if op.kind in ROUTED and self.stack.routed_bytes:
            sent = max(layer.tensors[name].elements for name in (*op.reads, *op.writes))
            priced += self._streamed(self.stack.routed_bytes * sent)
        if op.kind in _FUSED or (not op.matmuls and not op.vectors):
            priced += self._streamed(layer.traffic_bytes(op))
        return priced

    def _streamed(self, bytes_: float, kernels: int = 1) -> Cost:
        """Return the cost of kernels that move these bytes through HBM."""
        return Cost(vector_s=float(streaming_s(self.gpu, bytes_, kernels)), kernels=kernels)

    def _steps(self, op: Operator) -> Cost:
        """Sum the bytes of each kernel, scaled by the excess traffic of calibrated ones."""
        cost = Cost()
        for steps in op.steps:
            name, excess = _directed(steps.function), 1.0
            if name in LEAST_BYTES and name not in STREAMING:
                excess = self.gpu.calibration.traffic_bytes(name) / LEAST_BYTES[name]
            cost += self._streamed(steps.bytes * excess, steps.kernels)
        return cost

    def kernel_passes(self, op: Operator) -> list[VectorWork]:
        """Return the passes that are separate kernels."""
        if op.kind in _FUSED:
            return []
        if op.kind in ("softmax", "softmax_bwd") and not self.stack.split_products:
            # Scale, mask and softmax of the scores are one kernel.
            return [v for v in op.vectors if v.function.startswith("softmax")]
        kept = [v for v in op.vectors if v.function != "bias"]  # in the product's epilogue
        if len(kept) == 2 and {v.function.removesuffix("_bwd") for v in kept} == {"gelu", "mul"}:
            # A gated GELU moves as many bytes as a gated SiLU, if that is one kernel.
            gated = {"gelu": "silu", "gelu_bwd": "silu_bwd"}
            if "silu" in self.stack.passes:
                kept = [replace(v, function=gated.get(v.function, v.function)) for v in kept]
        return kept

    def _products(self, layer: Layer, op: Operator, product: Matmul) -> Cost:
        sizes = self._sizes(layer, op, product)
        if any(size not in self._products_s for size in sizes):
            self._price(sizes)
        total_s = sum(self._products_s[size] for size in sizes)
        timed_s, between_s = (
            sum(self._products_s[size] for size in sizes if self._origins.get(size) == origin)
            for origin in (TIMED, BETWEEN)
        )
        if not op.kind.startswith("linear") and (product.n | product.k) % VECTOR_ELEMENTS:
            total_s *= self.stack.ragged_heads
        part = product.fraction
        cost = Cost(total_s * part, 0.0, 0.0, len(sizes), timed_s * part, between_s * part)
        if summed := split_gradient_bytes(op, len(sizes)):
            cost += self._streamed(summed, len(sizes) - 1)
        return cost + self._casts(layer, op, product) if sizes[0].dtype in SCALED else cost

    def _price_products(self, layer: Layer) -> None:
        """Price all products of a layer at once, which takes little longer than one."""
        wanted = {
            size
            for op in (*layer.forward, *layer.backward)
            if op.kind not in ("attention", "attention_bwd")
            for product in op.matmuls
            for size in self._sizes(layer, op, product)
        }
        new = wanted - self._products_s.keys()
        for dtype in {size.dtype for size in new}:
            self._price([size for size in new if size.dtype == dtype])

    def _price(self, sizes: Sequence[Size]) -> None:
        """Price products of one format."""
        m, n, k, batch, dtype, row, kinds = zip(*sizes, strict=True)
        times_s = gemm_times_s(self.gpu, m, n, k, batch, dtype[0], sustained=True, operand_row=row)
        for kind in set(kinds):
            if self.timings is None:
                break
            same = [i for i, size_kind in enumerate(kinds) if size_kind == kind]
            kind_sizes = (np.array(axis)[same] for axis in (m, n, k, batch))
            ratios, origins = self.timings.product(dtype[0], kind, *kind_sizes)
            times_s[same] *= ratios
            self._origins.update(zip([sizes[i] for i in same], origins.tolist(), strict=True))
        self._products_s.update(zip(sizes, times_s.tolist(), strict=True))

    def _sizes(self, layer: Layer, op: Operator, product: Matmul, tiled: bool = True) -> list[Size]:
        """Return the products' sizes; `tiled`: uneven experts fill half of their last tile."""
        dtype = self.dtype if op.kind.startswith("linear") else self.half
        kind = "" if self.timings is None else op.kind
        parts = self.launched_products(layer, op, product)
        if tiled and (more := self._more_rows(layer, op)):
            side = "k" if op.kind == "linear_wgrad" else "m"
            parts = [replace(p, **{side: getattr(p, side) + more}) for p in parts]
        if op.kind != "linear_wgrad":
            return [Size(p.m, p.n, p.k, p.batch, dtype, p.k, kind) for p in parts]
        # Outputs x inputs, as torch runs it or, if not captured, as the weight is stored.
        sides = [(p.m, p.n) if self.stored else (p.n, p.m) for p in parts]
        pairs = zip(parts, sides, strict=True)
        return [Size(m, n, p.k, p.batch, dtype, m, kind) for p, (m, n) in pairs]

    def _more_rows(self, layer: Layer, op: Operator) -> int:
        """Return the unused rows of an expert's last tile in a grouped product."""
        grouped = self.stack.host_expert_s == 0 and multiplies_experts(layer, op)
        return TILE_ROWS // 2 if grouped else 0

    def _casts(self, layer: Layer, op: Operator, product: Matmul) -> Cost:
        """Return the cost of an 8-bit operand in the two orders that a product and its gradients
        read, written by the kernel of the 16-bit operand or, for experts, by separate kernels.
        Weights are cast once per step.
        """
        elements = product.batch * product.m * product.k
        apart = self.dtype not in self.stack.fused_casts and multiplies_experts(layer, op)
        return self._streamed((EXPERT_CAST_BYTES if apart else 2) * elements)

    def launched_products(self, layer: Layer, op: Operator, product: Matmul) -> list[Matmul]:
        """Return the products that the stack launches for a product of joined weights."""
        is_split = self.stack.split_products and not self.stored and op.kind.startswith("linear")
        if not is_split or len(wide := widths(layer, op)) <= 1:
            return [product]
        batch, m, n, k = product.batch, product.m, product.n, product.k
        if op.kind == "linear_dgrad":
            return [Matmul(batch, m, n, width) for width in wide]
        return [Matmul(batch, m, width, k) for width in wide]

    def _attention_s(
        self,
        h: float,
        hk: float,
        s: int,
        d: int,
        causal: bool,
        backward: bool,
        keys: int,
        even: bool = False,
    ) -> float:
        heads = Heads(1, h, hk, s, d, causal, keys)
        time_s = attention_times_s(
            self.gpu, heads, backward=backward, dtype=self.half, sustained=True, even=even
        )
        return float(time_s) * self._heads(h, hk, s, d, causal and keys == s, even)[0]

    def _heads(
        self, h: float, hk: float, s: int, d: int, square: bool, even: bool = False
    ) -> tuple[float, int]:
        """Return measured over modelled time of attention, and its origin."""
        if self.timings is None or not square:
            return 1.0, 0
        return (self.timings.least, 0) if even else self.timings.heads(h, hk, s, d)

    def _attention(self, op: Operator, ring: int, samples: int, even: bool = False) -> Cost:
        """Flash attention; a window or a different value width scales by the products' share."""
        scores, values = op.matmuls[:2]
        backward = op.kind == "attention_bwd"
        queries = scores.n
        sequence = queries * ring
        # Key heads of all samples are the scores' batch, their query heads lie in its rows.
        kv_heads = scores.batch
        heads = kv_heads * max(1, scores.m // scores.n)
        causal, head = scores.fraction < 1, max(scores.k, 1)
        # The width of a value head; backwards the other dimension is the sequence.
        width = min(values.m, values.n) if backward else values.n
        if self.stack.gives_heads(kv_heads // samples, ring):
            heads, kv_heads = heads // ring, max(samples, kv_heads // ring)
            queries, ring = sequence, 1
        # Several sequences over a ring are as much work as fewer full sequences per device.
        groups = min(samples, ring)
        seconds = self.attention_s(
            heads / groups, kv_heads / groups, sequence, head, causal, backward, sequence, even
        )
        seconds *= groups / ring
        if ring > 1 and not even:  # smaller kernels, which take at least as long
            ring_s = self._ring_s(heads, kv_heads, queries, head, causal, backward, ring)
            seconds = max(seconds, ring_s)
        passes_s = query_passes_s(self.gpu, op)
        seconds = passes_s + kernel_factor(op, self.stack) * (seconds - passes_s)
        seconds = library_s(self.gpu, self.stack, self.attention, op, seconds, ring)
        seconds *= (head + width) / (2 * head)
        full = (sequence + 1) / (2 * sequence) if causal else 1.0
        if scores.fraction < 0.98 * full:  # a sliding window
            seconds *= scores.fraction / full
        origin = 0
        if ring == 1:  # the sizes of ring steps were not timed
            origin = self._heads(heads, kv_heads, sequence, head, causal)[1]
        timed_s = seconds if origin == TIMED and not backward else 0.0
        between_s = seconds - timed_s if origin else 0.0
        launched = ring * (3 if backward else 1)
        cost = Cost(0.0, seconds, 0.0, launched, timed_s, between_s)
        cost += total(map(self.vector, mask_passes(op)))
        if ring == 1:
            return cost
        # Weighted sums of partial outputs; backwards of gradients of queries, keys and values.
        merged = queries * heads * width
        if backward:
            merged = queries * (heads * head + kv_heads * (head + width))
        return cost + self._streamed(MERGED_BYTES * merged * (ring - 1), ring - 1)

    def _ring_s(
        self, h: float, hk: float, s: int, d: int, causal: bool, backward: bool, ring: int
    ) -> float:
        """Return the seconds of ring attention, one kernel per step. Under a causal mask the first
        step is a square, and each later one has half of the keys, or half of the queries (the
        slower counts), as each device has one early and one late part.
        """
        first_s = self.attention_s(h, hk, s, d, causal, backward, s)
        if not causal:
            return first_s * ring
        later_s = max(
            self.attention_s(h, hk, s, d, False, backward, s // 2),
            self.attention_s(h, hk, s // 2, d, False, backward, s),
        )
        return first_s + (ring - 1) * later_s

    def _vector_cost(self, work: VectorWork) -> Cost:
        passes = self._passes(work)
        if passes.bytes == 0:
            return Cost()
        separate = self.stack.split_products and work.function not in self.stack.passes
        elements = norm_elements(work) if separate else work.elements
        return self._streamed(elements * passes.bytes, passes.kernels)

    def _passes(self, work: VectorWork) -> VectorPasses:
        function = self.alias.get(work.function, work.function)
        passes = self.stack.passes.get(function)
        if passes is not None:
            return passes.limited(self.gpu.stream_Bps, self.gpu.slow_elements_per_s)
        if function in COUNTED:
            return COUNTED[function]
        name = _CALIBRATED.get(function) or _directed(function)
        if name == "softmax_fwd" and work.cols > NARROW_COLUMNS:
            name = "softmax_fwd_wide"
        traffic = self.gpu.calibration.traffic_bytes(name)
        if name.startswith("softmax") and not self.stack.split_products:
            traffic /= 2  # measured in fp32, to which plain modules cast their 16-bit scores
        return VectorPasses(traffic, KERNELS.get(name, 1))
