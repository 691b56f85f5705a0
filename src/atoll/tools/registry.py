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
    """Writes launch files with the function of a tool's folder, which is imported on use."""

    folder: str

    def __call__(self, plan: LaunchPlan) -> LaunchFile:
        path = f"atoll.tools.{self.folder}.write:{self.folder}"
        launch_file: LaunchFile = import_named(path)(plan)
        return launch_file


WRITERS = {
    folder: ImportedWriter(folder)
    for folder in ("megatron_lm", "torchtitan", "deepspeed", "nemo", "trl", "llama_factory")
}
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
    """Return the tool of a name, with or without @VERSION, of an alias, or of words for it."""
    name = words.partition("@")[0].strip()
    for tool in TOOLS.values():
        if name in (tool.name, *tool.aliases):
            return tool
    release = re.search(r"\d", name)  # words for a release, not a misspelt name
    return TOOLS[(release and _framework_tool(name)) or name]


def _framework_tool(words: str) -> str | None:
    return named(words, [(pattern, tool) for pattern, _, tool in FRAMEWORKS])


def stack_words(words: str) -> str:
    """Return the words for the software of a tool's version; empty without one."""
    name, _, version = words.partition("@")
    if version:
        return f"{find_tool(name).title} {version}"
    return "" if name in TOOLS or any(name in tool.aliases for tool in TOOLS.values()) else words


def tool_of_stack(words: str) -> Tool:
    """Return the tool that runs a stack, which is named or described by words."""
    stack = stack_named(words) or words
    if words != stack and (framework := _framework_tool(words)):
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
        runs = method in tool.methods and precision in tool.precisions
        runs = runs and all(
            axis not in tool.axes or {*values} & {*tool.axes[axis]}
            for axis, values in asked.items()
        )
        if runs and model is not None and _describes(tool, model, precision):
            return tool
    return ANY_LAYOUT


def _describes(tool: Tool, model: ModelConfig, precision: str) -> bool:
    """Return whether a tool can describe the model, if Atoll writes its launch files."""
    if tool.write is not None:
        try:
            tool.write(make_plan(model, Layout(), model.sequence, 1, 1, precision=precision))
        except AtollError:
            return False
    return True
