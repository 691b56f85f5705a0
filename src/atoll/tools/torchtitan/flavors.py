"""torchtitan's registry of model shapes.

Job files name a flavor, or register a shape. The tests compare the shapes with the package's.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from atoll.files.yamlfile import shipped_table
from atoll.tools.launch_plan import refuse_model
from atoll.workload.families.model_config import ModelConfig

TARGET = "torchtitan"
TABLE = shipped_table("atoll.tools.torchtitan", "flavors.yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavor:
    """One entry of torchtitan's registry, with Atoll's field names."""

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

    def matches(self, model: ModelConfig) -> bool:
        return _plain(model) and all(getattr(self, n) == getattr(model, n) for n in _SHAPE)


_SHAPE = tuple(f.name for f in fields(Flavor) if f.name not in ("name", "flavor"))


def _plain(model: ModelConfig) -> bool:
    """Return whether a block is like torchtitan's: RMSNorm, SwiGLU, rotary, no biases."""
    usual = all(getattr(model, field) == value for field, value in TABLE["usual"].items())
    return usual and not any(getattr(model, field) for field in TABLE["without"])


FLAVORS = tuple(
    Flavor(**group["common"], **dict(zip(group["columns"], row, strict=True)))
    for group in TABLE["flavors"]
    for row in group["rows"]
)


def find_flavor(model: ModelConfig) -> Flavor:
    """Return the flavor of a model; one of its name if the job file registers its shape."""
    for flavor in FLAVORS:
        if flavor.matches(model):
            return flavor
    llama_like = (
        _plain(model)
        and not (model.experts or model.latent_kv or model.qk_norm or model.tied_embeddings)
        and model.head_dim * model.heads == model.hidden
        and model.rotated == model.head_dim
    )
    if not llama_like:
        raise refuse_model(
            TARGET,
            f"torchtitan has no model of the kind of {model.name} (it has Llama 3, Qwen 3 and "
            "DeepSeek V2 and V3); export to megatron or deepspeed",
        )
    shape = {field: getattr(model, field) for field in _SHAPE}
    return Flavor(name="llama3", flavor=model.name, **shape)
