"""Ranks of torchtitan's Llama models: FSDP2, hybrid sharding, tensor and pipeline parallelism."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from atoll.measurement.rank_step import (
    DTYPES,
    RankStep,
    accumulated,
    adamw_update,
    empty_model,
    pipelined,
    randomize,
)
from atoll.measurement.runner import RankJob

TITAN_DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
RECOMPUTE = {
    "none": ("none", "2"),
    "full": ("full", "2"),
    "alternate": ("selective", "op"),
    "every-second-block": ("selective", "2"),
}
"""torchtitan's mode and option of activation checkpoints."""


def build(job: RankJob, device: str) -> RankStep:
    """Build one rank of a torchtitan layout with the tool's functions."""
    from torchtitan.components.loss import build_cross_entropy_loss
    from torchtitan.distributed import ParallelDims, parallel_dims
    from torchtitan.distributed import utils as titan_utils
    from torchtitan.models.llama3 import parallelize_llama

    parallel_dims.device_type = device
    settings = _settings(job)
    dims = ParallelDims(
        dp_replicate=job.replicate, dp_shard=job.fsdp, cp=1, tp=job.tp, pp=job.pp, ep=1, etp=1,
        world_size=job.world,
    )  # fmt: skip
    dims.build_mesh()
    model = _model(job, settings)
    parallelize_llama(model, dims, settings)
    model.to_empty(device=device)
    randomize(model)
    with torch.device(device):
        model.freqs_cis = model._precompute_freqs_cis()
    model.train()
    entropy = build_cross_entropy_loss(settings)
    shape = job.microbatch, job.sequence
    ids = torch.randint(0, job.config["vocab_size"], shape, device=device)
    tokens = job.microbatch * job.sequence
    cast = titan_utils.maybe_enable_amp(dims, settings.training.mixed_precision_param, device)

    def inputs() -> Any:
        if job.stage == 0:
            return ids
        shape = job.microbatch, job.sequence // job.tp, job.config["hidden_size"]
        return torch.randn(shape, device=device, dtype=DTYPES[job.compute]).requires_grad_()

    def stage(given: Any) -> Any:
        out = model(given)
        return entropy(out, ids) / tokens if job.last else out

    def loss() -> Any:
        with cast:
            return stage(ids)

    piped = job.pp > 1
    passes = pipelined(model, job, stage, inputs) if piped else accumulated(model, job, loss)
    clip = partial(titan_utils.clip_grad_norm_, foreach=True) if job.clip else None
    context = titan_utils.get_train_context(job.tp > 1)
    return RankStep(model, passes, adamw_update(model, clip), context)


def _settings(job: RankJob) -> Any:
    """Return torchtitan's configuration of the job."""
    from torchtitan.config import JobConfig

    settings = JobConfig()
    settings.training.seq_len, settings.training.local_batch_size = job.sequence, job.microbatch
    settings.training.mixed_precision_param = TITAN_DTYPES[job.compute]
    settings.training.mixed_precision_reduce = TITAN_DTYPES[job.reduce]
    settings.parallelism.fsdp_reshard_after_forward = "default" if job.reshard else "never"
    mode, option = RECOMPUTE[job.recompute]
    settings.activation_checkpoint.mode = mode
    settings.activation_checkpoint.selective_ac_option = option
    settings.compile.enable = job.compiled
    return settings


def _model(job: RankJob, settings: Any) -> Any:
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
    if job.blocks is not None:
        first, stop = job.blocks
        for name in list(model.layers):
            if not first <= int(name) < stop:
                del model.layers[name]
    if job.stage > 0:
        model.tok_embeddings = None
    if not job.last:
        model.norm, model.output = None, None
    return model
