"""Device time of a step by class of kernel, as profiles of the software show it."""

from __future__ import annotations

from collections.abc import Sequence

from atoll.cost.pricer import Cost, Pricer
from atoll.step.layout import Layout
from atoll.training.operators.gpu_pricer import GpuPricer
from atoll.training.operators.kernels.launched import query_passes_s
from atoll.training.operators.layer_prices import LayerPrices
from atoll.training.operators.layers import Share
from atoll.training.operators.policies import PolicyCost
from atoll.training.operators.roles import is_loss
from atoll.workload.graph.layer import Layer

KERNEL_CLASSES = ("products", "attention", "softmax/loss", "streaming", "optimizer", "memory")
"""Matrix products; fused attention; softmax and cross entropy; other vector kernels; the update of
the weights; copies and zeroing by the driver, which are not priced."""
GAP_S = 0.8e-6
"""Time between two kernels: part of the price of the second, but of neither in a profile."""
CAST_SHARE = {"cross_entropy": 0.42, "cross_entropy_bwd": 0.36}
"""Share of the time of PyTorch's cross entropy in which logits are cast to fp32, and zeros written
and gradients cast back: streaming kernels."""


def pass_classes_s(
    prices: LayerPrices, layout: Layout, chunks: Sequence[Share], recompute: str
) -> dict[str, float]:
    """Return the seconds of one microbatch on a stage with these layers, without the optimizer."""
    times_s = dict.fromkeys(KERNEL_CLASSES, 0.0)
    directions = max(1, len(chunks) // layout.rounds)
    # A loss that is divided over tensor ranks is written out in element-wise kernels.
    divided_loss = layout.tp > 1 and prices.run.stack.parallel_loss_bytes > 0
    parts: dict[int, tuple[Cost, float, float, dict[str, float]]] = {}
    pairs = [pair for chunk in chunks for pair in chunk]
    for (cost, count), (layer, _) in zip(pairs, prices.layers_of(layout, chunks), strict=True):
        if id(cost) not in parts:
            kept = cost.kept(recompute)
            parts[id(cost)] = (
                cost.forward + cost.backwards(layout.schedule) + kept.again,
                0.0 if divided_loss else _softmax_s(prices.pricer, layer, kept),
                _around_attention_s(prices, layer),
                _gaps_s(prices.pricer, layer, kept),
            )
        total, softmax_s, around_s, gaps_s = parts[id(cost)]
        n = count / directions
        times_s["products"] += n * total.matrix_s
        times_s["attention"] += n * (total.attention_s - around_s)
        times_s["softmax/loss"] += n * softmax_s
        times_s["streaming"] += n * (total.vector_s - softmax_s + around_s)
        for name, gap_s in gaps_s.items():
            times_s[name] -= n * gap_s
    return times_s


def _gaps_s(pricer: Pricer, layer: Layer, kept: PolicyCost) -> dict[str, float]:
    """Return the seconds between kernels of a layer by the class of the kernel that follows."""
    gaps = dict.fromkeys(("products", "attention", "streaming"), 0.0)
    if not isinstance(pricer, GpuPricer):
        return gaps
    for op in (*layer.forward, *layer.backward):
        runs = 1 + kept.share * (op.name in kept.rerun)
        fused = op.kind in ("attention", "attention_bwd")
        products = (pricer.launched_products(layer, op, product) for product in op.matmuls)
        main = 1 if fused else sum(map(len, products))
        gaps["attention" if fused else "products"] += runs * main * GAP_S
        gaps["streaming"] += runs * max(0, pricer.cost(layer, op).kernels - main) * GAP_S
    return gaps


def _around_attention_s(prices: LayerPrices, layer: Layer) -> float:
    """Return the seconds of cuDNN's kernels before and after the main one of attention, which have
    names of their own; FlashAttention's are counted with it.
    """
    pricer = prices.pricer
    if not isinstance(pricer, GpuPricer) or prices.run.attention != "flash":
        return 0.0
    return sum(query_passes_s(pricer.gpu, op) for op in layer.backward)


def _softmax_s(pricer: Pricer, layer: Layer, kept: PolicyCost) -> float:
    """Return the seconds of softmax and cross entropy in a layer; 0 on chips, which fuse them."""
    if not isinstance(pricer, GpuPricer):
        return 0.0
    passes = pricer.stack.passes
    return sum(
        pricer.vector(work).vector_s
        * (1 + kept.share * (op.name in kept.rerun))
        * (1 if work.function in passes else 1 - CAST_SHARE.get(work.function, 0.0))
        for op in (*layer.forward, *layer.backward)
        if op.kind not in ("attention", "attention_bwd") and (is_loss(op) or not pricer.stored)
        for work in pricer.kernel_passes(op)
        if work.function.startswith(("softmax", "cross_entropy"))
        and not (work.function in passes and passes[work.function].kernels > 1)  # element-wise
    )
