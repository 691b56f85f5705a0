"""Traces: well formed, adding up to the step, with the bubbles that the schedule has."""

from __future__ import annotations

import json
import math
import random
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.answers.layout import StepPasses
from atoll.answers.plan import EstimateAnswer
from atoll.base.errors import AtollError
from atoll.report.folder import open_folder
from atoll.report.timeline import plan_timeline
from atoll.report.trace import LANES, LAYERS, STAGES, plan_trace, search_trace
from atoll.step.orders import arrivals
from atoll.step.replay import PassTime, replay
from atoll.training.estimate import Estimate
from atoll.training.replay import replay_estimate

US = 1e6


def check_schema(trace: dict[str, Any]) -> None:
    """What the Trace Event Format asks of the kinds of events that we write."""
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    named = set()
    opened: dict[tuple[Any, ...], int] = defaultdict(int)
    for event in trace["traceEvents"]:
        assert isinstance(event["name"], str) and event["name"]
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "process_sort_index", "thread_name")
            named.add((event["pid"], event["name"]))
            continue
        assert event["ph"] in ("X", "b", "e", "C"), event
        assert isinstance(event["cat"], str)
        assert math.isfinite(event["ts"]) and event["ts"] >= 0
        if event["ph"] == "X":
            assert math.isfinite(event["dur"]) and event["dur"] >= 0
        elif event["ph"] == "C":
            assert all(math.isfinite(v) and v >= 0 for v in event["args"].values())
        else:
            key = event["pid"], event["cat"], event["id2"]["local"]
            opened[key] += 1 if event["ph"] == "b" else -1
    owner: dict[int, int] = {}
    for event in trace["traceEvents"]:
        assert event["pid"] > 0 and owner.setdefault(event["tid"], event["pid"]) == event["pid"]
    assert not any(opened.values()), "an asynchronous slice is not closed"
    assert all((e["pid"], "process_name") in named for e in trace["traceEvents"])
    json.dumps(trace, allow_nan=False)


def lanes(trace: dict[str, Any]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """Complete events by stage (or layer) and lane, in order."""
    found: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            found[event["pid"] - STAGES, event["tid"] % LANES - 1].append(event)
    return {key: sorted(row, key=lambda e: e["ts"]) for key, row in found.items()}


def check_lanes(trace: dict[str, Any]) -> None:
    """Slices of a lane never overlap, on whole nanoseconds: Perfetto drops those that do."""
    for row in lanes(trace).values():
        for first, second in pairwise(row):
            assert nanoseconds(second["ts"]) >= nanoseconds(first["ts"]) + nanoseconds(first["dur"])


def nanoseconds(shown: float) -> int:
    """A time of the trace, read as Perfetto reads its digits."""
    whole, _, part = repr(shown).partition(".")
    assert len(part) <= 3, "whole nanoseconds"
    return int(whole) * 1000 + int(part.ljust(3, "0"))


def check_sums(
    trace: dict[str, Any], stages: int, step_time_s: float, *, overlapped: bool = False
) -> None:
    """Every stage's lane covers the step from its beginning to its end."""
    rows = lanes(trace)
    for stage in range(stages):
        row = rows[stage, 0]
        begin = row[0]["ts"] if overlapped else 0
        assert row[0]["ts"] == begin
        assert sum(e["dur"] for e in row) / US == pytest.approx(step_time_s, rel=1e-6)
        assert (row[-1]["ts"] + row[-1]["dur"] - begin) / US == pytest.approx(step_time_s, rel=1e-6)


def estimate(**changed: Any) -> Estimate:
    given = {"tp": 8, "pp": 4, "microbatch": 1, "batch": 32, "recompute": "full"}
    return atoll.estimate("megatron-gpt2-8.3b", "a100-80", 64, **{**given, **changed})


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"order": "gpipe"},
        {"order": "zb-h1"},
        {"order": "zb-h2"},
        {"order": "zb-v"},
        {"order": "dualpipe"},
        {"vpp": 2},
        {"vpp": 2, "batch": 14},
        {"pp": 1, "tp": 8},
        {"recompute": "optimal"},
        {"pp": 8, "batch": 8},
    ],
)
def test_a_plans_trace_adds_up_to_its_step(changed: dict[str, Any]) -> None:
    found = estimate(**changed)
    trace = plan_trace(found.answer)
    check_schema(trace)
    check_lanes(trace)
    overlapped = found.layout.schedule == "zb-h2"
    check_sums(trace, found.layout.pp, found.step.time_s, overlapped=overlapped)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"stack": "megatron-2021"},
        {"order": "zb-h2", "recompute": "none"},
        {"order": "dualpipe"},
        {"vpp": 2},
        {"pp": 1, "tp": 8},
        {"recompute": "optimal"},
        {"batch": 262144},
    ],
    ids=str,
)
def test_a_plans_timeline_has_the_parts_and_the_replayed_time_of_its_estimate(
    changed: dict[str, Any], tmp_path: Path
) -> None:
    """Gradient accumulation among them; and one plan has one replayed time, wherever it is told."""
    found = estimate(**changed)
    step, layout = found.usual_step, found.layout
    record = EstimateAnswer.load(found.save(tmp_path / "estimate.json"))
    timeline = plan_timeline(record.pipeline)
    replayed = replay_estimate(found)
    assert record.replay.time_s == replayed.time_s
    assert timeline.stretch == pytest.approx(1 + replayed.difference, rel=1e-12)
    assert timeline.stretch * replayed.time_s == pytest.approx(found.step.time_s, rel=1e-12)

    slack = found.run.slack
    after = {
        "gradient accumulation": step.accumulate_s,
        "gradient reduction": step.gradient_s,
        "optimizer": step.optimizer_s,
        "host": found.run.stack.step_s,
    }
    if layout.microbatches(found.run.global_batch) > 1:
        assert step.accumulate_s > 0
    slowest = max(range(layout.pp), key=lambda s: found.stages[s].total_s)
    row = [replace(s, start_s=0.0, end_s=s.duration_s / timeline.stretch / slack)
           for s in timeline.stages[slowest]]  # fmt: skip
    shown = {s.name: s.duration_s for s in row if s.kind == "after"}
    rest_s = sum(seconds for name, seconds in shown.items() if "more microbatches" in name)
    assert {n: s for n, s in shown.items() if n in after} == pytest.approx(
        {n: s for n, s in after.items() if s > 0}
    )
    passes_s = rest_s + sum(s.duration_s for s in row if s.kind not in ("after", "bubble"))
    parts = step.breakdown()
    outside = ("gradient_accumulation", "gradient_reduction", "optimizer", "pipeline_bubble",
               "pipeline_sends", "host")  # fmt: skip
    inside_s = sum(seconds for name, seconds in parts.items() if name not in outside)
    host_s = timeline.microbatches * found.stages[slowest].host_s
    came = arrivals(layout.schedule, layout.pp, len(record.pipeline.passes[0]))[slowest]
    waits_s = [n * s for n, s in zip(came, record.pipeline.waits_s[slowest], strict=True)]
    waited_s = timeline.microbatches * sum(waits_s)
    # What is not replayed one by one may wait a little in every round.
    near = 1e-3 if rest_s else 1e-6
    assert passes_s == pytest.approx(inside_s + host_s + waited_s, rel=near)


def test_stage_lanes_show_the_bubbles_where_the_schedule_has_them() -> None:
    found = estimate()
    record = found.answer.pipeline
    trace = plan_trace(found.answer)
    replayed = replay("1f1b", record.passes, record.microbatches, *record.messages_s)
    stretch = trace["otherData"]["megatron-gpt2-8.3b"]["stretch"]
    for stage in range(found.layout.pp):
        busy = [e for e in replayed.events if e.stage == stage]
        idle = replayed.time_s - sum(e.end_s - e.start_s for e in busy)
        shown = [e for e in lanes(trace)[stage, 0] if e["cat"] == "bubble"]
        idle_s = idle * stretch * record.slack
        assert sum(e["dur"] for e in shown) / US == pytest.approx(idle_s, rel=1e-6)
    # The last stage waits for the first microbatch: its first bubble ends when that arrives.
    last = lanes(trace)[found.layout.pp - 1, 0]
    assert last[0]["cat"] == "bubble"
    assert last[1]["args"]["kind"] == "forward" and last[1]["args"]["microbatch"] == 0
    # The first stage starts at once, and idles at the end of its warm-up.
    first = lanes(trace)[0, 0]
    assert first[0]["cat"] == "pipeline"
    assert any(e["cat"] == "bubble" for e in first)


def test_collectives_are_in_the_trace() -> None:
    trace = plan_trace(estimate().answer)
    names = {e["name"] for e in trace["traceEvents"] if e.get("cat") == "collective"}
    assert {"gradient reduction", "tensor parallel"} <= names
    assert any(e["pid"] >= LAYERS for e in trace["traceEvents"] if e.get("cat") == "collective")
    assert any(e.get("cat") == "send" for e in trace["traceEvents"])


def test_work_of_another_number_of_operators_is_refused() -> None:
    answer = estimate().answer
    entry = answer.operators[0]
    damaged = replace(entry, work=(*entry.work, entry.work[0]))
    with pytest.raises(AtollError, match="the answer is damaged"):
        plan_trace(replace(answer, operators=(damaged, *answer.operators[1:])))


def counted(trace: dict[str, Any], name: str) -> float:
    """What a counter of rates adds up to over all layers, in its unit times seconds."""
    total = 0.0
    for pid in {e["pid"] for e in trace["traceEvents"]}:
        rows = [e for e in trace["traceEvents"] if e["pid"] == pid and e["name"] == name]
        rows = [e for e in rows if e["ph"] == "C"]
        for now, after in pairwise(rows):
            (rate,) = now["args"].values()
            total += rate * (after["ts"] - now["ts"]) / US
        assert not rows or [*rows[-1]["args"].values()] == [0.0]
    return total


def test_counters_of_a_layer_add_up_to_its_flops_and_bytes(tiny_run: Path) -> None:
    planned = estimate().answer
    trace = plan_trace(planned)
    work = [w for entry in planned.operators for w in entry.work]
    lanes_of = [row[1] for entry in planned.operators for row in entry.operators]
    links = sum(moved for lane, (_, moved) in zip(lanes_of, work, strict=True) if lane == "link")
    every = sum(moved for _, moved in work)
    assert counted(trace, "compute") * 1e12 == pytest.approx(sum(f for f, _ in work), rel=1e-3)
    assert counted(trace, "HBM") * 1e9 == pytest.approx(every - links, rel=1e-2)
    assert counted(trace, "links") * 1e9 == pytest.approx(links, rel=1e-2)
    assert links > 0

    (plan,) = open_folder(tiny_run).answer.best.models
    searched = sum(op.flops for entry in plan.layers for op in entry.operators)
    chip = search_trace(open_folder(tiny_run).answer)
    assert counted(chip, "compute") * 1e12 == pytest.approx(searched, rel=1e-3) and searched


def test_a_long_step_is_cut_to_its_beginning_and_says_so() -> None:
    found = estimate(pp=2, tp=2, batch=262144)
    timeline = plan_timeline(found.answer.pipeline)
    assert timeline.shown < timeline.microbatches
    for row in timeline.stages:
        total = sum(s.duration_s for s in row)
        assert total == pytest.approx(found.step.time_s, rel=1e-6)
    assert any("more microbatches" in s.name for s in timeline.stages[0])


def test_a_wafers_trace_adds_up(wafer_run: Path) -> None:
    content = open_folder(wafer_run).answer
    trace = search_trace(content)
    check_schema(trace)
    check_lanes(trace)
    check_sums(trace, len(content.best.placement.stages), content.best.placement.step_time_s)


def test_a_searchs_trace_adds_up_and_has_the_operators(tiny_run: Path) -> None:
    content = open_folder(tiny_run).answer
    trace = search_trace(content)
    check_schema(trace)
    check_lanes(trace)
    placement = content.best.placement
    overlapped = placement.schedule == "zb-h2"
    check_sums(trace, len(placement.stages), placement.step_time_s, overlapped=overlapped)
    (plan,) = content.best.models
    stretch = trace["otherData"][plan.model]["stretch"]
    assert stretch == pytest.approx(1 / (1 + plan.replay_difference))
    operators = {op.name for entry in plan.layers for op in entry.operators}
    assert operators <= {e["name"] for e in trace["traceEvents"] if e["pid"] >= LAYERS}


@given(
    stages=st.integers(1, 5),
    microbatches=st.integers(1, 9),
    seed=st.integers(0, 10_000),
    schedule=st.sampled_from(["1f1b", "gpipe", "zb-h1", "zb-h2"]),
)
def test_lanes_have_no_hole_and_no_overlap(
    stages: int, microbatches: int, seed: int, schedule: str
) -> None:
    draw = random.Random(seed)
    timeline = plan_timeline(
        StepPasses(
            schedule=schedule,
            microbatches=microbatches,
            replayed=microbatches,
            send_s=draw.choice([0.0, 0.01, 0.5]),
            passes=tuple(
                (PassTime(*(draw.uniform(0.1, 2) for _ in range(3))),) for _ in range(stages)
            ),
            after=(("gradient reduction", draw.uniform(0, 1)), ("host", 0.0)),
            step_time_s=draw.uniform(1, 100),
        )
    )
    for row in timeline.stages:
        assert all(a.end_s == b.start_s for a, b in pairwise(row))
        assert all(s.duration_s >= 0 for s in row)
        assert row[-1].end_s - row[0].start_s == pytest.approx(timeline.step_time_s)
        passes = [s for s in row if s.microbatch >= 0]
        assert len(passes) == microbatches * (3 if schedule.startswith("zb") else 2)
        if not schedule.startswith("zb"):  # else a later stage may begin and end its step later
            assert (row[0].start_s, row[-1].end_s) == (0.0, timeline.step_time_s)
    assert timeline.stages[0][0].start_s == 0.0


def test_memory_rises_to_the_estimate_of_each_stage_and_falls_back() -> None:
    for order in ("1f1b", "zb-h1"):
        found = atoll.estimate(
            "gpt2-xl", "h100", 8, batch=32, pp=4, tp=1, order=order, microbatch=1
        ).answer
        trace = plan_trace(found)
        for stage, held in enumerate(found.memory_bytes.stages):
            told = [
                event["args"]
                for event in trace["traceEvents"]
                if event["ph"] == "C" and event["pid"] == STAGES + stage
            ]
            totals = [args["other"] + args["activations"] for args in told]
            assert max(totals) == pytest.approx(held.total)
            assert told[0]["activations"] == told[-1]["activations"] == 0
            assert len(told) == 1 + 2 * found.pipeline.replayed
