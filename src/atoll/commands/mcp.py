"""`atoll mcp`: the verbs that only read, as tools of the Model Context Protocol.

Tools have the names, schemas and checks of the commands' questions, without the fields for output
files and workers. The text of an answer is its summary; its structured content is that of `--json`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from inspect import cleandoc
from pathlib import Path
from typing import Any

from atoll.base.errors import AtollError
from atoll.base.identity import VERSION
from atoll.base.notebook import summary_lines
from atoll.base.registry import import_named
from atoll.commands.plain import ANSWERED
from atoll.files.inputs import reading_only
from atoll.questions import COMMANDS
from atoll.questions.ask import ask
from atoll.questions.question import Question, about
from atoll.questions.verbs import McpQuestion

VERBS = ("plan", "estimate", "check", "search", "models", "hardware", "explain", "compare",
         "validate", "bench")  # fmt: skip
Answer = tuple[dict[str, Any], list[str]]
"""The answer of a tool as JSON data, and as texts."""
INSTRUCTIONS = (
    "Plans and estimates of language model training on existing GPUs and TPUs, judgement of launch "
    "files, and searches for chips. Quantities take units (80 GiB, 10 min). A plan or a search "
    "ends after time_limit with the best so far; start with estimate, models and hardware. Nothing "
    "is written."
)


WHEN = {
    "plan": "Use it to choose a training layout (tp, pp, dp, ZeRO, recomputation), or the number "
    "of devices for a deadline or a budget.",
    "estimate": "Use it if the layout is known: step time, tokens/s, memory, cost. Takes a second.",
    "check": "Use it on an existing launch script or configuration, before or after it ran.",
    "search": "Use it to design a chip for a model under limits of area and power. Takes minutes.",
    "models": "Use it to find the name of a model, or its parameters and layers.",
    "hardware": "Use it to find the name of a device or network, or its peaks and memory.",
    "explain": "Use it on a folder that search or plan wrote, to see why the answer is the best.",
    "compare": "Use it on several stored runs, to see what differs.",
    "validate": "Use it to see how accurate estimates are on a table of measured runs.",
    "bench": "Use it to compare predictors on the same measured runs.",
}
"""When an agent should call a tool, appended to what the tool does."""


def mcp(question: McpQuestion) -> None:
    try:
        import anyio
        from mcp.server import stdio
    except ImportError as error:
        raise AtollError(
            f"mcp: the extra is not installed ({error}): pip install 'atoll[mcp]'"
        ) from error

    async def serve() -> None:
        server = build_server(question.folders or (Path(),), question.calls)
        async with stdio.stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    anyio.run(serve)


def offered(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a tool's arguments: the question's without output fields."""
    question = COMMANDS[name][0]
    schema = question.model_json_schema()
    shown = schema["properties"].keys() - hidden(question)
    schema["properties"] = {n: part for n, part in schema["properties"].items() if n in shown}
    return schema


def hidden(question: type[Question]) -> set[str]:
    """Return the fields hidden from agents: output files and workers."""
    fields = question.model_fields.items()
    unseen = {name for name, info in fields if info.exclude or about(info, "writes", False)}
    return unseen - {"sweep", "deadline", "budget", "batch_tokens"}


def run_tool(name: str, arguments: dict[str, Any], folders: Sequence[Path] = (Path(),)) -> Answer:
    """Run a tool; return its answer as JSON data, and as texts its summary and the launch file.

    Files are read only in these folders, and in the local cache of models.
    """
    if name not in VERBS:
        raise AtollError(f"tool {name!r} is not known; there are {', '.join(VERBS)}")
    question_kind = COMMANDS[name][0]
    if refused := sorted(hidden(question_kind) & arguments.keys()):
        raise AtollError(f"{', '.join(refused)}: not offered here, where nothing is written")
    with reading_only(*folders, import_named("atoll.workload.families.hub:cache_folder")()):
        question = ask({name: question_kind}, None, arguments)
        swept = getattr(question, "sweep", ())
        result = (
            import_named("atoll.several:sweep")(question) if swept else ANSWERED[name](question)
        )
        answer = result.to_dict()
        short = getattr(result, "summary", None)
        text = "\n".join(summary_lines(short())) if short else json.dumps(answer, allow_nan=False)
        return answer, [text, *_launch_texts(result)]


def _launch_texts(result: Any) -> Iterator[str]:
    """Yield the launch file of an estimate or a plan, where its tool can run it."""
    tool = getattr(result, "tool", None)
    if tool is not None and tool.write is not None:
        with suppress(AtollError):
            yield result.export(tool.name).text


async def run_in_process(run: Callable[[], Answer], limiter: Any) -> Answer:
    """Return what a call gives in another process, which is killed where the call is cancelled."""
    import anyio
    import anyio.to_process

    try:
        return await anyio.to_process.run_sync(run, cancellable=True, limiter=limiter)
    except (anyio.BrokenWorkerProcess, anyio.BrokenResourceError, anyio.EndOfStream, OSError):
        raise AtollError("the process of the call ended; ask again, or for less") from None


def build_server(folders: Sequence[Path], calls: int) -> Any:
    """Build the SDK's server with one tool per verb.

    Calls run in processes of their own, which are used again.
    """
    import anyio
    from mcp import types
    from mcp.server.lowlevel import Server

    limiter = anyio.CapacityLimiter(calls)

    async def list_tools(context: Any, request: Any) -> Any:
        tools = [
            types.Tool(
                name=name,
                description=f"{cleandoc(COMMANDS[name][0].__doc__ or '')}\n\n{WHEN[name]}",
                input_schema=offered(name),
                annotations=types.ToolAnnotations(
                    read_only_hint=True, idempotent_hint=True, open_world_hint=False
                ),
            )
            for name in VERBS
        ]
        return types.ListToolsResult(tools=tools)

    async def call_tool(context: Any, request: Any) -> Any:
        run = partial(run_tool, request.name, request.arguments or {}, folders)
        try:
            answer, texts = await run_in_process(run, limiter)
        except AtollError as error:
            sentences = [types.TextContent(type="text", text=str(error))]
            return types.CallToolResult(content=sentences, is_error=True)
        content = [types.TextContent(type="text", text=text) for text in texts]
        return types.CallToolResult(content=content, structured_content=answer)

    return Server(
        "atoll",
        version=VERSION,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
