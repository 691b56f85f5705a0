"""The GPU operator model against measured operators that it was not fitted on, as Markdown.

    python benchmarks/gpu_model.py

Fits on half of the shipped H200 measurements, reports the errors on the other half by kind, then
the same for other halves: the spread says how much of the error is luck of the split.
"""

from __future__ import annotations

import sys

from atoll.answers.validation import OperatorsValidation
from atoll.calibration.fit import calibrate
from record import figure, recorded

SALTS = ("", "b", "c", "d", "e")
HEADLINES = ("long", "attention")


def main() -> None:
    reports = {salt: calibrate(salt=salt).held_out for salt in SALTS}
    figure("mean error", reports[""].step_time.mean_ape)
    by_kind(reports[""])
    splits(reports)
    worst(reports[""])


def by_kind(report: OperatorsValidation) -> None:
    print("| operators (held out) | rows | mean | median | 90th percentile | bias |")
    print("|---|---|---|---|---|---|")
    groups = {
        "all": report.step_time,
        "gemm of 50 us and more": report.long,
        "attention, both directions": report.attention,
        **report.by_kind,
    }
    for name, errors in groups.items():
        if errors.rows:
            shares = (getattr(errors, key) for key in ("mean_ape", "median_ape", "p90_ape", "bias"))
            cells = " | ".join(f"{100 * share:.1f} %" for share in shares)
            print(f"| {name} | {errors.rows} | {cells} |")


def splits(reports: dict[str, OperatorsValidation]) -> None:
    print(
        "\n| mean error on the held-out half | " + " | ".join(f"split {s!r}" for s in SALTS) + " |"
    )
    print("|---|" + "---|" * len(SALTS))
    for name in ("step_time", *HEADLINES):
        cells = " | ".join(f"{100 * getattr(reports[salt], name).mean_ape:.1f} %" for salt in SALTS)
        print(f"| {name} | {cells} |")


def worst(report: OperatorsValidation) -> None:
    print("\n| worst held-out rows | measured us | predicted us | error |")
    print("|---|---|---|---|")
    for row in report.worst:
        times = f"{row.measured_s * 1e6:.1f} | {row.predicted_s * 1e6:.1f}"
        print(f"| {row.operator} | {times} | {100 * row.error:+.0f} % |")


if __name__ == "__main__":
    sys.exit(recorded(main))
