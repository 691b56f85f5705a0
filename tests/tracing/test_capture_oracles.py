"""Captures against what torch itself counts when the same modules run for real."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import atoll  # noqa: E402
from atoll.tracing.record.trace import TensorView  # noqa: E402
from atoll.tracing.split.division import ConflictError, Label, storage_label, view_cut  # noqa: E402
from atoll.workload import prepare  # noqa: E402

from . import modules as m  # noqa: E402

BATCH = 2


def real_inputs(build: Any) -> tuple[Any, ...]:
    if build is m.Tied:
        return (torch.zeros(BATCH, m.TOKENS, dtype=torch.int64),)
    if build is m.Perceptron:
        return (torch.rand(BATCH, 32),)
    if build is m.Convolutions:
        return torch.rand(BATCH, 3, 16, 16), torch.zeros(BATCH, dtype=torch.int64)
    return (torch.rand(BATCH, m.TOKENS, m.WIDTH),)


def trained(build: Any) -> tuple[Any, tuple[Any, ...]]:
    torch.manual_seed(0)
    return build(), real_inputs(build)


def outputs(result: Any) -> list[Any]:
    return list(result.values()) if isinstance(result, dict) else [result]


PLAIN = [m.Perceptron, m.TwoHeads, m.SkipConnections, m.SharedBlock, m.Tied, m.Alternating,
         m.Checkpointed, m.InPlace, m.Frozen]  # fmt: skip


@pytest.mark.parametrize("build", PLAIN, ids=lambda build: build.__name__)
def test_flops_are_those_that_torch_counts(build: Any) -> None:
    module, inputs = trained(build)
    with FlopCounterMode(display=False) as counter:
        results = outputs(module(*inputs))
        torch.autograd.backward(results, [torch.ones_like(r) for r in results])
    model = prepare(atoll.capture(build, inputs), BATCH)
    mine = sum((layer.flops_forward + layer.flops_backward) * n for layer, n in model.layers)
    assert mine == counter.get_total_flops()


def test_a_convolution_counts_as_torch_counts_it() -> None:
    """Without groups, whose weight gradients torch's counter does not divide."""

    def build() -> Any:
        return torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 3, stride=2, padding=1),
            torch.nn.ReLU(),
            torch.nn.Conv2d(16, 32, 3),
            torch.nn.ConvTranspose2d(32, 8, 2, stride=2),
        )

    image = torch.rand(BATCH, 3, 32, 32)
    with FlopCounterMode(display=False) as counter:
        build()(image).sum().backward()
    model = prepare(atoll.capture(build, image), BATCH)
    mine = sum((layer.flops_forward + layer.flops_backward) * n for layer, n in model.layers)
    assert mine == counter.get_total_flops()


@pytest.mark.parametrize("build", [m.Perceptron, m.TwoHeads, m.Tied], ids=lambda b: b.__name__)
def test_eager_autograd_keeps_what_its_hooks_see(build: Any) -> None:
    module, inputs = trained(build)
    own = {p.untyped_storage().data_ptr() for p in module.parameters()}
    kept: dict[int, int] = {}
    alive = []

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own and tensor.numel() > 1:
            alive.append(tensor)
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        results = outputs(module(*inputs))
    captured = prepare(atoll.capture(build, inputs, dtype=None, keep="eager"), BATCH, fusion="none")
    assert results
    mine = 0
    for layer, repeat in captured.layers:
        # A layer's output that it keeps itself is the next one's input: one tensor.
        last = layer is captured.layers[-1][0]
        again = () if last else (layer.output, *layer.more_outputs)
        names = [name for name in layer.saved if name not in again]
        mine += repeat * sum(layer.tensors[n].bytes for n in names if layer.tensors[n].elements > 1)
    assert mine == sum(kept.values())


@st.composite
def views(draw: st.DrawFn) -> tuple[Label, TensorView, int]:
    """A label on a storage of rows x (units x block) columns, seen through a permuted reshape."""
    rows, units = draw(st.integers(1, 4)), draw(st.sampled_from([2, 3, 4, 6]))
    block, tail = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 3]))
    shape = [rows, units, block, tail]
    strides = [units * block * tail, block * tail, tail, 1]
    merge = draw(st.sampled_from(["none", "head", "columns"]))
    if merge == "head":  # rows and units as one dimension
        shape, strides = [rows * units, block, tail], strides[1:]
    elif merge == "columns":  # units and block as one
        shape, strides = [rows, units * block, tail], [strides[0], strides[2], 1]
    order = draw(st.permutations(range(len(shape))))
    width = draw(st.sampled_from([2, 4, 8]))  # bytes of an element: labels count bytes
    view = TensorView(
        0, tuple(shape[i] for i in order), tuple(strides[i] for i in order), 0, width, True
    )
    label = Label(block * tail * width, units, False, frozenset({1}))
    return label, view, rows * units * block * tail


@given(views())
def test_a_cut_seen_through_a_view_is_the_cut_of_the_storage(
    case: tuple[Label, TensorView, int],
) -> None:
    """Taking every piece in turn along the dimension found gives every element of that piece."""
    label, view, size = case
    piece = (np.arange(size) * view.element_bytes // label.stride) % label.units
    array = np.lib.stride_tricks.as_strided(
        piece, view.shape, [s * piece.itemsize for s in view.strides]
    )
    try:
        cut = view_cut(label, view)
    except ConflictError:
        pytest.fail("every such view shows the cut")
    along = np.moveaxis(array, cut.dim, 0)
    steps = np.arange(view.shape[cut.dim])
    expected = (steps // cut.block) % cut.units
    assert (along.reshape(len(steps), -1) == expected[:, None]).all()
    assert storage_label(cut, view, cut.dim) == label
