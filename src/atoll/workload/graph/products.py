"""Matrix products as functions of the tensors that they read, so that sharded tensors give sharded
products, and the products of a backward pass as functions of the forward one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from atoll.workload.graph.operator import Matmul, Tensor

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
    return replace(forward, n=forward.k, k=forward.n, split=_DATA_SPLIT[forward.split])


def weight_gradient(forward: Matmul) -> Matmul:
    """dW = X^T dY."""
    return replace(forward, m=forward.k, k=forward.m, split=_WEIGHT_SPLIT[forward.split])


def scores_product(
    batch: int, sequence: int, heads: int, kv_heads: int, width: int, fraction: float, keys: int = 0
) -> Matmul:
    """Q K^T. Query heads that share a key head are rows of one product (grouped queries); `keys`
    where they are not as many as the queries."""
    rows = sequence * (heads // kv_heads)
    return Matmul(batch * kv_heads, rows, keys or sequence, width, fraction, "batch")


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


def attention_fraction(sequence: int, causal: bool, window: int, *, chunked: bool = False) -> float:
    """Share of the s x s scores that the mask leaves, diagonal included."""
    reach = min(window, sequence) if window else sequence
    if not causal:  # half of the window on either side
        side = window // 2 if window else sequence
        if side >= sequence - 1:
            return 1.0
        return (sequence * (2 * side + 1) - side * (side + 1)) / sequence**2
    if chunked:
        chunks, remainder = divmod(sequence, reach)
        visible = chunks * reach * (reach + 1) // 2 + remainder * (remainder + 1) // 2
    else:  # The first `reach` rows see 1, 2, ... tokens, the others `reach` each.
        visible = reach * (reach + 1) // 2 + (sequence - reach) * reach
    return visible / sequence**2


def scan_products(values: Tensor, keys: Tensor, chunk: int, *, delta: bool) -> tuple[Matmul, ...]:
    """A scan over chunks as products (state-space duality, arXiv:2405.21060, section 6).

    Within each chunk the queries meet the keys, and these scores the values; the keys and values
    of a chunk make its state, and the queries meet the state of the chunks before. A delta rule
    (arXiv:2412.06464, section 3.3) first solves for what each token changes: keys meet keys, the
    inverse of that triangle meets keys and values, and the former the state. The last two products
    make the output.
    """
    batch, sequence, width = values.shape
    heads, groups = values.units, keys.units
    value, key = width // heads, keys.shape[-1] // groups
    chunks = batch * -(-sequence // chunk)
    triangle = (chunk + 1) / (2 * chunk)
    per_head = chunks * heads
    scores = Matmul(per_head if delta else chunks * groups, chunk, chunk, key, triangle, "batch")
    inside = Matmul(per_head, chunk, value, chunk, triangle, "batch")
    states = Matmul(per_head, key, value, chunk, split="batch")
    across = Matmul(per_head, chunk, value, key, split="batch")
    if not delta:
        return scores, states, inside, across
    changes = Matmul(per_head, chunk, key, chunk, triangle, "batch")
    return scores, scores, inside, changes, across, states, inside, across
