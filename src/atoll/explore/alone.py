"""What several models pay for sharing a chip: each one's own best chip beside the common one."""

from __future__ import annotations

from collections.abc import Iterator

from atoll.answers.search import Alone
from atoll.explore.finder import Finder
from atoll.explore.pricing.layouts import Setting
from atoll.explore.pricing.workloads import Variants
from atoll.explore.proof.branch_and_bound import Search
from atoll.explore.proof.exact import exact_search
from atoll.explore.proof.objective import Objective
from atoll.hardware.product import ProductSpace
from atoll.hardware.space import Space
from atoll.stopping import Stop


def alone(
    space: Space | ProductSpace,
    setting: Setting,
    variants: Variants,
    shared: list[float],
    tolerance: float,
    stop: Stop,
) -> Iterator[Alone]:
    """Each model's own best chip, one after the other; those that `stop` leaves no time for are
    left out. `shared` are the samples per second on the common chip.
    """
    for index, workload in enumerate(variants.workloads):
        search = Search(
            space,
            variants.of_workload(index),
            setting,
            Objective.single(workload.global_batch),
            tolerance,
            stop=stop,
        )
        outcome = exact_search(search)
        if outcome.stopped or outcome.best is None:
            return
        yield Alone(
            model=workload.name,
            chip=Finder(search).design(outcome.best).accelerator.describe(),
            samples_per_s=outcome.score,
            bound_samples_per_s=outcome.bound,
            shared_samples_per_s=shared[index],
        ).sharing(shared[index])
