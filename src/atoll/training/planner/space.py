"""The space of layouts of a run: the values of each axis and the arrays of their combinations.

A variant fixes what one device computes in a microbatch: tp, cp, ep, etp, sp and microbatch. A
family is the set of all variants that differ only in the microbatch. A family may have 100,000
layouts, so they are stored as arrays. Each layout can use every recomputation policy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import product
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.base.arrays import Ints
from atoll.base.errors import AtollError
from atoll.step.layout import RECOMPUTE, ZERO_STAGES, Layout, divisors
from atoll.step.orders import ORDERS
from atoll.step.stages import ChainWork, splits
from atoll.training.operators.layer_prices import chain_work
from atoll.training.run import Run

COLUMNS = ("pp", "dp", "vpp", "microbatch", "zero", "hsdp", "schedule", "split")
"""Names of the columns in which layouts of a family differ, other than recomputation."""
MOST_CONTEXT = 8  # largest cp that is tried by default
CHOICES: dict[str, tuple[Any, ...]]
CHOICES = {"zero": ZERO_STAGES, "recompute": RECOMPUTE, "schedule": ORDERS}
"""All values of axes that are not sizes."""


@dataclass(frozen=True)
class Axes:
    """Values to try on each axis. An empty tuple stands for the default described below."""

    tp: tuple[int, ...] = ()
    """Sizes within one node that divide the heads and the feed-forward width."""
    pp: tuple[int, ...] = ()
    """Divisors of devices / (tp * cp), at most layers + 2 (embedding and output head)."""
    cp: tuple[int, ...] = ()
    """1 to 8, where 2 * cp divides the sequence length."""
    ep: tuple[int, ...] = ()
    """Divisors of the number of experts."""
    etp: tuple[int, ...] = ()
    """Tensor-parallel degree of the experts: 1 or tp."""
    vpp: tuple[int, ...] = ()
    """1 to (layers + 2) // pp chunks per stage."""
    microbatch: tuple[int, ...] = ()
    """Divisors of the batch per data-parallel rank."""
    sp: tuple[bool, ...] = (True, False)
    """Sequence parallelism; applies only if tp > 1."""
    zero: tuple[int, ...] = ZERO_STAGES
    """ZeRO stages; stage 2 is tried only without a pipeline."""
    hsdp: tuple[int, ...] = ()
    """Divisors of the number of ranks that share a parameter; above 1 only if zero >= 1."""
    recompute: tuple[str, ...] = RECOMPUTE
    schedule: tuple[str, ...] = ()
    """Pipeline schedules; layouts without a pipeline are always tried. 1f1b with vpp > 1 means
    interleaved. The default is every schedule of the stack except gpipe, which takes as long as
    1f1b and needs more memory."""

    def __post_init__(self) -> None:
        for item in fields(self):  # a value given twice is one value
            once = tuple(dict.fromkeys(getattr(self, item.name)))
            object.__setattr__(self, item.name, once)
        for name in ("tp", "pp", "cp", "ep", "etp", "vpp", "microbatch", "hsdp"):
            for value in getattr(self, name):
                if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                    raise AtollError(f"{name}: expected positive integers, got {value!r}")
        for name, allowed in CHOICES.items():
            for value in getattr(self, name):
                if value not in allowed:
                    choices = ", ".join(str(a) for a in allowed)
                    raise AtollError(f"{name}: {value!r} is not one of {choices}")
        for name in ("sp", "zero", "recompute"):
            if not getattr(self, name):
                raise AtollError(f"{name}: no value to try")

    def orders(self, run: Run) -> tuple[str, ...]:
        """Return the names of the pipeline schedules to try."""
        return self.schedule or tuple(order for order in run.stack.orders if order != "gpipe")


@dataclass(frozen=True)
class LayoutFamily:
    """Axes that determine what one device computes for a sequence."""

    tp: int
    cp: int
    ep: int
    etp: int
    sp: bool

    def __str__(self) -> str:
        expert_words = f" etp{self.etp}" if self.etp != self.tp else ""
        return f"tp{self.tp} cp{self.cp} ep{self.ep}{expert_words}"

    def layout(self, **axes: Any) -> Layout:
        """Return a layout of this family with the other axes as given."""
        return Layout(tp=self.tp, cp=self.cp, ep=self.ep, etp=self.etp, sp=self.sp, **axes)

    def sharing_ranks(self, dp: int) -> int:
        """Return the ranks that share every parameter; 0 where experts do not divide the ranks."""
        ranks, experts = dp * self.cp * self.tp, self.ep * self.etp
        return 0 if ranks % experts else gcd(dp * self.cp, ranks // experts)


class LayoutColumns:
    """Layouts of one family as arrays of shape (layouts,), one array per axis."""

    def __init__(
        self,
        family: LayoutFamily,
        schedules: tuple[str, ...],
        chain: ChainWork,
        columns: NDArray[Any],
    ) -> None:
        self.family, self.schedules, self.chain = family, schedules, chain
        self.columns = columns  # (COLUMNS, layouts)
        self.pp, self.dp, self.vpp, self.microbatch, self.zero, self.hsdp = columns[:6]
        self.schedule, self.split = columns[6:]

    def __len__(self) -> int:
        return int(self.columns.shape[1])

    def part(self, rows: Ints) -> LayoutColumns:
        """Return the layouts in the given rows."""
        return LayoutColumns(self.family, self.schedules, self.chain, self.columns[:, rows])

    def layouts(self, rows: Ints, recompute: str) -> list[Layout]:
        """Return the layouts in the given rows as objects, with a recomputation policy."""
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
        """Return the name of a schedule (an index) with `pp` stages and `vpp` chunks."""
        return order_of(self.schedules[schedule], pp, vpp)

    def blocks(self, order: str, pp: int, vpp: int, split: int) -> tuple[int, ...]:
        """Return the number of blocks of each chunk; an empty tuple means an even split."""
        return splits(self.chain, order, pp, vpp)[split]

    def layout(self, at: int) -> Layout:
        """Return the layout in a row as an object, without recomputation."""
        return self.layouts(np.array([at]), "none")[0]

    def numbers(self) -> Ints:
        """Return the numbers of `batch.estimates.LayoutSource`."""
        names = self.schedules
        chunks = [[ORDERS.index(order_of(name, 2, vpp)) for name in names] for vpp in (1, 2)]
        order = np.array(chunks)[(self.vpp > 1).astype(np.intp), self.schedule]
        order[self.pp == 1] = ORDERS.index(order_of("", 1, 1))
        return np.stack([order, self.dp, self.pp, self.vpp, self.zero, self.hsdp, self.split])


def families(run: Run, axes: Axes) -> Iterator[LayoutFamily]:
    """Yield every family that the devices and the model allow."""
    model = run.model
    tps = axes.tp or range(1, min(run.network.node, run.devices) + 1)
    cps = axes.cp or range(1, MOST_CONTEXT + 1)
    eps = axes.ep or divisors(max(1, model.experts))
    undivided = _keeps_sequences_whole(run)
    for tp, cp, ep in product((t for t in tps if _tensor_fits(run, t)), cps, eps):
        if run.devices % (tp * cp) or (cp > 1 and (undivided or run.sequence % (2 * cp))):
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
    """Return all layouts of a family."""
    rest = run.devices // (family.tp * family.cp)
    schedules = axes.orders(run)
    zeros = run.tool.zero_beside_parallel if family.tp * family.cp > 1 else ()
    zeros = tuple(zero for zero in axes.zero if not zeros or zero in zeros)
    chain = chain_of(run)
    stages = []
    for pp in (axes.pp or divisors(rest)) if zeros else ():
        dp = rest // pp
        copies = family.sharing_ranks(dp)
        if rest % pp == 0 and pp <= run.model.layers + 2 and copies and run.global_batch % dp == 0:
            stages.append((run.global_batch // dp, pp, dp, copies))
    axes = replace(axes, zero=zeros or axes.zero)
    return LayoutColumns(family, schedules, chain, _columns(axes, schedules, chain, tuple(stages)))


@lru_cache(maxsize=1)
def _columns(
    axes: Axes, schedules: tuple[str, ...], chain: ChainWork, stages: tuple[tuple[int, ...], ...]
) -> NDArray[np.int32]:
    """Return the columns for all stage counts, shape (COLUMNS, layouts). Families that differ only
    in `sp` share them, so the last result is cached."""
    empty = np.empty((len(COLUMNS), 0), dtype=np.int32)
    parts = [of_stages(axes, schedules, chain, *of) for of in stages]
    return np.concatenate([empty, *parts], axis=1)


def chain_of(run: Run) -> ChainWork:
    if not run.stack.balances:
        return ChainWork(run.model.layers, None)
    return chain_work(run)._replace(blocks=run.model.layers)


def order_of(schedule: str, pp: int, vpp: int) -> str:
    """Return the name of a schedule with `pp` stages and `vpp` chunks per stage."""
    if pp == 1:
        return "1f1b"
    return "interleaved" if schedule == "1f1b" and vpp > 1 else schedule


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
    """Return the columns of the layouts with `pp` stages and `dp` data-parallel ranks, shape
    (COLUMNS, layouts). `batch` is the number of sequences per rank."""
    layers = chain.blocks
    sizes = np.array([b for b in axes.microbatch or divisors(batch) if batch % b == 0])
    most = (layers + 2) // pp if pp > 1 else 1
    pipelines = [
        (vpp, s, order == "dualpipe" and pp > 1, split)
        for vpp in axes.vpp or range(1, most + 1)
        if vpp == 1 or vpp <= most
        for s, order in enumerate(schedules)
        if _ordered(order, layers, pp, vpp, schedules)
        for split in range(len(splits(chain, order_of(order, pp, vpp), pp, vpp)))
    ]
    shards = [
        (zero, hsdp)
        for zero in axes.zero
        if zero != 2 or pp == 1
        for hsdp in axes.hsdp or (divisors(copies) if zero else (1,))
        if hsdp == 1 or (zero and copies % hsdp == 0)
    ]
    vpp_column, schedule, paired, split = np.array(pipelines).reshape(-1, 4).T
    zero_column, hsdp_column = np.array(shards).reshape(-1, 2).T
    columns = np.empty((len(COLUMNS), len(sizes), len(split), len(zero_column)), dtype=np.int32)
    columns[:2] = np.array([pp, dp])[:, None, None, None]
    columns[2], columns[3] = vpp_column[:, None], sizes[:, None, None]
    columns[4], columns[5] = zero_column, hsdp_column
    columns[6], columns[7] = schedule[:, None], split[:, None]
    even = (batch // sizes) % 2 == 0
    allowed = even[:, None] | (paired == 0)
    return columns[:, allowed].reshape(len(COLUMNS), -1)


def _ordered(order: str, layers: int, pp: int, vpp: int, wanted: tuple[str, ...]) -> bool:
    """Return whether a schedule applies to `pp` stages of `vpp` chunks. With pp = 1 all schedules
    are equal and only the first wanted one counts; with vpp > 1 only interleaved (or 1f1b) applies.
    """
    if pp == 1:
        return order == wanted[0]
    if order == "interleaved":
        return vpp > 1
    if order == "1f1b":
        return vpp == 1 or "interleaved" not in wanted
    if order == "zb-v" and 2 * pp > layers + 2:
        return False
    return vpp == 1 and (order != "dualpipe" or pp % 2 == 0)


def excluded(run: Run, axes: Axes) -> tuple[str, ...]:
    """Return the axis values that the space does not search, one entry per axis."""
    # By axis, what is left out where no values are given.
    defaults = {"tp": "", "pp": ""}
    if run.devices > run.network.node:
        defaults["tp"] = f"tp above {run.network.node}"
    if not _keeps_sequences_whole(run):
        defaults["cp"] = f"cp above {MOST_CONTEXT}"
    if run.model.experts:
        defaults |= {"ep": "", "etp": "etp other than 1 and tp"}
    defaults |= dict.fromkeys(("vpp", "microbatch", "hsdp"), "")
    exclusions = []
    for name, words in defaults.items():
        values = ", ".join(map(str, getattr(axes, name)))
        exclusions.append(f"{name} other than {values}" if values else words)
    if len(axes.sp) == 1 and run.stored is None:
        exclusions.append("sp off" if axes.sp[0] else "sp on")
    orders = axes.orders(run)
    if "1f1b" in orders:  # includes interleaved; gpipe is never faster
        orders = (*orders, "interleaved", "gpipe")
    for name, choices in CHOICES.items():
        tried = orders if name == "schedule" else getattr(axes, name)
        rest = ", ".join(str(value) for value in choices if value not in tried)
        exclusions.append(f"{name} {rest}" if rest else "")
    even = "equal neither in blocks nor in work" if run.stack.balances else "uneven in blocks"
    return (*filter(None, exclusions), f"pipeline stages {even}")


def _keeps_sequences_whole(run: Run) -> bool:
    """Return whether cp must be 1: captured, encoder or recurrent models, unfused attention."""
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
    """Return whether experts can use `etp`; etp != tp needs sequence parallelism or tp = 1."""
    divisible = run.model.experts and run.stored is None and (sp or tp == 1)
    return run.model.expert_width % etp == 0 and (etp == tp or bool(divisible))
