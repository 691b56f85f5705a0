"""Views, copies and look-ups of ONNX as functions of torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from atoll.tracing.from_onnx.graph import Node
from atoll.tracing.from_onnx.ops_math import Operator
from atoll.tracing.from_onnx.values import Context, Value, axes_of, ints, need


def _shape(_: Context, node: Node, args: list[Value]) -> Value:
    """Known, whatever it is the shape of."""
    start, end = node.attributes.get("start", 0), node.attributes.get("end")
    return np.array(tuple(args[0].shape)[start:end], np.int64)


def _size(_: Context, __: Node, args: list[Value]) -> Value:
    return np.array(int(np.prod(tuple(args[0].shape))), np.int64)


def _reshape(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    x = context.tensor(args[0])
    shape = ints(args[1] if len(args) > 1 else np.array(node.attributes["shape"]), "shape")
    if not node.attributes.get("allowzero"):
        shape = [x.shape[i] if n == 0 else n for i, n in enumerate(shape)]
    return x.reshape(shape)


def _flatten(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    x = context.tensor(args[0])
    axis = int(node.attributes.get("axis", 1))
    axis += x.ndim if axis < 0 else 0
    return x.reshape(int(np.prod(tuple(x.shape[:axis]))), -1)


def _transpose(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    x = context.tensor(args[0])
    return x.permute(tuple(node.attributes.get("perm", range(x.ndim)[::-1])))


def _squeeze(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    axes = axes_of(node, args)
    x = context.tensor(args[0])
    return x.squeeze() if axes is None else x.squeeze(tuple(axes))


def _unsqueeze(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    x = context.tensor(args[0])
    axes = axes_of(node, args) or []
    for axis in sorted(a % (x.ndim + len(axes)) for a in axes):
        x = x.unsqueeze(axis)
    return x


def _expand(context: Context, _: Node, args: list[Value]) -> torch.Tensor:
    x = context.tensor(args[0])
    return x.expand(torch.broadcast_shapes(tuple(x.shape), tuple(ints(args[1], "shape"))))


def _slice(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    x = context.tensor(args[0])
    if "starts" in node.attributes:
        starts, ends = list(node.attributes["starts"]), list(node.attributes["ends"])
        axes = list(node.attributes.get("axes", range(len(starts))))
        steps = [1] * len(starts)
    else:
        starts, ends = ints(args[1], "start"), ints(args[2], "end")
        axes = axes_of(node, args, 3) or list(range(len(starts)))
        steps = ints(args[4], "step") if len(args) > 4 and args[4] is not None else [1] * len(axes)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        size = x.shape[axis]
        begin, stop, _ = slice(start, end if end > -(1 << 31) else None, step).indices(size)
        if step < 0:
            chosen = list(range(size))[slice(start, end if end > -(1 << 31) else None, step)]
            need(chosen == list(range(size))[::-1], "a step backwards over a part")
            x = x.flip(axis)
            continue
        index = [slice(None)] * x.ndim
        index[axis % x.ndim] = slice(begin, max(begin, stop), step)
        x = x[tuple(index)]
    return x


def _split(context: Context, node: Node, args: list[Value]) -> tuple[torch.Tensor, ...]:
    x = context.tensor(args[0])
    axis = int(node.attributes.get("axis", 0))
    if len(args) > 1 and args[1] is not None:
        sizes = ints(args[1], "sizes")
    elif "split" in node.attributes:
        sizes = [int(n) for n in node.attributes["split"]]
    else:
        part = -(-x.shape[axis] // len(node.outputs))
        sizes = [part] * (len(node.outputs) - 1)
        sizes.append(x.shape[axis] - sum(sizes))
    return tuple(torch.split(x, sizes, axis))


def _split_sequence(context: Context, node: Node, args: list[Value]) -> tuple[list[torch.Tensor]]:
    """One value: a list of tensors."""
    x, axis = context.tensor(args[0]), int(node.attributes.get("axis", 0))
    given = ints(args[1], "sizes") if len(args) > 1 and args[1] is not None else [1]
    whole = len(given) == 1 and np.ndim(args[1] if len(args) > 1 else 0) == 0
    parts = list(torch.split(x, given[0] if whole else given, axis))
    if len(args) < 2 and not node.attributes.get("keepdims", 1):
        parts = [part.squeeze(axis) for part in parts]
    return (parts,)


def _sequence_at(_: Context, __: Node, args: list[Value]) -> Value:
    (at,) = ints(args[1], "position")
    return args[0][at]


def _concat(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    return torch.cat([context.tensor(value) for value in args], int(node.attributes["axis"]))


def _tile(context: Context, _: Node, args: list[Value]) -> torch.Tensor:
    return context.tensor(args[0]).repeat(ints(args[1], "repeats"))


def _pad(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    x = context.tensor(args[0])
    mode = str(node.attributes.get("mode", "constant"))
    names = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}
    need(mode in names, f"mode {mode}")
    pads = ints(args[1] if len(args) > 1 else np.array(node.attributes["pads"]), "padding")
    axes = axes_of(node, args, 3) or list(range(x.ndim))
    before = dict(zip((a % x.ndim for a in axes), pads[: len(axes)], strict=True))
    after = dict(zip((a % x.ndim for a in axes), pads[len(axes) :], strict=True))
    amounts = [n for d in reversed(range(x.ndim)) for n in (before.get(d, 0), after.get(d, 0))]
    while amounts and amounts[-2:] == [0, 0]:
        amounts = amounts[:-2]
    return F.pad(x, amounts, mode=names[mode]) if amounts else x


# --- by index -------------------------------------------------------------------------------------


def _gather(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    x, index = context.tensor(args[0]), args[1]
    axis = int(node.attributes.get("axis", 0)) % x.ndim
    if not isinstance(index, torch.Tensor) and index.size == 1:
        (chosen,) = ints(index, "index")
        if index.ndim == 0:
            return x.select(axis, chosen)
        at = chosen % x.shape[axis]
        picked = x.narrow(axis, at, 1)
        return picked.reshape((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]))
    where = context.tensor(index).to(torch.int64)
    if axis == 0 and x.ndim == 2:
        return F.embedding(where, x)
    found = x.index_select(axis, where.reshape(-1))
    return found.reshape((*x.shape[:axis], *where.shape, *x.shape[axis + 1 :]))


def _gather_elements(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    axis = int(node.attributes.get("axis", 0))
    return torch.gather(context.tensor(args[0]), axis, context.tensor(args[1]).to(torch.int64))


def _gather_nd(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    need(not node.attributes.get("batch_dims"), "batch_dims")
    index = context.tensor(args[1]).to(torch.int64)
    return context.tensor(args[0])[tuple(index.unbind(-1))]


def _scatter_elements(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    how = str(node.attributes.get("reduction", "none"))
    need(how in ("none", "add"), f"reduction {how}")
    x, index, updates = (context.tensor(value) for value in args)
    axis = int(node.attributes.get("axis", 0))
    index = index.to(torch.int64)
    if how == "add":
        return x.scatter_add(axis, index, updates)
    return x.scatter(axis, index, updates)


def _scatter_nd(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    how = str(node.attributes.get("reduction", "none"))
    need(how in ("none", "add"), f"reduction {how}")
    x, index, updates = (context.tensor(value) for value in args)
    places = tuple(index.to(torch.int64).unbind(-1))
    return x.index_put(places, updates, accumulate=how == "add")


def _trilu(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    (k,) = ints(args[1], "diagonal") if len(args) > 1 and args[1] is not None else [0]
    function = torch.triu if node.attributes.get("upper", 1) else torch.tril
    return function(context.tensor(args[0]), k)


def _one_hot(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    (depth,) = ints(args[1], "depth")
    off, on = (context.tensor(args[2])[i] for i in (0, 1))
    axis = int(node.attributes.get("axis", -1))
    hot = F.one_hot(context.tensor(args[0]).to(torch.int64), depth)
    return torch.where(hot == 1, on, off).movedim(-1, axis)


def _depth_to_space(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    x, block = context.tensor(args[0]), int(node.attributes["blocksize"])
    b, c, h, w = x.shape
    if node.attributes.get("mode", "DCR") == "DCR":
        y = x.reshape(b, block, block, c // block**2, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        y = x.reshape(b, c // block**2, block, block, h, w).permute(0, 1, 4, 2, 5, 3)
    return y.reshape(b, c // block**2, h * block, w * block)


def _space_to_depth(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    x, block = context.tensor(args[0]), int(node.attributes["blocksize"])
    b, c, h, w = x.shape
    y = x.reshape(b, c, h // block, block, w // block, block).permute(0, 3, 5, 1, 2, 4)
    return y.reshape(b, c * block**2, h // block, w // block)


def _constant_of_shape(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    value = np.asarray(node.attributes.get("value", np.zeros(1, np.float32)))
    shape = ints(args[0], "shape")
    return torch.full(shape, value.item(), dtype=context.torch_dtype(str(value.dtype)))


def _resize(context: Context, node: Node, args: list[Value]) -> torch.Tensor:
    x = context.tensor(args[0])
    need(x.ndim in (3, 4, 5), f"{x.ndim} dimensions")
    modes: dict[str, Any] = {
        "nearest": "nearest", "linear": {3: "linear", 4: "bilinear", 5: "trilinear"}[x.ndim],
        "cubic": "bicubic",
    }  # fmt: skip
    mode = modes[str(node.attributes.get("mode", "nearest"))]
    aligned = node.attributes.get("coordinate_transformation_mode") == "align_corners"
    align = None if mode == "nearest" else aligned
    scales = args[2] if len(args) > 2 else None
    if scales is None and node.op == "Upsample":
        scales = args[1]
    if scales is not None and np.size(scales):
        factors = [float(n) for n in np.asarray(scales).reshape(-1)]
        size = [int(n * f) for n, f in zip(x.shape, factors, strict=True)][2:]
    else:
        size = ints(args[3], "size")[2:]
    return F.interpolate(x, size=size, mode=mode, align_corners=align)


OPERATORS: dict[str, Operator] = {
    "Concat": _concat, "ConstantOfShape": _constant_of_shape, "DepthToSpace": _depth_to_space,
    "Expand": _expand, "Flatten": _flatten, "Gather": _gather, "GatherElements": _gather_elements,
    "GatherND": _gather_nd, "OneHot": _one_hot, "Pad": _pad, "Reshape": _reshape,
    "Resize": _resize, "ScatterElements": _scatter_elements, "ScatterND": _scatter_nd,
    "SequenceAt": _sequence_at, "Shape": _shape, "Size": _size, "Slice": _slice,
    "SpaceToDepth": _space_to_depth, "Split": _split, "SplitToSequence": _split_sequence,
    "Squeeze": _squeeze, "Tile": _tile, "Transpose": _transpose, "Trilu": _trilu,
    "Unsqueeze": _unsqueeze, "Upsample": _resize,
}  # fmt: skip
