"""MLPerf configurations: exported variables as NeMo's recipes read them."""

from __future__ import annotations

from pathlib import Path

import pytest

import atoll
from atoll.base.errors import AtollError
from atoll.tools.arguments import Launch
from atoll.tools.read import read_launch

COMMON = """
export FP8=True
export FP8_PARAM_GATHER=True
export OVERLAP_GRAD_REDUCE=True
export NCCL_MIN_CTAS=16
export NCCL_NVLS_ENABLE=0
export HYDRA_FULL_ERROR=1
"""
LARGE = """
source $(dirname ${BASH_SOURCE[0]})/config_common.sh
export MODEL_SIZE="405b"
export MINIBS=144
export TENSOR_MODEL_PARALLEL=4
export PIPELINE_MODEL_PARALLEL=8
export INTERLEAVED_PIPELINE=8
export CONTEXT_PARALLEL=2
export MICRO_BATCH_SIZE=1
export TP_COMM_OVERLAP=True
export ASYM_PP_EMBED=True
export ASYM_PP_LOSS=True
export DGXNNODES=64
export DGXNGPU=8
export MAX_STEPS=300
export WALLTIME=$((5 + ${NEXP:-1} * 420))
"""


def read(tmp_path: Path, text: str, common: str = COMMON) -> Launch:
    (tmp_path / "config_common.sh").write_text(common)
    path = tmp_path / "config_own.sh"
    path.write_text(text)
    return read_launch(path)


def test_variables_say_the_layout(tmp_path: Path) -> None:
    launch = read(tmp_path, LARGE)
    fields = launch.fields
    assert (launch.software, launch.model.layers, launch.steps) == ("nemo", 126, 300)
    assert [fields[n] for n in ("tp", "pp", "cp", "vpp", "sp", "zero")] == [4, 8, 2, 8, True, 1]
    assert fields["devices"] == 512
    assert fields["batch"] == 144 * 512 // (4 * 8 * 2), "MINIBS is of one data-parallel rank"
    assert (fields["precision"], fields["optimizer"], fields["sequence"]) == (
        "fp8", "mixed16", 8192,
    )  # fmt: skip
    assert {"tp_comm", "grad_reduce", "param_gather", "p2p"} <= set(fields["overlap"].split())
    assert launch.arguments.not_understood == {}
    assert launch.arguments.without_effect["NCCL_MIN_CTAS"] == "16"


def test_what_a_file_says_last_holds(tmp_path: Path) -> None:
    more = "export FP4=True\nexport FP8=False\nexport FP8_PARAM_GATHER=False\n"
    graphs = "export MCORE_CUDA_GRAPH=1\nexport FULL_CUDA_GRAPH=1\nexport TP_COMM_OVERLAP=False\n"
    fields = read(tmp_path, LARGE + more + graphs).fields
    assert (fields["precision"], fields["cuda_graphs"]) == ("nvfp4", "full_iteration")
    assert "tp_comm" not in fields["overlap"].split()


@pytest.mark.parametrize(
    ("said", "flag"),
    [
        ("export CE_FUSION_IMPL=te", "te_loss"),
        ("export FP8_ACTIVATION=True", "fp8_act"),
        ("export FP8_PARAMS=False FP8=True", "bf16_params"),
        ("export DEFER_EMBEDDING_WGRAD_COMPUTE=True WGRAD_DEFERRAL_LIMIT=50", "head_wgrad=50"),
    ],
)
def test_kernels_and_copies_become_flags(said: str, flag: str, tmp_path: Path) -> None:
    launch = read(tmp_path, f"{LARGE}{said}\n")
    assert launch.fields["flags"] == flag and not launch.arguments.not_understood


@pytest.mark.parametrize(
    "name", ["FP8_DPA", "USE_TE_OPS", "VBOOST_VALUE", "NCCL_IB_DISABLE", "SHARP"]
)
def test_switches_that_are_not_modelled_are_listed_where_they_are_on(
    name: str, tmp_path: Path
) -> None:
    on, off = (read(tmp_path, f"{LARGE}export {name}={value}\n").arguments for value in (1, 0))
    assert list(on.not_modelled) == [name]
    assert not off.not_modelled and name in off.without_effect


LORA = """
source $(dirname ${BASH_SOURCE[0]})/config_common.sh
export LORA_A2A=1 MINIBS=1 TP=1 PP=1 SP=0 CP=1 MBS=1 DGXNNODES=1 DGXNGPU=8
"""


@pytest.mark.parametrize(
    ("device", "precision", "more"),
    [
        ("b200", "fp8", "FP8=True FP8_PARAM_GATHER=0 FP8_ACT=1"),
        ("b200", "nvfp4", "FP4=True FP8=False FP8_PARAM_GATHER=0 PRE_QUANTIZED_MODEL=True"),
    ],
)
def test_frozen_weights_of_adapters_are_kept_in_few_bits_whatever_is_gathered(
    device: str, precision: str, more: str, tmp_path: Path
) -> None:
    """Round 5.1's files say FP8_PARAM_GATHER=0, and ran: bf16 copies of 70B would not fit."""
    launch = read(tmp_path, f"{LORA}export {more}\n", "")
    assert (launch.model.name, launch.fields["precision"]) == ("llama2-70b", precision)
    assert "bf16_params" not in launch.fields["flags"]
    found = atoll.estimate(from_=tmp_path / "config_own.sh", device=device)
    assert found.fits


def test_offloaded_activations_of_layers_are_priced(tmp_path: Path) -> None:
    launch = read(tmp_path, f"{LORA}export FP8=True CPU_OFFLOADING=1\n", "")
    assert launch.fields["recompute"] == "host@20" and not launch.arguments.not_understood


def test_a_variable_with_two_names_is_counted_twice(tmp_path: Path) -> None:
    said = read(tmp_path, f"{LARGE}export TP=4\n").arguments
    assert {"TP", "TENSOR_MODEL_PARALLEL"} <= {*said.used, *said.without_effect}


def test_null_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    text = LARGE.replace("INTERLEAVED_PIPELINE=8", "INTERLEAVED_PIPELINE=null")
    launch = read(tmp_path, text)
    assert launch.fields["vpp"] == 1 and "INTERLEAVED_PIPELINE" in launch.arguments.without_effect


def test_a_missing_common_file_is_named_instead_of_a_model_asked_for(tmp_path: Path) -> None:
    """Without it, a LoRA file was read as bf16 with --model: +72 to +408 % of its step."""
    path = tmp_path / "config_alone.sh"
    for text in (LARGE, LARGE.replace("405b", "")):
        path.write_text(text)
        with pytest.raises(AtollError, match=r"sources \./config_common\.sh, not found") as raised:
            read_launch(path)
        assert "--model" not in str(raised.value)


def test_a_size_that_is_not_known_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(AtollError, match="say it with --model"):
        read(tmp_path, LARGE.replace("405b", "3b"))


def test_a_measured_run_is_predicted_from_its_variables_alone(tmp_path: Path) -> None:
    """64 nodes of H200, MLPerf Training v5.0: 50.0 s a step."""
    fields = dict(read(tmp_path, LARGE).fields)
    found = atoll.estimate("llama3-405b", "h200", fields.pop("devices"), stack="nemo", **fields)
    assert found.fits and found.step.time_s == pytest.approx(50.0, rel=0.08)
