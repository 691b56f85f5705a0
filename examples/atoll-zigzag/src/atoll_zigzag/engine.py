"""One product on one accelerator through ZigZag's stages."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any

import yaml
from zigzag.mapping.data_movement import DataDirection
from zigzag.mapping.temporal_mapping import TemporalMappingType
from zigzag.opt.loma.engine import NoValidLoopOrderingFoundException
from zigzag.stages.evaluation.cost_model_evaluation import CostModelStage
from zigzag.stages.main import MainStage
from zigzag.stages.mapping.spatial_mapping_generation import SpatialMappingGeneratorStage
from zigzag.stages.mapping.temporal_mapping_generator_stage import TemporalMappingGeneratorStage
from zigzag.stages.parser.accelerator_parser import AcceleratorParserStage
from zigzag.stages.parser.workload_parser import WorkloadParserStage
from zigzag.stages.results.reduce_stages import MinimalLatencyStage, SumStage
from zigzag.stages.workload_iterator import WorkloadStage

from atoll_zigzag import Machine, Mapped

STAGES = [
    WorkloadParserStage,
    AcceleratorParserStage,
    SumStage,
    WorkloadStage,
    MinimalLatencyStage,
    SpatialMappingGeneratorStage,
    MinimalLatencyStage,
    TemporalMappingGeneratorStage,
    CostModelStage,
]
LOOPS = 5
"""Factors of the temporal loops that LOMA orders: all orders of so many are tried."""
FILES = ("accelerator", "mapping", "workload")
INPUT_BITS, SUM_BITS = 16, 32
ALL = ["D1", "D2", "D3"]
_WIDE = 1 << 20  # bits a cycle: wires between a core and its own buffer
_ENDLESS = 1 << 46  # bits of HBM: whether a model fits is not asked here


def mapped(rows: int, columns: int, k: int, on: str, machine: Machine) -> Mapped | None:
    """The fastest order of loops of rows x k (streams) by k x columns (rests), if there is one."""
    unrolled = min(machine.depth, k), min(machine.width, columns)
    cut = rows if on == "rows" else -(-columns // unrolled[1])
    cores = min(machine.cores, cut)
    spatial = {"D1": [f"D1, {unrolled[0]}"], "D2": [f"D2, {unrolled[1]}"]}
    spatial["D3"] = [f"{'D0' if on == 'rows' else 'D2'}, {cores}"]
    # Padded to whole arrays and shares of cores: temporal loops are then whole.
    columns_unit = unrolled[1] * (cores if on == "columns" else 1)
    sizes = [
        _up(rows, cores if on == "rows" else 1),
        _up(k, unrolled[0]),
        _up(columns, columns_unit),
    ]
    links = {"O": "O", "W": "I2", "I": "I1"}
    mapping = [{"name": "default", "spatial_mapping": spatial, "memory_operand_links": links}]
    layer = {
        "id": 0,
        "name": "product",
        "operator_type": "Gemm",
        "equation": "O[d0][d2]+=I[d0][d1]*W[d1][d2]",
        "loop_dims": ["D0", "D1", "D2"],
        "loop_sizes": sizes,
        "operand_precision": {
            "I": INPUT_BITS,
            "W": INPUT_BITS,
            "O": SUM_BITS,
            "O_final": INPUT_BITS,
        },
        "operand_source": {"I": 0, "W": 0},
    }
    files = {"accelerator": accelerator(machine), "mapping": mapping, "workload": [layer]}
    try:
        with tempfile.TemporaryDirectory() as folder:
            for name, content in files.items():
                # Memories are ordered from the arrays outwards.
                text = yaml.safe_dump(content, sort_keys=False)
                (Path(folder) / f"{name}.yaml").write_text(text, encoding="utf-8")
            answers = evaluated(Path(folder), LOOPS)
    except NoValidLoopOrderingFoundException:
        return None
    found = answers[0][1][0][0]
    glb, hbm = (
        sum(_words(levels[at]) for levels in found.memory_word_access.values()) for at in (-2, -1)
    )
    # A port takes a word a cycle: what its stalls leave out is kept to all the same.
    cycles = max(float(found.latency_total2), glb, hbm)
    return Mapped(
        cycles, hbm * machine.hbm_bits_per_cycle / 8, glb * machine.glb_bits_per_cycle / 8
    )


def evaluated(folder: Path, loops: int) -> Any:
    """Run ZigZag on accelerator.yaml, mapping.yaml and workload.yaml of a folder."""
    logging.disable(logging.CRITICAL)
    try:
        return MainStage(
            STAGES,
            **{name: str(folder / f"{name}.yaml") for name in FILES},
            loma_lpf_limit=loops,
            loma_show_progress_bar=False,
            nb_mappings_generated=1,
            enable_mix_spatial_mapping_generation=False,
            access_same_data_considered_as_no_access=True,
            temporal_mapping_type=TemporalMappingType("uneven"),
        ).run()
    finally:
        logging.disable(logging.NOTSET)


def accelerator(machine: Machine) -> dict[str, Any]:
    """The configuration in ZigZag's format; costs of energy and area are not asked for."""
    edge = {"I1": ("tl", "fh"), "O": ("tl", "th", "fh", "fl")}
    every = [f"{o}, {d}" for o in ("I1", "I2", "O") for d in ("fh", "tl")]
    every += ["O, fl", "O, th"]
    memories = {
        "weights": _memory(2 * INPUT_BITS, [], INPUT_BITS, {"I2": ("tl", "fh")}),
        "sums": _memory(2 * SUM_BITS, ["D1"], SUM_BITS, {"O": ("tl", "th", "fh", "fl")}),
        "core": _memory(machine.core_bits, ["D1", "D2"], _WIDE, edge),
        "glb": _shared(machine.glb_bits, machine.glb_bits_per_cycle, every, buffered=True),
        "hbm": _shared(_ENDLESS, machine.hbm_bits_per_cycle, every),
    }
    return {
        "name": "chip",
        "memories": memories,
        "operational_array": {
            "unit_energy": 0.0,
            "unit_area": 0.0,
            "dimensions": ALL,
            "sizes": [machine.depth, machine.width, machine.cores],
            "systolic_dimensions": ["D1", "D2"],
        },
    }


def _memory(
    size: int, served: list[str], bits: int, allocated: dict[str, tuple[str, ...]]
) -> dict[str, Any]:
    """Double buffered, with a port of its own for every direction of every operand."""
    ports = [
        _port(number, "read" if direction in ("tl", "th") else "write", bits, [f"{o}, {direction}"])
        for number, (o, direction) in enumerate(
            (operand, direction) for operand, all_ in allocated.items() for direction in all_
        )
    ]
    return _level(size, list(allocated), served, ports, buffered=True)


def _shared(size: int, bits: int, every: list[str], buffered: bool = False) -> dict[str, Any]:
    return _level(size, ["I1", "I2", "O"], ALL, [_port(0, "read_write", bits, every)], buffered)


def _level(
    size: int, operands: list[str], served: list[str], ports: list[dict[str, Any]], buffered: bool
) -> dict[str, Any]:
    return {
        "size": size,
        "r_cost": 0.0,
        "w_cost": 0.0,
        "area": 0.0,
        "latency": 1,
        "operands": operands,
        "ports": ports,
        "served_dimensions": served,
        "force_double_buffering": buffered,
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


def _words(moved: Any) -> float:
    """Accesses of a memory in all four directions, in words of its port."""
    return float(sum(moved.get(direction) for direction in DataDirection))


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit
