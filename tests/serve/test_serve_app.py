"""What the server answers, to whom, and what it refuses: status and one sentence."""

from __future__ import annotations

import http.client
import json
import socket
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from serve_runs import (
    ask,
    ask_json,
    make_app,
    open_store,
    random_designs,
    serving,
    write_designs,
    write_wafer,
    write_wafer_search,
)

import atoll
from atoll.base.errors import AtollError
from atoll.cli import main
from atoll.front import assets
from atoll.serve.app import App
from atoll.serve.guard import Guard, make_guard, split_host
from atoll.serve.runs import open_runs
from atoll.serve.server import Explorer
from atoll.store import FILE, SCHEMA_VERSION


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> App:
    folder = tmp_path_factory.mktemp("app")
    return make_app(write_designs(folder / "one", random_designs(80)))


def test_the_runs_are_listed(app: App, tiny_run: Path, plan_run: Path) -> None:
    assert [run["id"] for run in ask_json(app, "/api/runs")["runs"]] == ["one"]
    both = ask_json(make_app(tiny_run, plan_run), "/api/runs")["runs"]
    assert [(run["kind"], run["models"]) for run in both] == [
        ("search", ["bert-large"]),
        ("plan", ["gpt2-xl"]),
    ]


def test_filters_change_the_count_and_the_page(app: App) -> None:
    everything = ask_json(app, "/api/runs/one/summary")
    filtered = ask_json(app, "/api/runs/one/summary?area_mm2=..200&width=16..64")
    assert everything["count"] == everything["total"] == 80
    assert 0 < filtered["count"] < 80
    page = ask_json(app, "/api/runs/one/table?area_mm2=..200&width=16..64&sort=-area_mm2&limit=5")
    assert page["count"] == filtered["count"]
    areas = [row["area_mm2"] for row in page["rows"]]
    assert areas == sorted(areas, reverse=True)
    assert max(areas) <= 200


def test_a_finished_search_tells_its_answer(tiny_run: Path) -> None:
    app = make_app(tiny_run)
    details = ask_json(app, "/api/runs/tiny")
    assert details["state"] == "finished"
    assert details["result"]["certificate"]["status"] == "optimal"
    assert ask_json(app, "/api/runs/tiny/progress")["progress"][-1]["score"] > 0
    best = ask_json(app, "/api/runs/tiny/table?limit=1")["rows"][0]
    design = ask_json(app, f"/api/runs/tiny/design/{best['chip']}")
    assert design["plans"][0]["step_time_s"] == best["step_time_s"]
    assert ask_json(app, "/api/runs/tiny/result.json")["score"] == best["score"]


@pytest.mark.parametrize(
    ("target", "status", "words"),
    [
        ("/api/runs/two", 404, "No run 'two'"),
        ("/api/runs/one/design/x", 404, "no design 'x'"),
        ("/api/runs/one/design/123456789", 404, "no design"),
        ("/api/runs/one/colours", 404, "has no colours"),
        ("/api/runs/one/plan.json", 404, "has no plan.json"),
        ("/api/runs/one/result.json", 404, "no result yet"),
        ("/api/runs/one/view", 400, "before it reported"),
        ("/api/runs/one/table?sort=colour", 400, "no column 'colour'"),
        ("/api/runs/one/table?offset=-1", 400, "offset: expected a whole number"),
        ("/api/runs/one/table?limit=100000", 400, "limit: expected a whole number from 1 to 500"),
        ("/api/runs/one/scatter?x=model", 400, "no column 'model'"),
        ("/api/runs/one/summary?width=wide", 400, "width: expected a number or a range"),
        ("/api/runs/one/whatif?chip=999999&devices=1", 404, "no design"),
        ("/static/../../../pyproject.toml", 404, "No file"),
        ("/static/%2e%2e%2fapp.py", 404, "No file"),
        ("/../etc/passwd", 404, "Nothing at"),
    ],
)
def test_a_wrong_question_gets_one_sentence(app: App, target: str, status: int, words: str) -> None:
    error = ask_json(app, target, status)["error"]
    assert words in error
    assert "\n" not in error


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_nothing_but_get(app: App, method: str) -> None:
    answer = ask(app, "/api/runs", method)
    assert answer.status == 405
    assert ("Allow", "GET") in answer.headers


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8737", "localhost:80", "10.0.0.1:8737", "", "localhost.x"],
)
def test_a_foreign_host_is_refused(app: App, host: str) -> None:
    answer = ask(app, "/api/runs", host=host)
    assert answer.status == 421
    assert b"is not a name of this server" in answer.body


@pytest.mark.parametrize("host", ["localhost:8737", "127.0.0.1:8737", "[::1]:8737", "LOCALHOST"])
def test_our_own_names_are_answered(app: App, host: str) -> None:
    assert ask(app, "/api/runs", host=host).status == 200


def test_hosts_are_split_like_browsers_write_them() -> None:
    assert split_host("[::1]:80") == ("::1", 80)
    assert split_host("::1") == ("::1", None)
    assert split_host("Name.example.:8737") == ("name.example", 8737)


def test_off_loopback_there_is_a_token(tmp_path: Path) -> None:
    folder = write_designs(tmp_path / "one", random_designs(3))
    guard = make_guard("0.0.0.0", 8737, ["lab.example"], None)
    assert guard.token is not None
    assert len(guard.token) >= 24
    app = make_app(folder, guard=guard)
    assert ask(app, "/api/runs").status == 401
    assert ask(app, "/").status == 401
    assert ask(app, "/api/runs?token=wrong").status == 401
    assert ask(app, "/api/runs?token=%C3%A9").status == 401
    assert ask(app, f"/api/runs?token={guard.token}").status == 200
    assert ask(app, "/api/runs", authorization=f"Bearer {guard.token}").status == 200
    page = ask(app, f"/?token={guard.token}", host="192.168.1.7:8737")
    cookie = dict(page.headers)["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert ask(app, "/static/explorer/main.js", cookie=cookie.partition(";")[0]).status == 200
    assert ask(app, "/api/runs", cookie="atoll_token_8737=no").status == 401
    assert ask(app, f"/api/runs?token={guard.token}", host="lab.example:8737").status == 200
    assert ask(app, f"/api/runs?token={guard.token}", host="evil.example").status == 421


def test_loopback_needs_no_token_unless_one_is_given() -> None:
    assert make_guard("127.0.0.1", 1, [], None).token is None
    assert make_guard("::1", 1, [], "secret-enough").token == "secret-enough"
    assert make_guard("192.168.1.7", 1, [], None).token is not None


def test_browsers_are_told_to_load_nothing_from_elsewhere(app: App) -> None:
    headers = dict(ask(app, "/").headers)
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert "Access-Control-Allow-Origin" not in headers
    for name in assets():
        answer = ask(app, f"/static/{name}")
        assert answer.status == 200
        assert isinstance(answer.body, bytes)
        text = answer.body.decode().replace("http://www.w3.org/2000/svg", "")
        assert "http" not in text.replace("https://", "http://")


def test_over_a_real_socket(tmp_path: Path) -> None:
    folder = write_designs(tmp_path / "one", random_designs(30))
    with serving(folder) as explorer:
        connection = http.client.HTTPConnection("127.0.0.1", explorer.port, timeout=120)
        for _ in range(2):  # the connection is kept
            connection.request("GET", "/api/runs")
            answer = connection.getresponse()
            assert json.loads(answer.read())["runs"][0]["id"] == "one"
        connection.request("POST", "/api/runs", body="x" * 10)
        refused = connection.getresponse()
        assert refused.status == 405
        refused.read()
        connection = http.client.HTTPConnection("127.0.0.1", explorer.port, timeout=120)
        connection.request("GET", "/api/runs", headers={"Host": "evil.example"})
        assert connection.getresponse().status == 421
        connection = http.client.HTTPConnection("127.0.0.1", explorer.port, timeout=120)
        connection.request("GET", "/api/runs/one/designs.csv")
        answer = connection.getresponse()
        assert "one-designs.csv" in (answer.getheader("Content-Disposition") or "")
        answer.read()
        with pytest.raises(AtollError, match=rf"port: {explorer.port} is in use on 127.0.0.1"):
            Explorer([folder], port=explorer.port)


def test_serving_writes_nothing(tmp_path: Path) -> None:
    folder = write_designs(tmp_path / "one", random_designs(30))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    app = make_app(folder)
    ask_json(app, "/api/runs/one/summary")
    ask_json(app, "/api/runs/one")
    shared = ("-shm", "-wal")  # SQLite's, for readers beside a writer
    after = {p.name: p.read_bytes() for p in folder.iterdir() if not p.name.endswith(shared)}
    assert after == before


# --- Folders and the command ----------------------------------------------------------------------


def test_a_folder_of_runs_gives_all_of_them(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_designs(tmp_path / name, random_designs(3))
    (tmp_path / "else").mkdir()
    assert list(open_runs([tmp_path])[0]) == ["a", "b"]
    assert list(open_runs([tmp_path / "a", tmp_path / "a"])[0]) == ["a"]
    write_designs(tmp_path / "else" / "a", random_designs(3))
    assert list(open_runs([tmp_path / "a", tmp_path / "else" / "a"])[0]) == ["a", "a-2"]


def test_a_wafer_search_is_shown_with_its_progress_and_proof(tmp_path: Path) -> None:
    folder = write_wafer_search(tmp_path / "on-wafer")
    app = make_app(folder)
    (listed,) = ask_json(app, "/api/runs")["runs"]
    assert (listed["kind"], listed["state"], listed["devices"]) == ("wafer", "finished", 8)
    shown = ask_json(app, "/api/runs/on-wafer")
    proof = shown["result"]["certificate"]
    assert "all mappings with microbatches of 1 on this wafer" in proof["sentence"]
    assert 0.0 <= proof["gap"] < 0.1
    assert ask_json(app, "/api/runs/on-wafer/progress")["progress"][-1]["bound"] > 0.0
    assert ask_json(app, "/api/runs/on-wafer/result.json")["score"] == listed["score"]
    assert "no whatif" in ask_json(app, "/api/runs/on-wafer/whatif", 404)["error"]


def test_a_plan_is_shown_while_it_runs_and_when_it_is_there(tmp_path: Path) -> None:
    """Its progress as long as it is planned, then the plan; continued, progress again."""
    folder = tmp_path / "laid-out"
    asked = {"model": "gpt2-xl", "device": "h100", "devices": 16, "batch": 64, "out": folder}
    seen: list[tuple[object, ...]] = []

    def listen(phase: str, left: int, total: int, score: float, bound: float) -> None:
        if seen and phase == seen[-1][0]:
            return
        app = make_app(folder)
        listed = ask_json(app, "/api/runs")["runs"][0]
        seen.append((phase, listed["kind"], listed["state"], listed["models"], listed["devices"]))
        assert ask_json(app, "/api/runs/laid-out")["job"]["device"] == "h100"
        assert "progress" in ask_json(app, "/api/runs/laid-out/progress")
        assert "no whatif" in ask_json(app, "/api/runs/laid-out/whatif", 404)["error"]

    live = ("planning", "running", ["gpt2-xl"], 16)
    for _ in range(2):
        found = atoll.plan(progress=listen, **asked)
        assert seen == [("bounds", *live), ("search", *live)]
        seen.clear()
        shown = ask_json(make_app(folder), "/api/runs/laid-out")
        assert (shown["kind"], shown["state"]) == ("plan", "finished")
        assert shown["plan"]["layout_words"] == str(found.best.layout)


def test_a_wafer_among_the_runs_is_said_to_be_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the list of runs, to whoever asks for it, and once on the terminal."""
    write_designs(tmp_path / "a", random_designs(3))
    wafer = write_wafer(tmp_path / "wafer")
    reason = (
        f"{wafer} holds the answer of a wafer search without its records, which the explorer "
        f"needs; `atoll report {wafer}` draws it."
    )
    app = make_app(tmp_path)
    listed = ask_json(app, "/api/runs")
    assert [run["id"] for run in listed["runs"]] == ["a"]
    assert listed["left_out"] == [{"id": "wafer", "reason": reason}]
    assert ask_json(app, "/api/runs/wafer", 404)["error"] == reason
    assert ask_json(app, "/api/runs/b", 404)["error"] == "No run 'b'; there are a."
    monkeypatch.setattr(Explorer, "serve_forever", Explorer.close)
    monkeypatch.setattr("http.server.ThreadingHTTPServer.shutdown", lambda self: None)
    monkeypatch.setattr(sys, "argv", ["atoll", "serve", str(tmp_path), "--port", "0"])
    with pytest.raises(SystemExit) as stop:
        main()
    shown = capsys.readouterr()
    assert stop.value.code == 0
    assert shown.err == f"atoll: {reason}\n"
    assert shown.out.startswith("http://127.0.0.1:")


def test_one_broken_run_keeps_none_of_the_others(tmp_path: Path) -> None:
    write_designs(tmp_path / "good", random_designs(3))
    no_plan(tmp_path / "broken")
    newer(tmp_path / "newer")
    listed = ask_json(make_app(tmp_path), "/api/runs")
    assert [run["id"] for run in listed["runs"]] == ["good"]
    assert [other["id"] for other in listed["left_out"]] == ["broken", "newer"]
    assert "device is missing" in listed["left_out"][0]["reason"]


def test_a_folder_that_holds_no_run_keeps_none_of_the_others(tmp_path: Path) -> None:
    good = write_designs(tmp_path / "good", random_designs(3))
    app = make_app(tmp_path / "gone", empty(tmp_path / "empty"), good)
    listed = ask_json(app, "/api/runs")
    assert [run["id"] for run in listed["runs"]] == ["good"]
    assert [other["id"] for other in listed["left_out"]] == ["gone", "empty"]
    assert "no such folder" in ask_json(app, "/api/runs/gone", 404)["error"]


def test_a_sweep_is_served(tmp_path: Path) -> None:
    asked = atoll.EstimateQuestion.of(
        model="gpt2-xl", device="h100", batch=64, out=tmp_path / "sizes"
    )
    found = atoll.sweep(asked, devices=[8, 16], zero=[0, 1])
    good = write_designs(tmp_path / "good", random_designs(3))
    broken = empty(tmp_path / "broken")
    (broken / "sweep.json").write_text('{"kind": "sweep", "format": 1}')
    app = make_app(tmp_path / "sizes", good, broken)
    listed = ask_json(app, "/api/runs")
    sweep, search = listed["runs"]
    assert (sweep["kind"], sweep["axes"], sweep["questions"]) == ("sweep", ["devices", "zero"], 4)
    assert search["id"] == "good"
    assert [other["id"] for other in listed["left_out"]] == ["broken"]
    view = ask_json(app, "/api/runs/sizes/view")
    assert len(view["tables"][0]["rows"]) == 4 and view["charts"][0]["axis"] == "devices"
    assert ask_json(app, "/api/runs/sizes/sweep.json") == found.to_dict()
    assert b"Sweep of devices, zero" in ask(app, "/api/runs/sizes/report.html").body
    assert "has no whatif" in ask_json(app, "/api/runs/sizes/whatif", 404)["error"]
    refused = ask_json(app, "/api/compare?run=sizes&run=good", 400)["error"]
    assert "holds a sweep" in refused and "one answer" in refused


def newer(folder: Path) -> Path:
    write_designs(folder, random_designs(3))
    with sqlite3.connect(folder / FILE) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    return folder


def no_plan(folder: Path) -> Path:
    folder.mkdir()
    (folder / "plan.json").write_text('{"kind": "plan", "format": 3, "model": "gpt2-xl"}')
    return folder


def later_plan(folder: Path) -> Path:
    folder.mkdir()
    (folder / "plan.json").write_text('{"kind": "plan", "format": 4}')
    return folder


def broken_plan(folder: Path) -> Path:
    folder.mkdir()
    (folder / "plan.json").write_text("{")
    return folder


def empty(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: folder, "no such folder"),
        (empty, "none of search.sqlite, plan.json and sweep.json in it"),
        (write_wafer, "holds the answer of a wafer search without its records"),
        (lambda folder: write_wafer(folder / "w").parent, "/w` draws it"),
        (newer, "written by a newer atoll"),
        (no_plan, "device is missing"),
        (later_plan, "written by another version of atoll (format 4, this one reads 3)"),
        (broken_plan, "not valid JSON"),
    ],
)
def test_what_cannot_be_served_is_refused_with_exit_code_2(
    make: Callable[[Path], Path],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["atoll", "serve", str(make(tmp_path / "x")), "--port", "0"])
    with pytest.raises(SystemExit) as stop:
        main()
    shown = capsys.readouterr()
    assert stop.value.code == 2
    assert shown.out == ""
    assert words in shown.err
    assert shown.err.count("\n") == 1


def test_a_port_in_use_is_refused_with_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_designs(tmp_path / "one", random_designs(3))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        monkeypatch.setattr(sys, "argv", ["atoll", "serve", str(folder), "--port", port])
        with pytest.raises(SystemExit) as stop:
            main()
    assert stop.value.code == 2
    assert f"port: {port} is in use" in capsys.readouterr().err


def test_an_address_of_another_machine_and_no_port_are_refused(tmp_path: Path) -> None:
    folder = write_designs(tmp_path / "one", random_designs(3))
    with pytest.raises(AtollError, match=r"host: 192\.0\.2\.1 cannot be bound"):
        Explorer([folder], host="192.0.2.1", port=0)
    with pytest.raises(AtollError, match="port: expected 0 to 65535"):
        Explorer([folder], port=70_000)


def test_a_store_that_goes_away_is_told_and_the_last_picture_stays(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    with open_store(folder) as store:
        store.put_designs(random_designs(5))
        app = make_app(folder)
    (folder / FILE).unlink()
    assert ask_json(app, "/api/runs/one/summary")["count"] == 5
    assert "no search.sqlite in it" in ask_json(app, "/api/runs/one/design/1", 400)["error"]


def test_the_guard_takes_any_address_only_when_bound_to_all() -> None:
    assert Guard("192.168.1.7", 80).refuses_host("192.168.1.8:80")
    assert not Guard("192.168.1.7", 80).refuses_host("192.168.1.7:80")
    assert not Guard("0.0.0.0", 80).refuses_host("192.168.1.8:80")
    assert Guard("0.0.0.0", 80).refuses_host("evil.example:80")
