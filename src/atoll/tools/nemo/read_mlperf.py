"""MLPerf Training: NeMo submissions, whose exported variables describe the layout.

Names and defaults as in the recipes of mlcommons/training_results_v5.0 and v5.1 (llama31_
405b, llama31_8b, llama2_70b_lora): gradients are summed in bf16 and optimizer states divided,
sequences of 8,192 tokens; pretraining overlaps gradients and weights unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from atoll.base.errors import AtollError
from atoll.step.layout import HOST
from atoll.tools.arguments import (
    OFF,
    Launch,
    LaunchArguments,
    UserValues,
    load_names,
    switched_on,
)
from atoll.tools.files.shell import Script
from atoll.tools.files.shell_tokens import UNKNOWN
from atoll.tools.megatron_lm.read import layout_fields
from atoll.workload import load_config
from atoll.workload.families.model_config import ModelConfig

NAMES = load_names("nemo", "mlperf_variables.yaml")
MODELS = {"405b": "llama3-405b", "8b": "llama3-8b", "70b": "llama2-70b"}
ADAPTED = "llama2-70b"
SEQUENCE = 8192
RANK, TARGETS = 16, "attention"  # of the benchmark's adapters: linear_qkv and linear_proj
HOSTED_LAYERS = 20  # where CPU_OFFLOADING says no number


def is_mlperf(script: Script) -> bool:
    """Return whether a script only exports a batch and a layout as variables."""
    kinds = ({"MINIBS", "GBS"}, {"TENSOR_MODEL_PARALLEL", "TP", "CP", "DGXNNODES"})
    return all(names & script.exported.keys() for names in kinds)


def read_mlperf(file: str, script: Script, user: UserValues) -> Launch:
    """Read a configuration; the model follows from its size, or from the LoRA benchmark."""
    if script.missing:  # the precision and much of the layout stand in common files
        raise AtollError("the configuration is not complete")
    exported = {NAMES.renamed.get(name, name): name for name in script.exported}
    values: dict[str, Any] = {new: script.exported[old] for new, old in exported.items()}
    chosen = {n: v for n, v in values.items() if v.lower() not in ("null", "none")}
    unset = dict.fromkeys(values.keys() - chosen.keys(), "")
    again = {n: v for n, v in script.exported.items() if n not in exported.values()}
    args = LaunchArguments(file, chosen, UNKNOWN, file_names=exported, ignored=unset | again)
    adapters = any(name.startswith(("LORA_", "NEMO_LORA_")) for name in values)
    described = user.model or _model(args, adapters)
    fields = layout_fields(args, described.layers)
    hosted_layers = args.count("CPU_OFFLOADING_NUM_LAYERS") or HOSTED_LAYERS
    if args.has("CPU_OFFLOADING"):  # of activations; weights stay on the device
        fields["recompute"] = f"{HOST}@{hosted_layers}"
    tp = fields["tp"]
    if "sequence_parallel" not in args.values:
        fields["sp"] = tp > 1 and not adapters
    if "use_distributed_optimizer" not in args.values:
        fields["zero"] = 1
    devices = (args.count("DGXNNODES") or 1) * (args.count("DGXNGPU") or 8)
    minibatch = args.count("MINIBS")
    batch = args.count("global_batch_size")
    ranks = tp * fields["pp"] * fields["cp"]
    fields |= {
        "devices": devices,
        "batch": batch or (minibatch or fields["microbatch"]) * max(1, devices // ranks),
        "sequence": args.count("MAX_SEQLEN") or SEQUENCE,
        "optimizer": "mixed16",
        "precision": (precision := _precision(args)),
        **_software(args, not adapters, precision),
    }
    if adapters:
        fields |= {"method": "lora", "lora_rank": RANK, "lora_targets": TARGETS}
        args.has("PRE_QUANTIZED_MODEL")  # frozen weights in 4 bits only, as NeMo's are priced
    healed = args.count("HEALING_ITER")
    notes = (f"after {healed} steps it goes on in 8 bits; a step before is priced",) * bool(healed)
    steps = args.count("MAX_STEPS")
    account = args.account(NAMES, more=_qualifying(args.values))
    return Launch(file, "nemo", described, fields, steps, account, notes)


def _model(args: LaunchArguments, adapters: bool) -> ModelConfig:
    size = args.text("MODEL_SIZE")
    name = MODELS.get((size or "").lower(), ADAPTED if adapters and size is None else "")
    if not name:
        raise AtollError(f"{args.file}: leaves the model to its recipe; say it with --model")
    layers = args.count("OVERWRITTEN_NUM_LAYERS")
    config = load_config(name)
    return replace(config, layers=layers) if layers else config


def _precision(args: LaunchArguments) -> str:
    fp4, recipe, param_gather = args.has("FP4"), args.text("FP8_RECIPE"), "fp8_param_gather"
    narrow = str(args.values.get(param_gather, "0")).lower() not in OFF
    fp8 = args.has("FP8") if "FP8" in args.values else narrow and not fp4
    if param_gather in args.values and (fp8 or not narrow) and not (fp4 and narrow):
        args.has(param_gather)
    return "nvfp4" if fp4 else "bf16" if not fp8 else "mxfp8" if recipe == "mxfp8" else "fp8"


def _software(args: LaunchArguments, pretrains: bool, precision: str) -> dict[str, Any]:
    """Return overlaps, flags, CUDA graphs and the attention kernel."""
    # Weights of 8-bit products stay in 16 bits if the file says so. With adapters the recipe builds
    # the frozen weights in 8 bits, whatever the file gathers.
    gathers_16_bits = str(args.values.get("fp8_param_gather", "1")).lower() in OFF
    reduced, gathered = (
        args.has(name) if name in args.values else pretrains
        for name in ("overlap_grad_reduce", "overlap_param_gather")
    )
    overlaps = {
        "grad_reduce": reduced,
        "no_grad_reduce": not reduced,
        "param_gather": gathered,
        "param_gather_with_optim": args.has("OVERLAP_PARAM_GATHER_WITH_OPTIM_STEP"),
        "tp_comm": args.has("tp_comm_overlap"),
        "p2p": "overlap_p2p_comm" not in args.values or args.has("overlap_p2p_comm"),
    }
    full, scope = args.has("FULL_CUDA_GRAPH"), args.text("CUDA_GRAPH_SCOPE")
    graphs = args.has("MCORE_CUDA_GRAPH", "LAYER_CUDA_GRAPH")
    kernels = [args.has(n) for n in ("NVTE_FUSED_ATTN", "NVTE_FLASH_ATTN") if n in args.values]
    unfused = len(kernels) == 2 and not any(kernels)  # with either of the two, attention is fused
    deferred = args.has("DEFER_EMBEDDING_WGRAD_COMPUTE")
    limit = args.count("WGRAD_DEFERRAL_LIMIT") or 0
    flags = {
        "bf16_params": pretrains and precision in ("fp8", "mxfp8") and gathers_16_bits,
        "fp8_act": args.has("FP8_ACT", "FP8_ACTIVATION"),
        "te_loss": args.text("CE_FUSION_IMPL") == "te",
        f"head_wgrad={limit}": deferred and limit,
        "cp_p2p": (cp_comm_type := args.text("CP_COMM_TYPE")) == "p2p",
        "cp_a2a": cp_comm_type == "a2a",
    }
    # Embedding and loss count as layers of the pipeline: stages as even as they are priced.
    args.has("ASYM_PP_EMBED", "ASYM_PP_LOSS")
    return {
        "attention": "unfused" if unfused else "flash",
        "overlap": switched_on(overlaps),
        "flags": switched_on(flags),
        "cuda_graphs": scope or ("full_iteration" if full else "layer") if graphs else None,
    }


def _qualifying(values: Mapping[str, Any]) -> list[str]:
    """Return variables about switches that are off, or that leave products as they are priced."""
    off = [switch for switch in NAMES.about_switches if str(values.get(switch, "")).lower() in OFF]
    if values.get("NVTE_DPA_FP8_RECIPE") == "F16":  # attention stays in 16 bits
        off.append("FP8_DPA")
    more = [name for switch in off for name in (switch, *NAMES.about_switches[switch])]
    return [*more, *(name for name in NAMES.plain if values.get(name) == "1")]
