"""`atoll measure`: which ranks run, what is refused, and what becomes of their records."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.answers.plan import MeasureAnswer
from atoll.answers.validation import RunsValidation, SiteCalibration
from atoll.base.errors import AtollError
from atoll.calibration.device_profile import write_device
from atoll.measurement.measure import measure, plan_measured, rank_row
from atoll.measurement.runner import RankJob
from atoll.questions import PlanQuestion
from atoll.questions.verbs import MeasureQuestion

DATA = Path(__file__).parents[1] / "data"
TITAN: dict[str, Any] = {"model": "llama3-8b", "devices": 64, "batch": 64, "tool": "torchtitan"}


def recorded() -> list[tuple[RankJob, dict[str, Any]]]:
    """Return jobs of an H200 with their records: a result, out of memory, an error."""
    lines = (DATA / "measured_ranks.jsonl").read_text().splitlines()
    pairs = [json.loads(line) for line in lines]
    return [(RankJob.from_dict(pair["job"]), pair["record"]) for pair in pairs]


class FakeRunner:
    """Return the record of another rank for every job, with a step of so many milliseconds."""

    def __init__(self, step_ms: float = 1000.0) -> None:
        self.jobs: list[RankJob] = []
        self.step_ms = step_ms

    def __call__(
        self, jobs: Sequence[RankJob], device: str, limit_s: float
    ) -> Iterator[dict[str, Any]]:
        record = recorded()[0][1]
        for job in jobs:
            self.jobs.append(job)
            yield record | {"id": job.id, "step_ms": [self.step_ms], "host_ms": 10.0}


def asked(**fields: Any) -> MeasureQuestion:
    return MeasureQuestion.of(**TITAN | fields)


def jobs_of(**fields: Any) -> list[dict[str, Any]]:
    answer = measure(asked(dry_run=True, **fields))
    assert isinstance(answer, MeasureAnswer)
    assert answer.commands[0].endswith("jobs.jsonl --device cuda")
    return [dict(job) for job in answer.jobs]


def test_a_dry_run_states_the_jobs() -> None:
    (job,) = jobs_of()
    assert (job["tool"], job["fsdp"], job["sequence"]) == ("torchtitan", 64, 8192)
    assert job["config"]["num_hidden_layers"] == 32


def test_ranks_of_a_pipeline_are_those_of_its_stages() -> None:
    first, last = jobs_of(pp=4, dp=16, batch=128, zero=1)
    assert (first.get("stage", 0), first["blocks"]) == (0, (0, 8))
    assert (last["stage"], last["rank"], last["blocks"]) == (3, 48, (24, 32))
    assert [job["stage"] for job in jobs_of(pp=4, batch=128, zero=1, ranks=["last"])] == [3]


def test_adapters_and_replicas_go_into_the_job() -> None:
    (job,) = jobs_of(tool="transformers", method="lora", lora_rank=8, optimizer="bf16", zero=0)
    assert (job["replicate"], job.get("fsdp", 1), job["lora_rank"]) == (64, 1, 8)
    assert job["lora_targets"] == ("q_proj", "k_proj", "v_proj", "o_proj")
    (job,) = jobs_of(hsdp=8, recompute="full")
    assert (job["fsdp"], job["replicate"], job["recompute"]) == (8, 8, "full")


def test_ranks_of_megatron_lm_divide_optimizer_states() -> None:
    first, last = jobs_of(tool="megatron-lm", tp=2, pp=4, batch=128, zero=1)
    assert (first["tool"], first["fsdp"], first["weights"]) == ("megatron-lm", 8, "bf16")
    assert (last["stage"], last["rank"], last["blocks"]) == (3, 48, (24, 32))
    (job,) = jobs_of(tool="megatron-lm", zero=0)
    assert (job["replicate"], job.get("fsdp", 1)) == (64, 1)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"tool": "deepspeed"}, "tool deepspeed (use --tool torchtitan or transformers or"),
        ({"tool": "megatron-lm", "tp": 2, "recompute": "selective"}, "recomputation selective"),
        ({"tool": "megatron-lm", "model": "mixtral-8x7b"}, "under megatron-lm, only Llama"),
        ({"cp": 2}, "context parallelism (cp 2)"),
        ({"pp": 2, "vpp": 2, "batch": 256, "zero": 1}, "order interleaved"),
        ({"model": "mixtral-8x7b", "ep": 8}, "expert parallelism (ep 8)"),
        ({"model": "mixtral-8x7b"}, "mixtral-8x7b under torchtitan, only Llama"),
        ({"tool": "transformers", "pp": 2, "batch": 256}, "pipelines under transformers"),
        ({"recompute": "optimal"}, "recomputation optimal"),
    ],
)
def test_what_the_child_cannot_run_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(AtollError) as refused:
        measure(asked(**fields))
    assert says in str(refused.value)
    assert str(refused.value).endswith("estimate prices it")


@pytest.mark.slow
def test_a_machine_without_a_gpu_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    pytest.importorskip("torch")
    with pytest.raises(AtollError, match=r"needs a GPU that PyTorch sees.*--dry-run"):
        measure(asked())


def test_recorded_output_becomes_rows() -> None:
    (job, record), (capped, failure), _ = recorded()
    row = rank_row(job, record)
    assert (row["world"], row["pp_rank"], row["mode"]) == (32, 3, "pipeline")
    assert row["step_ms"] == pytest.approx(293.9, abs=0.1)
    classes = sum(value for name, value in row.items() if name.startswith("k_"))
    assert row["kernel_ms"] == pytest.approx(classes, abs=0.01)
    assert row["stand_in_ms"] > 0
    assert row["k_optimizer_ms"] > 0
    assert row["backend"] == "CUDNN_ATTENTION"
    flash = [[1.0, 1, "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128>>"]]
    assert rank_row(job, record | {"kernels": {"forward": flash}})["backend"] == "FLASH_ATTENTION"
    row = rank_row(capped, failure)
    assert (row["step_ms"], row["limit_bytes"]) == ("OOM", capped.memory_bytes)


@pytest.mark.slow
def test_rows_are_read_by_validate_and_calibrate(tmp_path: Path) -> None:
    table = tmp_path / "measured.csv"
    answer = measure(asked(pp=4, batch=128, zero=1, append=table), FakeRunner())
    assert isinstance(answer, MeasureAnswer)
    assert [rank.outcome for rank in answer.ranks] == ["ok", "ok"]
    assert all(rank.predicted_step_time_s for rank in answer.ranks)
    judged = atoll.validate(table)
    assert isinstance(judged, RunsValidation)
    assert (judged.rows, judged.predicted, judged.step_time.rows) == (2, 2, 2)
    site = atoll.calibrate(table)
    assert isinstance(site, SiteCalibration)
    assert site.runs is not None
    assert site.runs.fitted == 2


def test_a_failed_rank_leaves_no_row(tmp_path: Path) -> None:
    def failing(jobs: Sequence[RankJob], device: str, limit_s: float) -> Iterator[dict[str, Any]]:
        yield {"id": jobs[0].id, "outcome": "time", "error": "took more than 600 s"}

    answer = measure(asked(append=tmp_path / "measured.csv"), failing)
    assert isinstance(answer, MeasureAnswer)
    assert answer.ranks[0].error == "took more than 600 s"
    assert not (tmp_path / "measured.csv").exists()


def test_another_table_is_left_as_it_is(tmp_path: Path) -> None:
    table = tmp_path / "measured.csv"
    table.write_text("id,step_ms\na,1\n")
    with pytest.raises(AtollError, match="not a table of ranks"):
        measure(asked(append=table), FakeRunner())
    assert table.read_text() == "id,step_ms\na,1\n"


def test_the_layout_of_a_plan_folder_is_measured(tmp_path: Path) -> None:
    atoll.estimate("llama3-8b", "h200", 64, batch=64, tool="torchtitan", tp=2, recompute="full",
                   out=tmp_path / "plan")  # fmt: skip
    question = MeasureQuestion.of(from_=str(tmp_path / "plan"), dry_run=True)
    answer = measure(question)
    assert isinstance(answer, MeasureAnswer)
    job = answer.jobs[0]
    assert (job["tp"], job["fsdp"], job["recompute"]) == (2, 32, "full")


@pytest.mark.slow
def test_a_plan_measures_its_best_layouts_until_the_best_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    question = PlanQuestion.of(model="llama3-8b", device="h200", devices=16, batch=32, tp=[1, 2],
                               pp=[1], tool="torchtitan", recompute=["none", "full"],
                               measure=2)  # fmt: skip
    runner, shown, sites = FakeRunner(2000.0), [], []

    def planner(again: PlanQuestion) -> Any:
        sites.append(again.site)
        return atoll.plan(job=again)

    plan = plan_measured(question, planner, shown.append, runner)
    assert sites[0] is None
    assert sites[1] == "measured-site.yaml"
    assert len(shown) >= 2
    assert plan.run.site is not None
    assert str(plan.best.layout) in {answer.layout for answer in shown}
    assert len((tmp_path / "measured.csv").read_text().splitlines()) == len(runner.jobs) + 1


def test_every_operator_of_a_profile_can_be_run() -> None:
    pytest.importorskip("torch")
    from atoll.calibration.local_gpu import OPERATORS, operator

    rows = list(csv.DictReader(OPERATORS.read_text(encoding="utf-8").splitlines()))
    assert len(rows) == 234
    for row in {row["kind"]: row for row in rows}.values():
        sizes = {name: int(cell) for name, cell in row.items() if cell and name != "kind"}
        assert callable(operator(row["kind"], sizes, "meta"))


@pytest.mark.slow
def test_timed_operators_make_a_device(tmp_path: Path) -> None:
    figures = json.loads((DATA / "h200_profile_device.json").read_text())
    table = DATA / "h200_profile_operators.csv"
    answer = write_device(tmp_path / "mine.yaml", table, figures, "h200")
    assert answer.out == str(tmp_path / "mine.yaml")
    assert answer.held_out.step_time.mean_ape is not None
    assert answer.held_out.step_time.mean_ape < 0.12
    mine = atoll.estimate("llama3-8b", str(tmp_path / "mine.yaml"), 8, batch=64, tool="torchtitan")
    catalogued = atoll.estimate("llama3-8b", "h200", 8, batch=64, tool="torchtitan")
    assert mine.run.gpu.name == "mine"
    assert mine.step.time_s == pytest.approx(catalogued.step.time_s, rel=0.15)
