"""The chip of a search and the mappings of its matrix products, as input files of ZigZag.

Format: the YAML files of zigzag-dse 3.9 (accelerator, workload, mapping; Mei et al., IEEE Trans.
Computers 70(8), 2021). Every product becomes a layer with the spatial unrolling and the complete
temporal order that Atoll chose, so that ZigZag evaluates this mapping instead of searching one.

ZigZag's loops are whole: products are padded to whole arrays, chunks and tiles. Its memories stall
in bursts where Atoll's stream: partial sums that leave a core while the next rows enter wait there.
The losses of Atoll's template (clock under load, waits of a round) are not in the files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from atoll.answers.design import MappedProduct
from atoll.answers.search import SearchAnswer
from atoll.base.errors import AtollError
from atoll.files.atomic_file import atomic_files, check_folder, record_file
from atoll.hardware.accelerator import Accelerator
from atoll.hardware.energy import core_buffer_bytes_per_mac, template_energy
from atoll.hardware.silicon.systolic import SYSTOLIC

INPUT_BITS, SUM_BITS = 16, 32
_ARRAY = ["D1", "D2", "D3"]
"""Rows of an array (reduction), its columns, and the tensor cores."""
_UNBOUNDED_BITS = 1 << 46  # of HBM: whether a model fits is not asked here
_PADDING, _MORE_TILES = 1.05, 1.3
"""Most padding and most additional tiles that make loops whole."""


class _Loops(NamedTuple):
    """The nest of a product: its padded sizes, spatial unrolling and temporal order."""

    sizes: list[int]
    spatial: dict[str, list[str]]
    temporal: list[list[str | int]]


def write_zigzag(answer: SearchAnswer, folder: Path) -> tuple[Path, ...]:
    """Write accelerator.yaml, workload.yaml and mapping.yaml of a search's answer to a folder.

    Products of a batch, and those whose operands stay on the chip, are left out.
    """
    products = dict(mapped_products(answer))
    if not products:
        raise AtollError(
            "the answer holds no mappings of matrix products that ZigZag could read: its cost "
            "model names none, or an older version stored it; search again."
        )
    chip = answer.best.accelerator.device()
    loops = {name: _loops(product, chip) for name, product in products.items()}
    buffer_bytes = next(iter(products.values())).buffer_bytes
    links = {"memory_operand_links": {"O": "O", "W": "I2", "I": "I1"}}
    mapping = [{"name": "default", **links}] + [
        {"name": name, "spatial_mapping": n.spatial, "temporal_ordering": n.temporal, **links}
        for name, n in loops.items()
    ]
    contents = {
        "accelerator.yaml": _accelerator(chip, buffer_bytes),
        "workload.yaml": [_layer(number, *loop) for number, loop in enumerate(loops.items())],
        "mapping.yaml": mapping,
    }
    check_folder(folder, tuple(contents))
    paths = tuple(folder / name for name in contents)
    with atomic_files(lambda why: f"zigzag: {folder} cannot be written ({why}).", *paths) as parts:
        folder.mkdir(parents=True, exist_ok=True)
        for part, content in zip(parts, contents.values(), strict=True):
            # ZigZag reads memories from the arrays outwards: the order of keys matters.
            part.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    for path in paths:
        record_file(path)
    return paths


def mapped_products(answer: SearchAnswer) -> Iterator[tuple[str, MappedProduct]]:
    """Yield the name and the mapping of each single product that passes through HBM."""
    for plan in answer.best.models:
        for entry in plan.layers:
            for operator in entry.operators:
                for number, product in enumerate(operator.products):
                    if product.batch == 1 and product.k_parts:
                        name = f"{plan.model}.{entry.layer}.{entry.pass_}.{operator.name}"
                        yield f"{name}.{number}" if number else name, product


def _loops(product: MappedProduct, chip: Accelerator) -> _Loops:
    """Return the loop nest of a mapping, innermost loop first."""
    rows, columns = (product.m, product.n) if product.streamed == "m" else (product.n, product.m)
    depth, width = min(chip.depth, product.k), min(chip.width, columns)
    folds, k_parts = _whole(_up(product.k, depth), product.k_parts)
    chunks = _up(_up(rows, product.cores_rows), product.chunk_rows)
    rounds = _up(_up(columns, product.cores_columns), width)
    chunks_inside, tiles_rows = _whole(chunks, product.tiles_rows)
    rounds_inside, tiles_columns = _whole(rounds, product.tiles_columns)
    inner = [("D0", product.chunk_rows), ("D1", folds)]
    if product.resident == "streamed panel":
        outer = [("D0", chunks_inside), ("D2", rounds), ("D1", k_parts), ("D0", tiles_rows)]
        rounds_inside, tiles_columns = rounds, 1
    elif product.resident == "resting panel":
        outer = [("D2", rounds_inside), ("D0", chunks), ("D1", k_parts), ("D2", tiles_columns)]
        chunks_inside, tiles_rows = chunks, 1
    else:
        outer = [("D0", chunks_inside), ("D2", rounds_inside), ("D1", k_parts)]
        outer += [("D0", tiles_rows), ("D2", tiles_columns)]
    cores = [("D0", product.cores_rows), ("D2", product.cores_columns)]
    return _Loops(
        sizes=[
            product.chunk_rows * chunks_inside * tiles_rows * product.cores_rows,
            depth * folds * k_parts,
            width * rounds_inside * tiles_columns * product.cores_columns,
        ],
        spatial={
            "D1": [f"D1, {depth}"],
            "D2": [f"D2, {width}"],
            "D3": [f"{name}, {size}" for name, size in cores if size > 1] or ["D0, 1"],
        },
        temporal=[[name, size] for name, size in inner + outer if size > 1],
    )


def _up(size: int, unit: int) -> int:
    return -(-size // unit)


def _whole(count: int, tiles: int) -> tuple[int, int]:
    """Divide at least `count` into at least `tiles` equal tiles: their size and number."""
    for padded in range(count, int(_PADDING * count) + 1):
        for number in range(tiles, int(_MORE_TILES * tiles) + 1):
            if padded % number == 0:
                return padded // number, number
    number = next(number for number in range(tiles, count + 1) if count % number == 0)
    return count // number, number


def _layer(number: int, name: str, nest: _Loops) -> dict[str, Any]:
    bits = {"I": INPUT_BITS, "W": INPUT_BITS, "O": SUM_BITS, "O_final": INPUT_BITS}
    return {
        "id": number,
        "name": name,
        "operator_type": "Gemm",
        "equation": "O[d0][d2]+=I[d0][d1]*W[d1][d2]",
        "loop_dims": ["D0", "D1", "D2"],
        "loop_sizes": nest.sizes,
        "operand_precision": bits,
        "operand_source": {"I": number, "W": number},
    }


def _accelerator(chip: Accelerator, buffer_bytes: float) -> dict[str, Any]:
    """Describe arrays, core buffers, the shared buffer and HBM; energies are picojoules."""
    energy = template_energy(chip.template or SYSTOLIC)
    rows = int(chip.core_buffer_bytes / (4 * chip.depth + 4 * chip.width))
    glb_bits = int(8 * chip.glb_bandwidth_Bpc)
    hbm_bits = int(8 * chip.hbm.bandwidth_Bps / chip.clock_Hz)
    sums = "tl th fh fl"
    per_mac = float(core_buffer_bytes_per_mac(chip.width, chip.depth))
    mac_J = energy.mac_J + per_mac * energy.core_buffer_J_per_byte
    return {
        "name": "chip",
        "memories": {
            "weights": _memory(2 * INPUT_BITS, [], INPUT_BITS, "I2", "tl fh"),
            "sums": _memory(2 * SUM_BITS, ["D1"], SUM_BITS, "O", sums),
            "core_inputs": _memory(
                8 * 4 * chip.depth * rows, ["D1", "D2"], 2 * chip.depth * INPUT_BITS,
                "I1", "tl fh",
            ),
            # One set of sums: rows leave as the rows of the next chunk enter.
            "core_sums": _memory(
                8 * 4 * chip.width * rows, ["D1", "D2"], 2 * chip.width * SUM_BITS, "O", sums,
                doubled=False,
            ),
            "glb": _shared(int(8 * buffer_bytes), glb_bits, energy.glb_J_per_byte, doubled=True),
            "hbm": _shared(_UNBOUNDED_BITS, hbm_bits, energy.hbm_J_per_byte, doubled=False),
        },
        "operational_array": {
            "unit_energy": mac_J * 1e12,
            "unit_area": 0.0,
            "dimensions": _ARRAY,
            "sizes": [chip.depth, chip.width, chip.tensor_cores],
            "systolic_dimensions": ["D1", "D2"],
        },
    }  # fmt: skip


def _memory(
    bits: int, served: list[str], port_bits: int, operand: str, ways: str, *, doubled: bool = True
) -> dict[str, Any]:
    """Describe a memory with one port for each direction of its operand. Its energy is part of the
    array's."""
    ports = [
        _port(number, "read" if way in ("tl", "th") else "write", port_bits, [f"{operand}, {way}"])
        for number, way in enumerate(ways.split())
    ]
    return _level(bits, [operand], served, ports, doubled=doubled, word_pJ=0.0)


def _shared(bits: int, port_bits: int, J_per_byte: float, *, doubled: bool) -> dict[str, Any]:
    """Describe a memory with one port for all operands."""
    ways = [f"{operand}, {way}" for operand in ("I1", "I2", "O") for way in ("fh", "tl")]
    ports = [_port(0, "read_write", port_bits, [*ways, "O, fl", "O, th"])]
    word_pJ = J_per_byte * port_bits / 8 * 1e12
    return _level(bits, ["I1", "I2", "O"], _ARRAY, ports, doubled=doubled, word_pJ=word_pJ)


def _level(
    bits: int,
    operands: list[str],
    served: list[str],
    ports: list[dict[str, Any]],
    *,
    doubled: bool,
    word_pJ: float,
) -> dict[str, Any]:
    return {
        "size": bits,
        "r_cost": word_pJ,
        "w_cost": word_pJ,
        "area": 0.0,
        "latency": 1,
        "operands": operands,
        "ports": ports,
        "served_dimensions": served,
        "force_double_buffering": doubled,
    }


def _port(number: int, kind: str, bits: int, allocation: list[str]) -> dict[str, Any]:
    prefix = {"read": "r", "write": "w", "read_write": "rw"}[kind]
    return {
        "name": f"{prefix}_port_{number + 1}",
        "type": kind,
        "bandwidth_min": min(bits, INPUT_BITS),
        "bandwidth_max": bits,
        "allocation": allocation,
    }
