"""Megatron-LM: a shell script around pretrain_gpt.py.

Argument names and their checks: megatron/training/arguments.py of megatron-core 0.17.1 (the first
releases that carry it are 0.17); the tests give every script to that parser.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Container, Mapping, Sequence

from atoll.answers.layout import LaunchFile
from atoll.files.yamlfile import shipped_table
from atoll.tools.files.variables import bash_word, marked_names
from atoll.tools.launch_plan import (
    ADDRESS,
    LEARNING_RATE,
    SAVE_INTERVAL,
    TRIAL_STEPS,
    LaunchPlan,
    Settings,
    refuse,
    trial_note,
)
from atoll.tools.megatron_lm.core import (
    FUSED_LOSS,
    connections,
    microbatch_group,
    parallel_values,
    recompute_values,
    sharding_notes,
    sharding_values,
)
from atoll.tools.megatron_lm.write_model import model_values

TARGET = "megatron-lm"
FILE = "megatron.sh"
ArgumentWords = list[tuple[str, ...]]

NARROW_RECIPES: dict[str, Settings] = {
    "fp8": {"fp8_format": "hybrid", "fp8_recipe": "tensorwise"},
    "mxfp8": {"fp8_format": "e4m3", "fp8_recipe": "mxfp8"},
    "nvfp4": {"fp4_format": "e2m1", "fp4_recipe": "nvfp4"},
}
"""Formats and scaling of products in fewer bits than the weights."""
SOFTWARE: dict[str, Settings] = {
    "te_loss": FUSED_LOSS,
    "local": {"transformer_impl": "local"},
    "fp8_params": {"fp8_param_gather": True},
    "no_grad_fusion": {"no_gradient_accumulation_fusion": True},
}
"""Arguments of flags."""
CARRIED = "RUN"
SAMPLES = '--train-samples "$((TRAIN_ITERS * {batch}))"'
VARIABLES: dict[str, dict[str, str]] = shipped_table("atoll.tools.megatron_lm", "variables.yaml")


def megatron(plan: LaunchPlan) -> LaunchFile:
    model, notes = model_values(plan)
    if plan.carried:  # what these notes ask for is in the user's file, or as it was
        notes = [note for note in notes if "add " not in note]
    batch: Settings = {
        "micro_batch_size": plan.layout.microbatch,
        "global_batch_size": plan.global_batch,
        "seq_length": plan.sequence,
    }
    groups: dict[str, Settings] = {
        "MODEL": model,
        "PARALLEL": _parallel(plan, notes),
        "BATCH": batch,
        "MEMORY": recompute_values(plan),
        "PRECISION": _precision(plan, notes),
        "SOFTWARE": _software(plan),
    }
    written = {field for values in groups.values() for field in values}
    carried = {n: value for n, value in plan.carried.items() if _field(n) not in written}
    whole = [name[1:].removesuffix(":+") for name in carried if name[0] == "$"]
    marked = [name for value in carried.values() for name in marked_names(value)]
    kept_variables = {name: plan.variables[name] or "" for name in (*whole, *marked)}
    inner_words = [
        word for name in whole for word in kept_variables[name].split() if word[0] == "-"
    ]
    inner_words += [
        w for n, words in carried.items() if n[0] == "$" and words is not True for w in words
    ]
    fields = {*map(_field, (*carried, *inner_words))}
    variables = {
        name: {**row, "default": _default(name, row["default"], plan)}
        for name, row in VARIABLES.items()
        if not any(re.fullmatch(row["unless"], field) for field in fields)
    }
    if "train_samples" in fields:
        variables["TRAIN_ITERS"] = variables["TRAIN_ITERS"] | {"words": SAMPLES}
    dropped = "train_samples|.*vocab.*" if "TOKENIZER" in variables else "train_samples"
    groups = {
        CARRIED: {n: v for n, v in carried.items() if not re.fullmatch(dropped, _field(n))},
        **groups,
    }
    for name, value in kept_variables.items():
        comment = VARIABLES.get(name, {}).get("comment", f"as in {plan.source}")
        variables[name] = {"default": _quoted(value), "words": "", "comment": comment}
    variables = {n: variables[n] for n in dict.fromkeys((*VARIABLES, *variables)) if n in variables}
    notes[:0] = _trial_notes(plan, variables, fields)
    if plan.method == "sft" and "SAVE" in variables:
        notes.append("Weights are random unless the script is given --load FOLDER --finetune.")
    arguments = {name: _arguments(values) for name, values in groups.items()}
    text = _script(plan, variables, arguments)
    return LaunchFile(target=TARGET, file=FILE, text=text, notes=tuple(notes))


def _default(name: str, usual: str, plan: LaunchPlan) -> str:
    """Return a variable's default: the run's, else that of the user's file."""
    figures = {
        "vocab": plan.model.vocab - 1,
        "steps": plan.steps,
        "rate": LEARNING_RATE,
        "save_interval": plan.save_interval or SAVE_INTERVAL,
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
    set_already = {"TRAIN_ITERS"} if plan.steps != TRIAL_STEPS else set()
    defaults = {name: row["default"] for name, row in variables.items()}
    if defaults.get("SAVE") != "":
        set_already |= {"SAVE", "SAVE_INTERVAL"}
    if defaults.get("SAVE_INTERVAL") != str(SAVE_INTERVAL):
        set_already.add("SAVE_INTERVAL")
    names = [name for name in VARIABLES if name in variables and name not in set_already]
    return [trial_note(*([] if mocks else ["--data-path in place of --mock-data"]), *names)]


def _parallel(plan: LaunchPlan, notes: list[str]) -> Settings:
    layout = plan.layout
    notes += sharding_notes(plan)
    values = parallel_values(plan, TARGET) | {
        "num_virtual_stages_per_pipeline_rank": layout.vpp
        if plan.even and layout.vpp > 1
        else None,
        "microbatch_group_size_per_virtual_pipeline_stage": microbatch_group(plan, TARGET),
        **sharding_values(plan),
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


def _arguments(values: Settings) -> ArgumentWords:
    """Return fields as arguments: switches that are on, and fields with a value."""
    arguments: ArgumentWords = []
    for field, value in values.items():
        if value is not None and value is not False:
            words = value if isinstance(value, list) else [] if value is True else [str(value)]
            name = field if field[:1] in "-$" else "--" + field.replace("_", "-")
            arguments.append((name, *words))
    return arguments


def _argument_text(name: str, words: Sequence[str]) -> str:
    """Return an argument as the script has it: `--name words`, or `${NAME:+words}`."""
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
            groups: dict[str, ArgumentWords]) -> str:  # fmt: skip
    rank, address, missing = "0", "localhost", []
    if plan.nodes > 1:
        rank, address = "", ADDRESS
        missing = [': "${NODE_RANK:?set it to the number of this node, from 0}"']
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
        f"NODE_RANK=${{NODE_RANK:-${{SLURM_NODEID:-{rank}}}}}",
        *missing,
        f"MASTER_ADDR={address}" if missing else f"MASTER_ADDR=${{MASTER_ADDR:-{address}}}",
        "MASTER_PORT=${MASTER_PORT:-29500}",
        f"export CUDA_DEVICE_MAX_CONNECTIONS={connections(plan)}",
        "",
    ]
    groups = {name: arguments for name, arguments in groups.items() if arguments}
    for name, arguments in groups.items():
        lines.append(f"{name}=(" + f"  # as in {plan.source}" * (name == CARRIED))
        lines += [f"  {_argument_text(name, words)}" for name, *words in arguments]
        lines.append(")")
    used = " ".join(f'"${{{name}[@]}}"' for name in groups)
    batch = plan.global_batch
    words = " ".join(filter(None, (row["words"].format(batch=batch) for row in variables.values())))
    lines += [
        "",
        f"exec torchrun --nnodes {plan.nodes} --nproc-per-node {plan.per_node} "
        '--node-rank "$NODE_RANK" \\',
        '  --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \\',
        '  "$MEGATRON/pretrain_gpt.py" \\',
        f"  {used} \\",
        f'  {words} "$@"',
        "",
    ]
    return "\n".join(lines)
