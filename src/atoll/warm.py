"""On a first run a second process compiles the kernels that the search needs last.

Compilation is single-threaded; the first search would wait for it one kernel after another. The
helper fills the same cache on disk, in the opposite order, so that two cores share the work. If it
fails or comes late, the search compiles for itself.
"""

from __future__ import annotations

import subprocess
import sys

from atoll.kernel_cache import cache_is_fresh

_started = False


def compile_in_background() -> subprocess.Popen[bytes] | None:
    """Start the helper if this run found no compiled kernels; once in a process."""
    global _started
    if _started or not cache_is_fresh():
        return None
    _started = True
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "atoll.warm"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return None


def main() -> None:
    """Compile the placement's and the schedule's kernels on a small model and a small graph."""
    import numpy as np

    from atoll.explore.job import Job, ModelJob
    from atoll.explore.run import prepare_search
    from atoll.schedule.solve import solve
    from atoll.schedule.synthetic import backward_pass

    job = Job(models=(ModelJob("bert-large"),), microbatches=(1,), tensor_widths=(1,), devices=8)
    setting, variants = prepare_search(job)
    variant = variants.variants[0]
    problem = setting.problem(variant, 80 * 2.0**30, 1e12)
    times_s = np.ones((variant.layers, 2)), np.ones(variant.facts.rerun.shape[1])
    setting.profile.placer.place(problem, *times_s)
    solve(backward_pass(np.random.default_rng(0), 8, 8), effort="bounded", tolerance=0.0)


if __name__ == "__main__":
    main()
