"""GPT-NeoX's YAML: Megatron-LM's arguments under other names, beside sections of DeepSpeed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from atoll.base.errors import AtollError
from atoll.tools.arguments import Launch, LaunchArguments, UserValues, load_names
from atoll.tools.deepspeed.read import read_deepspeed
from atoll.tools.files.shell_tokens import UNKNOWN
from atoll.tools.megatron_lm.read import NAMES as MEGATRON
from atoll.tools.megatron_lm.read import layout_fields
from atoll.tools.megatron_lm.read_model import build_model
from atoll.workload.families.model_config import ModelConfig

NAMES = load_names("gpt_neox")
GATED = ("swiglu", "geglu", "reglu", "bilinear")


def read_gpt_neox(file: str, content: Mapping[str, Any], user: UserValues) -> Launch:
    """Read one file that has model, layout and DeepSpeed's sections."""
    sections = {name: value for name, value in content.items() if isinstance(value, Mapping)}
    plain = {str(n).replace("-", "_"): n for n in content if n not in sections}
    file_names = {NAMES.renamed.get(name, name): written for name, written in plain.items()}
    values = {name: content[written] for name, written in file_names.items()}
    off = {name: str(v) for name, v in values.items() if v is False or v is None}
    chosen = {n: None if v is True else v for n, v in values.items() if n not in off}
    chosen["pipeline_model_parallel_size"] = max(1, values["pipeline_model_parallel_size"] or 0)
    if values.get("num_experts"):
        chosen.setdefault("moe_layer_freq", 2)  # expert_interval
    args = LaunchArguments(file, chosen, UNKNOWN, user.vocab, file_names=file_names, ignored=off)
    args.refuse_programs(NAMES)
    attention = args.text("attention_config") or "global"
    if any(word in attention for word in ("mamba", "rwkv", "gmlp", "local", "sparse")):
        raise AtollError(f"{file}: its attention_config is {attention[:40]}, which is not modelled")
    described = user.model or _model(args)
    dtype = str(values.get("precision", ""))
    if dtype in ("bfloat16", "fp16"):
        sections.setdefault("bf16" if dtype == "bfloat16" else "fp16", {"enabled": True})
    deepspeed = read_deepspeed(file, sections, replace(user, model=described))
    fields = layout_fields(args, described.layers)
    accumulated = args.count("gradient_accumulation_steps") or 1
    narrow = sections.get("fp16", {}).get("type") == "bfloat16"  # DeeperSpeed's own
    fields |= {
        "zero": deepspeed.fields["zero"],
        "precision": "bf16" if narrow else deepspeed.fields["precision"],
        "sequence": args.size("seq_length"),
        "attention": "flash" if "flash" in attention else "unfused",
        "local_batch": fields["microbatch"] * accumulated,
        "overlap": "zero_grad_reduce" if fields["pp"] > 1 else deepspeed.fields["overlap"],
        "batch": args.count("global_batch_size"),
        "devices": args.count("global_num_gpus"),
    }
    steps = args.count("train_iters")
    about_experts = () if described.experts else ("moe_layer_freq",)
    account = args.account(NAMES, MEGATRON, more=about_experts).joined(deepspeed.arguments, "")
    return Launch(file, "gpt-neox", described, fields, steps, account)


def _model(args: LaunchArguments) -> ModelConfig:
    """Return the decoder; GPT-J's residual runs attention and MLP side by side."""
    activation, norm = args.text("activation") or "gelu", args.text("norm") or "layernorm"
    more: dict[str, Any] = {"swiglu": None} if activation in GATED else {}
    more |= {"normalization": "RMSNorm"} if "rmsnorm" in norm else {}
    more |= {"group_query_attention": None} if "num_query_groups" in args.values else {}
    described = LaunchArguments(args.file, {**args.values, **more}, args.unknown, args.vocab)
    model = replace(build_model(described), parallel=args.has("gpt_j_residual"))
    for name in described.used.keys() - more.keys():
        args.text(name)
        args.has(name)
    return model
