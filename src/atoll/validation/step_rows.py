"""Steps of Hugging Face models on one device, as runs: rows of tables with a column `step_ms`.

Parameters, gradients and moments are 16-bit.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from typing import Any

from atoll.hardware.catalog import load_network
from atoll.hardware.gpu import load_gpu
from atoll.step.layout import Layout
from atoll.step.states import STATES
from atoll.tools.software import flagged
from atoll.tools.stack import STACKS, with_adapters
from atoll.training.run import Run
from atoll.validation.row_model import adapters_from_row
from atoll.validation.tables import RunRow
from atoll.workload.families.config import config_from_hf
from atoll.workload.families.family import FAMILIES
from atoll.workload.families.model_config import ModelConfig

H200_STEPS = files("atoll") / "data" / "h200_steps.csv"
H200_STEPS_LATER = files("atoll") / "data" / "h200_steps_later.csv"
# Names of sizes in configurations of Hugging Face models.
SIZES = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "ffn": "intermediate_size",
    "vocab": "vocab_size",
}
MIXTURE = {
    "experts": "num_local_experts",
    "top_k": "num_experts_per_tok",
    "moe_ffn": "moe_intermediate_size",
    "shared_experts": "n_shared_experts",
    "dense_layers": "first_k_dense_replace",
}
DROPOUTS = {
    "gpt2": ("resid_pdrop", "embd_pdrop", "attn_pdrop"),
    "bert": ("hidden_dropout_prob", "attention_probs_dropout_prob"),
    "opt": ("dropout", "attention_dropout"),
}
# Widths of latent attention that tables omit (arXiv:2412.19437, section 4.2).
LATENT = {
    "deepseek_v3": {
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    }
}
POSITIONS, USUAL_POSITIONS = {"bert": 512}, 1024
"""Least rows of the table of positions, by family."""


def run_from_step(row: RunRow) -> tuple[Run, Layout]:
    """Return the run and layout of a measured step."""
    gpu = load_gpu(row.device)
    stack = STACKS["compiled" if row.integer("compiled", 0) else "eager"]
    adapters = adapters_from_row(row)
    if row.text("experts_implementation") == "grouped_mm":
        stack = flagged(stack, "grouped_mm")
    run = Run(
        model=model_from_step(row),
        gpu=gpu,
        network=load_network(gpu.network),
        devices=1,
        sequence=row.integer("seq"),
        global_batch=row.integer("global_batch"),
        stack=with_adapters(stack) if adapters else stack,
        states=STATES["bf16"],
        adapters=adapters,
        fine_tuned=adapters is not None,
    )
    words = {"": "none", "0": "none", "1": "full"}
    recompute = row.text("recompute").removesuffix(".0")
    recompute = words.get(recompute, recompute)
    return run, Layout(microbatch=row.integer("micro_batch"), zero=0, recompute=recompute)


def model_from_step(row: RunRow) -> ModelConfig:
    """Return the Hugging Face model of a row's family and sizes."""
    family = row.text("family")
    sizes: dict[str, Any] = {
        key: row.integer(name) for name, key in SIZES.items() if row.text(name)
    }
    if row.integer("experts", 0):
        sizes |= {key: size for name, key in MIXTURE.items() if (size := row.integer(name, 0))}
    sizes["max_position_embeddings"] = max(
        row.integer("seq"), POSITIONS.get(family, USUAL_POSITIONS)
    )
    spelling = FAMILIES[family].spelling if family in FAMILIES else {}
    contents = {
        "model_type": family,
        "tie_word_embeddings": bool(row.integer("tied_embeddings", 0)),
        **{spelling.get(name, (name,))[0]: size for name, size in sizes.items()},
        **dict.fromkeys(DROPOUTS.get(family, ()), row.number("dropout", 0.0)),
        **LATENT.get(family, {}),
    }
    return replace(config_from_hf(contents, row.where), name=row.text("model", family))
