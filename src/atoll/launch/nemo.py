"""NeMo and Megatron-Bridge: a recipe's values, or a whole configuration of NeMo 1, as YAML.

Both speak megatron-core's words, NeMo 1 some of its own (`examples/nlp/language_modeling/conf` of
NeMo 1.23, and NeMo-Framework-Launcher's `conf/training`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atoll.errors import AtollError
from atoll.launch.account import Arguments, Launch, flat, words_of
from atoll.launch.files.words import UNKNOWN
from atoll.launch.megatron import WORDS as MEGATRON
from atoll.launch.megatron import layout_fields, software_fields
from atoll.launch.megatron_model import model_of
from atoll.workload.families.model_config import ModelConfig

WORDS = words_of("nemo")
ACTIVATIONS = {"swiglu": "swiglu", "geglu": "gated_linear_unit", "squared_relu": "squared_relu"}
PRECISIONS = {"fp16": "fp16", "mxfp8": "mxfp8", "nvfp4": "nvfp4", "fp8": "fp8", "bf16": "bf16",
              "16-mixed": "fp16"}  # fmt: skip


def is_nemo(content: Mapping[str, Any]) -> bool:
    model = content.get("model")
    return isinstance(model, Mapping) and "tensor_model_parallel_size" in model


def read_nemo(
    file: str, content: Mapping[str, Any], model: ModelConfig | None, vocab: int | None = None
) -> Launch:
    """Overrides of a recipe; the model is the recipe's unless the file describes it whole."""
    _check_kind(file, content)
    said, whole, unsaid = _translated(content)
    given = Arguments(file, said, UNKNOWN, vocab)
    described = model
    if described is None:
        if "hidden_size" not in said:
            raise AtollError(f"{file}: leaves the model to a recipe; say it with --model")
        if "seq_length" not in said:
            raise AtollError(f"{file}: does not say seq_length")
        described = model_of(given)
    fields = layout_fields(given, described.layers)
    fields["sequence"] = given.count("seq_length") or described.sequence
    fields |= software_fields(given) | _precision(given) | _optimizer(given) | _adapters(content)
    fields["zero"] = max(fields["zero"], fields.pop("least_zero"))
    if batch := given.count("global_batch_size"):
        fields["batch"] = batch
    if devices := (given.count("devices") or 1) * (given.count("num_nodes") or 0):
        fields["devices"] = devices
    if model is not None and (dropout := given.number("hidden_dropout")) is not None:
        given.number("attention_dropout", "embedding_dropout")
        fields["dropout"] = dropout
    steps = given.number("train_iters")
    off = () if "fsdp" in said else ("fsdp_*",)
    known = (*MEGATRON.without_effect, *MEGATRON.as_priced, *WORDS.without_effect)
    given.ignore((*known, *WORDS.sections, *off))
    found = given.accounted()
    whole_run = int(steps) if steps and steps > 0 else None
    return Launch(file, "nemo", described, fields, whole_run, found.under(whole, unsaid))


def _check_kind(file: str, content: Mapping[str, Any]) -> None:
    sections = (name for name in WORDS.not_trained if isinstance(content.get(name), Mapping))
    if found := next(sections, ""):
        raise AtollError(f"{file}: runs a model and does not train it ({found})")
    for what, names in WORDS.trains_else.items():
        if found := next((n for n in names if content["model"].get(n) is not None), ""):
            raise AtollError(
                f"{file}: trains a model of {what} (model.{found}); only decoders of texts are "
                "modelled"
            )


def _translated(
    content: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
    """Values in megatron-core's words, the names that they have in the file, and those that say
    nothing (null and false: as if they were not there).
    """
    said: dict[str, Any] = {}
    whole: dict[str, str] = {}
    unsaid: dict[str, str] = {}
    aside = Arguments("", dict(flat(content)))
    aside.ignore(WORDS.sections)
    for name, value in flat(content):
        last = name.rpartition(".")[2]
        own = WORDS.renamed.get(last, last)
        if last in WORDS.negated and value is not None:
            if value is False:
                said[WORDS.negated[last]], whole[WORDS.negated[last]] = None, name
            else:
                unsaid[name] = str(value)  # as it is without a word
        elif value is None or value is False:
            unsaid[name] = str(value)
        elif name in ("trainer.devices", "trainer.num_nodes", "trainer.precision",
                      "trainer.max_steps", "tokenizer.type", "model.tokenizer.type",
                      "optim.name", "model.optim.name"):  # fmt: skip
            key = {"type": "tokenizer_type", "name": "optimizer"}.get(last, own)
            said[key], whole[key] = value, name
        elif own in said and said[own] in (value, None if value is True else value):
            unsaid[name] = str(value)  # the same thing again
        elif name in aside.ignored or own in said:
            said[name] = value
        else:
            said[own], whole[own] = None if value is True else value, name
    for name in ("seq_length", "sequence_length"):  # of the data, where the model has none
        for place in ("model.data", "dataset"):
            if "seq_length" not in said and f"{place}.{name}" in said:
                said["seq_length"] = said.pop(f"{place}.{name}")
                whole["seq_length"] = f"{place}.{name}"
    kind = str(said.get("activation", "")).removeprefix("fast-").replace("-", "_")
    if kind in ACTIVATIONS:
        if (switch := ACTIVATIONS[kind]) in said:
            unsaid[whole[switch]] = "True"  # the same thing again
        said[switch], whole[switch] = None, whole["activation"]
        del said["activation"]
    elif kind == "gelu":
        unsaid[whole["activation"]] = str(said.pop("activation"))
    if str(said.get("normalization", "")).lower() == "rmsnorm":
        said["normalization"] = "RMSNorm"
    if "num_query_groups" in said:
        said["group_query_attention"] = None
        whole["group_query_attention"] = whole["num_query_groups"]
    return said, whole, unsaid


def _precision(given: Arguments) -> dict[str, Any]:
    words = given.text("mixed_precision") or given.text("precision") or ""
    fp8 = given.has("fp8")
    given.has("fp8_e4m3", "fp8_hybrid")
    if words == "16":
        words = "fp16"
    if words in ("32", "32-true"):
        raise AtollError(f"{given.file}: trains in fp32, which is not modelled")
    found = next((v for k, v in PRECISIONS.items() if k in words), "bf16")
    return {"precision": "fp8" if fp8 and found == "bf16" else found}


def _optimizer(given: Arguments) -> dict[str, Any]:
    """NeMo 1 names the optimizer that divides its states."""
    name = given.text("optimizer") or ""
    narrow = (given.text("grad_sync_dtype") or "") in ("bf16", "16") or given.has(
        "grad_reduce_in_fp16", "grad_reduce_in_bf16"
    )
    divided = "distributed" in name
    return {"least_zero": int(divided)} | ({"optimizer": "mixed16"} if narrow else {})


def _adapters(content: Mapping[str, Any]) -> dict[str, Any]:
    peft = content["model"].get("peft")
    scheme = str(peft.get("peft_scheme", "")) if isinstance(peft, Mapping) else ""
    if scheme.lower() in ("", "none", "null"):
        return {}
    if scheme != "lora":
        raise AtollError(f"peft_scheme {scheme!r} trains a part of the model: not modelled")
    tuning = peft.get("lora_tuning")
    rank = tuning.get("adapter_dim") if isinstance(tuning, Mapping) else None
    return {"method": "lora", "lora_rank": rank if isinstance(rank, int) else 32,
            "lora_targets": "attention"}  # fmt: skip
