"""Ranks of models, built by the functions of each tool.

torchtitan's Llama models have FSDP2, hybrid sharding, tensor and pipeline parallelism; Hugging Face
models FSDP2, DistributedDataParallel, tensor parallelism and PEFT; Megatron-LM's GPT models tensor,
sequence and pipeline parallelism and the distributed optimizer.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional

from atoll.measurement.profiler import Mark
from atoll.measurement.rank_step import DTYPES, RankStep, adamw_update, empty_model, randomize
from atoll.measurement.runner import RankJob

TITAN_RECOMPUTE = {
    "none": ("none", "2"),
    "full": ("full", "2"),
    "alternate": ("selective", "op"),
    "every-second-block": ("selective", "2"),
}
"""torchtitan's mode and option of activation checkpoints."""
COLUMNS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj",
           "mlp.up_proj")  # fmt: skip
ROWS = ("self_attn.o_proj", "mlp.down_proj")
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
MEGATRON_RECOMPUTE: dict[str, dict[str, Any]] = {"none": {}, "full": FULL}
VOCABULARY_UNIT = 128
"""Megatron-LM pads rows of the vocabulary to a multiple of this on every tensor rank."""


def build_torchtitan(job: RankJob, device: str) -> RankStep:
    """Build one rank of a torchtitan layout."""
    from torchtitan.components.loss import build_cross_entropy_loss
    from torchtitan.config import JobConfig
    from torchtitan.distributed import ParallelDims, parallel_dims, utils
    from torchtitan.models.llama3 import parallelize_llama

    parallel_dims.device_type = device
    settings = JobConfig()
    training, checkpoint = settings.training, settings.activation_checkpoint
    training.seq_len, training.local_batch_size = job.sequence, job.microbatch
    training.mixed_precision_param = str(DTYPES[job.compute]).removeprefix("torch.")
    training.mixed_precision_reduce = str(DTYPES[job.reduce]).removeprefix("torch.")
    settings.parallelism.fsdp_reshard_after_forward = "default" if job.reshard else "never"
    checkpoint.mode, checkpoint.selective_ac_option = TITAN_RECOMPUTE[job.recompute]
    settings.compile.enable = job.compiled
    dims = ParallelDims(
        dp_replicate=job.replicate, dp_shard=job.fsdp, cp=1, tp=job.tp, pp=job.pp, ep=1, etp=1,
        world_size=job.world,
    )  # fmt: skip
    dims.build_mesh()
    model = _titan_model(job, settings)
    parallelize_llama(model, dims, settings)
    model.to_empty(device=device)
    randomize(model)
    with torch.device(device):
        model.freqs_cis = model._precompute_freqs_cis()
    model.train()
    entropy = build_cross_entropy_loss(settings)
    cast = utils.maybe_enable_amp(dims, training.mixed_precision_param, device)

    def forward(given: Any, labels: Any) -> Any:
        with cast:
            out = model(given)
            return entropy(out, labels) / labels.numel() if job.last else out

    clip = partial(utils.clip_grad_norm_, foreach=True) if job.clip else None
    context = utils.get_train_context(job.tp > 1)
    return RankStep(job, device, model, forward, adamw_update(model, clip), context)


def _titan_model(job: RankJob, settings: Any) -> Any:
    """Return the stage's part of the model, without storage."""
    from torchtitan.models.llama3 import Transformer, TransformerModelArgs

    config = job.config
    if config["model_type"] != "llama":
        raise ValueError(f"torchtitan's {config['model_type']} is not measured; use transformers")
    hidden = config["hidden_size"]
    # torchtitan takes the width as a factor, rounded up to a multiple
    multiplier = config["intermediate_size"] / int(2 * 4 * hidden / 3)
    arguments = TransformerModelArgs(
        dim=hidden, n_layers=config["num_hidden_layers"], n_heads=config["num_attention_heads"],
        n_kv_heads=config["num_key_value_heads"], vocab_size=config["vocab_size"],
        ffn_dim_multiplier=multiplier * 0.999, multiple_of=256, rope_theta=500000,
    )  # fmt: skip
    arguments.update_from_config(settings)
    with empty_model(job):
        model: Any = Transformer(arguments)
    for number in range(config["num_hidden_layers"]):
        if job.blocks is not None and number not in range(*job.blocks):
            del model.layers[str(number)]
    if job.stage > 0:
        model.tok_embeddings = None
    if not job.last:
        model.norm, model.output = None, None
    return model


def build_transformers(job: RankJob, device: str) -> RankStep:
    """Build one rank of a Hugging Face layout."""
    import transformers

    if job.pp > 1:
        raise ValueError("Hugging Face models have no pipeline; use --tool torchtitan")
    config = dict(job.config)
    settings = transformers.AutoConfig.for_model(config.pop("model_type"), **config)
    if "num_experts_per_tok" in config:
        settings._experts_implementation = "grouped_mm"
    make = transformers.AutoModelForCausalLM.from_config
    with empty_model(job) as dtype:
        base = make(settings, attn_implementation="sdpa", dtype=dtype)
    model: Any = _with_adapters(base, job) if job.lora_rank else base
    model.train()
    if job.recompute == "full":
        base.gradient_checkpointing_enable({"use_reentrant": False})
        if job.lora_rank:
            base.enable_input_require_grads()
    elif job.recompute != "none":
        raise ValueError(f"Hugging Face has no recomputation {job.recompute!r}; use none or full")
    lists = (m for m in base.modules() if isinstance(m, torch.nn.ModuleList))
    blocks = list(next(m for m in lists if len(m) == base.config.num_hidden_layers))
    replicas = _divide(model, blocks, job, device)
    model.to_empty(device=device)
    randomize(model)
    for parent in list(base.modules()):  # an empty model lacks its rotary frequencies
        for name, child in list(parent.named_children()):
            if hasattr(child, "inv_freq"):
                setattr(parent, name, type(child)(config=base.config).to(device))
    called = model
    if replicas is not None:
        devices, parallel = [0] if device == "cuda" else None, torch.nn.parallel
        called = parallel.DistributedDataParallel(model, devices, process_group=replicas)
    for block in blocks if job.compiled else ():
        block.compile()
    mixed = job.fsdp == 1 and job.weights != "bf16"

    def forward(ids: Any, labels: Any) -> Any:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=mixed):
            return called(input_ids=ids, labels=labels, use_cache=False).loss

    clip = torch.nn.utils.clip_grad_norm_ if job.clip else None
    return RankStep(job, device, model, forward, adamw_update(model, clip))


def _with_adapters(base: Any, job: RankJob) -> Any:
    import peft

    targets = list(job.lora_targets)
    adapters = peft.LoraConfig(
        r=job.lora_rank, lora_alpha=32, target_modules=targets, task_type="CAUSAL_LM"
    )
    return peft.get_peft_model(base, adapters, autocast_adapter_dtype=False)


def _divide(model: Any, blocks: list[Any], job: RankJob, device: str) -> Any:
    """Divide a model over tensor ranks, then every block and what is left, as accelerate does;
    return the process group of DistributedDataParallel, None without it.
    """
    degrees = {"replicate": job.replicate, "shard": job.fsdp, "tp": job.tp}  # the slowest first
    sizes = {name: size for name, size in degrees.items() if size > 1}
    if not sizes:
        return None
    mesh = init_device_mesh(device, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    if job.tp > 1:
        plan: dict[str, Any] = {"lm_head": ColwiseParallel(output_layouts=Replicate())}
        plan |= {f"model.layers.*.{name}": ColwiseParallel() for name in COLUMNS}
        plan |= {f"model.layers.*.{name}": RowwiseParallel() for name in ROWS}
        parallelize_module(model, mesh["tp"], plan)
    if job.fsdp == 1:
        return mesh["replicate"].get_group() if job.replicate > 1 else None
    shards = mesh["replicate", "shard"] if job.replicate > 1 else mesh["shard"]
    policy = MixedPrecisionPolicy(DTYPES[job.compute], DTYPES[job.reduce])
    for part in (*blocks, model):
        fully_shard(part, mesh=shards, mp_policy=policy, reshard_after_forward=job.reshard)
    return None


class FusedAttention(torch.nn.Module):  # type: ignore[misc]
    """torch's causal attention over tensors of shape (sequence, batch, heads, width), where
    Megatron-Core's needs Transformer Engine.
    """

    def __init__(self, **_: Any) -> None:
        super().__init__()

    def forward(self, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        q, k, v = (each.permute(1, 2, 0, 3) for each in (query, key, value))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out.permute(2, 0, 1, 3).flatten(2)


def rms_norm(config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> Any:
    """Return torch's norm, whose gradient sequence-parallel ranks reduce."""
    norm = torch.nn.RMSNorm(hidden_size, eps)
    norm.weight.sequence_parallel = config.sequence_parallel
    return norm


def build_megatron_lm(job: RankJob, device: str) -> RankStep:
    """Build one rank of a Megatron-LM layout."""
    from megatron.core import distributed, optimizer, parallel_state, tensor_parallel
    from megatron.core.transformer.module import Float16Module

    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(job.tp, job.pp, create_gloo_process_groups=False)
    if device == "cuda":
        tensor_parallel.model_parallel_cuda_manual_seed(0)
    gpt = _megatron_model(job)
    stage: Any = Float16Module(gpt.config, gpt.to(device))
    randomize(stage)
    divided = job.fsdp > 1
    settings = distributed.DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, use_distributed_optimizer=divided
    )
    model: Any = distributed.DistributedDataParallel(gpt.config, settings, stage)
    model.train()
    options = optimizer.OptimizerConfig(
        optimizer="adam", lr=1e-6, bf16=True, params_dtype=torch.bfloat16,
        use_distributed_optimizer=divided, clip_grad=1.0 if job.clip else 0.0,
    )  # fmt: skip
    adam = optimizer.get_megatron_optimizer(options, [model], use_gloo_process_groups=False)
    positions = torch.arange(job.sequence, device=device).expand(job.microbatch, -1)

    def forward(given: Any, ids: Any) -> Any:
        gpt.set_input_tensor(None if given is ids else given)
        out = model(ids, positions, None, labels=ids if job.last else None)
        return out.float().mean() if job.last else out

    def update(mark: Mark) -> None:
        model.finish_grad_sync()
        mark("optimizer")
        adam.step()
        model.zero_grad_buffer()
        adam.zero_grad()

    return RankStep(job, device, model, forward, update)


def _megatron_model(job: RankJob) -> Any:
    """Return the stage's part of a Llama model, of Megatron-Core's local modules, with torch's norm
    and attention; its pipelines divide blocks evenly.
    """
    from megatron.core.models.gpt import GPTModel, gpt_layer_specs
    from megatron.core.transformer import TransformerConfig, transformer_block

    shape = job.config
    if shape["model_type"] != "llama":
        raise ValueError(f"Megatron-LM's {shape['model_type']} is not measured; use transformers")
    config = TransformerConfig(
        num_layers=shape["num_hidden_layers"], hidden_size=shape["hidden_size"],
        num_attention_heads=shape["num_attention_heads"],
        num_query_groups=shape["num_key_value_heads"], ffn_hidden_size=shape["intermediate_size"],
        normalization="RMSNorm", gated_linear_unit=True, activation_func=functional.silu,
        add_bias_linear=False, bias_activation_fusion=True, bf16=True,
        params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16,
        tensor_model_parallel_size=job.tp, pipeline_model_parallel_size=job.pp,
        sequence_parallel=job.tp > 1, use_cpu_initialization=True, perform_initialization=False,
        hidden_dropout=0.0, attention_dropout=0.0, gradient_accumulation_fusion=False,
        **MEGATRON_RECOMPUTE[job.recompute],
    )  # fmt: skip
    layer = gpt_layer_specs.get_gpt_layer_local_spec(normalization="LayerNorm")
    parts = layer.submodules
    parts.input_layernorm = parts.pre_mlp_layernorm = rms_norm
    parts.self_attention.submodules.core_attention = FusedAttention
    layers = [layer] * (config.num_layers // job.pp)
    unit = VOCABULARY_UNIT * job.tp
    return GPTModel(
        config, transformer_block.TransformerBlockSubmodules(layers, rms_norm),
        -(-shape["vocab_size"] // unit) * unit, job.sequence,
        pre_process=job.stage == 0, post_process=job.last, position_embedding_type="rope",
        share_embeddings_and_output_weights=False, rotary_base=500000,
    )  # fmt: skip


BUILDERS = {
    "torchtitan": build_torchtitan,
    "transformers": build_transformers,
    "megatron-lm": build_megatron_lm,
}
