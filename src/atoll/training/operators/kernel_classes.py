"""Device time of a step by class of kernel, as profiles of the software show it."""

from __future__ import annotations

from collections.abc import Sequence

from atoll.cost.pricer import Pricer
from atoll.step.layout import Layout
from atoll.training.operators.gpu_pricer import GpuPricer
from atoll.training.operators.layer_prices import LayerPrices
from atoll.training.operators.layers import Share
from atoll.training.operators.policies import PolicyCost
from atoll.training.operators.roles import is_loss
from atoll.workload.graph.layer import Layer

KERNEL_CLASSES = ("products", "attention", "softmax/loss", "streaming", "optimizer", "memory")
"""Matrix products; fused attention; softmax and cross entropy; other vector kernels; the update of
the weights; copies and zeroing by the driver, which are not priced."""
CAST_SHARE = {"cross_entropy": 6 / 18, "cross_entropy_bwd": 6 / 18}
"""Share of PyTorch's cross entropy that casts logits to and from fp32: streaming kernels."""


def pass_classes_s(
    prices: LayerPrices, layout: Layout, chunks: Sequence[Share], recompute: str
) -> dict[str, float]:
    """Return the seconds of one microbatch on a stage with these layers, without the optimizer."""
    times_s = dict.fromkeys(KERNEL_CLASSES, 0.0)
    models = prices.model(layout).layers
    layers = {
        id(cost): layer for cost, (layer, _) in zip(prices.costs(layout), models, strict=True)
    }
    directions = max(1, len(chunks) // layout.rounds)
    for cost, count in (pair for chunk in chunks for pair in chunk):
        kept = cost.kept(recompute if cost.is_block else "none")
        total = cost.forward + cost.backwards(layout.schedule) + kept.again
        softmax_s = _softmax_s(prices.pricer, layers[id(cost)], kept)
        n = count / directions
        times_s["products"] += n * total.matrix_s
        times_s["attention"] += n * total.attention_s
        times_s["softmax/loss"] += n * softmax_s
        times_s["streaming"] += n * (total.vector_s - softmax_s)
    return times_s


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
    )
