"""Which of torchtitan's models a model is.

torchtitan 0.2.2 keeps a model's shape in a registry of flavors; a TOML file only names one. Shapes
here are those of its registry, which the tests read again from the package.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from atoll.export.plan import refuse
from atoll.workload.families.model_config import ModelConfig

TARGET = "torchtitan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavor:
    """One entry of torchtitan's registry, in Atoll's words."""

    name: str
    flavor: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tied_embeddings: bool = False
    qk_norm: bool = False
    experts: int = 0
    experts_per_token: int = 0
    shared_ffn: int = 0
    dense_ffn: int = 0
    latent_kv: int = 0
    latent_q: int = 0
    pipeline: bool = True
    """torchtitan can cut it into pipeline stages."""
    context: bool = True
    """torchtitan can divide its sequences (flex attention cannot)."""

    def matches(self, model: ModelConfig) -> bool:
        same = all(getattr(self, field) == getattr(model, field) for field in _SHAPE)
        return same and _plain(model)


_SHAPE = tuple(
    f.name for f in fields(Flavor) if f.name not in ("name", "flavor", "pipeline", "context")
)


def _plain(model: ModelConfig) -> bool:
    """The block that torchtitan's language models share: RMSNorm, SwiGLU, rotary, no biases."""
    return (
        model.gated
        and model.activation == "silu"
        and model.norm == "rmsnorm"
        and model.positions == "rotary"
        and model.causal
        and not (model.attention_bias or model.output_bias or model.mlp_bias)
        and not (model.window or model.windows or model.parallel or model.post_norm)
        and not (model.branch_norms or model.embedding_scale or model.score_cap or model.special)
    )


def _flavors(columns: tuple[str, ...], *rows: tuple[Any, ...], **common: Any) -> tuple[Flavor, ...]:
    return tuple(Flavor(**common, **dict(zip(columns, row, strict=True))) for row in rows)


_COLUMNS = ("flavor", "hidden", "layers", "heads", "ffn")
_QWEN = {"name": "qwen3", "head_dim": 128, "vocab": 151936, "qk_norm": True, "pipeline": False}
FLAVORS = (
    *_flavors(
        _COLUMNS,
        ("8B", 4096, 32, 32, 14336),
        ("70B", 8192, 80, 64, 28672),
        ("405B", 16384, 126, 128, 53248),
        name="llama3", kv_heads=8, head_dim=128, vocab=128256,
    ),
    *_flavors(
        _COLUMNS,
        ("0.6B", 1024, 28, 16, 3072),
        ("1.7B", 2048, 28, 16, 6144),
        ("4B", 2560, 36, 32, 9728),
        **_QWEN, kv_heads=8, tied_embeddings=True,
    ),
    *_flavors(
        _COLUMNS,
        ("8B", 4096, 36, 32, 12288),
        ("14B", 5120, 40, 40, 17408),
        ("32B", 5120, 64, 64, 25600),
        **_QWEN, kv_heads=8,
    ),
    *_flavors(
        _COLUMNS,
        ("30B-A3B", 2048, 48, 32, 768),
        ("235B-A22B", 4096, 94, 64, 1536),
        **_QWEN, kv_heads=4, experts=128, experts_per_token=8,
    ),
    *_flavors(
        (*_COLUMNS, "kv_heads", "vocab", "experts", "experts_per_token", "shared_ffn", "dense_ffn",
         "latent_q"),
        ("16B", 2048, 27, 16, 1408, 16, 102400, 64, 6, 2816, 10944, 0),
        ("236B", 5120, 60, 128, 1536, 128, 102400, 160, 6, 3072, 12288, 1536),
        ("671B", 7168, 61, 128, 2048, 128, 129280, 256, 8, 2048, 18432, 1536),
        name="deepseek_v3", head_dim=192, latent_kv=512, context=False,
    ),
)  # fmt: skip


def find_flavor(model: ModelConfig) -> tuple[Flavor, str | None]:
    """The flavor, and a note where the user must register it first."""
    for flavor in FLAVORS:
        if flavor.matches(model):
            return flavor, None
    if not _llama_like(model):
        raise refuse(
            TARGET,
            f"torchtitan 0.2.2 has no model of the kind of {model.name} (it has Llama 3, Qwen 3 "
            "and DeepSeek V2 and V3); export to megatron or deepspeed",
        )
    own = Flavor(name="llama3", flavor=model.name, **{f: getattr(model, f) for f in _SHAPE})
    note = (
        f"torchtitan ships no flavor of this shape: first set torchtitan.models.llama3.llama3_args"
        f"[{model.name!r}] = {model_arguments(model)}."
    )
    return own, note


def model_arguments(model: ModelConfig) -> str:
    """A Llama-like shape as torchtitan's TransformerModelArgs.

    It rounds 8/3 of the width, times a multiplier, up to a multiple: with the multiple set to the
    wanted columns, anything not above them rounds to them.
    """
    narrow = model.ffn < int(2 * 4 * model.hidden / 3)
    multiplier = ", ffn_dim_multiplier=0.1" if narrow else ""
    return (
        f"TransformerModelArgs(dim={model.hidden}, n_layers={model.layers}, "
        f"n_heads={model.heads}, n_kv_heads={model.kv_heads}, vocab_size={model.vocab}, "
        f"multiple_of={model.ffn}{multiplier})"
    )


def _llama_like(model: ModelConfig) -> bool:
    return (
        _plain(model)
        and not (model.experts or model.latent_kv or model.qk_norm or model.tied_embeddings)
        and model.head_dim * model.heads == model.hidden
        and model.rotated == model.head_dim
    )
