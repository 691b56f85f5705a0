"""Recomputation choices of the blocks on a searched chip, equal to those of a plan on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from atoll.base.arrays import Bools, Floats, Ints
from atoll.placement.facts import BlockKind, ChainFacts
from atoll.step.layout import ZERO_STAGES
from atoll.training.operators.policies import CORE_ATTENTION, exchanging, rerun_shares
from atoll.training.operators.tables import LayoutTables
from atoll.workload.graph.layer import Layer


@dataclass(frozen=True, eq=False)
class Menu:
    """Recomputation choices of a kind of block: choices by operator, then the named policies."""

    layer: Layer
    bytes: Floats
    rerun: Floats  # share of each operator that is recomputed, shape (choices, forward operators)
    named: int  # number of named policies, which are the last choices

    @cached_property
    def attention(self) -> Bools:
        """Return whether attention is recomputed, with its ring steps, shape (choices,)."""
        is_attention = [op.kind in CORE_ATTENTION for op in self.layer.forward]
        return np.asarray((self.rerun[:, is_attention] > 0.0).any(axis=1))

    @cached_property
    def exchange(self) -> Bools:
        """Return whether tokens are sent to their experts again, shape (choices,)."""
        sent = exchanging(self.layer)
        is_exchange = [op in sent for op in self.layer.forward]
        return np.asarray((self.rerun[:, is_exchange] > 0.0).any(axis=1))

    def levels(self, front: Ints, count: int) -> Ints:
        """Return the choices of a plan: `count` levels from most to fewest bytes kept, then the
        named policies. `front` has the choices on the frontier, by ascending bytes."""
        levels = front[::-1][np.minimum(np.arange(count), len(front) - 1)]
        return np.append(levels, np.arange(len(self.bytes) - self.named, len(self.bytes)))

    def names(self, choice: int) -> tuple[str, ...]:
        """Return the names of the operators that a choice recomputes."""
        again = zip(self.layer.forward, self.rerun[choice], strict=True)
        return tuple(op.name for op, share in again if share > 0.0)


class Chosen(NamedTuple):
    """Recomputation choices of the stages, arrays of shape (kinds of blocks, choices)."""

    choice: Ints
    bytes: Floats
    again_s: Floats
    attention: Bools
    exchange: Bools


def menu_of(facts: ChainFacts, kind: BlockKind, named: bool) -> Menu:
    """Return the choices of a kind of block, including named policies if `named` is true."""
    layer, _ = facts.layers[kind.layer]
    more = list(rerun_shares(layer).values()) if named else []
    bytes_, rerun = [size for size, _ in more], [shares for _, shares in more]
    return Menu(
        layer=layer,
        bytes=np.append(kind.kept_bytes, bytes_),
        rerun=np.concatenate([kind.rerun, np.array(rerun).reshape(-1, kind.rerun.shape[1])]),
        named=len(more),
    )


def chosen(menus: Sequence[Menu], facts: ChainFacts, forward_s: Floats) -> Chosen:
    """Return the choices of a plan on a chip; `forward_s` has the seconds of the forward operators
    of all kinds of blocks, shape (operators,)."""
    fronts = [front for _, _, front in facts.frontiers(forward_s)]
    count = max(len(front) for front in fronts)
    parts = []
    for menu, front, span in zip(menus, fronts, facts.operators, strict=True):
        choices = menu.levels(front, count)
        again_s = menu.rerun[choices] @ forward_s[span]
        parts.append(
            (choices, menu.bytes[choices], again_s, menu.attention[choices], menu.exchange[choices])
        )
    return Chosen(*(np.array(part) for part in zip(*parts, strict=True)))


def with_kept_bytes(tables: LayoutTables, block: Ints, kept_bytes: Floats) -> LayoutTables:
    """Return tables whose blocks keep these bytes per microbatch, shape (kinds of blocks, choices);
    the first choice of `tables` keeps everything. `block` is the kind of block of each layer, or
    -1. Only the parts that determine memory are replaced."""
    blocks = np.flatnonzero(block >= 0)
    kept = np.repeat(tables.kept[:, [0]], kept_bytes.shape[1], axis=1)
    kept[blocks] = kept_bytes[block[blocks]]
    dropped = tables.kept[:, [0]] - kept
    occurs = np.zeros((len(tables.transient), len(kept)), np.bool_)
    np.logical_or.at(occurs, tables.content, tables.counts > 0)
    most = np.array([dropped[occurring].max(axis=0, initial=0.0) for occurring in occurs])
    transient = np.zeros((len(most), len(ZERO_STAGES), most.shape[1], 2, 3))
    transient[..., 0] = most[:, None, :, None]
    return tables._replace(kept=kept, transient=transient)
