"""The cost of sharing a chip: every model's best chip compared with the common one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from atoll.answers.search import ModelAlone
from atoll.base.stopping import Stop
from atoll.explore.design_builder import DesignBuilder
from atoll.explore.pricing.layouts import SearchSetting
from atoll.explore.pricing.workloads import Variants
from atoll.explore.proof.branch_and_bound import Search
from atoll.explore.proof.exact import exact_search
from atoll.explore.proof.journal import Journal
from atoll.explore.proof.objective import Objective
from atoll.hardware.product_space import ProductSpace
from atoll.hardware.space import DesignSpace


def best_chip_per_model(
    space: DesignSpace | ProductSpace, setting: SearchSetting, variants: Variants, tolerance: float,
    shared: list[float], journal: Journal, stop: Stop,
) -> tuple[ModelAlone, ...]:  # fmt: skip
    """Return every model's best chip, on record or searched until `stop`; `shared` are the models'
    samples per second on the common chip.
    """
    note = journal.note("alone")
    if note is not None:
        stored = zip(note, shared, strict=True)
        return tuple(ModelAlone(**fields).sharing(samples) for fields, samples in stored)
    chips = tuple(_search_per_model(space, setting, variants, tolerance, shared, stop))
    if len(chips) == len(shared):
        journal.put_note("alone", [asdict(chip) for chip in chips])
    return chips


def _search_per_model(
    space: DesignSpace | ProductSpace, setting: SearchSetting, variants: Variants, tolerance: float,
    shared: list[float], stop: Stop,
) -> Iterator[ModelAlone]:  # fmt: skip
    for index, workload in enumerate(variants.workloads):
        part, objective = variants.of_workload(index), Objective.single(workload.global_batch)
        search = Search(space, part, setting, objective, tolerance, stop=stop)
        outcome = exact_search(search)
        if outcome.stopped or outcome.best is None:
            return
        yield ModelAlone(
            model=workload.name,
            chip=DesignBuilder(search).design(outcome.best).accelerator.describe(),
            samples_per_s=outcome.score,
            bound_samples_per_s=outcome.bound,
            shared_samples_per_s=shared[index],
        ).sharing(shared[index])
