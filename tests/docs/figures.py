"""Draw the figures of docs/concepts.md: `python tests/docs/figures.py` writes docs/pictures/*.svg.

Figures with results (memory, search, interval) show the commands named in their captions.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import log10

import atoll
from docs.written import ROOT

PICTURES = ROOT / "docs" / "pictures"
BLUE, GREEN, ORANGE, GREY, PURPLE, RED = (
    "#4477aa", "#228833", "#ee8866", "#bbbbbb", "#aa3377", "#cc3311",
)  # fmt: skip
WIDTH = 760


def text(x: float, y: float, words: str, anchor: str = "start", colour: str = "#222") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{words}</text>'


def box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'fill="{colour}" stroke="white"/>'
    )


def line(x1: float, y1: float, x2: float, y2: float, colour: str = "#222", width: int = 2) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
        f'stroke="{colour}" stroke-width="{width}"/>'
    )


def save(name: str, height: int, title: str, parts: Iterable[str]) -> None:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="14" role="img"><title>{title}</title>'
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>'
    )
    body = "\n".join([head, *parts, "</svg>"])
    (PICTURES / f"{name}.svg").write_text(body + "\n", encoding="utf-8")


def roofline() -> None:
    """Peak rates of an H100 and the operators of one block by FLOPs per byte of memory."""
    peak_TFLOPs, memory_TBps = 989.0, 3.35
    left, top, bottom, right = 80, 30, 270, 730

    def x(flops_per_byte: float) -> float:
        return left + (right - left) * log10(flops_per_byte / 0.5) / log10(8000)

    def y(TFLOPs: float) -> float:
        return bottom - (bottom - top) * log10(TFLOPs) / log10(2000)

    ridge = peak_TFLOPs / memory_TBps
    parts = [
        line(left, bottom, right, bottom, width=1),
        line(left, top, left, bottom, width=1),
        line(x(0.5), y(0.5 * memory_TBps), x(ridge), y(peak_TFLOPs), BLUE, 3),
        line(x(ridge), y(peak_TFLOPs), right, y(peak_TFLOPs), BLUE, 3),
        text(x(12), y(10), "limited by memory bandwidth (3.35 TB/s)", colour=BLUE),
        text(right, y(peak_TFLOPs) - 8, "limited by compute (989 TFLOP/s)", "end", BLUE),
        text((left + right) / 2, bottom + 40, "FLOPs per byte of memory traffic", "middle"),
        text(left - 70, top - 10, "TFLOP/s"),
    ]
    for value in (1, 10, 100, 1000):
        parts.append(text(x(value), bottom + 20, f"{value:,}", "middle"))
        parts.append(text(left - 8, y(value) + 5, f"{value:,}", "end"))
    for words, intensity in (
        ("norm", 1.2), ("128 rows", 120.0), ("4096 x 4096 x 4096", 1365.0),
    ):  # fmt: skip
        reached = 0.85 * min(peak_TFLOPs, intensity * memory_TBps)
        parts.append(f'<circle cx="{x(intensity):.1f}" cy="{y(reached):.1f}" r="6" fill="{RED}"/>')
        parts.append(text(x(intensity), y(reached) + 24, words, "middle", RED))
    save("roofline", 320, "Roofline of an H100", parts)


def pipeline() -> None:
    """1F1B order: four stages, eight microbatches; a backward takes as long as two forwards."""
    stages, microbatches = 4, 8
    done: dict[tuple[str, int, int], float] = {}
    free = [0.0] * stages
    order = []
    for stage in range(stages):
        warm = min(stages - stage, microbatches)
        passes = [("F", m) for m in range(warm)]
        for m in range(microbatches):
            passes.append(("B", m))
            if warm + m < microbatches:
                passes.append(("F", warm + m))
        order.append(passes)
    placed: list[tuple[int, str, int, float, float]] = []
    while any(order):
        for stage, passes in enumerate(order):
            while passes:
                kind, m = passes[0]
                before = ("F", stage - 1, m) if kind == "F" else ("B", stage + 1, m)
                if kind == "B" and stage == stages - 1:
                    before = ("F", stage, m)
                at_end = kind == "F" and stage == 0
                if not at_end and before not in done:
                    break
                start = max(free[stage], 0.0 if at_end else done[before])
                end = start + (1 if kind == "F" else 2)
                free[stage] = done[kind, stage, m] = end
                placed.append((stage, kind, m, start, end))
                passes.pop(0)
    unit, left = 650 / max(free), 90
    parts = [box(left, 20 + 42 * s, 650, 34, "#eeeeee") for s in range(stages)]
    parts += [text(10, 42 + 42 * s, f"stage {s}") for s in range(stages)]
    for stage, kind, m, start, end in placed:
        colour = BLUE if kind == "F" else GREEN
        parts.append(box(left + start * unit, 20 + 42 * stage, (end - start) * unit, 34, colour))
        middle = left + (start + end) / 2 * unit
        parts.append(text(middle, 42 + 42 * stage, str(m + 1), "middle", "white"))
    parts += [
        box(left, 200, 16, 16, BLUE), text(left + 24, 213, "forward"),
        box(left + 110, 200, 16, 16, GREEN), text(left + 134, 213, "backward"),
        box(left + 230, 200, 16, 16, "#eeeeee"), text(left + 254, 213, "idle (pipeline bubble)"),
        text(740, 213, "time →", "end"),
    ]  # fmt: skip
    save("pipeline", 230, "1F1B pipeline of four stages and eight microbatches", parts)


def memory_by_part() -> None:
    """Memory of the fullest stage by part, with the reserve and the capacity of the device."""
    estimate = atoll.estimate(
        "llama2-13b", "a100-40", 32, batch=256, tp=2, pp=4, vpp=5, zero=1, sp=True
    )
    assert isinstance(estimate.answer, atoll.answers.EstimateAnswer)
    memory = estimate.answer.memory_bytes
    parts_GiB = {name: bytes_ / 2**30 for name, bytes_ in memory.parts.items()}
    needed_GiB, capacity_GiB = memory.needed / 2**30, memory.capacity / 2**30
    unit, at = 700 / capacity_GiB, 30.0
    colours = (BLUE, GREEN, ORANGE, PURPLE, GREY, RED, "#66ccee")
    drawn = []
    largest = sorted(parts_GiB.items(), key=lambda part: -part[1])
    for number, (name, size) in enumerate(largest):
        drawn.append(box(at, 40, size * unit, 50, colours[number % len(colours)]))
        if size * unit > 50:
            drawn.append(text(at + size * unit / 2, 70, name, "middle", "white"))
        at += size * unit
    end = 30 + needed_GiB * unit
    drawn += [
        box(at, 40, end - at, 50, "#dddddd"),
        text((at + end) / 2, 70, "reserve", "middle"),
        line(730, 30, 730, 100, RED, 3),
        text(730, 120, f"capacity {capacity_GiB:.1f} GiB", "end", RED),
        text(end, 28, f"needed {needed_GiB:.1f} GiB", "end"),
        text(30, 120, "allocated by PyTorch, by part"),
    ]
    save("memory", 135, "Memory of one device by part", drawn)


def branch_and_bound() -> None:
    """Chips left after each bound of `atoll search` (logarithmic bars)."""
    rows = (
        ("chips in the space", 52_671, BLUE),
        ("left after the roofline bound", 629, BLUE),
        ("left after the schedule bound: evaluated in full", 156, GREEN),
        ("best chip, proven within 0.1 %", 1, RED),
    )
    parts = []
    for number, (words, count, colour) in enumerate(rows):
        top = 15 + 48 * number
        parts.append(box(30, top, 20 + 330 * log10(count) / log10(52_671), 32, colour))
        parts.append(text(395, top + 21, f"{count:,} {words}"))
    save("branch-and-bound", 210, "Chips left after each bound", parts)


def interval() -> None:
    """Predicted step with its 90 % interval, before and after three measured runs."""
    rows = (("catalogue", 12.9, 14.36, 18.1, BLUE), ("after three runs", 12.6, 14.36, 16.3, GREEN))

    def x(seconds: float) -> float:
        return 170 + (seconds - 11) / 8 * 560

    parts = [line(x(11), 140, x(19), 140, width=1)]
    parts += [text(x(s), 160, f"{s} s", "middle") for s in range(11, 20)]
    for number, (words, low, middle, high, colour) in enumerate(rows):
        top = 40 + 52 * number
        parts.append(text(20, top + 5, words))
        parts.append(line(x(low), top, x(high), top, colour, 10))
        parts.append(f'<circle cx="{x(middle):.1f}" cy="{top}" r="8" fill="white" stroke="#222"/>')
        parts.append(text(x(middle), top - 16, f"{low} to {high} s"))
    save("interval", 175, "Step time with its 90 % interval", parts)


if __name__ == "__main__":
    for draw in (roofline, pipeline, memory_by_part, branch_and_bound, interval):
        draw()
