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

from atoll.export.zigzag import (
    LINKS,
    SUMS,
    UNBOUNDED_BITS,
    accelerator,
    gemm_layer,
    memory,
    shared_memory,
)
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
_WIDE = 1 << 20  # bits a cycle: wires between a core and its own buffer


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
    mapping = [{"name": "default", "spatial_mapping": spatial, **LINKS}]
    layer = gemm_layer(0, "product", sizes)
    files = {"accelerator": _chip(machine), "mapping": mapping, "workload": [layer]}
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


def _chip(machine: Machine) -> dict[str, Any]:
    """The configuration in ZigZag's format; costs of energy and area are not asked for."""
    edge = {"I1": ("tl", "fh"), "O": SUMS}
    memories = {
        "core": memory(machine.core_bits, ["D1", "D2"], _WIDE, edge),
        "glb": shared_memory(machine.glb_bits, machine.glb_bits_per_cycle, doubled=True),
        "hbm": shared_memory(UNBOUNDED_BITS, machine.hbm_bits_per_cycle),
    }
    return accelerator(memories, [machine.depth, machine.width, machine.cores])


def _words(moved: Any) -> float:
    """Accesses of a memory in all four directions, in words of its port."""
    return float(sum(moved.get(direction) for direction in DataDirection))


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit
