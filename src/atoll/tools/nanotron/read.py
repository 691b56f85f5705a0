"""nanotron's YAML (nanotron/config): sections model, optimizer, parallelism and tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atoll.base.errors import AtollError
from atoll.tools.arguments import Launch, LaunchArguments, UserValues, flatten, load_names
from atoll.workload import config_from_hf
from atoll.workload.families.model_config import ModelConfig

NAMES = load_names("nanotron")
PRECISIONS = {"bfloat16": "bf16", "float16": "fp16"}
ORDERS = {"1f1b": "1f1b", "afab": "gpipe"}


def is_nanotron(content: Mapping[str, Any]) -> bool:
    parallelism = content.get("parallelism")
    return isinstance(parallelism, Mapping) and "tokens" in content and "dp" in parallelism


def read_nanotron(file: str, content: Mapping[str, Any], user: UserValues) -> Launch:
    """Read a configuration; its model is a Hugging Face configuration inside."""
    values = {name: value for name, value in flatten(content) if value is not None}
    args = LaunchArguments(file, values)
    described = user.model or _model(file, content)
    tp, pp, cp, dp = (
        args.count(f"parallelism.{name}") or 1
        for name in ("tp", "pp", "context_parallel_size", "dp")
    )
    microbatch = args.size("tokens.micro_batch_size")
    dtype = args.text("model.dtype") or "bfloat16"
    if dtype not in PRECISIONS:
        raise AtollError(f"{file}: trains in {dtype}, which is not modelled")
    engine = args.text("parallelism.pp_engine") or "1f1b"
    scatters = (args.text("parallelism.tp_mode") or "").upper() == "REDUCE_SCATTER"
    wide = args.has("optimizer.accumulate_grad_in_fp32")
    fields: dict[str, Any] = {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "ep": args.count("parallelism.expert_parallel_size") or 1,
        "sp": scatters and tp > 1,
        "zero": args.count("optimizer.zero_stage") or 0,
        "devices": dp * tp * pp * cp,
        "microbatch": microbatch,
        "local_batch": microbatch * (args.count("tokens.batch_accumulation_per_replica") or 1),
        "sequence": args.size("tokens.sequence_length"),
        "precision": PRECISIONS[dtype],
        "optimizer": "mixed" if wide else "mixed16",
        "recompute": "full" if args.has("parallelism.recompute_layer") else "none",
        "order": ORDERS.get(engine, engine) if pp > 1 else "1f1b",
    }
    if str(values.get("optimizer.optimizer_factory.name", "adamW")).lower() in ("adam", "adamw"):
        args.text("optimizer.optimizer_factory.name")
    if scatters or tp == 1:  # as the software is priced
        args.has("parallelism.tp_linear_async_communication")
    steps = args.count("tokens.train_steps")
    args.ignore(NAMES.without_effect)
    args.doubt(NAMES.not_modelled)
    unset = {name: "" for name, value in flatten(content) if value is None}
    account = args.account().renamed({}, unset)
    return Launch(file, "nanotron", described, fields, steps, account)


def _model(file: str, content: Mapping[str, Any]) -> ModelConfig:
    config = dict(content["model"].get("model_config") or {})
    kinds = [
        name.removeprefix("is_").removesuffix("_config") for name in config if name[:3] == "is_"
    ]
    family = next((kind for kind in kinds if config.get(f"is_{kind}_config")), "")
    if family not in ("llama", "qwen2") or "moe_config" in config:
        raise AtollError(
            f"{file}: its model_config is none of Llama or Qwen 2; say the model with --model"
        )
    return config_from_hf({**config, "model_type": family}, Path(file).stem)
