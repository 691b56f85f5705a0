"""Element-wise operators, comparisons and reductions of ONNX as functions of torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from atoll.tracing.from_onnx.onnx_call import OnnxCall, Operator, need
from atoll.tracing.from_onnx.read import type_name

_SAME = """
    Abs Acos Asin Atan Ceil Cos Cosh Erf Exp Floor IsInf IsNaN Log Neg Reciprocal Relu Round Sigmoid
    Sign Sin Sinh Sqrt Tan Tanh
"""
"""Operators that torch has under the same name."""
_UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{name: getattr(torch, name.lower()) for name in _SAME.split()},
    "HardSwish": F.hardswish, "Mish": F.mish, "Not": torch.logical_not, "Softplus": F.softplus,
    "Softsign": F.softsign,
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
    return lambda call: function(call.first)


def _binary(name: str) -> Operator:
    def run(call: OnnxCall) -> torch.Tensor:
        left, right = call.pair(0, 1)
        if name in _SYMMETRIC and not isinstance(left, torch.Tensor):
            left, right = right, left
        if name in _TENSORS_ONLY or (name != "Pow" and not isinstance(left, torch.Tensor)):
            left, right = call.tensors()
        return _BINARY[name](left, right)

    return run


def _div(call: OnnxCall) -> torch.Tensor:
    left, right = call.pair(0, 1)
    tensor = left if isinstance(left, torch.Tensor) else right
    if not tensor.is_floating_point():
        return torch.div(call.first, right, rounding_mode="trunc")
    if not isinstance(left, torch.Tensor):
        return torch.reciprocal(right) * left
    return torch.div(left, right)


def _mod(call: OnnxCall) -> torch.Tensor:
    _, right = call.pair(0, 1)
    return torch.fmod(call.first, right) if call.get("fmod") else torch.remainder(call.first, right)


def _many(function: Callable[[Any, Any], Any]) -> Operator:
    return lambda call: reduce(function, call.tensors())


def _where(call: OnnxCall) -> torch.Tensor:
    left, right = call.pair(1, 2)
    if not isinstance(left, torch.Tensor) and not isinstance(right, torch.Tensor):
        left, right = call.tensor(1), call.tensor(2)
    return torch.where(call.first, left, right)


def _clip(call: OnnxCall) -> torch.Tensor:
    x = call.first
    ends = (
        (call.context.operand(call.value(at), x), name) for at, name in ((1, "min"), (2, "max"))
    )
    low, high = (call.get(name) if end is None else end for end, name in ends)
    return x if low is None and high is None else torch.clamp(x, min=low, max=high)


def _prelu(call: OnnxCall) -> torch.Tensor:
    _, slope = call.pair(0, 1)
    return torch.where(call.first > 0, call.first, call.first * slope)


def _sloped(function: Callable[[torch.Tensor, float], torch.Tensor], alpha: float) -> Operator:
    return lambda call: function(call.first, call.number("alpha", alpha))


def _hard_sigmoid(call: OnnxCall) -> torch.Tensor:
    return torch.clamp(call.first * call.number("alpha", 0.2) + call.number("beta", 0.5), 0.0, 1.0)


def _gelu(call: OnnxCall) -> torch.Tensor:
    return F.gelu(call.first, approximate=str(call.get("approximate", "none")))


def _silu(call: OnnxCall) -> torch.Tensor:
    alpha = call.number("alpha", 1.0)
    return F.silu(call.first) if alpha == 1.0 else call.first * torch.sigmoid(alpha * call.first)


# --- reductions -----------------------------------------------------------------------------------


def _reduction(function: Callable[[torch.Tensor, list[int], bool], torch.Tensor]) -> Operator:
    def run(call: OnnxCall) -> torch.Tensor:
        axes = call.axes()
        if not axes:
            if call.get("noop_with_empty_axes"):
                return call.first
            axes = list(range(call.first.ndim))
        return function(call.first, axes, bool(call.get("keepdims", 1)))

    return run


def _product(x: torch.Tensor, axes: list[int], keep: bool) -> torch.Tensor:
    for axis in sorted((a % x.ndim for a in axes), reverse=True):
        x = x.prod(axis, keepdim=keep)
    return x


def _norm(order: float) -> Operator:
    return _reduction(lambda x, axes, keep: torch.linalg.vector_norm(x, order, tuple(axes), keep))


def _softmax(function: Callable[[torch.Tensor, int], torch.Tensor]) -> Operator:
    def run(call: OnnxCall) -> torch.Tensor:
        x = call.first
        if call.context.opset >= 13:
            return function(x, call.integer("axis", -1))
        axis = call.integer("axis", 1) % x.ndim
        if axis == x.ndim - 1:
            return function(x, -1)
        return function(x.flatten(axis), -1).reshape(x.shape)  # older opsets: all from axis on

    return run


def _arg(function: Callable[[torch.Tensor, int, bool], torch.Tensor]) -> Operator:
    return lambda call: function(call.first, call.axis, bool(call.get("keepdims", 1)))


def _topk(call: OnnxCall) -> tuple[torch.Tensor, ...]:
    (k,) = call.ints(1, "number of results", call.get("k"))
    return tuple(torch.topk(call.first, k, call.integer("axis", -1), bool(call.get("largest", 1))))


def _cumsum(call: OnnxCall) -> torch.Tensor:
    need(not call.get("exclusive"), "exclusive sums")
    (axis,) = call.ints(1, "axis")
    if call.get("reverse"):
        return call.first.flip(axis).cumsum(axis).flip(axis)
    return call.first.cumsum(axis)


OPERATORS: dict[str, Operator] = {
    **{name: _unary(function) for name, function in _UNARY.items()},
    **{name: _binary(name) for name in _BINARY},
    "ArgMax": _arg(torch.argmax), "ArgMin": _arg(torch.argmin),
    "Cast": lambda c: c.first.to(c.context.torch_dtype(type_name(int(c.get("to"))))),
    "CastLike": lambda c: c.first.to(c.tensor(1).dtype),
    "Celu": _sloped(F.celu, 1.0), "Clip": _clip, "CumSum": _cumsum, "Div": _div,
    "Dropout": lambda c: c.args[0],  # as for inference: the forward graph is taken as it is
    "Elu": _sloped(F.elu, 1.0), "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid, "LeakyRelu": _sloped(F.leaky_relu, 0.01),
    "LogSoftmax": _softmax(torch.log_softmax),
    "LpNormalization": lambda c: F.normalize(c.first, c.number("p", 2), c.integer("axis", -1)),
    "Max": _many(torch.maximum), "Mean": lambda c: reduce(torch.add, c.tensors()) / len(c.args),
    "Min": _many(torch.minimum), "Mod": _mod, "PRelu": _prelu,
    "Softmax": _softmax(torch.softmax),
    "Sum": _many(torch.add), "Swish": _silu, "TopK": _topk, "Where": _where,
    "ReduceL1": _norm(1.0), "ReduceL2": _norm(2.0),
    "ReduceLogSumExp": _reduction(torch.logsumexp), "ReduceMax": _reduction(torch.amax),
    "ReduceMean": _reduction(torch.mean), "ReduceMin": _reduction(torch.amin),
    "ReduceProd": _reduction(_product), "ReduceSum": _reduction(torch.sum),
    "ReduceSumSquare": _reduction(lambda x, axes, keep: torch.sum(x * x, axes, keep)),
}  # fmt: skip

PATTERNS: dict[str, Operator] = {"Gelu": _gelu, "Silu": _silu}
