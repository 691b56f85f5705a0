"""Hugging Face: arguments of its Trainer (command line, YAML, JSON) and accelerate's YAML.

Names and defaults: transformers.TrainingArguments and accelerate's plugins for FSDP and DeepSpeed;
`--zero_stage` and `--max_seq_len` as DeepSpeed-Chat's programs have them. Files that are named
beside the launch file (accelerate's configuration, DeepSpeed's JSON) are read with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from atoll.errors import AtollError
from atoll.launch.account import Accounted, Arguments, Launch, flat, words_of
from atoll.launch.deepspeed import read_deepspeed
from atoll.launch.files.content import content_of
from atoll.launch.files.shell import Command, Script
from atoll.launch.files.words import UNKNOWN
from atoll.launch.megatron import WORDS as MEGATRON
from atoll.launch.megatron import layout_fields, named_arguments, software_fields
from atoll.workload.families.model_config import ModelConfig

BATCH = "per_device_train_batch_size"
WORDS = words_of("trainer")
SHARDED = {
    "full_shard": 3, "1": 3, "shard_grad_op": 2, "2": 2, "no_shard": 0, "3": 0,
    "hybrid_shard": 3, "4": 3, "hybrid_shard_zero2": 2, "5": 2,
}  # fmt: skip
"""FSDP's strategies, by name and by number, as stages of ZeRO."""
HYBRID = ("hybrid_shard", "4", "hybrid_shard_zero2", "5")
LENGTHS = ("max_seq_length", "max_seq_len", "max_length", "model_max_length", "block_size",
           "cutoff_len", "sequence_len")  # fmt: skip
ATTENTION = {"flash_attention_2": "flash2", "fa2": "flash2", "disabled": "unfused",
             "flash_attention_3": "flash", "sdpa": "flash",
             "eager": "unfused"}  # fmt: skip
ADAM = ("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused", "adamw")
IMAGES = (
    "vision_model_name_or_path",
    "freeze_vision_tower",
    "image_max_pixels",
    "video_max_pixels",
)
OFFLOADS = (
    "fsdp_config.fsdp_offload_params",
    "fsdp_config.offload_params",
    "deepspeed_config.offload_optimizer_device",
    "deepspeed_config.offload_param_device",
    "offload",
)


def is_trainer(content: Mapping[str, Any]) -> bool:
    return BATCH in content or {"distributed_type", "num_processes"} <= content.keys()


def trainer_commands(script: Script) -> list[Command]:
    """Commands that hand a program a device's batch as the Trainer names it."""
    return [c for c in script.commands if BATCH in named_arguments(c.words)]


def read_trainer(file: str, content: Mapping[str, Any], model: ModelConfig | None) -> Launch:
    """A YAML or JSON of the Trainer's arguments, or accelerate's."""
    values = dict(flat(content))
    said = {name: value for name, value in values.items() if value is not None}
    found = _launch(file, said, model)
    unsaid = {**found.arguments.without_effect, **dict.fromkeys(values.keys() - said.keys(), "")}
    return replace(found, arguments=replace(found.arguments, without_effect=unsaid))


def read_trainer_script(file: str, script: Script, model: ModelConfig | None) -> Launch:
    """The last command that starts a Trainer, with what its launcher says."""
    words = trainer_commands(script)[-1].words
    at = next((i for i, word in enumerate(words) if word.endswith(".py")), 0)
    launcher, own = named_arguments(words[:at]), named_arguments(words[at + 1 :])
    given: dict[str, Any] = {}
    if said := launcher.pop("config_file", None):
        name = str(said).replace(UNKNOWN, "?")
        if (place := _beside(file, name)) is None:
            raise AtollError(f"{file}: leaves its processes to {name}, which is not beside it")
        given |= flat(content_of(place))
    return replace(_launch(file, given | launcher | own, model), notes=script.notes)


def _beside(file: str, name: str) -> Path | None:
    """A file that another one names, where it lies beside or below it."""
    folder = Path(file).parent.resolve()
    place = (folder / name).resolve()
    return place if place.is_relative_to(folder) and place.is_file() else None


def _launch(file: str, values: Mapping[str, Any], model: ModelConfig | None) -> Launch:
    if model is None:
        raise AtollError(f"{file}: names a model without its shape; say it with --model")
    given = Arguments(file, values, UNKNOWN)
    given.refuse_offload(*OFFLOADS)
    _check_method(given)
    deepspeed = _deepspeed(file, given, model)
    fields = dict(deepspeed.fields) if deepspeed else _sharding(given)
    if "tensor_model_parallel_size" in values:  # LLaMA-Factory over megatron-core
        fields = layout_fields(given, model.layers) | software_fields(given)
        given.ignore(MEGATRON.as_priced)
    micro = given.count(BATCH) or fields.get("microbatch") or 1
    steps_a_batch = given.count("gradient_accumulation_steps",
                                "deepspeed_config.gradient_accumulation_steps") or 1  # fmt: skip
    fields |= {
        "microbatch": micro,
        "local_batch": micro * steps_a_batch,
        "sequence": given.count(*LENGTHS) or model.sequence,
        "recompute": _recompute(given, fields),
        "precision": _precision(given, fields.get("precision")),
        **_software(given, sharded=fields["zero"] > 0),
        **_adapters(given),
    }
    if devices := _devices(given):
        fields["devices"] = devices
    if (dropout := given.number("dropout")) is not None:
        fields["dropout"] = dropout
    steps = given.number("max_steps")
    given.ignore(WORDS.without_effect)
    found = given.accounted()
    if deepspeed:
        found = Accounted(*(
            {**mine, **{f"deepspeed:{name}": value for name, value in theirs.items()}}
            for mine, theirs in (
                (found.used, deepspeed.arguments.used),
                (found.without_effect, deepspeed.arguments.without_effect),
                (found.not_understood, deepspeed.arguments.not_understood),
            )
        ))  # fmt: skip
    # The Trainer takes DeepSpeed's JSON as it is: better layouts are written as one.
    return Launch(
        file, "deepspeed", model, fields, int(steps) if steps and steps > 0 else None, found
    )


def _check_method(given: Arguments) -> None:
    """Training on texts, all of the model: another step is another question."""
    stage, kind = (given.text(name) or "" for name in ("stage", "finetuning_type"))
    if "beta" in given.given or stage in ("dpo", "kto", "rm", "ppo"):
        raise AtollError(
            f"{given.file}: trains on preferences, with a second model or two answers to a prompt, "
            "which is not modelled"
        )
    if any(name in given.given for name in IMAGES):
        raise AtollError(f"{given.file}: trains a model of images, which is not modelled")
    if given.has("use_kt"):
        raise AtollError(f"{given.file}: computes experts on the host (use_kt): not modelled")
    if kind not in ("", "full", "lora"):
        raise AtollError(
            f"{given.file}: trains a part of the model ({kind}), which is not modelled"
        )


def _deepspeed(file: str, given: Arguments, model: ModelConfig) -> Launch | None:
    """What a JSON of DeepSpeed says, that the arguments name."""
    names = ("deepspeed", "deepspeed_config", "deepspeed_config.deepspeed_config_file")
    said = next((str(given.given[n]) for n in names if given.given.get(n)), "")
    said = said.replace(UNKNOWN, "?")
    if not said.endswith(".json"):
        return None
    for name in names:
        if name in given.given:
            given.has(name)
    place = _beside(file, said)
    if place is None:
        raise AtollError(f"{file}: leaves ZeRO to {said}, which is not beside it")
    return read_deepspeed(str(place), content_of(place), model)


def _sharding(given: Arguments) -> dict[str, Any]:
    """Who holds what: FSDP by the Trainer's words or accelerate's, ZeRO, or whole replicas."""
    kind = (given.text("distributed_type") or "").upper()
    words = (given.text("fsdp") or "").lower().replace(",", " ").split()
    strategy = (given.text("fsdp_config.fsdp_sharding_strategy") or "").lower()
    reshard = given.text("fsdp_config.fsdp_reshard_after_forward")
    if reshard and reshard.lower() not in ("true", "false"):  # FSDP 1's strategies under this name
        strategy, reshard = reshard.lower(), None
    stage = given.count("zero_stage", "deepspeed_config.zero_stage")
    given.has("deepspeed", "use_deepspeed", "use_fsdp")
    named = strategy or next((word for word in words if word in SHARDED), "")
    zero = 0
    if kind == "MEGATRON_LM":
        raise AtollError(f"{given.file}: accelerate's Megatron-LM plugin is not read; check the "
                         "Megatron-LM arguments themselves")  # fmt: skip
    if stage is not None:
        zero = stage
    elif reshard is not None or named or kind == "FSDP" or words:
        zero = SHARDED.get(named, 2 if str(reshard).lower() == "false" else 3)
    for name in ("fsdp_config.fsdp_auto_wrap_policy", "fsdp_config.fsdp_backward_prefetch",
                 "fsdp_config.fsdp_forward_prefetch", "fsdp_config.backward_prefetch"):  # fmt: skip
        usual = ("TRANSFORMER_BASED_WRAP", "BACKWARD_PRE", "FALSE")
        if str(given.given.get(name, "")).upper() in usual:
            given.text(name)
    machines = given.count("num_machines", "nnodes", "num_nodes") or 1
    given.count("parallelism_config.parallelism_config_dp_shard_size")  # what the others leave
    replicas = given.count("parallelism_config.parallelism_config_dp_replicate_size")
    return {
        "tp": given.count("parallelism_config.parallelism_config_tp_size") or 1,
        "pp": 1,
        "cp": given.count("parallelism_config.parallelism_config_cp_size") or 1,
        "ep": 1,
        "sp": False,
        "zero": zero,
        "hsdp": machines if named in HYBRID else (replicas or 1 if zero else 1),
        # Replicas of PyTorch's own sum beside the backward pass.
        "overlap": "grad_reduce" if stage is None else "zero_grad_reduce",
        # FSDP keeps fp32 parameters and gathers 16-bit ones, as does autocast without it.
        **({} if stage is not None else {"optimizer": "fp32"}),
    }


def _devices(given: Arguments) -> int | None:
    """Processes that a launcher starts, where it says so."""
    whole = given.count("num_processes")  # accelerate's: of all machines
    machines = given.count("num_machines", "nnodes", "num_nodes") or 1
    each = given.count("nproc_per_node", "num_gpus")
    return whole or (each * machines if each else None)


def _recompute(given: Arguments, fields: Mapping[str, Any]) -> str:
    said = given.has("gradient_checkpointing", "fsdp_config.fsdp_activation_checkpointing",
                     "fsdp_config.activation_checkpointing")  # fmt: skip
    for name in [n for n in given.given if n.startswith("gradient_checkpointing_kwargs")]:
        given.text(name)  # how, not what
    if given.has("disable_gradient_checkpointing"):
        return "none"
    if "finetuning_type" in given.given and "tensor_model_parallel_size" not in given.given:
        said = True  # LLaMA-Factory's default
    return "full" if said else str(fields.get("recompute", "none"))


def _precision(given: Arguments, before: str | None) -> str:
    mixed = (given.text("mixed_precision", "dtype", "torch_dtype") or "").lower()
    if given.has("fp8"):
        given.has("bf16")
        return "fp8"
    if given.has("bf16") or mixed in ("bf16", "bfloat16"):
        return "bf16"
    if given.has("fp16") or mixed in ("fp16", "float16"):
        return "fp16"
    if mixed == "fp8":
        return "fp8"
    if before is None and "zero_stage" in given.given:
        return "fp16"  # the default of DeepSpeed-Chat's programs
    if before is None:
        raise AtollError(
            f"{given.file}: trains in fp32 (neither bf16 nor fp16), which is not modelled"
        )
    return before


def _software(given: Arguments, sharded: bool) -> dict[str, Any]:
    """Kernels: compiled or not, attention, Liger's loss; the optimizer, where its states are
    Adam's.
    """
    compiled = given.has("torch_compile") or (
        (given.text("dynamo_config.dynamo_backend", "dynamo_backend") or "NO").upper() != "NO"
    )
    kernel = given.text("attn_implementation", "flash_attn") or "sdpa"
    if str(given.given.get("packing")).lower() == "true":  # all sequences are full, as priced
        given.text("packing", "packing_strategy")
    optimizer = str(given.given.get("optim", "adamw_torch"))
    if optimizer in ADAM:
        given.text("optim")
    flags = {"te_loss": given.has("use_liger_kernel", "use_liger")}
    return {
        "stack": "compiled" if compiled else "fsdp" if sharded else "eager",
        "attention": ATTENTION.get(kernel, "flash"),
        "flags": " ".join(name for name, on in flags.items() if on),
    }


def _adapters(given: Arguments) -> dict[str, Any]:
    """LoRA beside frozen weights; without a word on where, as PEFT has it for Llama."""
    rank = given.count("lora_r", "lora_rank", "lora_dim")
    adapted = given.given.get("finetuning_type") == "lora"
    if not (given.has("use_peft", "only_optimize_lora") or rank or adapted):
        return {}
    if given.has("load_in_4bit", "load_in_8bit", "quantization_bit"):
        raise AtollError(
            f"{given.file}: keeps frozen weights in 4 or 8 bits, which is not modelled"
        )
    everywhere = "lora_dim" in given.given  # DeepSpeed-Chat's
    said = given.text("lora_target_modules", "lora_target", "lora_module_name")
    words = (said or "").strip("[]").replace("'", " ").replace(",", " ").split()
    targets = "all" if everywhere or {"all", "all-linear"} & set(words) else "+".join(words)
    return {
        "method": "lora",
        "lora_rank": rank or 16,
        "lora_targets": targets or "q_proj+v_proj",
    }
