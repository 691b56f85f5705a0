"""torchtitan's job: TOML (torchtitan/config/job_config.py of releases up to 0.2), or the same
sections in a script that Atoll wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from atoll.base.errors import AtollError
from atoll.step.layout import FULL_BLOCKS
from atoll.tools.arguments import (
    Launch,
    LaunchArguments,
    UserValues,
    flatten,
    load_names,
    switched_on,
)
from atoll.tools.hugging_face import FIELDS
from atoll.tools.torchtitan.flavors import FLAVORS, Flavor
from atoll.workload import config_from_hf, load_config, zoo_names
from atoll.workload.families.model_config import ModelConfig

NAMES = load_names("torchtitan")
SCHEDULES = {
    "1F1B": "1f1b", "Interleaved1F1B": "interleaved", "GPipe": "gpipe",
    "ZBVZeroBubble": "zb-v", "InterleavedZeroBubble": "zb-h1", "DualPipeV": "dualpipe",
}  # fmt: skip
"""Pipeline orders by torchtitan's names, read in any case."""
OPTIMIZERS = {"fused": "", "foreach": "foreach", "for-loop": "forloop"}
"""Flags of the optimizer's implementations."""
BACKENDS = {"sdpa": "flash", "flex_flash": "flash", "flex": "flex", "varlen": "flash2"}
"""Attention kernels by torchtitan's names; SDPA was the only one of releases before 0.3."""
DISPATCHERS = {"standard": "", "deepep": "deepep", "hybridep": "hybridep"}
"""Dispatchers of experts' tokens that send a token once per node."""
LONGEST_SEQUENCE = 131072
"""Tokens: Llama 3.1's limit, above what job files use."""


def read_torchtitan(file: str, content: Mapping[str, Any], user: UserValues) -> Launch:
    """Read a job file; the model is its flavor unless the user names one."""
    args = LaunchArguments(file, dict(flatten(content)))
    args.refuse_programs(NAMES)
    args.refuse_offload("training.enable_cpu_offload")
    names = args.text("model.name"), args.text("model.flavor")
    described = user.model or _model(file, *names)
    fields = NAMES.read(args, "layout", "sequence")
    tp, pp, ep = fields["tp"], fields["pp"], fields["ep"]
    local_batch = args.count("training.local_batch_size", "training.batch_size") or 8
    microbatch = args.count("parallelism.pipeline_parallel_microbatch_size")
    chunks = args.count("loss.num_chunks") or 1  # job files (TOML) are of releases without it
    parts = args.text("compile.components") or "model loss"
    compiled = args.has("compile.enable", "training.compile") and "model" in parts
    fields |= {
        "etp": (fields["etp"] or 1) if ep > 1 and described.experts else None,  # else no effect
        "sp": not args.off("parallelism.enable_sequence_parallel") and tp > 1,
        "microbatch": (microbatch or 1) if pp > 1 else local_batch,
        "local_batch": local_batch,
        "precision": _precision(args),
        "recompute": _recompute(args, -(-described.layers // pp)),
        "stack": "torchtitan-compiled" if compiled else "torchtitan",
        "cuda_graphs": "full_iteration" if args.off("training.disable_cuda_graphs") else None,
        "attention": _word(args, "model.attn_backend", BACKENDS, "sdpa"),
        **_data_parallel(args, tp, fields["cp"], pp),
        **_pipeline(args, pp, described.layers),
    }
    optimizer = _word(args, "optimizer.implementation", OPTIMIZERS, "fused")
    fields["flags"] = " ".join(filter(None, (f"loss_chunks={chunks}", optimizer)))
    args.text("training.mixed_precision_reduce", "parallelism.context_parallel_rotate_method")
    if args.text("training.mixed_precision_param") == "float32":
        raise AtollError(f"{file}: trains in fp32, which is not modelled")
    switches = [f"{section}.enable_async_tensor_parallel" for section in ("parallelism", "compile")]
    backend = _word(args, "parallelism.expert_parallel_comm_backend", DISPATCHERS, "standard")
    words = {"grad_reduce param_gather tp_comm": args.has(*switches)}
    fields["overlap"] = switched_on({**words, f"dispatcher={backend}": backend}) or None
    fields["optimizer"] = "bf16" if args.text("training.dtype") == "bfloat16" else None
    steps = args.count("training.steps")
    empty = [name for name, value in args.values.items() if value == []]
    account = args.account(NAMES, more=empty)
    return Launch(file, "torchtitan", described, fields, steps, account)


def _word(args: LaunchArguments, name: str, words: Mapping[str, str], usual: str) -> str | None:
    """Return the meaning of an argument's word; unknown words stay unused."""
    word = str(args.values.get(name) or usual)
    if word in words:
        args.text(name)
    return words.get(word)


def _model(file: str, name: str | None, flavor: str | None) -> ModelConfig:
    for entry in FLAVORS:
        if (entry.name, entry.flavor) == (name, flavor):
            configs = (config for config in map(load_config, zoo_names()) if entry.matches(config))
            return next(configs, None) or _config_from_flavor(entry)
    raise AtollError(
        f"{file}: names the model {name} {flavor}, whose shape torchtitan keeps to itself; say it "
        "with --model (a zoo name or a config.json)"
    )


def _config_from_flavor(flavor: Flavor) -> ModelConfig:
    """Return the configuration of a flavor that is not in the zoo."""
    if flavor.latent_kv:
        raise AtollError(f"the shape of {flavor.name} {flavor.flavor} is not known; add --model")
    family = {"llama3": "llama", "qwen3": "qwen3_moe" if flavor.experts else "qwen3"}[flavor.name]
    described = {name: getattr(flavor, field, None) for name, field in FIELDS.items()}
    contents = {name: value for name, value in described.items() if value is not None}
    contents |= {"model_type": family, "max_position_embeddings": LONGEST_SEQUENCE}
    name = f"{flavor.name}-{flavor.flavor.lower()}"
    return replace(config_from_hf(contents, flavor.name), name=name)


def _data_parallel(args: LaunchArguments, tp: int, cp: int, pp: int) -> dict[str, Any]:
    """Return zero, hsdp and, unless the shard degree is -1, devices. FSDP shards over dp_shard x cp
    ranks; if it keeps weights, a pipeline accumulates unsharded gradients (ZeRO 1).
    """
    replicas = args.count("parallelism.data_parallel_replicate_degree") or 1
    sharded = args.number("parallelism.data_parallel_shard_degree")
    policy = args.text("parallelism.fsdp_reshard_after_forward") or "default"
    keeps_weights = policy == "never" or (policy == "default" and pp > 1)
    devices = replicas * int(sharded) * tp * cp * pp if sharded and sharded > 0 else None
    if sharded == 1 and cp == 1:
        return {"zero": 0, "hsdp": 1, "devices": devices}
    zero = (1 if pp > 1 else 2) if keeps_weights else 3
    return {"zero": zero, "hsdp": replicas, "devices": devices}


def _pipeline(args: LaunchArguments, pp: int, layers: int) -> dict[str, Any]:
    schedule = args.text("parallelism.pipeline_parallel_schedule")
    layers_per_stage = args.count("parallelism.pipeline_parallel_layers_per_stage")
    for name in ("first", "last"):
        args.count(f"parallelism.pipeline_parallel_{name}_stage_less_layers")
    parts = args.values.get("parallelism.module_fqns_per_model_part")
    if parts:
        args.text("parallelism.module_fqns_per_model_part")
    if pp == 1:
        return {"vpp": 1}
    orders = {name.lower(): order for name, order in SCHEDULES.items()}
    if (order := orders.get((schedule or "1F1B").lower())) is None:
        raise AtollError(f"{args.file}: pipeline schedule {schedule!r} is not modelled")
    stages = len(parts) if parts else -(-layers // layers_per_stage) if layers_per_stage else pp
    # 2 is torchtitan's default for looped schedules.
    return {"vpp": max(2, stages // pp) if order == "interleaved" else 1, "order": order}


def _recompute(args: LaunchArguments, blocks: int) -> str:
    """Return the recompute policy: none, full, every n-th block of a stage, or by operator."""
    mode = args.text("activation_checkpoint.mode") or "selective"
    option = str(args.values.get("activation_checkpoint.selective_ac_option") or "op")
    args.text("activation_checkpoint.selective_ac_option")
    if mode in ("none", "full"):
        return mode
    if mode != "selective":
        raise AtollError(f"{args.file}: activation checkpointing {mode!r} is not modelled")
    if option.isdigit() and (interval := int(option)):
        return "full" if interval == 1 else f"{FULL_BLOCKS}{max(1, blocks // interval)}"
    return "alternate"


def _precision(args: LaunchArguments) -> str:
    converters = args.text("model.converters") or ""
    sections = ("quantize.grouped_mm.float8", "quantize.grouped_mm.mx")
    args.ignore(["hf_transformers.*", *(f"{n}.*" for n in sections if n not in converters)])
    for name in args.values:
        if name.startswith(("float8.", "quantize.linear.float8.", "quantize.linear.mx.", "mx.")):
            args.text(name)
    if "lora" in converters or ("nvfp4" in converters and "'fqns': ['layers']" not in converters):
        raise AtollError(f"{args.file}: converts a part of the model, which is not modelled")
    if "nvfp4" in converters:
        return "nvfp4"
    if "mx" in converters:
        return "mxfp8"
    return "fp8" if "float8" in converters else "bf16"
