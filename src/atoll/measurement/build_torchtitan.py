"""Ranks of torchtitan's Llama models: FSDP2, hybrid sharding, tensor and pipeline parallelism."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torchtitan.components.loss import build_cross_entropy_loss
from torchtitan.config import JobConfig
from torchtitan.distributed import ParallelDims, parallel_dims
from torchtitan.distributed import utils as titan_utils
from torchtitan.models.llama3 import Transformer, TransformerModelArgs, parallelize_llama

from atoll.measurement.rank_step import DTYPES, RankStep, adamw_update, empty_model, randomize
from atoll.measurement.runner import RankJob

RECOMPUTE = {
    "none": ("none", "2"),
    "full": ("full", "2"),
    "alternate": ("selective", "op"),
    "every-second-block": ("selective", "2"),
}
"""torchtitan's mode and option of activation checkpoints."""


def build(job: RankJob, device: str) -> RankStep:
    """Build one rank of a torchtitan layout with the tool's functions."""
    parallel_dims.device_type = device
    settings = JobConfig()
    training, checkpoint = settings.training, settings.activation_checkpoint
    training.seq_len, training.local_batch_size = job.sequence, job.microbatch
    training.mixed_precision_param = str(DTYPES[job.compute]).removeprefix("torch.")
    training.mixed_precision_reduce = str(DTYPES[job.reduce]).removeprefix("torch.")
    settings.parallelism.fsdp_reshard_after_forward = "default" if job.reshard else "never"
    checkpoint.mode, checkpoint.selective_ac_option = RECOMPUTE[job.recompute]
    settings.compile.enable = job.compiled
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
    cast = titan_utils.maybe_enable_amp(dims, training.mixed_precision_param, device)

    def forward(given: Any, labels: Any) -> Any:
        with cast:
            out = model(given)
            return entropy(out, labels) / labels.numel() if job.last else out

    clip = partial(titan_utils.clip_grad_norm_, foreach=True) if job.clip else None
    context = titan_utils.get_train_context(job.tp > 1)
    return RankStep(job, device, model, forward, adamw_update(model, clip), context)


def _model(job: RankJob, settings: Any) -> Any:
    """Return the stage's part of the model, without storage."""
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
