"""What is known of one layout, of estimates and plans in Python as in their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from atoll.answers.answer import Amount, Count, Number, Positive
from atoll.base.errors import AtollError
from atoll.base.units import format_seconds, format_slower
from atoll.files.atomic_file import FolderPath, atomic_files
from atoll.step.layout import Layout
from atoll.step.replay import PassTime


def _possible(layout: Layout) -> Layout:
    """Refuse impossible degrees; whether a run can use the layout is checked later."""
    degrees = (layout.dp, layout.tp, layout.pp, layout.cp, layout.ep, layout.vpp, layout.microbatch)
    if min(degrees) < 1 or max(degrees) > MOST_DEGREE:
        raise ValueError(f"{layout} cannot be")
    return layout


PlannedLayout = Annotated[Layout, AfterValidator(_possible)]
CONFIGURATIONS = (".json", ".py", ".toml", ".yaml")
"""Endings of launch files other than shell scripts, which may have any other one."""
MOST_DEGREE = 10**9
MOST_PASSES = 500_000
"""Passes of all stages that are replayed and drawn at most."""


@dataclass(frozen=True, slots=True)
class ExpectedError:
    """The mean absolute error that is expected of the step time: of a layout, from its parts and
    the errors of measured runs by cause; at a site, that of its own runs.
    """

    of: str
    mean: Amount
    runs: Count
    sources: Count
    extrapolated: bool = False
    """Whether the device was never timed, or the layout is outside the measured ones."""

    def sentence(self) -> str:
        return f"expected error {self.mean:.0%} ({self.of}; {self.runs:,} measured runs)"


@dataclass(frozen=True, slots=True)
class ValueRange:
    low: Amount
    high: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Between what `share` of the runs of this kind were measured."""

    share: Amount
    step_time_s: ValueRange
    memory_bytes: ValueRange
    """Interval of `memory_bytes.total`, which the allocator reports on the fullest stage."""

    def sentence(self, digits: int) -> str:
        low, high = (
            format_seconds(value, digits) for value in (self.step_time_s.low, self.step_time_s.high)
        )
        return f"{self.share:.0%} interval {low} to {high}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorCause:
    """One cause of the uncertainty of an estimate."""

    cause: str
    title: str
    """In words."""
    share: Amount
    """Share of the variance."""
    half_width: Amount
    """Relative half width of the interval if nothing else were uncertain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NarrowedInterval:
    """A fact or a measurement, and the interval that would remain with it."""

    action: str
    step_time_s: ValueRange

    def sentence(self, before: ValueRange) -> str:
        """Return what to do, with the interval before and after."""
        (low, high), (new_low, new_high) = (
            [format_seconds(value, 3) for value in (interval.low, interval.high)]
            for interval in (before, self.step_time_s)
        )
        return f"{self.action}: {low} to {high} becomes {new_low} to {new_high}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncertainty:
    """Why an estimate has its interval, and what would narrow it."""

    causes: tuple[ErrorCause, ...]
    """Of the step time, largest first."""
    memory_causes: tuple[ErrorCause, ...]
    narrowed: tuple[NarrowedInterval, ...]
    """The most effective first."""
    expected_step_time_s: Positive
    """Mean of the distribution, which a plan ranks by."""
    out_of_memory: Amount
    """Chance that the fullest stage runs out of memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassParts:
    """What a stage's passes are made of, in seconds."""

    forward: Mapping[str, Amount]
    backward: Mapping[str, Amount]
    host: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPasses:
    """All that a step is replayed from, so that whoever draws or prints a plan replays the same."""

    schedule: str
    passes: tuple[tuple[PassTime, ...], ...]
    """Per stage: pass times of its chunks on one microbatch."""
    microbatches: Count
    replayed: Annotated[int, Field(gt=0)]
    """Microbatches that are replayed; the remaining ones repeat the steady state."""
    send_s: Amount
    """Mean time of one message between stages."""
    waits_s: tuple[tuple[Amount, Amount], ...] = ()
    delays_s: tuple[tuple[Amount, Amount], ...] = ()
    """Per stage, (activation, gradient): seconds for which the device waits (`waits_s`) and seconds
    on the link (`delays_s`); empty: `send_s` on every link."""
    after: tuple[tuple[str, Amount], ...]
    """Work after the pipeline, or added by every microbatch on all stages."""
    slack: Positive = 1.0
    """Step time / sum of its parts."""
    step_time_s: Positive
    """Estimated step time."""
    parts: tuple[PassParts, ...] = ()
    """Parts per stage."""

    def __post_init__(self) -> None:
        if not self.passes or self.replayed * len(self.passes) > MOST_PASSES:
            raise ValueError(f"{self.replayed} microbatches on {len(self.passes)} stages")

    @property
    def messages_s(self) -> tuple[tuple[tuple[float, float], ...], ...]:
        """Per stage and message: (waiting time of the device, time on the link)."""
        none = ((0.0, 0.0),) * len(self.passes)
        sent = ((self.send_s, self.send_s),) * len(self.passes)
        return self.waits_s or none, self.delays_s or (none if self.waits_s else sent)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFile:
    """The launch file of a tool that can say the layout, or why it cannot."""

    target: str
    file: str = ""
    """Default file name."""
    text: str = ""
    notes: tuple[str, ...] = ()
    """What the target says differently, and what the user must supply."""
    refused: str = ""

    def save(self, path: str | Path = ".") -> Path:
        """Write the file, whole or not at all; a script can be run, and its comments say its name.

        Args:
            path: The file, or a folder, in which it has its usual name; with a slash at its end
                the folder is made.

        Returns:
            The file.

        Raises:
            AtollError: It cannot be written there.

        Examples:
            >>> import atoll
            >>> estimate = atoll.estimate("llama2-7b", "h100", 8, batch=64, tp=2, zero=3)
            >>> estimate.export("torchtitan").save("mine.py").name
            'mine.py'
        """
        target = Path(path)
        is_folder = target.is_dir() or isinstance(path, FolderPath) or str(path).endswith("/")
        file_path = target / self.file if is_folder else target
        usual, suffix = Path(self.file).suffix, target.suffix.replace(".yml", ".yaml")
        if file_path == target and suffix != usual and (usual != ".sh" or suffix in CONFIGURATIONS):
            raise AtollError(
                f"launch_file: {target}: {self.target}'s launch file ends in {usual}; name it "
                f"{target.with_suffix(usual)}, or name a folder ({target}/)"
            )
        with atomic_files(lambda why: f"cannot write {file_path}: {why}", file_path) as (part,):
            if is_folder:
                target.mkdir(parents=True, exist_ok=True)
            text = self.text
            if file_path.name.isprintable():  # comments are one line
                module = f"--module {Path(self.file).stem}"
                lines = text.splitlines(keepends=True)
                text = "".join(
                    line.replace(self.file, file_path.name) if line[0] == "#" else line
                    for line in lines
                )
                text = text.replace(module, f"--module {file_path.stem}")
            part.write_text(text, encoding="utf-8")
            if self.file.endswith(".sh"):
                part.chmod(part.stat().st_mode | 0o111)
        return file_path


class Exportable:
    """What has a layout that training tools can be told."""

    __slots__ = ()

    def export(self, target: str) -> LaunchFile:
        """The launch file of a training tool for the layout.

        Args:
            target: megatron, torchtitan, deepspeed, nemo, or a plug-in's. `atoll.plan(...,
                export=target)` plans with layouts that it can run only.

        Returns:
            The file: `text`, `notes`, and `save` to write it.

        Raises:
            AtollError: The tool cannot run the layout, or is not known.

        Examples:
            >>> import atoll
            >>> estimate = atoll.estimate("llama2-7b", "h100", 8, batch=64, tp=2)
            >>> estimate.export("megatron").save("megatron.sh").name
            'megatron.sh'
        """
        return self._launch_file(target)

    def _launch_file(self, target: str) -> LaunchFile:
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisReason:
    axis: str
    why: str
    axes: PlannedLayout
    """The best with another value; where none fits, the one that needs least memory."""
    slower: Number | None
    """Than the answer; None where it does not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutCandidate:
    """A layout that may be faster in truth."""

    layout: str
    """In words."""
    axes: PlannedLayout
    slower: Number
    tight: bool = False
    """Whether it fits, but not at the upper end of the interval."""


def candidates_words(candidates: Sequence[LayoutCandidate], between: float) -> str:
    """Return which layouts to benchmark and why; empty if none is near."""
    words = "; ".join(
        f"{candidate.layout} ({format_slower(candidate.slower, 1)}{', tight' * candidate.tight})"
        for candidate in candidates
    )
    close = all(abs(candidate.slower) <= between for candidate in candidates)
    why = f"within the model error of {between:.0%}: " if close else ""
    return f"{words}; {why}benchmark too" if words else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnrestrictedLayout:
    """The fastest layout of a runtime that runs every layout, which the tool cannot run."""

    layout: str
    axes: PlannedLayout
    step_time_s: Positive
    saved: Amount
    """Share of the step time of the tool's fastest layout."""
    through: str
    """What the tool lacks, in words."""

    def sentence(self) -> str:
        """Return what an unrestricted runtime could gain."""
        return (
            f"An unrestricted runtime could reach {format_seconds(self.step_time_s)} "
            f"({self.saved:.1%} less than the tool's fastest) through {self.through}: "
            f"{self.layout}."
        )
