"""What Atoll knows and where it runs: `atoll models`, `hardware`, `schema` and `env`."""

from __future__ import annotations

from typing import Any

from atoll.commands.common import answer, print_json
from atoll.printing import tables
from atoll.questions.verbs import EnvQuestion, HardwareQuestion, ModelsQuestion, SchemaQuestion


def models(question: ModelsQuestion, as_json: bool) -> None:
    show = tables.print_models if question.name is None else tables.print_model
    answer(known_models(question), as_json, show)


def known_models(question: ModelsQuestion) -> Any:
    """The zoo, or one model."""
    from atoll.api import describe_model, list_models

    return list_models() if question.name is None else describe_model(**question.asked())


def hardware(question: HardwareQuestion, as_json: bool) -> None:
    from atoll.api import describe_hardware

    answer(describe_hardware(question.name), as_json, tables.print_hardware)


def schema(question: SchemaQuestion) -> None:
    from atoll.answers.kinds import answer_schema
    from atoll.questions.texts import schema as of

    print_json(of(question.command) | {"answer": answer_schema(question.command)})


def env(question: EnvQuestion, as_json: bool) -> None:
    from atoll.environment import environment

    answer(environment(), as_json, tables.print_fields)
