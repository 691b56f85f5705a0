"""DeepSpeed's JSON configuration, which leaves the model to a separate config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from atoll.base.errors import AtollError
from atoll.tools.arguments import Launch, LaunchArguments, UserValues, flatten, load_names

NAMES = load_names("deepspeed")
ADAM = ("adam", "adamw", "fusedadam")
DEFAULT_SIZES = {
    "reduce_bucket_size": 5e8, "allgather_bucket_size": 5e8, "stage3_max_live_parameters": 1e9,
    "stage3_max_reuse_distance": 1e9, "stage3_prefetch_bucket_size": 5e7,
    "stage3_param_persistence_threshold": 1e5,
}  # fmt: skip
"""DeepSpeed's default sizes, which the model assumes."""


def is_deepspeed(content: Mapping[str, Any]) -> bool:
    return bool(
        {"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"} & content.keys()
    )


def read_deepspeed(file: str, content: Mapping[str, Any], user: UserValues) -> Launch:
    """Read a configuration; values `auto`, which Hugging Face's trainer fills in, are ignored."""
    if user.model is None:
        raise AtollError(
            f"{file}: does not describe the model; add --model with a zoo name or a config.json"
        )
    values = dict(flatten(content))
    chosen = {name: value for name, value in values.items() if value != "auto"}
    disabled = [name.removesuffix("enabled") for name, value in chosen.items()
           if name.endswith(".enabled") and value is False]  # fmt: skip
    args = LaunchArguments(file, chosen)
    for name, what in NAMES.refused.items():
        parts = [n for n in chosen if n.startswith(f"{name}.") and n.endswith(".enabled")]
        if name in content and (not parts or any(chosen[part] is True for part in parts)):
            raise AtollError(f"{file}: {what} ({name}), which is not modelled")
        disabled.append(f"{name}.")
    zero = args.count("zero_optimization.stage") or 0
    hosted = zero >= 2 and args.text("zero_optimization.offload_optimizer.device") == "cpu"
    for name in ("cpu", "nvme"):
        for what in ("param", "optimizer")[: 1 if hosted else 2]:
            if chosen.get(f"zero_optimization.offload_{what}.device") == name:
                raise AtollError(
                    f"{file}: offloads the {what} to {name}, which is not modelled; take "
                    f"zero_optimization.offload_{what} out to see the run without it"
                )
    args.refuse_offload("zero_optimization.cpu_offload", "zero_optimization.cpu_offload_params")
    precision = _precision(args, content)
    microbatch = args.count("train_micro_batch_size_per_gpu") or 1
    batch = args.count("train_batch_size")
    accumulated = args.count("gradient_accumulation_steps") or 1
    if batch and batch % (microbatch * accumulated):
        raise AtollError(
            f"{file}: train_batch_size {batch} is not a multiple of {microbatch} sequences in "
            f"{accumulated} microbatches"
        )
    if str(chosen.get("optimizer.type", "adam")).lower() in ADAM:  # others have other states
        args.text("optimizer.type")
    usual = [n for n, v in chosen.items() if DEFAULT_SIZES.get(n.rpartition(".")[2]) == _number(v)]
    for name in ("allgather_partitions", "reduce_scatter"):  # as priced, where they are on
        if chosen.get(f"zero_optimization.{name}") is True:
            args.has(f"zero_optimization.{name}")
    overlap = args.has("zero_optimization.overlap_comm") or zero == 3
    fields: dict[str, Any] = {
        "tp": args.count("tensor_parallel.autotp_size") or 1,
        "pp": args.count("pipeline.stages") or 1,
        "cp": args.count("sequence_parallel_size") or 1,
        "ep": args.count("expert_parallel.autoep_size") or 1,
        "sp": False,
        "microbatch": microbatch,
        "zero": zero,
        "recompute": _recompute(args),
        "precision": precision,
    }
    fields["overlap"] = _overlap(zero, fields["pp"], overlap)
    if hosted:  # by DeepSpeed's own Adam for processors
        fields["flags"] = "host_optimizer"
    elif args.has("optimizer.params.torch_adam") and not args.has("optimizer.params.fused"):
        fields["flags"] = "foreach"
    args.has("expert_parallel.enabled")
    if batch:
        fields["batch"] = batch
    args.ignore((*NAMES.without_effect, *usual, *(f"{section}*" for section in disabled)))
    args.doubt(NAMES.not_modelled)
    account = args.account()
    left_open = {name: "auto" for name in values if name not in chosen}
    account = replace(account, without_effect={**account.without_effect, **left_open})
    return Launch(file, "deepspeed", user.model, fields, None, account)


def _overlap(zero: int, pp: int, overlapping: bool) -> str:
    """Return the overlap words. Without ZeRO, and in pipelines, gradients are summed after the last
    backward pass (runtime/engine.py, pipe/schedule.py; pipelines turn `overlap_comm` off).
    """
    if zero == 0 or pp > 1:
        return "zero_grad_reduce"
    return "grad_reduce param_gather" if overlapping else "no_grad_reduce"


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _precision(args: LaunchArguments, content: Mapping[str, Any]) -> str:
    sections = [content.get(name) for name in ("fp16", "bf16", "bfloat16")]
    left_open = any(isinstance(s, Mapping) and s.get("enabled") == "auto" for s in sections)
    fp16, bf16 = args.has("fp16.enabled"), args.has("bf16.enabled", "bfloat16.enabled")
    if fp16 and bf16:
        raise AtollError(f"{args.file}: enables both fp16 and bf16")
    if not (fp16 or bf16 or left_open):
        raise AtollError(
            f"{args.file}: trains in fp32 (neither fp16 nor bf16 is enabled), which is not modelled"
        )
    return "fp16" if fp16 else "bf16"


def _recompute(args: LaunchArguments) -> str:
    interval = args.count("pipeline.activation_checkpoint_interval")
    checkpointing = [name for name in args.values if name.startswith("activation_checkpointing.")]
    for name in checkpointing:
        args.text(name)
    return "full" if interval or checkpointing else "none"
