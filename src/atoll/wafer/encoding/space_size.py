"""Count the mappings of the encoding whose stages have one shape."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import comb, gcd, log10

from atoll.fabric.digits import digit_systems, factors
from atoll.fabric.mesh import ALGORITHMS
from atoll.hardware.wafer import Wafer
from atoll.wafer.encoding.block import make_block
from atoll.wafer.encoding.block_mapping import FATES, SCHEDULES
from atoll.wafer.encoding.block_parts import WaferBlock


def code_count(sizes: dict[str, int], dies: int) -> int:
    """Count the codes of an operator; digits are primes, so that the shape does not matter."""
    # A dimension larger than the number of dies counts like one of that size.
    bounded_sizes = {
        tag: gcd(size, dies) if tag == "b" else min(size, dies) for tag, size in sizes.items()
    }
    return _codes(tuple(sorted(bounded_sizes.items())), dies)


@lru_cache(maxsize=1 << 14)
def _codes(sizes: tuple[tuple[str, int], ...], dies: int) -> int:
    codes_by_split = {(1,) * len(sizes): 1}
    for prime in factors(dies):
        next_codes: dict[tuple[int, ...], int] = {}
        for parts, count in codes_by_split.items():
            for position, (tag, size) in enumerate(sizes):
                part = parts[position] * prime
                if tag == "r" or (part <= size and (tag != "b" or size % part == 0)):
                    finer = (*parts[:position], part, *parts[position + 1 :])
                    next_codes[finer] = next_codes.get(finer, 0) + count
        codes_by_split = next_codes
    return sum(codes_by_split.values())


def _blocks(block: WaferBlock, dies: int, homes: int) -> tuple[int, int, int]:
    """Count the values of one stage's variables (stream layout; codes of all passes, home and
    collectives of every operator), and the fates of all saved tensors without and with a helper.
    """
    count: int = code_count(block.stream_sizes, dies) * (2 * len(ALGORITHMS)) ** len(block.units)
    for unit in block.units:
        weighted = unit.parameters > 0
        count *= code_count(unit.sizes, dies) ** (3 if weighted else 2) * (homes if weighted else 1)
    saved = len(block.saved_names)
    return count, 2**saved, len(FATES) ** saved


def log10_mappings(
    wafer: Wafer, model: str, batch: int, sequence: int, homes: Sequence[str],
    microbatches: Sequence[int],
) -> float:  # fmt: skip
    """Return log10 of the number of mappings with stages of one shape along the snake."""
    total = 0
    for microbatch in (b for b in microbatches if b <= batch):
        block = make_block(model, microbatch, sequence)
        for width in range(1, wafer.columns + 1):
            for height in range(1, wafer.rows + 1):
                codes, kept_choices, offload_choices = _blocks(block, width * height, len(homes))
                codes *= len(digit_systems(width, height))
                most_stages = min(block.layers, (wafer.columns // width) * (wafer.rows // height))
                for stages in range(1, most_stages + 1):
                    genes = codes * (kept_choices + (stages - 1) * (offload_choices - kept_choices))
                    layers = comb(block.layers - 1, stages - 1)
                    total += len(SCHEDULES) * layers * genes**stages
    return log10(total)
