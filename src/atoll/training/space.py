"""All layouts of a run: which values each axis may take, and the arrays of their combinations.

A variant fixes what one device computes in a microbatch (tensor, context and expert degrees, the
experts' tensor width, microbatch, sequence parallelism). The layouts of a variant differ in
pipeline, interleaving, ZeRO stage, recomputation and schedule; there may be thousands, so they are
held as arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.errors import AtollError
from atoll.step.layout import RECOMPUTE, ZERO_STAGES, Layout
from atoll.step.orders import ORDERS
from atoll.training.run import Run

Ints = NDArray[np.int64]
ARRAYS = ("pp", "dp", "vpp", "zero", "hsdp", "recompute", "schedule", "microbatches")
"""Of a block, what differs between its layouts."""


@dataclass(frozen=True)
class Axes:
    """Values to try on each axis; an empty one takes its default."""

    tp: tuple[int, ...] = ()
    """Powers of two up to the node that divide heads and feed-forward columns."""
    pp: tuple[int, ...] = ()
    """Divisors of what the other axes leave, up to the number of layers."""
    cp: tuple[int, ...] = ()
    """1, 2; and 4, 8 for sequences of 8,192 tokens and more; those that divide the sequence."""
    ep: tuple[int, ...] = ()
    """Powers of two that divide the experts."""
    etp: tuple[int, ...] = ()
    """Tensor widths of the experts; by default that of the rest."""
    vpp: tuple[int, ...] = ()
    """Divisors of the layers of a stage, embedding and head counted as layers or not."""
    microbatch: tuple[int, ...] = (1, 2, 4, 8)
    sp: tuple[bool, ...] = (True,)
    """Matters where tp is above 1."""
    zero: tuple[int, ...] = (0, 1, 2, 3)
    """2 without a pipeline only."""
    hsdp: tuple[int, ...] = (1,)
    """Those that divide the ranks that share a parameter; above 1 from ZeRO 1 on."""
    recompute: tuple[str, ...] = ("none", "selective", "full", "optimal")
    schedule: tuple[str, ...] = ("1f1b",)
    """Of pipelines (layouts without one are always tried); 1f1b stands for interleaved where vpp is
    above 1."""

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
                    known = ", ".join(str(a) for a in allowed)
                    raise AtollError(f"{name}: {value!r} is not one of {known}")
        open_ = ("tp", "pp", "cp", "ep", "etp", "vpp")
        for item in fields(self):
            if item.name not in open_ and not getattr(self, item.name):
                raise AtollError(f"{item.name}: no value to try")


@dataclass(frozen=True)
class Variant:
    """What one device computes in one microbatch."""

    tp: int
    cp: int
    ep: int
    etp: int
    microbatch: int
    sp: bool

    def __str__(self) -> str:
        own = f" etp{self.etp}" if self.etp != self.tp else ""
        return f"tp{self.tp} cp{self.cp} ep{self.ep}{own} mbs{self.microbatch}"

    def layout(self, **rest: Any) -> Layout:
        """A layout of this variant; the other axes as given."""
        own = {name: getattr(self, name) for name in ("tp", "cp", "ep", "etp", "microbatch", "sp")}
        return Layout(**own, **rest)


@dataclass(frozen=True)
class Block:
    """All layouts of one variant, one entry an array position."""

    variant: Variant
    pp: Ints
    dp: Ints
    vpp: Ints
    zero: Ints
    hsdp: Ints
    recompute: Ints  # index into `names`
    schedule: Ints  # index into `schedules`
    names: tuple[str, ...]
    schedules: tuple[str, ...]
    microbatches: Ints = field(repr=False)

    def __len__(self) -> int:
        return int(self.pp.size)

    def bases(self) -> tuple[Ints, Ints]:
        """The first of those that differ in recomputation alone, and for each layout which."""
        columns = [getattr(self, name) for name in ARRAYS if name != "recompute"]
        shape = tuple(int(column.max()) + 1 for column in columns)
        keys = np.ravel_multi_index(tuple(columns), shape)
        _, first, which = np.unique(keys, return_index=True, return_inverse=True)
        return first, which

    def part(self, rows: NDArray[np.bool_]) -> Block:
        """Some of its layouts."""
        return replace(self, **{name: getattr(self, name)[rows] for name in ARRAYS})

    def layout(self, i: int) -> Layout:
        v = self.variant
        vpp = int(self.vpp[i])
        schedule = self.schedules[int(self.schedule[i])]
        if self.pp[i] == 1:
            schedule = "1f1b"
        elif schedule == "1f1b" and vpp > 1:
            schedule = "interleaved"
        return v.layout(
            dp=int(self.dp[i]),
            pp=int(self.pp[i]),
            vpp=vpp,
            zero=int(self.zero[i]),
            hsdp=int(self.hsdp[i]),
            recompute=self.names[int(self.recompute[i])],
            schedule=schedule,
        )


class Table:
    """The layouts of all variants side by side."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        sizes = [len(b) for b in blocks]
        self.owner = np.repeat(np.arange(len(blocks)), sizes)
        self.inside = np.concatenate([np.arange(n) for n in sizes])
        self.pp = np.concatenate([b.pp for b in blocks])
        self.vpp = np.concatenate([b.vpp for b in blocks])
        self.zero = np.concatenate([b.zero for b in blocks])
        self.hsdp = np.concatenate([b.hsdp for b in blocks])
        self.recompute = np.concatenate([b.recompute for b in blocks])
        self.schedule = np.concatenate([b.schedule for b in blocks])
        self.schedules = blocks[0].schedules
        self.names = blocks[0].names

    def __len__(self) -> int:
        return int(self.pp.size)


def variants(run: Run, axes: Axes) -> Iterator[Variant]:
    """Every variant that the devices, the batch and the model allow."""
    model = run.model
    tps = axes.tp or _powers(min(run.network.node, run.devices))
    tps = tuple(t for t in tps if _tensor_fits(run, t))
    cps = axes.cp or _contexts(run)
    eps = axes.ep or _powers(max(1, model.experts))
    for tp, cp, ep, microbatch in product(tps, cps, eps, axes.microbatch):
        if run.devices % (tp * cp) or (cp > 1 and run.sequence % (2 * cp)):
            continue
        if cp > 1 and (run.stored is not None or model.encoder_layers or model.recurrent):
            continue
        if cp > 1 and run.attention == "unfused":  # rings pass blocks of flash attention on
            continue
        if ep > 1 and (not model.experts or model.experts % ep):
            continue
        for sp in axes.sp if tp > 1 and run.stored is None else (False,):
            if sp and (run.sequence // cp) % tp:
                continue
            for etp in axes.etp or (tp,):
                if _experts_fit(run, tp, etp, sp):
                    yield Variant(tp, cp, ep, etp, microbatch, sp)


def block_of(run: Run, axes: Axes, variant: Variant) -> Block:
    """The arrays of one variant's layouts."""
    rest = run.devices // (variant.tp * variant.cp)
    pps = axes.pp or tuple(p for p in range(1, run.model.layers + 1) if rest % p == 0)
    rows: list[tuple[int, ...]] = []
    for pp in pps:
        if rest % pp or pp > run.model.layers + 2:
            continue
        dp = rest // pp
        per_step, ranks = dp * variant.microbatch, dp * variant.cp * variant.tp
        if run.global_batch % per_step or ranks % (variant.ep * variant.etp):
            continue
        m = run.global_batch // per_step
        copies = dp * variant.cp, ranks // (variant.ep * variant.etp)
        orders = [
            (vpp, s)
            for vpp in _chunks(run, axes, pp)
            for s, order in enumerate(axes.schedule)
            if _ordered(order, run.model.layers, pp, vpp, m, axes.schedule)
        ]
        for (vpp, s), zero, hsdp, r in product(
            orders, axes.zero, axes.hsdp, range(len(axes.recompute))
        ):
            if zero == 2 and pp > 1:
                continue
            if hsdp > 1 and (zero == 0 or any(n % hsdp for n in copies)):
                continue
            rows.append((pp, dp, vpp, zero, hsdp, r, s, m))
    table = np.array(rows, dtype=np.int64).reshape(len(rows), len(ARRAYS))
    arrays: dict[str, Any] = {n: np.ascontiguousarray(table[:, i]) for i, n in enumerate(ARRAYS)}
    return Block(variant, names=axes.recompute, schedules=axes.schedule, **arrays)


def _ordered(
    order: str, layers: int, pp: int, vpp: int, microbatches: int, wanted: tuple[str, ...]
) -> bool:
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
        return vpp == 1 and pp % 2 == 0 and microbatches % 2 == 0
    return vpp == 1


def _chunks(run: Run, axes: Axes, pp: int) -> Iterator[int]:
    layers = run.model.layers
    wanted = axes.vpp or tuple(range(1, (layers + 2) // pp + 1))
    for vpp in wanted:
        if vpp == 1:
            yield vpp
        elif pp > 1:
            if axes.vpp:
                if pp * vpp <= layers + 2:
                    yield vpp
            elif layers % (pp * vpp) == 0 or (layers + 2) % (pp * vpp) == 0:
                yield vpp


def excluded(run: Run, axes: Axes) -> tuple[str, ...]:
    """What a space leaves out of what could be run, axis by axis."""
    found: list[str] = []
    model = run.model
    if axes.tp:
        found.append(_other("tp", axes.tp))
    elif run.devices > 1:
        found.append(f"tp above {min(run.network.node, run.devices)} or no power of two")
    if axes.pp:
        found.append(_other("pp", axes.pp))
    whole = run.stored is not None or model.encoder_layers or run.attention == "unfused"
    if not whole:
        found.append(_other("cp", axes.cp) if axes.cp else f"cp above {max(_contexts(run))}")
    if model.experts:
        found.append(_other("ep", axes.ep) if axes.ep else "ep that is no power of two")
        found.append(_other("etp", axes.etp) if axes.etp else "etp other than tp")
    found.append(_other("vpp", axes.vpp) if axes.vpp else "vpp with unequal chunks")
    found.append(_other("microbatch", axes.microbatch))
    found.append(_other("hsdp", axes.hsdp))
    if len(axes.sp) == 1 and run.stored is None:
        found.append("sp off" if axes.sp[0] else "sp on")
    known: tuple[tuple[str, tuple[object, ...], tuple[object, ...]], ...] = (
        ("zero", ZERO_STAGES, axes.zero),
        ("recompute", RECOMPUTE, axes.recompute),
        # 1f1b stands for interleaved.
        ("schedule", ORDERS, (*axes.schedule, *(("interleaved",) * ("1f1b" in axes.schedule)))),
    )
    for name, values, tried in known:
        rest = [str(value) for value in values if value not in tried]
        if rest:
            found.append(f"{name} {', '.join(rest)}")
    return tuple(found)


def _other(name: str, values: tuple[int, ...]) -> str:
    return f"{name} other than {', '.join(str(value) for value in values)}"


def _contexts(run: Run) -> tuple[int, ...]:
    return (1, 2, 4, 8) if run.sequence >= 8192 else (1, 2)


def _tensor_fits(run: Run, tp: int) -> bool:
    model = run.model
    return (
        model.heads % tp == 0
        and all(width % tp == 0 for width in model.dense_widths)
        and (model.kv_heads % tp == 0 or tp % model.kv_heads == 0)
    )


def _experts_fit(run: Run, tp: int, etp: int, sp: bool) -> bool:
    """Whether experts may have this tensor width; a width of their own needs divided tokens."""
    own = run.model.experts and run.stored is None and (sp or tp == 1)
    return run.model.expert_width % etp == 0 and (etp == tp or bool(own))


def _powers(limit: int) -> tuple[int, ...]:
    return tuple(1 << i for i in range(max(1, limit).bit_length()) if 1 << i <= limit)
