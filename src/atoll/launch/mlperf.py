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
from atoll.launch.account import Accounted, Arguments, Launch
from atoll.launch.files.shell import Script
from atoll.launch.files.words import UNKNOWN
from atoll.launch.megatron import layout_fields
from atoll.workload import load_config
from atoll.workload.families.model_config import ModelConfig

NAMES = {
    "TENSOR_MODEL_PARALLEL": "tensor_model_parallel_size",
    "TP": "tensor_model_parallel_size",
    "PIPELINE_MODEL_PARALLEL": "pipeline_model_parallel_size",
    "PIPELINE_PARALLEL": "pipeline_model_parallel_size",
    "PP": "pipeline_model_parallel_size",
    "INTERLEAVED_PIPELINE": "virtual_pipeline_model_parallel_size",
    "CONTEXT_PARALLEL": "context_parallel_size",
    "CP": "context_parallel_size",
    "EXPERT_PARALLEL": "expert_model_parallel_size",
    "SEQ_PARALLEL": "sequence_parallel",
    "SP": "sequence_parallel",
    "MICRO_BATCH_SIZE": "micro_batch_size",
    "MBS": "micro_batch_size",
    "GBS": "global_batch_size",
    "GLOBAL_BATCH_SIZE": "global_batch_size",
    "USE_DIST_OPTIMIZER": "use_distributed_optimizer",
    "USE_DISTRIBUTED_OPTIMIZER": "use_distributed_optimizer",
    "ACT_CKPT_GRANULARITY": "recompute_granularity",
    "ACT_CKPT_METHOD": "recompute_method",
    "ACT_CKPT_NUM_LAYERS": "recompute_num_layers",
    "RECOMPUTE_GRANULARITY": "recompute_granularity",
    "RECOMPUTE_METHOD": "recompute_method",
    "RECOMPUTE_NUM_LAYERS": "recompute_num_layers",
    "RECOMPUTE_MODULES": "recompute_modules",
    "ACG": "recompute_granularity",
    "ACM": "recompute_method",
    "ACL": "recompute_num_layers",
    "OVERLAP_GRAD_REDUCE": "overlap_grad_reduce",
    "DDP_OVERLAP_GRAD_REDUCE": "overlap_grad_reduce",
    "OVERLAP_PARAM_GATHER": "overlap_param_gather",
    "DDP_OVERLAP_PARAM_GATHER": "overlap_param_gather",
    "TP_COMM_OVERLAP": "tp_comm_overlap",
    "OVERLAP_P2P_COMM": "overlap_p2p_comm",
    "FP8_PARAMS": "fp8_param_gather",
    "FP8_PARAM_GATHER": "fp8_param_gather",
    "NNODES": "DGXNNODES",
    "GPUS_PER_NODE": "DGXNGPU",
    "SIZE": "MODEL_SIZE",
}
"""Variables in megatron-core's words, and those that have two names."""
MODELS = {"405b": "llama3-405b", "8b": "llama3-8b", "70b": "llama2-70b"}
ADAPTED = "llama2-70b"
SEQUENCE = 8192
RANK, TARGETS = 16, "attention"  # of the benchmark's adapters: linear_qkv and linear_proj
OFF = ("0", "false", "null", "none", "")
WITHOUT_EFFECT = (
    # jobs, logs, data, evaluation, checkpoints, schedules of rates, warm-up before the clock starts
    "WALLTIME*", "DGXSYSTEM", "SEGMENT", "NEXP", "CONT", "*LOGDIR", "*LOG_*", "*_LOG", "SLURM_*",
    "SBATCH_*", "MLPERF_*", "*_DEBUG", "*_DEBUG_LEVEL", "HYDRA_*", "HF_*", "TRANSFORMERS_*",
    "TOKENIZERS_*", "TQDM_*", "POSSIBLE_USER_WARNINGS", "*COREDUMP*", "*CORE_DUMP*", "DATADIR",
    "DATA_*", "*_DATA", "*_DATASET", "MODEL", "MOCK_*", "LOAD_*", "SAVE_*", "*_CKPT", "USE_CKPT",
    "VAL_*", "*EVAL*", "TARGET*", "CHECK_*", "VERIFY_*", "LR", "*_LR", "OPT_LR_*", "WARMUP*",
    "MAX_STEPS_FOR_LR_SCHED", "START_STEPS", "STEP_TIME_ATOL", "SEED", "TAG", "NPAR", "REMOTE",
    "DEPENDENCIES", "FROM_HF", "TRAIN_ONLY", "INIT_GLOBAL_STEP", "OVERRIDE_ZERO_*", "EXTRA_ARGS",
    "MODEL_TFLOP_PER_SAMPLE", "DLSIM_*", "ENROOT_*", "WORK_DIR", "NVIDIA_PYTORCH_VERSION",
    "GPU_ARCH", "NUM_WORKERS", "PROFILE*", "PT_TENSOR_VALIDATION", "NCCL_TEST", "NVTE_LOG_*",
    "LORA_A2A",  # how tensor ranks exchange what adapters make: as wide as their rank
    "GC_*", "NEMO_*GC*", "BINDCMD", "CONTINUAL_*", "NCCL_CFG_PATH",
    # scales of 8 and 4 bits, which are taken in the same kernels
    "FP8_AMAX_*", "FP8_REDUCE_AMAX", "FP8_HYBRID", "FP8_E4M3", "FP8_INTERVAL", "FP8_MARGIN",
    "NVTE_DPA_FP8DS_*", "NVTE_DPA_FP8_FORMAT", "HEALING_PRECISION", "FP4_RECIPE",
    # addresses and processes
    "*_SOCKET_IFNAME", "UCX_*", "OMP_NUM_THREADS", "NCCL_NET", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX",
    "NCCL_IB_TC", "NCCL_IB_SL", "NCCL_IB_TIMEOUT", "NCCL_IGNORE_CPU_AFFINITY", "OMPI_MCA_*",
    "PMIX_MCA_*", "*hcoll_enable", "HCOLL_*", "DGXSOCKETCORES", "DGXNSOCKET", "DGXHT",
    "MELLANOX_VISIBLE_DEVICES", "ENABLE_IB_BINDING", "SUBMISSION_*",
)  # fmt: skip
TUNING = (
    "NCCL_MIN_*", "NCCL_MAX_*", "NCCL_NCHANNELS*", "NCCL_P2P_NET_CHUNKSIZE", "NCCL_WORK_FIFO_DEPTH",
    "NCCL_*_REGISTER", "TORCH_NCCL_*", "CUDA_DEVICE_MAX_CONNECTIONS", "PYTORCH_CUDA_ALLOC_CONF",
    "CUBLAS_FORCE_XMMA_KERNEL_INIT", "CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT", "*_SM_MARGIN",
    "NVTE_NORM_*_USE_CUDNN", "NVTE_TP_OVERLAP_TRAINING_ONLY", "NVTE_RS_STRIDED_ATOMIC", "TE_UB_*",
    "MC_TP_OVERLAP_*", "UB_SKIPMC", "*GRAD_SM", "*USE_HIPBLASLT", "TORCH_BLAS_PREFER_HIPBLASLT",
    "NVTE_CK_*", "NVTE_USE_*", "NVTE_FUSED_ATTN_*", "TP_PP_DP_MAPPING", "BUCKET_SIZE",
    "ALIGN_PARAM_GATHER", "USE_TE_SWIGLU", "NVTE_*AMAX_REDUC*", "NCCL_SOCKET_NTHREADS",
    "NCCL_IB_QPS_*", "NCCL_IB_SPLIT_*", "*RX_QUEUE_LEN", "CUBLAS_WORKSPACE_CONFIG", "BUCKET_CAP_MB",
    "NCCL_CUMEM_*", "NCCL_P2P_LEVEL", "NCCL_CROSS_NIC", "NCCL_NET_GDR_*",
    "NCCL_BUFFSIZE", "NCCL_IB_[!D]*", "NCCL_NVLS_ENABLE", "NCCL_SHARP_DISABLE",
    "NCCL_TOPO_*", "NCCL_DMABUF_*", "ON_DEVICE_CLIP_GRAD",
    "NEMO_LORA_USE_THUNDER_DROPOUT", "CUDA_VISIBLE_DEVICES", "FUSED_QKV_ROPE",
    "FUSED_SINGLE_QKV_ROPE",
)  # fmt: skip
"""What makes libraries reach the rates that a tuned run has, which the devices' own are.
Norms of gradients that stay on the device spare the host one wait in a step; dropouts of adapters
and rotations of queries and keys are priced as one kernel. Sums in NVLink's switches are NCCL's own
choice where nothing is said.
"""
PLAIN = ("NVTE_NVFP4_DISABLE_RHT", "NVTE_NVFP4_DISABLE_2D_QUANTIZATION",
         "NVTE_NVFP4_DISABLE_STOCHASTIC_ROUNDING")  # fmt: skip
"""On, products of 4 bits are quantized as they are priced."""
SWITCHES = (
    "FP8_DPA", "USE_TE_OPS", "VBOOST_VALUE", "SHARP", "USE_SHARP", "FP4_PARAM",
    "CG_WEIGHT_CACHING",
    "FUSED_SOFTMAX", "RMSNORM_CAST", "ENABLE_TRANSPOSE_CACHE", "NCCL_COLLNET_ENABLE",
    "NCCL_IB_DISABLE", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "FP4",
)  # fmt: skip
"""What matters in a way that is not modelled where it is on: off, the run is as it is priced
(sums in the network's switches, products of attention in 8 bits, and so on).
"""
WITH = {
    "FP8_DPA": ("NVTE_DPA_FP8_RECIPE", "NVTE_FP8_DPA_BWD", "NVTE_DPA_FP8CS_O_in_F16"),
    "SHARP": ("NCCL_SHARP_GROUP_SIZE_THRESH",),
    "FP4": (*PLAIN, "FP4_PARAM"),
}
"""Variables that say more of a switch: nothing where it is off."""


def is_mlperf(script: Script) -> bool:
    """A configuration says its batch and its layout by variables, and runs nothing."""
    return bool({"MINIBS", "GBS"} & script.exported.keys()) and bool(
        {"TENSOR_MODEL_PARALLEL", "TP", "CP", "DGXNNODES"} & script.exported.keys()
    )


def read_mlperf(file: str, script: Script, model: ModelConfig | None) -> Launch:
    """The model is the one whose size the file says, or the benchmark's of adapters."""
    own = {NAMES.get(name, name): name for name in script.exported}
    values: dict[str, Any] = {new: script.exported[old] for new, old in own.items()}
    given = Arguments(file, {n: v for n, v in values.items() if v.lower() not in ("null", "none")})
    given.unknown = UNKNOWN
    adapters = any(name.startswith(("LORA_", "NEMO_LORA_")) for name in values)
    if given.has("CPU_OFFLOADING"):
        raise AtollError(f"{file}: offloads to the host (CPU_OFFLOADING), which is not modelled")
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
    given.ignore((*WITHOUT_EFFECT, *TUNING, *_switched_off(given.given)))
    found = given.accounted()
    left = {name: "" for name in values if name not in given.given}  # null: as if it were not there
    again = {n: v for n, v in script.exported.items() if own[NAMES.get(n, n)] != n}
    return Launch(file, "nemo", described, fields, steps, Accounted(
        *({own.get(n, n): v for n, v in part.items()}
          for part in (found.used, {**found.without_effect, **left, **again}, found.not_understood))
    ), (*script.notes, *notes))  # fmt: skip


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
    on = {name for name in SWITCHES if str(values.get(name, "")).lower() not in OFF}
    if "USE_SHARP" in on:
        on.add("SHARP")
    if values.get("NVTE_DPA_FP8_RECIPE") == "F16":  # attention stays in 16 bits
        on.discard("FP8_DPA")
    plain = [name for name in PLAIN if values.get(name) == "1"]
    more = [name for switch, names in WITH.items() if switch not in on for name in names]
    return [*(name for name in SWITCHES if name not in on), *plain, *more]
