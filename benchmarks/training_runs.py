"""Errors of predicted training runs, as Markdown.

    python benchmarks/training_runs.py                 our H200 steps
    python benchmarks/training_runs.py runs.csv ...    and tables of measured runs

A table has the schema that `atoll validate --data` reads (docs/training.md).
"""

from __future__ import annotations

import sys

from atoll.answers.validation import Errors, GroupErrors, RunsValidation
from atoll.validation.step_rows import H200_STEPS, H200_STEPS_LATER
from atoll.validation.validate import validate_runs
from record import recorded

GROUPS = ("by_grade", "by_device", "by_source", "by_feature")


def main() -> None:
    show("H200 steps that the stack's constants were fitted on", validate_runs(H200_STEPS))
    show("H200 steps measured later", validate_runs(H200_STEPS_LATER))
    for path in sys.argv[1:]:
        show(path, validate_runs(path))


def show(title: str, shown: RunsValidation) -> None:
    print(f"\n## {title}\n")
    print(f"{shown.predicted} of {shown.rows} rows predicted", end="")
    print(f", {shown.accepted} accepted as fitting memory")
    for reason, count in shown.skipped.items():
        print(f"- skipped {count}: {reason}")
    regret = shown.regret
    if regret.groups:
        print(f"- regret over {regret.groups} groups of layouts: mean {regret.mean:.1%}")
    print("\n| rows of | time: rows | mean | median | p90 | memory: rows | mean | median | p90 |")
    print("|---|---|---|---|---|---|---|---|---|")
    line("all", shown)
    for group in GROUPS:
        for name, errors in getattr(shown, group).items():
            line(f"{group.removeprefix('by_')} {name}", errors)
    print("\n| worst rows | error | layout |")
    print("|---|---|---|")
    for row in shown.worst:
        print(f"| {row.id} | {row.error:+.1%} | {row.layout} |")


def line(name: str, errors: GroupErrors | RunsValidation) -> None:
    cells = [*figures(errors.step_time), *figures(errors.memory)]
    print(f"| {name} | {' | '.join(cells)} |")


def figures(errors: Errors) -> list[str]:
    if not errors.rows:
        return ["0", "", "", ""]
    shares = errors.mean_ape, errors.median_ape, errors.p90_ape
    return [str(errors.rows), *(f"{share:.1%}" for share in shares)]


if __name__ == "__main__":
    sys.exit(recorded(main))
