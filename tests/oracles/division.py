"""What a given division costs, in plain Python: the default profile's rules a second time, stage by
stage and without prefix sums, bounds or labels. The compiled search is tested against it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from atoll.placement.chain_kernels import Chain, System

FloatArray = NDArray[np.float64]


def step_time_of(chain: Chain, system: System, starts: Sequence[int], data: int) -> float:
    """Seconds of a step with stages that begin at these layers; infinite if it does not fit.

    It does not fit with more devices than there are, with replicas that do not divide the batch's
    microbatches, or with a stage that exceeds its memory with every mixture of recomputation
    choices.
    """
    pipeline = len(starts)
    if not 1 <= data <= system.microbatches or system.microbatches % data:
        return math.inf
    if pipeline * data * system.tensor > system.devices:
        return math.inf
    rounds = system.microbatches // data
    cut_s = system.cut_s[system.cut_kind[data, pipeline]]
    loads_s = []
    tails_s = []
    for number, (first, last) in enumerate(
        zip(starts, (*starts[1:], len(chain.time_s)), strict=True)
    ):
        in_flight = min(pipeline - number, rounds)
        again_s = _least_recompute_s(chain, system, first, last, in_flight, data)
        if again_s == math.inf:
            return math.inf
        transfers_s = _transfers_s(chain, cut_s, first, last)
        loads_s.append(sum(chain.time_s[first:last]) + again_s + transfers_s)
        tails_s.append(_tail_s(system, _parameters(chain, first, last), data))
    return float((rounds - 1) * max(loads_s) + sum(loads_s) + max(tails_s))


def _parameters(chain: Chain, first: int, last: int) -> float:
    """Tied tables count once where one stage holds all layers."""
    whole = (first, last) == (0, len(chain.time_s))
    return float(sum(chain.parameters[first:last])) - (chain.shared if whole else 0.0)


def _least_recompute_s(
    chain: Chain, system: System, first: int, last: int, in_flight: int, data: int
) -> float:
    """Least seconds of recomputation over all mixtures that fit; infinite if none does."""
    own = range(first, last)
    blocks = [int(chain.block[i]) for i in own if chain.block[i] >= 0]
    resident_bytes = (
        system.state_bytes[data] * _parameters(chain, first, last)
        + in_flight * sum(chain.saved_bytes[i] for i in own if chain.block[i] < 0)
        + 2.0 * chain.boundary_bytes[first]
    )
    fitting_s = [
        sum(chain.extra_s[level, kind] for kind, level in mixture)
        for mixture in _mixtures(chain, blocks)
        if resident_bytes
        + in_flight * sum(chain.kept_bytes[level, kind] for kind, level in mixture)
        + _rebuilt_bytes(chain, mixture)
        <= system.memory_bytes
    ]
    return min(fitting_s, default=math.inf)


def _mixtures(chain: Chain, blocks: Sequence[int]) -> Iterator[list[tuple[int, int]]]:
    """A level for each of the blocks, given by their kinds: the same for all, or the next one for
    some of those that keep more there.
    """
    levels = len(chain.kept_bytes)
    for level in range(levels):
        yield [(kind, level) for kind in blocks]
        if level + 1 == levels:
            break
        raised = chain.raised[level + 1]
        for more in range(1, blocks.count(raised)):
            left = more
            mixture = []
            for kind in blocks:
                higher = kind == raised and left > 0
                left -= higher
                mixture.append((kind, level + higher))
            yield mixture


def _rebuilt_bytes(chain: Chain, mixture: Sequence[tuple[int, int]]) -> float:
    """Dropped activations of one block, the one that drops the most: blocks take turns."""
    all_bytes = chain.kept_bytes[-1] + chain.rebuilt_bytes
    return max((float(all_bytes[k] - chain.kept_bytes[i, k]) for k, i in mixture), default=0.0)


def _transfers_s(chain: Chain, cut_s: FloatArray, first: int, last: int) -> float:
    """A stage receives activations from the stage before and gradients from the one after."""
    return sum(float(cut_s[edge]) for edge in (first, last) if 0 < edge < len(chain.time_s))


def _tail_s(system: System, parameters: float, data: int) -> float:
    """Gradients summed at the pace of the slowest level, the optimizer, weights gathered."""
    total_s = float(system.optimizer_s[data]) * parameters
    wires = (
        system.reduce_bytes, system.reduce_s, system.reduce_tree_s, system.reduce_s_per_byte,
        system.reduce_steps,
    )  # fmt: skip
    for each, fixed_s, tree_s, slopes, steps in zip(*wires, strict=True):
        full_s = slopes[data] * each * parameters
        wires_s = (
            full / np.interp(np.log(max(full, 1e-9) / n), np.log(known_s), shares)
            for full, n, known_s, shares in zip(
                full_s, steps[data], system.share_s, system.share, strict=True
            )
        )
        sent_s = max(wires_s)
        total_s += float(min(fixed_s[data] + sent_s, tree_s[data] + sent_s / 0.75))
    return total_s
