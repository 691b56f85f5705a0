"""Wafer jobs of `atoll search` and `atoll estimate`: options checked, answers printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atoll import printing
from atoll.commands.common import print_json
from atoll.errors import AtollError


def search_wafer(
    job: Path | None,
    wafer: str | None,
    models: list[str] | None,
    given: Mapping[str, Any],
    unknown: Mapping[str, Any],
    as_json: bool,
    out: Path | None,
    trace: Path | None,
) -> None:
    """Run a wafer job; options that only make sense for clusters are refused by name."""
    from atoll.wafer.api import search_wafer as run
    from atoll.wafer.printing import print_wafer_result

    for name, value in unknown.items():
        if value is not None:
            raise AtollError(
                f"{name}: this option is for clusters; with a wafer give --model, --batch, "
                "--sequence, --microbatch, --seed, --pareto or --no-baselines."
            )
    if models is not None and len(models) > 1:
        raise AtollError("model: a wafer job takes one model; run one search for each.")
    if out is not None:
        from atoll.explore.files import check_folder

        check_folder(out)
    with printing.progress(quiet=as_json, noun="candidates") as show:
        result = run(
            job, wafer=wafer, model=models[0] if models else None, progress=show, **given
        )
    if out is not None:
        from atoll.wafer.api import write_wafer_result

        write_wafer_result(result, out)
    if trace is not None:
        from atoll.report.trace import search_trace, write_trace

        write_trace(search_trace(result.to_dict()), trace)
    if as_json:
        print_json(result.to_dict())
    else:
        print_wafer_result(result)


def estimate_wafer(
    job: Path | None, wafer: str | None, mapping: Path | None, as_json: bool, given: Sequence[str]
) -> None:
    """Price one mapping on a wafer; any other option that was given is refused by name."""
    from atoll.wafer.api import estimate_wafer as run
    from atoll.wafer.printing import print_wafer_estimate

    for name in given:
        if name not in ("job", "wafer", "mapping", "as_json"):
            raise AtollError(
                f"{name}: this option is for clusters; an estimate on a wafer takes a job file, "
                "or --wafer with --mapping."
            )
    result = run(job, wafer=wafer, mapping=mapping)
    if as_json:
        print_json(result.to_dict())
    else:
        print_wafer_estimate(result)
