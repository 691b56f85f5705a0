"""Products, convolutions, norms, attention, pooling and losses of ONNX as functions of torch."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from atoll.tracing.from_onnx.graph import Node
from atoll.tracing.from_onnx.ops_math import Operator
from atoll.tracing.from_onnx.values import Context, Value, need


def _optional(context: Context, args: list[Value], at: int) -> torch.Tensor | None:
    return context.tensor(args[at]) if len(args) > at and args[at] is not None else None


# --- products -------------------------------------------------------------------------------------


def _matmul(context: Context, _: Node, args: list[Value]) -> torch.Tensor:
    return torch.matmul(context.tensor(args[0]), context.tensor(args[1]))


def _linear(context: Context, _: Node, args: list[Value]) -> torch.Tensor:
    x, weight, bias = (context.tensor(value) for value in args)
    return F.linear(x, weight.t(), bias)


def _gemm(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    a, b = context.tensor(args[0]), context.tensor(args[1])
    a = a.t() if node.attributes.get("transA") else a
    b = b.t() if node.attributes.get("transB") else b
    alpha, beta = (float(node.attributes.get(name, 1.0)) for name in ("alpha", "beta"))
    c = _optional(context, args, 2)
    if c is None:
        y = a @ b
        return y if alpha == 1.0 else y * alpha
    return torch.addmm(c, a, b, beta=beta, alpha=alpha)


def _einsum(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    return torch.einsum(str(node.attributes["equation"]), *(context.tensor(v) for v in args))


def _padding(node: Node, sizes: tuple[int, ...], window: list[int]) -> tuple[list[int], list[int]]:
    """What is put before and behind every spatial dimension."""
    n = len(window)
    steps = list(node.attributes.get("strides", [1] * n))
    dilations = list(node.attributes.get("dilations", [1] * n))
    auto = str(node.attributes.get("auto_pad", "NOTSET"))
    if auto in ("NOTSET", "VALID"):
        pads = list(node.attributes.get("pads", [0] * 2 * n))
        return pads[:n], pads[n:]
    before, after = [], []
    for size, step, k, d in zip(sizes, steps, window, dilations, strict=True):
        total = max(0, (-(-size // step) - 1) * step + d * (k - 1) + 1 - size)
        small = total // 2
        lower = auto == "SAME_LOWER"
        before.append(total - small if lower else small)
        after.append(small if lower else total - small)
    return before, after


def _padded(
    x: torch.Tensor, node: Node, window: list[int], value: float = 0.0
) -> tuple[torch.Tensor, list[int]]:
    """The input, and the padding that is the same on both sides; any other is put on at once."""
    before, after = _padding(node, tuple(x.shape[2:]), window)
    if before == after:
        return x, before
    amounts = [n for pair in zip(reversed(before), reversed(after), strict=True) for n in pair]
    return F.pad(x, amounts, value=value), [0] * len(window)


def _conv(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    x, weight = context.tensor(args[0]), context.tensor(args[1])
    n = x.ndim - 2
    settings = node.attributes
    transposed = node.op == "ConvTranspose"
    steps, dilations = (
        list(settings.get("strides", [1] * n)),
        list(settings.get("dilations", [1] * n)),
    )
    extra = list(settings.get("output_padding", [0] * n))
    if transposed:
        need("output_shape" not in settings, "output_shape")
        before, after = _padding(node, tuple(x.shape[2:]), list(weight.shape[2:]))
        need(before == after, "padding that differs between two sides")
    else:
        x, before = _padded(x, node, list(weight.shape[2:]))
    bias = _optional(context, args, 2)
    groups = int(settings.get("group", 1))
    return torch.convolution(x, weight, bias, steps, before, dilations, transposed, extra, groups)


# --- norms ----------------------------------------------------------------------------------------


def _layer_norm(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    x, scale = context.tensor(args[0]), context.tensor(args[1])
    axis = int(node.attributes.get("axis", -1))
    shape = list(x.shape[axis:])
    epsilon = float(node.attributes.get("epsilon", 1e-5))
    scale = scale.expand(shape)
    if node.op != "LayerNormalization":
        return F.rms_norm(x, shape, scale, epsilon)
    bias = _optional(context, args, 2)
    return F.layer_norm(x, shape, scale, bias if bias is None else bias.expand(shape), epsilon)


def _batch_norm(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    """As in training: with the statistics of the batch."""
    x, scale, bias = (context.tensor(value) for value in args[:3])
    epsilon = float(node.attributes.get("epsilon", 1e-5))
    return F.batch_norm(x, None, None, scale, bias, True, 0.1, epsilon)


def _group_norm(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    x, scale, bias = (context.tensor(value) for value in args[:3])
    epsilon = float(node.attributes.get("epsilon", 1e-5))
    if node.op == "InstanceNormalization":
        return F.instance_norm(x, None, None, scale, bias, True, 0.1, epsilon)
    groups = int(node.attributes["num_groups"])
    if scale.shape[0] != x.shape[1]:  # opset 18: one number a group
        scale, bias = (t.repeat_interleave(x.shape[1] // groups) for t in (scale, bias))
    return F.group_norm(x, groups, scale, bias, epsilon)


# --- attention ------------------------------------------------------------------------------------


def _is_causal(mask: Any, queries: int, keys: int) -> bool | None:
    """Of a known mask in which True (or a number near zero) stays: causal, empty, or neither."""
    kept = np.asarray(mask)
    kept = kept if kept.dtype == bool else kept > -1e3
    if kept.all():
        return False
    if kept.ndim < 2 or kept.shape[-2:] != (queries, keys) or queries != keys:
        return None
    flat = kept.reshape(-1, queries, keys)
    lower = np.tri(queries, dtype=bool)
    return True if all((one == lower).all() for one in flat) else None


def _scaled_dot_product(
    context: Context,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: Value,
    *,
    causal: bool = False,
    hide: bool = False,
    grouped: bool = False,
    scale: float | None = None,
) -> torch.Tensor:
    """Fused attention. A mask that hides exactly the future, or nothing, is none."""
    if mask is not None and not isinstance(mask, torch.Tensor):
        found = _is_causal(~mask if hide else mask, q.shape[-2], k.shape[-2])
        if found is not None:
            causal, mask = causal or found, None
    added = None
    if mask is not None:
        added = context.tensor(mask)
        added = torch.logical_not(added) if hide else added
        added = added if added.dtype == torch.bool else added.to(q.dtype)
    flat = q.ndim == 3
    if flat:
        q, k, v = q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0)
    need(q.ndim == 4, f"attention over {q.ndim} dimensions")
    k, v = (t if grouped else t.expand(*q.shape[:2], *t.shape[2:]) for t in (k, v))
    y = F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=added,
        is_causal=causal and added is None,
        scale=scale,
        enable_gqa=grouped,
    )  # fmt: skip
    return y.squeeze(0) if flat else y


def _pattern(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    """Two products and a softmax between them."""
    q, keys, v = (context.tensor(value) for value in args[:3])
    if node.attributes["transposed"]:
        keys = keys.transpose(-1, -2)
    need(keys.shape[-1] == q.shape[-1], "queries and keys that differ in width")
    scale = 1.0
    for number, op in zip(args[4:], node.attributes["factors"], strict=True):
        need(not isinstance(number, torch.Tensor), "a scale that depends on the data")
        value = float(np.asarray(number).reshape(-1)[0])
        scale = scale * value if op == "Mul" else scale / value
    hide = node.attributes["mask"] == "hide"
    return _scaled_dot_product(context, q, keys, v, args[3], hide=hide, scale=scale)


def _attention(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    """The operator of opset 23."""
    q, k, v = (context.tensor(value) for value in args[:3])
    need(not any(value is not None for value in args[4:]), "a cache of keys and values")
    flat = q.ndim == 3
    if flat:
        counts = [int(node.attributes[n]) for n in ("q_num_heads", "kv_num_heads")]
        b, s, width = q.shape
        q = q.reshape(b, s, counts[0], width // counts[0]).transpose(1, 2)
        k, v = (t.reshape(b, t.shape[1], counts[1], -1).transpose(1, 2) for t in (k, v))
    mask = args[3] if len(args) > 3 else None
    causal = bool(node.attributes.get("is_causal", 0))
    grouped = q.shape[1] != k.shape[1]
    scale = node.attributes.get("scale")
    y = _scaled_dot_product(context, q, k, v, mask, causal=causal, grouped=grouped, scale=scale)
    return y.transpose(1, 2).reshape(y.shape[0], y.shape[2], -1) if flat else y


def _rotary(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    """The operator of opset 23: the first columns of every head are rotated in pairs."""
    x, cosine, sine = (context.tensor(value) for value in args[:3])
    flat = x.ndim == 3
    if flat:
        heads = int(node.attributes["num_heads"])
        x = x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)
    where = _optional(context, args, 3)
    if where is not None:
        cosine, sine = F.embedding(where, cosine), F.embedding(where, sine)
    cosine, sine = cosine.unsqueeze(1), sine.unsqueeze(1)
    width = int(node.attributes.get("rotary_embedding_dim", 0)) or x.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    if node.attributes.get("interleaved"):
        first, second = turned[..., ::2], turned[..., 1::2]
    else:
        first, second = turned.chunk(2, -1)
    parts = (first * cosine - second * sine, first * sine + second * cosine)
    joined = (
        torch.stack(parts, -1).flatten(-2)
        if node.attributes.get("interleaved")
        else torch.cat(parts, -1)
    )
    y = torch.cat((joined, rest), -1) if rest.shape[-1] else joined
    return y.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1) if flat else y


# --- pooling and losses ---------------------------------------------------------------------------


def _pool(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    x = context.tensor(args[0])
    n = x.ndim - 2
    need(n in (1, 2, 3), f"{x.ndim} dimensions")
    window = list(node.attributes["kernel_shape"])
    steps = list(node.attributes.get("strides", [1] * n))
    ceil = bool(node.attributes.get("ceil_mode", 0))
    if node.op == "MaxPool":
        need(len([name for name in node.outputs if name]) == 1, "the indices of the maxima")
        x, pads = _padded(x, node, window, float("-inf"))
        dilations = list(node.attributes.get("dilations", [1] * n))
        largest: Any = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[n - 1]
        pooled: torch.Tensor = largest(x, window, steps, pads, dilations, ceil)
        return pooled
    x, pads = _padded(x, node, window)
    mean: Any = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[n - 1]
    averaged: torch.Tensor = mean(
        x, window, steps, pads, ceil, bool(node.attributes.get("count_include_pad", 0))
    )
    return averaged


def _global_pool(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    x = context.tensor(args[0])
    dims = list(range(2, x.ndim))
    if node.op == "GlobalMaxPool":
        return torch.amax(x, dims, True)
    return x.mean(dims, True)


def _loss(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    function = F.nll_loss if node.op == "NegativeLogLikelihoodLoss" else F.cross_entropy
    need(len(args) < 3 or args[2] is None, "weights of classes")
    ignored = int(node.attributes.get("ignore_index", -100))
    reduction = str(node.attributes.get("reduction", "mean"))
    scores, labels = context.tensor(args[0]), context.tensor(args[1])
    need(prod(labels.shape) > 0, "no labels")
    return function(scores, labels.to(torch.int64), ignore_index=ignored, reduction=reduction)


OPERATORS: dict[str, Operator] = {
    "Attention": _attention, "AveragePool": _pool, "BatchNormalization": _batch_norm,
    "Conv": _conv, "ConvTranspose": _conv, "Einsum": _einsum, "Gemm": _gemm,
    "GlobalAveragePool": _global_pool, "GlobalMaxPool": _global_pool,
    "GroupNormalization": _group_norm, "InstanceNormalization": _group_norm,
    "LayerNormalization": _layer_norm, "MatMul": _matmul, "MaxPool": _pool,
    "NegativeLogLikelihoodLoss": _loss, "RMSNormalization": _layer_norm,
    "RotaryEmbedding": _rotary, "SimplifiedLayerNormalization": _layer_norm,
    "SoftmaxCrossEntropyLoss": _loss,
}  # fmt: skip
PATTERNS: dict[str, Operator] = {"Attention": _pattern, "Linear": _linear}
