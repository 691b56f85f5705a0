"""What a pipeline order costs beyond its slowest stage's work, and what each stage holds: formulas.

With p stages, M microbatches, and per chunk a forward pass f, a data gradient b and a weight
gradient w, w <= f <= b (recomputation belongs to b), equal stages take M loads and the bubble

    1f1b, gpipe    (p - 1) (f + b + w)
    interleaved    (p - 1 + (v - 1) max(0, p - M)) (f + b + w)               v chunks a stage
    zb-h1          (p - 1) (f + b) - min(M - 1, p - 1) w
    zb-h2          (p - 1) (f + b) - min(M - 1, 2 p - 2) w, at least 0
    zb-v           2 max(0, p - M) f + max(2 (p - 1) b - 2 k w, (2 (p - 1) - k) b - (p - 1 - k) w),
                   k = min(max(0, M - p), p - 1)
    dualpipe       M <= p: (p - M) f + (p - 2) b;  M > p: max(h (f + b), 2 h b - f)
                   - max(0, h - max(0, 2 p - M)) w,  h = p / 2 - 1

Each equals the replay (tests/step). Under zb-h2 stages do not wait for each other at the end of a
step (its authors' optimizer validates afterwards): a step is the time from the first to the last
pass of one stage; under the others it ends with the last pass of all.

Unequal stages: the slowest is busy all the time, and every other adds its own part, with no more of
its weight pass than the slowest stage's takes. Stages within 20 % of each other: at most 9 % below
the replay and 18 % above it.
"""

from __future__ import annotations

from collections.abc import Sequence

from atoll.step.orders import groups
from atoll.step.replay import PassTime


def bubble_s(
    order: str, stages: Sequence[PassTime], microbatches: int, vpp: int = 1
) -> float:
    """Seconds that a step takes beyond the slowest stage's microbatches.

    `stages` are the passes of one microbatch through all chunks of a stage.
    """
    p, m = len(stages), microbatches
    if p == 1:
        return 0.0
    slowest = max(stages, key=lambda s: s.total_s)
    # Per chunk and in units of the other stages' mean, so that a sum over them is (p - 1) of it.
    chunks = 2 if order == "zb-v" else vpp
    share = 1.0 / ((p - 1) * chunks)
    f = (sum(s.forward_s for s in stages) - slowest.forward_s) * share
    b = (sum(s.backward_s for s in stages) - slowest.backward_s) * share
    all_w = (sum(s.weight_s for s in stages) - slowest.weight_s) * share
    w = sum(min(s.weight_s, slowest.weight_s) for s in stages) - slowest.weight_s
    w *= share
    n = p - 1
    if order == "zb-h1":
        return n * (f + b) - min(m - 1, n) * w
    if order == "zb-h2":
        return max(0.0, n * (f + b) - min(m - 1, 2 * n) * w)
    if order == "zb-v":
        k = min(max(0, m - p), n)
        ways = (2 * n * b - 2 * k * w, (2 * n - k) * b - (n - k) * w)
        return 2 * max(0, p - m) * f + max(ways)
    if order == "dualpipe":
        h = p // 2 - 1
        if m <= p:
            return (p - m) * f + (p - 2) * b
        return max(h * (f + b), 2 * h * b - f) - max(0, h - max(0, 2 * p - m)) * w
    return (n + (vpp - 1) * max(0, p - m)) * (f + b + all_w)


def held(order: str, stages: int, stage: int, microbatches: int, vpp: int = 1) -> float:
    """Microbatches, in units of a whole stage, whose activations wait for their backward pass."""
    p, m = stages, microbatches
    if order == "gpipe":
        return float(m)
    if order == "zb-h2":
        return float(min(2 * (p - stage) - 1, m))
    if order == "zb-v":
        return min(2 * p, m + stage + 1, 2 * m) / 2
    if order == "dualpipe":
        return float(min(p + 1, m // 2 + min(stage, p - 1 - stage) + 1, m))
    if vpp > 1:
        ahead = 2 * (p - stage - 1) + (vpp - 1) * groups(p, m)[0] + 1
        return min(ahead, m * vpp) / vpp
    return float(min(p - stage, m))


def waiting(order: str, stages: int, stage: int, microbatches: int) -> float:
    """More microbatches whose weight gradients are still to come when a stage holds the most."""
    p, m = stages, microbatches
    if order == "zb-h1":
        return float(min(stage, m - min(p - stage, m)))
    if order == "zb-h2":
        return float(min(2 * stage, m - min(2 * (p - stage) - 1, m)))
    return 0.0
