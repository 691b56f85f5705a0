"""A Hugging Face style configuration, read by its family."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import replace

from atoll.base.errors import AtollError
from atoll.workload.families.builtin import REFUSED
from atoll.workload.families.config_fields import Fields
from atoll.workload.families.family import FAMILIES
from atoll.workload.families.model_config import ModelConfig

QUANTIZED = ("quantization_config", "compression_config")
READ = ("text_config", *QUANTIZED)
DEPTHS = ("depth", "num_hidden_layers", "num_layers", "encoder_layers")
"""Names of the number of blocks in parts for images and sound."""


def config_from_hf(contents: dict[str, object], where: str) -> ModelConfig:
    """Read a Hugging Face style configuration; `where` names its file in error messages.

    Of a model with several parts (images and language) the language part is read. Other parts and
    quantized weights are named in `not_modelled`.
    """
    fields = Fields(contents, where)
    atoll = fields.block("atoll")
    config = _read_family(fields)
    return replace(
        config,
        default_sequence=atoll.size("sequence", 0),
        published_parameters=atoll.size("parameters", 0, most=10**15),
        approximate=atoll.flag("approximate", False),
        source=atoll.text("source", ""),
        not_modelled=(*_quantized(contents), *_omitted_parts(contents, config.part)),
    )


def _quantized(contents: Mapping[str, object]) -> Iterator[str]:
    """Describe quantized weights, which are not modelled."""
    parts = (contents, contents.get("text_config"))
    for part in (part for part in parts if isinstance(part, Mapping)):
        for name in QUANTIZED:
            settings = part.get(name)
            if not isinstance(settings, Mapping):
                continue
            bits = next((n for n in (4, 8) if settings.get(f"load_in_{n}bit") is True), None)
            bits = bits or settings.get("bits")
            words = str(settings.get("quant_method") or "a method that it does not name")
            words += f", {bits} bits" if isinstance(bits, int) else ""
            yield (
                f"quantized weights ({name}: {words}) are not modelled; weights are planned in 16 "
                "bits, or in the precision that is asked for"
            )


def _omitted_parts(contents: Mapping[str, object], part: str) -> Iterator[str]:
    """Describe the parts of a multi-part model that are left out."""
    if not part:
        return
    others = []
    for name, sizes in contents.items():
        if name.endswith("_config") and name not in READ and isinstance(sizes, Mapping):
            depth = next((sizes[n] for n in DEPTHS if isinstance(sizes.get(n), int)), None)
            others.append(name if depth is None else f"{name} ({depth} blocks)")
    yield (
        f"only the {part} is planned; {', '.join(others) or 'every other part'} is left out, with "
        "its weights, memory and time"
    )


def _read_family(fields: Fields) -> ModelConfig:
    model_type, where = fields.text("model_type"), fields.where
    if model_type in REFUSED:
        raise AtollError(f"{where}: model_type is {model_type!r}, {REFUSED[model_type]}")
    if isinstance(fields.get("text_config"), dict):
        inner = fields.block("text_config")
        tied = fields.get("tie_word_embeddings")
        if tied is not None and "tie_word_embeddings" not in inner.entries:
            inner = replace(inner, entries={**inner.entries, "tie_word_embeddings": tied})
        if "model_type" not in inner.entries and f"{model_type}_text" in FAMILIES:
            inner = replace(inner, entries={**inner.entries, "model_type": f"{model_type}_text"})
        return replace(_read_family(inner), part="language part")
    if model_type not in FAMILIES:
        close = difflib.get_close_matches(model_type, FAMILIES, n=3, cutoff=0.6)
        words = f"but only {', '.join(sorted(FAMILIES))} are known"
        if close:
            words = f"which is not known; did you mean {' or '.join(close)}"
        raise AtollError(
            f"{where}: model_type is {model_type!r}, {words}; capture the module itself with "
            "`atoll capture`, or write the model as the nearest of these"
        )
    return _constants(FAMILIES[model_type].read(fields), fields)


def _constants(config: ModelConfig, fields: Fields) -> ModelConfig:
    """Add the numbers that change no operator; transformers 5 keeps rotary ones in a sub-block."""
    rope = fields.get("rope_parameters")
    scaled = fields.get("rope_scaling") or rope
    kind = scaled.get("rope_type", scaled.get("type")) if isinstance(scaled, dict) else None
    rotary = fields.block("rope_parameters") if isinstance(rope, dict) else fields
    return replace(
        config,
        rotary_base=fields.positive("rope_theta") or rotary.positive("rope_theta"),
        norm_epsilon=fields.positive("norm_epsilon"),
        rotary_scaling=kind if isinstance(kind, str) and kind != "default" else "",
    )
