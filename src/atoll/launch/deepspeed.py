"""DeepSpeed: its JSON configuration, which leaves the model to a config.json beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from atoll.errors import AtollError
from atoll.launch.account import Arguments, Launch, flat, words_of
from atoll.workload.families.model_config import ModelConfig

WORDS = words_of("deepspeed")
ADAM = ("adam", "adamw", "fusedadam")
USUAL = {
    "reduce_bucket_size": 5e8, "allgather_bucket_size": 5e8, "stage3_max_live_parameters": 1e9,
    "stage3_max_reuse_distance": 1e9, "stage3_prefetch_bucket_size": 5e7,
    "stage3_param_persistence_threshold": 1e5,
}  # fmt: skip
"""Sizes that DeepSpeed has by itself, under which it is priced."""


def is_deepspeed(content: Mapping[str, Any]) -> bool:
    return bool(
        {"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"} & content.keys()
    )


def read_deepspeed(file: str, content: Mapping[str, Any], model: ModelConfig | None) -> Launch:
    """A configuration; `auto`, which Hugging Face's trainer fills in, says nothing."""
    if model is None:
        raise AtollError(f"{file}: does not describe the model; say it with --model config.json")
    values = dict(flat(content))
    said = {name: value for name, value in values.items() if value != "auto"}
    off = [name.removesuffix("enabled") for name, value in said.items()
           if name.endswith(".enabled") and value is False]  # fmt: skip
    given = Arguments(file, said)
    for name, what in WORDS.not_modelled.items():
        parts = [n for n in said if n.startswith(f"{name}.") and n.endswith(".enabled")]
        if name in content and (not parts or any(said[part] is True for part in parts)):
            raise AtollError(f"{file}: {what} ({name}), which is not modelled")
        off.append(f"{name}.")
    stage = given.count("zero_optimization.stage") or 0
    for name in ("cpu", "nvme"):
        for what in ("param", "optimizer"):
            if said.get(f"zero_optimization.offload_{what}.device") == name:
                raise AtollError(
                    f"{file}: offloads the {what} to {name}, which is not modelled; take "
                    f"zero_optimization.offload_{what} out to see the run without it"
                )
    half = _precision(given, content)
    micro = given.count("train_micro_batch_size_per_gpu") or 1
    batch = given.count("train_batch_size")
    each = given.count("gradient_accumulation_steps") or 1
    if batch and batch % (micro * each):
        raise AtollError(
            f"{file}: train_batch_size {batch} is not a multiple of {micro} sequences in {each} "
            "microbatches"
        )
    if str(said.get("optimizer.type", "adam")).lower() in ADAM:  # whose states others do not have
        given.text("optimizer.type")
    usual = [n for n, v in said.items() if USUAL.get(n.rpartition(".")[2]) == _number(v)]
    for name in ("allgather_partitions", "reduce_scatter"):  # as priced, where they are on
        if said.get(f"zero_optimization.{name}") is True:
            given.has(f"zero_optimization.{name}")
    overlap = given.has("zero_optimization.overlap_comm") or stage == 3
    fields: dict[str, Any] = {
        "tp": given.count("tensor_parallel.autotp_size") or 1,
        "pp": given.count("pipeline.stages") or 1,
        "cp": given.count("sequence_parallel_size") or 1,
        "ep": given.count("expert_parallel.autoep_size") or 1,
        "sp": False,
        "microbatch": micro,
        "zero": stage,
        "recompute": _recompute(given),
        "precision": half,
    }
    fields["overlap"] = _overlap(stage, fields["pp"], overlap)
    given.has("expert_parallel.enabled")
    if batch:
        fields["batch"] = batch
    given.ignore((*WORDS.without_effect, *usual, *(f"{section}*" for section in off)))
    found = given.accounted()
    left_open = {name: "auto" for name in values if name not in said}
    found = replace(found, without_effect={**found.without_effect, **left_open})
    return Launch(file, "deepspeed", model, fields, None, found)


def _overlap(stage: int, stages: int, overlapping: bool) -> str:
    """Without ZeRO, and in pipelines, gradients are summed behind the last backward pass, whatever
    `overlap_comm` says (`allreduce_gradients` in runtime/engine.py; ReduceGrads of pipe/schedule.py
    follows all passes, and pipelines turn `overlap_comm` off).
    """
    if stage == 0 or stages > 1:
        return "zero_grad_reduce"
    return "grad_reduce param_gather" if overlapping else "no_grad_reduce"


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _precision(given: Arguments, content: Mapping[str, Any]) -> str:
    sections = [content.get(name) for name in ("fp16", "bf16", "bfloat16")]
    left_open = any(isinstance(s, Mapping) and s.get("enabled") == "auto" for s in sections)
    fp16, bf16 = given.has("fp16.enabled"), given.has("bf16.enabled", "bfloat16.enabled")
    if fp16 and bf16:
        raise AtollError(f"{given.file}: enables both fp16 and bf16")
    if not (fp16 or bf16 or left_open):
        raise AtollError(
            f"{given.file}: trains in fp32 (neither fp16 nor bf16 is enabled), which is not "
            "modelled"
        )
    return "fp16" if fp16 else "bf16"


def _recompute(given: Arguments) -> str:
    every = given.count("pipeline.activation_checkpoint_interval")
    spoken = [name for name in given.given if name.startswith("activation_checkpointing.")]
    for name in spoken:
        given.text(name)
    return "full" if every or spoken else "none"
