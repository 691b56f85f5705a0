"""Products, convolutions, norms, attention, pooling and losses of ONNX as functions of torch."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from atoll.tracing.from_onnx.onnx_call import OnnxCall, Operator, Value, need

# --- products -------------------------------------------------------------------------------------


def _linear(call: OnnxCall) -> torch.Tensor:
    x, weight, bias = call.tensors()
    return F.linear(x, weight.t(), bias)


def _gemm(call: OnnxCall) -> torch.Tensor:
    a, b = call.tensors(2)
    a = a.t() if call.get("transA") else a
    b = b.t() if call.get("transB") else b
    alpha, beta, c = call.number("alpha", 1.0), call.number("beta", 1.0), call.optional(2)
    if c is None:
        y = a @ b
        return y if alpha == 1.0 else y * alpha
    return torch.addmm(c, a, b, beta=beta, alpha=alpha)


def _padding(call: OnnxCall, window: list[int]) -> tuple[list[int], list[int]]:
    """Return the padding before and after every spatial dimension."""
    n, sizes = len(window), call.first.shape[2:]
    auto = str(call.get("auto_pad", "NOTSET"))
    if auto in ("NOTSET", "VALID"):
        pads = call.sizes("pads", [0] * 2 * n)
        return pads[:n], pads[n:]
    steps, dilations = call.sizes("strides", [1] * n), call.sizes("dilations", [1] * n)
    small, large = [], []
    for size, step, k, d in zip(sizes, steps, window, dilations, strict=True):
        total = max(0, (-(-size // step) - 1) * step + d * (k - 1) + 1 - size)
        small.append(total // 2)
        large.append(total - total // 2)
    return (large, small) if auto == "SAME_LOWER" else (small, large)


def _padded(
    call: OnnxCall, window: list[int], value: float = 0.0
) -> tuple[torch.Tensor, list[int]]:
    """Return the input and its symmetric padding; asymmetric padding is applied directly."""
    before, after = _padding(call, window)
    if before == after:
        return call.first, before
    amounts = [n for pair in zip(reversed(before), reversed(after), strict=True) for n in pair]
    return F.pad(call.first, amounts, value=value), [0] * len(window)


def _conv(call: OnnxCall) -> torch.Tensor:
    x, weight = call.tensors(2)
    n = x.ndim - 2
    window = list(weight.shape[2:])
    transposed = call.op == "ConvTranspose"
    if transposed:
        need(call.get("output_shape") is None, "output_shape")
        before, after = _padding(call, window)
        need(before == after, "padding that differs between two sides")
    else:
        x, before = _padded(call, window)
    return torch.convolution(
        x, weight, call.optional(2), call.sizes("strides", [1] * n), before,
        call.sizes("dilations", [1] * n), transposed, call.sizes("output_padding", [0] * n),
        call.integer("group", 1),
    )  # fmt: skip


# --- norms ----------------------------------------------------------------------------------------


def _epsilon(call: OnnxCall) -> float:
    return call.number("epsilon", 1e-5)


def _layer_norm(call: OnnxCall) -> torch.Tensor:
    x, scale = call.tensors(2)
    shape = list(x.shape[call.integer("axis", -1) :])
    scale = scale.expand(shape)
    if call.op != "LayerNormalization":
        return F.rms_norm(x, shape, scale, _epsilon(call))
    bias = call.optional(2)
    bias = bias if bias is None else bias.expand(shape)
    return F.layer_norm(x, shape, scale, bias, _epsilon(call))


def _batch_norm(call: OnnxCall) -> torch.Tensor:
    """As in training: with the statistics of the batch (or of each sample)."""
    x, scale, bias = call.tensors(3)
    function = F.instance_norm if call.op == "InstanceNormalization" else F.batch_norm
    return function(x, None, None, scale, bias, True, 0.1, _epsilon(call))


def _group_norm(call: OnnxCall) -> torch.Tensor:
    x, scale, bias = call.tensors(3)
    groups = int(call.get("num_groups"))
    if scale.shape[0] != x.shape[1]:  # opset 18: one number a group
        scale, bias = (t.repeat_interleave(x.shape[1] // groups) for t in (scale, bias))
    return F.group_norm(x, groups, scale, bias, _epsilon(call))


# --- attention ------------------------------------------------------------------------------------


def _is_causal(mask: Any, queries: int, keys: int) -> bool | None:
    """Classify a constant mask (True or near 0: visible): True causal, False empty, else None."""
    visible = np.asarray(mask)
    visible = visible if visible.dtype == bool else visible > -1e3
    if visible.all():
        return False
    if visible.ndim < 2 or visible.shape[-2:] != (queries, keys) or queries != keys:
        return None
    flat = visible.reshape(-1, queries, keys)
    lower = np.tri(queries, dtype=bool)
    return True if all((square == lower).all() for square in flat) else None


def _scaled_dot_product(
    call: OnnxCall,
    qkv: Sequence[torch.Tensor],
    mask: Value,
    scale: float | None,
    *,
    causal: bool = False,
    hide: bool = False,
    grouped: bool = False,
) -> torch.Tensor:
    """Fused attention. A mask that hides exactly the future, or nothing, is none."""
    q, k, v = qkv
    if mask is not None and not isinstance(mask, torch.Tensor):
        is_causal = _is_causal(~mask if hide else mask, q.shape[-2], k.shape[-2])
        if is_causal is not None:
            causal, mask = causal or is_causal, None
    added = None
    if mask is not None:
        added = call.context.tensor(mask)
        added = torch.logical_not(added) if hide else added
        added = added if added.dtype == torch.bool else added.to(q.dtype)
    flat = q.ndim == 3
    if flat:
        q, k, v = q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0)
    need(q.ndim == 4, f"attention over {q.ndim} dimensions")
    k, v = (t if grouped else t.expand(*q.shape[:2], *t.shape[2:]) for t in (k, v))
    y = F.scaled_dot_product_attention(
        q, k, v, attn_mask=added, is_causal=causal and added is None, scale=scale,
        enable_gqa=grouped,
    )  # fmt: skip
    return y.squeeze(0) if flat else y


def _pattern(call: OnnxCall) -> torch.Tensor:
    """Two products and a softmax between them."""
    q, keys, v = call.tensors(3)
    if call.get("transposed"):
        keys = keys.transpose(-1, -2)
    need(keys.shape[-1] == q.shape[-1], "queries and keys that differ in width")
    scale = 1.0
    for number, op in zip(call.args[4:], call.get("factors"), strict=True):
        need(not isinstance(number, torch.Tensor), "a scale that depends on the data")
        value = float(np.asarray(number).reshape(-1)[0])
        scale = scale * value if op == "Mul" else scale / value
    hide = call.get("mask") == "hide"
    return _scaled_dot_product(call, (q, keys, v), call.args[3], scale, hide=hide)


def _attention(call: OnnxCall) -> torch.Tensor:
    """The operator of opset 23."""
    q, k, v = call.tensors(3)
    need(not any(value is not None for value in call.args[4:]), "a cache of keys and values")
    flat = q.ndim == 3
    if flat:
        heads = [int(call.get(name)) for name in ("q_num_heads", "kv_num_heads", "kv_num_heads")]
        q, k, v = (
            t.reshape(*t.shape[:2], n, -1).transpose(1, 2)
            for t, n in zip((q, k, v), heads, strict=True)
        )
    causal, grouped = bool(call.get("is_causal", 0)), q.shape[1] != k.shape[1]
    mask, scale = call.value(3), call.get("scale")
    y = _scaled_dot_product(call, (q, k, v), mask, scale, causal=causal, grouped=grouped)
    return y.transpose(1, 2).reshape(y.shape[0], y.shape[2], -1) if flat else y


def _rotary(call: OnnxCall) -> torch.Tensor:
    """The operator of opset 23: the first columns of every head are rotated in pairs."""
    x, cosine, sine = call.tensors(3)
    flat = x.ndim == 3
    if flat:
        x = x.reshape(*x.shape[:2], int(call.get("num_heads")), -1).transpose(1, 2)
    where = call.optional(3)
    if where is not None:
        cosine, sine = F.embedding(where, cosine), F.embedding(where, sine)
    cosine, sine = cosine.unsqueeze(1), sine.unsqueeze(1)
    width = call.integer("rotary_embedding_dim", 0) or x.shape[-1]
    rotated, unrotated = x[..., :width], x[..., width:]
    mixed = call.get("interleaved")
    first, second = (rotated[..., ::2], rotated[..., 1::2]) if mixed else rotated.chunk(2, -1)
    parts = (first * cosine - second * sine, first * sine + second * cosine)
    joined = torch.stack(parts, -1).flatten(-2) if mixed else torch.cat(parts, -1)
    y = torch.cat((joined, unrotated), -1) if unrotated.shape[-1] else joined
    return y.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1) if flat else y


# --- pooling and losses ---------------------------------------------------------------------------


def _pool(call: OnnxCall) -> torch.Tensor:
    n = call.first.ndim - 2
    need(n in (1, 2, 3), f"{call.first.ndim} dimensions")
    window = list(call.get("kernel_shape"))
    steps, ceil = call.sizes("strides", [1] * n), bool(call.get("ceil_mode", 0))
    pool: Any
    if call.op == "MaxPool":
        need(len([name for name in call.node.outputs if name]) == 1, "the indices of the maxima")
        x, pads = _padded(call, window, float("-inf"))
        pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[n - 1]
        return pool(x, window, steps, pads, call.sizes("dilations", [1] * n), ceil)
    x, pads = _padded(call, window)
    pool = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[n - 1]
    return pool(x, window, steps, pads, ceil, bool(call.get("count_include_pad", 0)))


def _loss(call: OnnxCall) -> torch.Tensor:
    function = F.nll_loss if call.op == "NegativeLogLikelihoodLoss" else F.cross_entropy
    need(call.value(2) is None, "weights of classes")
    labels = call.index(1)
    need(prod(labels.shape) > 0, "no labels")
    ignored, reduction = call.integer("ignore_index", -100), str(call.get("reduction", "mean"))
    return function(call.first, labels, ignore_index=ignored, reduction=reduction)


OPERATORS: dict[str, Operator] = {
    "Attention": _attention, "AveragePool": _pool, "BatchNormalization": _batch_norm,
    "Conv": _conv, "ConvTranspose": _conv,
    "Einsum": lambda c: torch.einsum(str(c.get("equation")), *c.tensors()), "Gemm": _gemm,
    "GlobalAveragePool": lambda c: c.first.mean(list(range(2, c.first.ndim)), True),
    "GlobalMaxPool": lambda c: torch.amax(c.first, list(range(2, c.first.ndim)), True),
    "GroupNormalization": _group_norm, "InstanceNormalization": _batch_norm,
    "LayerNormalization": _layer_norm, "MatMul": lambda c: torch.matmul(*c.tensors()),
    "MaxPool": _pool,
    "NegativeLogLikelihoodLoss": _loss, "RMSNormalization": _layer_norm,
    "RotaryEmbedding": _rotary, "SimplifiedLayerNormalization": _layer_norm,
    "SoftmaxCrossEntropyLoss": _loss,
}  # fmt: skip
PATTERNS: dict[str, Operator] = {"Attention": _pattern, "Linear": _linear}
