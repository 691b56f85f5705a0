"""How kernels of attention and of narrow formats run on a device, as calibrations state it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttentionFit:
    """Flash attention in one direction."""

    matmul: float  # share of the matrix peak in the inner loop
    min_head: float  # head size below which exponentials, not products, set the pace (Hopper)
    block_s: float  # start and end of one block of 128 rows
    kernel_s: float  # launch to finish of an empty call
    throttle: float  # slowdown at the power limit of a loop of nothing but products
    exposed: float = 0.0  # of the shorter of products and exponentials, what the longer hides not
    tail: float = 1.0  # of the longest block of a causal mask, what sticks out at the end
    split_s: float | None = None  # joining parts of keys where blocks are fewer than SMs
    fp8_gain: float = 1.0  # speed of products of 8-bit numbers over those of 16-bit ones
    # The same by head size, exponentials included, where each head size has a kernel of its own.
    fp8_heads: tuple[tuple[int, float], ...] = ()
    fp8_block_s: float | None = None  # `block_s` of calls in 8 bits; None: as of 16
    # Columns of heads that an SM has in hand at once in 8 bits: of heads of half as many two
    # blocks, neither of which is faster without the other; None: a block has the SM for itself.
    fp8_columns: float | None = None
    engine_s: float = 0.0  # what a call by an inference engine adds; no part of training
    fp8_engine_s: float = 0.0  # the same of calls in 8 bits, which another engine timed
    narrow_rows: int = 128  # queries of a block, of heads of up to `narrow_head`; 256: two tiles
    narrow_head: int = 96
    head_columns: int = 16  # heads are filled up to a multiple of
    causal_rows: int = 256  # the most queries of a block under a causal mask


@dataclass(frozen=True, slots=True)
class FormatFit:
    """Products of one format where it differs from the others."""

    matmul: float  # share of its matrix peak in the inner loop of an endless tile
    kernel_s: float  # launch to finish of an empty product, inside a CUDA graph
    throttle: float  # slowdown at the power limit: sustained time = (1 + throttle) x burst time
    throttle_s: float | None = None  # kernel length at which half of it shows; None: as of 16 bits
    tiles: str | None = None  # shapes of its library's tiles; None: as of 16 bits
    splits: bool = True  # whether its library divides reductions
    fill_s: float | None = None  # start and end of a tile that nothing hides; None: as of 16 bits
    cast_row_s: float = 0.0  # of an engine's cast in front, for each row however short
    # Times of replays at the power limit go with this power of the share of SMs that are busy, as
    # idle ones leave power to the others; 0: they do not.
    idle: float = 0.0
