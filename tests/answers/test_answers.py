"""Answers are types: frozen schemas, a round trip through files, one sentence for a damaged one."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.answers.answer import Answer, build_from, checked, dumped, field_default
from atoll.answers.kinds import ANSWERS
from atoll.answers.plan import EstimateAnswer, PlanAnswer
from atoll.answers.search import SearchAnswer
from atoll.base.errors import AtollError
from atoll.training.estimate import Estimate

from .record import KEPT, schemas

TINY = Path(__file__).parents[2] / "examples" / "jobs" / "tiny.yaml"


def test_the_schemas_of_answers_are_those_on_record() -> None:
    """A change of keys or types is one for all who read them: python tests/answers/record.py."""
    assert json.loads(schemas()) == json.loads(KEPT.read_text(encoding="utf-8"))


def test_every_answer_says_its_kind_and_no_two_say_the_same() -> None:
    listed = dict.fromkeys(kind for answers in ANSWERS.values() for kind in answers)
    kinds = [field_default(kind, "kind") for kind in listed]
    assert len(kinds) == len(set(kinds))
    assert all(
        field_default(kind, "format") > 0 for answers in ANSWERS.values() for kind in answers
    )


@pytest.fixture(scope="module")
def found() -> Estimate:
    return atoll.estimate("bert-large", "h100", 4, pp=2, batch=16)


def answers(found: Estimate) -> list[Answer]:
    plan = atoll.plan("bert-large", "h100", 4, batch=16, tp=[1, 2], pp=[1, 2], microbatch=[1])
    search = atoll.search(TINY, baselines=False, pareto=True)
    rest = [atoll.describe_model("gpt2-xl"), atoll.list_models(), atoll.describe_hardware("h100")]
    return [found.answer, plan.answer, search.answer, *rest, atoll.describe_hardware()]


def test_an_answer_is_read_as_it_was_saved(found: Estimate, tmp_path: Path) -> None:
    for answer in answers(found):
        path = answer.save(tmp_path / "answer.json")
        assert type(answer).load(path) == answer
        assert atoll.load(path) == answer


def test_an_answer_is_made_once(found: Estimate, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = atoll.plan("bert-large", "h100", 4, batch=16, tp=[1], pp=[1, 2], microbatch=[1])
    first = plan.answer
    monkeypatch.setattr(
        "atoll.training.planner.explain.reasons", lambda *_: pytest.fail("made again")
    )
    assert plan.answer is first
    assert plan.to_dict() == first.to_dict()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda told: told.pop("step_time_s"), "step_time_s is missing"),
        (lambda told: told["layout"].update(tp=0), "layout (Value error, tp0"),
        (lambda told: told["pipeline"].update(replayed=10**9), "pipeline"),
        (lambda told: told["memory_bytes"]["stages"][0].update(total="much"), "stages.0.total"),
        (lambda told: told.update(kind="poem"), "its kind is 'poem', not estimate"),
        (lambda told: told.update(kind=["estimate"]), "its kind is \"['estimate']\", not estimate"),
        (lambda told: told.update(format=1), "written by another version of atoll (format 1"),
    ],
)
def test_a_damaged_file_is_one_sentence(
    found: Estimate, tmp_path: Path, change: Any, words: str
) -> None:
    told = found.to_dict()
    change(told)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(told))
    with pytest.raises(AtollError) as caught:
        EstimateAnswer.load(path)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_what_is_wrong_with_our_own_values_is_no_sentence_on_a_file(found: Estimate) -> None:
    wrong = build_from(EstimateAnswer, found.answer, devices="four")
    with pytest.raises(Exception, match="Expected `int`"):
        wrong.to_dict()


def test_memory_of_every_stage_and_all_that_is_drawn_is_in_the_answer(found: Estimate) -> None:
    answer = checked(dumped(found.answer), EstimateAnswer, "answer")
    assert [stage.stage for stage in answer.memory_bytes.stages] == [0, 1]
    assert len(answer.stages) == len(answer.pipeline.passes) == len(answer.pipeline.parts) == 2
    assert answer.launch and answer.operators and answer.sensitivity and answer.cluster.levels
    assert {field.name for field in fields(PlanAnswer)} > {"best", "certificate", "runners_up"}
    assert {field.name for field in fields(SearchAnswer)} > {"beside", "plateau", "pareto", "job"}
