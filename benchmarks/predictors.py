"""Atoll beside other predictors on measured runs, as Markdown: what docs/bench.md shows.

    python benchmarks/predictors.py runs.csv ... [--oom failed.csv ...]

The same as `atoll bench`, which says more; tables of the schema that `atoll validate` reads.
"""

from __future__ import annotations

import argparse
import sys

import atoll
from atoll.answers.validation import BenchAnswer, BenchScore
from record import figure, recorded

KINDS = ("kind", "size", "precision", "device")
FEWEST = 5
"""Rows of a group that is shown."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="+")
    parser.add_argument("--oom", nargs="*", default=[])
    given = parser.parse_args()
    found = atoll.bench(given.files, oom=given.oom)
    print(f"{found.rows} rows, {found.shared} of two predictors or more, {found.common} of all\n")
    overall(found)
    by_group(found)
    closer(found)
    refused(found)
    for one in found.predictors:
        figure(f"step time {one.name}", one.all.step_time.mean_ape or 0.0)


def share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}".replace("%", " %")


def overall(found: BenchAnswer) -> None:
    columns = (
        "predictor", "rows", "step time: mean", "median", "90th percentile", "peak memory: mean",
        "ran, said to fit", "out of memory, said to be", "regret", "rows a second",
    )  # fmt: skip
    print("| " + " | ".join(columns) + " |")
    print("|---" * len(columns) + "|")
    for name, pick in (("", lambda one: one.all), (" on rows of all", lambda one: one.common)):
        for one in found.predictors:
            score: BenchScore = pick(one)
            time = score.step_time
            shares = (
                time.mean_ape, time.median_ape, time.p90_ape, score.memory.mean_ape,
                score.accepted_share, score.rejected_share, score.regret.mean,
            )  # fmt: skip
            cells = [f"{one.name}{name}", str(score.rows), *map(share, shares)]
            print("| " + " | ".join([*cells, f"{float(f'{one.per_second:.2g}'):,.0f}"]) + " |")
    print()


def by_group(found: BenchAnswer) -> None:
    names = [one.name for one in found.predictors]
    print("| rows | " + " | ".join(names) + " |")
    print("|---" * (len(names) + 1) + "|")
    for kind in KINDS:
        for group, first in found.predictors[0].groups[kind].items():
            if first.step_time.rows < FEWEST:
                continue
            cells = []
            for one in found.predictors:
                time = one.groups[kind][group].step_time
                cells.append(f"{share(time.mean_ape)} ({time.rows})" if time.rows else "")
            print(f"| {kind} {group} | " + " | ".join(cells) + " |")
    print()


def closer(found: BenchAnswer) -> None:
    """Groups in which another predictor is closer than the first on the same rows."""
    first = found.predictors[0].name
    print(f"| rows | predictor | its error | {first}'s on the same rows |")
    print("|---|---|---|---|")
    for one in found.predictors[1:]:
        for kind in (*KINDS, "source"):
            for group, score in one.groups[kind].items():
                theirs, ours = score.step_time, score.first
                if theirs.rows and (theirs.mean_ape or 0) < (ours.mean_ape or 0):
                    which = f"{kind} {group} ({theirs.rows})"
                    print(f"| {which} | {one.name} | {share(theirs.mean_ape)} "
                          f"| {share(ours.mean_ape)} |")  # fmt: skip
    print()


def refused(found: BenchAnswer) -> None:
    print("| predictor | cannot express | rows |")
    print("|---|---|---|")
    for one in found.predictors:
        for reason, count in one.refused.items():
            print(f"| {one.name} | {reason.removesuffix(' cannot be expressed')} | {count} |")


if __name__ == "__main__":
    sys.exit(recorded(main))
