"""How many mappings the encoding has, of those whose stages all have one shape."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb, log10

from atoll.fabric.digits import Digits, digit_systems
from atoll.fabric.mesh import ALGORITHMS
from atoll.hardware.wafer import Wafer
from atoll.wafer.encoding.block import make_block
from atoll.wafer.encoding.block_parts import Block
from atoll.wafer.encoding.codes import splits
from atoll.wafer.encoding.genes import FATES, SCHEDULES


def code_count(sizes: dict[str, int], digits: Digits) -> int:
    """Codes of an operator: for each split, in how many orders its factors stand on the digits."""
    found = 0
    radices = [int(radix) for radix in digits.radix]
    for parts in splits(sizes, digits.size):
        # Ways to give every digit a tag so that the radices of equal tags multiply to the split.
        ways = {tuple(sorted(parts.items())): 1}
        for radix in radices:
            after: dict[tuple[tuple[str, int], ...], int] = {}
            for left, count in ways.items():
                for tag, size in left:
                    if size % radix == 0:
                        rest = tuple((t, s // radix if t == tag else s) for t, s in left)
                        after[rest] = after.get(rest, 0) + count
            ways = after
        found += sum(ways.values())
    return found


def _blocks(block: Block, digits: Digits, homes: int, stages: int) -> int:
    """Genes of one stage: layout of the stream; codes of all passes, home and way of collectives of
    every operator; what happens to every saved tensor, and whose memory it may wait in.
    """
    count: int = code_count(block.stream_sizes, digits) * (2 * len(ALGORITHMS)) ** len(block.units)
    for unit in block.units:
        weighted = unit.parameters > 0
        count *= code_count(unit.sizes, digits) ** (3 if weighted else 2) * (
            homes if weighted else 1
        )
    saved = sum(bool(edge.kept_name) for chain in block.chains for edge in chain.edges)
    alone, helped = 2**saved, len(FATES) ** saved
    count *= alone + (stages - 1) * (helped - alone)
    return count


def log10_mappings(
    wafer: Wafer, model: str, batch: int, sequence: int, homes: Sequence[str],
    microbatches: Sequence[int],
) -> float:  # fmt: skip
    """The decimal logarithm of the number of mappings with stages of one shape along the snake."""
    total = 0
    for microbatch in (b for b in microbatches if b <= batch):
        block = make_block(model, microbatch, sequence)
        for width in range(1, wafer.columns + 1):
            for height in range(1, wafer.rows + 1):
                systems = digit_systems(width, height)
                most = min(block.layers, (wafer.columns // width) * (wafer.rows // height))
                for stages in range(1, most + 1):
                    genes = sum(_blocks(block, d, len(homes), stages) for d in systems)
                    layers = comb(block.layers - 1, stages - 1)
                    total += len(SCHEDULES) * layers * genes**stages
    return log10(total)
