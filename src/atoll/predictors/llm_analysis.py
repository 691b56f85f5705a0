"""Predictor llm-analysis (PyPI, Apache-2.0) through its public interface, if installed."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from atoll.base.errors import AtollError
from atoll.predictors.predictor import Asked, Predicted, Predictor

EFFICIENCY = 0.5
"""Share of the peak that its sources call usual for Megatron-LM; its default is 1."""
GATED = 1.5
"""It counts two matrices per MLP: a gated one has three, as in its Llama configurations."""
GB, GIB = 1e9, 2.0**30
_STAGES = ("NONE", "STAGE_1", "STAGE_2", "STAGE_3")


def _missing() -> str:
    try:
        _modules()
    except ImportError as error:
        return f"the package llm-analysis cannot be imported ({error})"
    return ""


@cache
def _modules() -> tuple[Any, Any]:
    analysis, config = (import_module(f"llm_analysis.{name}") for name in ("analysis", "config"))
    import_module("llm_analysis.logger").logger.setLevel("CRITICAL")
    return analysis, config


def _refuse(job: Asked) -> None:
    """Refuse runs that it cannot express."""
    run, layout, model = job.run, job.layout, job.run.model
    unknown = {
        "context parallelism": layout.cp > 1,
        f"precision {run.precision}": run.precision not in ("bf16", "fp16"),
        "adapters on frozen weights": run.adapters is not None,
        "interleaved and other pipeline orders": layout.vpp > 1 or layout.schedule != "1f1b",
        "recomputation of other parts": layout.recompute not in ("none", "selective", "full"),
        "latent attention": model.latent_kv > 0,
        "shared experts or dense layers among them": bool(model.shared_ffn or model.dense_layers),
        "blocks that differ, or an encoder": model.one_branch or model.encoder_layers > 0,
        "heads of another width": model.head_dim * model.heads != model.hidden,
        "sliding windows": any(0 < w < run.sequence for w in (model.window, *model.windows)),
        "experts of another tensor width": layout.etp != layout.tp,
    }
    feature = next((name for name, used in unknown.items() if used), None)
    if feature is not None:
        raise AtollError(f"{feature} cannot be expressed")


def _predict(job: Asked) -> Predicted:
    _refuse(job)
    analysis, config = _modules()
    run, layout, model = job.run, job.layout, job.run.model
    ffn = round(model.ffn * (GATED if model.gated else 1.0))
    inner, outer = run.network.levels[0], run.network.levels[-1]
    try:
        tool = analysis.LLMAnalysis(
            config.ModelConfig(
                name=model.name,
                num_layers=model.layers,
                n_head=model.heads,
                hidden_dim=model.hidden,
                vocab_size=model.vocab,
                max_seq_len=run.sequence,
                num_key_value_heads=model.kv_heads,
                ffn_embed_dim=ffn,
                expansion_ratio=ffn / model.hidden,
                moe_num_experts=model.experts or 1,
                moe_top_k=model.experts_per_token if model.experts else 1,
            ),
            config.GPUConfig(
                name=run.gpu.name,
                mem_per_GPU_in_GB=run.capacity_bytes / GIB,
                hbm_bandwidth_in_GB_per_sec=run.gpu.hbm_Bps / GB,
                intra_node_bandwidth_in_GB_per_sec=inner.bandwidth_Bps / GB,
                intra_node_min_message_latency=inner.latency_s,
                peak_fp16_TFLOPS=run.gpu.peak_flops(run.precision) / 1e12,
                inter_node_bandwidth_in_GB_per_sec=outer.bandwidth_Bps / GB,
            ),
            parallelism_config=config.ParallelismConfig(
                tp_size=layout.tp,
                pp_size=layout.pp,
                dp_size=layout.dp,
                ep_size=layout.ep,
                sp_size=layout.tp if layout.sp else 1,
            ),
            flops_efficiency=EFFICIENCY,
        )
        summary = tool.training(
            batch_size_per_gpu=layout.microbatch,
            global_batch_size=run.global_batch,
            seq_len=run.sequence,
            activation_recomputation=analysis.ActivationRecomputation[layout.recompute.upper()],
            ds_zero=analysis.DSZeRO[_STAGES[layout.zero]],
            # Its gradients have the type of master weights, and it adds both for the optimizer.
            master_weights_dtype_bytes=run.states.gradient,
            other_op_bytes=run.states.optimizer - run.states.gradient,
            flash_attn=run.attention != "unfused",
            mlp_gated_linear_units=model.gated,
        )
    except AssertionError as error:
        words = " ".join(str(error).split())[:80]
        raise AtollError(f"it refuses the run ({words or 'one of its own checks'})") from error
    return Predicted(
        time_s=summary["latency_per_iter"],
        peak_bytes=summary["(weight+op_state+grad+act)_memory_per_gpu"],
        fits=summary["memory_left_per_gpu"] >= 0,
    )


LLM_ANALYSIS = Predictor(
    "llm-analysis",
    _predict,
    f"FLOPs of a step at {EFFICIENCY:.0%} of the peak, memory by part (llm-analysis on PyPI)",
    _missing,
)
