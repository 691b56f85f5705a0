"""Compiles the kernels before tests run in several processes, which would each compile all of them.

`python tests/kernels.py` compiles what the cache lacks, chips and wafers at once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from atoll.base.kernel_cache import use_kernel_cache

LAST = {
    "search-flat-network": "branch_kernels.branch",
    "wafer-one-stage": "price_kernels.path_cost",
    "place-one-microbatch": "table_kernels._place",
}
"""Small questions, and the last kernel that each compiles."""


def compile_missing() -> None:
    use_kernel_cache()
    folder = Path(os.environ.get("NUMBA_CACHE_DIR", "."))
    missing = [name for name, last in LAST.items() if not any(folder.rglob(f"{last}-*.nbi"))]
    started = [subprocess.Popen([sys.executable, __file__, name]) for name in missing]
    for process in started:
        process.wait()  # if it failed, the tests say why


if __name__ == "__main__":
    if sys.argv[1:]:
        from contract.questions import QUESTIONS

        for question in sys.argv[1:]:
            QUESTIONS[question]()
    else:
        compile_missing()
