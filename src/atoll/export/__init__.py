"""Launch files of runs and layouts, written by the training tools' writers.

Each tool either writes the layout as its settings, or refuses with one sentence; if only a near
equivalent exists, a note says what differs. No tool is run: the tests hand every file to the tools'
parsers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

from atoll.answers.layout import LaunchFile
from atoll.base.errors import AtollError, UnusableError
from atoll.step.layout import Layout
from atoll.step.length import WholeRun
from atoll.step.stages import even_sizes
from atoll.tools.files.shell_tokens import UNKNOWN
from atoll.tools.launch_plan import check, make_plan, refuse
from atoll.tools.registry import TOOLS, find_tool
from atoll.tools.software import DISPATCHER, LISTED
from atoll.tools.tool import Tool
from atoll.training.run import Run
from atoll.workload.families.model_config import ModelConfig

MOST_NAMES = 12
"""Names of arguments in a sentence."""
NOT_CARRIED = ("ep_a2a", "head_wgrad=")
"""Overlaps and flags of a user's file whose arguments go with its layout."""
NARROW = re.compile("fp[48]")
"""Arguments that go with a precision."""

WITH_LAYOUT = re.compile(
    "fsdp|sharding|virtual|vp_stage|recompute|overlap|ckpt_format|average_in_collective"
)
"""Arguments of written Python files that go with a layout."""


def export(
    target: str,
    model: ModelConfig,
    layout: Layout,
    *,
    sequence: int,
    global_batch: int,
    devices_per_node: int = 8,
    stages: Sequence[int] | None = None,
    **more: Any,
) -> LaunchFile:
    """Write the launch file of `target`. `stages`: blocks per model chunk, in model order; `more`:
    further fields of `LaunchPlan` (precision, method, adapters, steps)."""
    tool = find_tool(target)
    if tool.write is None:
        raise AtollError(f"{tool.name}: launch files of {tool.title} are not written")
    plan = make_plan(model, layout, sequence, global_batch, devices_per_node, stages, **more)
    if plan.method not in tool.methods:
        able = [t.name for t in TOOLS.values() if t.write and plan.method in t.methods]
        raise refuse(
            tool.name,
            f"it runs {' or '.join(tool.methods)}, not {plan.method}; change --method, or choose "
            f"--tool {' or '.join(able)}",
        )
    check(tool.name, tool.inabilities(plan))
    return tool.write(replace(plan, versions=tool.versions))


def export_run(
    target: str, run: Run, layout: Layout, whole_run: WholeRun | None = None
) -> LaunchFile:
    """Write the launch file of a training run and layout, with the estimated stages.
    `whole_run`: its steps and its interval between checkpoints, if its length is known."""
    steps, tool = run.launch and run.launch.steps, find_tool(target)
    if run.length is not None:
        steps = ceil(run.length.tokens / run.tokens)
    carried, lost = _carried(tool.name, run)
    variables = run.launch.variables if run.launch and carried else {}
    launch_file = export(
        target,
        run.model,
        layout,
        sequence=run.sequence,
        global_batch=run.global_batch,
        precision=run.precision,
        devices_per_node=run.network.node,
        stages=layout.blocks or even_sizes(run.model.layers, layout.pp * layout.rounds),
        exchanges_heads=run.stack.gives_heads(run.model.kv_heads // layout.tp, layout.cp),
        hides_tensor=run.stack.overlap.tensor_products > 0,
        method="lora" if run.adapters else "sft" if run.fine_tuned else "pretrain",
        adapters=run.adapters,
        attention=run.attention if run.tool.name == tool.name else "",
        loss_chunks=run.stack.loss_chunks,
        software=_software(tool, run),
        save_interval=whole_run and whole_run.interval_steps,
        carried=carried,
        variables=variables,
        source=run.launch.file if run.launch else "",
        **({"steps": steps} if steps else {}),
    )
    notes, text = [*launch_file.notes, *_omission_notes(tool, run)], launch_file.text
    if run.launch and run.launch.editable_lines and run.launch.software == launch_file.target:
        lost = [name for name in lost if not WITH_LAYOUT.search(name)
                and f"'{name.rpartition('.')[2]}': " not in text]  # fmt: skip
        lines = {line.partition("  #")[0].strip() for line in text.split("\n")}
        edits = run.launch.editable_lines.items()
        if reset := [name.rstrip(",") for name, line in edits if line not in lines]:
            notes.append(f"Changes of {run.launch.file} that this file does not have: "
                         f"{_listed(reset)}; make them here again.")  # fmt: skip
    if run.launch and lost:
        notes.append(
            f"Not carried over from {run.launch.file}: {_listed(lost)}; add them to this file."
        )
    fixed = [n for n, value in variables.items() if value != "" and f"${{{n}:" not in text]
    if run.launch and fixed:
        notes.append(f"Variables of {run.launch.file} that this file does not have, because their "
                     f"values are written into it: {_listed(fixed)}.")  # fmt: skip
    return replace(launch_file, notes=tuple(notes))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"{', '.join(names[:MOST_NAMES])}{more}"


def _software(tool: Tool, run: Run) -> tuple[str, ...]:
    """Return the words of the run's overlaps and flags, if it is a run of this tool."""
    if run.question is None or run.tool.name != tool.name:
        return ()
    words = f"{run.question.overlap or tool.overlap or ''} {run.question.flags or ''}"
    return tuple(words.replace(",", " ").split())


def _carried(tool: str, run: Run) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments of the run's launch file that this tool's file takes again, and the
    names of those that it does not take: of another tool, or of values that the file does not set.
    """
    if run.launch is None:
        return {}, []
    account, arguments = run.launch.arguments, dict(run.launch.carried)
    asked = run.question.precision if run.question else None
    if run.launch.software != tool or not arguments:
        others = (*account.without_effect, *account.not_modelled, *account.not_understood)
        return {}, list(arguments or others)
    if asked != run.launch.fields.get("precision"):
        arguments = {name: v for name, v in arguments.items() if not NARROW.search(name)}
    lost = [name for name, value in arguments.items() if repr(UNKNOWN)[1:-1] in repr(value)]
    return {name: v for name, v in arguments.items() if name not in lost}, lost


def _omission_notes(tool: Tool, run: Run) -> Iterator[str]:
    """Yield notes on settings of the estimate that the file does not contain."""
    method = "lora" if run.adapters else "pretrain"
    default_states = tool.runs_as(run.precision, method).get("optimizer", "mixed")
    if run.states.name != default_states:
        yield (
            f"The estimate has {run.states.name} optimizer states, the file those that its tool "
            f"keeps ({default_states}): memory and step differ; --optimizer {default_states} says "
            "what the file takes."
        )
    stated = {*tool.stated, *LISTED, *f"{tool.overlap or ''} {tool.flags or ''}".split()}
    if run.launch and run.launch.carried and run.launch.software == tool.name:
        fields = run.launch.fields
        file_words = f"{fields.get('overlap', '')} {fields.get('flags', '')}".split()
        stated |= {word for word in file_words if not word.startswith(NOT_CARRIED)}
    elsewhere = (DISPATCHER, "loss_chunks=")
    words = [word for word in _software(tool, run) if not word.startswith(elsewhere)]
    if others := [word for word in words if word not in stated]:
        yield (
            f"The estimate has {', '.join(others)}, of which the file says nothing: step or memory "
            "may differ."
        )
    if run.stack.graphs:
        yield (
            f"The estimate has CUDA graphs ({run.stack.graphs}), of which the file says nothing: "
            "without them steps take longer wherever launches bind."
        )
    if run.attention == "unfused":
        yield (
            "The estimate has unfused attention, of which the file says nothing: with the tool's "
            "own kernel a step is shorter."
        )


def launch_files(
    run: Run, layout: Layout, whole_run: WholeRun | None = None
) -> tuple[LaunchFile, ...]:
    """Return the launch file, or the refusal, of every tool."""
    files = []
    for target in (tool.name for tool in TOOLS.values() if tool.write is not None):
        try:
            files.append(export_run(target, run, layout, whole_run))
        except AtollError as error:
            files.append(LaunchFile(target=target, refused=str(error)))
    return tuple(files)


def refusals(run: Run, search: bool = True) -> Callable[[Layout], str | None] | None:
    """Return a function that says why the run's tool cannot run a layout, None if it can. None for
    tools whose files are not written. In a `search` a model that the tool lacks is an error."""
    tool = run.tool
    if tool.write is None:
        return None

    def refusal(layout: Layout) -> str | None:
        try:
            export_run(tool.name, run, layout)
        except AtollError as error:
            if search and isinstance(error, UnusableError):  # under every layout
                raise
            return str(error)
        return None

    return refusal
