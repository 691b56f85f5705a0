"""nanotron's YAML (nanotron/config): sections model, optimizer, parallelism and tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atoll.base.errors import AtollError
from atoll.tools.arguments import Launch, LaunchArguments, UserValues, load_names, stated
from atoll.workload import config_from_hf
from atoll.workload.families.model_config import ModelConfig

NAMES = load_names("nanotron")


def read_nanotron(file: str, content: Mapping[str, Any], user: UserValues) -> Launch:
    """Read a configuration; its model is a Hugging Face configuration inside."""
    values, left_open = stated(content)
    args = LaunchArguments(file, values, ignored=left_open)
    described = user.model or _model(file, content)
    fields = NAMES.read(args, "layout")
    tp, pp, accumulated = fields["tp"], fields["pp"], fields.pop("accumulated")
    scatters = (args.text("parallelism.tp_mode") or "").upper() == "REDUCE_SCATTER"
    wide = args.has("optimizer.accumulate_grad_in_fp32")
    fields |= {
        "sp": scatters and tp > 1,
        "devices": fields.pop("dp") * tp * pp * fields["cp"],
        "local_batch": fields["microbatch"] * accumulated,
        "optimizer": "mixed" if wide else "mixed16",
        "recompute": "full" if args.has("parallelism.recompute_layer") else "none",
        "order": fields["order"] if pp > 1 else "1f1b",
    }
    if scatters or tp == 1:  # as the software is priced
        args.has("parallelism.tp_linear_async_communication")
    steps = args.count("tokens.train_steps")
    return Launch(file, "nanotron", described, fields, steps, args.account(NAMES))


def _model(file: str, content: Mapping[str, Any]) -> ModelConfig:
    config = dict(content["model"].get("model_config") or {})
    kinds = [n.removeprefix("is_").removesuffix("_config") for n in config if n[:3] == "is_"]
    family = next((kind for kind in kinds if config.get(f"is_{kind}_config")), "")
    if family not in ("llama", "qwen2") or "moe_config" in config:
        raise AtollError(
            f"{file}: its model_config is none of Llama or Qwen 2; say the model with --model"
        )
    return config_from_hf({**config, "model_type": family}, Path(file).stem)
