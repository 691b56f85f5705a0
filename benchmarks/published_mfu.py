"""The highest MFU of published runs by device, above which an answer is flagged as not credible.

    python benchmarks/published_mfu.py runs.csv runs_2.csv runs_3.csv

Writes src/atoll/data/published_mfu.yaml. Tables have the schema that `atoll validate --data` reads.
MFU counts the FLOPs that every answer counts (`workload/flops.py`), whatever a source counts, over
the measured step. Devices of one silicon count together. Only dense models count, as those with
experts reach less: where fewer than FEWEST runs are left (bf16 on B200 is mixtures alone), the
highest of all devices holds.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml

from atoll.training.accuracy import PUBLISHED_MFU
from atoll.validation.tables import read_runs
from atoll.validation.validate import Prediction, predict
from record import recorded

FEWEST = 6
SILICON = (
    ("v100", "v100-16"),
    ("a100-40", "a100-80", "a800"),
    ("h100", "h100-96", "h200", "h200-nvl", "h800"),
    ("b200", "gb200"),
    ("b300", "gb300"),
    ("trainium1", "trainium1-core"),
)
PRECISIONS = (("bf16", "fp16"), ("fp8", "mxfp8"), ("nvfp4",))
HEADER = """\
# Written by benchmarks/published_mfu.py: the highest MFU of published runs by silicon, precision,
# with the FLOPs of workload/flops.py over the dense 16-bit peak. An entry without devices holds for
# all that have none of their own.
"""
Key = tuple[tuple[str, ...], tuple[str, ...]]


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("tables", type=Path, nargs="+")
    asked.add_argument("--out", type=Path, default=Path(str(PUBLISHED_MFU)))
    given = asked.parse_args()
    entries = list(highest(p for table in given.tables for p in predict(read_runs(table))))
    text = yaml.safe_dump({"highest": entries}, sort_keys=False, default_flow_style=None, width=100)
    given.out.write_text(HEADER + text, encoding="utf-8")
    print("| devices | precision | runs | highest MFU | of |\n|---|---|---|---|---|")
    for entry in entries:
        devices = ", ".join(entry["devices"]) or "any other"
        print(
            f"| {devices} | {', '.join(entry['precisions'])} | {entry['runs']} | "
            f"{100 * entry['mfu']:.1f} % | {entry['run']} |"
        )


def highest(predictions: Iterable[Prediction]) -> Iterator[dict]:
    """The best run of every silicon and precision with enough of them, then of all devices."""
    runs: defaultdict[Key, list[tuple[float, Prediction]]] = defaultdict(list)
    for p in predictions:
        if p.estimate is None or not p.row.time_s or p.estimate.run.model.experts:
            continue
        mfu = p.estimate.mfu * p.estimate.step.time_s / p.row.time_s
        name = p.estimate.run.gpu.name
        devices = next((group for group in SILICON if name in group), (name,))
        precisions = next(group for group in PRECISIONS if p.estimate.run.precision in group)
        runs[devices, precisions].append((mfu, p))
        runs[(), precisions].append((mfu, p))
    for (devices, precisions), found in sorted(runs.items(), key=lambda item: item[0][::-1]):
        if devices and len(found) < FEWEST:
            continue
        mfu, best = max(found, key=lambda pair: pair[0])
        run = best.estimate.run
        yield {
            "devices": list(devices),
            "precisions": list(precisions),
            "mfu": float(f"{mfu:.3f}"),
            "runs": len(found),
            "run": f"{best.row.text('model')} on {run.devices:,} {run.gpu.name}",
            "source": " ".join(best.row.source.split()),
        }


if __name__ == "__main__":
    sys.exit(recorded(main))
