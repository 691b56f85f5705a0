"""NeMo and Megatron-Bridge: a recipe's values as YAML, in megatron-core's own words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atoll.errors import AtollError
from atoll.launch.account import Accounted, Arguments, Launch, flat
from atoll.launch.megatron import WITHOUT_EFFECT, layout_fields
from atoll.launch.megatron_model import model_of
from atoll.workload.families.model_config import ModelConfig

RENAMED = {
    "sequence_length": "seq_length",
    "microbatch_group_size_per_vp_stage": "microbatch_group_size_per_virtual_pipeline_stage",
}
PRECISIONS = {"fp16": "fp16", "mxfp8": "mxfp8", "nvfp4": "nvfp4", "fp8": "fp8", "bf16": "bf16"}


def is_nemo(content: Mapping[str, Any]) -> bool:
    model = content.get("model")
    return isinstance(model, Mapping) and "tensor_model_parallel_size" in model


def read_nemo(file: str, content: Mapping[str, Any], model: ModelConfig | None) -> Launch:
    """Overrides of a recipe; the model is the recipe's unless the file describes it whole."""
    values = {
        name: value for name, value in flat(content) if value is not None and value is not False
    }
    short: dict[str, Any] = {}
    whole: dict[str, str] = {}
    for name, value in values.items():
        own = RENAMED.get(name.split(".")[-1], name.split(".")[-1])
        short[own] = None if value is True else value
        whole[own] = name
    given = Arguments(file, short)
    described = model
    if described is None:
        if "hidden_size" not in short:
            raise AtollError(f"{file}: leaves the model to a recipe; say it with --model")
        described = model_of(given)
    fields = layout_fields(given, described.layers)
    fields["sequence"] = given.count("seq_length") or described.sequence
    batch = given.count("global_batch_size")
    if batch:
        fields["batch"] = batch
    said = given.text("mixed_precision") or "bf16"
    fields["precision"] = next((v for k, v in PRECISIONS.items() if k in said), "bf16")
    overlaps = {
        "grad_reduce": (reduced := given.has("overlap_grad_reduce")),
        "no_grad_reduce": not reduced,
        "param_gather": given.has("overlap_param_gather"),
        "tp_comm": given.has("tp_comm_overlap"),
    }
    fields["overlap"] = " ".join(name for name, on in overlaps.items() if on)
    steps = given.count("train_iters")
    given.ignore(WITHOUT_EFFECT)
    found = given.accounted()
    return Launch(file, "nemo", described, fields, steps, Accounted(
        *({whole.get(n, n): v for n, v in part.items()}
          for part in (found.used, found.without_effect, found.not_understood))
    ))  # fmt: skip
