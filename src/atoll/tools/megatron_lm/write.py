"""Megatron-LM: a shell script around pretrain_gpt.py.

Argument names and their checks: megatron/training/arguments.py of megatron-core 0.17.1 (the first
releases that carry it are 0.17); the tests give every script to that parser.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Container, Mapping
from itertools import chain
from typing import Any

from atoll.answers.layout import LaunchFile
from atoll.files.yamlfile import shipped_table
from atoll.tools import launch_plan
from atoll.tools.files.variables import bash_word, marked_names
from atoll.tools.launch_plan import LaunchPlan, Settings, refuse, trial_note
from atoll.tools.megatron_lm import core
from atoll.tools.megatron_lm.write_model import model_values

TARGET = "megatron-lm"
FILE = "megatron.sh"

NARROW_RECIPES: dict[str, Settings] = {
    "fp8": {"fp8_format": "hybrid", "fp8_recipe": "tensorwise"},
    "mxfp8": {"fp8_format": "e4m3", "fp8_recipe": "mxfp8"},
    "nvfp4": {"fp4_format": "e2m1", "fp4_recipe": "nvfp4"},
}
"""Formats and scaling of products in fewer bits than the weights."""
SOFTWARE: dict[str, Settings] = {
    "te_loss": core.FUSED_LOSS,
    "local": {"transformer_impl": "local"},
    "fp8_params": {"fp8_param_gather": True},
    "no_grad_fusion": {"no_gradient_accumulation_fusion": True},
}
"""Arguments of flags."""
CARRIED = "RUN"
SAMPLES = '--train-samples "$((TRAIN_ITERS * {batch}))"'
VARIABLES: dict[str, dict[str, str]] = shipped_table("atoll.tools.megatron_lm", "variables.yaml")


def megatron_lm(plan: LaunchPlan) -> LaunchFile:
    model, notes = model_values(plan)
    if plan.carried:  # what these notes ask for is in the user's file, or as it was
        notes = [note for note in notes if "add " not in note]
    groups: dict[str, Settings] = {
        "MODEL": model,
        "PARALLEL": _parallel(plan, notes),
        "BATCH": {
            "micro_batch_size": plan.layout.microbatch,
            "global_batch_size": plan.global_batch,
            "seq_length": plan.sequence,
        },
        "MEMORY": core.recompute_values(plan),
        "PRECISION": _precision(plan, notes),
        "SOFTWARE": _software(plan),
    }
    written = {field for values in groups.values() for field in values}
    carried = {n: value for n, value in plan.carried.items() if _field(n) not in written}
    whole = [name[1:].removesuffix(":+") for name in carried if name[0] == "$"]
    marked = [name for value in carried.values() for name in marked_names(value)]
    kept_variables = {name: plan.variables[name] or "" for name in (*whole, *marked)}
    lists = [[w for w in kept_variables[name].split() if w[0] == "-"] for name in whole]
    lists += [words for n, words in carried.items() if n[0] == "$" and words is not True]
    fields = {*map(_field, chain(carried, *lists))}
    variables = {
        name: {**row, "default": _default(name, row["default"], plan)}
        for name, row in VARIABLES.items()
        if not any(re.fullmatch(row["unless"], field) for field in fields)
    }
    if "train_samples" in fields:
        variables["TRAIN_ITERS"] = variables["TRAIN_ITERS"] | {"words": SAMPLES}
    dropped = "train_samples|.*vocab.*" if "TOKENIZER" in variables else "train_samples"
    run = {n: v for n, v in carried.items() if not re.fullmatch(dropped, _field(n))}
    groups = {CARRIED: run, **groups}
    for name, value in kept_variables.items():
        comment = VARIABLES.get(name, {}).get("comment", f"as in {plan.source}")
        variables[name] = {"default": _quoted(value), "words": "", "comment": comment}
    variables = {n: variables[n] for n in dict.fromkeys((*VARIABLES, *variables)) if n in variables}
    notes[:0] = _trial_notes(plan, variables, fields)
    if plan.method == "sft" and "SAVE" in variables:
        notes.append("Weights are random unless the script is given --load FOLDER --finetune.")
    text = _script(plan, variables, groups)
    return LaunchFile(target=TARGET, file=FILE, text=text, notes=tuple(notes))


def _default(name: str, usual: str, plan: LaunchPlan) -> str:
    """Return a variable's default: the run's, else that of the user's file."""
    figures = {
        "vocab": plan.model.vocab - 1,
        "steps": plan.steps,
        "rate": launch_plan.LEARNING_RATE,
        "save_interval": plan.save_interval or launch_plan.SAVE_INTERVAL,
    }
    value = plan.variables.get(name)
    if name == "TRAIN_ITERS" or value is None or (name == "SAVE_INTERVAL" and plan.save_interval):
        return usual.format(**figures)
    return _quoted(value)


def _quoted(value: str) -> str:
    """Return a default as "${NAME:-...}" has it."""
    return value if re.fullmatch(r"[\w ./:,=+@%-]*", value) else shlex.quote(value)


def _trial_notes(
    plan: LaunchPlan, variables: Mapping[str, Mapping[str, str]], fields: Container[str]
) -> list[str]:
    """Return a note on random tokens, if the script trains on them, with what is to be set."""
    mocks = [name for name, row in variables.items() if "mock-data" in row["default"]]
    if not mocks and "mock_data" not in fields:
        return []
    set_already = {"TRAIN_ITERS"} if plan.steps != launch_plan.TRIAL_STEPS else set()
    defaults = {name: row["default"] for name, row in variables.items()}
    if defaults.get("SAVE") != "":
        set_already |= {"SAVE", "SAVE_INTERVAL"}
    if defaults.get("SAVE_INTERVAL") != str(launch_plan.SAVE_INTERVAL):
        set_already.add("SAVE_INTERVAL")
    names = [name for name in VARIABLES if name in variables and name not in set_already]
    return [trial_note(*([] if mocks else ["--data-path in place of --mock-data"]), *names)]


def _parallel(plan: LaunchPlan, notes: list[str]) -> Settings:
    layout = plan.layout
    notes += core.sharding_notes(plan)
    chunks = layout.vpp if plan.even and layout.vpp > 1 else None
    values = core.parallel_values(plan, TARGET) | {
        "num_virtual_stages_per_pipeline_rank": chunks,
        "microbatch_group_size_per_virtual_pipeline_stage": core.microbatch_group(plan, TARGET),
        **core.sharding_values(plan),
    }
    if layout.zero >= 2:
        values |= {"no_gradient_accumulation_fusion": True, "ckpt_format": "fsdp_dtensor"}
    return values


def _software(plan: LaunchPlan) -> Settings:
    """Return the arguments of further flags and overlaps, where they have an effect."""
    values: Settings = {}
    for word in plan.software:
        values |= SOFTWARE.get(word, {})
    if plan.precision not in NARROW_RECIPES or plan.layout.zero == 0:
        values.pop("fp8_param_gather", None)
    if not plan.software or "p2p" in plan.software or plan.layout.pp == 1:
        return values
    if plan.layout.vpp > 1 and plan.layout.pp == 2:
        raise refuse(
            TARGET,
            "without overlap of sends it interleaves over at least 3 stages; add p2p to "
            "--overlap, or set vpp 1",
        )
    return values | {"no_overlap_p2p_communication": True}


def _field(argument: str) -> str:
    return argument.lstrip("-").replace("-", "_")


def _argument_text(field: str, value: Any) -> str:
    """Return an argument as the script has it: `--name words`, or `${NAME:+words}`."""
    words = value if isinstance(value, list) else [] if value is True else [str(value)]
    name = field if field[:1] in "-$" else "--" + field.replace("_", "-")
    text = " ".join(map(bash_word, words))
    return f"${{{name[1:]}{text}}}" if name.endswith(":+") else f"{name} {text}".rstrip()


def _precision(plan: LaunchPlan, notes: list[str]) -> Settings:
    recipe = NARROW_RECIPES.get(plan.precision)
    if recipe is None:
        return {plan.precision: True}
    notes.append(f"{plan.precision} products need Transformer Engine.")
    if plan.precision == "fp8":
        notes.append(
            "fp8 is written as the hybrid format with tensorwise scaling; other recipes are "
            "--fp8-recipe delayed and blockwise."
        )
    return {"bf16": True, **recipe}


def _script(plan: LaunchPlan, variables: Mapping[str, Mapping[str, str]],
            groups: Mapping[str, Settings]) -> str:  # fmt: skip
    several = plan.nodes > 1
    missing = [': "${NODE_RANK:?set it to the number of this node, from 0}"'] * several
    lines = [
        "#!/usr/bin/env bash",
        plan.header(f"bash {FILE}", "Arguments given to this script come last and win."),
        "set -euo pipefail",
        "# Set these here or in the environment.",
        *(
            f"{name}=${{{name}:-{row['default']}}}  # {row['comment']}"
            for name, row in variables.items()
        ),
        f"MEGATRON=${{MEGATRON:-{_quoted(plan.variables.get('MEGATRON') or '.')}}}"
        "  # checkout of Megatron-LM",
        f"NODE_RANK=${{NODE_RANK:-${{SLURM_NODEID:-{'' if several else '0'}}}}}",
        *missing,
        f"MASTER_ADDR={launch_plan.ADDRESS if several else '${MASTER_ADDR:-localhost}'}",
        "MASTER_PORT=${MASTER_PORT:-29500}",
        f"export CUDA_DEVICE_MAX_CONNECTIONS={core.connections(plan)}",
        *[f"export PYTORCH_CUDA_{launch_plan.GROWING}"] * ("growing_segments" in plan.software),
        "",
    ]
    used = ""
    for name, values in groups.items():  # switches that are on, and fields with a value
        stated = {n: v for n, v in values.items() if v is not None and v is not False}
        if stated:
            lines.append(f"{name}=(" + f"  # as in {plan.source}" * (name == CARRIED))
            lines += [f"  {_argument_text(field, value)}" for field, value in stated.items()]
            lines.append(")")
            used += f' "${{{name}[@]}}"'
    batch = plan.global_batch
    words = " ".join(filter(None, (row["words"].format(batch=batch) for row in variables.values())))
    lines += [
        "",
        f"exec torchrun --nnodes {plan.nodes} --nproc-per-node {plan.per_node} "
        '--node-rank "$NODE_RANK" \\',
        '  --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \\',
        '  "$MEGATRON/pretrain_gpt.py" \\',
        f" {used} \\",
        f'  {words} "$@"',
        "",
    ]
    return "\n".join(lines)
