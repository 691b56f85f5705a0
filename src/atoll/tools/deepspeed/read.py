"""DeepSpeed's JSON configuration, which leaves the model to a separate config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atoll.base.errors import AtollError
from atoll.tools.arguments import Launch, LaunchArguments, UserValues, load_names, stated

NAMES = load_names("deepspeed")


def read_deepspeed(file: str, content: Mapping[str, Any], user: UserValues) -> Launch:
    """Read a configuration; values `auto`, which Hugging Face's trainer fills in, are ignored."""
    if user.model is None:
        raise AtollError(
            f"{file}: does not describe the model; add --model with a zoo name or a config.json"
        )
    chosen, left_open = stated(content, "auto")
    args = LaunchArguments(file, chosen, ignored=left_open)
    sections = _refused_sections(args, content)
    fields = NAMES.read(args, "layout")
    zero, microbatch, batch = fields["zero"], fields["microbatch"], fields["batch"]
    hosted = zero >= 2 and args.text("zero_optimization.offload_optimizer.device") == "cpu"
    offloads = ["cpu_offload", "cpu_offload_params", "offload_param.device"]
    offloads += [] if hosted else ["offload_optimizer.device"]
    args.refuse_offload(*(f"zero_optimization.{name}" for name in offloads))
    accumulated = args.count("gradient_accumulation_steps") or 1
    if batch and batch % (microbatch * accumulated):
        raise AtollError(
            f"{file}: train_batch_size {batch} is not a multiple of {microbatch} sequences in "
            f"{accumulated} microbatches"
        )
    overlaps = args.has("zero_optimization.overlap_comm") or zero == 3
    loops = args.has("optimizer.params.torch_adam") and not args.has("optimizer.params.fused")
    fields |= {
        "sp": False,
        "recompute": _recompute(args),
        "precision": _precision(args, content),
        # Without ZeRO, and in pipelines, gradients are summed after the last backward pass
        # (runtime/engine.py, pipe/schedule.py; pipelines turn `overlap_comm` off).
        "overlap": "zero_grad_reduce"
        if zero == 0 or fields["pp"] > 1
        else "grad_reduce param_gather"
        if overlaps
        else "no_grad_reduce",
        # of DeepSpeed's own Adam for processors, or of torch's
        "flags": "host_optimizer" if hosted else "foreach" if loops else None,
    }
    args.has("expert_parallel.enabled")
    account = args.account(NAMES, more=[f"{section}*" for section in sections])
    return Launch(file, "deepspeed", user.model, fields, None, account)


def _refused_sections(args: LaunchArguments, content: Mapping[str, Any]) -> list[str]:
    """Return prefixes of sections that are off; refuse those that are on and not modelled."""
    switches = {name: on for name, on in args.values.items() if name.endswith(".enabled")}

    def is_on(section: str) -> bool:
        parts = [on for switch, on in switches.items() if switch.startswith(f"{section}.")]
        return section in content and (not parts or True in parts)

    NAMES.refuse_programs(args.file, is_on, {})
    off = [name.removesuffix("enabled") for name, on in switches.items() if on is False]
    return [*off, *(f"{name}." for names in NAMES.refused.values() for name in names)]


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
