"""Hugging Face: arguments of the Trainer (command line, YAML, JSON) and accelerate's YAML.

Names and defaults: transformers.TrainingArguments and accelerate's plugins for FSDP and DeepSpeed;
`--zero_stage` and `--max_seq_len` as DeepSpeed-Chat's programs have them. Files that the
launch file names (accelerate's configuration, DeepSpeed's JSON) are read with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from atoll.base.errors import AtollError
from atoll.files.yamlfile import shipped_table
from atoll.tools.arguments import (
    OFF,
    ArgumentNames,
    Launch,
    LaunchArguments,
    UserValues,
    load_names,
    stated,
)
from atoll.tools.deepspeed.read import read_deepspeed
from atoll.tools.files.config_files import named_file, read_content
from atoll.tools.files.shell import Script
from atoll.tools.files.shell_tokens import UNKNOWN
from atoll.tools.megatron_lm.read import NAMES as MEGATRON
from atoll.tools.megatron_lm.read import layout_fields, named_arguments, software_fields
from atoll.workload import load_config
from atoll.workload.families.model_config import ModelConfig

BATCH = "per_device_train_batch_size"
MODEL_NAMES = ("model_name_or_path", "model_name", "base_model", "model")
NAMES, AXOLOTL = load_names("transformers"), load_names("transformers", "axolotl.yaml")
ATTENTION = shipped_table("atoll.tools.transformers", "kernels.yaml")
ZERO_STAGES = {
    "full_shard": 3, "1": 3, "shard_grad_op": 2, "2": 2, "no_shard": 0, "3": 0,
    "hybrid_shard": 3, "4": 3, "hybrid_shard_zero2": 2, "5": 2,
}  # fmt: skip
"""FSDP's strategies, by name and by number, as stages of ZeRO."""
PRESETS = {f"zero{stage}": stage for stage in range(4)}  # of ms-swift
HYBRID = ("hybrid_shard", "4", "hybrid_shard_zero2", "5")
SEQUENCE_WIDTHS = ("parallelism_config.parallelism_config_cp_size",
                   "parallelism_config.parallelism_config_sp_size")  # fmt: skip
LENGTHS = ("max_seq_length", "max_seq_len", "max_length", "model_max_length", "block_size",
           "cutoff_len", "sequence_len")  # fmt: skip
TRL_NAMES = ("max_length", "packing", "dataset_text_field", "assistant_only_loss", "use_peft")
"""Arguments of TRL's SFTConfig and ModelConfig that the Trainer does not have."""
CHECKPOINTING = ("gradient_checkpointing", "use_gradient_checkpointing",
                 "fsdp_config.fsdp_activation_checkpointing",
                 "fsdp_config.activation_checkpointing")  # fmt: skip
ADAM = {"adamw_torch_fused": "", "adamw_apex_fused": "", "adamw": "", "adamw_torch": "foreach",
        "adamw_hf": "forloop"}  # fmt: skip
"""Flags of optimizers with Adam's states."""
EIGHT_BITS = ("adamw_8bit", "adamw_bnb_8bit")
NESTED = ("bnb_4bit_use_double_quant", "use_bnb_nested_quant", "double_quantization")
"""Switches of 8-bit scales for 4-bit weights."""
OFFLOADS = (
    "fsdp_config.fsdp_offload_params",
    "fsdp_config.offload_params",
    "deepspeed_config.offload_optimizer_device",
    "deepspeed_config.offload_param_device",
    "offload",
)


def trainer_commands(script: Script) -> list[tuple[str, ...]]:
    """Return the commands with the Trainer's argument of the batch per device."""
    return [words for words in script.commands if BATCH in named_arguments(words)]


def read_trainer(file: str, content: Mapping[str, Any], user: UserValues) -> Launch:
    """Read a YAML or JSON file of the Trainer's or accelerate's arguments."""
    values, left_open = stated(content)
    return _launch(LaunchArguments(file, values, UNKNOWN, ignored=left_open), user)


def read_axolotl(file: str, content: Mapping[str, Any], user: UserValues) -> Launch:
    """Read a YAML file of axolotl: the Trainer's arguments under other names."""
    values, left_open = stated(content)
    file_names = {AXOLOTL.renamed.get(name, name): name for name in values}
    chosen = {name: values[written] for name, written in file_names.items()}
    adapter = chosen.get("adapter")
    chosen |= {"use_peft": adapter is not None, "load_in_4bit": adapter == "qlora"}
    if chosen.pop("flash_attention", False):
        chosen["attn_implementation"] = "flash_attention_2"
        file_names["attn_implementation"] = "flash_attention"
    args = LaunchArguments(file, chosen, UNKNOWN, file_names=file_names, ignored=left_open)
    args.refuse_programs(AXOLOTL)
    return _launch(args, user, AXOLOTL)


def read_trainer_script(file: str, script: Script, user: UserValues) -> Launch:
    """Read the last command that starts a Trainer, with its launcher's arguments."""
    words = trainer_commands(script)[-1]
    at = next((i for i, word in enumerate(words) if word.endswith(".py")), 0)
    launcher, program = named_arguments(words[:at]), named_arguments(words[at + 1 :])
    values: dict[str, Any] = {}
    if config_file := launcher.pop("config_file", None):
        name = str(config_file).replace(UNKNOWN, "?")
        if (path := named_file(Path(file), name)) is None:
            raise AtollError(f"{file}: leaves its processes to {name}, which was not found")
        values |= stated(read_content(path))[0]
    args = LaunchArguments(file, values | launcher | program, UNKNOWN)
    return replace(_launch(args, user), notes=script.notes)


def _launch(args: LaunchArguments, user: UserValues, names: ArgumentNames = NAMES) -> Launch:
    file, values = args.file, args.values
    model = user.model or _named_model(args)
    args.refuse_offload(*OFFLOADS)
    args.refuse_programs(NAMES)
    _check_method(args)
    deepspeed = _deepspeed(file, args, user)
    fields = dict(deepspeed.fields) if deepspeed else _sharding(args)
    if "tensor_model_parallel_size" in values:  # LLaMA-Factory over megatron-core
        fields = layout_fields(args, model.layers) | software_fields(args)
        args.ignore(MEGATRON.as_priced)
    microbatch = args.count(BATCH) or fields.get("microbatch") or 1
    accumulation_steps = args.count("gradient_accumulation_steps",
                                "deepspeed_config.gradient_accumulation_steps") or 1  # fmt: skip
    sharded = "deepspeed" if deepspeed else "fsdp"
    hosted = "host_optimizer" if "host_optimizer" in (fields.get("flags") or "") else ""
    fields |= {
        "microbatch": microbatch,
        "local_batch": microbatch * accumulation_steps,
        "sequence": args.count(*LENGTHS) or model.sequence,
        "recompute": _recompute(args, fields),
        "precision": _precision(args, fields.get("precision")),
        **_software(args, sharded if fields["zero"] > 0 else "eager"),
    }
    adapters = _adapters(args)
    flags = fields["flags"], adapters.get("flags", ""), hosted
    fields |= adapters | {"flags": " ".join(filter(None, flags))}
    if "method" in fields and fields.get("optimizer") == "fp32":
        fields["optimizer"] = "mixed"  # frozen weights stay in 16 bits
    devices = _devices(args) or fields.get("devices")
    fields |= {"devices": devices, "dropout": args.number("dropout")}
    steps = args.number("max_steps")
    account = args.account(names, NAMES)
    if deepspeed:
        account = account.joined(deepspeed.arguments, "deepspeed:")
    software = "deepspeed" if deepspeed else _software_name(args)
    if software in ("llama-factory", "trl"):
        fields.setdefault("method", "sft")
        if fields["stack"] == "eager":
            del fields["stack"]  # replicas are priced with the tool's stack
    carried = args.carried((), NAMES) if software == "llama-factory" else {}
    step_count = int(steps) if steps and steps > 0 else None
    return Launch(file, software, model, fields, step_count, account, carried=carried)


def _named_model(args: LaunchArguments) -> ModelConfig:
    """Return the model that the arguments name: of the zoo, or in the local Hugging Face cache."""
    name = next((str(args.values[key]) for key in MODEL_NAMES if args.values.get(key)), "a model")
    try:
        return load_config(name)
    except AtollError:
        raise AtollError(
            f"{args.file}: names {name}, not its shape; add --model with a name of the zoo "
            "(atoll models) or a config.json"
        ) from None


def _software_name(args: LaunchArguments) -> str:
    """Return the tool whose argument names the file has; axolotl's files are the Trainer's."""
    if "tensor_model_parallel_size" in args.values:
        return "megatron-lm"
    if "finetuning_type" in args.values:
        return "llama-factory"
    if "deepspeed_config.zero_stage" in args.values or "zero_stage" in args.values:
        return "deepspeed"
    trl = "base_model" not in args.values and any(name in args.values for name in TRL_NAMES)
    return "trl" if trl else "transformers"


def _check_method(args: LaunchArguments) -> None:
    """Refuse training methods that are not modelled."""
    stage, kind = (args.text(name) or "" for name in ("stage", "finetuning_type"))
    if stage in ("dpo", "kto", "rm", "ppo"):
        raise AtollError(f"{args.file}: trains on preferences (stage {stage}): not modelled")
    if args.has("use_kt"):
        raise AtollError(f"{args.file}: computes experts on the host (use_kt): not modelled")
    if kind not in ("", "full", "lora"):
        raise AtollError(f"{args.file}: trains a part of the model ({kind}), which is not modelled")


def _deepspeed(file: str, args: LaunchArguments, user: UserValues) -> Launch | None:
    """Read the DeepSpeed JSON that the arguments name, if any."""
    names = ("deepspeed", "deepspeed_config", "deepspeed_config.deepspeed_config_file")
    config_name = next((str(args.values[n]) for n in names if args.values.get(n)), "")
    config_name = config_name.replace(UNKNOWN, "?")
    if any(name.startswith("deepspeed.") for name in args.values):
        raise AtollError(f"{file}: has DeepSpeed's configuration inside; name a JSON file of it")
    if not config_name.endswith(".json"):
        preset = PRESETS.get(config_name)
        if preset is None and config_name.lower() not in (*OFF, "true", "1"):
            raise AtollError(f"{file}: leaves ZeRO to {config_name}, not to a JSON file")
        return None
    for name in names:
        if name in args.values:
            args.has(name)
    path = named_file(Path(file), config_name)
    if path is None:
        raise AtollError(
            f"{file}: leaves ZeRO to {config_name}, which was found neither from its folder nor "
            "from the working directory or the repository's root"
        )
    return read_deepspeed(str(path), read_content(path), user)


def _sharding(args: LaunchArguments) -> dict[str, Any]:
    """Return the layout's fields: FSDP (the Trainer's or accelerate's), ZeRO or replicas."""
    kind = (args.text("distributed_type") or "").upper()
    words = (args.text("fsdp") or "").lower().replace(",", " ").split()
    if "offload" in words:
        args.refuse_offload("fsdp")
    strategy = (args.text("fsdp_config.fsdp_sharding_strategy") or "").lower()
    reshard = args.text("fsdp_config.fsdp_reshard_after_forward")
    if reshard and reshard.lower() not in ("true", "false"):  # FSDP 1's strategies under this name
        strategy, reshard = reshard.lower(), None
    stage = args.count("zero_stage", "deepspeed_config.zero_stage")
    stage = PRESETS.get(str(args.values.get("deepspeed")), stage)
    args.has("deepspeed", "use_deepspeed", "use_fsdp")
    named = strategy or next((word for word in words if word in ZERO_STAGES), "")
    zero = 0
    if kind == "MEGATRON_LM":
        raise AtollError(f"{args.file}: accelerate's Megatron-LM plugin is not read; check the "
                         "Megatron-LM arguments themselves")  # fmt: skip
    if stage is not None:
        zero = stage
    elif reshard is not None or named or kind == "FSDP" or words:
        zero = ZERO_STAGES.get(named, 2 if str(reshard).lower() == "false" else 3)
    machines = args.count("num_machines", "nnodes", "num_nodes") or 1
    args.count("parallelism_config.parallelism_config_dp_shard_size")  # follows from the others
    replicas = args.count("parallelism_config.parallelism_config_dp_replicate_size")
    return {
        "tp": args.count("parallelism_config.parallelism_config_tp_size") or 1,
        "pp": 1,
        "cp": args.count(*SEQUENCE_WIDTHS) or 1,
        "ep": 1,
        "sp": False,
        "zero": zero,
        "hsdp": machines if named in HYBRID else (replicas or 1 if zero else 1),
        # PyTorch's replicas sum gradients during the backward pass.
        "overlap": "grad_reduce" if stage is None else "zero_grad_reduce",
        # FSDP keeps fp32 parameters and gathers 16-bit ones, as does autocast without it.
        "optimizer": "fp32" if stage is None else None,
    }


def _devices(args: LaunchArguments) -> int | None:
    """Return the number of processes a launcher starts, None if not stated."""
    processes = args.count("num_processes")  # accelerate: on all machines
    machines = args.count("num_machines", "nnodes", "num_nodes") or 1
    per_node = args.count("nproc_per_node", "num_gpus")
    return processes or (per_node * machines if per_node else None)


def _recompute(args: LaunchArguments, fields: Mapping[str, Any]) -> str:
    recomputes = args.has(*CHECKPOINTING)
    for name in [n for n in CHECKPOINTING if "offload" in str(args.values.get(n)).lower()]:
        args.used.pop(name)
        args.not_modelled[name] = "recomputation's inputs go to the host"
    for name in [n for n in args.values if n.startswith("gradient_checkpointing_kwargs")]:
        args.text(name)  # implementation only
    if args.has("disable_gradient_checkpointing"):
        return "none"
    if "finetuning_type" in args.values and "tensor_model_parallel_size" not in args.values:
        recomputes = True  # LLaMA-Factory's default
    return "full" if recomputes else str(fields.get("recompute", "none"))


def _precision(args: LaunchArguments, default: str | None) -> str:
    mixed = (args.text("mixed_precision", "dtype", "torch_dtype") or "").lower()
    if args.has("fp8"):
        args.has("bf16")
        return "fp8"
    fp16 = args.has("fp16")
    if args.has("bf16", "pure_bf16") or mixed in ("bf16", "bfloat16"):
        return "bf16"
    if fp16 or mixed in ("fp16", "float16"):
        return "fp16"
    if mixed == "fp8":
        return "fp8"
    if default is None and "zero_stage" in args.values:
        return "fp16"  # the default of DeepSpeed-Chat's programs
    if default is None:
        raise AtollError(
            f"{args.file}: trains in fp32 (neither bf16 nor fp16), which is not modelled"
        )
    return default


def _software(args: LaunchArguments, modules: str) -> dict[str, Any]:
    """Return stack, attention kernel and flags; accept optimizers with Adam's states."""
    compiled = args.has("torch_compile") or (
        (args.text("dynamo_config.dynamo_backend", "dynamo_backend") or "NO").upper() != "NO"
    )
    stated_kernel = next((n for n in ("attn_implementation", "flash_attn") if n in args.values), "")
    kernel = str(args.values.get(stated_kernel) or "sdpa").lower()
    if kernel in ATTENTION:
        args.text(stated_kernel)
    if args.has("packing"):  # all sequences are full, as assumed
        args.text("packing_strategy")
    optimizer = str(args.values.get("optim", "adamw_torch_fused"))
    flags = {
        ADAM.get(optimizer, ""): True,
        "liger liger_loss": args.has("use_liger_kernel", "use_liger", "enable_liger_kernel"),
        "cp_a2a": SEQUENCE_WIDTHS[1] in args.values,  # Ulysses exchanges heads
    }
    return {
        "stack": "compiled" if compiled else modules,
        "attention": ATTENTION.get(kernel, "flash"),
        "flags": " ".join(name for name, on in flags.items() if on and name),
        **({"optimizer": "8bit"} if optimizer in EIGHT_BITS else {}),
    }


def _adapters(args: LaunchArguments) -> dict[str, Any]:
    """Return LoRA's fields; the default targets are PEFT's for Llama."""
    quantized = args.has("load_in_4bit") or args.values.get("quantization_bit") in (4, "4")
    if args.has("load_in_8bit", "quantization_bit") and not quantized:
        raise AtollError(f"{args.file}: keeps frozen weights in 8 bits, which is not modelled")
    rank = args.count("lora_r", "lora_rank", "lora_dim")
    adapted = args.values.get("finetuning_type") == "lora"
    if not (args.has("use_peft", "only_optimize_lora") or rank or adapted):
        return {}
    everywhere = "lora_dim" in args.values  # DeepSpeed-Chat's
    target_text = args.text("lora_target_modules", "lora_target", "target_modules",
                             "lora_module_name")  # fmt: skip
    words = (target_text or "").strip("[]").replace("'", " ").replace(",", " ").split()
    targets = "all" if everywhere or {"all", "all-linear"} & set(words) else "+".join(words)
    return {
        "method": "lora",
        "flags": _adapter_flags(args, quantized),
        "lora_rank": rank or 16,
        "lora_targets": targets or "q_proj+v_proj",
    }


def _adapter_flags(args: LaunchArguments, quantized: bool) -> str:
    """Return flags of frozen weights and adapters. PEFT keeps adapters beside 16-bit weights in
    fp32, and multiplies in fp32 unless the Trainer's autocast (bf16, fp16) does not.
    """
    args.text("bnb_4bit_compute_dtype", "bnb_4bit_quant_type", "bnb_4bit_quant_storage")
    if quantized:
        usual = "quantization_bit" in args.values and not args.off("double_quantization")
        return "nf4 nested_scales" if args.has(*NESTED) or usual else "nf4"
    mixed = args.text("mixed_precision") or "no"
    autocast = args.has("bf16", "fp16") or mixed.lower() != "no"
    pure = autocast or args.has("pure_bf16") or "deepspeed" in args.used
    return "" if pure else "fp32_adapters"
