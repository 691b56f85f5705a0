"""Matrix products as functions of the tensors that they read, so that sharded tensors give sharded
products, and the products of a backward pass as functions of the forward one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from atoll.workload.operator import Matmul, Tensor

# Which dimension of the two gradient products the tensor width divides, given the forward one.
_DATA_SPLIT = {"": "", "batch": "batch", "m": "m", "n": "k", "k": "n"}
_WEIGHT_SPLIT = {"": "", "batch": "batch", "m": "k", "n": "n", "k": "m"}


def linear_product(x: Tensor, weights: Sequence[Tensor], split: str) -> Matmul:
    """x times its weights side by side; weights are (in, out), or (experts, in, out)."""
    batch = weights[0].shape[0] if len(weights[0].shape) == 3 else 1
    columns = sum(weight.shape[-1] for weight in weights)
    return Matmul(batch, x.rows // batch, columns, x.shape[-1], split=split)


def data_gradient(forward: Matmul) -> Matmul:
    """dX = dY W^T."""
    return Matmul(
        forward.batch, forward.m, forward.k, forward.n, forward.fraction, _DATA_SPLIT[forward.split]
    )


def weight_gradient(forward: Matmul) -> Matmul:
    """dW = X^T dY."""
    return Matmul(
        forward.batch,
        forward.k,
        forward.n,
        forward.m,
        forward.fraction,
        _WEIGHT_SPLIT[forward.split],
    )


def scores_product(
    batch: int, sequence: int, heads: int, kv_heads: int, head_dim: int, fraction: float
) -> Matmul:
    """Q K^T. Query heads that share a key head are rows of one product (grouped queries)."""
    rows = sequence * (heads // kv_heads)
    return Matmul(batch * kv_heads, rows, sequence, head_dim, fraction, "batch")


def values_product(scores: Matmul, value_width: int) -> Matmul:
    """P V, of the same attention as `scores`."""
    return replace(scores, n=value_width, k=scores.n)


def keys_gradient(scores: Matmul) -> Matmul:
    """dK = dS^T Q: rows of keys, summed over the query heads that share them."""
    return replace(scores, m=scores.n, n=scores.k, k=scores.m)


def local_attention(product: Matmul, width: int, kv_width: int) -> Matmul:
    """One device's share: `width` divides the query heads, `kv_width` the key and value heads."""
    return replace(
        product, batch=product.batch // kv_width, m=product.m * kv_width // width, split="batch"
    )


def attention_fraction(sequence: int, causal: bool, window: int) -> float:
    """Share of the s x s scores that the mask leaves, diagonal included."""
    if not causal:
        return 1.0
    reach = min(window, sequence) if window else sequence
    # The first `reach` rows see 1, 2, ... tokens, the others `reach` each.
    seen = reach * (reach + 1) // 2 + (sequence - reach) * reach
    return seen / sequence**2
