"""AccPar's choice of partition types, by communication volume alone (Song et al., HPCA 2020).

At every bipartition each weighted layer takes type I (rows of its input), II (its inputs' columns)
or III (its outputs' columns). Within a layer type I moves its weight gradient, II its output, III
its input's gradient, all counted in elements. Between a layer and the next, F being the feature map
and E the error tensor between them, for an equal bipartition (previous type in rows, next in
columns):

            I             II            III
    I       0             (F+E)/4       F/2
    II      E/2           E/2           0
    III     (F+E)/4       0             F/2
"""

from __future__ import annotations

from atoll.fabric.digits import Digits
from atoll.wafer.encoding.block_parts import WaferBlock
from atoll.wafer.encoding.codes import legal

TYPES = ("I", "II", "III")


def volume_between(previous: str, following: str, feature: float, error: float) -> float:
    table = {
        ("I", "I"): 0.0, ("I", "II"): (feature + error) / 4, ("I", "III"): feature / 2,
        ("II", "I"): error / 2, ("II", "II"): error / 2, ("II", "III"): 0.0,
        ("III", "I"): (feature + error) / 4, ("III", "II"): 0.0, ("III", "III"): feature / 2,
    }  # fmt: skip
    return table[previous, following]


def accpar_codes(block: WaferBlock, digits: Digits) -> tuple[str, tuple[str, ...]] | None:
    """Return the stream's layout and a code per operator; None if a dimension is too small."""
    linear = [unit for unit in block.units if unit.kind == "linear"]
    weights = [float(unit.parameters) for unit in linear]
    rows = float(block.microbatch * block.sequence)
    inputs = [rows * unit.sizes["k"] for unit in linear]
    outputs = [rows * unit.sizes["n"] for unit in linear]
    types_by_layer: list[list[str]] = [[] for _ in linear]
    for radix in (int(r) for r in digits.radix):
        types = _cheapest_types(weights, inputs, outputs)
        for i, kind in enumerate(types):
            types_by_layer[i].append(kind)
            if kind == "I":
                inputs[i] /= radix
                outputs[i] /= radix
            elif kind == "II":
                inputs[i] /= radix
                weights[i] /= radix
            else:
                outputs[i] /= radix
                weights[i] /= radix
    linear_codes = [_tags(types, block, digits) for types in types_by_layer]
    codes: list[str] = []
    position = 0
    for unit in block.units:
        if unit.kind == "linear":
            codes.append(linear_codes[position])
            position += 1
        else:
            # The operator after a weighted layer has the layout of its output.
            columns = "h" if unit.kind == "attention" else "c"
            codes.append("".join(columns if t in "nk" else t for t in linear_codes[position - 1]))
    first = linear_codes[0]
    stream = "".join({"k": "c", "n": "r"}.get(tag, tag) for tag in first)
    fits = all(
        legal(code, unit.sizes, digits) for code, unit in zip(codes, block.units, strict=True)
    )
    if not fits or not legal(stream, block.stream_sizes, digits):
        return None
    return stream, tuple(codes)


def _cheapest_types(
    weights: list[float], inputs: list[float], outputs: list[float]
) -> tuple[str, ...]:
    """Return the types with the least volume; the last layer's output feeds the first."""
    count = len(weights)
    best: tuple[float, tuple[str, ...]] | None = None
    for first in TYPES:
        start = _volume_within(first, weights[0], inputs[0], outputs[0])
        best_by_type: dict[str, tuple[float, tuple[str, ...]]] = {first: (start, (first,))}
        for i in range(1, count):
            best_by_type = {
                kind: min(
                    (
                        volume
                        + volume_between(previous, kind, inputs[i], inputs[i])
                        + _volume_within(kind, weights[i], inputs[i], outputs[i]),
                        (*path, kind),
                    )
                    for previous, (volume, path) in best_by_type.items()
                )
                for kind in TYPES
            }
        for last, (volume, path) in best_by_type.items():
            total = volume + volume_between(last, first, inputs[0], inputs[0])
            if best is None or (total, path) < best:
                best = (total, path)
    assert best is not None
    return best[1]


def _volume_within(kind: str, weight: float, inputs: float, outputs: float) -> float:
    return {"I": weight, "II": outputs, "III": inputs}[kind]


def _tags(types: list[str], block: WaferBlock, digits: Digits) -> str:
    """Return the code of types: type I cuts samples while enough are left, then the sequence."""
    left = block.microbatch
    tags = []
    for kind, radix in zip(types, (int(r) for r in digits.radix), strict=True):
        if kind == "I" and left % radix == 0:
            left //= radix
            tags.append("b")
        else:
            tags.append({"I": "s", "II": "k", "III": "n"}[kind])
    return "".join(tags)
