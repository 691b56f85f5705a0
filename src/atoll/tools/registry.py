"""Registry of training tools, built in or from plug-in packages, and the choice among them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll.base.errors import AtollError
from atoll.base.registry import Registry, import_named
from atoll.step.layout import Layout
from atoll.tools.launch_plan import LaunchPlan, make_plan
from atoll.tools.software import FRAMEWORKS, named, stack_named
from atoll.tools.stack import FOLDERS, STACK_FOLDERS
from atoll.tools.tool import UNRESTRICTED, Tool, load_tool
from atoll.workload.families.model_config import ModelConfig

if TYPE_CHECKING:
    from atoll.answers.layout import LaunchFile


@dataclass(frozen=True, slots=True)
class ImportedWriter:
    """Writes launch files with a function that is imported on use."""

    path: str

    def __call__(self, plan: LaunchPlan) -> LaunchFile:
        launch_file: LaunchFile = import_named(self.path)(plan)
        return launch_file


WRITERS = {
    folder: ImportedWriter(f"atoll.tools.{folder}.write:{name}")
    for folder, name in (
        ("megatron_lm", "megatron"), ("torchtitan", "torchtitan"), ("deepspeed", "deepspeed"),
        ("nemo", "nemo"), ("trl", "trl"), ("llama_factory", "llama_factory"),
    )
}  # fmt: skip
"""Writers of launch files by folder."""
ANY_LAYOUT = Tool(UNRESTRICTED, "an unrestricted runtime", "")
"""Runs every layout of the space, with the software of the device."""
_BY_FOLDER = {
    folder: load_tool(f"atoll.tools.{folder}", WRITERS.get(folder))
    for folder in sorted(FOLDERS, key=[*WRITERS, *FOLDERS].index)
}
TOOLS = Registry("tools", Tool, [*_BY_FOLDER.values(), ANY_LAYOUT])
FINE_TUNING = ("trl", "transformers")
"""Usual tools of fine-tuning, in order of preference."""
ANY_MODEL = "deepspeed"
"""The usual tool of models that the device's usual tool has no arguments for."""


def find_tool(words: str) -> Tool:
    """Return the tool of a name ("megatron-lm"), with or without a version ("nemo@26.04"), of an
    alias, or of words for it ("Megatron-Bridge 26.04").
    """
    name = words.partition("@")[0].strip()
    for tool in TOOLS.values():
        if name in (tool.name, *tool.aliases):
            return tool
    release = re.search(r"\d", name)  # words for a release, not a misspelt name
    framework = release and named(name, [(pattern, tool) for pattern, _, tool in FRAMEWORKS])
    return TOOLS[framework or name]


def stack_words(words: str) -> str:
    """Return the words for the software of a tool's version; empty without one."""
    name, _, version = words.partition("@")
    if version:
        return f"{find_tool(name).title} {version}"
    return "" if name in TOOLS or any(name in tool.aliases for tool in TOOLS.values()) else words


def tool_of_stack(words: str) -> Tool:
    """Return the tool that runs a stack, which is named or described by words."""
    framework = named(words, [(pattern, tool) for pattern, _, tool in FRAMEWORKS])
    stack = stack_named(words) or words
    if words != stack and framework:
        return TOOLS[framework]
    return _BY_FOLDER[STACK_FOLDERS[stack]] if stack in STACK_FOLDERS else ANY_LAYOUT


def usual_tool(
    device_stack: str,
    model: ModelConfig | None,
    method: str,
    precision: str,
    asked: Mapping[str, tuple[Any, ...]],
) -> Tool:
    """Return a sensible tool for a device, a model and a method that can run the values `asked` for
    of a plan's axes; without one, the unrestricted runtime. `model`: None if it was captured.
    """
    device_tool = tool_of_stack(device_stack)
    if device_tool.name in ("chip", "xla"):  # which compile whole programs
        return device_tool
    if method == "pretrain":
        candidates = [device_tool, TOOLS[ANY_MODEL]]
    else:
        candidates = [TOOLS[name] for name in FINE_TUNING if name in TOOLS] + [device_tool]
    for tool in candidates:
        if _suits(tool, model, method, precision, asked):
            return tool
    return ANY_LAYOUT


def _suits(
    tool: Tool,
    model: ModelConfig | None,
    method: str,
    precision: str,
    asked: Mapping[str, tuple[Any, ...]],
) -> bool:
    """Return whether a tool has the method and the precision, can describe the model, and runs at
    least one of the values asked for on every axis.
    """
    able = method in tool.methods and precision in tool.precisions
    for axis, values in asked.items():
        able = able and (axis not in tool.axes or bool({*values} & {*tool.axes[axis]}))
    if not able or model is None:
        return False
    if tool.write is None:
        return True
    try:
        tool.write(make_plan(model, Layout(), model.sequence, 1, 1, precision=precision))
    except AtollError:
        return False
    return True
