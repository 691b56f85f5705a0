"""Designs to compare with, evaluated by the same code as everything else.

tpuv4-expert   the TPU v4-like chip with the placement that experts use
tpuv4-placed   the same chip with our placement
spotlight      a Bayesian search of the chip for one device alone, then our placement
random         the best of randomly drawn chips, with our placement
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from atoll.explore.branch_and_bound import Outcome, Search
from atoll.explore.evaluate import Priced
from atoll.explore.layouts import Setting
from atoll.explore.objective import Objective
from atoll.explore.spotlight import spotlight_chip
from atoll.explore.workloads import Variant, Variants
from atoll.hardware import (
    Accelerator,
    ProductSpace,
    Space,
    accelerator_area_mm2,
    load_accelerator,
)
from atoll.placement.chain import make_chain
from atoll.placement.fixed import fixed_division, fixed_flat

RANDOM_CHIPS = 64
REFERENCE = "phaze-tpuv4"

# (pipeline, tensor) of PHAZE's expert baselines on 1024 devices (ICML 2024 release).
EXPERT = {
    "opt-350m": (12, 1),
    "bert-large": (8, 1),
    "gpt2-xl": (32, 1),
    "megatron-bert": (8, 1),
    "megatron-gpt2-2.5b": (8, 4),
    "megatron-gpt2-8.3b": (8, 8),
    "gpt3-175b": (32, 4),
    "llama2-7b": (8, 1),
}


def space_of(chip: Accelerator, like: Space | ProductSpace) -> Space:
    """A space of this one chip, with the HBM options of another space."""
    return Space(
        name=chip.name or "chip",
        tensor_cores=np.array([chip.tensor_cores]),
        vector_cores=np.array([chip.vector_cores]),
        width=np.array([chip.width]),
        depth=np.array([chip.depth]),
        vector_width=np.array([chip.vector_width]),
        glb_bytes=np.array([chip.glb_bytes]),
        glb_bandwidth_Bpc=np.array([chip.glb_bandwidth_Bpc]),
        clock_Hz=np.array([chip.clock_Hz]),
        area_mm2=np.array([accelerator_area_mm2(replace(chip, hbm=like.hbm_options[0]))]),
        hbm_options=like.hbm_options,
        hbm_allowed=np.ones((1, len(like.hbm_options)), np.bool_),
    )


def reference_space(like: Space | ProductSpace) -> Space:
    """The TPU v4-like chip, with the same choice of HBM as the space at hand."""
    return space_of(load_accelerator(REFERENCE), like)


def run_baselines(
    space: Space, variants: Variants, setting: Setting, objective: Objective, seed: int
) -> Mapping[str, float | None]:
    """Scores by name; None where the model does not fit."""
    reference = reference_space(space)

    def best_of(candidates: Space) -> float | None:
        outcome = Search(candidates, variants, setting, objective, tolerance=1e-3).run()
        return score_of(outcome)

    drawn = np.random.default_rng(seed).choice(
        len(space), size=min(RANDOM_CHIPS, len(space)), replace=False
    )
    spotlight = spotlight_chip(space, variants, setting, seed)
    return {
        "tpuv4-expert": _expert(reference, variants, setting, objective),
        "tpuv4-placed": best_of(reference),
        "spotlight": best_of(space.subset([spotlight])),
        "random": best_of(space.subset(np.sort(drawn))),
    }


def score_of(outcome: Outcome) -> float | None:
    return None if outcome.best is None else outcome.score


def _expert(
    reference: Space, variants: Variants, setting: Setting, objective: Objective
) -> float | None:
    """The expert's layout of every model on the reference chip."""
    priced = Priced.of(
        Search(reference, variants, setting, objective, tolerance=1e-3).frontier.chips,
        variants,
        setting,
    )
    times = []
    for index, workload in enumerate(variants.workloads):
        own = [variants.variants[v] for v in variants.of(index)]
        wanted = EXPERT.get(workload.name)
        step = _expert_step(priced, variants, own, wanted, setting)
        if step is None:
            return None
        times.append(step)
    return float(objective.scores(np.array([times]))[0])


def _expert_step(
    priced: Priced,
    variants: Variants,
    own: list[Variant],
    wanted: tuple[int, int] | None,
    setting: Setting,
) -> float | None:
    """The best microbatch for the expert's pipeline and tensor width.

    Models without a published layout follow Narayanan et al. (SC 2021): the narrowest tensor width
    inside a node, then the shortest pipeline, that fits.
    """
    ordered = sorted({variant.tensor for variant in own})
    if wanted is not None:
        choices = [(wanted[1], wanted[0])]
    else:
        depth = max(repeat for _, repeat in own[0].model.layers)
        choices = [(t, p) for t in ordered for p in range(1, depth + 1) if depth % p == 0]
    for tensor, pipeline in choices:
        steps = []
        for variant in own:
            if variant.tensor == tensor:
                step = _layout_step(priced, variants, variant, pipeline, setting)
                if step is not None:
                    steps.append(step)
        if steps:
            return min(steps)
    return None


def _layout_step(
    priced: Priced, variants: Variants, variant: Variant, pipeline: int, setting: Setting
) -> float | None:
    data = setting.devices // (pipeline * variant.tensor)
    if data < 1:
        return None
    data = min(data, variant.microbatches)
    number = variants.variants.index(variant)
    _, upper = priced.schedule_bounds(np.zeros(1, np.int64), np.array([number]))
    times = upper[0][: variant.layers]
    memory = float(priced.chips.hbm_capacity_bytes[0])
    if setting.profile.whole_stage_recompute:
        flat = fixed_flat(
            variant.facts,
            times[:, 0],
            times[:, 1],
            setting.network,
            devices=setting.devices,
            tensor=variant.tensor,
            pipeline=pipeline,
            data=data,
            microbatches=variant.microbatches,
            memory_bytes=memory,
            optimizer=setting.optimizer.name,
            recompute=setting.recompute,
        )
        return None if flat is None else flat.step_time_s
    chain = make_chain(variant.facts, times.sum(axis=1), priced.operators_s(0, variant))
    system = setting.system(variant, memory, float(priced.chips.hbm_Bps[0]))
    division = fixed_division(chain, system, pipeline=pipeline, data=data)
    return None if division is None else division.step_time_s
