"""HBM's bandwidth is shared at every instant of a schedule."""

from __future__ import annotations

import numpy as np
import pytest
from tiny import drawn_job

from atoll.cost.chips import chips_of_space
from atoll.cost.table_kernels import PAIR, TENSOR
from atoll.explore.pricing.evaluate import PricedChips
from atoll.profiles import DEFAULT, PHAZE
from atoll.schedule.solve import Effort
from oracles.schedule_check import check


def moved_bytes(priced: PricedChips, chip: int, index: int, option: tuple[int, ...]) -> np.ndarray:
    """HBM bytes of each operator of a pass in the options chosen, from the cost table."""
    arrays, costs = priced.passes.arrays, priced.costs
    rows = arrays.op[arrays.ptr[index] : arrays.ptr[index + 1]]
    return np.array(
        [
            costs.hbm_bytes[row, costs.tensor_config[chip, o]]
            if costs.kind[row] in (TENSOR, PAIR)
            else costs.bytes[row]
            for row, o in zip(rows, option, strict=True)
        ]
    )


@pytest.mark.parametrize("effort", ["quick", "linear", "bounded"])
@pytest.mark.parametrize("seed", [1, 3, 7, 10])
def test_operators_that_run_together_draw_no_more_than_hbm_has(seed: int, effort: Effort) -> None:
    job = drawn_job(seed, 4, DEFAULT)
    priced = PricedChips.of(chips_of_space(job.space, DEFAULT), job.variants, job.setting)
    for chip in range(len(priced.chips)):
        hbm_Bps = float(priced.chips.hbm_Bps[chip])
        for variant in job.variants.variants:
            solved = priced.schedules(chip, variant, effort, 1e-3)
            for index, schedule in enumerate(solved):
                number = 2 * variant.first_layer + index
                problem = priced.problem(chip, number)
                check(problem, schedule)
                bytes_ = moved_bytes(priced, chip, number, schedule.option)
                start = np.array(schedule.start_s)
                spent = problem.duration_s[np.arange(len(start)), schedule.option]
                slack = 1e-9 * schedule.makespan_s
                for now in start + slack:
                    runs = (start <= now) & (now < start + spent - slack)
                    assert (bytes_[runs] / spent[runs]).sum() <= hbm_Bps * (1 + 2e-9)
                assert bytes_.sum() <= hbm_Bps * schedule.makespan_s * (1 + 2e-9)


def test_phaze_knows_no_such_resource() -> None:
    job = drawn_job(1, 4, PHAZE)
    priced = PricedChips.of(chips_of_space(job.space, PHAZE), job.variants, job.setting)
    for index in range(2 * len(job.variants.passes.layers)):
        assert (priced.problem(0, index).demand[:, :, 2] == 0.0).all()
