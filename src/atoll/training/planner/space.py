"""All layouts of a run: which values each axis may take, and the arrays of their combinations.

A variant fixes what one device computes in a microbatch (tensor, context and expert degrees, the
experts' tensor width, sequence parallelism, microbatch); a family is all variants that differ in
the microbatch alone. The layouts of a family are held as arrays, for there may be a hundred
thousand; each may have any of the recomputation policies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import product
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.base.errors import AtollError
from atoll.step.layout import RECOMPUTE, ZERO_STAGES, Layout, divisors
from atoll.step.orders import ORDERS
from atoll.step.stages import ChainWork, splits
from atoll.training.operators.layer_prices import chain_work
from atoll.training.run import Run

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
COLUMNS = ("pp", "dp", "vpp", "microbatch", "zero", "hsdp", "schedule", "split")
"""Of a family, what differs between its layouts, recomputation apart."""
MOST_CONTEXT = 8  # ranks of context parallelism that are tried unless told otherwise


@dataclass(frozen=True)
class Axes:
    """Values to try on each axis; an empty one takes its default."""

    tp: tuple[int, ...] = ()
    """Those inside the node that divide heads and feed-forward columns."""
    pp: tuple[int, ...] = ()
    """Divisors of what the other axes leave, up to the layers, embedding and head counted too."""
    cp: tuple[int, ...] = ()
    """1 to 8, those that divide the sequence."""
    ep: tuple[int, ...] = ()
    """Divisors of the experts."""
    etp: tuple[int, ...] = ()
    """Tensor widths of the experts: that of the rest, or 1."""
    vpp: tuple[int, ...] = ()
    """As many chunks as there are layers for, embedding and head counted too."""
    microbatch: tuple[int, ...] = ()
    """Divisors of the batch of a data-parallel rank."""
    sp: tuple[bool, ...] = (True, False)
    """Matters where tp is above 1."""
    zero: tuple[int, ...] = ZERO_STAGES
    """2 without a pipeline only."""
    hsdp: tuple[int, ...] = ()
    """Divisors of the number of ranks that share a parameter; above 1 from ZeRO 1 on."""
    recompute: tuple[str, ...] = RECOMPUTE
    schedule: tuple[str, ...] = ()
    """Of pipelines (layouts without one are always tried); 1f1b stands for interleaved where vpp is
    above 1. By default those that the stack runs, but for gpipe, which takes as long as 1f1b and
    holds more."""

    def __post_init__(self) -> None:
        for item in fields(self):  # a value given twice is one value
            once = tuple(dict.fromkeys(getattr(self, item.name)))
            object.__setattr__(self, item.name, once)
        for name in ("tp", "pp", "cp", "ep", "etp", "vpp", "microbatch", "hsdp"):
            for value in getattr(self, name):
                if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                    raise AtollError(f"{name}: expected positive integers, got {value!r}")
        for name, allowed in (
            ("zero", ZERO_STAGES),
            ("recompute", RECOMPUTE),
            ("schedule", ORDERS),
        ):
            for value in getattr(self, name):
                if value not in allowed:
                    choices = ", ".join(str(a) for a in allowed)
                    raise AtollError(f"{name}: {value!r} is not one of {choices}")
        for name in ("sp", "zero", "recompute"):
            if not getattr(self, name):
                raise AtollError(f"{name}: no value to try")

    def orders(self, run: Run) -> tuple[str, ...]:
        """The orders of pipelines that are tried."""
        return self.schedule or tuple(order for order in run.stack.orders if order != "gpipe")


@dataclass(frozen=True)
class LayoutFamily:
    """What one device computes of a sequence."""

    tp: int
    cp: int
    ep: int
    etp: int
    sp: bool

    def __str__(self) -> str:
        expert_words = f" etp{self.etp}" if self.etp != self.tp else ""
        return f"tp{self.tp} cp{self.cp} ep{self.ep}{expert_words}"

    def layout(self, **axes: Any) -> Layout:
        """A layout of this family; the other axes as given."""
        return Layout(tp=self.tp, cp=self.cp, ep=self.ep, etp=self.etp, sp=self.sp, **axes)


class LayoutColumns:
    """Layouts of one family, one entry an array position."""

    def __init__(
        self,
        family: LayoutFamily,
        schedules: tuple[str, ...],
        chain: ChainWork,
        columns: NDArray[Any],
    ) -> None:
        self.family = family
        self.schedules = schedules
        self.chain = chain
        self.columns = columns  # (COLUMNS, layouts)
        self.pp, self.dp, self.vpp, self.microbatch, self.zero, self.hsdp = columns[:6]
        self.schedule, self.split = columns[6:]

    def __len__(self) -> int:
        return int(self.columns.shape[1])

    def part(self, rows: Ints) -> LayoutColumns:
        """Some of them."""
        return LayoutColumns(self.family, self.schedules, self.chain, self.columns[:, rows])

    def layouts(self, rows: Ints, recompute: str) -> list[Layout]:
        """Some of them, under a recomputation policy."""
        family, layouts = self.family, []
        for pp, dp, vpp, microbatch, zero, hsdp, at, split in self.columns[:, rows].T.tolist():
            order = self.order(at, pp, vpp)
            layouts.append(
                Layout(
                    dp, family.tp, pp, family.cp, family.ep, family.etp, vpp, microbatch, family.sp,
                    zero, hsdp, recompute, order, self.blocks(order, pp, vpp, split),
                )
            )  # fmt: skip
        return layouts

    def order(self, schedule: int, pp: int, vpp: int) -> str:
        """The name of the order that a schedule is there."""
        return order_of(self.schedules[schedule], pp, vpp)

    def blocks(self, order: str, pp: int, vpp: int, split: int) -> tuple[int, ...]:
        """Blocks of the chunks; none: as even as can be."""
        return _stage_splits(self.chain, order, pp, vpp)[split]


def families(run: Run, axes: Axes) -> Iterator[LayoutFamily]:
    """Every family that the devices and the model allow."""
    model = run.model
    tps = axes.tp or range(1, min(run.network.node, run.devices) + 1)
    cps = axes.cp or range(1, MOST_CONTEXT + 1)
    eps = axes.ep or divisors(max(1, model.experts))
    for tp, cp, ep in product((t for t in tps if _tensor_fits(run, t)), cps, eps):
        if run.devices % (tp * cp) or (cp > 1 and run.sequence % (2 * cp)):
            continue
        if cp > 1 and _keeps_sequences_whole(run):
            continue
        if ep > 1 and (not model.experts or model.experts % ep):
            continue
        for sp in axes.sp if tp > 1 and run.stored is None else (False,):
            if sp and (run.sequence // cp) % tp:
                continue
            for etp in axes.etp or ((1, tp) if model.experts and tp > 1 else (tp,)):
                if _experts_fit(run, tp, etp, sp):
                    yield LayoutFamily(tp, cp, ep, etp, sp)


def block_of(run: Run, axes: Axes, family: LayoutFamily) -> LayoutColumns:
    """The arrays of one family's layouts."""
    rest = run.devices // (family.tp * family.cp)
    schedules = axes.orders(run)
    chain = chain_of(run)
    stages = []
    for pp in axes.pp or divisors(rest):
        dp = rest // pp
        ranks = dp * family.cp * family.tp
        if rest % pp or pp > run.model.layers + 2 or ranks % (family.ep * family.etp):
            continue
        if run.global_batch % dp:
            continue
        copies = gcd(dp * family.cp, ranks // (family.ep * family.etp))
        stages.append((run.global_batch // dp, pp, dp, copies))
    return LayoutColumns(family, schedules, chain, _columns(axes, schedules, chain, tuple(stages)))


@lru_cache(maxsize=1)
def _columns(
    axes: Axes, schedules: tuple[str, ...], chain: ChainWork, stages: tuple[tuple[int, ...], ...]
) -> NDArray[np.int32]:
    """The same for families that differ in sequence parallelism alone: held once."""
    empty = np.empty((len(COLUMNS), 0), dtype=np.int32)
    parts = [of_stages(axes, schedules, chain, *of) for of in stages]
    return np.concatenate([empty, *parts], axis=1)


def chain_of(run: Run) -> ChainWork:
    if not run.stack.balances:
        return ChainWork(run.model.layers, None)
    return chain_work(run)._replace(blocks=run.model.layers)


def order_of(schedule: str, pp: int, vpp: int) -> str:
    """The name of the order that a schedule is with so many stages and chunks."""
    if pp == 1:
        return "1f1b"
    return "interleaved" if schedule == "1f1b" and vpp > 1 else schedule


def _stage_splits(chain: ChainWork, order: str, pp: int, vpp: int) -> tuple[tuple[int, ...], ...]:
    return splits(chain, order, pp, vpp)


@lru_cache(maxsize=512)
def of_stages(
    axes: Axes,
    schedules: tuple[str, ...],
    chain: ChainWork,
    batch: int,
    pp: int,
    dp: int,
    copies: int,
) -> NDArray[np.int32]:
    """Columns of the layouts with so many stages and data ranks, each of a part of the batch."""
    layers = chain.blocks
    sizes = np.array([b for b in axes.microbatch or divisors(batch) if batch % b == 0])
    vpp_column, schedule, paired, split = (
        np.array(
            [
                (vpp, s, order == "dualpipe" and pp > 1, split)
                for vpp in _chunks(axes, layers, pp)
                for s, order in enumerate(schedules)
                if _ordered(order, layers, pp, vpp, schedules)
                for split in range(len(_stage_splits(chain, order_of(order, pp, vpp), pp, vpp)))
            ]
        )
        .reshape(-1, 4)
        .T
    )
    zero_column, hsdp_column = (
        np.array(
            [
                (zero, hsdp)
                for zero in axes.zero
                if zero != 2 or pp == 1
                for hsdp in axes.hsdp or (divisors(copies) if zero else (1,))
                if hsdp == 1 or (zero and copies % hsdp == 0)
            ]
        )
        .reshape(-1, 2)
        .T
    )
    values: dict[str, int | NDArray[Any]] = {
        "pp": pp,
        "dp": dp,
        "vpp": vpp_column[:, None],
        "microbatch": sizes[:, None, None],
        "zero": zero_column,
        "hsdp": hsdp_column,
        "schedule": schedule[:, None],
        "split": split[:, None],
    }
    columns = np.empty((len(COLUMNS), len(sizes), len(split), len(zero_column)), dtype=np.int32)
    for number, name in enumerate(COLUMNS):
        columns[number] = values[name]
    even = (batch // sizes) % 2 == 0
    allowed = even[:, None] | (paired == 0)
    return columns[:, allowed].reshape(len(COLUMNS), -1)


def _ordered(order: str, layers: int, pp: int, vpp: int, wanted: tuple[str, ...]) -> bool:
    """Whether a schedule makes sense there. Without stages there is none: the first stands for all;
    with chunks only one does.
    """
    if pp == 1:
        return order == wanted[0]
    if order == "interleaved":
        return vpp > 1
    if order == "1f1b":
        return vpp == 1 or "interleaved" not in wanted
    if order == "zb-v":
        return vpp == 1 and 2 * pp <= layers + 2
    if order == "dualpipe":
        return vpp == 1 and pp % 2 == 0
    return vpp == 1


def _chunks(axes: Axes, layers: int, pp: int) -> Iterator[int]:
    most = (layers + 2) // pp if pp > 1 else 1
    return (vpp for vpp in axes.vpp or range(1, most + 1) if vpp == 1 or vpp <= most)


def excluded(run: Run, axes: Axes) -> tuple[str, ...]:
    """What a space leaves out of what could be run, axis by axis."""
    exclusions: list[str] = []
    model = run.model
    if axes.tp:
        exclusions.append(_other_than("tp", axes.tp))
    elif run.devices > run.network.node:
        exclusions.append(f"tp above {run.network.node}")
    if axes.pp:
        exclusions.append(_other_than("pp", axes.pp))
    if not _keeps_sequences_whole(run):
        exclusions.append(_other_than("cp", axes.cp) if axes.cp else f"cp above {MOST_CONTEXT}")
    if model.experts:
        if axes.ep:
            exclusions.append(_other_than("ep", axes.ep))
        exclusions.append(_other_than("etp", axes.etp) if axes.etp else "etp other than 1 and tp")
    for name in ("vpp", "microbatch", "hsdp"):
        if getattr(axes, name):
            exclusions.append(_other_than(name, getattr(axes, name)))
    if len(axes.sp) == 1 and run.stored is None:
        exclusions.append("sp off" if axes.sp[0] else "sp on")
    orders = axes.orders(run)
    if "1f1b" in orders:  # stands for interleaved, and gpipe is never faster
        orders = (*orders, "interleaved", "gpipe")
    axis_values: tuple[tuple[str, tuple[object, ...], tuple[object, ...]], ...] = (
        ("zero", ZERO_STAGES, axes.zero),
        ("recompute", RECOMPUTE, axes.recompute),
        ("schedule", ORDERS, orders),
    )
    for name, values, tried in axis_values:
        rest = [str(value) for value in values if value not in tried]
        if rest:
            exclusions.append(f"{name} {', '.join(rest)}")
    even = "stages less even than can be"
    return (*exclusions, f"{even}, in blocks or in work" if run.stack.balances else even)


def _other_than(name: str, values: tuple[int, ...]) -> str:
    return f"{name} other than {', '.join(str(value) for value in values)}"


def _keeps_sequences_whole(run: Run) -> bool:
    """Whether sequences stay whole. Rings pass blocks of flash attention on."""
    model = run.model
    across = run.stored is not None or model.encoder_layers > 0 or model.recurrent
    return across or run.attention == "unfused"


def _tensor_fits(run: Run, tp: int) -> bool:
    model = run.model
    return (
        model.heads % tp == 0
        and all(width % tp == 0 for width in model.dense_widths)
        and (model.kv_heads % tp == 0 or tp % model.kv_heads == 0)
    )


def _experts_fit(run: Run, tp: int, etp: int, sp: bool) -> bool:
    """Whether experts may have this tensor width; a width of their own needs divided tokens."""
    divisible = run.model.experts and run.stored is None and (sp or tp == 1)
    return run.model.expert_width % etp == 0 and (etp == tp or bool(divisible))
