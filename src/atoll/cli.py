"""The command line: a thin layer over the library.

Answers go to standard output, progress and errors to standard error. A user's mistake is one
sentence and exit code 2.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from atoll.base.errors import AtollError
from atoll.base.identity import VERSION
from atoll.base.registry import import_named
from atoll.base.streams import cannot_write, close_streams, say
from atoll.commands.common import INTERRUPTED, SIGNALLED
from atoll.questions import COMMANDS
from atoll.questions.ask import OldNameWarning
from atoll.questions.options import add_command


def main() -> None:
    """Entry point of the `atoll` command."""
    try:
        code = _run_command()
        error = close_streams()
    except OSError as unwritten:
        if not cannot_write(unwritten):
            raise
        code, error = 0, unwritten
        close_streams()
    if error is not None:
        code = code or (1 if isinstance(error, BrokenPipeError) else 2)
        if code == 2:
            say(f"standard output cannot be written ({error.strerror})")
    sys.exit(code)


def _run_command() -> Any:
    """Run the command of the process; return its exit code."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", OldNameWarning)
            warnings.showwarning = _say_warning
            _app(sys.argv[1:])()
    except AtollError as error:
        say(str(error))
        return 2
    except (KeyboardInterrupt, SystemExit) as ended:
        code = ended.code if isinstance(ended, SystemExit) else None
        if _by_ctrl_c(ended) and code not in SIGNALLED:
            say("interrupted")
            return INTERRUPTED
        return code
    return 0


def _say_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """Print warnings of old names as a sentence, others as Python does."""
    if issubclass(category, OldNameWarning):
        say(str(message))
    else:
        sys.stderr.write(warnings.formatwarning(message, category, *where[:2]))


def _by_ctrl_c(ended: BaseException | None) -> bool:
    """Return whether Ctrl-C caused an exit, which Typer converts to SystemExit."""
    while ended is not None and not isinstance(ended, KeyboardInterrupt):
        ended = ended.__cause__ or ended.__context__
    return ended is not None


def _version(wanted: bool) -> None:
    if wanted:
        print(f"atoll {VERSION}")
        raise typer.Exit


def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


_PLACES = {
    "capture": ("capture",),
    "designs": ("designs",),
    "mcp": ("mcp",),
    "report": ("compare", "report", "serve", "trace"),
    "search": ("search",),
    "training": ("estimate", "plan"),
}
_WHERE = {command: place for place, commands in _PLACES.items() for command in commands}
"""Modules of commands, imported on use; all others are in `plain`."""


def _run(name: str) -> Callable[..., None]:
    if name in _WHERE:
        command: Callable[..., None] = import_named(f"atoll.commands.{_WHERE[name]}:{name}")
        return command
    plain: dict[str, Callable[..., None]] = import_named("atoll.commands.plain:PLAIN")
    return plain[name]


def _app(words: Sequence[str] = ()) -> typer.Typer:
    """Build the app with the command in `words`, or with all commands."""
    app = typer.Typer(
        name="atoll",
        help=(
            "Plan language model training on existing devices, or design the chip for it: the best "
            "layout, its step time, memory and cost, with proof.\n\n"
            "\b\n  atoll plan --model llama3-70b --device h100 --devices 512 --batch 1024\n"
            "  atoll search --model llama3-8b --devices 256 --max-area '400 mm2'"
        ),
        invoke_without_command=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_root)
    for name in [word for word in words[:1] if word in COMMANDS] or COMMANDS:
        add_command(app, name, COMMANDS[name], _run(name), words[1:])
    return app


def __getattr__(name: str) -> Any:
    """Build `app`, with all commands, on first use."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _app()
