"""Which of torchtitan's models a model is.

torchtitan 0.2.2 keeps a model's shape in a registry of flavors; a TOML file only names one. Shapes
here are those of its registry, which the tests read again from the package.
"""

from __future__ import annotations

from dataclasses import dataclass

from atoll.export.plan import refuse
from atoll.workload.model_config import ModelConfig

TARGET = "torchtitan"
LLAMA_VOCAB = 128256


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


_SHAPE = (
    "hidden",
    "layers",
    "heads",
    "kv_heads",
    "head_dim",
    "ffn",
    "vocab",
    "tied_embeddings",
    "qk_norm",
    "experts",
    "experts_per_token",
    "shared_ffn",
    "dense_ffn",
    "latent_kv",
    "latent_q",
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


def _llama(flavor: str, hidden: int, layers: int, heads: int, ffn: int) -> Flavor:
    return Flavor(
        name="llama3",
        flavor=flavor,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=8,
        head_dim=hidden // heads,
        ffn=ffn,
        vocab=LLAMA_VOCAB,
    )


def _qwen(flavor: str, hidden: int, layers: int, heads: int, ffn: int, tied: bool) -> Flavor:
    return Flavor(
        name="qwen3",
        flavor=flavor,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=8,
        head_dim=128,
        ffn=ffn,
        vocab=151936,
        tied_embeddings=tied,
        qk_norm=True,
        pipeline=False,
    )


def _qwen_moe(flavor: str, hidden: int, layers: int, heads: int, ffn: int) -> Flavor:
    return Flavor(
        name="qwen3",
        flavor=flavor,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=4,
        head_dim=128,
        ffn=ffn,
        vocab=151936,
        qk_norm=True,
        experts=128,
        experts_per_token=8,
        pipeline=False,
    )


FLAVORS = (
    _llama("8B", 4096, 32, 32, 14336),
    _llama("70B", 8192, 80, 64, 28672),
    _llama("405B", 16384, 126, 128, 53248),
    _qwen("0.6B", 1024, 28, 16, 3072, True),
    _qwen("1.7B", 2048, 28, 16, 6144, True),
    _qwen("4B", 2560, 36, 32, 9728, True),
    _qwen("8B", 4096, 36, 32, 12288, False),
    _qwen("14B", 5120, 40, 40, 17408, False),
    _qwen("32B", 5120, 64, 64, 25600, False),
    _qwen_moe("30B-A3B", 2048, 48, 32, 768),
    _qwen_moe("235B-A22B", 4096, 94, 64, 1536),
    Flavor(
        name="deepseek_v3",
        flavor="16B",
        hidden=2048,
        layers=27,
        heads=16,
        kv_heads=16,
        head_dim=192,
        ffn=1408,
        vocab=102400,
        experts=64,
        experts_per_token=6,
        shared_ffn=2816,
        dense_ffn=10944,
        latent_kv=512,
        context=False,
    ),
    Flavor(
        name="deepseek_v3",
        flavor="236B",
        hidden=5120,
        layers=60,
        heads=128,
        kv_heads=128,
        head_dim=192,
        ffn=1536,
        vocab=102400,
        experts=160,
        experts_per_token=6,
        shared_ffn=3072,
        dense_ffn=12288,
        latent_kv=512,
        latent_q=1536,
        context=False,
    ),
    Flavor(
        name="deepseek_v3",
        flavor="671B",
        hidden=7168,
        layers=61,
        heads=128,
        kv_heads=128,
        head_dim=192,
        ffn=2048,
        vocab=129280,
        experts=256,
        experts_per_token=8,
        shared_ffn=2048,
        dense_ffn=18432,
        latent_kv=512,
        latent_q=1536,
        context=False,
    ),
)


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
