"""Element-wise operators, comparisons and reductions of ONNX as functions of torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from atoll.tracing.from_onnx.graph import Node
from atoll.tracing.from_onnx.values import Context, Value, axes_of, ints, need

Operator = Callable[[Context, Node, list[Value]], Any]

_UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "Abs": torch.abs, "Acos": torch.acos, "Asin": torch.asin, "Atan": torch.atan,
    "Ceil": torch.ceil, "Cos": torch.cos, "Cosh": torch.cosh, "Erf": torch.erf, "Exp": torch.exp,
    "Floor": torch.floor, "HardSwish": F.hardswish, "IsInf": torch.isinf, "IsNaN": torch.isnan,
    "Log": torch.log, "Mish": F.mish, "Neg": torch.neg, "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal, "Relu": torch.relu, "Round": torch.round,
    "Sigmoid": torch.sigmoid, "Sign": torch.sign, "Sin": torch.sin, "Sinh": torch.sinh,
    "Softplus": F.softplus, "Softsign": F.softsign, "Sqrt": torch.sqrt, "Tan": torch.tan,
    "Tanh": torch.tanh,
}  # fmt: skip

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": torch.add, "And": torch.logical_and, "BitwiseAnd": torch.bitwise_and,
    "BitwiseOr": torch.bitwise_or, "BitwiseXor": torch.bitwise_xor, "Equal": torch.eq,
    "Greater": torch.gt, "GreaterOrEqual": torch.ge, "Less": torch.lt, "LessOrEqual": torch.le,
    "Mul": torch.mul, "Or": torch.logical_or, "Pow": torch.pow, "Sub": torch.sub,
    "Xor": torch.logical_xor,
}  # fmt: skip
_SYMMETRIC = ("Add", "Mul", "Equal")
_TENSORS_ONLY = ("And", "Or", "Xor")


def _unary(function: Callable[[torch.Tensor], torch.Tensor]) -> Operator:
    def run(context: Context, _: Node, args: list[Value]) -> torch.Tensor:
        return function(context.tensor(args[0]))

    return run


def _binary(name: str) -> Operator:
    def run(context: Context, _: Node, args: list[Value]) -> torch.Tensor:
        left, right = pair(context, args[0], args[1])
        if name in _SYMMETRIC and not isinstance(left, torch.Tensor):
            left, right = right, left
        if name in _TENSORS_ONLY or (name != "Pow" and not isinstance(left, torch.Tensor)):
            left, right = context.tensor(args[0]), context.tensor(args[1])
        result: torch.Tensor = _BINARY[name](left, right)
        return result

    return run


def pair(context: Context, left: Value, right: Value) -> tuple[Any, Any]:
    return context.operand(left, right), context.operand(right, left)


def _div(context: Context, _: Node, args: list[Value]) -> torch.Tensor:
    left, right = pair(context, args[0], args[1])
    tensor = left if isinstance(left, torch.Tensor) else right
    if not tensor.is_floating_point():
        return torch.div(context.tensor(args[0]), right, rounding_mode="trunc")
    if not isinstance(left, torch.Tensor):
        return torch.reciprocal(right) * left
    return torch.div(left, right)


def _mod(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    left, right = context.tensor(args[0]), context.operand(args[1], args[0])
    return torch.fmod(left, right) if node.attributes.get("fmod") else torch.remainder(left, right)


def _many(function: Callable[[Any, Any], Any]) -> Operator:
    def run(context: Context, _: Node, args: list[Value]) -> Any:
        return reduce(function, (context.tensor(value) for value in args))

    return run


def _mean(context: Context, _: Node, args: list[Value]) -> torch.Tensor:
    tensors = [context.tensor(value) for value in args]
    return reduce(torch.add, tensors) / len(tensors)


def _where(context: Context, _: Node, args: list[Value]) -> torch.Tensor:
    condition = context.tensor(args[0])
    left, right = pair(context, args[1], args[2])
    if not isinstance(left, torch.Tensor) and not isinstance(right, torch.Tensor):
        left, right = context.tensor(args[1]), context.tensor(args[2])
    return torch.where(condition, left, right)


def _clip(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    x = context.tensor(args[0])
    bounds = [node.attributes.get("min"), node.attributes.get("max")]
    for i, value in enumerate(args[1:3]):
        if value is not None:
            bounds[i] = context.operand(value, x)
    if bounds == [None, None]:
        return x
    return torch.clamp(x, min=bounds[0], max=bounds[1])


def _prelu(context: Context, _: Node, args: list[Value]) -> torch.Tensor:
    x, slope = context.tensor(args[0]), context.operand(args[1], args[0])
    return torch.where(x > 0, x, x * slope)


def _sloped(function: Callable[[torch.Tensor, float], torch.Tensor], alpha: float) -> Operator:
    def run(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
        return function(context.tensor(args[0]), float(node.attributes.get("alpha", alpha)))

    return run


def _hard_sigmoid(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    alpha, beta = (float(node.attributes.get(n, d)) for n, d in (("alpha", 0.2), ("beta", 0.5)))
    return torch.clamp(context.tensor(args[0]) * alpha + beta, 0.0, 1.0)


def _gelu(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    approximate = str(node.attributes.get("approximate", "none"))
    return F.gelu(context.tensor(args[0]), approximate=approximate)


def _silu(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    alpha = float(node.attributes.get("alpha", 1.0))
    x = context.tensor(args[0])
    return F.silu(x) if alpha == 1.0 else x * torch.sigmoid(alpha * x)


def _cast(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    from atoll.tracing.from_onnx.read import type_name

    if node.op == "CastLike":
        return context.tensor(args[0]).to(context.tensor(args[1]).dtype)
    return context.tensor(args[0]).to(context.torch_dtype(type_name(int(node.attributes["to"]))))


# --- reductions -----------------------------------------------------------------------------------


def _reduction(function: Callable[[torch.Tensor, list[int], bool], torch.Tensor]) -> Operator:
    def run(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
        x = context.tensor(args[0])
        axes = axes_of(node, args)
        if not axes:
            if node.attributes.get("noop_with_empty_axes"):
                return x
            axes = list(range(x.ndim))
        return function(x, axes, bool(node.attributes.get("keepdims", 1)))

    return run


def _product(x: torch.Tensor, axes: list[int], keep: bool) -> torch.Tensor:
    for axis in sorted((a % x.ndim for a in axes), reverse=True):
        x = x.prod(axis, keepdim=keep)
    return x


def _softmax(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    function = torch.softmax if node.op == "Softmax" else torch.log_softmax
    x = context.tensor(args[0])
    if context.opset >= 13:
        return function(x, int(node.attributes.get("axis", -1)))
    axis = int(node.attributes.get("axis", 1)) % x.ndim
    if axis == x.ndim - 1:
        return function(x, -1)
    return function(x.flatten(axis), -1).reshape(x.shape)  # older opsets: all dimensions from axis


def _arg(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    function = torch.argmax if node.op == "ArgMax" else torch.argmin
    keep = bool(node.attributes.get("keepdims", 1))
    return function(context.tensor(args[0]), int(node.attributes.get("axis", 0)), keep)


def _topk(context: Context, node: Node, args: list[Value]) -> tuple[torch.Tensor, ...]:
    (k,) = ints(args[1], "number of results") if len(args) > 1 else [int(node.attributes["k"])]
    largest = bool(node.attributes.get("largest", 1))
    axis = int(node.attributes.get("axis", -1))
    return tuple(torch.topk(context.tensor(args[0]), k, axis, largest))


def _cumsum(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    need(not node.attributes.get("exclusive"), "exclusive sums")
    (axis,) = ints(args[1], "axis")
    x = context.tensor(args[0])
    if node.attributes.get("reverse"):
        return x.flip(axis).cumsum(axis).flip(axis)
    return x.cumsum(axis)


def _lp_norm(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    axis, order = int(node.attributes.get("axis", -1)), int(node.attributes.get("p", 2))
    return F.normalize(context.tensor(args[0]), p=float(order), dim=axis)


def _dropout(_: Context, __: Node, args: list[Value]) -> Value:
    """As it runs for inference: the file's forward graph is taken as it is."""
    return args[0]


def _norm(order: float) -> Callable[[torch.Tensor, Sequence[int], bool], torch.Tensor]:
    return lambda x, axes, keep: torch.linalg.vector_norm(x, order, tuple(axes), keep)


OPERATORS: dict[str, Operator] = {
    **{name: _unary(function) for name, function in _UNARY.items()},
    **{name: _binary(name) for name in _BINARY},
    "ArgMax": _arg, "ArgMin": _arg, "Cast": _cast, "CastLike": _cast, "Clip": _clip,
    "Celu": _sloped(F.celu, 1.0), "CumSum": _cumsum, "Div": _div, "Dropout": _dropout,
    "Elu": _sloped(F.elu, 1.0), "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid, "LeakyRelu": _sloped(F.leaky_relu, 0.01), "LogSoftmax": _softmax,
    "LpNormalization": _lp_norm, "Max": _many(torch.maximum), "Mean": _mean,
    "Min": _many(torch.minimum), "Mod": _mod, "PRelu": _prelu, "Softmax": _softmax,
    "Sum": _many(torch.add), "Swish": _silu, "TopK": _topk, "Where": _where,
    "ReduceL1": _reduction(_norm(1.0)), "ReduceL2": _reduction(_norm(2.0)),
    "ReduceLogSumExp": _reduction(lambda x, axes, keep: torch.logsumexp(x, axes, keep)),
    "ReduceMax": _reduction(lambda x, axes, keep: torch.amax(x, axes, keep)),
    "ReduceMean": _reduction(lambda x, axes, keep: torch.mean(x, axes, keep)),
    "ReduceMin": _reduction(lambda x, axes, keep: torch.amin(x, axes, keep)),
    "ReduceProd": _reduction(_product),
    "ReduceSum": _reduction(lambda x, axes, keep: torch.sum(x, axes, keep)),
    "ReduceSumSquare": _reduction(lambda x, axes, keep: torch.sum(x * x, axes, keep)),
}  # fmt: skip

PATTERNS: dict[str, Operator] = {"Gelu": _gelu, "Silu": _silu}
