"""A model's shape as Megatron-LM arguments, for the decoders that pretrain_gpt.py can build."""

from __future__ import annotations

from itertools import groupby

from atoll.errors import AtollError
from atoll.export.plan import Plan, refuse
from atoll.workload.families.model_config import ModelConfig

TARGET = "megatron"
Arguments = list[tuple[str, ...]]


def model_arguments(plan: Plan) -> tuple[Arguments, list[str]]:
    """The arguments, and notes on what Atoll's description of a model leaves open."""
    model = plan.model
    _check(model)
    notes: list[str] = []
    found: Arguments = [
        ("--num-layers", str(model.layers)),
        ("--hidden-size", str(model.hidden)),
        ("--ffn-hidden-size", str(model.dense_ffn or model.ffn)),
        ("--num-attention-heads", str(model.heads)),
        ("--normalization", "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm"),
        *_activation(model),
        *_biases(model),
        *_positions(plan, notes),
        *_attention(model, notes),
        *_experts(model, notes),
        *_vocabulary(plan, notes),
        ("--hidden-dropout", str(model.dropout)),
        ("--attention-dropout", str(model.attention_dropout)),
    ]
    if model.embedding_dropout != model.dropout:
        notes.append(
            f"Megatron drops embeddings at the rate of the residual branches ({model.dropout}); "
            f"{model.name} has {model.embedding_dropout}."
        )
    return found, notes


_STRUCTURE = {
    "patch_inputs": "image patches",
    "token_types": "token types",
    "mlm_head": "a masked language model's head",
    "post_norm": "norms after the residual additions",
    "parallel": "attention and feed-forward side by side",
    "branch_norms": "norms that close each branch",
    "embedding_norm": "a norm on embeddings",
    "embedding_scale": "scaled embeddings",
    "score_cap": "capped attention scores",
    "logit_cap": "capped logits",
    "head_bias": "a bias on the logits",
    "embedding_width": "embeddings narrower than the blocks",
    "encoder_layers": "an encoder before its decoder",
    "windows": "windows that differ between blocks",
}


def _check(model: ModelConfig) -> None:
    for field, words in _STRUCTURE.items():
        if getattr(model, field):
            raise _no_argument(model, words)
    if model.special:
        raise _no_argument(model, model.special)
    if not model.final_norm:
        raise _no_argument(model, "no norm before its head")
    if not model.causal:
        raise _no_argument(model, "attention to later tokens")


def _no_argument(model: ModelConfig, words: str) -> AtollError:
    return refuse(
        TARGET,
        f"{model.name} has {words}, for which pretrain_gpt.py takes no argument; export to "
        "deepspeed or nemo, which do not describe the model",
    )


def _activation(model: ModelConfig) -> Arguments:
    if model.gated and model.activation == "silu":
        return [("--swiglu",)]
    if not model.gated and model.activation == "gelu":
        return []
    gate = "gated " if model.gated else ""
    raise _no_argument(model, f"a {gate}{model.activation} feed-forward layer")


def _biases(model: ModelConfig) -> Arguments:
    given = (model.attention_bias, model.output_bias, model.mlp_bias)
    if given == (True, True, True):
        return []
    if given == (False, False, False):
        return [("--disable-bias-linear",)]
    if given == (True, False, False):
        return [("--disable-bias-linear",), ("--add-qkv-bias",)]
    raise _no_argument(model, "biases on some of its layers only")


def _positions(plan: Plan, notes: list[str]) -> Arguments:
    model = plan.model
    if model.positions == "learned":
        rows = model.position_rows or model.max_sequence
        if plan.sequence > rows:
            raise refuse(
                TARGET,
                f"sequence {plan.sequence} is longer than the {rows} learned positions of "
                f"{model.name}; shorten it",
            )
        return [
            ("--position-embedding-type", "learned_absolute"),
            ("--max-position-embeddings", str(rows)),
        ]
    rows = max(model.max_sequence, plan.sequence)
    kinds = {"rotary": "rope", "none": "none"}
    if model.positions not in kinds:
        raise _no_argument(model, f"{model.positions} positions")
    found: Arguments = [
        ("--position-embedding-type", kinds[model.positions]),
        ("--max-position-embeddings", str(rows)),
    ]
    if model.positions == "rotary":
        notes.append(
            "Atoll does not keep the rotary base, its scaling or the norms' epsilon; add "
            "--rotary-base and --norm-epsilon of the model before training for real."
        )
        if not model.latent_kv and model.rotated != model.head_dim:
            found.append(("--rotary-percent", str(model.rotated / model.head_dim)))
    return found


def _attention(model: ModelConfig, notes: list[str]) -> Arguments:
    if model.latent_kv:
        return _latent_attention(model, notes)
    found: Arguments = [("--kv-channels", str(model.head_dim))]
    if model.kv_heads != model.heads:
        found += [("--group-query-attention",), ("--num-query-groups", str(model.kv_heads))]
    if model.value_dim not in (0, model.head_dim):
        raise _no_argument(model, f"values {model.value_dim} wide beside keys {model.head_dim}")
    if model.qk_norm:
        found.append(("--qk-layernorm",))
    if model.window:
        # Megatron counts the tokens to the left of a query; the model's window includes it.
        found.append(("--window-size", f"{model.window - 1},0"))
    return found


def _latent_attention(model: ModelConfig, notes: list[str]) -> Arguments:
    found: Arguments = [("--multi-latent-attention",)]
    if model.latent_q:
        found.append(("--q-lora-rank", str(model.latent_q)))
    notes.append(
        "Multi-latent attention takes YaRN positions by default; set --rope-type, "
        "--rotary-scaling-factor and --mscale as the model needs."
    )
    return [
        *found,
        ("--kv-lora-rank", str(model.latent_kv)),
        ("--qk-head-dim", str(model.head_dim - model.rotated)),
        ("--qk-pos-emb-head-dim", str(model.rotated)),
        ("--v-head-dim", str(model.value_width)),
        ("--qk-layernorm",),
    ]


def _experts(model: ModelConfig, notes: list[str]) -> Arguments:
    if not model.experts:
        return []
    found: Arguments = [
        ("--num-experts", str(model.experts)),
        ("--moe-router-topk", str(model.experts_per_token)),
        ("--moe-ffn-hidden-size", str(model.ffn)),
        ("--moe-token-dispatcher-type", "alltoall"),
        ("--moe-grouped-gemm",),
    ]
    if model.router == "sigmoid":
        found += [
            ("--moe-router-score-function", "sigmoid"),
            ("--moe-router-enable-expert-bias",),
        ]
    if model.shared_ffn:
        found.append(("--moe-shared-expert-intermediate-size", str(model.shared_ffn)))
    if model.shared_gate:
        found.append(("--moe-shared-expert-gate",))
    if model.dense_layers:
        found.append(("--moe-layer-freq", _layer_pattern(model)))
    notes.append(
        "Atoll does not keep how the router balances, scales or groups experts; add "
        "--moe-router-load-balancing-type, --moe-aux-loss-coeff, --moe-router-pre-softmax and "
        "the like."
    )
    return found


def _layer_pattern(model: ModelConfig) -> str:
    """Blocks with experts (1) and without (0), as the list expression that Megatron evaluates."""
    dense = set(model.dense_layers)
    runs = [
        (with_experts, len(list(run)))
        for with_experts, run in groupby(int(i not in dense) for i in range(model.layers))
    ]
    return "(" + "+".join(f"[{with_experts}]*{length}" for with_experts, length in runs) + ")"


def _vocabulary(plan: Plan, notes: list[str]) -> Arguments:
    """The table as it was estimated: padded only as far as the tensor group needs."""
    vocab, tp = plan.model.vocab, plan.layout.tp
    padded = -(-vocab // tp) * tp
    if padded != vocab:
        notes.append(f"The vocabulary of {vocab} is padded to {padded}, a multiple of tp {tp}.")
    found: Arguments = [("--padded-vocab-size", str(padded))]
    if not plan.model.tied_embeddings:
        found.append(("--untie-embeddings-and-output-weights",))
    return found
