"""`atoll validate --wafer`: TPUs on their tori, wafers with weights from outside."""

from __future__ import annotations

from pathlib import Path

import pytest

import atoll
from atoll.answers.answer import dumped
from atoll.base.errors import AtollError
from atoll.wafer.measured_runs import predicted, read_mesh_runs

HEADER = (
    "id,device,devices,topology,model,layers,hidden,heads,seq,global_batch,precision,"
    "measured_iter_time_s,quality,ffn,kv_heads,head_dim,vocab,n_experts,top_k,method"
)
TORUS = (
    "tpu-a,TPU 7x (Ironwood),64,4x4x4,llama3.1-8b,4,4096,32,8192,{batch},bf16,1.0,A,14336,8,128,"
    "32000,0,0,train"
)
STREAMED = (
    "cs-a,Cerebras CS-2,{wafers},1 wafer,GPT-3 256M,2,1088,17,256,{batch},mixed,0.1,A-,4352,17,64,"
    "1024,0,0,train"
)
OTHER = "gpu-a,H100,8,,llama,4,4096,32,8192,64,bf16,1.0,A,14336,8,128,32000,0,0,train"


def written(folder: Path, *rows: str) -> Path:
    path = folder / "runs.csv"
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


def test_a_torus_without_a_layout_is_fully_sharded_and_long_sequences_are_divided(tmp_path):
    path = written(tmp_path, TORUS.format(batch=128), TORUS.format(batch=16))
    wide, long = (predicted(row) for row in read_mesh_runs(path))
    assert wide.predicted is not None and long.predicted is not None
    assert "dp64" in wide.predicted.layout and "zero3" in wide.predicted.layout
    assert "dp16" in long.predicted.layout and "cp4" in long.predicted.layout
    assert wide.estimate is not None
    assert wide.estimate.run.network.levels[0].torus == (4, 4, 4)


def test_several_wafers_divide_the_batch(tmp_path):
    rows = STREAMED.format(wafers=1, batch=8), STREAMED.format(wafers=2, batch=16)
    one, two = (predicted(row) for row in read_mesh_runs(written(tmp_path, *rows)))
    assert one.predicted is not None and two.predicted is not None
    assert one.predicted.time_s == two.predicted.time_s
    assert one.predicted.fits


def test_the_answer_has_the_keys_of_other_runs(tmp_path):
    path = written(tmp_path, TORUS.format(batch=64), STREAMED.format(wafers=1, batch=4), OTHER)
    told = atoll.validate(wafer=path)
    assert (told.rows, told.predicted) == (2, 2)
    assert set(dumped(told)["by_device"]) == {"TPU 7x (Ironwood)", "Cerebras CS-2"}
    assert told.by_device["Cerebras CS-2"].step_time.coverage is None


def test_what_is_no_such_file_is_a_sentence(tmp_path):
    with pytest.raises(AtollError, match="no row is of a TPU or of a wafer"):
        atoll.validate(wafer=written(tmp_path, OTHER))
    with pytest.raises(AtollError, match="not taken beside wafer"):
        atoll.validate("runs.csv", wafer=written(tmp_path, OTHER))
    odd = STREAMED.format(wafers=1, batch=4).replace("GPT-3 256M", "ResNet")
    (row,) = read_mesh_runs(written(tmp_path, odd))
    assert "of no family that was measured" in predicted(row).reason
