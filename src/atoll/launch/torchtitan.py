"""torchtitan: its TOML job file (torchtitan/config/job_config.py of releases up to 0.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from atoll.errors import AtollError
from atoll.export.torchtitan_models import FLAVORS, Flavor
from atoll.launch.account import Arguments, Launch, flat, words_of
from atoll.step.layout import SOME
from atoll.workload import config_from_hf, load_config, zoo_names
from atoll.workload.families.model_config import ModelConfig

WORDS = words_of("torchtitan")
SCHEDULES = {
    "1f1b": "1f1b", "interleaved1f1b": "interleaved", "gpipe": "gpipe",
    "zbvzerobubble": "zb-v", "interleavedzerobubble": "zb-h1", "dualpipev": "dualpipe",
}  # fmt: skip

LONGEST = 131072
"""Tokens: Llama 3.1's, above what a job file asks for."""


def is_torchtitan(content: Mapping[str, Any]) -> bool:
    return "parallelism" in content or {"model", "training"} <= content.keys()


def read_torchtitan(file: str, content: Mapping[str, Any], model: ModelConfig | None) -> Launch:
    """A job file; the model is the flavor that it names unless another is given."""
    given = Arguments(file, dict(flat(content)))
    what, _ = given.one_of(WORDS.trains_else)
    if what:
        raise AtollError(f"{file}: trains a model of {what}, which is not modelled")
    given.refuse_offload("training.enable_cpu_offload")
    name = given.text("model.name")
    flavor = given.text("model.flavor")
    found = model or _model(file, name, flavor)
    pp = given.count("parallelism.pipeline_parallel_degree") or 1
    tp = given.count("parallelism.tensor_parallel_degree") or 1
    cp = given.count("parallelism.context_parallel_degree") or 1
    ep = given.count("parallelism.expert_parallel_degree") or 1
    etp = given.count("parallelism.expert_tensor_parallel_degree")
    local = given.count("training.local_batch_size", "training.batch_size") or 8
    piece = given.count("parallelism.pipeline_parallel_microbatch_size")
    batch = given.count("training.global_batch_size")
    fields: dict[str, Any] = {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "ep": ep,
        "etp": (etp or 1) if ep > 1 and found.experts else None,  # else it has no effect
        "sp": tp > 1,
        "microbatch": (piece or 1) if pp > 1 else local,
        "sequence": given.count("training.seq_len") or 2048,
        "precision": _precision(given),
        "recompute": _recompute(given, -(-found.layers // pp)),
        "stack": "compiled" if _compiled(given) else "fsdp",
        **_data_parallel(given, tp, cp, pp),
        **_pipeline(given, pp, found.layers),
    }
    if batch:
        fields["batch"] = batch
    dtype = given.text("training.mixed_precision_param") or "bfloat16"
    given.text("training.mixed_precision_reduce")
    given.text("parallelism.context_parallel_rotate_method")
    if dtype == "float32":
        raise AtollError(f"{file}: trains in fp32, which is not modelled")
    if given.has("parallelism.enable_async_tensor_parallel"):
        fields["overlap"] = "grad_reduce param_gather tp_comm"
    if str(given.given.get("optimizer.name", "AdamW")) in ("Adam", "AdamW"):
        given.text("optimizer.name")  # whose states the others do not have
    steps = given.count("training.steps")
    given.ignore((*WORDS.without_effect, *(n for n, value in given.given.items() if value == [])))
    fields["local_batch"] = local
    return Launch(file, "torchtitan", found, fields, steps, given.accounted())


def _model(file: str, name: str | None, flavor: str | None) -> ModelConfig:
    for known in FLAVORS:
        if (known.name, known.flavor) == (name, flavor):
            alike = (config for config in map(load_config, zoo_names()) if known.matches(config))
            return next(alike, None) or _shaped(known)
    raise AtollError(
        f"{file}: names the model {name} {flavor}, whose shape torchtitan keeps to itself; say it "
        "with --model (a zoo name or a config.json)"
    )


def _shaped(flavor: Flavor) -> ModelConfig:
    """A flavor that is not in the zoo, from its shape."""
    if flavor.latent_kv:
        raise AtollError(f"the shape of {flavor.name} {flavor.flavor} is not known; add --model")
    family = {"llama3": "llama", "qwen3": "qwen3_moe" if flavor.experts else "qwen3"}[flavor.name]
    experts = {
        "num_experts": flavor.experts,
        "num_experts_per_tok": flavor.experts_per_token,
        "moe_intermediate_size": flavor.ffn,
    }
    return replace(
        config_from_hf(
            {
                "model_type": family,
                "hidden_size": flavor.hidden,
                "num_hidden_layers": flavor.layers,
                "num_attention_heads": flavor.heads,
                "num_key_value_heads": flavor.kv_heads,
                "head_dim": flavor.head_dim,
                "intermediate_size": flavor.ffn,
                "vocab_size": flavor.vocab,
                "tie_word_embeddings": flavor.tied_embeddings,
                "max_position_embeddings": LONGEST,
                **(experts if flavor.experts else {}),
            },
            flavor.name,
        ),
        name=f"{flavor.name}-{flavor.flavor.lower()}",
    )


def _data_parallel(given: Arguments, tp: int, cp: int, pp: int) -> dict[str, Any]:
    """FSDP divides over the ranks of data_parallel_shard_degree and of the context together. Where
    it keeps weights, a pipeline adds up whole gradients too: ZeRO 1. A degree that is not left open
    (-1) says how many devices there are.
    """
    replicas = given.count("parallelism.data_parallel_replicate_degree") or 1
    sharded = given.number("parallelism.data_parallel_shard_degree")
    kept = given.text("parallelism.fsdp_reshard_after_forward") == "never"
    known = {}
    if sharded is not None and sharded > 0:
        known["devices"] = replicas * int(sharded) * tp * cp * pp
    if sharded == 1 and cp == 1:
        return {"zero": 0, "hsdp": 1, **known}
    return {"zero": (1 if pp > 1 else 2) if kept else 3, "hsdp": replicas, **known}


def _pipeline(given: Arguments, pp: int, layers: int) -> dict[str, Any]:
    said = given.text("parallelism.pipeline_parallel_schedule")
    a_stage = given.count("parallelism.pipeline_parallel_layers_per_stage")
    for name in ("first", "last"):
        given.count(f"parallelism.pipeline_parallel_{name}_stage_less_layers")
    parts = given.given.get("parallelism.module_fqns_per_model_part")
    if parts:
        given.text("parallelism.module_fqns_per_model_part")
    if pp == 1:
        return {"vpp": 1}
    order = SCHEDULES.get((said or "1F1B").lower())
    if order is None:
        raise AtollError(f"{given.file}: pipeline schedule {said!r} is not modelled")
    stages = len(parts) if parts else -(-layers // a_stage) if a_stage else pp
    vpp = max(1, stages // pp) if order == "interleaved" else 1
    if order == "interleaved" and vpp == 1:
        vpp = 2  # torchtitan's default for looped schedules
    return {"vpp": vpp, "order": order}


def _compiled(given: Arguments) -> bool:
    parts = given.text("compile.components") or "model loss"
    return given.has("compile.enable", "training.compile") and "model" in parts


def _recompute(given: Arguments, blocks: int) -> str:
    """What is computed again: all, every so many of a stage's blocks, or operators of each."""
    mode = given.text("activation_checkpoint.mode") or "selective"
    option = str(given.given.get("activation_checkpoint.selective_ac_option") or "op")
    given.text("activation_checkpoint.selective_ac_option")
    if mode in ("none", "full"):
        return mode
    if option.isdigit() and int(option):
        every = int(option)
        return "full" if every == 1 else f"{SOME}{max(1, blocks // every)}"
    return "alternate"


def _precision(given: Arguments) -> str:
    converters = given.text("model.converters") or ""
    unused = [section for section in ("quantize.grouped_mm.float8", "quantize.grouped_mm.mx")
              if section not in converters]  # fmt: skip
    given.ignore(f"{section}.*" for section in (*unused, "hf_transformers"))
    for name in list(given.given):
        if name.startswith(("float8.", "quantize.linear.float8.", "quantize.linear.mx.", "mx.")):
            given.text(name)
    if "mx" in converters:
        return "mxfp8"
    return "fp8" if "float8" in converters else "bf16"
