"""Codes: one tag per digit, written as a string such as "nnk": legality, layouts, and the codes
that a shape is solved over: all of them, those of one dimension, or several subsets. Also the
number of mappings with stages of one shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import comb, gcd, log10, prod

import numpy as np

from atoll.base.arrays import Ints
from atoll.fabric.digits import Digits, digit_systems, factors
from atoll.fabric.mesh import ALGORITHMS
from atoll.hardware.wafer import Wafer
from atoll.wafer.encoding.block import make_block
from atoll.wafer.encoding.block_parts import FATES, KINDS, SCHEDULES, Roles, WaferBlock

PART_CODES = 81  # most codes of a subset on the digits that do not cut samples

Parts = dict[str, int]
"""Number of parts by tag."""
CodeSet = dict[str, tuple[str, ...]] | None


@lru_cache(maxsize=1 << 14)
def parts_of(code: str, digits: Digits) -> Parts:
    """Return the split count of every tag."""
    parts: Parts = {}
    for tag, radix in zip(code, (*digits.x, *digits.y), strict=True):
        parts[tag] = parts.get(tag, 1) * radix
    return parts


def legal(code: str, sizes: dict[str, int], digits: Digits) -> bool:
    """Whether no dimension is cut into more pieces than its size, and samples evenly."""
    if len(code) != digits.count or not sizes.keys() >= {*code}:
        return False
    parts = parts_of(code, digits)
    fits = all(count <= sizes[tag] for tag, count in parts.items() if tag != "r")
    return fits and sizes["b"] % parts.get("b", 1) == 0


def legal_codes(sizes: dict[str, int], digits: Digits) -> tuple[str, ...]:
    tags = "".join(tag for tag, size in sizes.items() if size > 1 or tag == "r")
    return _legal_codes(tuple(sizes.items()), digits, (tags,) * digits.count)


@lru_cache(maxsize=1 << 10)
def _legal_codes(
    sizes: tuple[tuple[str, int], ...], digits: Digits, choices: tuple[str, ...]
) -> tuple[str, ...]:
    """Extend codes digit by digit with the tags of `choices`, dropping illegal prefixes."""
    limit = dict(sizes)
    prefixes: list[tuple[str, Parts]] = [("", {})]
    for tags, radix in zip(choices, (*digits.x, *digits.y), strict=True):
        longer_prefixes = []
        for code, parts in prefixes:
            for tag in tags:
                count = parts.get(tag, 1) * radix
                if (tag == "r" or count <= limit[tag]) and (tag != "b" or limit["b"] % count == 0):
                    longer_prefixes.append((code + tag, parts | {tag: count}))
        prefixes = longer_prefixes
    return tuple(code for code, _ in prefixes)


def by_tag(parts_list: Sequence[Parts]) -> dict[str, Ints]:
    """Return the split counts as arrays by tag, always with samples."""
    tags = dict.fromkeys(("b", *(tag for parts in parts_list for tag in parts)))
    return {tag: np.array([parts.get(tag, 1) for parts in parts_list], np.int64) for tag in tags}


def splits(sizes: dict[str, int], dies: int) -> list[Parts]:
    """Return every legal split of an operator over `dies` dies of any shape."""
    return list(_splits(tuple(sizes.items()), dies))


def divisible(sizes: dict[str, int], dies: int) -> bool:
    """Return whether `splits` has an entry, without listing all of them."""
    primes = sorted(factors(dies), reverse=True)
    tags = [tag for tag, size in sizes.items() if size > 1 or tag == "r"]
    stack, seen = [(0, (1,) * len(tags))], set()
    while stack:
        done, counts = stack.pop()
        if done == len(primes):
            return True
        for place, tag in enumerate(tags):
            count = counts[place] * primes[done]
            fits = tag == "r" or count <= sizes[tag]
            state = done + 1, (*counts[:place], count, *counts[place + 1 :])
            if fits and (tag != "b" or sizes["b"] % count == 0) and state not in seen:
                seen.add(state)
                stack.append(state)
    return False


@lru_cache(maxsize=1 << 12)
def _splits(sizes: tuple[tuple[str, int], ...], dies: int) -> tuple[Parts, ...]:
    tags = [tag for tag, _ in sizes]
    pairs = (zip(tags, counts, strict=True) for counts in _codes_by_split(sizes, dies))
    return tuple(map(dict, sorted(sorted((t, n) for t, n in cut if n > 1) for cut in pairs)))


def layouts(codes: Sequence[str], roles: Sequence[Roles]) -> Ints:
    """Return the role of every digit as an array (codes, tensors, digits)."""
    width = len(codes[0]) if codes else 0
    tags = np.frombuffer("".join(codes).encode("ascii"), np.uint8).reshape(len(codes), width)
    role_table = np.zeros((128, len(roles)), np.int64)
    for tensor, role in enumerate(roles):
        for tag, value in role.items():
            role_table[ord(tag), tensor] = value
    return np.ascontiguousarray(role_table[tags].transpose(0, 2, 1))


def stream_layout(code: str) -> Ints:
    """Return the role of every digit for a tensor of the stream."""
    ((layout,),) = layouts((code,), [KINDS["vector"].writes])
    return np.asarray(layout)


def code_sets(block: WaferBlock, digits: Digits, most: int, *, single_axis: bool) -> list[CodeSet]:
    """Return the sets of codes to choose from: all of them (None), or, if an operator has more than
    `most`, several subsets in which all operators cut samples by the same digits. `single_axis`:
    only codes with one tag, if there are any.
    """
    sizes_by_operator = _named_sizes(block)
    if single_axis:
        return [
            {
                name: tuple(c for c in legal_codes(sizes, digits) if len(set(c)) <= 1)
                or legal_codes(sizes, digits)
                for name, sizes in sizes_by_operator.items()
            }
        ]
    if most_codes(block, digits) <= most:
        return [None]
    sets: list[CodeSet] = []
    for cut in end_digits(digits):
        parts = prod(int(digits.radix[d]) for d in cut)
        uncut_digits = digits.count - len(cut)
        if not cut or block.microbatch % parts or 3**uncut_digits > PART_CODES:
            continue
        only = {name: _on_digits(sizes, digits, cut) for name, sizes in sizes_by_operator.items()}
        if all(only.values()):
            sets.append(only)
    return sets


def split_codes(
    block: WaferBlock, digits: Digits, fast: Mapping[str, Sequence[Parts]]
) -> list[CodeSet]:
    """Return the codes with these splits, and all codes of operators not in `fast`."""
    only = {
        name: tuple(
            code
            for code in legal_codes(sizes, digits)
            if name not in fast or parts_of(code, digits) in fast[name]
        )
        for name, sizes in _named_sizes(block).items()
    }
    return [only] if all(only.values()) else []


def _named_sizes(block: WaferBlock) -> dict[str, dict[str, int]]:
    return {unit.name: unit.sizes for unit in block.units} | {"stream": block.stream_sizes}


def most_codes(block: WaferBlock, digits: Digits) -> int:
    """Return (a bound on) the codes of the operator that has most."""
    tags = max(
        sum(size > 1 or tag == "r" for tag, size in sizes.items())
        for sizes in _named_sizes(block).values()
    )
    if tags**digits.count <= 1 << 12:
        return max(len(legal_codes(sizes, digits)) for sizes in _named_sizes(block).values())
    return int(tags**digits.count)


def end_digits(digits: Digits) -> list[tuple[int, ...]]:
    """Return every number of outermost digits of both axes, then of innermost digits."""
    across, count = len(digits.x), digits.count
    numbers = [(x, y) for x in range(across + 1) for y in range(count - across + 1)]
    outer = [(*range(x), *range(across, across + y)) for x, y in numbers]
    inner = [(*range(across - x, across), *range(count - y, count)) for x, y in numbers]
    return list(dict.fromkeys(outer + inner))


def _on_digits(sizes: dict[str, int], digits: Digits, cut: tuple[int, ...]) -> tuple[str, ...]:
    """Return the legal codes that cut samples by exactly these digits."""
    tags = "".join(tag for tag, size in sizes.items() if (size > 1 or tag == "r") and tag != "b")
    choices = tuple("b" if d in cut else tags for d in range(digits.count))
    return _legal_codes(tuple(sizes.items()), digits, choices)


def code_count(sizes: dict[str, int], dies: int) -> int:
    """Count the codes of an operator; digits are primes, so that the shape does not matter."""
    # A dimension larger than the number of dies counts like one of that size.
    bounded_sizes = {
        tag: gcd(size, dies) if tag == "b" else min(size, dies) for tag, size in sizes.items()
    }
    return sum(_codes_by_split(tuple(sorted(bounded_sizes.items())), dies).values())


@lru_cache(maxsize=1 << 14)
def _codes_by_split(sizes: tuple[tuple[str, int], ...], dies: int) -> dict[tuple[int, ...], int]:
    """Return how many codes have each legal split, given as parts in the order of `sizes`."""
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
    return codes_by_split


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
