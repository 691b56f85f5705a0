"""The result of a search: best design, proof and baselines; printable and serialisable.

On disk it is a folder with result.json, designs.csv and chip.yaml.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.answers.answer import ExplainedResult, build_from
from atoll.answers.certificate import ArchitectureProof
from atoll.answers.design import Record, SearchedModel, SizedChip
from atoll.answers.search import (
    DesignAnswer,
    ExistingDevice,
    FrontAnswer,
    ModelAlone,
    NearAnswer,
    NextChip,
    Robustness,
    SearchAnswer,
    SearchExplanation,
)
from atoll.base.notebook import answer_html, bar_text, summary_lines
from atoll.base.units import FREQUENCY, counted, format_quantity
from atoll.explore.answer.scope import SearchScope
from atoll.explore.pricing.price import PERS
from atoll.hardware.accelerator import Accelerator
from atoll.hardware.catalog import load_network
from atoll.hardware.device import chip_yaml
from atoll.hardware.silicon.chip import chip_template
from atoll.profiles import job_profile
from atoll.questions import SearchQuestion
from atoll.step.certificate import Certificate, times
from atoll.training.uncertainty import error_fits, memory_shares, spread

if TYPE_CHECKING:
    import pandas as pd

MIXED_PROCESS = "areas of 22 nm, energies of 7 nm"
"""For templates that use `hardware.area` and `hardware.energy`."""
_WORTH_SAYING = 0.01  # share of the answer's peak power: a design that saves less is not named


@dataclass(frozen=True)
class Design:
    """An accelerator with the best plan of every model on it."""

    accelerator: Accelerator
    area_mm2: float
    peak_power_W: float
    plans: tuple[SearchedModel, ...]

    def out_of_memory(self, plan: SearchedModel) -> float | None:
        """Return the chance that a plan needs more memory than a device has, as a plan of the
        training planner states it; None where the interval of its memory ends below."""
        worst = max(plan.placement.stages, key=lambda stage: stage.total_memory_bytes)
        shares = memory_shares(plan.placement.zero, worst.memory_parts_bytes)
        error = spread(error_fits().memory, shares)
        capacity_bytes = self.accelerator.hbm.capacity_bytes
        if error.interval(worst.total_memory_bytes).high <= capacity_bytes:
            return None
        return error.chance_above(capacity_bytes / worst.total_memory_bytes)

    def answer(self) -> DesignAnswer:
        first = self.plans[0]
        return build_from(
            DesignAnswer, first, first.placement, accelerator=self.chip(), models=self.plans
        )

    def chip(self) -> SizedChip:
        area_mm2, power_W = self.area_mm2, self.peak_power_W
        return SizedChip.of(self.accelerator, area_mm2=area_mm2, peak_power_W=power_W)


@dataclass(frozen=True)
class SearchResult(ExplainedResult[SearchAnswer, SearchExplanation]):
    """The best chip with its placement, proof and baselines.

    Examples:
        >>> import atoll
        >>> result = atoll.search(model="bert-large", space="tiny.yaml", devices=8)
        >>> result.best.accelerator.tensor_cores, result.certificate.proven
        (8, True)
    """

    job: SearchQuestion
    best: Design
    score: float
    certificate: Certificate
    baselines: Mapping[str, float | None]
    runners_up: tuple[Design, ...]
    designs: Sequence[Record] = field(repr=False)
    """Every evaluated design as a flat record."""
    pareto: Mapping[str, FrontAnswer] = field(repr=False)
    """Fronts of throughput by the name of their cost, where asked for."""
    phases_s: Mapping[str, float] = field(default_factory=dict)
    wall_time_s: float = 0.0
    stopped: str = ""
    """Why the search ended before its proof: "time limit", "interrupted" or nothing."""
    front_stopped: str = ""
    """Why the fronts that were asked for are not complete, in the same words."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """What else is missing or incomplete, and why, in the same words."""
    baseline_remarks: Mapping[str, str] = field(default_factory=dict)
    """Why a baseline is not the answer, where its score does not say it."""
    plateau: tuple[NearAnswer, ...] = ()
    """How many designs come close, and which of them has the least peak power."""
    warnings: tuple[str, ...] = ()
    """What captured models may have counted wrongly."""
    scope: SearchScope | None = None
    """What was searched."""
    beside: tuple[ExistingDevice, ...] = ()
    """Existing devices, planned for the same job."""
    step_time_interval_s: tuple[float, float] | None = None
    """Interval of the first model's step, where existing devices were planned."""
    alone: tuple[ModelAlone, ...] = ()
    """Every model's best chip, where several models share the answer."""
    price_per_device: float | None = None
    """Price of a device of the answer, where the score is throughput per price."""
    ahead: NextChip | None = None
    """The answer compared with the run that it follows, where a run was named."""
    robustness: Robustness | None = None
    """The answer under draws of the physical constants, where asked for."""

    def _robustness_words(self) -> str:
        """The answer under the draws, and how often it beats the existing devices in them."""
        if self.robustness is None:
            return ""
        devices = () if self.job.per or len(self.best.plans) > 1 else self.beside
        return self.robustness.words() + self.robustness.beats_words(devices)

    def _baseline_words(self) -> str:
        """The scores of the baselines relative to that of the answer."""
        ratios = ", ".join(
            f"{name} {'does not fit' if value is None else times(value, self.score)}"
            f"{' over the limits' * ('over the limit' in self.baseline_remarks.get(name, ''))}"
            for name, value in self.baselines.items()
        )
        return f"of this chip's score: {ratios}"

    @property
    def kept(self) -> Path | None:
        return self.job.out

    @property
    def ended_early(self) -> bool:
        """Whether a limit or Ctrl-C came before the end."""
        return bool(self.stopped or self.front_stopped or self.left_out)

    @property
    def network(self) -> str:
        """The network between the chips."""
        return self.job.network or job_profile(self.job).network

    @property
    def given(self) -> str:
        """The conditions of the answer, in words."""
        job, network = self.job, load_network(self.network)
        trained = ", ".join(
            f"{model.name} ({counted(model.batch or job.batch, 'sequence')}"
            f"{f' of {model.sequence:,} tokens' if model.sequence else ''} in a step)"
            for model in job.models
        )
        added = {parameter.name: value for parameter, value in self.best.accelerator.more}
        process_nm = chip_template(self.best.accelerator).process_nm or added.get("process_nm")
        clock = format_quantity(self.best.accelerator.clock_Hz, FREQUENCY, 3)
        return (
            f"{trained}; {counted(job.devices, 'device')} at {clock} on "
            f"{network.sentence(job.devices)}; {job.optimizer or job_profile(job).optimizer} "
            f"optimizer states; {'' if job.precision == 'bf16' else f'{job.precision} products; '}"
            f"{job.profile} profile, "
            f"{MIXED_PROCESS if process_nm is None else f'{process_nm:g} nm'}"
        )

    def _limit_words(self) -> str:
        """Return how much of each limit the chip takes."""
        best, scope = self.best, self.scope
        limits = () if scope is None else (
            ("power", best.peak_power_W, scope.max_power_W, "W"),
            ("area", best.area_mm2, scope.max_area_mm2, "mm2"),
        )  # fmt: skip
        return "; ".join(
            f"{name} {value:.0f} of {limit:,.4g} {unit}"
            for name, value, limit, unit in limits
            if limit
        )

    @property
    def throughput_samples_per_s(self) -> float:
        """Samples per second of the (first) model on the best design."""
        return self.best.plans[0].samples_per_s

    @cached_property
    def answer(self) -> SearchAnswer:
        proof, scope = self.certificate, self.scope
        return build_from(
            SearchAnswer,
            self,
            summary=tuple(self.summary()),
            best=self.best.answer(),
            certificate=ArchitectureProof.of(proof, architectures=proof.items),
            space=None if scope is None else scope.answer(),
            notes=() if scope is None else scope.notes,
            beside={device.device: device for device in self.beside},
            alone={single.model: single for single in self.alone},
            runners_up=tuple(design.answer() for design in self.runners_up),
            job=self.job.to_dict(),
            given=self.given,
        )

    def to_dataframe(self) -> pd.DataFrame:
        """Every evaluated design, best first.

        Returns:
            One row per design: its parameters, area, power, and what each model reaches on it.

        Examples:
            >>> import atoll
            >>> result = atoll.search(model="bert-large", space="tiny.yaml", devices=8)
            >>> int(result.to_dataframe()["tensor_cores"].iloc[0])
            8
        """
        import pandas as pd

        return pd.DataFrame(list(self.designs))

    def price_words(self) -> str:
        """What a device takes, and the score.

        Returns:
            One line of text; nothing where the score is throughput alone.

        Examples:
            >>> import atoll
            >>> atoll.search(model="bert-large", space="tiny.yaml", devices=8).price_words()
            ''
        """
        if self.price_per_device is None or self.job.per is None:
            return ""
        unit = PERS[self.job.per].unit
        what = "samples/s" if len(self.best.plans) == 1 else "of the score"
        return f"{self.score:.4g} {what} per {unit}; {self.price_per_device:,.0f} {unit} per device"

    def plateau_lines(self) -> list[str]:
        """What else comes close: how many designs, and what power they would save.

        Returns:
            Lines of text; none where nothing was counted.

        Examples:
            >>> import atoll
            >>> result = atoll.search(model="bert-large", space="tiny.yaml", devices=8)
            >>> result.plateau_lines()[0]
            'no other within 0.5%, no other within 1%'
        """
        if not self.plateau:
            return []
        lines = [", ".join(near.count_words() for near in self.plateau)]
        chosen = self.best.chip()
        shown_W, worth_W = chosen.peak_power_W, _WORTH_SAYING * chosen.peak_power_W
        for near in self.plateau:
            least = near.least_power
            if least is not None and shown_W - least.peak_power_W > worth_W:
                shown_W = least.peak_power_W
                lines.append(near.power_words(chosen))
        return lines

    def ending_lines(self) -> list[str]:
        """That the search ended early, and what it left out.

        Returns:
            Lines of text; none where it came to its end.

        Examples:
            >>> import atoll
            >>> atoll.search(model="bert-large", space="tiny.yaml", devices=8).ending_lines()
            []
        """
        lines = [f"{self.stopped}: the best design so far"] if self.stopped else []
        if self.left_out:
            whys = " and ".join(dict.fromkeys(self.left_out.values()))
            lines.append(f"{whys}: left out or not complete: {', '.join(self.left_out)}")
        return lines

    def summary(self) -> list[tuple[str, str]]:
        """Return the answer in short: the chip, what to run on it, step time, memory, confidence.

        Returns:
            Lines as (label, text), in the order in which every answer has them.

        Examples:
            >>> import atoll
            >>> result = atoll.search(model="bert-large", space="tiny.yaml", devices=8)
            >>> [label for label, _ in result.summary()]
            ['Chip', 'Limits', 'Run', 'Step', 'Memory', 'Baselines', 'Confidence']
        """
        best, chip = self.best, self.best.accelerator
        figures = (
            f"{best.area_mm2:.1f} mm2, {chip.clock_Hz / 1e9:.3g} GHz, "
            f"{chip.peak_flops / 1e12:.0f} TFLOP/s"
        )
        scope_notes = () if self.scope is None else self.scope.notes
        cautions = (note for note in scope_notes if not note.startswith("layouts not tried"))
        lines = [("Note", words) for words in (*self.warnings, *self.ending_lines(), *cautions)]
        lines.append(("Chip", f"{chip.describe()}: {figures}, {best.peak_power_W:.0f} W peak"))
        if limits := self._limit_words():
            lines.append(("Limits", limits))
        for plan in best.plans:
            lines += plan.summary(chip.hbm.capacity_bytes, best.out_of_memory(plan))
        if self.job.per is not None:
            lines.append(("Cost", self.price_words()))
        if self.robustness is not None:
            lines.append(("Robustness", self._robustness_words()))
        if self.baselines:
            lines.append(("Baselines", self._baseline_words()))
        return [*lines, ("Confidence", self.certificate.sentence())]

    def __str__(self) -> str:
        bars = [bar_text(plan.placement.time_parts_s) for plan in self.best.plans]
        return "\n".join([*summary_lines(self.summary()), *bars])

    def _repr_html_(self) -> str:
        return answer_html(self.summary(), self.best.plans[0].placement.time_parts_s)


# --- Files ----------------------------------------------------------------------------------------


RESULT = "result.json"
DESIGNS = "designs.csv"
CHIP = "chip.yaml"  # the best chip, which `--device` of plan and estimate reads


def result_files(result: SearchResult) -> dict[str, str]:
    """Return the contents of the result files by name."""
    text = io.StringIO()
    columns = list(dict.fromkeys(name for row in result.designs for name in row))
    writer = csv.DictWriter(text, fieldnames=columns)
    writer.writeheader()
    writer.writerows(result.designs)
    return {
        DESIGNS: text.getvalue(),
        CHIP: chip_yaml(result.best.accelerator, "new-chip", result.network),
        RESULT: result.answer.to_json(indent=1),
    }
