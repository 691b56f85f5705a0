"""A captured module maps on a wafer as the model that is built of its configuration."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import atoll
from atoll.base.errors import AtollError
from atoll.wafer.encoding.block import make_block
from atoll.wafer.search import WaferSearch
from tracing.test_small_agreement import captured
from workload.small_families import given

from .wafer_cases import small_file, small_wafer

LENGTH = 128


def both(folder, name) -> tuple[str, str]:
    """The family's small model: its configuration, and its module captured."""
    config, file = folder / name / "config.json", folder / f"{name}.json"
    config.parent.mkdir()
    config.write_text(json.dumps(given(name)))
    captured(name).save(file)
    return str(config), str(file)


@pytest.mark.parametrize(
    ("name", "slower"), [("starcoder2", 0.03), ("olmo2", 0.06), ("nemotron", 0.03)]
)
def test_captured_and_built_blocks_have_the_same_operators_and_take_as_long(tmp_path, name, slower):
    """Captured norms and rotations are more passes of simpler functions."""
    models = both(tmp_path, name)
    built, read = (make_block(model, 2, LENGTH) for model in models)
    for attribute in ("layers", "hidden", "stream_bytes", "parameters", "embedding_parameters"):
        assert getattr(read, attribute) == getattr(built, attribute)
    for own, other in zip((*built.units, built.head), (*read.units, read.head), strict=True):
        assert (own.name, own.kind, own.sizes) == (other.name, other.kind, other.sizes)
    for own, other in zip(built.chains, read.chains, strict=True):
        assert [e.totals for e in own.edges] == [e.totals for e in other.edges]
    ours, theirs = (
        WaferSearch(small_wafer(2, 4), model, 8, LENGTH, None, (1, 2)).run().best.step_s
        for model in models
    )
    assert ours <= theirs <= (1 + slower) * ours


@pytest.mark.slow
def test_a_captured_model_is_searched_on_a_wafer_and_other_blocks_are_refused(tmp_path):
    _, file = both(tmp_path, "granite")
    found = atoll.search(wafer=str(small_file(tmp_path)), model=file, batch=8,
                         microbatch=(1,), baselines=False)  # fmt: skip
    assert found.best.fits
    assert 0.0 < found.mfu < 1.0
    with pytest.raises(AtollError, match="not attention and an MLP"):
        make_block(both(tmp_path, "olmoe")[1], 1, LENGTH)
