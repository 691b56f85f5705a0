"""A client that means harm: the explorer stays up, answers others, and grows within bounds."""

from __future__ import annotations

import json
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from atoll.serve import server
from atoll.serve.server import Explorer
from serve.serve_runs import random_designs, write_designs

SLOW = 200


@pytest.fixture(scope="module")
def explorer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Explorer]:
    folder = write_designs(tmp_path_factory.mktemp("runs") / "run", random_designs(50))
    found = Explorer([folder], port=0)
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    yield found
    found.close()
    thread.join()


def answers(explorer: Explorer) -> bool:
    with urllib.request.urlopen(f"{explorer.address}api/runs", timeout=120) as found:
        return bool(json.load(found)["runs"])


def connected(explorer: Explorer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", explorer.port), timeout=120)


def test_slow_connections_keep_nobody_out_and_are_bounded(explorer: Explorer) -> None:
    before = threading.active_count()
    with ExitStack() as stack:
        for _ in range(SLOW):
            slow = stack.enter_context(connected(explorer))
            slow.sendall(b"GET /api/runs HT")
        assert all(answers(explorer) for _ in range(20))
        assert len(explorer._server._open) <= server.MOST_CONNECTIONS
        assert threading.active_count() - before <= server.MOST_CONNECTIONS + 16


def test_clients_that_never_read_their_answer_keep_nobody_out(explorer: Explorer) -> None:
    with ExitStack() as stack:
        for _ in range(SLOW):
            deaf = stack.enter_context(connected(explorer))
            deaf.sendall(b"GET /api/runs HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)
        assert answers(explorer)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64,
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 5_000 + b"\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"y" * 70_000 + b"\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\r\n",
        b"POST /api/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\nx",
        b"GET /api/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"GET /api/runs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /../../../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /api/runs/%2e%2e%2f%2e%2e/summary HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /api/runs/\x00\xff/summary HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /api/runs/run/table?limit=1e999&area_mm2=..&area_mm2=nan..inf HTTP/1.1\r\n"
        b"Host: localhost\r\n\r\n",
        b"GET /api/runs HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"\r\n" * 1_000,
    ],
)
def test_whatever_is_sent_is_refused_without_a_word_of_our_insides(
    explorer: Explorer, sent: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with connected(explorer) as client:
        found = b""
        try:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            while piece := client.recv(65_536):
                found += piece
        except OSError:
            pass  # it closed without having read all that we sent
    assert b"root:" not in found
    assert b"Traceback" not in found
    assert b" 500 " not in found.partition(b"\r\n")[0]
    assert "Traceback" not in capfd.readouterr().err
    assert answers(explorer)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ("GET /api/runs HTTP/1.1\r\nHost: localhost:²\r\n\r\n", 421),
        (f"GET /api/runs HTTP/1.1\r\nHost: localhost:{'9' * 5_000}\r\n\r\n", 421),
        ("GET /api/runs HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400),
        ("GET http://[ HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (f"GET /api/runs/run/design/{'9' * 20} HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (f"POST /api/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
         f"Content-Length: {'9' * 5_000}\r\n\r\n", 400),
        ("GET /api/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n", 400),
        ("GET /api/runs HTTP/1.1\r\nHost: localhost\r\n: x\r\n\r\n", 400),
        (f"GET / HTTP/{'1' * 5_000}.1\r\nHost: localhost\r\n\r\n", 400),
        ("BREW / HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
    ],
)  # fmt: skip
def test_malformed_requests_get_a_status_and_a_sentence(
    explorer: Explorer, sent: str, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with connected(explorer) as client:
        client.sendall(sent.encode("latin-1"))
        client.shutdown(socket.SHUT_WR)
        reply = b"".join(iter(lambda: client.recv(65_536), b""))
    assert reply.startswith(f"HTTP/1.1 {status} ".encode())
    assert json.loads(reply.partition(b"\r\n\r\n")[2])["error"].endswith(".")
    assert "Traceback" not in capfd.readouterr().err


def test_a_body_is_not_waited_for_from_other_hosts(explorer: Explorer) -> None:
    with connected(explorer) as client:
        client.sendall(b"POST /api/check HTTP/1.1\r\nHost: evil\r\nContent-Length: 9\r\n\r\n")
        assert client.recv(65_536).startswith(b"HTTP/1.1 421 ")
