"""Random searches beside trying everything: is any proof refuted, is any bound above a step?

    python benchmarks/search_proof.py [--jobs 100] [--chips 200] [--seed 0] [--tolerance 0.01]

Models of the zoo cut to a few blocks, on random chips of PHAZE's space with slow to fast HBM and
links, few to many microbatches; every second job has tensor widths above 1 only. Each job is
searched, and every chip is evaluated with every variant. Prints a line for each refuted job, then
how many there were, and by how much the worst bound exceeded what exists; exits with 1 if any did.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, replace

import numpy as np

from atoll.base.stopping import Stop
from atoll.cost.chips import Chips, chips_of_space
from atoll.explore.pricing.bounds import chip_rates, roofline_bounds
from atoll.explore.pricing.evaluate import PricedChips
from atoll.explore.pricing.layouts import SearchSetting
from atoll.explore.pricing.workloads import Variants, Workload, make_variants
from atoll.explore.proof.bound_checks import ROUNDING
from atoll.explore.proof.branch_and_bound import Search
from atoll.explore.proof.exact import exact_search
from atoll.explore.proof.objective import Objective
from atoll.hardware.accelerator import GIB, Hbm
from atoll.hardware.catalog import load_network
from atoll.hardware.product_space import phaze_space
from atoll.hardware.space import DesignSpace
from atoll.profiles import DEFAULT
from atoll.step.states import load_states
from atoll.workload import load_config
from record import recorded

MODELS = (
    "bert-large", "llama2-7b", "vit-l16", "mixtral-8x7b", "opt-350m", "t5-large",
    "megatron-bert",
    "qwen3-30b-a3b", "llama3-8b", "roberta-large",
)  # fmt: skip
LIMIT_S = 30.0
"""Of one search; the bound that it then states is held against the truth as well."""


@dataclass(frozen=True)
class RandomJob:
    model: str
    space: DesignSpace
    variants: Variants
    setting: SearchSetting
    batch: int

    def __str__(self) -> str:
        widths = sorted({variant.tp for variant in self.variants.variants})
        speeds = ", ".join(f"{hbm.bandwidth_Bps / 1e9:.0f}" for hbm in self.space.hbm_options)
        return (
            f"{self.model}, {self.setting.devices} devices, batch {self.batch}, tensor widths "
            f"{widths}, HBM of {speeds} GB/s"
        )


def draw(number: int, chips: int, rng: np.random.Generator) -> RandomJob:
    model = str(rng.choice(MODELS))
    config = load_config(model)
    blocks = int(rng.integers(2, 5))
    encoder = 1 if config.encoder_layers else 0
    config = replace(config, layers=blocks, encoder_layers=encoder)
    longest = int(rng.choice([256, 512, 1024]))
    sequence = config.sequence if model.startswith("vit") else min(config.sequence, longest)
    devices = int(rng.choice([8, 12, 16, 64]))
    batch = int(rng.choice([8, 16, 64, 256]))
    microbatches = ((8,), (1, 2), (2, 8), (1, 4))[int(rng.integers(4))]
    widths = ((2,), (2, 4), (4, 8), (2, 4, 8))[int(rng.integers(4))] if number % 2 else (1,)
    workload = Workload(model, config, sequence, batch)
    variants = make_variants([workload], microbatches, widths, devices, "optimal", DEFAULT)
    network = load_network(DEFAULT.network)
    levels = tuple(
        replace(level, bandwidth_Bps=level.bandwidth_Bps * 10 ** rng.uniform(-0.5, 1.0))
        for level in network.levels
    )
    setting = SearchSetting(
        network=replace(network, levels=levels),
        profile=DEFAULT,
        states=load_states("adam"),
        devices=devices,
        recompute="optimal",
    )
    whole = phaze_space()
    chosen = np.sort(rng.choice(len(whole), chips, replace=False))
    speeds = 10 ** rng.uniform(np.log10(150e9), np.log10(4e12), int(rng.integers(1, 3)))
    memory = int(rng.choice([2, 8, 80])) * GIB
    options = tuple(Hbm(memory, float(speed)) for speed in np.sort(speeds))
    space = replace(
        whole.subset(chosen),
        hbm_options=options,
        hbm_allowed=np.ones((chips, len(options)), np.bool_),
    )
    return RandomJob(model, space, variants, setting, batch)


def everything(job: RandomJob, chips: Chips) -> tuple[float, float]:
    """The least step of all chips and variants, and the worst excess of a bound over a step."""
    priced = PricedChips.of(chips, job.variants, job.setting)
    rates, memory_bytes = chip_rates(chips), float(chips.hbm_capacity_bytes.max())
    layouts, roofline = roofline_bounds(rates, memory_bytes, job.variants, job.setting, priced.work)
    count = len(job.variants.variants)
    chip, variant = np.repeat(np.arange(len(chips)), count), np.tile(np.arange(count), len(chips))
    lower, upper = priced.schedule_bounds(chip, variant)
    bound = np.maximum(roofline.ravel(), layouts.step_s(lower, variant))
    least, excess = np.inf, -np.inf
    for node in range(len(chip)):
        own = job.variants.variants[variant[node]]
        placed = priced.place(int(chip[node]), own, upper[node])
        if placed is not None:
            least = min(least, placed.step_time_s)
            excess = max(excess, bound[node] / placed.step_time_s - 1.0)
    return least, excess


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--chips", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tolerance", type=float, default=0.01)
    given = parser.parse_args()
    refuted = unproven = impossible = nodes = 0
    worst_excess = worst_miss = -np.inf
    began = time.perf_counter()
    for number in range(given.jobs):
        job = draw(number, given.chips, np.random.default_rng([given.seed, number]))
        chips = chips_of_space(job.space, DEFAULT)
        least_s, excess = everything(job, chips)
        nodes += len(chips) * len(job.variants.variants)
        objective = Objective.single(job.batch)
        inputs = job.space, job.variants, job.setting, objective, given.tolerance
        search = Search(*inputs, stop=Stop(LIMIT_S))
        outcome = exact_search(search)
        if not np.isfinite(least_s):
            impossible += 1
            refuted += outcome.best is not None
            continue
        truth = job.batch / least_s
        proven = outcome.gap <= given.tolerance
        unproven += not proven
        missed = truth * (1.0 - given.tolerance) > outcome.score * (1.0 + ROUNDING)
        false = truth > outcome.bound * (1.0 + ROUNDING) or excess > ROUNDING
        worst_excess = max(worst_excess, excess)
        worst_miss = max(worst_miss, truth / outcome.bound - 1.0)
        if (proven and missed) or false:
            refuted += 1
            print(
                f"REFUTED {number}: {job}: {truth:,.1f} samples/s exist, {outcome.score:,.1f} "
                f"found, {outcome.bound:,.1f} bound; a bound exceeds its step by {excess:.2%}",
                flush=True,
            )
    print(
        f"{refuted} of {given.jobs} jobs refuted ({nodes:,} nodes tried, {impossible} jobs do not "
        f"fit, {unproven} stopped before their proof), {time.perf_counter() - began:.0f} s; bound "
        f"over step at most {worst_excess:+.1e}, best design over the search's bound at most "
        f"{worst_miss:+.1e}"
    )
    return int(refuted > 0)


if __name__ == "__main__":
    sys.exit(recorded(main))
