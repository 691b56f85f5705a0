"""torchtitan 0.3: a Python function that returns `Trainer.Config(...)`, parsed and never run."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atoll.base.errors import AtollError
from atoll.files.inputs import read_input_text
from atoll.tools.arguments import Launch, UserValues
from atoll.tools.files.config_files import MOST_BYTES
from atoll.tools.files.expressions import evaluate_integer
from atoll.tools.torchtitan.read import read_torchtitan

CALLED = "called"
"""Key of the name of a called class or function beside its keywords."""
CHECKPOINTING = {"SelectiveAC": "selective", "FullAC": "full", "MemoryBudgetAC": "memory_budget"}
FAMILY = re.compile(r"torchtitan\.models\.(?!common)(\w+)")
LOSS_CHUNKS = 8  # where a chunked loss says no number


def read_program(path: Path, user: UserValues) -> Launch:
    """Read the function that the user names, or the last one, that returns a configuration."""
    text = read_input_text(path, MOST_BYTES)
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise AtollError(f"{path}: not a Python program") from None
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    wanted = [name for name in functions if name in user.arguments] or functions
    configurations = [_returned(functions[name], functions, 0) for name in wanted]
    config = next((c for c in reversed(configurations) if "training" in c), None)
    if config is None:
        raise AtollError(
            f"{path}: no function returns a configuration of torchtitan's trainer; a program is "
            "not run to see what it does: give the file that starts it, or say its tool and layout "
            "to atoll estimate (--tool nemo --tp 2)"
        )
    family = FAMILY.search(text)
    return read_torchtitan(str(path), _job(config, family[1] if family else path.parent.name), user)


def _returned(
    function: ast.FunctionDef, functions: Mapping[str, ast.FunctionDef], depth: int
) -> dict[str, Any]:
    """Return the keywords of the call that a function returns, with what it assigns to them."""
    names: dict[str, Any] = {}
    for node in function.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], _value(node.value, names)
            called = str(value.get(CALLED)) if isinstance(value, dict) else ""
            if called in functions and depth < len(functions):
                value = _returned(functions[called], functions, depth + 1)
            *path, last = ast.unparse(target).split(".")
            place: Any = names
            for name in path:
                place = place.setdefault(name, {}) if isinstance(place, dict) else {}
            if isinstance(place, dict):
                place[last] = value
        elif isinstance(node, ast.Return) and node.value is not None:
            value = _value(node.value, names)
            return value if isinstance(value, dict) else {}
    return {}


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return a literal, a product of integers, a list, or the keywords of a call."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item, names) for item in node.elts]
    if isinstance(node, ast.Call):
        keywords = {str(k.arg): _value(k.value, names) for k in node.keywords}
        placed = {str(i): _value(argument, names) for i, argument in enumerate(node.args)}
        return {CALLED: ast.unparse(node.func), **placed, **keywords}
    number = evaluate_integer(ast.unparse(node))
    return ast.unparse(node) if number is None else number


def _job(config: Mapping[str, Any], family: str) -> dict[str, Any]:
    """Return the configuration in the sections and words of a job file of torchtitan 0.2."""
    sections = {
        name: {n: v for n, v in value.items() if n != CALLED and v is not None}
        if isinstance(value, dict)
        else value
        for name, value in config.items()
        if name != CALLED and value is not None
    }
    spec, loss = sections.pop("model_spec", {}), str(config.get("loss"))
    sections["model"] = {
        "name": family,
        "flavor": spec.get("0", spec.get("flavor")),
        "attn_backend": spec.get("attn_backend", "varlen" if family == "gpt_oss" else "flex"),
    }
    if spec.get("converters"):
        sections["model"]["converters"] = str(spec["converters"]).lower()
    policy = str((config.get("activation_checkpoint") or {}).get(CALLED, "none")).partition(".")[0]
    checkpointing = sections.setdefault("activation_checkpoint", {})
    checkpointing["mode"] = CHECKPOINTING.get(policy, policy)
    chunks = sections.pop("loss", {}).get("num_chunks", LOSS_CHUNKS)
    if "Chunked" in loss:
        sections["loss"] = {"num_chunks": chunks}
    optimizer = str((config.get("optimizer") or {}).get(CALLED, "default_adamw"))
    sections.setdefault("optimizer", {})["name"] = "AdamW" if "adamw" in optimizer else optimizer
    training, tokens = sections.setdefault("training", {}), "num_tokens_per_microbatch_per_dp_rank"
    if tokens in training:
        length = training.pop("max_context_length", 2048)
        step_tokens = training.pop("num_tokens_per_train_step", -1)
        training |= {"seq_len": length, "local_batch_size": training.pop(tokens) // length}
        training |= {"global_batch_size": step_tokens // length} if step_tokens > 0 else {}
    return sections
