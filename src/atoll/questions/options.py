"""Builds commands from questions: one option per field, in groups."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import Parameter, Signature, cleandoc, signature
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic.fields import FieldInfo
from typer.core import TyperCommand

from atoll.base.errors import AtollError, near_names
from atoll.questions.ask import ask, old_names
from atoll.questions.foreign_names import meant_field
from atoll.questions.question import OUTPUT, Question, completions, is_tuple, scalars
from atoll.questions.sweeps import read_text
from atoll.questions.texts import grouped, help_words, metavar, option_fields, spelled

_CLICK: Any = sys.modules[typer.BadParameter.__module__]  # click, or the copy in newer typers
_LISTED = re.compile(r",(?![^\[]*\])")  # "int64[1,4096]" is one value


_FLAGS = (
    ("explain", "explain", ("--explain",), "Print all details: time and memory by part, reasons."),
    ("as_json", "as_json", ("--json",), "Print one JSON object."),
    ("began", "quiet", ("--quiet", "-q"), "Say nothing while it runs."),
    ("began", "verbose", ("--verbose", "-v"), "Say every step while it runs."),
)
"""(Parameter of the function that needs it, name, spellings, help) of flags that are no fields."""


class GroupedCommand(TyperCommand):
    """A command whose help lists options by group and is built on request."""

    fields: Mapping[str, FieldInfo] = {}
    asked: tuple[type[Question], ...] = ()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, _without_names(args, self.asked[0].arguments))
        except _CLICK.NoSuchOption as error:
            sentence = _unknown_option(str(self.name), error.option_name, self.fields)
        raise AtollError(sentence)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        by_group = grouped(self.fields)
        groups: dict[str, list[tuple[str, str]]] = {group: [] for group in ("Arguments", *by_group)}
        group_of = {name: group for group, members in by_group.items() for name in members}
        order = {name: number for number, name in enumerate(("job", *group_of))}
        for parameter in sorted(self.get_params(ctx), key=lambda p: order.get(p.name, len(order))):
            record, info = parameter.get_help_record(ctx), self.fields.get(parameter.name)
            if record is None:
                continue
            words = help_words(parameter.name, info, self.asked) if info else record[1]
            if parameter.param_type_name == "argument":
                groups["Arguments"].append((parameter.name.upper(), words))
            else:
                group = group_of.get(parameter.name, OUTPUT)
                groups.setdefault(group, []).append((record[0], words))
        for group, rows in groups.items():
            if rows:
                with formatter.section(group):
                    formatter.write_dl(rows, col_max=24)


def add_command(
    app: typer.Typer,
    name: str,
    verbs: tuple[type[Question], ...],
    run: Callable[..., None],
    words: Sequence[str] = (),
) -> None:
    """Add a command that builds its question and runs it. Only the options in `words` (its
    arguments) are created if all are known, as creating options is slow.

    Questions with a `kind` can be in a job file, which the command then accepts. The parameters of
    `run` decide which flags the command has; `began` gets the start time.
    """
    fields = option_fields(*verbs)
    kinds = {q.model_fields["kind"].default if "kind" in q.model_fields else name: q for q in verbs}
    arguments, run_parameters = verbs[0].arguments, signature(run).parameters
    old = {o: n for question in verbs for o, n in old_names(question).items() if o not in fields}
    used = _options_named(words, (*fields, *old))
    parameters = [
        _parameter(n, i, n in arguments) for n, i in fields.items() if n in arguments or n in used
    ]
    parameters += [_parameter(o, fields[n], hidden=True) for o, n in old.items() if o in used]
    if name not in kinds:
        job = typer.Argument(metavar="JOB", help="A job file (YAML); options override its fields.")
        parameters.insert(0, _keyword("job", Path | None, job))
    parameters += [
        _keyword(flag, bool, typer.Option(*spellings, help=words), False)
        for needed_by, flag, spellings, words in _FLAGS
        if needed_by in run_parameters
    ]

    def command(job: Path | None = None, **options: Any) -> None:
        wanted = {flag: options.pop(flag, False) for _, flag, _, _ in _FLAGS}
        quiet, verbose = wanted["quiet"], wanted["verbose"]
        say(logging.WARNING if quiet else logging.DEBUG if verbose else logging.INFO)
        wanted["began"] = time.monotonic()
        values = {
            n: _read(fields[old.get(n, n)], value, n not in arguments)
            for n, value in options.items()
            if value is not None and value != []
        }
        question = ask(kinds, job, values, spelled)
        run(question, **{n: v for n, v in wanted.items() if n in run_parameters})

    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__name__ = name
    first, _, words = cleandoc(verbs[0].__doc__ or "").partition("\n\n")
    if any(is_tuple(info) for n, info in fields.items() if n not in arguments):
        words += "\n\nAn option with N,... takes several values, with commas or given again."
    examples = "\n".join(f"  {q.example}" for q in verbs if q.example.startswith(f"atoll {name}"))
    first = first.replace("\n", " ")
    app.command(
        name,
        cls=type("Command", (GroupedCommand,), {"fields": fields, "asked": verbs}),
        help=f"{first}\n\n\b\n{examples}\n\n{words}",
        short_help=first,
    )(command)


def _without_names(words: Sequence[str], arguments: Iterable[str]) -> list[str]:
    """Return a command line in which `--data FILE` and `--data=FILE` are the argument FILE."""
    end = words.index("--") if "--" in words else len(words)
    named = {spelled(name) for name in arguments}
    parts = [word.partition("=") if word.partition("=")[0] in named else ("", "=", word)
             for word in words[:end]]  # fmt: skip
    return [*(value for _, equals, value in parts if equals), *words[end:]]


def _unknown_option(command: str, option: str, fields: Iterable[str]) -> str:
    """Return the sentence about an unknown option, with the one that was probably meant."""
    names = {spelled(name).lstrip("-"): name for name in fields}
    meant = meant_field(option, names.values(), spelled)
    near = [meant] if meant else [f"--{name}" for name in near_names(option.lstrip("-"), names)]
    words = f"did you mean {' or '.join(near)}?" if near else f"atoll {command} --help lists all"
    return f"no such option {option}: {words}"


def _options_named(words: Sequence[str], names: Iterable[str]) -> set[str]:
    """Return fields whose options are in a command line; all if it has none or unknown ones."""
    options = {spelled(flag): n for n in names for flag in (n, f"no_{n}")}
    flags_used = {word.partition("=")[0] for word in words if word.startswith("-")}
    plain = {spelling for _, _, spellings, _ in _FLAGS for spelling in spellings}
    only_options = bool(words) and flags_used <= options.keys() | plain
    return {options[word] for word in flags_used - plain} if only_options else set(options.values())


def say(level: int) -> None:
    """Log messages of this level and above to standard error, one per line."""
    logging.basicConfig(format="%(message)s", force=True)
    logging.getLogger("atoll").setLevel(level)


def _keyword(name: str, annotation: Any, option: Any, default: Any = None) -> Parameter:
    kind = Annotated[annotation, option]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _parameter(
    name: str, info: FieldInfo, positional: bool = False, hidden: bool = False
) -> Parameter:
    """Return the parameter of a field: text or a flag, which the question converts."""
    kinds = scalars(info)
    annotation: Any = list[str] if is_tuple(info) else str
    if positional:
        argument = typer.Argument(metavar=name.upper(), autocompletion=_completion(info))
        if info.is_required():
            return _keyword(name, annotation, argument, Parameter.empty)
        return _keyword(name, annotation | None, argument)
    if kinds == {bool}:
        flags = f"{spelled(name)}/{spelled('no_' + name)}"
        return _keyword(name, bool | None, typer.Option(flags, hidden=hidden))
    option = typer.Option(
        spelled(name), metavar=metavar(info), hidden=hidden, autocompletion=_completion(info)
    )
    return _keyword(name, annotation | None, option)


def _completion(info: FieldInfo) -> Callable[[str], list[str]]:
    """Return the shell completion of a field; of comma-separated values, for the last."""

    def offered(incomplete: str) -> list[str]:
        cut = incomplete.rfind(",") + 1 if is_tuple(info) else 0
        before, last = incomplete[:cut], incomplete[cut:]
        return [f"{before}{value}" for value in completions(info) if value.startswith(last)]

    return offered


def _read(info: FieldInfo, value: Any, split: bool) -> Any:
    """Convert text of the command line to the field's type."""
    if isinstance(value, bool):
        return value
    if not isinstance(value, list):
        return read_text(info, value)
    parts = (part for text in value for part in (_LISTED.split(text) if split else [text]))
    several = tuple(read_text(info, part.strip()) for part in parts if part)
    return several[0] if split and len(several) == 1 else several
