"""Modules of all kinds: what a capture finds in them, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import atoll  # noqa: E402
from atoll.hardware.gpu import load_gpu  # noqa: E402
from atoll.tools.stack import STACKS  # noqa: E402
from atoll.training.operators.gpu_pricer import GpuPricer  # noqa: E402
from atoll.training.operators.layers import layer_costs  # noqa: E402
from atoll.workload import Layer, StoredModel, prepare, widths  # noqa: E402

from . import modules as m  # noqa: E402

SEQUENCES = torch.empty(1, m.TOKENS, m.WIDTH, device="meta")
IDS = torch.empty(1, m.TOKENS, dtype=torch.int64, device="meta")
IMAGES = (
    torch.empty(1, 3, 16, 16, device="meta"),
    torch.empty(1, dtype=torch.int64, device="meta"),
)

CASES: list[tuple[Any, Any]] = [
    (m.Perceptron, torch.empty(1, 32)),
    (m.EncoderLayers, SEQUENCES),
    (m.TwoHeads, SEQUENCES),
    (m.MixtureModel, SEQUENCES),
    (m.Convolutions, IMAGES),
    (m.SkipConnections, SEQUENCES),
    (m.SharedBlock, SEQUENCES),
    (m.Tied, IDS),
    (m.Alternating, SEQUENCES),
    (m.Checkpointed, SEQUENCES),
    (m.InPlace, SEQUENCES),
    (m.Recurrent, SEQUENCES),
]
IDENTITIES = [build.__name__ for build, _ in CASES]


def layers(model: StoredModel, microbatch: int = 1, tensor: int = 1) -> list[tuple[Layer, int]]:
    return list(prepare(model, microbatch, None, tensor).layers)


def products(model: StoredModel) -> tuple[int, int]:
    """Matrix products in both passes, fused attention's left out."""
    counts = [0, 0]
    for layer in model.file.layers:
        for which, operators in enumerate((layer.forward, layer.backward)):
            plain = [op for op in operators if not op.on_chip]
            counts[which] += layer.repeat * sum(len(op.matmuls) for op in plain)
    return counts[0], counts[1]


@pytest.mark.parametrize(("build", "inputs"), CASES, ids=IDENTITIES)
def test_every_parameter_is_found_once(build: Any, inputs: Any) -> None:
    model = atoll.capture(build, inputs)
    assert prepare(model, 2).parameters == sum(p.numel() for p in build().parameters())


@pytest.mark.parametrize(("build", "inputs"), CASES, ids=IDENTITIES)
def test_work_grows_with_the_microbatch_and_nothing_else_does(build: Any, inputs: Any) -> None:
    model = atoll.capture(build, inputs)
    assert model.file.microbatch is None
    for (one, _), (four, _) in zip(layers(model, 1), layers(model, 4), strict=True):
        assert four.flops_forward == 4 * one.flops_forward
        assert four.flops_backward == 4 * one.flops_backward
        assert four.parameters == one.parameters


@pytest.mark.parametrize(("build", "inputs"), CASES, ids=IDENTITIES)
def test_every_division_adds_up(build: Any, inputs: Any) -> None:
    model = atoll.capture(build, inputs)
    for width in widths(model, (2, 4)):
        for (whole, _), (local, _) in zip(layers(model, 2), layers(model, 2, width), strict=True):
            assert whole.parameters / width <= local.parameters <= whole.parameters
            for a, b in (
                (whole.flops_forward, local.flops_forward),
                (whole.flops_backward, local.flops_backward),
            ):
                assert a <= width * b and b <= a


def test_a_module_itself_or_its_factory_give_the_same_model() -> None:
    assert atoll.capture(m.EncoderLayers(), SEQUENCES).file == (
        atoll.capture(m.EncoderLayers, SEQUENCES).file
    )


def test_the_backward_pass_has_twice_the_products_less_the_first_inputs_gradient() -> None:
    """Two gradients a product, but data need none."""
    for build, inputs, first in (
        (m.Perceptron, torch.empty(1, 32), 1),
        (m.TwoHeads, SEQUENCES, 1),
        (m.Tied, IDS, 0),  # ids have no gradient to begin with
        (m.SkipConnections, SEQUENCES, 1),
    ):
        forward, backward = products(atoll.capture(build, inputs))
        assert backward == 2 * forward - first


def test_equal_layers_are_stored_once_and_named_by_their_path() -> None:
    file = atoll.capture(lambda: m.EncoderLayers(12), SEQUENCES).file
    # The first needs no gradient of its input, so its backward pass is another.
    names = [(layer.name, layer.repeat) for layer in file.layers]
    assert names == [("layers.0", 1), ("layers.1", 11), ("outputs", 1)]
    weights = [n for n, t in file.layers[1].tensors.items() if t.role == "weight"]
    assert "layers.1.linear1.weight" in weights


def test_blocks_that_alternate_repeat_as_a_period() -> None:
    file = atoll.capture(m.Alternating, SEQUENCES).file
    assert ("blocks.1-2", 3) in [(layer.name, layer.repeat) for layer in file.layers]


def test_a_skip_connection_crosses_every_layer_on_its_way() -> None:
    model = atoll.capture(m.SkipConnections, SEQUENCES)
    crossing = [len(layer.outputs) for layer in model.file.layers]
    assert crossing == [1, 2, 3, 3, 2, 1, 1]
    stream = m.TOKENS * m.WIDTH * 2
    assert layers(model)[2][0].boundary_bytes == 3 * stream


def test_a_tied_weight_counts_once_and_both_layers_hold_it() -> None:
    model = atoll.capture(m.Tied, IDS)
    assert model.file.shared == {"embed.weight": 2}
    chain = layers(model)
    assert chain[0][0].parameters == chain[-1][0].parameters == 100 * m.WIDTH


def test_experts_are_one_grouped_product_with_their_share_of_rows() -> None:
    file = atoll.capture(m.MixtureModel, SEQUENCES).file
    block = next(layer for layer in file.layers if layer.repeat > 1)
    grouped = [p for op in block.forward for p in op.matmuls if p.batch == 4]
    assert [(p.m, p.n, p.k) for p in grouped] == [
        (f"{m.TOKENS * 2 // 4}*microbatch", 2 * m.WIDTH, m.WIDTH),
        (f"{m.TOKENS * 2 // 4}*microbatch", m.WIDTH, 2 * m.WIDTH),
    ]


def test_a_convolutions_kernel_is_no_row_of_experts() -> None:
    class Mixer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv1d(64, 64, 4, groups=64, padding=3)
            self.out = torch.nn.Linear(64, 64)

        def forward(self, x: Any) -> Any:
            mixed = self.conv(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
            return self.out(mixed).sum()

    model = atoll.capture(Mixer, (torch.empty(2, 16, 64, device="meta"),))
    pricer = GpuPricer(load_gpu("h200"), STACKS["eager"], stored=True)
    for cost in layer_costs(prepare(model, 1), pricer):
        assert cost.experts == 0
        assert cost.expert_parameters == 0


def test_dropout_keeps_its_mask_and_runs_no_second_draw() -> None:
    (plain, _), *_ = layers(atoll.capture(lambda: m.EncoderLayers(2, 0.0), SEQUENCES))
    (dropped, _), *_ = layers(atoll.capture(lambda: m.EncoderLayers(2, 0.1), SEQUENCES))
    assert dropped.saved_bytes > plain.saved_bytes
    assert not any(v.function == "dropout" for op in dropped.backward for v in op.vectors)


def test_eager_autograd_keeps_more_than_a_fusing_compiler() -> None:
    kept = [
        sum(layer.saved_bytes * n for layer, n in layers(
            atoll.capture(m.InPlace, SEQUENCES, keep=keep)
        ))
        for keep in ("fused", "eager")
    ]  # fmt: skip
    assert kept[0] <= kept[1]


def test_single_precision_takes_twice_the_bytes() -> None:
    half = layers(atoll.capture(m.EncoderLayers, SEQUENCES))[0][0]
    full = layers(atoll.capture(m.EncoderLayers, SEQUENCES, dtype=None))[0][0]
    assert full.tensors["layers.0.linear1.weight"].element_bytes == 4
    assert full.boundary_bytes == 2 * half.boundary_bytes


def test_a_loss_of_ones_own_is_part_of_the_model() -> None:
    plain = atoll.capture(m.TwoHeads, SEQUENCES)
    own = atoll.capture(m.TwoHeads, SEQUENCES, loss=lambda out: out["value"].square().mean())
    assert prepare(own, 1).parameters < prepare(plain, 1).parameters
    assert any("policy.weight" in note for note in own.file.notes)


def test_what_is_not_trained_is_noted() -> None:
    notes = " ".join(atoll.capture(m.Frozen, SEQUENCES).file.notes)
    assert "no gradient reaches: idle.weight, idle.bias" in notes
    assert "not trained: fixed.weight, fixed.bias" in notes


def test_no_batch_dimension_fixes_the_microbatch() -> None:
    model = atoll.capture(m.EncoderLayers, SEQUENCES, batch_dim=None)
    assert model.file.microbatch == 1
    with pytest.raises(atoll.AtollError, match="holds the model at 1 samples only"):
        prepare(model, 2)


def sentence(build: Any, inputs: Any, **options: Any) -> str:
    with pytest.raises(atoll.AtollError) as caught:
        atoll.capture(build, inputs, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_control_flow_that_depends_on_data_is_refused_with_its_line() -> None:
    message = sentence(m.DataDependent, SEQUENCES)
    source = Path(m.__file__).read_text(encoding="utf-8").splitlines()
    line = next(i for i, text in enumerate(source, 1) if "the line that is to blame" in text)
    assert message.startswith(f"{m.__file__}:{line}: `if y.sum() > 0:")
    assert "depends on the data" in message


def test_mistakes_are_one_sentence() -> None:
    assert "did not run (TypeError: TwoHeads.forward() takes 2" in sentence(
        m.TwoHeads, (SEQUENCES, SEQUENCES)
    )
    assert "modules.py" in sentence(m.TwoHeads, SEQUENCES[..., 1:])
    assert "must return a torch.nn.Module" in sentence(lambda: 7, SEQUENCES)
    assert "expected a torch.nn.Module or a function" in sentence(7, SEQUENCES)
    assert "at least one tensor" in sentence(m.TwoHeads, ())
    assert "floating-point type" in sentence(m.TwoHeads, SEQUENCES, dtype="int8")
    assert "keep: allowed are fused, eager" in sentence(m.TwoHeads, SEQUENCES, keep="all")
    assert "batch_dim is 5" in sentence(m.TwoHeads, SEQUENCES, batch_dim=5)
    assert "nothing to train" in sentence(torch.nn.ReLU, SEQUENCES)
