"""List of the layouts that are tried for a searched chip."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, islice, product
from math import gcd
from operator import mul
from typing import TYPE_CHECKING

from atoll.fabric.network import Network
from atoll.step.layout import Layout, divisors
from atoll.step.stages import ChainWork, splits
from atoll.step.states import States

if TYPE_CHECKING:
    from atoll.explore.pricing.workloads import Variant


@dataclass(frozen=True, kw_only=True)
class AllowedLayouts:
    """The part of a search setting that determines the layouts."""

    network: Network
    states: States
    devices: int
    recompute: str
    zero: tuple[int, ...] = (0,)
    orders: tuple[str, ...] = ("1f1b",)
    hsdp: tuple[int, ...] = (1,)  # replicas of ZeRO's sharding group; empty: any
    vpp: tuple[int, ...] = ()
    """Chunks per stage of the interleaved schedule; empty: those that divide evenly."""


def listed_layouts(
    allowed: AllowedLayouts, variant: Variant, chain: ChainWork, ends: int
) -> Iterator[Layout]:
    """Yield the layouts whose degrees divide the devices and the batch, with the largest possible
    dp, for every split of the blocks into stages that `splits` returns."""
    blocks, batch, folded = chain.blocks, variant.microbatches, variant.ep * variant.etp
    make = partial(
        Layout, tp=variant.tp, cp=variant.cp, ep=variant.ep, etp=variant.etp, sp=variant.sp,
        microbatch=variant.microbatch,
    )  # fmt: skip
    for pp in range(1, blocks + ends + 1):  # embedding and head may have own stages
        most, rest = divmod(allowed.devices, variant.width * pp)
        shared = divisors(gcd(most, batch)) if most and not rest else ()
        dp = max((d for d in shared if d * variant.width % folded == 0), default=0)
        if not dp:
            continue
        replicas = _replicas(allowed, variant, dp)
        divided = [
            (zero, n)
            for zero in allowed.zero
            for n in (replicas if zero != 2 or pp == 1 else ())
            if zero or n == 1
        ]
        for order, vpp in _orders(allowed, pp, blocks, ends, batch // dp):
            for split, (zero, hsdp) in product(splits(chain, order, pp, vpp), divided):
                yield make(
                    dp=dp, pp=pp, zero=zero, hsdp=hsdp, vpp=vpp, schedule=order, blocks=split
                )


def _replicas(allowed: AllowedLayouts, variant: Variant, dp: int) -> list[int]:
    """Return the values of `hsdp` to try: those given, or 1 and, for each unit of the network, the
    smallest whose sharding groups fit in it. Larger values divide less and use no faster link."""
    ranks = dp * variant.cp
    shared = divisors(gcd(ranks, ranks * variant.tp // (variant.ep * variant.etp)))
    if allowed.hsdp:
        return [n for n in shared if n in allowed.hsdp]
    replicas = {1}
    for size in _units(allowed.network):
        inside = (n for n in shared if n < ranks and ranks * variant.tp <= n * size)
        replicas.update(islice(inside, 1))
    return sorted(replicas)


def _units(network: Network) -> Iterator[int]:
    """Yield the devices per unit of each network level; a torus adds its axes one by one."""
    for level in network.levels:
        yield from accumulate(level.torus, mul)
        yield level.devices


def _orders(
    allowed: AllowedLayouts, pp: int, blocks: int, ends: int, rounds: int
) -> Iterator[tuple[str, int]]:
    """Yield pairs of schedule and `vpp` for `pp` stages and `rounds` microbatches. Each of the
    `ends` (embedding and output head) may have a chunk of its own."""
    if pp == 1:
        yield "1f1b", 1
        return
    for order in allowed.orders:
        if order == "interleaved":
            for vpp in allowed.vpp or range(2, (blocks + ends) // pp + 1):
                even = blocks % (pp * vpp) == 0 or (blocks + ends) % (pp * vpp) == 0
                if vpp > 1 and (even or (allowed.vpp and pp * vpp <= blocks + ends)):
                    yield order, vpp
        elif order == "zb-v":
            if 2 * pp <= blocks + ends:
                yield order, 1
        elif order != "dualpipe" or (pp % 2 == 0 and rounds % 2 == 0):
            yield order, 1
