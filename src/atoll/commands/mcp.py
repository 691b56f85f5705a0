"""`atoll mcp`: the verbs that only read, as tools of the Model Context Protocol.

Tools have the names, schemas and checks of the commands' questions, without the fields for output
files and workers. An answer is short; the full one and the launch file are resources that it names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from inspect import cleandoc
from pathlib import Path
from typing import Any

from atoll.answers.answer import adapter, dumped
from atoll.base.errors import AtollError
from atoll.base.identity import VERSION
from atoll.base.registry import import_named
from atoll.commands.kept_answers import DETAILS, DetailsPage, DetailsQuestion, KeptAnswers
from atoll.commands.plain import ANSWERED
from atoll.commands.short_answers import ToolReply, reply_of, short_schema
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
    "ends after time_limit with the best so far; start with estimate, models and hardware. Answers "
    "are short; read their details (all of --json) or launch_file only if you need them, as "
    "resources or with the tool details. Nothing is written."
)
WHEN = {
    "plan": "Use it to choose a training layout (tp, pp, dp, ZeRO, recomputation), or the number "
    "of devices for a deadline or a budget. Takes seconds. Not for a layout that is given: "
    "estimate. sweep asks for several values at once, for example ['devices=64,128'].",
    "estimate": "Use it if the layout is known: step time, tokens/s, memory, cost. Takes a second. "
    "sweep asks for several values at once, for example ['tp=1,2,4', 'microbatch=1,2'].",
    "check": "Use it on an existing launch script or configuration, before or after it ran: does "
    "it fit, how long is a step, which lines to change. With log it is compared with the run.",
    "search": "Use it to design a chip for a model under limits of area and power. Takes minutes; "
    "give time_limit. Not for devices that exist: plan.",
    "models": "Use it to find the name of a model, or its parameters and layers, before a plan.",
    "hardware": "Use it to find the name of a device or network, or its peaks and memory.",
    "explain": "Use it on a folder that search or plan wrote, to see why the answer is the best.",
    "compare": "Use it on several stored runs, to see what differs.",
    "validate": "Use it to see how accurate estimates are on a table of measured runs.",
    "bench": "Use it to compare predictors on the same measured runs.",
    DETAILS: "Use it if a short answer lacks a figure, or for the launch file; key names a part.",
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


def run_tool(
    name: str, arguments: dict[str, Any], folders: Sequence[Path] = (Path(),)
) -> ToolReply:
    """Run a tool, which reads files only in these folders and in the local cache of models."""
    if name not in VERBS:
        raise AtollError(f"tool {name!r} is not known; there are {', '.join((*VERBS, DETAILS))}")
    question_kind = COMMANDS[name][0]
    if refused := sorted(hidden(question_kind) & arguments.keys()):
        raise AtollError(f"{', '.join(refused)}: not offered here, where nothing is written")
    with reading_only(*folders, import_named("atoll.workload.families.hub:cache_folder")()):
        question = ask({name: question_kind}, None, arguments)
        swept = getattr(question, "sweep", ())
        answer = import_named("atoll.several:sweep") if swept else ANSWERED[name]
        return reply_of(name, answer(question))


async def run_in_process(run: Callable[[], ToolReply], limiter: Any) -> ToolReply:
    """Return what a call gives in another process, which is killed where the call is cancelled."""
    import anyio
    import anyio.to_process

    try:
        return await anyio.to_process.run_sync(run, cancellable=True, limiter=limiter)
    except (anyio.BrokenWorkerProcess, anyio.BrokenResourceError, anyio.EndOfStream, OSError):
        raise AtollError("the process of the call ended; ask again, or for less") from None


def build_server(folders: Sequence[Path], calls: int) -> Any:
    """Build the server: a tool per verb, in processes used again; answers are resources."""
    import anyio
    from mcp import MCPError, types
    from mcp.server.lowlevel import Server

    limiter = anyio.CapacityLimiter(calls)
    kept = KeptAnswers()
    hints = types.ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)

    async def list_tools(context: Any, request: Any) -> Any:
        page_schema = adapter(DetailsPage).json_schema(mode="serialization")
        schemas = {name: (COMMANDS[name][0], offered(name), short_schema()) for name in VERBS}
        schemas[DETAILS] = (DetailsQuestion, DetailsQuestion.model_json_schema(), page_schema)
        tools = [
            types.Tool(
                name=name,
                description=f"{cleandoc(question.__doc__ or '')}\n\n{WHEN[name]}",
                input_schema=input_schema,
                output_schema=output_schema,
                annotations=hints,
            )
            for name, (question, input_schema, output_schema) in schemas.items()
        ]
        return types.ListToolsResult(tools=tools)

    async def answered(name: str, arguments: dict[str, Any]) -> Any:
        if name == DETAILS:
            page = kept.page(ask({DETAILS: DetailsQuestion}, None, arguments))
            text = types.TextContent(type="text", text=page.content)
            return types.CallToolResult(content=[text], structured_content=dumped(page))
        run = partial(run_tool, name, arguments, folders)
        reply = kept.add(await run_in_process(run, limiter))
        short = reply.short
        links = [("details", short.details, "application/json", "the full answer")]
        if short.launch_file is not None:
            links.append(("launch file", short.launch_file, "text/plain", "ready to run"))
        content = [
            types.TextContent(type="text", text=reply.text),
            *(
                types.ResourceLink(name=label, uri=uri, mime_type=kind, description=about_it)
                for label, uri, kind, about_it in links
            ),
        ]
        return types.CallToolResult(content=content, structured_content=short.to_dict())

    async def call_tool(context: Any, request: Any) -> Any:
        try:
            return await answered(request.name, request.arguments or {})
        except AtollError as error:
            sentences = [types.TextContent(type="text", text=str(error))]
            return types.CallToolResult(content=sentences, is_error=True)

    async def list_resources(context: Any, request: Any) -> Any:
        kept_kinds = kept.addresses()
        resources = [types.Resource(name=uri, uri=uri, mime_type=kind) for uri, kind in kept_kinds]
        return types.ListResourcesResult(resources=resources)

    async def read_resource(context: Any, request: Any) -> Any:
        try:
            kind, text = kept.read(str(request.uri))
        except AtollError as error:
            raise MCPError(types.INVALID_PARAMS, str(error)) from error
        part = types.TextResourceContents(uri=str(request.uri), mime_type=kind, text=text)
        return types.ReadResourceResult(contents=[part])

    return Server(
        "atoll",
        version=VERSION,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
    )
