"""Why not an existing device: its figures, its time by class, and a waterfall to the answer.

The waterfall starts with the step that the planner estimates for the device, with its network, its
software and its measured kernels. It then changes one thing after another, keeping all earlier
changes, until the device has become the answer: network, software and cost model, then every part
of the chip (`described_device`). Each step is that of the best layout; a change that leaves no
layout that fits is drawn together with the next. The bars depend on this order; their sum does not.

Existing devices become chips of the search's template: a unit that takes tiles (`Gpu.sms`) becomes
a tensor core with the cells that its peak needs, at the clock of long products in a training step:
nominal clock / (1 + throttle of the calibration). Device files do not say the rest, which is
assumed: 128 columns (square arrays above 128 x 128 cells), 228 KiB and 128 lanes per
multiprocessor, 512 lanes per larger array, and the shared buffer's bandwidth by the rule of spaces.
Units of at most 4,096 cells lose what threads and caches lose, others what compiled scratchpads
lose (`hardware.template.stalls`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, NamedTuple

from atoll.answers import search as answers
from atoll.answers.design import SearchedModel
from atoll.base.errors import AtollError, InfeasibleError
from atoll.base.stopping import Stop, StoppedError
from atoll.base.units import format_bandwidth, format_bytes
from atoll.explore.answer.result import SearchResult
from atoll.explore.baselines import single_chip_space
from atoll.explore.design_builder import DesignBuilder
from atoll.explore.explain.neighbours import Neighbours
from atoll.explore.prepare import existing_device_runs, prepare_search
from atoll.explore.pricing.layouts import SearchSetting
from atoll.explore.pricing.workloads import Variants
from atoll.explore.proof.branch_and_bound import Search
from atoll.explore.proof.exact import exact_search
from atoll.explore.proof.objective import Objective
from atoll.hardware.accelerator import GIB, GLB_BPC_PER_MIB, KIB, MIB, Accelerator
from atoll.hardware.device import Device, TemplateChip
from atoll.hardware.gpu import Gpu
from atoll.hardware.silicon.chip import (
    accelerator_area_mm2,
    chip_stalls,
    chip_template,
    rated_power_W,
    rebanked,
)
from atoll.hardware.template.stalls import CACHED, NO_STALLS, SCRATCHPAD, Stalls
from atoll.questions import SearchQuestion
from atoll.tools.registry import tool_of_stack
from atoll.tools.stack import CHIP
from atoll.training.estimate import Estimate, Estimator
from atoll.training.planner.existing_device import best_estimate, plan_on_device
from atoll.training.run import Run

CLASSES = (
    "products", "attention", "vector", "collectives", "pipeline bubble", "optimizer", "host",
)  # fmt: skip
_BUSY = ("compute", "recompute", "gradient_accumulation")
"""Parts of a step that are divided by class in proportion to the seconds of their operators."""
_UNDIVIDED = {"pipeline_bubble": "pipeline bubble", "optimizer": "optimizer", "host": "host"}
_TOLERANCE = 1e-4


class _Part(NamedTuple):
    """A part of a chip: its fields, and its words."""

    fields: tuple[str, ...]
    words: Callable[[Accelerator], str]


_PARTS = {
    "losses": _Part(("template", "stalls"), lambda chip: losses_words(chip_stalls(chip))),
    "matrix units": _Part(
        ("tensor_cores", "width", "depth", "stated_core_buffer_bytes", "more"),
        lambda chip: f"{chip.tensor_cores} x {chip.width}x{chip.depth}",
    ),
    "clock": _Part(("clock_Hz",), lambda chip: f"{chip.clock_Hz / 1e9:.3g} GHz"),
    "vector lanes": _Part(
        ("vector_cores", "vector_width"), lambda chip: f"{chip.vector_cores * chip.vector_width:,}"
    ),
    "shared buffer": _Part(
        ("glb_bytes", "glb_bandwidth_Bpc"), lambda chip: format_bytes(chip.glb_bytes)
    ),
    "HBM bandwidth": _Part(
        ("bandwidth_Bps",), lambda chip: format_bandwidth(chip.hbm.bandwidth_Bps)
    ),
    "HBM capacity": _Part(("capacity_bytes",), lambda chip: format_bytes(chip.hbm.capacity_bytes)),
}
"""Parts of a chip in the order of the waterfall."""


@dataclass(frozen=True, slots=True)
class _Change:
    """A change, and the step after it; None if no layout fits."""

    change: str
    before: str
    after: str
    step_time_s: float | None
    layout: str


@dataclass(frozen=True)
class DeviceComparer:
    """Compares the answer of a search with existing devices, for its first model."""

    job: SearchQuestion
    chip: Accelerator
    plan: SearchedModel
    setting: SearchSetting
    variants: Variants

    @staticmethod
    def of(answer: answers.SearchAnswer, neighbours: Neighbours) -> DeviceComparer:
        """Prepare comparisons; `neighbours` are those of the same answer."""
        job, plan = SearchQuestion.from_dict(answer.job), answer.best.models[0]
        setting, variants = neighbours.setting, neighbours.variants
        return DeviceComparer.of_first(job, neighbours.chip, plan, setting, variants)

    @staticmethod
    def of_first(
        job: SearchQuestion, chip: Accelerator, plan: SearchedModel, setting: SearchSetting,
        variants: Variants,
    ) -> DeviceComparer:  # fmt: skip
        """Prepare comparisons for the first model of a job."""
        if len(job.models) > 1:
            job = job.changed(model=(job.models[0],))
            setting, variants = prepare_search(job)
        return DeviceComparer(job, chip, plan, setting, variants)

    def in_template(self, device: answers.ExistingDevice, run: Run) -> answers.ExistingDevice:
        """Add the step of a device as a chip of the answer's template."""
        described = described_device(run.gpu, self.chip)
        step = self._evaluated("", "", "", described, replace(self.setting, limit=None))
        return replace(
            device,
            template_step_time_s=step.step_time_s,
            template_clock_GHz=described.clock_Hz / 1e9,
            nominal_clock_GHz=run.gpu.clock_Hz / 1e9,
        )

    def interval_s(self, run: Run) -> tuple[float, float] | None:
        """Return the interval of the answer's step, with the errors that a plan on the chip has;
        `run` is the same job on any device. None where the planner cannot run the layout."""
        chip = replace(
            run, gpu=TemplateChip(self.chip), network=self.setting.network, network_assumed=False,
            stack=CHIP, tool=tool_of_stack(CHIP.name),
        )  # fmt: skip
        placement = self.plan.placement
        try:
            spread = Estimator(chip).estimate(placement.degrees).time_spread
        except AtollError:
            return None
        interval = spread.interval(placement.step_time_s)
        return interval.low, interval.high

    def compare(self, devices: Sequence[str]) -> dict[str, answers.DeviceComparison]:
        """Return the comparison with each device on its usual network and software."""
        runs = existing_device_runs(self.job, devices)
        return {name: self._comparison(run) for name, run in runs.items()}

    def _comparison(self, run: Run) -> answers.DeviceComparison:
        answer_s = self.plan.placement.step_time_s
        try:
            estimate = best_estimate(run)
        except InfeasibleError as error:
            figures = self._figures(run, None)
            return answers.DeviceComparison(
                step_time_s=None, answer_step_time_s=answer_s, figures=figures, remark=str(error)
            )
        described = described_device(run.gpu, self.chip)
        device_s, chip_s = _device_classes_s(estimate), _answer_classes_s(self.plan)
        waterfall = _bars(estimate.step.time_s, self._changes(run, described), answer_s)
        clock = f"{described.clock_Hz / 1e9:.3g} GHz"
        if isinstance(run.gpu, Gpu):
            clock += f", its clock in long products (nominal: {run.gpu.clock_Hz / 1e9:.3g} GHz)"
        return answers.DeviceComparison(
            step_time_s=estimate.step.time_s,
            answer_step_time_s=answer_s,
            figures=self._figures(run, estimate),
            classes_s={name: (device_s[name], chip_s[name]) for name in CLASSES},
            layout=str(estimate.layout),
            described=f"{described.describe()} at {clock}",
            described_step_time_s=next(
                (bar.step_time_s for bar in waterfall if bar.change.endswith("cost model")), None
            ),
            waterfall=waterfall,
        )

    def _figures(self, run: Run, estimate: Estimate | None) -> tuple[answers.ComparedFigure, ...]:
        device, chip = run.gpu, self.chip
        area_mm2 = device.die_mm2 if isinstance(device, Gpu) else None
        shared = device.l2_bytes if isinstance(device, Gpu) else device.accelerator.glb_bytes
        peak_flops = device.peak_flops(device.half_dtype)
        link_Bps = run.network.levels[0].bandwidth_Bps
        chip_link_Bps = self.setting.network.levels[0].bandwidth_Bps
        mfu = None if estimate is None else 100.0 * estimate.mfu
        rows: tuple[tuple[str, str, float | None, float | None], ...] = (
            ("area", "mm2", area_mm2, accelerator_area_mm2(chip)),
            ("rated", "W", device.power_W, rated_power_W(chip)),
            ("peak", "TFLOP/s", peak_flops / 1e12, chip.peak_flops / 1e12),
            ("clock", "GHz", device.clock_Hz / 1e9, chip.clock_Hz / 1e9),
            ("HBM", "TB/s", device.hbm_Bps / 1e12, chip.hbm.bandwidth_Bps / 1e12),
            ("HBM", "GiB", device.hbm_bytes / GIB, chip.hbm.capacity_bytes / GIB),
            ("shared", "MiB", shared / MIB, chip.glb_bytes / MIB),
            ("links", "GB/s", link_Bps / 1e9, chip_link_Bps / 1e9),
            ("MFU", "%", mfu, 100.0 * self.plan.mfu),
        )
        return tuple(
            answers.ComparedFigure(name=name, unit=unit, device=figure, answer=answer_figure)
            for name, unit, figure, answer_figure in rows
        )

    def _changes(self, run: Run, described: Accelerator) -> Iterator[_Change]:
        """Yield what turns the device into the answer, each with the step after it."""
        network, usual = self.setting.network, run.network
        if usual.name != network.name:
            run = replace(run, network=network, network_assumed=False)
            yield _planned("network", usual.name, network.name, run)
        if run.stack.name != CHIP.name:
            compiled = replace(run, stack=CHIP, tool=tool_of_stack(CHIP.name))
            yield _planned("software", run.tool.title, "no host time, less overlap", compiled)
        limit = self.setting.limit
        free = self.setting if limit is None else replace(self.setting, limit=None)
        kernels = "planner" if isinstance(run.gpu, TemplateChip) else "measured kernels"
        yield self._evaluated("cost model", kernels, "template", described, free)
        chip = described
        for name, part in _PARTS.items():
            changed = _with_part(chip, self.chip, part.fields)
            if part.words(changed) != part.words(chip) or name == "matrix units":
                yield self._evaluated(name, part.words(chip), part.words(changed), changed, free)
            chip = changed
        if limit is not None:
            yield self._evaluated("power of a pass", "no limit", limit.words(), chip, self.setting)

    def _evaluated(
        self, change: str, before: str, after: str, chip: Accelerator, setting: SearchSetting
    ) -> _Change:
        """Evaluate a chip with the code of the search."""
        objective = Objective.single(self.variants.workloads[0].global_batch)
        space = single_chip_space(chip, (chip.hbm,))
        search = Search(space, self.variants, setting, objective, _TOLERANCE)
        outcome = exact_search(search)
        if outcome.best is None:
            return _Change(change, before, after, None, "")
        placement = DesignBuilder(search).design(outcome.best).plans[0].placement
        return _Change(change, before, after, placement.step_time_s, placement.layout)


def plan_existing_devices(
    result: SearchResult,
    job: SearchQuestion,
    setting: SearchSetting,
    variants: Variants,
    runs: Mapping[str, Run],
    left_out: dict[str, str],
    stop: Stop,
) -> SearchResult:
    """Plan the job of a search on its existing devices, and compare them with the answer; devices
    for which no time is left are noted in `left_out`."""
    best = result.best
    comparer = DeviceComparer.of_first(job, best.accelerator, best.plans[0], setting, variants)
    planned: list[answers.ExistingDevice] = []
    for name, run in runs.items():
        try:
            planned.append(comparer.in_template(plan_on_device(name, run, stop), run))
        except StoppedError:
            left_out[f"device {name}"] = stop.reason
    interval_s = comparer.interval_s(next(iter(runs.values())))
    return replace(result, beside=tuple(planned), step_time_interval_s=interval_s)


def _with_part(chip: Accelerator, answer: Accelerator, fields: tuple[str, ...]) -> Accelerator:
    """Return the chip with these fields of the answer, or of its memory."""
    if not hasattr(chip, fields[0]):
        memory: Any = {name: getattr(answer.hbm, name) for name in fields}
        return replace(chip, hbm=replace(chip.hbm, **memory))
    numbers: Any = {name: getattr(answer, name) for name in fields}
    return replace(chip, **numbers)


def _planned(change: str, before: str, after: str, run: Run) -> _Change:
    """Estimate a run on the device with the planner."""
    try:
        estimate = best_estimate(run)
    except InfeasibleError:
        return _Change(change, before, after, None, "")
    return _Change(change, before, after, estimate.step.time_s, str(estimate.layout))


def _bars(
    device_s: float, changes: Iterable[_Change], answer_s: float
) -> tuple[answers.WaterfallBar, ...]:
    """Return the bars, whose sum is `answer_s - device_s`."""
    bars: list[answers.WaterfallBar] = []
    before_s = device_s
    unplaced: list[_Change] = []

    def add(joined: Sequence[_Change], step_s: float) -> None:
        change, before, after = (
            ", ".join(getattr(single, name) for single in joined)
            for name in ("change", "before", "after")
        )
        bars.append(
            answers.WaterfallBar(
                change=change,
                before=before,
                after=after,
                step_time_s=step_s,
                added_s=step_s - before_s,
                layout=joined[-1].layout,
            )
        )

    for change in changes:
        unplaced.append(change)
        step_s = change.step_time_s
        if step_s is not None:
            # The answer as it is stored: evaluated again, it differs within the tolerance.
            step_s = answer_s if abs(step_s / answer_s - 1.0) < _TOLERANCE else step_s
            add(unplaced, step_s)
            before_s, unplaced = step_s, []
    if before_s != answer_s:
        again = _Change("stored answer", "evaluated again", "stored", answer_s, "")
        add([*unplaced, again], answer_s)
    return tuple(bars)


def _device_classes_s(estimate: Estimate) -> dict[str, float]:
    kernels_s = estimate.kernel_classes_s
    work_s = {name: kernels_s[name] for name in ("products", "attention")}
    work_s["vector"] = kernels_s["softmax/loss"] + kernels_s["streaming"]
    return _classes_s(estimate.step.breakdown(), work_s)


def _answer_classes_s(plan: SearchedModel) -> dict[str, float]:
    work_s = dict.fromkeys(CLASSES, 0.0)
    for entry in plan.layers:
        for operator in entry.operators:
            name = "products" if operator.core in ("tensor", "pair") else "vector"
            if "attention" in operator.name:
                name = "attention"
            elif operator.core == "link":
                name = "collectives"
            work_s[name] += entry.repeat * operator.duration_s
    return _classes_s(plan.placement.time_parts_s, work_s)


def _classes_s(parts_s: Mapping[str, float], work_s: Mapping[str, float]) -> dict[str, float]:
    """Return a step by class: what the device computes, divided by the seconds of operators."""
    classes_s = dict.fromkeys(CLASSES, 0.0)
    busy_s = sum(parts_s.get(name, 0.0) for name in _BUSY)
    total_s = sum(work_s.values())
    if not total_s:  # the schedules were left out
        classes_s["products"] = busy_s
    for name, operators_s in work_s.items() if total_s else ():
        classes_s[name] += busy_s * operators_s / total_s
    for name, part_s in parts_s.items():
        if name not in _BUSY:
            classes_s[_UNDIVIDED.get(name, "collectives")] += part_s
    return classes_s


# --- Existing devices as chips of the template ----------------------------------------------------


_COLUMNS, _THREADED_CELLS = 128, 4096
_LANES, _ARRAY_LANES = 128, 512
_CORE_BUFFER_BYTES = 228 * KIB
_KINDS = {
    NO_STALLS: "nothing is lost",
    CACHED: "threads and caches",
    SCRATCHPAD: "compiled buffers",
}


def described_device(device: Device, answer: Accelerator) -> Accelerator:
    """Return a device in the template of the answer, with its own losses."""
    template = chip_template(answer)
    if isinstance(device, TemplateChip):
        chip = device.accelerator
        template = replace(template, stalls=chip_stalls(chip))
        return replace(chip, template=template, more=answer.more, name="")
    threaded = device_cells(device) <= _THREADED_CELLS
    cells = device_cells(device)
    width = _COLUMNS if cells <= _COLUMNS**2 else round(sqrt(cells))
    stated = {"dies": float(device.dies), "core_buffer_bytes": float(_CORE_BUFFER_BYTES)}
    more = tuple((p, stated.get(p.name, value)) for p, value in answer.more)
    lost = template.stalls if template.stalls == NO_STALLS else CACHED if threaded else SCRATCHPAD
    chip = replace(
        answer,
        tensor_cores=device.sms,
        width=width,
        depth=max(1, round(cells / width)),
        vector_cores=device.sms,
        vector_width=_LANES if threaded else _ARRAY_LANES,
        stated_core_buffer_bytes=_CORE_BUFFER_BYTES if threaded else 0,
        glb_bytes=device.l2_bytes,
        glb_bandwidth_Bpc=GLB_BPC_PER_MIB * device.l2_bytes / MIB,
        clock_Hz=device.clock_Hz / (1.0 + device.calibration.limit_throttle),
        hbm=replace(answer.hbm, capacity_bytes=device.hbm_bytes, bandwidth_Bps=device.hbm_Bps),
        template=replace(template, stalls=lost),
        more=more,
    )
    return rebanked(chip) if any(p.name == "dies" for p, _ in more) else chip


def device_cells(device: Gpu) -> float:
    """Return the multiply-adds per clock of one unit, from the peak in 16 bits."""
    return device.peak_flops(device.half_dtype) / (2.0 * device.sms * device.clock_Hz)


def losses_words(stalls: Stalls) -> str:
    """Return the kind of losses in words."""
    return _KINDS.get(stalls, "losses of its own")
