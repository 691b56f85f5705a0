"""Deadlines and budgets choose the number of devices, as plans of every number say."""

from __future__ import annotations

from typing import Any

import pytest

import atoll
from atoll.base.errors import AtollError

ASKED: dict[str, Any] = {
    "model": "gpt2-xl", "device": "h100", "batch": 64, "tokens": "10B", "price": "2/h", "tp": [1],
    "pp": [1], "cp": [1], "zero": [1], "recompute": ["none"], "microbatch": [1],
}  # fmt: skip


def run_of(devices: int) -> Any:
    return atoll.plan(**ASKED, devices=devices).best.whole_run  # type: ignore[union-attr]


def test_a_deadline_takes_the_fewest_devices_that_meet_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = atoll.plan(**ASKED, deadline="12h")
    devices = plan.run.devices  # type: ignore[union-attr]
    fewer = run_of(devices // 2)
    assert run_of(devices).days <= 0.5 < fewer.days
    why = f"are the fewest in powers of 2; tried: {devices // 2:,} devices ({fewer.time_words()}"
    assert why in capsys.readouterr().err


def test_a_budget_alone_takes_the_most_devices_that_it_pays() -> None:
    runs = {devices: run_of(devices) for devices in (1, 2, 4, 8, 16, 32, 64)}
    budget = sorted(run.dollars for run in runs.values())[3]
    plan = atoll.plan(**ASKED, budget=f"${budget + 1:.2f}")
    paid = [devices for devices, run in runs.items() if run.dollars <= budget + 1]
    assert plan.run.devices == max(paid)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"deadline": "12h", "devices": 8}, "devices: deadline and budget choose them"),
        ({"deadline": "1 min"}, r"no number of h100 finishes in 60 s: .*; raise the limit"),
        ({"deadline": "12h", "budget": "$1"}, "no number of h100 finishes in 12 h and 1 dol"),
        ({"budget": "much"}, "budget: expected dollars"),
        ({"deadline": "12h", "tokens": None, "price": None}, "no effect without --tokens"),
    ],
)
def test_what_cannot_be_met_is_one_sentence(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(AtollError, match=words):
        atoll.plan(**ASKED | fields)


def test_a_sweep_of_a_deadline_says_how_many_devices_each_value_takes() -> None:
    asked = {**ASKED, "deadline": "12h"}
    swept = atoll.sweep(atoll.PlanQuestion, **asked | {"device": ["h100", "a100-80"]})
    for row in swept.rows:
        plan = atoll.plan(**asked | row.asked)
        assert row.figures["devices"] == plan.run.devices  # type: ignore[union-attr]
