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

Each equals the replay (`tests/step`). Unequal stages: the slowest is busy all the time, and every
other adds its own part, with no more of its weight pass than the slowest stage's takes. Stages
within 20 % of each other: at most 9 % below the replay and 18 % above it.
"""

from __future__ import annotations

from collections.abc import Sequence

from atoll.step.orders import LATE, arrivals, chunks_of, groups
from atoll.step.replay import PassTime


def step_s(order: str, stages: Sequence[PassTime], microbatches: int, vpp: int = 1) -> float:
    """Seconds of all microbatches; `stages` are the passes of one through all chunks of a stage."""
    slowest_s = max(stage.total_s for stage in stages)
    return microbatches * slowest_s + bubble_s(order, stages, microbatches, vpp)


def step_with_transfers_s(
    order: str,
    stages: Sequence[PassTime],
    microbatches: int,
    vpp: int,
    transfer_s: Sequence[float],
    shown: float = 1.0,
) -> float:
    """The same where a stage's pass begins with the transfer of what it needs from another stage:
    so many seconds into each stage. Of a transfer the part `shown` is waited for, but of the first
    microbatch's, which have nothing to hide behind, all.
    """
    came = arrivals(order, len(stages), chunks_of(order, vpp))
    longer = [
        PassTime(
            stage.forward_s + shown * activations * wire_s,
            stage.backward_s + shown * gradients * wire_s,
            stage.weight_s,
        )
        for stage, (activations, gradients), wire_s in zip(stages, came, transfer_s, strict=True)
    ]
    slowest = max(range(len(stages)), key=lambda i: longer[i].total_s)
    first_s = sum(
        sum(n) * wire_s
        for i, (n, wire_s) in enumerate(zip(came, transfer_s, strict=True))
        if i != slowest
    )
    return step_s(order, longer, microbatches, vpp) + (1.0 - shown) * first_s


def bubble_s(order: str, stages: Sequence[PassTime], microbatches: int, vpp: int = 1) -> float:
    """Seconds of a step beyond the slowest stage's microbatches."""
    p, m = len(stages), microbatches
    if p == 1:
        return 0.0
    slowest = max(stages, key=lambda s: s.total_s)
    others = list(stages)
    others.remove(slowest)
    n = p - 1
    weights = sorted(min(s.weight_s, slowest.weight_s) for s in others)
    if order in LATE:
        # A weight pass put off for each microbatch but the first; the shortest where some cannot.
        put_off = sorted(weights * LATE[order])[: m - 1]
        return max(0.0, sum(s.forward_s + s.backward_s for s in others) - sum(put_off))
    # Per chunk and in units of the other stages' mean, so that their sum is n of it.
    share = 1.0 / (n * (1 if order == "dualpipe" else chunks_of(order, vpp)))
    f = sum(s.forward_s for s in others) * share
    b = sum(s.backward_s for s in others) * share
    w = sum(weights) * share
    if order == "zb-v":
        k = min(max(0, m - p), n)
        ways = (2 * n * b - 2 * k * w, (2 * n - k) * b - (n - k) * w)
        return 2 * max(0, p - m) * f + max(ways)
    if order == "dualpipe":
        h = p // 2 - 1
        if m <= p:
            return (p - m) * f + (p - 2) * b
        return max(h * (f + b), 2 * h * b - f) - max(0, h - max(0, 2 * p - m)) * w
    return (n + (vpp - 1) * max(0, p - m)) * sum(s.total_s for s in others) * share


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
    late = LATE.get(order, 0) * stage
    return min(float(late), microbatches - held(order, stages, stage, microbatches))


def most_waiting(order: str, stages: int, stage: int, microbatches: int) -> float:
    """The most microbatches whose weight gradients are still to come: after a backward pass, when
    as many fewer are held, so that both together stay the same.
    """
    if order not in LATE:
        return 0.0
    where = order, stages, stage, microbatches
    return min(LATE[order] * stage + 1.0, held(*where) + waiting(*where))


def held_bytes(
    order: str,
    stages: int,
    stage: int,
    microbatches: int,
    vpp: int = 1,
    *,
    kept_bytes: float,
    waiting_bytes: float,
) -> float:
    """Bytes of all microbatches at a stage's peak, where one keeps some for its backward pass and
    some after it, for weight gradients that the order puts off.
    """
    flying = held(order, stages, stage, microbatches, vpp)
    where = order, stages, stage, microbatches
    late, latest = waiting(*where), most_waiting(*where)
    # Before a backward pass, or after it, where weight gradients wait for more than is kept.
    before = kept_bytes * flying + waiting_bytes * late
    after = kept_bytes * (flying + late - latest) + waiting_bytes * latest
    return max(before, after) if order in LATE else before
