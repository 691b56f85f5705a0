"""What `kernel_cache.compile_in_background` runs: the kernels that a search needs last."""

from __future__ import annotations

import numpy as np

from atoll.explore.pricing.evaluate import times_of
from atoll.explore.run import prepare_search
from atoll.questions import SearchQuestion
from atoll.schedule.solve import solve
from atoll.schedule.synthetic import backward_pass


def main() -> None:
    """Compile the placement's and the schedule's kernels on a small model and a small graph."""
    job = SearchQuestion.of(model="bert-large", microbatch=1, tp=1, devices=8)
    setting, variants = prepare_search(job)
    variant = variants.variants[0]
    problem = setting.problem(variant, 80 * 2.0**30, 1e12)
    passes = np.ones((len(variant.passes), 2))
    setting.place(problem, times_of(variant, passes, np.ones(variant.facts.rerun.shape[1])))
    solve(backward_pass(np.random.default_rng(0), 8, 8), effort="bounded", tolerance=0.0)


if __name__ == "__main__":
    main()
