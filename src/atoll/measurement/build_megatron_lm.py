"""Ranks of Megatron-LM's GPT models: tensor, sequence and pipeline parallelism, and the distributed
optimizer. Modules are Megatron-Core's local ones, with torch's norm and fused attention where those
need Transformer Engine.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.nn import functional

from atoll.measurement.profiler import Mark
from atoll.measurement.rank_step import RankStep, randomize
from atoll.measurement.runner import RankJob

VOCABULARY_UNIT = 128
"""Rows of the vocabulary are padded to a multiple of this on every tensor rank."""
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
RECOMPUTE: dict[str, dict[str, Any]] = {"none": {}, "full": FULL}


class FusedAttention(torch.nn.Module):  # type: ignore[misc]
    """torch's causal attention over tensors of shape (sequence, batch, heads, width)."""

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


def build(job: RankJob, device: str) -> RankStep:
    """Build one rank of a Megatron-LM layout with the tool's functions."""
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(job.tp, job.pp, create_gloo_process_groups=False)
    if device == "cuda":
        tensor_parallel.model_parallel_cuda_manual_seed(0)
    config = _config(job)
    stage: Any = Float16Module(config, _model(job, config).to(device))
    randomize(stage)
    distributed = job.fsdp > 1
    settings = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, use_distributed_optimizer=distributed
    )
    model: Any = DistributedDataParallel(config, settings, stage)
    model.train()
    options = OptimizerConfig(
        optimizer="adam", lr=1e-6, bf16=True, params_dtype=torch.bfloat16,
        use_distributed_optimizer=distributed, clip_grad=1.0 if job.clip else 0.0,
    )  # fmt: skip
    optimizer = get_megatron_optimizer(options, [model], use_gloo_process_groups=False)
    positions = torch.arange(job.sequence, device=device).expand(job.microbatch, -1)

    def forward(given: Any, ids: Any) -> Any:
        stage.module.set_input_tensor(None if given is ids else given)
        out = model(ids, positions, None, labels=ids if job.last else None)
        return out.float().mean() if job.last else out

    def update(mark: Mark) -> None:
        model.finish_grad_sync()
        mark("optimizer")
        optimizer.step()
        model.zero_grad_buffer()
        optimizer.zero_grad()

    return RankStep(job, device, model, forward, update)


def _config(job: RankJob) -> Any:
    """Return Megatron-Core's configuration of a Llama model; its pipelines divide blocks evenly."""
    config = job.config
    if config["model_type"] != "llama":
        raise ValueError(f"Megatron-LM's {config['model_type']} is not measured; use transformers")
    return TransformerConfig(
        num_layers=config["num_hidden_layers"], hidden_size=config["hidden_size"],
        num_attention_heads=config["num_attention_heads"],
        num_query_groups=config["num_key_value_heads"],
        ffn_hidden_size=config["intermediate_size"], normalization="RMSNorm",
        gated_linear_unit=True, activation_func=functional.silu, add_bias_linear=False,
        bias_activation_fusion=True, bf16=True, params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16, tensor_model_parallel_size=job.tp,
        pipeline_model_parallel_size=job.pp, sequence_parallel=job.tp > 1,
        use_cpu_initialization=True, perform_initialization=False, hidden_dropout=0.0,
        attention_dropout=0.0, gradient_accumulation_fusion=False, **RECOMPUTE[job.recompute],
    )  # fmt: skip


def _model(job: RankJob, config: Any) -> Any:
    """Return the stage's part of the model."""
    layer = get_gpt_layer_local_spec(normalization="LayerNorm")
    parts = layer.submodules
    parts.input_layernorm = parts.pre_mlp_layernorm = rms_norm
    parts.self_attention.submodules.core_attention = FusedAttention
    layers = config.num_layers // job.pp
    unit = VOCABULARY_UNIT * job.tp
    vocabulary = -(-job.config["vocab_size"] // unit) * unit
    return GPTModel(
        config, TransformerBlockSubmodules([layer] * layers, rms_norm), vocabulary, job.sequence,
        pre_process=job.stage == 0, post_process=job.last, position_embedding_type="rope",
        share_embeddings_and_output_weights=False, rotary_base=500000,
    )  # fmt: skip
