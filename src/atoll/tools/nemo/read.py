"""NeMo and Megatron-Bridge: a recipe's values, or a full configuration of NeMo 1, as YAML.

Both use megatron-core's names; NeMo 1 adds a few (`examples/nlp/language_modeling/conf` of
NeMo 1.23, and NeMo-Framework-Launcher's `conf/training`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atoll.base.errors import AtollError
from atoll.tools.arguments import Launch, LaunchArguments, UserValues, flatten, load_names
from atoll.tools.files.shell_tokens import UNKNOWN
from atoll.tools.megatron_lm.read import NAMES as MEGATRON
from atoll.tools.megatron_lm.read import layout_fields, software_fields
from atoll.tools.megatron_lm.read_model import build_model

NAMES = load_names("nemo")
ACTIVATIONS = {"swiglu": "swiglu", "geglu": "gated_linear_unit", "squared_relu": "squared_relu"}
PRECISIONS = {"fp16": "fp16", "mxfp8": "mxfp8", "nvfp4": "nvfp4", "fp8": "fp8", "bf16": "bf16",
              "16-mixed": "fp16"}  # fmt: skip


def read_nemo(file: str, content: Mapping[str, Any], user: UserValues) -> Launch:
    """Read a recipe's overrides; the model is the recipe's unless the file describes one."""

    def is_stated(name: str) -> bool:
        section, _, field = name.rpartition(".")
        value = (content[section] if section else content).get(field)
        return isinstance(value, Mapping) or bool(section and value is not None)

    NAMES.refuse_programs(file, is_stated, {})
    values, file_names, ignored = _translated(content)
    args = LaunchArguments(
        file, values, UNKNOWN, user.vocab, file_names=file_names, ignored=ignored
    )
    described = user.model
    if described is None:
        if "hidden_size" not in values:
            raise AtollError(f"{file}: leaves the model to a recipe; say it with --model")
        if "seq_length" not in values:
            raise AtollError(f"{file}: does not say seq_length")
        described = build_model(args)
    fields = layout_fields(args, described.layers)
    fields["sequence"] = args.count("seq_length") or described.sequence
    fields |= software_fields(args) | _precision(args) | _optimizer(args) | _adapters(content)
    fields["zero"] = max(fields["zero"], fields.pop("least_zero"))
    fields["batch"] = args.count("global_batch_size")
    fields["devices"] = (args.count("devices") or 1) * (args.count("num_nodes") or 0) or None
    if user.model is not None and (dropout := args.number("hidden_dropout")) is not None:
        args.number("attention_dropout", "embedding_dropout")
        fields["dropout"] = dropout
    steps = args.number("train_iters")
    unused = () if "fsdp" in values else ("fsdp_*",)
    step_count = int(steps) if steps and steps > 0 else None
    account = args.account(NAMES, MEGATRON, more=unused)
    return Launch(file, "nemo", described, fields, step_count, account)


def _translated(
    content: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
    """Return values by megatron-core's names, their names in the file, and values not set."""
    values: dict[str, Any] = {}
    file_names: dict[str, str] = {}
    without_effect: dict[str, str] = {}
    aside = LaunchArguments("", dict(flatten(content)))
    aside.ignore(NAMES.sections)
    for name, value in flatten(content):
        last = name.rpartition(".")[2]
        argument = NAMES.renamed.get(last, last)
        if last in NAMES.negated and value is not None:
            if value is False:
                values[NAMES.negated[last]], file_names[NAMES.negated[last]] = None, name
            else:
                without_effect[name] = str(value)  # the default
        elif value is None or value is False:
            without_effect[name] = str(value)
        elif name in ("trainer.devices", "trainer.num_nodes", "trainer.precision",
                      "trainer.max_steps", "tokenizer.type", "model.tokenizer.type",
                      "optim.name", "model.optim.name"):  # fmt: skip
            key = {"type": "tokenizer_type", "name": "optimizer"}.get(last, argument)
            values[key], file_names[key] = value, name
        elif argument in values and values[argument] in (value, None if value is True else value):
            without_effect[name] = str(value)  # the same thing again
        elif name in aside.ignored or argument in values:
            values[name] = value
        else:
            values[argument], file_names[argument] = None if value is True else value, name
    for name in ("seq_length", "sequence_length"):  # of the data, where the model has none
        for place in ("model.data", "dataset"):
            if "seq_length" not in values and f"{place}.{name}" in values:
                values["seq_length"] = values.pop(f"{place}.{name}")
                file_names["seq_length"] = f"{place}.{name}"
    kind = str(values.get("activation", "")).removeprefix("fast-").replace("-", "_")
    if kind in ACTIVATIONS:
        if (switch := ACTIVATIONS[kind]) in values:
            without_effect[file_names[switch]] = "True"  # the same thing again
        values[switch], file_names[switch] = None, file_names["activation"]
        del values["activation"]
    elif kind == "gelu":
        without_effect[file_names["activation"]] = str(values.pop("activation"))
    if str(values.get("normalization", "")).lower() == "rmsnorm":
        values["normalization"] = "RMSNorm"
    if "num_query_groups" in values:
        values["group_query_attention"] = None
        file_names["group_query_attention"] = file_names["num_query_groups"]
    return values, file_names, without_effect


def _precision(args: LaunchArguments) -> dict[str, Any]:
    text = args.text("mixed_precision") or args.text("precision") or ""
    fp8 = args.has("fp8")
    args.has("fp8_e4m3", "fp8_hybrid")
    if text == "16":
        text = "fp16"
    if text in ("32", "32-true"):
        raise AtollError(f"{args.file}: trains in fp32, which is not modelled")
    precision = next((v for k, v in PRECISIONS.items() if k in text), "bf16")
    return {"precision": "fp8" if fp8 and precision == "bf16" else precision}


def _optimizer(args: LaunchArguments) -> dict[str, Any]:
    """Return optimizer fields; NeMo 1 has a named optimizer that shards its states."""
    narrow = args.text("grad_sync_dtype") in ("bf16", "16")
    narrow = narrow or args.has("grad_reduce_in_fp16", "grad_reduce_in_bf16")
    divided = "distributed" in str(args.values.get("optimizer", ""))
    return {"least_zero": int(divided), "optimizer": "mixed16" if narrow else None}


def _adapters(content: Mapping[str, Any]) -> dict[str, Any]:
    bridged = content.get("peft")
    if isinstance(bridged, Mapping) and isinstance(bridged.get("target_modules"), list):
        targets = "+".join(map(str, bridged["target_modules"]))
        return {"method": "lora", "lora_rank": bridged.get("dim", 32), "lora_targets": targets}
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
