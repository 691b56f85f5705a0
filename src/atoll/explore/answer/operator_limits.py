"""The time of every operator of a design, and what limits it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from atoll.answers.answer import build_from
from atoll.answers.design import LayerPass, MappedProduct, ScheduledOperator
from atoll.cost import gemm_kernels as kernels
from atoll.cost.model import MAPPER, mapping_records
from atoll.cost.table import cost_model, product_shapes
from atoll.cost.table_kernels import LINK, NONE, VECTOR, Costs
from atoll.explore.pricing.evaluate import PricedChips
from atoll.explore.pricing.workloads import Variant
from atoll.schedule.problem import Schedule

_RESIDENT: dict[int, Literal["streamed panel", "resting panel", "output tile"]] = {
    kernels.A_PANEL: "streamed panel",
    kernels.B_PANEL: "resting panel",
    kernels.C_TILE: "output tile",
}


def layer_report(
    priced: PricedChips, chip: int, variant: Variant, solved: Sequence[Schedule]
) -> tuple[LayerPass, ...]:
    """Return, per layer and pass, the makespan, its proof and the operators with their limits."""
    levels = priced.chips.template.levels
    further = levels.names if levels else ()
    report = []
    ptr, op = priced.passes.arrays.ptr, priced.passes.arrays.op
    for position, (layer, repeat) in enumerate(variant.facts.layers):
        for direction, name in enumerate(("forward", "backward")):
            schedule = solved[2 * position + direction]
            index = 2 * (variant.first_layer + position) + direction
            problem = priced.problem(chip, index)
            operators = []
            for j, operator in enumerate(priced.passes.operators(index)):
                row, option = int(op[ptr[index] + j]), schedule.option[j]
                operators.append(
                    ScheduledOperator(
                        name=operator.name,
                        core=str(operator.core),
                        start_s=schedule.start_s[j],
                        duration_s=float(problem.duration_s[j, option]),
                        tensor_cores=int(problem.demand[j, option, 0]),
                        vector_cores=int(problem.demand[j, option, 1]),
                        limit=limit(priced.costs, chip, row, option, further),
                        flops=operator.flops,
                        moved_bytes=layer.moved_bytes(operator),
                        products=_mapped_products(priced, chip, row, option),
                    )
                )
            report.append(
                build_from(
                    LayerPass,
                    schedule,
                    layer=layer.name,
                    repeat=repeat,
                    pass_=name,
                    operators=tuple(operators),
                )
            )
    return tuple(report)


def _mapped_products(
    priced: PricedChips, chip: int, row: int, option: int
) -> tuple[MappedProduct, ...]:
    """Return the mappings of an operator's matrix products on the cores of an option."""
    chips = priced.chips
    shapes = product_shapes(priced.passes.keys[row], chips.stalls)
    if not shapes or cost_model(chips, priced.setting.profile) is not MAPPER:
        return ()
    configs = chips.tensor_configs
    config = int(priced.costs.tensor_config[chip, option])
    costs, records = mapping_records(shapes, configs)
    cells = configs.cores[config] * configs.width[config] * configs.depth[config]
    return tuple(
        build_from(
            MappedProduct,
            shape,
            streamed="n" if record[kernels.STREAM_N] else "m",
            cores_batch=int(record[kernels.SPLIT_BATCH]),
            cores_rows=int(record[kernels.SPLIT_M]),
            cores_columns=int(record[kernels.SPLIT_N]),
            chunk_rows=int(record[kernels.ROWS]),
            k_parts=int(record[kernels.K_PARTS]),
            tiles_rows=int(record[kernels.TILES_M]),
            tiles_columns=int(record[kernels.TILES_N]),
            resident=_RESIDENT[int(record[kernels.ORDER])],
            buffer_bytes=float(configs.glb_budget_bytes[config]),
            cycles=float(record[kernels.COMPUTE]),
            hbm_bytes=float(costs.hbm_bytes[number, config]),
            glb_bytes=float(costs.glb_bytes[number, config]),
            utilisation=shape.macs / (float(record[kernels.COMPUTE]) * float(cells)),
        )
        for number, (shape, record) in enumerate(zip(shapes, records[:, config], strict=True))
    )


def limit(costs: Costs, chip: int, row: int, option: int, further: Sequence[str] = ()) -> str:
    """Return what limits an operator: tensor, vector, hbm, glb, a further buffer or link."""
    kind = costs.kind[row]
    if kind == LINK:
        hbm_s = float(costs.bytes[row]) / float(costs.hbm_Bps[chip])
        return "hbm" if costs.vector_memory and hbm_s > costs.link_s[row] else "link"
    if kind == NONE:
        return "hbm"
    clock = float(costs.clock_Hz[chip])
    terms: dict[str, float] = {}
    if kind == VECTOR:
        config = costs.vector_config[chip, option]
        terms["vector"] = float(costs.vector_cycles[row, config]) / clock
        bytes_hbm = bytes_glb = float(costs.bytes[row]) if costs.vector_memory else 0.0
    else:
        tensor = costs.tensor_config[chip, option]
        pair = costs.pair_config[chip, option]
        terms["vector"] = float(costs.vector_cycles[row, pair]) / clock
        bytes_hbm = float(costs.hbm_bytes[row, tensor])
        bytes_glb = float(costs.glb_bytes[row, tensor])
    terms["hbm"] = bytes_hbm / float(costs.hbm_Bps[chip])
    terms["glb"] = bytes_glb / float(costs.glb_Bps[chip])
    for level, name in enumerate(further):
        moved = bytes_hbm if kind == VECTOR else float(costs.level_bytes[row, tensor, level])
        terms[name] = moved / float(costs.level_Bps[chip, level])
    slowest = max(terms, key=lambda name: terms[name])
    if kind == VECTOR:
        return slowest
    # A product takes the longest term plus a part of the HBM time: compute where these explain
    # less than its duration.
    duration_s = float(costs.tensor_s[row, tensor])
    explained = terms[slowest] + costs.exposed * terms["hbm"]
    return slowest if explained >= duration_s * (1 - 1e-12) else "tensor"


def shares(report: Sequence[LayerPass]) -> dict[str, float]:
    """Return the share of the layers' time by limit, from operator durations and repeats."""
    totals: dict[str, float] = {}
    for entry in report:
        for operator in entry.operators:
            spent = operator.duration_s * entry.repeat
            totals[operator.limit] = totals.get(operator.limit, 0.0) + spent
    total_s = sum(totals.values()) or 1.0
    ordered = sorted(totals, key=lambda name: -totals[name])
    return {name: float(np.round(totals[name] / total_s, 6)) for name in ordered}
