"""Ranks of Hugging Face models: FSDP2, DistributedDataParallel, tensor parallelism, PEFT."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from atoll.measurement.rank_step import DTYPES, RankStep, adamw_update, empty_model, randomize
from atoll.measurement.runner import RankJob

COLUMNS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj",
           "mlp.up_proj")  # fmt: skip
ROWS = ("self_attn.o_proj", "mlp.down_proj")


def build(job: RankJob, device: str) -> RankStep:
    """Build one rank of a Hugging Face layout."""
    if job.pp > 1:
        raise ValueError("Hugging Face models have no pipeline; use --tool torchtitan")
    base = _model(job)
    model = _with_adapters(base, job) if job.lora_rank else base
    model.train()
    if job.recompute == "full":
        base.gradient_checkpointing_enable({"use_reentrant": False})
        if job.lora_rank:
            base.enable_input_require_grads()
    elif job.recompute != "none":
        raise ValueError(f"Hugging Face has no recomputation {job.recompute!r}; use none or full")
    replicated = _parallelize(model, base, job, device)
    model.to_empty(device=device)
    randomize(model)
    _restore_buffers(base, device)
    called = model
    if replicated is not None:
        numbers = [0] if device == "cuda" else None
        parallel = torch.nn.parallel.DistributedDataParallel
        called = parallel(model, device_ids=numbers, process_group=replicated)
    if job.compiled:
        for block in _blocks(base):
            block.compile()
    mixed = job.fsdp == 1 and job.weights != "bf16"

    def forward(ids: Any, labels: Any) -> Any:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=mixed):
            return called(input_ids=ids, labels=labels, use_cache=False).loss

    clip = torch.nn.utils.clip_grad_norm_ if job.clip else None
    return RankStep(job, device, model, forward, adamw_update(model, clip))


def _model(job: RankJob) -> Any:
    """Return the model without storage."""
    config = dict(job.config)
    settings = transformers.AutoConfig.for_model(config.pop("model_type"), **config)
    if "num_experts_per_tok" in config:
        settings._experts_implementation = "grouped_mm"
    build_model = transformers.AutoModelForCausalLM.from_config
    with empty_model(job) as dtype:
        return build_model(settings, attn_implementation="sdpa", dtype=dtype)


def _with_adapters(base: Any, job: RankJob) -> Any:
    import peft

    targets = list(job.lora_targets)
    adapters = peft.LoraConfig(
        r=job.lora_rank, lora_alpha=32, target_modules=targets, task_type="CAUSAL_LM"
    )
    return peft.get_peft_model(base, adapters, autocast_adapter_dtype=False)


def _parallelize(model: Any, base: Any, job: RankJob, device: str) -> Any:
    """Divide tensors, then every block and what is left, as accelerate does; return the process
    group of DistributedDataParallel, None without it.
    """
    degrees = {"replicate": job.replicate, "shard": job.fsdp, "tp": job.tp}  # the slowest first
    sizes = {name: size for name, size in degrees.items() if size > 1}
    if not sizes:
        return None
    mesh = init_device_mesh(device, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    if job.tp > 1:
        plan: dict[str, Any] = {f"model.layers.*.{name}": ColwiseParallel() for name in COLUMNS}
        plan |= {f"model.layers.*.{name}": RowwiseParallel() for name in ROWS}
        plan["lm_head"] = ColwiseParallel(output_layouts=Replicate())
        parallelize_module(model, mesh["tp"], plan)
    if job.fsdp == 1:
        return mesh["replicate"].get_group() if job.replicate > 1 else None
    shards = mesh["replicate", "shard"] if job.replicate > 1 else mesh["shard"]
    policy = MixedPrecisionPolicy(DTYPES[job.compute], DTYPES[job.reduce])
    for part in (*_blocks(base), model):
        fully_shard(part, mesh=shards, mp_policy=policy, reshard_after_forward=job.reshard)
    return None


def _blocks(model: Any) -> list[Any]:
    """Return the blocks of a model: its first list of as many modules as it has layers."""
    lists = (m for m in model.modules() if isinstance(m, torch.nn.ModuleList))
    return list(next(m for m in lists if len(m) == model.config.num_hidden_layers))


def _restore_buffers(model: Any, device: str) -> None:
    """Compute again the buffers that an empty model lacks: rotary frequencies."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if hasattr(child, "inv_freq"):
                setattr(parent, name, type(child)(config=model.config).to(device))
