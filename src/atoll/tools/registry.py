"""Registry of training tools, built in or from plug-in packages."""

from __future__ import annotations

from atoll.base.registry import Registry
from atoll.tools.deepspeed.write import deepspeed
from atoll.tools.llama_factory.write import llama_factory
from atoll.tools.megatron_lm.write import megatron
from atoll.tools.nemo.write import nemo
from atoll.tools.stack import FOLDERS
from atoll.tools.tool import Tool, load_tool
from atoll.tools.torchtitan.write import torchtitan
from atoll.tools.trl.write import trl

WRITERS = {
    "megatron_lm": megatron,
    "torchtitan": torchtitan,
    "deepspeed": deepspeed,
    "nemo": nemo,
    "trl": trl,
    "llama_factory": llama_factory,
}
"""Writers of launch files by folder."""
TOOLS = Registry(
    "tools",
    Tool,
    [
        load_tool(f"atoll.tools.{folder}", WRITERS.get(folder))
        for folder in sorted(FOLDERS, key=[*WRITERS, *FOLDERS].index)
    ],
)


def find_tool(name: str) -> Tool:
    """Return the tool of that name or alias, or raise an AtollError."""
    canonical = next((tool.name for tool in TOOLS.values() if name in tool.aliases), name)
    return TOOLS[canonical]
