"""Views, copies and look-ups of ONNX as functions of torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from atoll.tracing.from_onnx.onnx_call import OnnxCall, Operator, Value, need


def _shape(call: OnnxCall) -> Value:
    """Return the shape as a constant."""
    return np.array(tuple(call.args[0].shape)[call.get("start", 0) : call.get("end")], np.int64)


def _reshape(call: OnnxCall) -> torch.Tensor:
    shape = call.ints(1, "shape", call.get("shape"))
    if not call.get("allowzero"):
        shape = [call.first.shape[i] if n == 0 else n for i, n in enumerate(shape)]
    return call.first.reshape(shape)


def _flatten(call: OnnxCall) -> torch.Tensor:
    axis = call.integer("axis", 1)
    axis += call.first.ndim if axis < 0 else 0
    return call.first.reshape(int(np.prod(tuple(call.first.shape[:axis]))), -1)


def _squeeze(call: OnnxCall) -> torch.Tensor:
    axes = call.axes()
    return call.first.squeeze() if axes is None else call.first.squeeze(tuple(axes))


def _unsqueeze(call: OnnxCall) -> torch.Tensor:
    x, axes = call.first, call.axes() or []
    for axis in sorted(a % (x.ndim + len(axes)) for a in axes):
        x = x.unsqueeze(axis)
    return x


def _expand(call: OnnxCall) -> torch.Tensor:
    shape = tuple(call.ints(1, "shape"))
    return call.first.expand(torch.broadcast_shapes(tuple(call.first.shape), shape))


def _slice(call: OnnxCall) -> torch.Tensor:
    x = call.first
    starts, ends = call.ints(1, "start", call.get("starts")), call.ints(2, "end", call.get("ends"))
    axes = call.axes(3) or list(range(len(starts)))
    steps = call.ints(4, "step", [1] * len(axes))
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        size = x.shape[axis]
        wanted = slice(start, end if end > -(1 << 31) else None, step)
        if step < 0:
            indices = list(range(size))
            need(indices[wanted] == indices[::-1], "a step backwards over a part")
            x = x.flip(axis)
            continue
        begin, stop, _ = wanted.indices(size)
        index = [slice(None)] * x.ndim
        index[axis % x.ndim] = slice(begin, max(begin, stop), step)
        x = x[tuple(index)]
    return x


def _split(call: OnnxCall) -> tuple[torch.Tensor, ...]:
    size, parts = call.first.shape[call.axis], len(call.node.outputs)
    part = -(-size // parts)
    even = [*[part] * (parts - 1), size - part * (parts - 1)]
    return tuple(torch.split(call.first, call.ints(1, "sizes", call.get("split", even)), call.axis))


def _split_sequence(call: OnnxCall) -> tuple[list[torch.Tensor]]:
    """One value: a list of tensors."""
    sizes = call.ints(1, "sizes", [1])
    single = len(sizes) == 1 and np.ndim(call.value(1) if call.value(1) is not None else 0) == 0
    parts = list(torch.split(call.first, sizes[0] if single else sizes, call.axis))
    if len(call.args) < 2 and not call.get("keepdims", 1):
        parts = [part.squeeze(call.axis) for part in parts]
    return (parts,)


def _sequence_at(call: OnnxCall) -> Value:
    (at,) = call.ints(1, "position")
    return call.args[0][at]


def _pad(call: OnnxCall) -> torch.Tensor:
    n, mode = call.first.ndim, str(call.get("mode", "constant"))
    names = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}
    need(mode in names, f"mode {mode}")
    pads = call.ints(1, "padding", call.get("pads"))
    axes = [a % n for a in call.axes(3) or range(n)]
    before = dict(zip(axes, pads[: len(axes)], strict=True))
    after = dict(zip(axes, pads[len(axes) :], strict=True))
    amounts = [side.get(d, 0) for d in reversed(range(n)) for side in (before, after)]
    while amounts and amounts[-2:] == [0, 0]:
        amounts = amounts[:-2]
    return F.pad(call.first, amounts, mode=names[mode]) if amounts else call.first


# --- by index -------------------------------------------------------------------------------------


def _gather(call: OnnxCall) -> torch.Tensor:
    x, index = call.first, call.args[1]
    axis = call.axis % x.ndim
    if not isinstance(index, torch.Tensor) and index.size == 1:
        (chosen,) = call.ints(1, "index")
        if index.ndim == 0:
            return x.select(axis, chosen)
        rows = x.narrow(axis, chosen % x.shape[axis], 1)
    else:
        index = call.index(1)
        if axis == 0 and x.ndim == 2:
            return F.embedding(index, x)
        rows = x.index_select(axis, index.reshape(-1))
    return rows.reshape((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]))


def _gather_nd(call: OnnxCall) -> torch.Tensor:
    need(not call.get("batch_dims"), "batch_dims")
    return call.first[tuple(call.index(1).unbind(-1))]


def _adds(call: OnnxCall) -> bool:
    """Return whether scattered values are added rather than assigned."""
    how = str(call.get("reduction", "none"))
    need(how in ("none", "add"), f"reduction {how}")
    return how == "add"


def _scatter_elements(call: OnnxCall) -> torch.Tensor:
    scatter = call.first.scatter_add if _adds(call) else call.first.scatter
    return scatter(call.axis, call.index(1), call.tensor(2))


def _scatter_nd(call: OnnxCall) -> torch.Tensor:
    places = tuple(call.index(1).unbind(-1))
    return call.first.index_put(places, call.tensor(2), accumulate=_adds(call))


def _trilu(call: OnnxCall) -> torch.Tensor:
    (k,) = call.ints(1, "diagonal", 0)
    return (torch.triu if call.get("upper", 1) else torch.tril)(call.first, k)


def _onehot(call: OnnxCall) -> torch.Tensor:
    (depth,) = call.ints(1, "depth")
    off, on = (call.tensor(2)[i] for i in (0, 1))
    hot = F.one_hot(call.index(0), depth)
    return torch.where(hot == 1, on, off).movedim(-1, call.integer("axis", -1))


def _depth_to_space(call: OnnxCall) -> torch.Tensor:
    block = int(call.get("blocksize"))
    b, c, h, w = call.first.shape
    c //= block**2
    if call.get("mode", "DCR") == "DCR":
        y = call.first.reshape(b, block, block, c, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        y = call.first.reshape(b, c, block, block, h, w).permute(0, 1, 4, 2, 5, 3)
    return y.reshape(b, c, h * block, w * block)


def _space_to_depth(call: OnnxCall) -> torch.Tensor:
    block = int(call.get("blocksize"))
    b, c, h, w = call.first.shape
    h, w = h // block, w // block
    y = call.first.reshape(b, c, h, block, w, block).permute(0, 3, 5, 1, 2, 4)
    return y.reshape(b, c * block**2, h, w)


def _constant_of_shape(call: OnnxCall) -> torch.Tensor:
    value = np.asarray(call.get("value", np.zeros(1, np.float32)))
    kind = call.context.torch_dtype(str(value.dtype))
    return torch.full(call.ints(0, "shape"), value.item(), dtype=kind)


def _resize(call: OnnxCall) -> torch.Tensor:
    x = call.first
    need(x.ndim in (3, 4, 5), f"{x.ndim} dimensions")
    modes: dict[str, Any] = {
        "nearest": "nearest", "linear": {3: "linear", 4: "bilinear", 5: "trilinear"}[x.ndim],
        "cubic": "bicubic",
    }  # fmt: skip
    mode = modes[str(call.get("mode", "nearest"))]
    aligned = call.get("coordinate_transformation_mode") == "align_corners"
    scales = call.value(2)
    if scales is None and call.op == "Upsample":
        scales = call.args[1]
    if scales is not None and np.size(scales):
        factors = [float(n) for n in np.asarray(scales).reshape(-1)]
        size = [int(n * f) for n, f in zip(x.shape, factors, strict=True)][2:]
    else:
        size = call.ints(3, "size")[2:]
    aligned = None if mode == "nearest" else aligned
    return F.interpolate(x, size=size, mode=mode, align_corners=aligned)


OPERATORS: dict[str, Operator] = {
    "Concat": lambda c: torch.cat(c.tensors(), int(c.get("axis"))),
    "ConstantOfShape": _constant_of_shape, "DepthToSpace": _depth_to_space,
    "Expand": _expand, "Flatten": _flatten, "Gather": _gather,
    "GatherElements": lambda c: torch.gather(c.first, c.axis, c.index(1)),
    "GatherND": _gather_nd, "OneHot": _onehot, "Pad": _pad, "Reshape": _reshape,
    "Resize": _resize, "ScatterElements": _scatter_elements, "ScatterND": _scatter_nd,
    "SequenceAt": _sequence_at, "Shape": _shape,
    "Size": lambda c: np.array(int(np.prod(tuple(c.args[0].shape))), np.int64), "Slice": _slice,
    "SpaceToDepth": _space_to_depth, "Split": _split, "SplitToSequence": _split_sequence,
    "Squeeze": _squeeze, "Tile": lambda c: c.first.repeat(c.ints(1, "repeats")),
    "Transpose": lambda c: c.first.permute(tuple(c.get("perm", range(c.first.ndim)[::-1]))),
    "Trilu": _trilu, "Unsqueeze": _unsqueeze, "Upsample": _resize,
}  # fmt: skip
