"""Sensitivity of the best chip: neighbours with one changed part, evaluated in full.

Each neighbour differs in one part, a step down or a step up, and is priced, scheduled and placed
by the code of the search. Differences are finite, not derivatives: a step may change a tiling.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from atoll.answers.design import ChipFigures
from atoll.answers.plan import Gain, Sensitivity
from atoll.explore.answer.scope import open_space
from atoll.explore.baselines import chip_score
from atoll.explore.pricing.layouts import SearchSetting
from atoll.explore.run import make_objective, prepare_search
from atoll.hardware.accelerator import MIB, Accelerator
from atoll.hardware.silicon.chip import accelerator_area_mm2, rebanked
from atoll.questions import SearchQuestion
from atoll.report.view import SensitivityView

LINK = "link bandwidth"


def sensitivity(
    best_chip: ChipFigures, job: SearchQuestion, unit: str = "score"
) -> SensitivityView:
    """Return the gains of the neighbours of a search's best chip."""
    chip = best_chip.device()
    space = open_space(job)[0]
    setting, variants = prepare_search(job)
    objective = make_objective(job, space, setting, variants)
    base_mm2 = accelerator_area_mm2(chip)
    base_score = chip_score(chip, setting, variants, objective)

    def gain(change: str, changed: Accelerator, changed_setting: SearchSetting) -> Gain:
        changed = rebanked(changed)
        score = chip_score(changed, changed_setting, variants, objective)
        area_mm2 = accelerator_area_mm2(changed) - base_mm2
        pair = None if score is None or not base_score else (score, base_score)
        return Gain(
            change=change,
            gain=pair and pair[0] / pair[1] - 1.0,
            area_mm2=area_mm2,
            score=score,
            per_mm2=(pair[0] - pair[1]) / area_mm2 if pair and abs(area_mm2) >= 1e-9 else None,
        )

    rows = tuple(
        Sensitivity(what=what, less=gain(*less), more=gain(*more))
        for what, less, more in _steps(chip, setting)
    )
    return SensitivityView(unit=unit, per_mm2=True, rows=rows, base=base_score)


Step = tuple[str, Accelerator, SearchSetting]


def _steps(chip: Accelerator, setting: SearchSetting) -> Iterator[tuple[str, Step, Step]]:
    """Yield (part, step down, step up): counts change by 1/8 (at least 1), rates by 1/10."""
    for name in ("tensor_cores", "vector_cores"):
        count = getattr(chip, name)
        step = max(1, count // 8)
        few, many = (
            (f"{changed - count:+d} cores", replace(chip, **{name: changed}), setting)
            for changed in (max(1, count - step), count + step)
        )
        yield name.replace("_", " "), few, many
    yield "shared buffer", _buffer(chip, setting, 0.75), _buffer(chip, setting, 1.25)
    for index, (parameter, _) in enumerate(chip.more):
        less, more = (_template_parameter(chip, setting, index, factor) for factor in (0.75, 1.25))
        if less != more:
            yield parameter.label.lower(), less, more
    if setting.profile.hbm_bandwidth_Bps is None:
        yield "HBM bandwidth", _hbm(chip, setting, 0.9), _hbm(chip, setting, 1.1)
    yield LINK, _links(chip, setting, 0.9), _links(chip, setting, 1.1)


def _buffer(chip: Accelerator, setting: SearchSetting, factor: float) -> Step:
    """Scale the buffer's capacity and bandwidth."""
    size = round(chip.glb_bytes * factor)
    change = f"{(size - chip.glb_bytes) / MIB:+g} MiB"
    bandwidth_Bpc = chip.glb_bandwidth_Bpc * factor
    return change, replace(chip, glb_bytes=size, glb_bandwidth_Bpc=bandwidth_Bpc), setting


def _template_parameter(
    chip: Accelerator, setting: SearchSetting, index: int, factor: float
) -> Step:
    """Scale a parameter that only the chip's template has."""
    parameter, value = chip.more[index]
    changed = max(1, round(value * factor))
    more = (*chip.more[:index], (parameter, changed), *chip.more[index + 1 :])
    return f"to {parameter.shown(changed)}", replace(chip, more=more), setting


def _hbm(chip: Accelerator, setting: SearchSetting, factor: float) -> Step:
    faster = chip.hbm.bandwidth_Bps * factor
    change = f"{(faster - chip.hbm.bandwidth_Bps) / 1e9:+g} GB/s"
    return change, replace(chip, hbm=replace(chip.hbm, bandwidth_Bps=faster)), setting


def _links(chip: Accelerator, setting: SearchSetting, factor: float) -> Step:
    faster_setting = replace(setting, network=setting.network.faster(factor))
    return f"{factor - 1:+.0%} on all levels", chip, faster_setting
