"""The store of a run: nothing is lost, nothing counted twice, and every trouble is a sentence."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.base.errors import AtollError
from atoll.hardware.silicon.systolic import HBM_PARAMETERS, SYSTOLIC
from atoll.step.certificate import Certificate
from atoll.store import FILE, SCHEMA_VERSION, DesignRow, EvaluationRow, RunReader, RunStore
from atoll.store.lock import FolderLock
from atoll.store.rows import export_parquet
from atoll.store.schema import in_sentences

JOB = {
    "devices": 8,
    "model": "tiny",
    "parameters": [p.to_dict() for p in (*SYSTOLIC.parameters, *HBM_PARAMETERS)],
}


def open_store(folder: Path, job: dict[str, object] | None = None) -> RunStore:
    return RunStore(folder, job or JOB, "here", "0")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    opened = open_store(tmp_path / "run")
    yield opened
    opened.abandon()


def evaluation(chip: int, phase: str = "place") -> EvaluationRow:
    return EvaluationRow(phase, chip, -1, "", 1.0, b"\0" * 16, [{"step_time_s": 0.1 + chip}])


def design(chip: int, score: float, area: float = 100.0, **parameters: float) -> DesignRow:
    sizes = dict.fromkeys(
        ("tensor_cores", "vector_cores", "width", "depth", "vector_width", "glb_bytes",
         "hbm_capacity_bytes", "hbm_bandwidth_Bps", "clock_Hz"), 1.0
    )  # fmt: skip
    plan = {"model": "tiny", "samples_per_s": score, "step_time_s": 1.0, "microbatch": 1,
            "tensor": 1, "pipeline": 1, "data": 1, "number": 0, "variant": 0, "cp": 1, "ep": 1,
            "etp": 1, "sp": True, "pass_s": [[0.1, 0.2]], "effort": "quick",
            "energy": {"parts_J": {}, "step_time_s": 1.0, "devices": 1, "tokens": 1}}  # fmt: skip
    figures = {"score": score, "area_mm2": area, "power_W": area / 2, "energy_per_token_J": 0.1}
    return DesignRow(chip, chip, figures, sizes | parameters, plan, "place", [plan])


def test_what_was_put_is_there_after_a_reopening(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.put_bounds(3, [(7, 1.5, b"bound")])
    store.put_evaluation(evaluation(7), design(7, 1.0))
    store.put_note("baselines", {"random": 2.0})
    store.close("finished")
    again = open_store(tmp_path)
    assert again.bounds(3) == {7: b"bound"}
    assert again.evaluation("place", 7, -1, "") == (b"\0" * 16, [{"step_time_s": 7.1}])
    assert again.evaluation("front", 7, -1, "") is None
    assert again.note("baselines") == {"random": 2.0}
    again.close("finished")


def test_any_flipped_bit_of_a_finished_store_is_a_sentence_for_readers_and_for_the_search(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path)
    store.put_evaluation(evaluation(7), design(7, 1.0))
    store.close("finished")
    with RunReader(tmp_path) as reader:
        assert reader.as_written
    content = (tmp_path / FILE).read_bytes()
    draw = random.Random(0)
    for _ in range(40):
        flipped = bytearray(content)
        flipped[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        (tmp_path / FILE).write_bytes(flipped)
        with pytest.raises(AtollError):
            RunReader(tmp_path)
        with pytest.raises(AtollError):
            open_store(tmp_path)
    (tmp_path / FILE).write_bytes(content)
    open_store(tmp_path).close("finished")


def test_a_record_put_twice_counts_once(store: RunStore) -> None:
    for _ in range(2):
        store.put_evaluation(evaluation(1), design(1, 1.0))
        store.put_bounds(0, [(1, 1.0, b"")])
    with RunReader(store.folder) as reader:
        status = reader.status()
    assert (status.evaluated, status.designs, status.bounded) == (1, 1, 1)


def test_a_reader_sees_each_record_at_once_while_the_search_writes(store: RunStore) -> None:
    with RunReader(store.folder) as reader:
        for chip in range(3):
            store.put_evaluation(evaluation(chip), design(chip, float(chip)))
            assert reader.count() == chip + 1
        assert reader.status().state == "running"
        assert reader.status().pid == os.getpid()


def test_progress_and_incumbents_over_time(store: RunStore) -> None:
    for chip, score, bound in ((4, 1.0, 9.0), (4, 1.0, 8.0), (5, 2.0, 4.0)):
        store.put_progress("bounding", 10, 100, chip, score, bound)
    with RunReader(store.folder) as reader:
        assert [(i.chip, i.score, i.bound) for i in reader.incumbents()] == [(4, 1, 9), (5, 2, 4)]
        assert [point.bound for point in reader.progress()] == [9.0, 8.0, 4.0]
        assert reader.status().gap == 0.5


def test_pages_filters_and_sorts(store: RunStore) -> None:
    store.put_designs(design(i, float(i), area=100.0 - i, width=i % 2) for i in range(10))
    with RunReader(store.folder) as reader:
        assert [row["chip"] for row in reader.designs(limit=3)] == [9, 8, 7]
        assert [row["chip"] for row in reader.designs(limit=2, offset=8)] == [1, 0]
        odd = reader.designs({"width": 1, "score": (2, 8)}, sort="area_mm2")
        assert [row["chip"] for row in odd] == [7, 5, 3]
        assert reader.count({"area_mm2": (None, 95)}) == 5
        assert reader.design(3)["plans"][0]["samples_per_s"] == 3.0
        with pytest.raises(AtollError, match="no column 'colour'"):
            reader.designs(sort="colour")


POINTS = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=30)


@settings(max_examples=40, deadline=None)
@given(POINTS)
def test_the_front_is_what_comparing_all_pairs_gives(points: list[tuple[int, int]]) -> None:
    folder = Path(tempfile.mkdtemp())
    store = open_store(folder)
    store.put_designs(design(i, float(s), float(a)) for i, (s, a) in enumerate(points))
    expected = {
        (s, a)
        for s, a in points
        if not any((t >= s and b < a) or (t > s and b <= a) for t, b in points)
    }
    with RunReader(folder) as reader:
        front = reader.front("area_mm2")
    store.close("finished")
    assert [(row["score"], row["area_mm2"]) for row in front] == sorted(expected, reverse=True)


def test_another_job_is_refused_and_named(tmp_path: Path) -> None:
    open_store(tmp_path).close("finished")
    with pytest.raises(AtollError, match=r"another job \(devices 8 there, 16 here\)"):
        open_store(tmp_path, JOB | {"devices": 16})
    open_store(tmp_path).close("finished")


def test_a_second_process_is_refused_with_the_pid_of_the_first(store: RunStore) -> None:
    with pytest.raises(AtollError, match=f"in use by process {os.getpid()} on"):
        open_store(store.folder)


@pytest.mark.parametrize(("version", "word"), [(0, "older"), (SCHEMA_VERSION + 1, "newer")])
def test_another_schema_is_refused(tmp_path: Path, version: int, word: str) -> None:
    open_store(tmp_path).close("finished")
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    for opener in (lambda: RunReader(tmp_path), lambda: open_store(tmp_path)):
        with pytest.raises(AtollError, match=f"written by an? {word} atoll"):
            opener()


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("not a database at all, but long enough to be read" * 100)
    with pytest.raises(AtollError, match="damaged"):
        open_store(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    with sqlite3.connect(other / FILE) as connection:
        connection.execute("CREATE TABLE mine (x)")
    with pytest.raises(AtollError, match="not a store"):
        open_store(other)


def killed_writer(folder: Path) -> None:
    """A process that puts 50 records and dies without closing: the log stays behind."""
    if (child := os.fork()) == 0:
        store = open_store(folder)
        for chip in range(50):
            store.put_evaluation(evaluation(chip), design(chip, float(chip)))
        os._exit(0)
    os.waitpid(child, 0)
    assert Path(f"{folder / FILE}-wal").stat().st_size > 0


@pytest.mark.parametrize("damage", ["cut", "garbage", "longer"])
def test_a_corrupt_tail_costs_at_most_the_last_records(tmp_path: Path, damage: str) -> None:
    killed_writer(tmp_path)
    log = Path(f"{tmp_path / FILE}-wal")
    content = log.read_bytes()
    noise = random.Random(0).randbytes(3000)
    log.write_bytes(
        {"cut": content[:-3000], "garbage": content[:-3000] + noise, "longer": content + noise}[
            damage
        ]
    )
    store = open_store(tmp_path)
    with RunReader(tmp_path) as reader:
        chips = sorted(row["chip"] for row in reader.designs(limit=100))
    assert chips == list(range(len(chips)))
    assert len(chips) >= (50 if damage == "longer" else 40)
    store.put_evaluation(evaluation(99), design(99, 1.0))
    store.close("finished")


def test_a_damaged_file_is_one_sentence(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.put_designs(design(i, float(i)) for i in range(2000))
    store.close("finished")
    file = tmp_path / FILE
    file.write_bytes(file.read_bytes()[: 3 * 4096])
    with pytest.raises(AtollError, match="damaged"):
        open_store(tmp_path)


def test_a_full_disk_is_one_sentence_and_keeps_what_was_finished(tmp_path: Path) -> None:
    """The limit on a file's size stands in for the disk: the system refuses to write more."""
    child = os.fork()
    if child == 0:
        store = open_store(tmp_path)
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
        try:
            for chip in range(10_000):
                store.put_evaluation(evaluation(chip), design(chip, float(chip)))
                (tmp_path / "finished").write_text(str(chip))
        except AtollError as error:
            (tmp_path / "sentence").write_text(str(error))
            store.abandon()
        os._exit(0)
    os.waitpid(child, 0)
    sentence = (tmp_path / "sentence").read_text()
    assert "everything finished so far is kept" in sentence
    finished = int((tmp_path / "finished").read_text())
    assert finished > 10
    with RunReader(tmp_path) as reader:
        assert reader.status().evaluated in (finished + 1, finished + 2)
    store = open_store(tmp_path)
    store.put_evaluation(evaluation(20_000), None)
    store.close("finished")


def test_a_full_database_is_the_same_sentence(store: RunStore) -> None:
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages + 4}")
    with pytest.raises(AtollError, match="the disk is full; everything finished so far is kept"):
        for chip in range(1000):
            store.put_evaluation(evaluation(chip), design(chip, float(chip)))
    with RunReader(store.folder) as reader:
        assert reader.status().evaluated > 0


def test_a_folder_that_cannot_be_written_can_still_be_read() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = open_store(folder)
        store.put_designs([design(1, 1.0)])
        store.close("finished")
        folder.chmod(0o555)
        read, write = os.pipe()
        if (child := os.fork()) == 0:
            if os.geteuid() == 0:
                os.setuid(65534)  # nothing is read-only for root
            try:
                open_store(folder)
            except AtollError as error:
                with RunReader(folder) as reader:
                    os.write(write, f"{reader.count()} {error}".encode())
            os._exit(0)
        os.waitpid(child, 0)
        folder.chmod(0o755)
        count, _, sentence = os.read(read, 4096).decode().partition(" ")
        os.close(read)
        os.close(write)
    assert count == "1"
    assert "cannot be written (Permission denied)" in sentence


def test_a_folder_without_a_store_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(AtollError, match=r"no search\.sqlite"):
        RunReader(tmp_path)


def test_exports_every_design_to_parquet(store: RunStore, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    store.put_designs(design(i, float(i)) for i in range(100))
    with RunReader(store.folder) as reader:
        assert export_parquet(reader, tmp_path / "designs.parquet") == 100
    table = parquet.read_table(tmp_path / "designs.parquet")
    assert table["score"].to_pylist() == [float(i) for i in reversed(range(100))]
    assert {"area_mm2", "tensor_cores", "plans"} <= set(table.column_names)


def everything(folder: Path) -> list[object]:
    """All that readers are told, and what the next search would take from the record."""
    with RunReader(folder) as run:
        shown: list[object] = [run.fingerprint(), run.job(), run.progress(), run.incumbents()]
        shown += [run.designs(), run.design(1), run.front(), run.bound_scores(), run.notes("base")]
        shown += [list(run.placed_bounds_s()), list(run.since(0.0))]
        shown += [[tuple(row) for row in piece] for piece in run.batches()]
    store = open_store(folder)
    shown += [store.bounds(0), store.note("baselines")]
    shown += [store.evaluation("place", chip, -1, "") for chip in range(9)]
    store.close("finished")
    return shown


def test_without_the_file_s_checksum_each_record_has_its_own(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for chip in range(8):
        store.put_evaluation(evaluation(chip), design(chip, 1.0 + chip, area=-0.0 + chip))
        store.put_progress("place", 8 - chip, 8, chip, 1.0 + chip, 9.0)
    store.put_bounds(0, [(chip, 0.1 * chip, bytes([chip] * 8)) for chip in range(8)])
    store.put_note("baselines", {"random": 2.0})
    store.close("finished")
    content = (tmp_path / FILE).read_bytes()
    (tmp_path / "SHA256SUMS").unlink()
    told = everything(tmp_path)
    draw = random.Random(0)
    refused = 0
    for _ in range(200):
        flipped = bytearray(content)
        flipped[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        (tmp_path / FILE).write_bytes(flipped)
        (tmp_path / "SHA256SUMS").unlink(missing_ok=True)
        try:
            assert everything(tmp_path) == told
        except AtollError:
            refused += 1
    assert refused > 20, "most of the file is empty pages, but not all"


def test_a_clock_that_is_set_back_hides_no_design(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seen_since(at: float) -> list[int]:
        with RunReader(tmp_path) as reader:
            return [row[0] for rows in reader.since(at) for row in rows]

    clock = 2e9
    monkeypatch.setattr("atoll.store.writer.time.time", lambda: clock)
    for chip in range(3):  # each in a run of its own
        store = open_store(tmp_path)
        store.put_evaluation(evaluation(chip), design(chip, 1.0))
        store.put_progress("place", 1, 8, chip, 1.0 + chip, 9.0)
        store.close("stopped")
        clock -= 3600.0
    assert seen_since(2e9) == [0, 1, 2]
    with RunReader(tmp_path) as reader:
        seconds = [point.seconds for point in reader.progress()]
    assert 0.0 <= seconds[0] <= seconds[1] <= seconds[2] < 60.0


def test_a_folder_that_is_removed_meanwhile_is_one_sentence(tmp_path: Path) -> None:
    store = open_store(tmp_path / "run")
    store.put_evaluation(evaluation(1), design(1, 1.0))
    shutil.rmtree(tmp_path / "run")
    proof = Certificate(1.0, 1.0, 1e-3, 1, "layout", 1, {})
    with pytest.raises(AtollError, match="was removed while the search wrote to it"):
        store.end({}, proof, early=False)
    store.abandon()


@pytest.mark.parametrize("said", ["disk I/O error", "attempt to write a readonly database"])
def test_what_sqlite_says_of_a_file_that_is_gone(said: str, tmp_path: Path) -> None:
    gone = tmp_path / "run" / "search.sqlite"
    with pytest.raises(AtollError, match="was removed while"), in_sentences(gone):
        raise sqlite3.OperationalError(said)


@pytest.mark.parametrize("granted", [True, False])
def test_a_file_system_without_locks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, granted: bool
) -> None:
    """Some network file systems refuse locks, others grant all of them."""

    def flock(file: int, operation: int) -> None:
        if not granted:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("atoll.store.lock.fcntl.flock", flock)
    with pytest.raises(AtollError, match=r"has no locks .*; give a folder on a local disk"):
        FolderLock(tmp_path)
