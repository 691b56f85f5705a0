"""The evolutionary search: the same evaluator and bounds, good designs, and no claim of proof."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from some_job import answer, some_job, undisturbed

from atoll.base.errors import AtollError
from atoll.explore import strategies as evolve
from atoll.explore.proof import reserve
from atoll.explore.run import run_search
from atoll.hardware import product_space
from atoll.store import RunReader

pytest.importorskip("optuna")


@pytest.mark.slow
def test_finds_a_good_design_and_says_what_it_does_not_prove() -> None:
    best = undisturbed(some_job()).score
    found = run_search(some_job(strategy="evolve", evaluations=50, pareto=True))
    assert 0.9 * best < found.score <= best * 1.001
    bound = found.score / (1.0 - found.certificate.gap)
    assert bound >= best * (1 - 1e-9)
    assert found.certificate.status == "gap"
    for front in found.pareto.values():
        assert front.proven_within is None


@pytest.mark.slow
def test_outside_memory_with_workers_and_resumed_it_finds_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from test_workers import After

    monkeypatch.setattr(product_space, "RESIDENT_POINTS", 10)
    monkeypatch.setattr(reserve, "PIECE_BOXES", 8)
    job = some_job(strategy="evolve", evaluations=60)
    whole = run_search(job, workers=0)
    assert answer(run_search(job, workers=2)) == answer(whole)
    run_search(job, out=tmp_path / "run", stop=After(60))
    assert answer(run_search(job, out=tmp_path / "run")) == answer(whole)
    with RunReader(tmp_path / "run") as reader:
        assert reader.designs(limit=1)[0]["score"] == whole.score


def test_another_seed_is_another_search(tmp_path: Path) -> None:
    job = some_job(strategy="evolve", evaluations=20)
    run_search(job, out=tmp_path / "run")
    with pytest.raises(AtollError, match="seed 0 there, 1 here"):
        run_search(some_job(strategy="evolve", seed=1), out=tmp_path / "run")


def test_asked_for_more_designs_than_there_are_it_looks_at_each_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It bred the same designs again for fifty generations."""
    seen: list[int] = []
    look = evolve._evaluate

    def looked(search: Any, ids: list[int], known: Any) -> Any:
        seen.extend(ids)
        return look(search, ids, known)

    monkeypatch.setattr(evolve, "_evaluate", looked)
    monkeypatch.setattr("optuna.create_study", None)
    found = run_search(some_job(strategy="evolve", evaluations=5000, few=True))
    assert len(seen) == len(set(seen)) < 5000
    exact = undisturbed(some_job(few=True))
    assert found.best.accelerator == exact.best.accelerator
    assert found.score <= exact.score  # whose schedules are solved with more effort


def test_without_optuna_the_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(AtollError, match=r"atoll\[evolve\]"):
        run_search(some_job(strategy="evolve"))
