"""All messages of a step, against what follows from shapes and degrees alone."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

import atoll
from atoll.base.errors import AtollError
from atoll.export.messages import StepMessage, step_messages
from atoll.training.estimate import Estimate

HIDDEN, LAYERS, FFN, VOCAB, KV, SEQUENCE = 4096, 32, 14336, 128256, 1024, 8192  # of llama3-8b
BLOCK = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * KV + 3 * HIDDEN * FFN
PARAMETERS = LAYERS * BLOCK + 2 * VOCAB * HIDDEN
HALF = 2
DEVICES, BATCH = 32, 64
LAYOUTS: dict[str, dict[str, object]] = {
    "replicas": {"zero": 0},
    "zero 1": {"zero": 1},
    "zero 2": {"zero": 2},
    "zero 3": {"zero": 3},
    "hybrid": {"zero": 3, "hsdp": 4},
    "tensor": {"tp": 4, "sp": False},
    "sequence": {"tp": 8},
    "recomputed": {"tp": 4, "recompute": "full"},
    "pipeline": {"tp": 2, "pp": 4},
    "interleaved": {"tp": 2, "pp": 4, "vpp": 2},
    "context": {"tp": 2, "cp": 4},
    "all": {"tp": 2, "pp": 2, "cp": 2, "zero": 1},
}


def priced(model: str = "llama3-8b", **layout: object) -> Estimate:
    given = {"batch": BATCH, "stack": "megatron", "optimizer": "mixed16", **layout}
    found = atoll.estimate(model, "h100", DEVICES, **given)  # type: ignore[arg-type]
    assert isinstance(found, Estimate)
    return found


def total(messages: tuple[StepMessage, ...], **where: object) -> float:
    """Bytes times how often, of the messages that are so."""
    return sum(
        m.bytes * m.count
        for m in messages
        if all(getattr(m, name) == value for name, value in where.items())
    )


@pytest.mark.parametrize("name", LAYOUTS)
def test_bytes_follow_from_first_principles(name: str) -> None:
    found = priced(**LAYOUTS[name])
    layout, messages = found.layout, step_messages(found)
    m = layout.microbatches(BATCH)
    tokens = layout.microbatch * SEQUENCE // layout.cp
    activation = tokens * HIDDEN * HALF
    again = layout.recompute == "full"

    # Tensor: two pairs of a gather and a scatter a block and pass (or two sums), and backwards the
    # gathered inputs of both pairs once more (Korthikanti et al., 2023); embedding and head are one
    # pair together. Statistics of the loss are small.
    kinds = (
        {"all_gather": (2, 4, 1, 2), "reduce_scatter": (2, 2, 1, 1)}
        if layout.sp
        else {"all_reduce": (2, 2, 1, 1)}
    )
    for kind, (forward, backward, first, last) in kinds.items():
        for phase, times in (
            ("forward", LAYERS * forward + first),
            ("backward", LAYERS * backward + last),
            ("recompute", LAYERS * forward if again else 0),
        ):
            wanted = m * activation * times if layout.tp > 1 else 0
            got = total(messages, group="tensor", kind=kind, phase=phase)
            assert got == pytest.approx(wanted, rel=0.002), (kind, phase)

    # Data: gradients are summed once, divided weights gathered (Rajbhandari et al., SC 2020).
    ranks = layout.dp * layout.cp
    own = PARAMETERS / layout.tp
    gathers, scatters, sums = (
        total(messages, group="data", kind=kind)
        for kind in ("all_gather", "reduce_scatter", "all_reduce")
    )
    wanted_gathers, wanted_scatters, wanted_sums = {
        0: (0, 0, own),
        1: (own, own, 0),
        2: (own, m * own, 0),
        3: (2 * m * own, m * own, m * own / (ranks / layout.hsdp) * (layout.hsdp > 1)),
    }[layout.zero]
    assert gathers == pytest.approx(HALF * wanted_gathers, rel=0.003)
    assert scatters == pytest.approx(HALF * wanted_scatters, rel=0.003)
    assert sums == pytest.approx(HALF * wanted_sums, rel=0.003)

    # Pipeline: every boundary of two chunks once each way, each tensor rank its part.
    sends = (layout.pp * layout.vpp - 1) * m * activation / layout.tp
    for phase in ("forward", "backward"):
        assert total(messages, group="pipeline", phase=phase) == pytest.approx(sends)

    # Context: keys and values go round but one turn, backwards with their gradients.
    turns = (layout.cp - 1) * LAYERS * m
    ring = turns * 2 * tokens * (KV // layout.tp) * HALF
    assert total(messages, group="context", phase="forward") == pytest.approx(ring)
    assert total(messages, group="context", phase="backward") == pytest.approx(2 * ring)
    assert total(messages, group="expert") == 0


def test_tokens_go_to_their_experts_and_back() -> None:
    found = priced("mixtral-8x7b", ep=8, sequence=4096)
    layout, messages = found.layout, step_messages(found)
    sent = layout.microbatch * 4096 * 2 * 4096 * HALF  # two experts a token
    for phase in ("forward", "backward"):
        got = total(messages, group="expert", kind="all_to_all", phase=phase)
        assert got == pytest.approx(2 * LAYERS * layout.microbatches(BATCH) * sent)
    shared = [m for m in messages if m.group == "data" and m.kind == "reduce_scatter"]
    assert {m.ranks for m in shared} == {32, 4}, "experts are shared by fewer"


def test_a_ring_sends_all_but_its_own_share() -> None:
    one = StepMessage(0, "step", "data", "all_reduce", 4, 1, 100.0, 2)
    assert one.sent_bytes == pytest.approx(2 * 2 * 100 * 3 / 4)


def test_messages_are_written_as_json_and_csv(tmp_path: Path) -> None:
    messages = step_messages(priced(tp=8))
    for name in ("m.json", "m.csv"):
        priced(tp=8, messages=tmp_path / name)
    read = json.loads((tmp_path / "m.json").read_text())["messages"]
    assert [StepMessage(**one) for one in read] == list(messages)
    with (tmp_path / "m.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["bytes"]) for row in rows] == [one.bytes for one in messages]
    with pytest.raises(AtollError, match=r"as \.json or \.csv"):
        priced(messages=tmp_path / "m.txt")


@pytest.mark.parametrize(
    ("device", "precision", "forward", "backward"),
    [
        # An element with its share of a block's scale. Gathered twice forward; backwards two inputs
        # for weight gradients, two gradients for both products: each cast by rows and by columns
        # where a scale belongs to a block, turned round after one is there where to the tensor.
        ("h100", "fp8", 2 * 1, 4 * 1),
        ("b200", "mxfp8", 2 * 33 / 32, 2 * 33 / 32 + 2 * 2),
        ("b200", "nvfp4", 2 * 9 / 16, (2 + 4) * 9 / 16),
    ],
)
def test_inputs_of_narrow_products_are_gathered_as_they_were_cast(
    device: str, precision: str, forward: float, backward: float
) -> None:
    given = {"tp": 4, "batch": BATCH, "stack": "nemo", "precision": precision}
    found = atoll.estimate("llama3-8b", device, DEVICES, **given)  # type: ignore[arg-type]
    assert isinstance(found, Estimate)
    m, tokens = found.layout.microbatches(BATCH), found.layout.microbatch * SEQUENCE
    ends = {"forward": 1, "backward": 2}  # embedding and head, in 16 bits
    for phase, each in (("forward", forward), ("backward", backward)):
        got = total(step_messages(found), group="tensor", kind="all_gather", phase=phase)
        wanted = m * tokens * HIDDEN * (LAYERS * each + ends[phase] * HALF)
        assert got == pytest.approx(wanted, rel=0.002)
