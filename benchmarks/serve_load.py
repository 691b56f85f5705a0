"""The explorer under load: clients that ask without pause, beside connections that only wait.

    python benchmarks/serve_load.py [--designs 29360] [--clients 50] [--slow 200] [--seconds 60]

Serves synthetic designs (those of serve_million.py) from a process of its own. Slow connections
send one byte of a request each second. Clients ask for tables, summaries, scatter plots and the
list of runs, each with a filter that nobody asked for before. Prints answers, errors, quantiles of
their times, and the server's threads and memory before and at the end.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from record import figure, recorded
from serve_million import fill

SERVE = (
    "import sys; from pathlib import Path; from atoll.serve.server import Explorer; "
    "e = Explorer([Path(sys.argv[1])], port=0); print(e.port, flush=True); e.serve_forever()"
)


def memory_MiB(process: int) -> float:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def threads(process: int) -> int:
    return len(list(Path(f"/proc/{process}/task").iterdir()))


def target(draw: random.Random) -> str:
    what = draw.choice(("table", "summary", "scatter", "scatter?x=power_W", ""))
    if not what:
        return "/api/runs"
    area = f"area_mm2=..{draw.uniform(50, 300):.3f}"
    return f"/api/runs/designs/{what}{'&' if '?' in what else '?'}{area}"


def client(port: int, seed: int, until: float, times: list[float], errors: list[str]) -> None:
    draw = random.Random(seed)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    while time.monotonic() < until:
        began = time.monotonic()
        try:
            connection.request("GET", target(draw))
            answer = connection.getresponse()
            answer.read()
            times.append(time.monotonic() - began)
            if answer.status != 200:
                errors.append(str(answer.status))
        except (OSError, http.client.HTTPException) as error:
            errors.append(type(error).__name__)
            connection.close()


def wait_slowly(port: int, count: int, until: float) -> None:
    """Each sends one byte a second; one that was closed comes again."""
    held: list[socket.socket] = []
    while time.monotonic() < until:
        while len(held) < count:
            held.append(socket.create_connection(("127.0.0.1", port), timeout=10))
        for connection in list(held):
            try:
                connection.sendall(b"G")
            except OSError:
                held.remove(connection)
        time.sleep(1.0)
    for connection in held:
        connection.close()


def ready(port: int, designs: int) -> bool:
    """Whether the explorer has read all designs."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", "/api/runs")
        return bool(json.load(connection.getresponse())["runs"][0]["loaded"] == designs)
    finally:
        connection.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--designs", type=int, default=29_360)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--slow", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "designs"
        fill(folder, given.designs)
        with subprocess.Popen(
            [sys.executable, "-c", SERVE, str(folder)], stdout=subprocess.PIPE, text=True
        ) as server:
            try:
                assert server.stdout is not None
                port = int(server.stdout.readline())
                while not ready(port, given.designs):
                    time.sleep(0.2)
                client(port, -1, time.monotonic() + 3.0, [], [])  # compiled from here on
                return load(server.pid, port, given)
            finally:
                server.kill()


def load(server: int, port: int, given: argparse.Namespace) -> int:
    before = memory_MiB(server), threads(server)
    times: list[float] = []
    errors: list[str] = []
    until = time.monotonic() + given.seconds
    working = [
        threading.Thread(target=client, args=(port, number, until, times, errors))
        for number in range(given.clients)
    ]
    working.append(threading.Thread(target=wait_slowly, args=(port, given.slow, until)))
    for thread in working:
        thread.start()
    most = before
    while time.monotonic() < until:
        most = max(most[0], memory_MiB(server)), max(most[1], threads(server))
        time.sleep(0.25)
    for thread in working:
        thread.join()
    cuts = statistics.quantiles(times, n=100)
    print("| clients | slow | answers | errors | median ms | p99 ms | slowest ms | MiB | threads |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    shown = (cuts[49], cuts[98], max(times))
    print(
        f"| {given.clients} | {given.slow} | {len(times):,} | {len(errors)} | "
        + " | ".join(f"{1e3 * value:,.0f}" for value in shown)
        + f" | {before[0]:.0f} to {most[0]:.0f} | {before[1]} to {most[1]} |"
    )
    for word in sorted(set(errors)):
        print(f"{word}: {errors.count(word)}")
    figure("p99 ms", 1e3 * cuts[98])
    figure("errors", len(errors))
    figure("answers per s", len(times) / given.seconds)
    return int(bool(errors))


if __name__ == "__main__":
    sys.exit(recorded(main))
