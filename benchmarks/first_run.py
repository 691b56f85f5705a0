"""What a search takes right after installation, and again: seconds, processor time, memory.

    python benchmarks/first_run.py [options of atoll search]

The first run begins with an empty cache of kernels, which a process in the background helps to
fill; the second one finds them all. The difference in processor time is what the search itself
compiles: nobody waits for the process in the background, so that its time is not counted.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time

from record import recorded


def timed(cache: str, options: list[str]) -> tuple[float, float]:
    """Seconds and processor seconds of one search and of the workers it waits for."""
    environment = {name: v for name, v in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "atoll", "search", *options],
        env=environment | {"XDG_CACHE_HOME": cache},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    wall_s = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """A first and a second run, in a cache of their own."""
    with tempfile.TemporaryDirectory() as cache:
        first_s, first_cpu_s = timed(cache, sys.argv[1:])
        second_s, second_cpu_s = timed(cache, sys.argv[1:])
    peak_GiB = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    print(f"first run    {first_s:6.1f} s, {first_cpu_s:6.1f} s of processor time")
    print(f"second run   {second_s:6.1f} s, {second_cpu_s:6.1f} s of processor time")
    print(f"compiling                {first_cpu_s - second_cpu_s:6.1f} s of processor time")
    print(f"peak memory  {peak_GiB:6.2f} GiB of the largest process")


if __name__ == "__main__":
    sys.exit(recorded(main))
