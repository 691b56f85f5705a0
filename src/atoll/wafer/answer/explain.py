"""Explain a stored wafer result: reasons for its mapping, and the gain of more resources.

Gains are finite differences around a mapping. Each change makes a wafer with more of one resource
(the usable area grows with it, and links follow from the free edge as in the template). The
mapping's stages, microbatch, streaming and schedule stay; layers, codes, homes and recomputation
are solved again on the changed wafer, and the old variables are priced there too: the better of the
two counts. If the job did not request this, the stored mapping is priced again on the job's wafer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from atoll.answers.answer import build_from
from atoll.answers.wafer import (
    Ablation,
    ResourceWorth,
    SlowerMapping,
    SlowestStage,
    WaferAnswer,
    WaferExplanation,
)
from atoll.base.errors import AtollError
from atoll.fabric.mesh import Link
from atoll.hardware.wafer import Wafer
from atoll.hardware.wafer_files import load_wafers
from atoll.questions import WaferQuestion
from atoll.wafer.encoding.mapping import mapping_of, validate
from atoll.wafer.evaluate import MappingCost, evaluate
from atoll.wafer.job import options_of
from atoll.wafer.staging.faults import Faults
from atoll.wafer.staging.planner import Planner, WaferOptions, rough

MORE = 1.125  # an eighth: core counts with many factors keep many
UNLIMITED = float("inf")


def _more_cores(wafer: Wafer) -> tuple[str, Wafer]:
    core = wafer.core
    cores = max(core.tensor_cores + 1, round(MORE * core.tensor_cores))
    vectors = max(core.vector_cores + 1, round(MORE * core.vector_cores))
    grown = replace(core, tensor_cores=cores, vector_cores=vectors)
    return f"{core.tensor_cores} to {cores} cores per die", replace(wafer, core=grown)


def _more_sram(wafer: Wafer) -> tuple[str, Wafer]:
    core = wafer.core
    grown = replace(core, glb_bytes=int(MORE * core.glb_bytes))
    words = f"{core.glb_bytes / 2**20:.0f} to {grown.glb_bytes / 2**20:.0f} MiB SRAM per die"
    return words, replace(wafer, core=grown)


def _more_stacks(wafer: Wafer) -> tuple[str, Wafer]:
    words = f"{wafer.stacks} to {wafer.stacks + 1} HBM stacks per die"
    return words, replace(wafer, stacks=wafer.stacks + 1)


def _faster_links(wafer: Wafer) -> tuple[str, Wafer]:
    faster = MORE * wafer.link_Bps
    words = f"links of {wafer.link_Bps / 1e9:.0f} to {faster / 1e9:.0f} GB/s"
    return words, replace(wafer, stated_link_Bps=faster)


def _faster_ports(wafer: Wafer) -> tuple[str, Wafer]:
    faster = MORE * wafer.io_Bps
    words = f"ports of {wafer.io_Bps / 1e9:.0f} to {faster / 1e9:.0f} GB/s"
    return words, replace(wafer, io_Bps=faster)


CHANGES: dict[str, Callable[[Wafer], tuple[str, Wafer]]] = {
    "compute": _more_cores,
    "SRAM": _more_sram,
    "HBM": _more_stacks,
    "links": _faster_links,
    "ports": _faster_ports,
}


def worth(
    resource: str, wafer: Wafer, evaluation: MappingCost, options: WaferOptions,
    dead_links: Sequence[Link],
) -> ResourceWorth | None:  # fmt: skip
    """Return the gain of more of a resource: HBM if dies have DRAM, ports if weights stream."""
    streamed = any("external" in stage.block.homes for stage in evaluation.mapping.stages)
    if (resource == "HBM" and wafer.sram_memory) or (resource == "ports" and not streamed):
        return None
    # A stated area would hide the area of a change: the model's area is added to it.
    unlimited = replace(wafer, usable_mm2=UNLIMITED, max_power_W=None)
    words, changed = CHANGES[resource](unlimited)
    more_mm2 = _site_mm2(changed) - _site_mm2(unlimited)
    best = _replanned(changed, evaluation, options, dead_links)
    gain = best.samples_per_s / evaluation.samples_per_s - 1.0
    area_mm2 = more_mm2 * wafer.dies
    per_area = gain / area_mm2 * 1e3 if area_mm2 > 0.0 else None
    return ResourceWorth(resource, words, best.samples_per_s, gain, area_mm2, per_area)


def _site_mm2(wafer: Wafer) -> float:
    return replace(wafer, stated_die_mm2=None).site_mm2


def _replanned(
    wafer: Wafer, evaluation: MappingCost, options: WaferOptions, dead_links: Sequence[Link]
) -> MappingCost:
    mapping = evaluation.mapping
    best = evaluate(wafer, mapping, dead_links)
    chosen = replace(options, streaming=mapping.streaming)
    planner = Planner(wafer, mapping.model, mapping.batch, mapping.sequence, chosen)
    planned = planner.plan(
        [stage.rectangle for stage in mapping.stages], mapping.microbatch, dead_links,
        schedule=mapping.schedule,
    )  # fmt: skip
    if planned is not None:
        replanned = evaluate(wafer, planned, dead_links)
        if replanned.fits and (not best.fits or replanned.step_s < best.step_s):
            best = replanned
    return best


FROZEN: dict[str, tuple[str, dict[str, object]]] = {
    "recomputation": ("nothing runs again", {"recompute": False}),
    "partition": ("one dimension an operator", {"single_axis": True}),
    "order": ("the factors of an axis nest in one way", {"orders": False}),
    "weight placement": ("optimizer states divided, weights not", {"homes": ("optimizer",)}),
    "streaming": ("collectives block their operators", {"streaming": False}),
    "collectives": ("along lines", {"algorithm": "line"}),
    "gradient codes": ("those of the forward pass", {"passes": False}),
    "offload": ("none", {"offload": False}),
    "zero bubble": ("1F1B", {"zero_bubble": False}),
}
"""By decision variable: its frozen value, in words and as search options."""


def ablations(
    wafer: Wafer, evaluation: MappingCost, options: WaferOptions, dead_links: Sequence[Link]
) -> tuple[Ablation, ...]:
    """Return the worth of each decision variable: the stages solved again with it frozen."""
    mapping, rows = evaluation.mapping, []
    rectangles = [stage.rectangle for stage in mapping.stages]
    for variable, (words, changed) in FROZEN.items():
        if variable == "weight placement" and options.homes == ("external",):
            continue
        frozen = replace(options, **changed)  # type: ignore[arg-type]
        planner = Planner(wafer, mapping.model, mapping.batch, mapping.sequence, frozen)
        restricted = planner.best(rectangles, mapping.microbatch, dead_links=dead_links)
        speed = None if restricted is None else restricted.samples_per_s
        gain = None if speed is None else evaluation.samples_per_s / speed - 1.0
        rows.append(Ablation(variable=variable, frozen=words, samples_per_s=speed, worth=gain))
    return tuple(rows)


SAME = 1e-9
"""Largest relative difference from the recorded step time."""


def explain_wafer_result(result: WaferAnswer, ablate: bool = False) -> WaferExplanation:
    """Explain a mapping: time, slowest stage, runners-up, gains; `ablate`: each variable."""
    best, picture = result.best, result.wafer
    model = best.models[0]
    fullest = max(picture.dies, key=lambda die: die.memory_total_bytes)
    # The runners-up are those of the wafer without faults.
    faulty = picture.dead_dies or picture.dead_links
    gains, note = result.explanation, ""
    frozen: tuple[Ablation, ...] = ()
    if not gains or ablate:
        try:
            wafer, evaluation, options, broken = _repriced(result)
            rows = (worth(name, wafer, evaluation, rough(options), broken) for name in CHANGES)
            gains = gains or tuple(row for row in rows if row is not None)
            frozen = ablations(wafer, evaluation, options, broken) if ablate else ()
        except AtollError as error:
            note = f"What more of a resource would be worth cannot be said: {error}"
    return build_from(
        WaferExplanation,
        model,
        wafer=best.wafer,
        step_time_s=best.placement.step_time_s,
        time_parts_s=best.placement.time_parts_s,
        stages=len(picture.stages),
        slowest_stage=build_from(SlowestStage, max(picture.stages, key=lambda stage: stage.load_s)),
        memory_bytes=fullest.memory_bytes,
        memory_bytes_per_die=picture.memory_bytes_per_die,
        explanation=gains,
        ablations=frozen,
        note=note,
        runners_up=tuple(
            build_from(SlowerMapping, row, slower_by=1.0 - row.samples_per_s / model.samples_per_s)
            for row in (() if faulty else result.runners_up)
        ),
        baselines=result.baselines,
        certificate=result.certificate,
    )


def _repriced(result: WaferAnswer) -> tuple[Wafer, MappingCost, WaferOptions, tuple[Link, ...]]:
    """Return a result's wafer, evaluated mapping, search options and dead links."""
    job = WaferQuestion.from_dict(result.job)
    name = result.best.wafer.name
    wafer = next((wafer for wafer in load_wafers(job.wafer) if wafer.name == name), None)
    if wafer is None:
        raise AtollError(f"{job.wafer} no longer holds the wafer {name}; run the search again.")
    broken = tuple(Faults(job.dead_dies, job.dead_links).all_links(wafer))
    mapping = mapping_of(result.best.mapping)
    validate(mapping, wafer.rows, wafer.columns, job.dead_dies)
    evaluation = evaluate(wafer, mapping, broken)
    recorded_s = result.best.placement.step_time_s
    if abs(evaluation.step_s / recorded_s - 1.0) > SAME:
        raise AtollError(
            f"the mapping takes {evaluation.step_s:.6g} s here, {recorded_s:.6g} s are on record: "
            "the wafer's file, the model or atoll has changed; run the search again."
        )
    return wafer, evaluation, options_of(job, wafer), broken
