"""Steps of one device as runs: rows of tables with a column `step_ms`. They are of Hugging Face's
models, or of one rank of a layout, measured without communication (column `world`).

Parameters, gradients and moments are 16-bit, unless weights are fp32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from atoll.files.jsonfile import parse_object, read_object
from atoll.hardware.catalog import load_network
from atoll.hardware.gpu import load_gpu
from atoll.step.layout import FULL_BLOCKS, Layout
from atoll.step.states import STATES
from atoll.tools.software import flagged, graphed
from atoll.tools.stack import STACKS, UPDATES, Stack, with_adapters
from atoll.training.operators.step_clock import BOOST_MHz
from atoll.training.run import Run
from atoll.validation.row_model import adapters_from_row
from atoll.validation.tables import RunRow
from atoll.workload.families.config import config_from_hf
from atoll.workload.families.config_fields import Fields
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


ATTENTION = {"eager": "unfused", "FLASH_ATTENTION": "flash2", "flex_attention": "flash2"}
"""Attention kernels by Hugging Face's attention or torch's SDPA back end; others are `flash`.
FlexAttention's kernels on an H200 take 1.5 to 2 times as long as cuDNN's, as FlashAttention 2's."""
LOSSES = {"chunked": "recompute_loss", "compiled": "compiled_loss", "liger": "liger_loss"}
"""Flags of losses; those by chunks are of 2,048 tokens and computed again backwards."""
CHUNK_TOKENS = 2048
RANK_RECOMPUTE = {"every-second-block": FULL_BLOCKS, "selective": FULL_BLOCKS}
"""Recomputation of ranks in Atoll's words; torchtitan's selective mode is of every second block."""
WIDE = ("fp32", "tf32")
MEGATRON = "megatron-lm"
LOCAL_MODULES = ("local", "plain_modules", "no_grad_fusion")
"""Flags of Megatron-LM's ranks (`measurement.builders`)."""
EXPERTS = {"grouped_mm": ("grouped_mm", "masked_experts"), "eager": ("sliced_experts",)}
"""Flags of Hugging Face's experts."""
OPTIMIZER_STATES = {"adamw8bit": "8bit", "sgd": "momentum", "adafactor": "adafactor"}
"""Names of optimizer states; SGD has a momentum."""
ASSUMED = {
    "optimizer": ("fused", "fp32amp", "sgd", "adamw8bit", *UPDATES),
    "attn": ("sdpa", "eager", "flex_attention"),
    "backend": ("CUDNN_ATTENTION", "FLASH_ATTENTION"),
    "packed": ("0", "1"),
    "mask": ("none", "padding", "packed", "causal4d"),
    "clip": ("0", "1"),
    "loss_kind": ("model", *LOSSES),
    "liger": ("0", "1"),
    "weights": ("bf16", "fp32", "nf4"),
    "adapter_dtype": ("bf16", "fp32"),
    "peft": ("0", "1"),
    "compile_mode": ("model", "block", "reduce-overhead"),
    "precision": ("bf16", "amp", *WIDE),
}
"""Software choices of a step that the estimate assumes or takes; others are reported as unread."""


def run_from_step(row: RunRow) -> tuple[Run, Layout]:
    """Return the run and layout of a measured step, or of the layout of a measured rank."""
    gpu = load_gpu(row.device)
    stack = STACKS[_stack(row)]
    adapters = adapters_from_row(row)
    model, sequence = model_from_step(row)
    stack = flagged(stack, " ".join(_flags(row, model)))
    if row.integer("graph", 0):
        stack = graphed(stack, "full_iteration")
    if _is_hf_rank(row):
        # Hugging Face's plan gathers the logits, and leaves the embedding undivided.
        stack = replace(stack, vocabulary_parallel=False, divides_table=False)
    if row.text("reduction") == "last":
        stack = replace(stack, delays_reduction=True)
    boost_MHz = BOOST_MHz.get(gpu.name) if row.is_rank else None
    if boost_MHz and (clock_MHz := row.number("clock_MHz", 0.0)):
        gpu = replace(gpu, clock_share=min(1.0, clock_MHz / boost_MHz))
    if row.integer("expandable", 0):
        stack = flagged(stack, "growing_segments")
    elif row.is_rank:
        stack = replace(stack, fragmentation=Stack.fragmentation)
    if limit_bytes := row.number("limit_bytes", 0.0):
        gpu = replace(gpu, hbm_bytes=round(limit_bytes + stack.context_bytes))
    run = Run(
        model=model,
        gpu=gpu,
        network=load_network(gpu.network),
        devices=row.integer("devices"),
        sequence=sequence,
        global_batch=row.integer("global_batch"),
        stack=with_adapters(stack) if adapters else stack,
        states=STATES[_states(row) if adapters is None else "bf16"],
        precision="fp8" if row.integer("fp8", 0) else gpu.half_dtype,
        attention=_attention(row, model),
        adapters=adapters,
        fine_tuned=adapters is not None,
    )
    return run, _rank_layout(row) if row.is_rank else _step_layout(row)


def _stack(row: RunRow) -> str:
    """Return the name of a step's software."""
    compiled = row.integer("compiled", 0)
    if row.text("tool") == MEGATRON:
        return "megatron"
    if row.is_rank and not _is_hf_rank(row):
        return "torchtitan-compiled" if compiled else "torchtitan"
    if compiled:
        return "compiled"
    return "fsdp" if row.is_rank else "eager"


def _is_hf_rank(row: RunRow) -> bool:
    """Return whether a row is a rank of Hugging Face's models."""
    return row.is_rank and row.text("tool") not in ("torchtitan", MEGATRON)


def _step_layout(row: RunRow) -> Layout:
    words = {"": "none", "0": "none", "1": "full", "reentrant": "full"}
    recompute = row.text("recompute").removesuffix(".0")
    recompute = words.get(recompute, recompute)
    return Layout(microbatch=row.integer("micro_batch", 1), zero=0, recompute=recompute)


def _rank_layout(row: RunRow) -> Layout:
    """Return the layout of a measured rank. torchtitan keeps gathered weights in a pipeline;
    Megatron-LM divides optimizer states alone, and both divide sequences over tensor ranks.
    """
    tp, pp, layers = row.integer("tp", 1), row.integer("pp", 1), row.integer("layers")
    dp, replicas = row.integer("devices") // (tp * pp), row.integer("replicate", 1)
    keeps_weights = row.text("reshard_after_forward") == "never" or pp > 1
    sharded_zero = (1 if pp > 1 else 2) if keeps_weights else 3
    if row.text("tool") == MEGATRON:
        sharded_zero = 1
    recompute = RANK_RECOMPUTE.get(row.text("recompute"), row.text("recompute", "none"))
    if recompute == FULL_BLOCKS:
        recompute = f"{FULL_BLOCKS}{max(1, layers // pp // 2)}"
    return Layout(
        dp=dp,
        tp=tp,
        pp=pp,
        microbatch=row.integer("micro_batch", 1),
        sp=tp > 1 and not _is_hf_rank(row),
        zero=sharded_zero if dp > replicas else 0,
        hsdp=replicas if dp > replicas else 1,
        recompute=recompute,
        blocks=(layers // pp,) * pp if layers % pp == 0 else (),
    )


def _flags(row: RunRow, model: ModelConfig) -> list[str]:
    """Return the flags of a step's software (`tools.software.FLAGS`)."""
    grouped = "grouped_mm" if row.text("transformers").startswith("5.") and model.experts else ""
    precision, optimizer, loss = (row.text(n) for n in ("precision", "optimizer", "loss_kind"))
    compiled, traced = row.integer("compiled", 0), _is_traced(row)
    tokens = row.integer("micro_batch", 1) * row.integer("seq") if loss == "chunked" else 0
    relative = model.positions == "relative"
    masked = row.text("attn", "sdpa") == "sdpa" and not _is_unmasked(row)
    dense = masked and bool(row.text("mask") or row.integer("packed", 0) or relative or traced)
    plain_scan = model.mixer == "mamba2" and row.text("attn") == "eager"
    # PEFT keeps adapters in fp32 unless told otherwise.
    adapters = row.text("adapter_dtype", "fp32" if row.integer("peft", 0) else "")
    chosen: dict[str, object] = {
        "fp32_adapters": adapters == "fp32",
        "nf4": row.text("weights") == "nf4",
        "autocast": precision == "amp" or optimizer == "fp32amp" or _is_amp_rank(row),
        "plain_mixers": plain_scan or "delta" in (model.mixer, *model.mixers),
        **dict.fromkeys(LOCAL_MODULES, row.text("tool") == MEGATRON),
        precision: precision in WIDE,
        optimizer: optimizer in UPDATES,
        "clip": row.integer("clip", 0),
        "eager_loss": row.text("compile_mode") == "block" or (compiled and _is_hf_rank(row)),
        "traced": traced and not row.is_rank,
        LOSSES.get(loss, ""): loss in LOSSES,
        f"loss_chunks={-(-tokens // CHUNK_TOKENS)}": loss == "chunked",
        "liger": row.integer("liger", 0),
        "dense_mask": dense,
        "dense_window": masked and not dense and (model.window or any(model.windows)),
        "math_attention": masked and (relative or _is_math(row, model)),
    }
    experts = EXPERTS.get(row.text("experts_implementation", grouped), ())
    return [*experts, *(flag for flag, is_chosen in chosen.items() if is_chosen)]


def _is_amp_rank(row: RunRow) -> bool:
    """Return whether a rank has fp32 weights that FSDP does not cast."""
    return row.is_rank and row.text("weights") == "fp32" and _rank_layout(row).zero == 0


def _states(row: RunRow) -> str:
    """Return the name of a step's optimizer states."""
    if (optimizer := row.text("optimizer")) in OPTIMIZER_STATES:
        return OPTIMIZER_STATES[optimizer]
    if row.text("tool") == MEGATRON:
        return "mixed"
    fp32 = "fp32" in (row.text("weights"), row.text("optimizer").removesuffix("amp"))
    return "fp32" if fp32 else "bf16"


def _is_unmasked(row: RunRow) -> bool:
    """Return whether a step passes no mask; tables without that column say so in the id."""
    return row.text("mask") == "none" or (not row.text("mask") and "nomask" in row.text("id"))


def _is_traced(row: RunRow) -> bool:
    """Return whether the model is compiled as one: Hugging Face then passes a dense mask, which the
    compiler runs as SDPA's math back end in encoders.
    """
    by_blocks = row.text("compile_mode") == "block" or row.is_rank
    return bool(row.integer("compiled", 0)) and not by_blocks


def _is_math(row: RunRow, model: ModelConfig) -> bool:
    """Return whether SDPA has no fused kernel: for traced encoders, and grouped heads in fp32."""
    grouped = model.kv_heads < model.heads
    return (_is_traced(row) and not model.causal) or (row.text("precision") in WIDE and grouped)


def _attention(row: RunRow, model: ModelConfig) -> str:
    """Return the attention kernel."""
    fused = row.text("attn", "sdpa") == "sdpa"
    if fused and _is_math(row, model) and not _is_unmasked(row):
        return "unfused"
    return ATTENTION.get(row.text("backend"), ATTENTION.get(row.text("attn"), "flash"))


def unpriced_words(row: RunRow) -> tuple[str, ...]:
    """Return the software choices of a step that the estimate does not take."""
    stated = {name: row.text(name).removesuffix(".0") for name in ASSUMED}
    return tuple(
        f"{name} {word!r}" for name, word in stated.items() if word and word not in ASSUMED[name]
    )


def model_from_step(row: RunRow) -> tuple[ModelConfig, int]:
    """Return the Hugging Face model of a row, and the tokens of a sequence (of its encoder)."""
    contents = _configuration(row)
    family, sequence = str(contents.get("model_type")), row.integer("seq", _longest(contents))
    if family in SPEECH_AND_TEXT:
        fields = Fields(contents, row.where)
        sequence = fields.size("max_source_positions", sequence)
        model = replace(
            config_from_hf(_as_t5(fields), row.where),
            family=family,
            attention_dropout=fields.probability("attention_dropout", 0.0),
            inner_dropout=fields.probability("activation_dropout", 0.0),
            norm="layernorm",
            positions="learned",
            position_rows=fields.size("max_position_embeddings", sequence),
            max_sequence=sequence,
            decoder_sequence=row.integer("seq"),
            attention_bias=True,
            output_bias=True,
            mlp_bias=True,
        )
    else:
        model = config_from_hf(contents, row.where)
    return replace(model, name=row.text("model", family)), sequence


def _configuration(row: RunRow) -> dict[str, Any]:
    """Return the fields of the model's configuration, from its file or from the row's sizes."""
    family, table = row.text("family"), Path(row.source)
    file = table.parent / row.text("config")
    packed = table.with_name(f"{table.stem}_configs.json.gz")
    given: dict[str, Any] = {}
    if row.text("config").startswith("{"):
        given = parse_object(row.text("config"), row.where)
    elif row.text("config") and not file.exists() and packed.exists():
        given = read_object(packed).get(file.name, {})
    elif row.text("config"):
        given = read_object(file)
    family = family or given.get("model_type", "")
    longest = max(row.integer("seq", 1), POSITIONS.get(family, USUAL_POSITIONS))
    sizes: dict[str, Any] = {"max_position_embeddings": longest}
    dropouts: Mapping[str, float] = {}
    if not given:
        dropouts = dict.fromkeys(DROPOUTS.get(family, ()), row.number("dropout", 0.0))
        sizes |= {key: row.integer(name) for name, key in SIZES.items() if row.text(name)}
        sizes["tie_word_embeddings"] = bool(row.integer("tied_embeddings", 0))
        if row.integer("experts", 0):
            sizes |= {key: size for name, key in MIXTURE.items() if (size := row.integer(name, 0))}
    spelling = FAMILIES[family].spelling if family in FAMILIES else {}
    return {
        "model_type": family,
        **{spelling.get(name, (name,))[0]: size for name, size in sizes.items()},
        **dropouts,
        **LATENT.get(family, {}),
        **given,
    }


def _longest(contents: Mapping[str, Any]) -> int:
    """Return the longest sequence of a configuration, for steps that do not state theirs."""
    sizes = (contents.get(name) for name in ("max_position_embeddings", "n_positions"))
    return next((size for size in sizes if isinstance(size, int)), USUAL_POSITIONS)


SPEECH_AND_TEXT = ("whisper", "bart")


def _as_t5(fields: Fields) -> dict[str, Any]:
    """Return an encoder and decoder in the words of T5; convolutions before them are left out."""
    hidden, heads = fields.size("d_model"), fields.size("encoder_attention_heads")
    return {
        "model_type": "t5",
        "d_model": hidden,
        "d_kv": hidden // heads,
        "d_ff": fields.size("encoder_ffn_dim"),
        "num_heads": heads,
        "num_layers": fields.size("encoder_layers"),
        "num_decoder_layers": fields.size("decoder_layers"),
        "vocab_size": fields.size("vocab_size"),
        "feed_forward_proj": "gelu",
        "dropout_rate": fields.probability("dropout", 0.0),
    }
