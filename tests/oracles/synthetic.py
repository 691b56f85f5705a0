"""Generated passes that look like a transformer layer's.

A backward pass is a chain of data gradients and vector operators; beside most data gradients hangs
the weight gradient of the same matrix product, ready at the same time and needed by nobody.
"""

from __future__ import annotations

from math import ceil, log2

import numpy as np

from atoll.schedule.problem import RESOURCES, ScheduleProblem

TENSOR, VECTOR, HBM, GLB, SLOT, _ = range(len(RESOURCES))

LOSS = 0.06
"""Share of a core's speed that every doubling of the cores of an operator costs."""


def core_counts(cores: int) -> list[int]:
    """1, 2, 4, ... and all cores."""
    counts = [1 << k for k in range(cores.bit_length()) if 1 << k < cores]
    return [*counts, cores]


def backward_pass(
    rng: np.random.Generator,
    chain: int,
    tensor_cores: int,
    *,
    quantised: bool = False,
    slots: int = 2,
) -> ScheduleProblem:
    """A backward pass with `chain` operators on its main chain.

    Durations on k cores are base / k (1 + 0.06 log2 k) or, if quantised, base / tiles x
    ceil(tiles / k); or the time for the operator's bytes, if longer. Demands of HBM and GLB
    bandwidth follow from the bytes.
    """
    base_s: list[float] = []
    tensor: list[bool] = []
    predecessors: list[tuple[int, ...]] = []

    def add(seconds: float, is_tensor: bool, before: tuple[int, ...]) -> tuple[int]:
        base_s.append(seconds)
        tensor.append(is_tensor)
        predecessors.append(before)
        return (len(base_s) - 1,)

    vector_share = rng.uniform(0.02, 0.25)
    last: tuple[int, ...] = ()
    for step in range(chain):
        before = last
        if step > 0 and rng.random() < 0.35:
            last = add(vector_share * 10 ** rng.uniform(-0.3, 0.3), False, before)
            continue
        seconds = 10 ** rng.uniform(-0.6, 0.0)
        last = add(seconds, True, before)
        if rng.random() < 0.85:
            other = 1.0 if rng.random() < 0.7 else 10 ** rng.uniform(-0.2, 0.2)
            add(seconds * other, True, before)

    n = len(base_s)
    vector_cores = max(1, tensor_cores // int(rng.choice([1, 2, 4])))
    counts = core_counts(tensor_cores)
    duration = np.full((n, len(counts)), np.inf)
    demand = np.zeros((n, len(counts), len(RESOURCES)))
    for j in range(n):
        tiles = int(10 ** rng.uniform(1.5, 4.0))
        memory_s = base_s[j] / tensor_cores * (rng.uniform(0.05, 0.8) if tensor[j] else 0.9)
        buffer_share = rng.uniform(0.1, 0.9)
        for o, cores in enumerate(counts):
            if not tensor[j] and cores > vector_cores:
                continue
            if not tensor[j]:
                compute_s = base_s[j] / tensor_cores * vector_cores / cores
            elif quantised:
                compute_s = base_s[j] / tiles * ceil(tiles / cores)
            else:
                compute_s = base_s[j] / cores * (1.0 + LOSS * log2(cores))
            duration[j, o] = max(compute_s, memory_s)
            demand[j, o, HBM] = memory_s / duration[j, o]
            demand[j, o, TENSOR if tensor[j] else VECTOR] = cores
            if tensor[j]:
                demand[j, o, GLB] = buffer_share * compute_s / duration[j, o] * cores / tensor_cores
                demand[j, o, SLOT] = 1.0
    capacity = np.array([tensor_cores, vector_cores, 1.0, 1.0, slots, 1.0])
    return ScheduleProblem(1e-3 * duration, demand, capacity, tuple(predecessors))
