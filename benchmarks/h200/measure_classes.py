"""Measure training steps of many models on one GPU, each by kernel class.

    python measure_classes.py --out results             # every case, on the GPU
    python measure_classes.py --out results --budget 500 --start 40
    python measure_classes.py --out results --tiny      # tiny models on the CPU: a check

Each case runs in a forked process of its own: random weights and data, some warm-up steps, then
steps timed by CUDA events, a second of steps back to back while NVML is sampled, one step under
Kineto and one whose operators are counted. `steps.csv` has the columns of `h200_steps_3.csv` and
some more, `kernels.jsonl` every kernel by phase, `operators.jsonl` every operator with its
products' FLOP and bytes, `chains.csv` short operator chains alone. A failed case is a row with its
error. Which half of the data a row belongs to depends on the family alone (`FIT_FAMILIES`).
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gc
import importlib
import json
import multiprocessing
import os
import re
import statistics
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # so that children can use CUDA
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from atoll.calibration.local_gpu import nvml
from atoll.measurement.profiler import profiled_kernels, timed_steps

BF16, FP32 = torch.bfloat16, torch.float32
ALL_LINEAR = "q_proj+k_proj+v_proj+o_proj+gate_proj+up_proj+down_proj"
FIT_FAMILIES = {
    "llama", "qwen3", "gpt2", "phi", "phi3", "olmo2", "bloom", "bert", "t5", "vit", "mixtral",
    "gpt_oss", "mamba",
}  # fmt: skip

# the columns of h200_steps_3.csv, in its order, then those that it lacks
FIELDS = [
    "model", "config", "family", "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn",
    "vocab", "experts", "top_k", "moe_ffn", "shared_experts", "dense_layers", "tied_embeddings",
    "params", "trainable", "mbs", "seq", "recompute", "lora_rank", "lora_targets",
    "experts_implementation", "step_ms", "spread", "peak_bytes", "dropout", "accum", "compiled",
    "id", "kind", "optimizer", "attn", "backend", "graph", "fp8", "packed", "peft", "steps_timed",
    "back_to_back_ms", "reserved_bytes", "device_used_bytes", "device_total_bytes", "power_W",
    "clock_MHz", "loss", "kernels", "kernel_ms", "k_products_ms", "k_attention_ms",
    "k_optimizer_ms", "k_softmax/loss_ms", "k_streaming_ms", "k_memory_ms", "setup_s",
    "sampled_power_during_timing", "other_step_ms",
    "half", "weights", "precision", "mask", "window", "clip", "loss_kind", "liger",
    "adapter_dtype", "compile_mode", "host_ms", "host_cpu_ms", "host_small_ms", "forward_ms",
    "backward_ms", "clip_ms", "optimizer_ms", "static_bytes", "other_bytes", "alloc_retries",
    "k_grouped_ms", "k_attention_helpers_ms", "k_index_ms", "k_cat_ms", "k_fill_ms", "k_cast_ms",
    "k_norm_ms", "k_reduce_ms", "k_clip_ms", "k_forward_ms", "k_backward_ms", "product_flop",
    "grouped_flop", "attention_flop", "stream_bytes", "energy_J", "temperature_C", "torch",
    "transformers", "driver", "gpu", "error",
]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """Describe one training step: the model's configuration and every choice of software."""

    id: str
    kind: str
    config: dict[str, Any]
    mbs: int
    seq: int
    precision: str = "bf16"  # bf16, amp (autocast over fp32 weights), fp32 or tf32
    attn: str = "sdpa"
    backend: str = ""
    mask: str = ""  # "", padding, packed or causal4d
    recompute: str = "0"  # 0, full or reentrant
    optimizer: str = "fused"
    clip: int = 0
    loss: str = "model"  # model, chunked, compiled or liger
    liger: int = 0
    compile_mode: str = ""  # "", model, block or reduce-overhead
    lora_rank: int = 0
    lora_targets: str = ALL_LINEAR
    adapter_dtype: str = "fp32"
    quantized: int = 0
    experts: str = ""
    later: int = 0
    seconds: float = 1.0

    @property
    def family(self) -> str:
        """Return the model type of the transformers library."""
        return str(self.config["model_type"])

    @property
    def half(self) -> str:
        """Return the half of the data that this case belongs to."""
        fitted = self.family in FIT_FAMILIES and not self.id.startswith("new-")
        return "fit" if fitted else "judge"


# --- models ---------------------------------------------------------------------------------------


def decoder(
    kind: str, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int,
    **more: Any,
) -> dict[str, Any]:  # fmt: skip
    """Return the configuration of a decoder with the names that most families use."""
    return {
        "model_type": kind, "num_hidden_layers": layers, "hidden_size": hidden,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "intermediate_size": ffn,
        "vocab_size": vocab, "tie_word_embeddings": False, **more,
    }  # fmt: skip


def llama(layers: int, hidden: int, heads: int, kv: int, ffn: int, vocab: int = 128256,
          **more: Any) -> dict[str, Any]:  # fmt: skip
    """Return the configuration of a Llama model."""
    return decoder("llama", layers, hidden, heads, kv, ffn, vocab, **more)


def llama1b(layers: int = 16) -> dict[str, Any]:
    """Return Llama-3.2 1B, cut to some layers."""
    return llama(layers, 2048, 32, 8, 8192, tie_word_embeddings=True)


def llama8b(layers: int) -> dict[str, Any]:
    """Return Llama-3 8B, cut to some layers."""
    return llama(layers, 4096, 32, 8, 14336)


def qwen2(size: str, layers: int) -> dict[str, Any]:
    """Return one of the Qwen2 models, cut to some layers."""
    hidden, heads, kv, ffn, vocab = {
        "0.5b": (896, 14, 2, 4864, 151936),
        "1.5b": (1536, 12, 2, 8960, 151936),
        "7b": (3584, 28, 4, 18944, 152064),
    }[size]
    return decoder("qwen2", layers, hidden, heads, kv, ffn, vocab, tie_word_embeddings=size != "7b")


def qwen3(size: str, layers: int) -> dict[str, Any]:
    """Return one of the Qwen3 models, cut to some layers."""
    hidden, heads, kv, ffn = {
        "0.6b": (1024, 16, 8, 3072), "1.7b": (2048, 16, 8, 6144), "8b": (4096, 32, 8, 12288),
    }[size]  # fmt: skip
    return decoder(
        "qwen3", layers, hidden, heads, kv, ffn, 151936, head_dim=128,
        tie_word_embeddings=size != "8b",
    )  # fmt: skip


def gpt2(layers: int, hidden: int, heads: int, dropout: float = 0.0) -> dict[str, Any]:
    """Return the configuration of a GPT-2 model."""
    return {
        "model_type": "gpt2", "n_layer": layers, "n_embd": hidden, "n_head": heads,
        "n_positions": 1024, "vocab_size": 50257, "resid_pdrop": dropout, "embd_pdrop": dropout,
        "attn_pdrop": dropout,
    }  # fmt: skip


def neox(layers: int, hidden: int, heads: int, **more: Any) -> dict[str, Any]:
    """Return the configuration of a GPT-NeoX model (Pythia)."""
    return {
        "model_type": "gpt_neox", "num_hidden_layers": layers, "hidden_size": hidden,
        "num_attention_heads": heads, "intermediate_size": 4 * hidden, "vocab_size": 50304,
        "max_position_embeddings": 2048, **more,
    }  # fmt: skip


def encoder(kind: str, layers: int, hidden: int, heads: int, ffn: int, vocab: int,
            **more: Any) -> dict[str, Any]:  # fmt: skip
    """Return the configuration of an encoder without dropout."""
    return {
        "model_type": kind, "num_hidden_layers": layers, "hidden_size": hidden,
        "num_attention_heads": heads, "intermediate_size": ffn, "vocab_size": vocab,
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, **more,
    }  # fmt: skip


def opt(layers: int, hidden: int, heads: int) -> dict[str, Any]:
    """Return the configuration of an OPT model without dropout."""
    return {
        "model_type": "opt", "num_hidden_layers": layers, "hidden_size": hidden,
        "num_attention_heads": heads, "ffn_dim": 4 * hidden, "vocab_size": 50272,
        "max_position_embeddings": 2048, "word_embed_proj_dim": hidden, "dropout": 0.0,
        "attention_dropout": 0.0,
    }  # fmt: skip


def t5(layers: int, hidden: int, heads: int, ffn: int, dropout: float = 0.0) -> dict[str, Any]:
    """Return the configuration of a T5 model."""
    return {
        "model_type": "t5", "num_layers": layers, "num_decoder_layers": layers, "d_model": hidden,
        "num_heads": heads, "d_kv": 64, "d_ff": ffn, "vocab_size": 32128, "dropout_rate": dropout,
        "feed_forward_proj": "relu", "decoder_start_token_id": 0, "pad_token_id": 0,
    }  # fmt: skip


def gemma3(size: str, layers: int, window: int) -> dict[str, Any]:
    """Return a Gemma-3 text model: five windowed layers, then one that sees everything."""
    hidden, heads, kv, ffn, dim = {
        "270m": (640, 4, 1, 2048, 256),
        "1b": (1152, 4, 1, 6912, 256),
        "4b": (2560, 8, 4, 10240, 256),
    }[size]
    return decoder(
        "gemma3_text", layers, hidden, heads, kv, ffn, 262144, head_dim=dim,
        sliding_window=window, tie_word_embeddings=True,
    )  # fmt: skip


def gemma(layers: int) -> dict[str, Any]:
    """Return Gemma 2B, cut to some layers: heads of 256."""
    return decoder(
        "gemma", layers, 2048, 8, 1, 16384, 256000, head_dim=256, tie_word_embeddings=True
    )


def mistral(layers: int, window: int | None = None) -> dict[str, Any]:
    """Return Mistral 7B, cut to some layers."""
    return decoder("mistral", layers, 4096, 32, 8, 14336, 32000, sliding_window=window)


def mixtral(layers: int, hidden: int, heads: int, kv: int, ffn: int) -> dict[str, Any]:
    """Return a Mixtral model of eight experts."""
    return decoder(
        "mixtral", layers, hidden, heads, kv, ffn, 32000, num_local_experts=8,
        num_experts_per_tok=2, sliding_window=None,
    )  # fmt: skip


def qwen3_moe(layers: int) -> dict[str, Any]:
    """Return Qwen3-30B-A3B, cut to some layers."""
    return decoder(
        "qwen3_moe", layers, 2048, 32, 4, 6144, 151936, head_dim=128, num_experts=128,
        num_experts_per_tok=8, moe_intermediate_size=768, norm_topk_prob=True,
        decoder_sparse_step=1, mlp_only_layers=[],
    )  # fmt: skip


def olmoe(layers: int) -> dict[str, Any]:
    """Return OLMoE, cut to some layers."""
    return decoder(
        "olmoe", layers, 2048, 16, 16, 1024, 50304, num_experts=64, num_experts_per_tok=8
    )


DEEPSEEK3 = {
    "model_type": "deepseek_v3", "hidden_size": 2048, "intermediate_size": 8192,
    "moe_intermediate_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 16,
    "num_key_value_heads": 16, "q_lora_rank": 768, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "first_k_dense_replace": 1, "n_group": 8, "topk_group": 4,
    "vocab_size": 129280, "tie_word_embeddings": False,
}  # fmt: skip
GPT_OSS = decoder(
    "gpt_oss", 2, 2880, 64, 8, 2880, 201088, head_dim=64, num_local_experts=32,
    num_experts_per_tok=4, sliding_window=128,
)  # fmt: skip
QWEN2_MOE = decoder(
    "qwen2_moe", 4, 2048, 16, 16, 5632, 151936, num_experts=60, num_experts_per_tok=4,
    moe_intermediate_size=1408, shared_expert_intermediate_size=5632,
)  # fmt: skip
QWEN3_NEXT = decoder(
    "qwen3_next", 4, 1024, 8, 2, 2048, 151936, head_dim=128, num_experts=16,
    num_experts_per_tok=4, moe_intermediate_size=256, shared_expert_intermediate_size=256,
    linear_num_value_heads=16, linear_num_key_heads=8, linear_key_head_dim=128,
    linear_value_head_dim=128,
)  # fmt: skip
MAMBA2 = {
    "model_type": "mamba2", "hidden_size": 1024, "num_hidden_layers": 4, "state_size": 128,
    "expand": 2, "head_dim": 64, "num_heads": 32, "n_groups": 1, "conv_kernel": 4,
    "chunk_size": 256, "vocab_size": 50288, "tie_word_embeddings": True,
}  # fmt: skip
MAMBA = {
    "model_type": "mamba", "hidden_size": 1024, "num_hidden_layers": 2, "state_size": 16,
    "vocab_size": 50280,
}  # fmt: skip
VIT = {
    "model_type": "vit", "num_hidden_layers": 12, "hidden_size": 1024, "num_attention_heads": 16,
    "intermediate_size": 4096, "image_size": 224, "patch_size": 16, "num_labels": 1000,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
BART = {
    "model_type": "bart", "encoder_layers": 6, "decoder_layers": 6, "d_model": 1024,
    "encoder_attention_heads": 16, "decoder_attention_heads": 16, "encoder_ffn_dim": 4096,
    "decoder_ffn_dim": 4096, "vocab_size": 50265, "max_position_embeddings": 1024,
    "dropout": 0.1, "attention_dropout": 0.0,
}  # fmt: skip
MODERNBERT = {
    "model_type": "modernbert", "hidden_size": 1024, "intermediate_size": 2624,
    "num_hidden_layers": 14, "num_attention_heads": 16, "vocab_size": 50368,
    "max_position_embeddings": 8192, "global_attn_every_n_layers": 3, "local_attention": 128,
    "attention_dropout": 0.0, "pad_token_id": 0,
}  # fmt: skip
FALCON = {
    "model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 3,
    "num_attention_heads": 71, "vocab_size": 65024, "multi_query": True, "parallel_attn": True,
    "bias": False, "alibi": False, "new_decoder_architecture": False,
}  # fmt: skip
BERT_BASE = encoder("bert", 12, 768, 12, 3072, 30522)
BERT_LARGE = encoder("bert", 24, 1024, 16, 4096, 30522)
GPT2_SMALL, GPT2_MEDIUM = gpt2(12, 768, 12), gpt2(24, 1024, 16)
PYTHIA = neox(12, 2048, 16, rotary_pct=0.25)
GEMMA2 = decoder("gemma2", 6, 2304, 8, 4, 9216, 256000, head_dim=256, sliding_window=4096,
                 tie_word_embeddings=True)  # fmt: skip


def families() -> Iterator[Case]:
    """Yield one plain step of each family: bf16, fused AdamW, SDPA, eager."""

    def case(name: str, config: dict[str, Any], mbs: int, seq: int, **more: Any) -> Case:
        return Case(f"fam-{name}-{mbs}x{seq}", "family", config, mbs, seq, **more)

    yield case("llama3-8b-6l", llama8b(6), 2, 4096)
    yield case("qwen2-7b-4l", qwen2("7b", 4), 2, 4096)
    yield case("gpt2-medium-drop", gpt2(24, 1024, 16, 0.1), 8, 1024)
    yield case("pythia-1.4b-12l", PYTHIA, 4, 2048)
    yield case("qwen3-8b-6l", qwen3("8b", 6), 2, 4096)
    yield case("mistral-7b-6l", mistral(6), 2, 4096)
    yield case("bert-base", BERT_BASE, 32, 512)
    yield case("modernbert-large-14l", MODERNBERT, 8, 2048)
    yield case("t5-base", t5(12, 768, 12, 3072), 16, 512)
    yield case("bart-large-6l", BART, 16, 512)
    yield case("phi2-6l", {"model_type": "phi", "num_hidden_layers": 6, "hidden_size": 2560,
               "num_attention_heads": 32, "intermediate_size": 10240, "vocab_size": 51200,
               "partial_rotary_factor": 0.4, "resid_pdrop": 0.0}, 4, 2048)  # fmt: skip
    yield case("pythia-2.8b-8l", neox(8, 2560, 32, rotary_pct=0.25), 4, 2048)
    yield case("phi3-mini-6l", decoder("phi3", 6, 3072, 32, 32, 8192, 32064, pad_token_id=0),
               2, 4096)  # fmt: skip
    yield case("neox-20b-2l", neox(2, 6144, 64, rotary_pct=0.25), 2, 2048)
    yield case("bloom-1b7-6l", {"model_type": "bloom", "n_layer": 6, "hidden_size": 2048,
               "n_head": 16, "vocab_size": 250880}, 4, 2048, attn="eager")  # fmt: skip
    yield case("falcon-7b-3l", FALCON, 2, 2048)
    yield case("llama3-70b-2l", llama(2, 8192, 64, 8, 28672), 1, 8192)
    yield case("gemma-2b-6l", gemma(6), 2, 4096)
    yield case("olmo2-1b-8l", decoder("olmo2", 8, 2048, 16, 16, 8192, 100352), 4, 2048)
    yield case("gemma3-4b-6l", gemma3("4b", 6, 1024), 1, 8192)
    yield case("tinyllama-22l", llama(22, 2048, 32, 4, 5632, 32000), 4, 2048)
    yield case("opt-1.3b-8l", opt(8, 2048, 32), 4, 2048)
    yield case("qwen3-0.6b", qwen3("0.6b", 28), 4, 2048)
    yield case("starcoder2-3b-6l", decoder("starcoder2", 6, 3072, 24, 2, 12288, 49152,
               residual_dropout=0.0, embedding_dropout=0.0, sliding_window=None),
               2, 4096)  # fmt: skip
    yield case("llama2-13b-4l", llama(4, 5120, 40, 40, 13824, 32000), 1, 4096, later=1)
    yield case("qwen2-0.5b", qwen2("0.5b", 24), 4, 2048)
    yield case("vit-l-12l", VIT, 64, 197)
    yield case("gemma2-2b-6l", GEMMA2, 1, 8192, later=1)
    yield case("gpt2-large-12l", gpt2(12, 1280, 20), 4, 1024, later=1)
    yield case("cohere-7b-2l", decoder("cohere", 2, 8192, 64, 64, 22528, 256000,
               tie_word_embeddings=True), 1, 2048, later=1)  # fmt: skip
    yield case("roberta-large-12l", encoder("roberta", 12, 1024, 16, 4096, 50265,
               max_position_embeddings=514), 16, 512, later=1)  # fmt: skip


def experts() -> Iterator[Case]:
    """Yield models with experts and state-space blocks."""

    def case(name: str, config: dict[str, Any], mbs: int, seq: int, **more: Any) -> Case:
        return Case(f"moe-{name}-{mbs}x{seq}", "experts", config, mbs, seq, **more)

    small = mixtral(8, 1024, 16, 4, 3584)
    yield case("mixtral-8x7b-1l", mixtral(1, 4096, 32, 8, 14336), 2, 4096, experts="grouped_mm")
    yield case("qwen3-30b-a3b-2l", qwen3_moe(2), 2, 4096, experts="grouped_mm")
    yield case("mixtral-small-8l", small, 4, 2048, experts="grouped_mm")
    yield case("qwen3-30b-a3b-2l-loop", qwen3_moe(2), 2, 4096, experts="eager")
    yield case("mixtral-small-8l-loop", small, 4, 2048, experts="eager")
    yield case("olmoe-4l", olmoe(4), 4, 2048, experts="grouped_mm")
    yield case("gpt-oss-2l", GPT_OSS, 1, 4096, attn="eager", experts="grouped_mm")
    yield case("deepseek3-small-3l", DEEPSEEK3, 2, 4096, experts="grouped_mm")
    yield case("mixtral-8x7b-1l-ckpt", mixtral(1, 4096, 32, 8, 14336), 2, 4096,
               experts="grouped_mm", recompute="full", later=1)  # fmt: skip
    yield case("qwen2-moe-4l", QWEN2_MOE, 2, 2048, experts="grouped_mm", later=1)
    yield case("gpt-oss-2l-short", GPT_OSS, 2, 1024, attn="eager", experts="grouped_mm", later=1)
    yield case("olmoe-4l-short", olmoe(4), 1, 512, experts="grouped_mm", later=1)
    for name, config, seq in (("mamba2-4l", MAMBA2, 2048), ("mamba-2l", MAMBA, 512)):
        yield Case(f"ssm-{name}-1x{seq}", "state space", config, 1, seq, attn="eager")
    yield Case("ssm-qwen3-next-4l-1x2048", "state space", QWEN3_NEXT, 1, 2048)


def attention() -> Iterator[Case]:
    """Yield attention back ends, head sizes, masks and windows."""
    flash, cudnn, efficient = "FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION"
    for name, config in (("llama1b-8l", llama1b(8)), ("qwen2-1.5b-8l", qwen2("1.5b", 8))):
        for backend in (flash, cudnn, efficient):
            yield Case(f"sdpa-{name}-1x8192-{backend[:5].lower()}", "sdpa backend", config, 1, 8192,
                       backend=backend)  # fmt: skip
        short = {**config, "num_hidden_layers": 4}
        yield Case(f"sdpa-{name[:-3]}-4l-1x4096-eager", "unfused", short, 1, 4096, attn="eager")
        yield Case(f"sdpa-{name}-1x8192-flex", "flex", config, 1, 8192, attn="flex_attention",
                   later=1)  # fmt: skip
        yield Case(f"mask-{name}-4x2048-padding", "dense mask", config, 4, 2048, mask="padding")
        yield Case(f"mask-{name}-4x2048-packed", "dense mask", config, 4, 2048, mask="packed")
    yield Case("mask-llama1b-8l-2x4096-causal4d", "dense mask", llama1b(8), 2, 4096,
               mask="causal4d")  # fmt: skip
    yield Case("mask-bert-large-12l-16x512", "dense mask",
               encoder("bert", 12, 1024, 16, 4096, 30522), 16, 512, mask="padding")  # fmt: skip
    for dim, heads, hidden in ((64, 32, 2048), (96, 32, 3072), (128, 16, 2048)):
        config = llama(4, hidden, heads, heads, 4 * hidden, 32000)
        yield Case(f"head-llama-d{dim}-1x16384", "head size", config, 1, 16384)
        yield Case(f"head-llama-d{dim}-1x16384-flash", "head size", config, 1, 16384,
                   backend=flash, later=int(dim != 96))  # fmt: skip
    h80 = neox(4, 2560, 32, rotary_pct=1.0, max_position_embeddings=16384)
    h256 = decoder("gemma", 4, 2048, 8, 8, 8192, 32000, head_dim=256)
    for name, config in (("neox-d80", h80), ("gemma-d256", h256)):
        yield Case(f"head-{name}-1x16384", "head size", config, 1, 16384)
        yield Case(f"head-{name}-1x16384-flash", "head size", config, 1, 16384, backend=flash)
    yield Case("win-mistral-3l-1x16384", "sliding window", mistral(3, 4096), 1, 16384)
    yield Case("win-mistral-3l-1x16384-flex", "sliding window", mistral(3, 4096), 1, 16384,
               attn="flex_attention")  # fmt: skip
    yield Case("win-mistral-3l-2x8192-w1024", "sliding window", mistral(3, 1024), 2, 8192, later=1)
    yield Case("win-gemma3-1b-6l-1x8192-flex", "sliding window", gemma3("1b", 6, 512), 1, 8192,
               attn="flex_attention", later=1)  # fmt: skip


def optimizers() -> Iterator[Case]:
    """Yield optimizers, clipping and precisions."""
    for name, config, mbs in (("llama1b", llama1b(), 1), ("qwen2-0.5b", qwen2("0.5b", 24), 2)):
        for kind in ("foreach", "forloop", "adamw8bit", "adafactor", "sgd"):
            yield Case(f"opt-{name}-{mbs}x1024-{kind}", "optimizer", config, mbs, 1024,
                       optimizer=kind, later=int(kind in ("adafactor", "sgd")))  # fmt: skip
        yield Case(f"opt-{name}-{mbs}x1024-clip", "optimizer", config, mbs, 1024, clip=1)
    yield Case("opt-gpt2-small-4x1024-foreach-clip", "optimizer", GPT2_SMALL, 4, 1024,
               optimizer="foreach", clip=1)  # fmt: skip
    yield Case("opt-pythia-160m-4x1024-forloop-clip", "optimizer", neox(12, 768, 12), 4, 1024,
               optimizer="forloop", clip=1)  # fmt: skip
    amp = {"precision": "amp", "clip": 1}
    yield Case("amp-llama1b-2x2048", "autocast", llama1b(), 2, 2048, **amp)
    yield Case("amp-qwen2-0.5b-4x2048", "autocast", qwen2("0.5b", 24), 4, 2048, **amp)
    yield Case("amp-gpt2-medium-8x1024-foreach", "autocast", GPT2_MEDIUM, 8, 1024,
               optimizer="foreach", **amp)  # fmt: skip
    yield Case("amp-pythia-1.4b-12l-4x2048-foreach", "autocast", PYTHIA, 4, 2048,
               optimizer="foreach", **amp)  # fmt: skip
    yield Case("amp-bert-large-16x512", "autocast", BERT_LARGE, 16, 512, precision="amp")
    yield Case("amp-mistral-4l-2x4096-ckpt", "autocast", mistral(4), 2, 4096, recompute="full",
               **amp)  # fmt: skip
    yield Case("amp-llama3-8b-4l-2x4096-ckpt", "autocast", llama8b(4), 2, 4096, recompute="full",
               later=1, **amp)  # fmt: skip
    for precision in ("fp32", "tf32"):
        more: dict[str, Any] = {"precision": precision, "kind": precision}
        yield Case(f"{precision}-gpt2-small-8x1024", config=GPT2_SMALL, mbs=8, seq=1024, **more)
        yield Case(f"{precision}-opt-1.3b-6l-2x2048", config=opt(6, 2048, 32), mbs=2, seq=2048,
                   **more)  # fmt: skip
        yield Case(f"{precision}-llama1b-6l-1x4096", config=llama1b(6), mbs=1, seq=4096, **more)
        yield Case(f"{precision}-qwen2-0.5b-12l-2x2048", config=qwen2("0.5b", 12), mbs=2, seq=2048,
                   later=1, **more)  # fmt: skip


def variants() -> Iterator[Case]:
    """Yield checkpointing, losses, adapters, host-bound models and long sequences."""
    full = {"kind": "checkpoint", "recompute": "full"}
    yield Case("ckpt-llama3-8b-6l-2x4096", config=llama8b(6), mbs=2, seq=4096, **full)
    yield Case("ckpt-gemma-2b-6l-2x4096", config=gemma(6), mbs=2, seq=4096, **full)
    yield Case("ckpt-gpt2-medium-8x1024", config=GPT2_MEDIUM, mbs=8, seq=1024, **full)
    yield Case("ckpt-pythia-1.4b-12l-4x2048", config=PYTHIA, mbs=4, seq=2048, **full)
    yield Case("ckpt-qwen3-0.6b-4x2048", config=qwen3("0.6b", 28), mbs=4, seq=2048, **full)
    yield Case("ckpt-llama1b-2x4096-reentrant", "checkpoint", llama1b(), 2, 4096,
               recompute="reentrant", later=1)  # fmt: skip
    yield Case("loss-llama1b-8l-1x16384-chunked", "loss", llama1b(8), 1, 16384, loss="chunked")
    yield Case("loss-qwen2-1.5b-8l-1x16384-chunked", "loss", qwen2("1.5b", 8), 1, 16384,
               loss="chunked")  # fmt: skip
    yield Case("loss-llama1b-8l-1x16384-liger", "loss", llama1b(8), 1, 16384, loss="liger")
    yield Case("loss-gemma-2b-4l-2x4096-liger", "loss", gemma(4), 2, 4096, loss="liger")
    yield Case("loss-llama1b-8l-2x4096-compiled", "loss", llama1b(8), 2, 4096, loss="compiled")
    yield Case("loss-qwen2-1.5b-8l-2x4096-compiled", "loss", qwen2("1.5b", 8), 2, 4096,
               loss="compiled", later=1)  # fmt: skip
    yield Case("liger-llama3-8b-4l-2x4096", "liger", llama8b(4), 2, 4096, liger=1, loss="liger")
    yield Case("liger-mistral-4l-2x4096", "liger", mistral(4), 2, 4096, liger=1, loss="liger")
    lora = {"kind": "lora", "lora_rank": 16}
    for name, config in (("llama3-8b-8l", llama8b(8)), ("qwen2-7b-6l", qwen2("7b", 6))):
        for dtype in ("fp32", "bf16"):
            yield Case(f"lora-{name}-2x4096-{dtype}", config=config, mbs=2, seq=4096,
                       adapter_dtype=dtype, **lora)  # fmt: skip
        yield Case(f"lora-{name}-2x4096-ckpt", config=config, mbs=2, seq=4096, recompute="full",
                   **lora)  # fmt: skip
        yield Case(f"lora-{name}-1x512", config=config, mbs=1, seq=512, later=1, **lora)
        yield Case(f"qlora-{name}-1x2048", "lora", config, 1, 2048, lora_rank=16, quantized=1)
    yield Case("lora-llama3-8b-8l-2x4096-qv8", "lora", llama8b(8), 2, 4096, lora_rank=8,
               lora_targets="q_proj+v_proj")  # fmt: skip
    yield Case("lora-mistral-8l-2x4096-r64", "lora", mistral(8), 2, 4096, lora_rank=64,
               adapter_dtype="bf16", later=1)  # fmt: skip
    tiny: dict[str, Any] = {"kind": "host", "seconds": 0.6}
    smollm = llama(30, 576, 9, 3, 1536, 49152, tie_word_embeddings=True)
    base = {**MODERNBERT, "hidden_size": 768, "intermediate_size": 1152,
            "num_attention_heads": 12, "num_hidden_layers": 22}  # fmt: skip
    yield Case("host-gpt2-small-1x512", config=GPT2_SMALL, mbs=1, seq=512, **tiny)
    yield Case("host-pythia-160m-1x1024", config=neox(12, 768, 12), mbs=1, seq=1024, **tiny)
    yield Case("host-smollm135m-2x512", config=smollm, mbs=2, seq=512, **tiny)
    yield Case("host-opt-125m-2x512", config=opt(12, 768, 12), mbs=2, seq=512, **tiny)
    yield Case("host-bert-base-4x128", config=BERT_BASE, mbs=4, seq=128, **tiny)
    yield Case("host-qwen2-0.5b-1x512", config=qwen2("0.5b", 24), mbs=1, seq=512, **tiny)
    yield Case("host-t5-small-4x128", config=t5(6, 512, 8, 2048), mbs=4, seq=128, **tiny)
    yield Case("host-modernbert-base-4x256", config=base, mbs=4, seq=256, **tiny)
    yield Case("host-qwen3-0.6b-1x512", config=qwen3("0.6b", 28), mbs=1, seq=512, later=1, **tiny)
    yield Case("host-gemma3-270m-1x512", config=gemma3("270m", 18, 512), mbs=1, seq=512, **tiny)
    for name, config in (("llama3-8b-2l", llama8b(2)), ("qwen2-7b-2l", qwen2("7b", 2))):
        yield Case(f"long-{name}-1x32768", "long", config, 1, 32768, loss="chunked")
        yield Case(f"long-{name}-1x65536-ckpt", "long", config, 1, 65536, loss="chunked",
                   recompute="full", later=1)  # fmt: skip
    yield Case("long-qwen3-1.7b-4l-1x65536-ckpt", "long", qwen3("1.7b", 4), 1, 65536,
               loss="chunked", recompute="full")  # fmt: skip
    yield Case("long-gemma-2b-2l-1x32768", "long", gemma(2), 1, 32768, loss="chunked")


def compiled() -> Iterator[Case]:
    """Yield compiled models: the whole model or block by block."""

    def case(name: str, config: dict[str, Any], mbs: int, seq: int, mode: str, **more: Any) -> Case:
        name = f"comp-{name}-{mbs}x{seq}-{mode}" + ("-amp" if "precision" in more else "")
        return Case(name, "compiled", config, mbs, seq, compile_mode=mode, **more)

    yield case("llama1b-4l", llama1b(4), 2, 4096, "model")
    yield case("qwen2-7b-2l", qwen2("7b", 2), 2, 4096, "model")
    yield case("llama1b-4l", llama1b(4), 2, 4096, "block")
    yield case("qwen2-7b-3l", qwen2("7b", 3), 2, 4096, "block")
    yield case("gpt2-medium-6l", gpt2(6, 1024, 16), 8, 1024, "model")
    yield case("pythia-1.4b-6l", neox(6, 2048, 16, rotary_pct=0.25), 4, 2048, "model")
    yield case("bert-large-6l", encoder("bert", 6, 1024, 16, 4096, 30522), 16, 512, "model")
    yield case("gemma-2b-4l", gemma(4), 2, 4096, "block")
    yield case("llama3-8b-3l", llama8b(3), 2, 4096, "block", precision="amp", clip=1)
    yield case("opt-1.3b-4l", opt(4, 2048, 32), 4, 2048, "model", precision="amp")
    yield case("llama3-8b-3l-ckpt", llama8b(3), 2, 4096, "block", recompute="full")
    yield case("mistral-3l-ckpt", mistral(3), 2, 4096, "block", recompute="full")
    yield case("qwen3-8b-3l", qwen3("8b", 3), 2, 4096, "block")
    yield case("gpt2-small-6l", gpt2(6, 768, 12), 1, 512, "reduce-overhead", seconds=0.6)
    yield case("qwen2-0.5b-6l", qwen2("0.5b", 6), 1, 512, "reduce-overhead", seconds=0.6)
    yield case("t5-base-3l", t5(3, 768, 12, 3072), 16, 512, "model", later=1)
    yield case("modernbert-6l", {**MODERNBERT, "num_hidden_layers": 6}, 8, 2048, "model", later=1)
    yield case("olmoe-2l", olmoe(2), 4, 2048, "block", experts="grouped_mm", later=1)


def transfer() -> Iterator[Case]:
    """Yield families and mixes that no other case has: the sixth series, all of it for judging."""

    def case(name: str, config: dict[str, Any], mbs: int, seq: int, **more: Any) -> Case:
        return Case(f"new-{name}-{mbs}x{seq}", more.pop("kind", "family"), config, mbs, seq, **more)

    granite = decoder("granite", 8, 2048, 32, 8, 8192, 49155, tie_word_embeddings=True)
    sliding, full = "sliding_attention", "full_attention"
    pattern = {"layer_types": [sliding, sliding, sliding, full]}
    yield case("granite-2b-8l", granite, 4, 2048)
    yield case("glm4-9b-4l", decoder("glm4", 4, 4096, 32, 2, 13696, 151552, head_dim=128,
               attention_bias=True, partial_rotary_factor=0.5, pad_token_id=0),
               2, 4096)  # fmt: skip
    yield case("smollm3-3b-8l", decoder("smollm3", 8, 2048, 16, 4, 11008, 128256,
               no_rope_layers=[1, 1, 1, 0] * 2, use_sliding_window=False, pad_token_id=0,
               tie_word_embeddings=True), 2, 4096)  # fmt: skip
    yield case("seed-oss-36b-2l", decoder("seed_oss", 2, 5120, 80, 8, 27648, 155136, head_dim=128,
               attention_dropout=0.0, residual_dropout=0.0, pad_token_id=0), 1, 4096)  # fmt: skip
    yield case("nemotron-4b-6l", decoder("nemotron", 6, 3072, 24, 8, 9216, 256000, head_dim=128,
               hidden_act="relu2"), 2, 2048)  # fmt: skip
    yield case("cohere2-7b-4l", decoder("cohere2", 4, 4096, 32, 8, 14336, 256000,
               sliding_window=4096, tie_word_embeddings=True, **pattern), 1, 8192)  # fmt: skip
    yield case("olmo3-7b-4l", decoder("olmo3", 4, 4096, 32, 32, 11008, 100278,
               sliding_window=4096, **pattern), 1, 8192)  # fmt: skip
    yield case("hunyuan-1.8b-8l", decoder("hunyuan_v1_dense", 8, 2048, 16, 4, 6144, 120818,
               head_dim=128, tie_word_embeddings=True, pad_token_id=0), 4, 2048)  # fmt: skip
    yield case("lfm2-1.2b-8l", decoder("lfm2", 8, 2048, 32, 8, 12288, 65536,
               layer_types=["conv", "conv", full, "conv"] * 2, block_ff_dim=12288,
               tie_word_embeddings=True), 4, 2048)  # fmt: skip
    moe = {"kind": "experts", "experts": "grouped_mm"}
    yield case("granitemoe-3b-6l", decoder("granitemoe", 6, 1536, 24, 8, 512, 49155,
               num_local_experts=40, num_experts_per_tok=8), 4, 2048, kind="experts")  # fmt: skip
    yield case("ernie4.5-21b-a3b-2l", decoder("ernie4_5_moe", 2, 2560, 20, 4, 12288, 103424,
               moe_num_experts=64, moe_k=6, moe_intermediate_size=1536, moe_num_shared_experts=2,
               moe_layer_start_index=1, use_bias=False, head_dim=128), 2, 4096, **moe)  # fmt: skip
    yield case("glm4.5-air-2l", decoder("glm4_moe", 2, 4096, 96, 8, 10944, 151552, head_dim=128,
               n_routed_experts=64, n_shared_experts=1, num_experts_per_tok=8, n_group=1,
               topk_group=1, moe_intermediate_size=1408, first_k_dense_replace=1,
               attention_bias=True, partial_rotary_factor=0.5, pad_token_id=0),
               1, 4096, **moe)  # fmt: skip
    lora: dict[str, Any] = {"kind": "lora"}
    query_value = "q_proj+v_proj"
    qwen4b = decoder("qwen3", 12, 2560, 32, 8, 9728, 151936, head_dim=128, tie_word_embeddings=True)
    yield case("lora-qwen3-4b-12l-qv8", qwen4b, 4, 1024, lora_rank=8, lora_targets=query_value,
               adapter_dtype="bf16", **lora)  # fmt: skip
    yield case("lora-gemma3-1b", gemma3("1b", 26, 512), 2, 1024, lora_rank=16, **lora)
    yield case("lora-granite-2b-8l-ckpt", granite, 8, 512, lora_rank=32, recompute="full", **lora)
    yield case("lora-llama1b", llama1b(), 1, 1024, lora_rank=16, **lora)
    tiny: dict[str, Any] = {"kind": "host", "seconds": 0.6}
    smollm = llama(32, 960, 15, 5, 2560, 49152, tie_word_embeddings=True)
    yield case("smollm-360m", smollm, 2, 1024, **tiny)
    yield case("qwen2-0.5b-foreach", qwen2("0.5b", 24), 1, 1024, optimizer="foreach", clip=1,
               **tiny)  # fmt: skip
    yield case("gpt2-small", GPT2_SMALL, 2, 256, **tiny)
    yield case("olmoe-8l", olmoe(8), 1, 256, experts="grouped_mm", **tiny)
    yield case("qwen3-0.6b-ckpt", qwen3("0.6b", 28), 2, 1024, recompute="full", **tiny)
    amp: dict[str, Any] = {"kind": "autocast", "precision": "amp", "clip": 1}
    yield case("amp-qwen3-1.7b-10l", qwen3("1.7b", 10), 2, 2048, optimizer="foreach", **amp)
    yield case("amp-t5-large-6l", t5(6, 1024, 16, 4096), 8, 512, **amp)
    yield case("amp-smollm3-4l-ckpt", decoder("smollm3", 4, 2048, 16, 4, 11008, 128256,
               no_rope_layers=[1, 1, 1, 0], use_sliding_window=False, pad_token_id=0,
               tie_word_embeddings=True), 4, 2048, recompute="full", **amp)  # fmt: skip
    comp = {"kind": "compiled"}
    yield case("comp-qwen3-1.7b-6l", qwen3("1.7b", 6), 4, 2048, compile_mode="model", **comp)
    yield case("comp-granite-4l-ckpt", {**granite, "num_hidden_layers": 4}, 4, 2048,
               compile_mode="block", recompute="full", **comp)  # fmt: skip
    yield case("comp-phi3-mini-3l", decoder("phi3", 3, 3072, 32, 32, 8192, 32064, pad_token_id=0),
               4, 1024, compile_mode="model", **comp)  # fmt: skip
    yield case("nemo-12b-3l-ckpt", decoder("mistral", 3, 5120, 32, 8, 14336, 131072, head_dim=128,
               sliding_window=None), 2, 4096, kind="checkpoint", recompute="full")  # fmt: skip
    yield case("qwen3-8b-2l-chunked", qwen3("8b", 2), 1, 32768, kind="long", loss="chunked")
    yield case("qwen3-1.7b-8l-padding", qwen3("1.7b", 8), 8, 1024, kind="dense mask",
               mask="padding")  # fmt: skip
    yield case("liger-qwen3-1.7b-8l", qwen3("1.7b", 8), 2, 4096, kind="liger", liger=1,
               loss="liger")  # fmt: skip
    yield case("starcoder2-7b-3l-ckpt", decoder("starcoder2", 3, 4608, 36, 4, 18432, 49152,
               residual_dropout=0.0, embedding_dropout=0.0, sliding_window=None), 2, 4096,
               kind="checkpoint", recompute="full")  # fmt: skip


def all_cases() -> list[Case]:
    """Return every case: the kinds interleaved, what can be left out later, then `transfer`."""
    makers = (families, experts, attention, optimizers, variants, compiled)
    kinds = [list(make()) for make in makers]
    total = max(len(kind) for kind in kinds)
    places = [
        (case.later, (index + 0.5) * total / len(kind), case)
        for kind in kinds
        for index, case in enumerate(kind)
    ]
    first = [case for _, _, case in sorted(places, key=lambda place: place[:2])]
    return [*first, *transfer()]


def build(case: Case, device: str) -> torch.nn.Module:
    """Build the model of a case with random weights on the device."""
    import transformers

    config_fields = dict(case.config)
    kind = config_fields.pop("model_type")
    if "max_position_embeddings" not in config_fields and kind not in (
        "gpt2",
        "t5",
        "bloom",
        "falcon",
    ):
        config_fields["max_position_embeddings"] = max(case.seq, 2048)
    settings = transformers.AutoConfig.for_model(kind, **config_fields)
    if case.experts:
        settings._experts_implementation = case.experts
    loader = {
        "bert": transformers.AutoModelForMaskedLM,
        "roberta": transformers.AutoModelForMaskedLM,
        "modernbert": transformers.AutoModelForMaskedLM,
        "vit": transformers.AutoModelForImageClassification,
        "t5": transformers.AutoModelForSeq2SeqLM,
        "bart": transformers.AutoModelForSeq2SeqLM,
    }.get(kind, transformers.AutoModelForCausalLM)
    dtype = BF16 if case.precision == "bf16" else FP32
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = loader.from_config(settings, attn_implementation=case.attn)
    finally:
        torch.set_default_dtype(FP32)
    model = model.to(device=device, dtype=dtype)
    if case.liger:
        from liger_kernel.transformers import _apply_liger_kernel_to_instance

        _apply_liger_kernel_to_instance(model)
    if case.quantized:
        quantize(model)
    if case.lora_rank:
        model = with_adapters(model, case)
    model.train()
    if case.recompute != "0":
        model.gradient_checkpointing_enable({"use_reentrant": case.recompute == "reentrant"})
        if case.lora_rank:
            model.enable_input_require_grads()
    return model


def quantize(model: torch.nn.Module) -> None:
    """Replace the linear layers of the blocks by 4-bit ones, in place."""
    import bitsandbytes

    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is torch.nn.Linear and name != "lm_head":
                linear = bitsandbytes.nn.Linear4bit(
                    child.in_features, child.out_features, bias=child.bias is not None,
                    compute_dtype=BF16, quant_type="nf4",
                )  # fmt: skip
                weight = child.weight.data.cpu()
                linear.weight = bitsandbytes.nn.Params4bit(
                    weight, requires_grad=False, quant_type="nf4", module=linear
                )
                if child.bias is not None:
                    linear.bias = child.bias
                setattr(parent, name, linear.to("cuda"))


def with_adapters(model: torch.nn.Module, case: Case) -> torch.nn.Module:
    """Return the model with LoRA adapters, its own weights frozen."""
    import peft

    settings = peft.LoraConfig(
        r=case.lora_rank, lora_alpha=2 * case.lora_rank, task_type="CAUSAL_LM",
        target_modules=case.lora_targets.split("+"), lora_dropout=0.0,
    )  # fmt: skip
    return peft.get_peft_model(model, settings, autocast_adapter_dtype=case.adapter_dtype == "fp32")


def blocks(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the blocks of a model: the elements of its longest lists of modules."""
    lists = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m)]
    kinds = {type(m[0]).__name__ for m in lists}
    longest = {k: max(len(m) for m in lists if type(m[0]).__name__ == k) for k in kinds}
    best = max(longest.values())
    first = [m for m in lists if len(m) == best]
    return [block for blocks in first for block in blocks]


def batch_of(case: Case, mbs: int, seq: int, device: str) -> dict[str, torch.Tensor]:
    """Return one random microbatch with the mask of the case."""
    if case.family == "vit":
        dtype = BF16 if case.precision == "bf16" else FP32
        return {
            "pixel_values": torch.randn(mbs, 3, 224, 224, device=device, dtype=dtype),
            "labels": torch.randint(0, 1000, (mbs,), device=device),
        }
    ids = torch.randint(5, int(case.config["vocab_size"]), (mbs, seq), device=device)
    batch = {"input_ids": ids, "labels": ids}
    if case.mask == "padding":
        batch["attention_mask"] = torch.ones_like(ids)
        batch["attention_mask"][::2, seq - seq // 8 :] = 0
    elif case.mask == "packed":
        batch["position_ids"] = torch.arange(seq // 4, device=device).repeat(mbs, 4)
    elif case.mask == "causal4d":
        mask = torch.ones(seq, seq, dtype=torch.bool, device=device).tril()
        batch["attention_mask"] = mask[None, None].expand(mbs, 1, seq, seq)
    return batch


CHUNK = 2048


def chunked_loss(hidden: torch.Tensor, head: torch.nn.Module, labels: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy, its logits computed and recomputed by chunks of tokens."""
    from torch.utils.checkpoint import checkpoint

    def part(rows: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(head(rows).float(), target, reduction="sum")

    rows, target = hidden[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    total = sum(
        checkpoint(part, a, b, use_reentrant=False)
        for a, b in zip(rows.split(CHUNK), target.split(CHUNK), strict=True)
    )
    return total / target.numel()


def loss_function(
    model: torch.nn.Module, case: Case
) -> Callable[[dict[str, torch.Tensor]], torch.Tensor]:
    """Return the function that computes the loss of a microbatch as the case says."""
    extra = {} if case.family in ("bert", "roberta", "modernbert", "vit") else {"use_cache": False}
    if case.family in ("mamba", "mamba2"):
        extra = {}
    if case.loss == "model":
        return lambda batch: model(**batch, **extra).loss
    inner = model.get_base_model() if case.lora_rank else model
    if case.loss == "compiled":

        def entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            rows, target = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
            return torch.nn.functional.cross_entropy(rows.float(), target)

        fused = torch.compile(entropy)
        return lambda batch: fused(
            model(input_ids=batch["input_ids"], **extra).logits, batch["labels"]
        )
    if case.loss == "liger":
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

        linear_loss = LigerFusedLinearCrossEntropyLoss()

        def by_liger(batch: dict[str, torch.Tensor]) -> torch.Tensor:
            hidden = inner.model(input_ids=batch["input_ids"], **extra).last_hidden_state
            rows, target = hidden[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten()
            return linear_loss(inner.lm_head.weight, rows, target)

        return by_liger

    def by_chunks(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        hidden = inner.model(input_ids=batch["input_ids"], **extra).last_hidden_state
        return chunked_loss(hidden, inner.lm_head, batch["labels"])

    return by_chunks


def optimizer_of(kind: str, parameters: list[torch.nn.Parameter]) -> Any:
    """Return the optimizer that a name stands for."""
    if kind == "adamw8bit":
        import bitsandbytes

        return bitsandbytes.optim.AdamW8bit(parameters, lr=1e-5)
    if kind == "sgd":
        return torch.optim.SGD(parameters, lr=1e-5, momentum=0.9, fused=True)
    if kind == "adafactor":
        return torch.optim.Adafactor(parameters, lr=1e-5)
    fused = kind == "fused"
    return torch.optim.AdamW(parameters, lr=1e-5, fused=fused, foreach=kind == "foreach")


# --- kernels and operators ------------------------------------------------------------------------

CLASSES = ("products", "attention", "optimizer", "softmax/loss", "streaming", "memory")
# parts of the classes: of products, of streaming (most) and of the optimizer
PARTS = ("grouped", "attention_helpers", "index", "cat", "fill", "cast", "norm", "reduce", "clip")


def class_of(name: str, phase: str) -> str:
    """Return the class of a kernel, by the rules of h200_steps_3.csv and its phase."""
    lower = name.lower()
    if "memcpy" in lower or "memset" in lower:
        return "memory"
    if phase in ("clip", "optimizer") or (phase == "" and "multi_tensor_apply" in lower):
        return "optimizer"
    if re.search(r"sdpa|flash|fmha|attention|attn", lower) and "softmax" not in lower:
        return "attention"
    compiled = lower.startswith("triton_") and "triton_tem" not in lower
    if not compiled and re.search(r"gemm|gemv|nvjet|cutlass|cublas|splitk|xmma|convolve", lower):
        return "products"
    if re.search(r"softmax|nll|cross_entropy|crossentropy", lower):
        return "softmax/loss"
    return "streaming"


def part_of(name: str, phase: str, kind: str) -> str:
    """Return the part of its class that a kernel belongs to, or nothing."""
    lower = name.lower()
    if kind == "optimizer":
        return "clip" if phase == "clip" else ""
    if kind == "products":
        return "grouped" if re.search(r"group", lower) else ""
    if kind != "streaming":
        return ""
    if "cudnn::fusion" in lower:
        return "attention_helpers"
    if re.search(r"catarray", lower):
        return "cat"
    if re.search(r"index|gather|scatter|embedding|sort|scan|cub::", lower):
        return "index"
    if "fillfunctor" in lower:
        return "fill"
    if re.search(r"direct_copy|bfloat16_copy|float16_copy|copy_kernel", lower):
        return "cast"
    if re.search(r"layer_norm|rms_norm|rmsnorm|gammabeta", lower):
        return "norm"
    return "reduce" if "reduce_kernel" in lower else ""


class OperatorCounter(TorchDispatchMode):
    """Count calls, FLOP of products and attention, and bytes of every operator, by phase."""

    VIEWS = re.compile(
        r"view|empty|detach|transpose|permute|slice|select|expand|unsqueeze|squeeze|split\b|chunk"
        r"|alias|as_strided|t\.default|unbind|narrow|reshape|is_same_size|_local_scalar|lift_fresh"
        r"|record_stream|set_|prim\."
    )

    def __init__(self) -> None:
        super().__init__()
        self.phase = ""
        self.counts: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0, 0, 0])

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operator and add what it does to the counts."""
        out = func(*args, **(kwargs or {}))
        name = str(func).removeprefix("aten.")
        if self.VIEWS.search(name) and "copy" not in name and "backward" not in name:
            return out
        count = self.counts[self.phase, name]
        count[0] += 1
        inputs = [x for x in tree_leaves((args, kwargs or {})) if isinstance(x, torch.Tensor)]
        outputs = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        count[1] += flop_of(name, inputs, outputs)
        count[2] += sum(map(storage_bytes, inputs))
        count[3] += sum(map(storage_bytes, outputs))
        return out


def storage_bytes(x: torch.Tensor) -> int:
    """Return the bytes behind a tensor; what is expanded counts once."""
    with contextlib.suppress(Exception):
        return min(x.numel() * x.element_size(), x.untyped_storage().nbytes())
    return x.numel() * x.element_size()


def flop_of(name: str, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> float:
    """Return the FLOP of a product or of attention (the full square), zero for the others."""
    if name.startswith(("mm", "addmm", "bmm", "baddbmm", "_grouped_mm", "_scaled_mm")):
        a, b = inputs[-2:] if name.startswith(("addmm", "baddbmm")) else inputs[:2]
        if name.startswith("_grouped_mm"):
            if a.dim() == 2 and b.dim() == 2:
                return 2.0 * a.numel() * b.shape[-1]
            return 2.0 * a.numel() * b.shape[-1]
        return 2.0 * a.numel() * b.shape[-1]
    if "scaled_dot_product" in name and "for_cpu" not in name:
        if "backward" in name:
            q, k = inputs[1], inputs[2]
            return 10.0 * q.numel() * k.shape[-2]
        return 4.0 * inputs[0].numel() * inputs[1].shape[-2]
    return 0.0


# --- one case, in a process of its own ------------------------------------------------------------

Mark = Callable[[str], None]


def ignore(_: str) -> None:
    """Ignore a phase mark."""


@dataclass
class Prepared:
    """Hold a model that is ready to train and its step."""

    model: torch.nn.Module
    forward: Callable[[dict[str, torch.Tensor]], torch.Tensor]
    optimizer: Any
    batch: dict[str, torch.Tensor]
    clip: bool = False
    accum: int = 1
    autocast: Callable[[], Any] = contextlib.nullcontext
    trained: list[torch.nn.Parameter] = field(default_factory=list)
    last_loss: torch.Tensor | None = None

    def backward(self, batch: dict[str, torch.Tensor], mark: Mark = ignore) -> None:
        """Run one microbatch forward and backward."""
        mark("forward")
        with self.autocast():
            loss = self.forward(batch)
        mark("backward")
        loss.backward()
        self.last_loss = loss.detach()

    def step(self, mark: Mark = ignore) -> None:
        """Run one training step, telling `mark` where each phase begins."""
        for _ in range(self.accum):
            self.backward(self.batch, mark)
        mark("clip")
        if self.clip:
            torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        mark("optimizer")
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        mark("end")


def prepare(case: Case, device: str) -> Prepared:
    """Build what a case trains."""
    torch.manual_seed(0)
    if case.precision == "tf32":
        torch.set_float32_matmul_precision("high")
    model = build(case, device)
    trained = [p for p in model.parameters() if p.requires_grad]
    called = model
    if case.compile_mode == "block":
        for block in blocks(model):
            block.compile()
    elif case.compile_mode == "model":
        called = torch.compile(model)
    elif case.compile_mode == "reduce-overhead":
        called = torch.compile(model, mode="reduce-overhead")

    def amp() -> Any:
        return torch.autocast(device, dtype=BF16)

    return Prepared(
        model, loss_function(called, case), optimizer_of(case.optimizer, trained),
        batch_of(case, case.mbs, case.seq, device), clip=bool(case.clip), trained=trained,
        autocast=amp if case.precision == "amp" else contextlib.nullcontext,
    )  # fmt: skip


def kernel_columns(kernels: dict[str, dict[str, tuple[float, int]]]) -> dict[str, Any]:
    """Return the kernel columns of a row."""
    sums = dict.fromkeys((*CLASSES, *PARTS), 0.0)
    phases = {"forward": 0.0, "backward": 0.0}
    count = 0.0
    for phase, entries in kernels.items():
        for name, (ms, number) in entries.items():
            kind = class_of(name, phase)
            sums[kind] += ms
            count += number
            part = part_of(name, phase, kind)
            if part:
                sums[part] += ms
            if phase in phases:
                phases[phase] += ms
    columns = {f"k_{name}_ms": round(ms, 3) for name, ms in sums.items()}
    columns |= {f"k_{name}_ms": round(ms, 3) for name, ms in phases.items()}
    total = sum(sums[name] for name in CLASSES)
    return {"kernels": int(count), "kernel_ms": round(total, 3), **columns}


def operator_columns(counts: dict[tuple[str, str], list[float]]) -> dict[str, Any]:
    """Return FLOP of products and attention and the bytes of all other operators of a row."""
    columns = dict.fromkeys(("product_flop", "grouped_flop", "attention_flop", "stream_bytes"), 0.0)
    for (phase, name), (_, flop, read, written) in counts.items():
        if flop and "scaled_dot" in name:
            columns["attention_flop"] += flop
        elif flop:
            columns["product_flop"] += flop
            columns["grouped_flop"] += flop if "grouped" in name else 0.0
        elif phase in ("forward", "backward"):
            columns["stream_bytes"] += read + written
    return columns


def host_time(run: Prepared, case: Case) -> float | str:
    """Return the wall milliseconds of forward and backward on 64 tokens: the host's alone."""
    compiled = case.compile_mode or case.loss == "compiled" or case.attn == "flex_attention"
    if compiled or case.mask or case.family == "vit":
        return ""
    batch = batch_of(case, 1, 64, "cuda")
    times = []
    for _ in range(4):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run.backward(batch)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
        run.optimizer.zero_grad(set_to_none=True)
    return round(statistics.median(times[1:]), 3)


def model_columns(case: Case, model: torch.nn.Module) -> dict[str, Any]:
    """Return the columns that describe a case and its model."""
    config = case.config

    def first(*names: str) -> Any:
        return next((config[name] for name in names if config.get(name) is not None), "")

    count = sum(p.numel() for p in model.parameters())
    return {
        "model": case.id, "layers": first("num_hidden_layers", "n_layer", "num_layers",
                                          "encoder_layers"),
        "hidden": first("hidden_size", "n_embd", "d_model"),
        "heads": first("num_attention_heads", "n_head", "num_heads", "encoder_attention_heads"),
        "kv_heads": first("num_key_value_heads"), "head_dim": first("head_dim", "d_kv"),
        "ffn": first("intermediate_size", "ffn_dim", "d_ff", "encoder_ffn_dim"),
        "vocab": first("vocab_size"),
        "experts": first("num_local_experts", "num_experts", "n_routed_experts") or 0,
        "top_k": first("num_experts_per_tok") or 0, "moe_ffn": first("moe_intermediate_size") or 0,
        "shared_experts": first("n_shared_experts") or 0,
        "dense_layers": first("first_k_dense_replace") or 0,
        "tied_embeddings": int(bool(getattr(model.config, "tie_word_embeddings", False))),
        "params": count, "trainable": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "dropout": first("resid_pdrop", "dropout_rate", "dropout", "hidden_dropout_prob"),
        "window": first("sliding_window", "local_attention"),
    }  # fmt: skip


def case_columns(case: Case) -> dict[str, Any]:
    """Return the columns that the case alone decides."""
    return {
        "id": case.id, "model": case.id, "config": json.dumps(case.config), "family": case.family,
        "kind": case.kind, "half": case.half, "mbs": case.mbs, "seq": case.seq,
        "recompute": case.recompute, "lora_rank": case.lora_rank,
        "lora_targets": case.lora_targets if case.lora_rank else "",
        "experts_implementation": case.experts, "accum": 1,
        "compiled": int(bool(case.compile_mode)), "compile_mode": case.compile_mode,
        "optimizer": case.optimizer, "attn": case.attn, "backend": case.backend, "graph": 0,
        "fp8": 0, "packed": int(case.mask == "packed"), "peft": int(bool(case.lora_rank)),
        "weights": "nf4" if case.quantized else "bf16" if case.precision == "bf16" else "fp32",
        "precision": case.precision, "mask": case.mask, "clip": case.clip, "loss_kind": case.loss,
        "liger": case.liger, "adapter_dtype": case.adapter_dtype if case.lora_rank else "",
    }  # fmt: skip


def backend_context(case: Case) -> Any:
    """Return the context that forces the attention back end of a case."""
    if not case.backend:
        return contextlib.nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel([getattr(SDPBackend, case.backend)])


def measure(case: Case, save: Callable[[str, Any], None]) -> None:
    """Measure a case on the GPU; `save` gets the row's columns as soon as they are known."""
    started = time.perf_counter()
    with backend_context(case):
        run = prepare(case, "cuda")
        save("row", model_columns(case, run.model))
        for _ in range(3):
            run.step()
        torch.cuda.synchronize()
        save("row", {"setup_s": round(time.perf_counter() - started, 1)})
        static = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        run.step()
        torch.cuda.synchronize()
        once = time.perf_counter() - begin
        repeats = 7 if once < 0.3 else 5 if once < 1.0 else 3
        timed = timed_steps(run.step, repeats)
        times = timed["step_ms"]
        cpu = time.process_time()
        count = max(4, int(case.seconds / min(times) * 1e3))
        window = [time.monotonic_ns()]
        begin = time.perf_counter()
        for _ in range(count):
            run.step()
        torch.cuda.synchronize()
        together = (time.perf_counter() - begin) / count * 1e3
        window.append(time.monotonic_ns())
        free, total = torch.cuda.mem_get_info()
        reserved = torch.cuda.max_memory_reserved()
        middle = statistics.median(times)
        stats = torch.cuda.memory_stats()
        save("window", window)
        save("row", {
            "step_ms": round(middle, 3), "spread": round((max(times) - min(times)) / middle, 3),
            "steps_timed": repeats, "back_to_back_ms": round(together, 3),
            "host_ms": timed["host_ms"],
            "host_cpu_ms": round((time.process_time() - cpu) / count * 1e3, 3),
            **{f"{name}_ms": ms for name, ms in timed["phases_ms"].items()},
            "peak_bytes": torch.cuda.max_memory_allocated(), "reserved_bytes": reserved,
            "static_bytes": static, "device_used_bytes": total - free,
            "device_total_bytes": total, "other_bytes": total - free - reserved,
            "alloc_retries": stats.get("num_alloc_retries", 0),
            "loss": round(float(run.last_loss), 4), "gpu": torch.cuda.get_device_name(),
        })  # fmt: skip
        kernels = profiled_kernels(run.step)
        save("kernels", kernels)
        save("row", kernel_columns(kernels))
        if not case.compile_mode and case.loss != "compiled" and case.attn != "flex_attention":
            counter = OperatorCounter()

            def mark(name: str) -> None:
                counter.phase = name

            with counter:
                run.step(mark)
            save("operators", [[*key, *value] for key, value in counter.counts.items()])
            save("row", operator_columns(counter.counts))
        save("row", {"host_small_ms": host_time(run, case)})


def rehearse(case: Case, save: Callable[[str, Any], None]) -> None:
    """Run a shrunken case on the CPU, to check that it can be built and trained."""
    sizes = {
        "vocab_size": 1000, "num_hidden_layers": 2, "n_layer": 2, "num_layers": 2,
        "num_decoder_layers": 2, "encoder_layers": 1, "decoder_layers": 1,
        "intermediate_size": 128, "ffn_dim": 128, "d_ff": 128, "encoder_ffn_dim": 128,
        "decoder_ffn_dim": 128, "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 8,
        "moe_intermediate_size": 64, "num_experts_per_tok": 2,
    }  # fmt: skip
    if case.family == "qwen3_next":
        sizes["num_hidden_layers"] = 4
    config = {key: sizes.get(key, value) for key, value in case.config.items()}
    optimizer = "fused" if case.optimizer == "adamw8bit" else case.optimizer
    small = replace(
        case, config=config, mbs=2, seq=64, compile_mode="", backend="", optimizer=optimizer,
        attn="sdpa" if case.attn == "flex_attention" else case.attn, liger=0, quantized=0,
        loss="chunked" if case.loss == "liger" else case.loss,
    )  # fmt: skip
    run = prepare(small, "cpu")
    save("row", model_columns(small, run.model))
    seen: list[str] = []
    run.step(seen.append)
    counter = OperatorCounter()

    def mark(name: str) -> None:
        counter.phase = name

    with counter:
        run.step(mark)
    save("operators", [[*key, *value] for key, value in counter.counts.items()])
    save("row", {"step_ms": 0, "loss": float(run.last_loss), **operator_columns(counter.counts)})


# --- chains of operators --------------------------------------------------------------------------


def only_first(module: torch.nn.Module) -> Callable[..., Any]:
    """Return a function that gives a module the first of its arguments alone."""
    return lambda x, *_: module(x)


def chains() -> Iterator[tuple[str, str, Callable[..., Any], list[torch.Tensor]]]:
    """Yield name, shape, function and inputs of the short chains that blocks are made of."""
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
    from transformers.models.gpt_neox.modeling_gpt_neox import apply_rotary_pos_emb as partial
    from transformers.models.llama import modeling_llama as lib

    functional = torch.nn.functional

    def rand(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=dtype).requires_grad_()

    for b, h, kv, s, d in ((1, 32, 8, 8192, 128), (4, 32, 8, 4096, 64), (2, 8, 1, 8192, 256),
                           (8, 16, 16, 2048, 128)):  # fmt: skip
        q, k = rand(b, s, h, d), rand(b, s, kv, d)
        cos, sin = (torch.randn(1, s, d, device="cuda", dtype=BF16) for _ in range(2))

        def rotate(q: Any, k: Any, cos: Any = cos, sin: Any = sin) -> Any:
            return lib.apply_rotary_pos_emb(q.transpose(1, 2), k.transpose(1, 2), cos, sin)

        yield "rotary", f"{b}x{s}x{h}+{kv}x{d}", rotate, [q, k]
    q, k = rand(4, 4096, 16, 32), rand(4, 4096, 16, 32)
    cos, sin = (torch.randn(1, 4096, 32, device="cuda", dtype=BF16) for _ in range(2))
    yield "rotary_partial", "4x4096x16x32", lambda q, k: partial(
        q.transpose(1, 2), k.transpose(1, 2), cos, sin), [q, k]  # fmt: skip
    for rows, width in ((8192, 4096), (16384, 2048), (65536, 576), (8192, 8192), (2048, 4096)):
        x, shape = rand(rows, width), f"{rows}x{width}"
        modules = {
            "rmsnorm_eager": lib.LlamaRMSNorm(width), "rmsnorm_gemma": GemmaRMSNorm(width),
            "rmsnorm_fused": torch.nn.RMSNorm(width), "layernorm": torch.nn.LayerNorm(width),
        }  # fmt: skip
        for name, module in modules.items():
            module = module.to("cuda", BF16)
            yield name, shape, only_first(module), [x, *module.parameters()]
        yield "add", shape, torch.add, [x, rand(rows, width)]
        yield "cast_up", shape, lambda x: x.float(), [x]
        yield "cast_down", shape, lambda x: x.to(BF16), [rand(rows, width, dtype=FP32)]
    norm = lib.LlamaRMSNorm(128).to("cuda", BF16)
    heads = rand(8192, 32, 128)
    yield "rmsnorm_heads", "8192x32x128", only_first(norm), [heads, *norm.parameters()]
    for rows, width in ((8192, 14336), (16384, 5632), (8192, 28672)):
        x, y = rand(rows, width), rand(rows, width)
        yield "swiglu", f"{rows}x{width}", lambda x, y: functional.silu(x) * y, [x, y]
        yield "gelu", f"{rows}x{width}", functional.gelu, [x]
    x = rand(8192, 8192)
    yield "gelu_new", "8192x8192", lambda x: 0.5 * x * (1.0 + torch.tanh(
        0.7978845608 * (x + 0.044715 * torch.pow(x, 3.0)))), [x]  # fmt: skip
    yield "dropout", "8192x8192", lambda x: functional.dropout(x, 0.1), [x]
    yield "bias_add", "8192x8192", torch.add, [x, rand(8192)]
    yield "repeat_kv", "1x8x8192x128", lambda x: lib.repeat_kv(x, 4), [rand(1, 8, 8192, 128)]
    yield "heads_to_front", "4x4096x32x128", lambda x: x.transpose(1, 2).contiguous(), [
        rand(4, 4096, 32, 128)]  # fmt: skip
    yield "attention_softmax", "1x16x4096x4096", lambda x: functional.softmax(
        x, dim=-1, dtype=FP32).to(BF16), [rand(1, 16, 4096, 4096)]  # fmt: skip
    for rows, vocab in ((8192, 128256), (8192, 32000), (4096, 256000), (2048, 151936)):
        target = torch.randint(0, vocab, (rows,), device="cuda")
        yield "cross_entropy", f"{rows}x{vocab}", lambda x, target=target: (
            functional.cross_entropy(x.float(), target)), [rand(rows, vocab)]  # fmt: skip
    for rows, vocab, width in ((8192, 128256, 4096), (8192, 32000, 2048), (4096, 256000, 2048)):
        ids = torch.randint(0, vocab, (1, rows), device="cuda")
        yield "embedding", f"{rows}of{vocab}x{width}", lambda w, ids=ids: (
            functional.embedding(ids, w)), [rand(vocab, width)]  # fmt: skip


def chain_time(function: Callable[[], Any]) -> float:
    """Return the median microseconds of a function over several runs of ten."""
    function()
    function()
    times = []
    for _ in range(3):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(2_000_000)  # about a millisecond, so that launches run ahead
        start.record()
        for _ in range(10):
            function()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 100.0)
    return statistics.median(times)


def measure_chains(save: Callable[[str, Any], None]) -> None:
    """Time every chain forward and backward and count what its operators read and write."""
    for name, shape, function, inputs in chains():
        try:
            counter = OperatorCounter()
            with counter:
                counter.phase = "forward"
                out = function(*inputs)
                outs = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
                grads = [torch.randn_like(x) for x in outs]
                counter.phase = "backward"
                torch.autograd.grad(outs, inputs, grads, retain_graph=True)
            row: dict[str, Any] = {"chain": name, "shape": shape}
            for phase in ("forward", "backward"):
                entries = [(k[1], v) for k, v in counter.counts.items() if k[0] == phase]
                entries = [entry for entry in entries if not entry[0].startswith("randn")]
                row[f"{phase}_operators"] = int(sum(v[0] for _, v in entries))
                row[f"{phase}_bytes"] = int(sum(v[2] + v[3] for _, v in entries))
            row["forward_us"] = round(chain_time(partial(function, *inputs)), 2)
            backward = partial(torch.autograd.grad, outs, inputs, grads, retain_graph=True)
            row["backward_us"] = round(chain_time(backward), 2)
            save("chain", row)
        except Exception as error:
            save("chain", {"chain": name, "shape": shape, "error": str(error)[:200]})
        gc.collect()


CHAIN_FIELDS = ["chain", "shape", "forward_us", "backward_us", "forward_operators",
                "backward_operators", "forward_bytes", "backward_bytes", "error"]  # fmt: skip


# --- processes ------------------------------------------------------------------------------------


def sample(path: str, stop: Any) -> None:
    """Sample energy, power, clock and temperature into a file until told to stop."""
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    with Path(path).open("w") as file:
        while not stop.is_set():
            values = (
                time.monotonic_ns(), pynvml.nvmlDeviceGetTotalEnergyConsumption(handle),
                pynvml.nvmlDeviceGetPowerUsage(handle),
                pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
                pynvml.nvmlDeviceGetTemperature(handle, 0),
            )  # fmt: skip
            file.write(" ".join(map(str, values)) + "\n")
            file.flush()
            time.sleep(0.008)


def power_columns(path: str, window: list[int]) -> dict[str, Any]:
    """Return mean watts, clock and joules of a window of the samples."""
    rows = []
    for line in Path(path).read_text().splitlines()[-6000:]:
        values = line.split()
        if len(values) == 5 and window[0] <= int(values[0]) <= window[1]:
            rows.append(tuple(map(int, values)))
    if len(rows) < 10:
        return {"sampled_power_during_timing": 0}
    first = rows[len(rows) // 4]
    steady = rows[len(rows) // 4 :]
    seconds = (rows[-1][0] - first[0]) / 1e9
    return {
        "power_W": round((rows[-1][1] - first[1]) / 1e3 / seconds, 1),
        "clock_MHz": round(statistics.fmean(row[3] for row in steady)),
        "energy_J": round((rows[-1][1] - rows[0][1]) / 1e3, 1),
        "temperature_C": rows[-1][4], "sampled_power_during_timing": 1,
    }  # fmt: skip


def child(work: Callable[[Callable[[str, Any], None]], None], pipe: Any) -> None:
    """Run some work in a child process and send what it saves, an error included."""

    def save(name: str, value: Any) -> None:
        pipe.send((name, value))

    try:
        work(save)
    except Exception as error:
        memory = {}
        if torch.cuda.is_initialized():
            memory = {
                "peak_bytes": torch.cuda.max_memory_allocated(),
                "reserved_bytes": torch.cuda.max_memory_reserved(),
            }
        save("error", {
            "oom": isinstance(error, torch.OutOfMemoryError),
            "error": f"{type(error).__name__}: {error}"[:400].replace("\n", " "),
            "trace": traceback.format_exc()[-3000:], "memory": memory,
        })  # fmt: skip
    save("done", None)
    pipe.close()
    os._exit(0)  # spares the teardown of CUDA


def run_child(
    context: Any, work: Callable[[Callable[[str, Any], None]], None], limit: float
) -> Iterator[tuple[str, Any]]:
    """Run work in a child process and yield what it saves; a child past its limit is ended."""
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(work, theirs))
    process.start()
    theirs.close()
    end = time.monotonic() + limit
    try:
        while True:
            if not ours.poll(max(0.0, end - time.monotonic())):
                yield "error", {"oom": False, "error": f"over {limit:.0f} s", "memory": {}}
                return
            try:
                name, value = ours.recv()
            except EOFError:
                yield "error", {"oom": False, "error": "the process died", "memory": {}}
                return
            if name == "done":
                return
            yield name, value
    finally:
        process.join(5)
        if process.is_alive():
            process.kill()
            process.join(5)


def touch_cuda(save: Callable[[str, Any], None]) -> None:
    """Use CUDA once."""
    save("ready", float(torch.ones(2, device="cuda").sum()))


def forked_cuda_works(context: Any) -> bool:
    """Say whether a child process can use CUDA; print why if it cannot."""
    answers = list(run_child(context, touch_cuda, 60))
    if answers and answers[0][0] == "ready":
        return True
    print("children cannot use CUDA:", answers, flush=True)
    return False


def versions() -> dict[str, str]:
    """Return the versions of the software."""
    import transformers

    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "driver": str(nvml("SystemGetDriverVersion") or ""),
    }


def imports(names: list[str]) -> None:
    """Import modules; one that is missing or fails is passed over."""
    for name in names:
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def imported_only(names: list[str], save: Callable[[str, Any], None]) -> None:
    """Import modules and say whether one of them started CUDA."""
    imports(names)
    save("started", torch.cuda.is_initialized())


def preload(context: Any) -> None:
    """Import what children need, so that a fork has it already, except what starts CUDA."""
    import transformers

    kinds = sorted({case.family for case in all_cases()} - {"gemma3_text"} | {"gemma3"})
    models = [f"transformers.models.{kind}.modeling_{kind}" for kind in kinds]
    for names in (["torch._dynamo", "torch.profiler"], models, ["accelerate"], ["peft"]):
        if context.get_start_method() != "fork":
            break
        if ("started", False) in run_child(context, partial(imported_only, names), 60):
            imports(names)
        else:
            print(f"not imported before the fork: {names[:3]}", flush=True)
    transformers.logging.set_verbosity_error()


def append_json(path: Path, value: Any) -> None:
    """Append a value to a file of JSON lines."""
    with path.open("a") as file:
        file.write(json.dumps(value) + "\n")


def record(
    case: Case, context: Any, out: Path, samples: str, limit: float, tiny: bool
) -> dict[str, Any]:
    """Measure one case in a process of its own, write its lines and return its row."""
    row = case_columns(case)
    work = partial(rehearse if tiny else measure, case)
    for name, value in run_child(context, work, limit):
        if name == "row":
            row |= value
        elif name == "window":
            row |= power_columns(samples, value)
        elif name == "kernels":
            entries = {
                phase: sorted(([round(ms, 4), int(n), k[:400]] for k, (ms, n) in kernels.items()),
                              reverse=True)
                for phase, kernels in value.items()
            }  # fmt: skip
            append_json(out / "kernels.jsonl", {"id": case.id, "phases": entries})
        elif name == "operators":
            append_json(out / "operators.jsonl", {"id": case.id, "operators": value})
        elif name == "error":
            row["error"] = value["error"]
            if value["oom"]:
                row |= {"step_ms": "OOM", **value["memory"]}
            elif value.get("trace"):
                print(case.id, value["trace"][-700:], flush=True)
    return row


def main() -> None:
    """Measure the cases named on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--only", default="", help="a regular expression that ids must match")
    parser.add_argument("--start", type=int, default=0, help="the first case")
    parser.add_argument("--stop", type=int, default=10**6, help="the case to stop before")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which to stop")
    parser.add_argument("--limit", type=float, default=75.0, help="seconds for one case")
    parser.add_argument("--chains", action="store_true", help="time the chains first")
    parser.add_argument("--tiny", action="store_true", help="rehearse on the CPU")
    parser.add_argument("--start-method", default="fork", help="fork, or spawn where it fails")
    parser.add_argument("--list", action="store_true", help="print the cases and end")
    options = parser.parse_args()
    begin = time.monotonic()
    cases = all_cases()
    if options.list:
        for index, case in enumerate(cases):
            print(index, case.half, case.kind, case.id)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context(options.start_method)
    preload(context)
    package_versions = versions()
    samples = str(options.out / "samples.txt") if options.tiny else "/dev/shm/atoll_samples.txt"
    stop = context.Event()
    sampler = context.Process(target=sample, args=(samples, stop), daemon=True)
    if not options.tiny:
        sampler.start()
    if not options.tiny and not forked_cuda_works(context):
        stop.set()
        sys.exit(3)
    print(f"ready after {time.monotonic() - begin:.1f} s: {package_versions}", flush=True)
    if options.chains:
        with (options.out / "chains.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, CHAIN_FIELDS, restval="")
            writer.writeheader()
            for name, value in run_child(context, measure_chains, 90):
                if name == "chain":
                    writer.writerow(value)
                else:
                    print("chains", value, flush=True)
                file.flush()
        print(f"chains done after {time.monotonic() - begin:.1f} s", flush=True)
    path = options.out / "steps.csv"
    failed = 0
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, restval="", extrasaction="ignore")
        writer.writeheader()
        for index, case in list(enumerate(cases))[options.start : options.stop]:
            if options.only and not re.search(options.only, case.id):
                continue
            if time.monotonic() - begin > options.budget:
                print(f"budget spent before case {index}", flush=True)
                break
            since = time.monotonic()
            row = (
                record(case, context, options.out, samples, options.limit, options.tiny)
                | package_versions
            )
            writer.writerow(row)
            file.flush()
            failed += bool(row.get("error"))
            print(
                f"{index} {case.id} step {row.get('step_ms', '-')} ms, kernels "
                f"{row.get('kernel_ms', '-')}, {row.get('power_W', '-')} W "
                f"{row.get('clock_MHz', '-')} MHz, took {time.monotonic() - since:.1f} s "
                f"{row.get('error', '')[:160]}",
                flush=True,
            )
            if index - options.start < 8 and failed >= 5:
                print("too many failures at the start: stopped", flush=True)
                break
    stop.set()
    print(f"done after {time.monotonic() - begin:.1f} s, {failed} failed", flush=True)


if __name__ == "__main__":
    main()
