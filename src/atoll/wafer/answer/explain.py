"""What a little more of each resource would be worth: finite differences around a found mapping.

Each change makes a wafer with more of one thing (the usable area grows with it, and links follow
from the free edge as the template says). The found mapping's stages, microbatch, streaming and
schedule stay; layers, codes, homes and recomputation are solved again on the changed wafer, and the
old genes are priced there too, so that the better of the two counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from atoll.fabric.mesh import Link
from atoll.hardware.wafer import Wafer
from atoll.wafer.evaluate import Evaluation, evaluate
from atoll.wafer.stages import Options, Planner

MORE = 1.125  # an eighth: core counts with many factors keep many
UNLIMITED = float("inf")


@dataclass(frozen=True)
class Worth:
    """One change and what it brings."""

    resource: str
    change: str
    samples_per_s: float
    gain: float
    """Relative throughput; negative where what it takes away costs more."""
    area_mm2: float
    """More area of the whole wafer."""

    @property
    def gain_per_1000_mm2(self) -> float | None:
        return self.gain / self.area_mm2 * 1e3 if self.area_mm2 > 0.0 else None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"gain_per_1000_mm2": self.gain_per_1000_mm2}


def _more_cores(wafer: Wafer) -> tuple[str, Wafer]:
    core = wafer.core
    cores = max(core.tensor_cores + 1, round(MORE * core.tensor_cores))
    vectors = max(core.vector_cores + 1, round(MORE * core.vector_cores))
    grown = replace(core, tensor_cores=cores, vector_cores=vectors)
    return f"{core.tensor_cores} to {cores} cores a die", replace(wafer, core=grown)


def _more_sram(wafer: Wafer) -> tuple[str, Wafer]:
    core = wafer.core
    grown = replace(core, glb_bytes=int(MORE * core.glb_bytes))
    words = f"{core.glb_bytes / 2**20:.0f} to {grown.glb_bytes / 2**20:.0f} MiB SRAM a die"
    return words, replace(wafer, core=grown)


def _more_stacks(wafer: Wafer) -> tuple[str, Wafer]:
    words = f"{wafer.stacks} to {wafer.stacks + 1} HBM stacks a die"
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


def explain(
    wafer: Wafer, found: Evaluation, options: Options, dead_links: tuple[Link, ...] = ()
) -> tuple[Worth, ...]:
    """Each resource's worth; HBM only where a die has DRAM, ports only where weights stream."""
    streamed = any("external" in stage.block.homes for stage in found.mapping.stages)
    # A stated area would hide what a change takes: the model's area is added to it.
    roomy = replace(wafer, usable_mm2=UNLIMITED, max_power_W=None)
    rows = []
    for resource, change in CHANGES.items():
        if (resource == "HBM" and wafer.sram_memory) or (resource == "ports" and not streamed):
            continue
        words, changed = change(roomy)
        more_mm2 = _site_mm2(changed) - _site_mm2(roomy)
        best = _again(changed, found, options, dead_links)
        gain = best.samples_per_s / found.samples_per_s - 1.0
        rows.append(Worth(resource, words, best.samples_per_s, gain, more_mm2 * wafer.dies))
    return tuple(rows)


def _site_mm2(wafer: Wafer) -> float:
    return replace(wafer, stated_die_mm2=None).site_mm2


def _again(
    wafer: Wafer, found: Evaluation, options: Options, dead_links: tuple[Link, ...]
) -> Evaluation:
    mapping = found.mapping
    best = evaluate(wafer, mapping, dead_links)
    chosen = replace(options, streaming=mapping.streaming)
    planner = Planner(wafer, mapping.model, mapping.batch, mapping.sequence, chosen)
    planned = planner.plan(
        [stage.rectangle for stage in mapping.stages], mapping.microbatch, dead_links,
        schedule=mapping.schedule,
    )  # fmt: skip
    if planned is not None:
        other = evaluate(wafer, planned, dead_links)
        if other.fits and (not best.fits or other.step_s < best.step_s):
            best = other
    return best
