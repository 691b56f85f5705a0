"""MLPerf Training: configurations of NeMo's submissions, whose exported variables say the layout.

Names and what is left out as in the recipes of mlcommons/training_results_v5.0 and v5.1 (llama31_
405b, llama31_8b, llama2_70b_lora): gradients are summed in bf16 and optimizer states divided,
sequences of 8,192 tokens; pretraining overlaps gradients and weights unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from atoll.errors import AtollError
from atoll.launch.account import Arguments, Launch, words_of
from atoll.launch.files.shell import Script
from atoll.launch.files.words import UNKNOWN
from atoll.launch.megatron import layout_fields
from atoll.workload import load_config
from atoll.workload.families.model_config import ModelConfig

WORDS = words_of("mlperf")
MODELS = {"405b": "llama3-405b", "8b": "llama3-8b", "70b": "llama2-70b"}
ADAPTED = "llama2-70b"
SEQUENCE = 8192
RANK, TARGETS = 16, "attention"  # of the benchmark's adapters: linear_qkv and linear_proj
OFF = ("0", "false", "null", "none", "")


def is_mlperf(script: Script) -> bool:
    """A configuration says its batch and its layout by variables, and runs nothing."""
    return bool({"MINIBS", "GBS"} & script.exported.keys()) and bool(
        {"TENSOR_MODEL_PARALLEL", "TP", "CP", "DGXNNODES"} & script.exported.keys()
    )


def read_mlperf(file: str, script: Script, model: ModelConfig | None) -> Launch:
    """The model is the one whose size the file says, or the benchmark's of adapters."""
    own = {WORDS.renamed.get(name, name): name for name in script.exported}
    values: dict[str, Any] = {new: script.exported[old] for new, old in own.items()}
    given = Arguments(file, {n: v for n, v in values.items() if v.lower() not in ("null", "none")})
    given.unknown = UNKNOWN
    adapters = any(name.startswith(("LORA_", "NEMO_LORA_")) for name in values)
    given.refuse_offload("CPU_OFFLOADING")
    given.has("CPU_OFFLOADING_NUM_LAYERS")  # of what is off
    described = model or _model(given, adapters)
    fields = layout_fields(given, described.layers)
    tp = fields["tp"]
    if "sequence_parallel" not in given.given:
        fields["sp"] = tp > 1 and not adapters
    if "use_distributed_optimizer" not in given.given:
        fields["zero"] = 1
    devices = (given.count("DGXNNODES") or 1) * (given.count("DGXNGPU") or 8)
    each = given.count("MINIBS")
    batch = given.count("global_batch_size")
    ranks = tp * fields["pp"] * fields["cp"]
    fields |= {
        "devices": devices,
        "batch": batch or (each or fields["microbatch"]) * max(1, devices // ranks),
        "sequence": given.count("MAX_SEQLEN") or SEQUENCE,
        "optimizer": "mixed16",
        **(precision := _precision(given)),
        **_software(given, not adapters, _wide(given, precision["precision"])),
    }
    if adapters:
        fields |= {"method": "lora", "lora_rank": RANK, "lora_targets": TARGETS}
        given.has("PRE_QUANTIZED_MODEL")  # frozen weights in few bits alone, as NeMo's are priced
    healed = given.count("HEALING_ITER")
    notes = (
        (f"after {healed} steps it goes on in 8 bits; a step before is priced",) if healed else ()
    )
    steps = given.count("MAX_STEPS")
    given.ignore((*WORDS.without_effect, *WORDS.tuning, *_switched_off(given.given)))
    found = given.accounted()
    left = {name: "" for name in values if name not in given.given}  # null: as if it were not there
    again = {n: v for n, v in script.exported.items() if own[WORDS.renamed.get(n, n)] != n}
    told = found.under(own, {**left, **again})
    return Launch(file, "nemo", described, fields, steps, told, (*script.notes, *notes))


def _model(given: Arguments, adapters: bool) -> ModelConfig:
    said = given.text("MODEL_SIZE")
    name = MODELS.get((said or "").lower(), ADAPTED if adapters and said is None else "")
    if not name:
        raise AtollError(f"{given.file}: leaves the model to its recipe; say it with --model")
    layers = given.count("OVERWRITTEN_NUM_LAYERS")
    found = load_config(name)
    return replace(found, layers=layers) if layers else found


def _precision(given: Arguments) -> dict[str, Any]:
    fp4, recipe, kept = given.has("FP4"), given.text("FP8_RECIPE"), "fp8_param_gather"
    narrow = str(given.given.get(kept, "0")).lower() not in OFF
    fp8 = given.has("FP8") if "FP8" in given.given else narrow and not fp4
    if kept in given.given and (fp8 or not narrow) and not (fp4 and narrow):
        given.has(kept)
    return {"precision": "nvfp4" if fp4 else "bf16" if not fp8 else
            "mxfp8" if recipe == "mxfp8" else "fp8"}  # fmt: skip


def _wide(given: Arguments, precision: str) -> bool:
    """Whether weights of 8-bit products are kept in 16 bits, which the file says."""
    said = str(given.given.get("fp8_param_gather", "1")).lower()
    return precision in ("fp8", "mxfp8") and said in OFF


def _software(given: Arguments, overlapped: bool, wide: bool) -> dict[str, Any]:
    """What overlaps, CUDA graphs, the attention kernel."""
    reduced, gathered = (
        given.has(name) if name in given.given else overlapped
        for name in ("overlap_grad_reduce", "overlap_param_gather")
    )
    overlaps = {
        "grad_reduce": reduced,
        "no_grad_reduce": not reduced,
        "param_gather": gathered,
        "param_gather_with_optim": given.has("OVERLAP_PARAM_GATHER_WITH_OPTIM_STEP"),
        "tp_comm": given.has("tp_comm_overlap"),
        "p2p": "overlap_p2p_comm" not in given.given or given.has("overlap_p2p_comm"),
    }
    whole, scope = given.has("FULL_CUDA_GRAPH"), given.text("CUDA_GRAPH_SCOPE")
    graphs = given.has("MCORE_CUDA_GRAPH", "LAYER_CUDA_GRAPH")
    kernels = [given.has(n) for n in ("NVTE_FUSED_ATTN", "NVTE_FLASH_ATTN") if n in given.given]
    unfused = len(kernels) == 2 and not any(kernels)  # either alone leaves the other one
    deferred = given.has("DEFER_EMBEDDING_WGRAD_COMPUTE")
    limit = given.count("WGRAD_DEFERRAL_LIMIT") or 0
    flags = {
        "bf16_params": wide,
        "fp8_act": given.has("FP8_ACT", "FP8_ACTIVATION"),
        "te_loss": given.text("CE_FUSION_IMPL") == "te",
        f"head_wgrad={limit}": deferred and limit,
        "cp_p2p": (way := given.text("CP_COMM_TYPE")) == "p2p",
        "cp_a2a": way == "a2a",
    }
    # Embedding and loss count as layers of the pipeline: stages as even as they are priced.
    given.has("ASYM_PP_EMBED", "ASYM_PP_LOSS")
    return {
        "attention": "unfused" if unfused else "flash",
        "overlap": " ".join(name for name, on in overlaps.items() if on),
        "flags": " ".join(name for name, on in flags.items() if on),
        **({"cuda_graphs": scope or ("full_iteration" if whole else "layer")} if graphs else {}),
    }


def _switched_off(values: Mapping[str, Any]) -> list[str]:
    """Switches that are off, and what says more of them."""
    on = {name for name in WORDS.switches if str(values.get(name, "")).lower() not in OFF}
    if "USE_SHARP" in on:
        on.add("SHARP")
    if values.get("NVTE_DPA_FP8_RECIPE") == "F16":  # attention stays in 16 bits
        on.discard("FP8_DPA")
    plain = [name for name in WORDS.plain if values.get(name) == "1"]
    about = (names for switch, names in WORDS.about_switches.items() if switch not in on)
    more = [name for names in about for name in names]
    return [*(name for name in WORDS.switches if name not in on), *plain, *more]
