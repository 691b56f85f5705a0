"""Wafer jobs of `atoll search` and `atoll estimate`: options checked, answers printed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from atoll import printing
from atoll.commands.common import answer, options_given
from atoll.errors import AtollError
from atoll.keywords import taken_by

_SEARCH = (
    "job", "wafer", "model", "batch", "sequence", "optimizer", "microbatch", "seed", "pareto",
    "no_baselines", "as_json", "out", "trace",
)  # fmt: skip
_ESTIMATE = ("job", "wafer", "mapping", "as_json")


def search_wafer(context: typer.Context, given: Mapping[str, Any]) -> None:
    """Run a wafer job; options that only make sense for clusters are refused by name."""
    from atoll.wafer.answer.printing import print_wafer_result
    from atoll.wafer.api import search_wafer as run

    for name in options_given(context):
        if name not in _SEARCH:
            raise AtollError(
                f"{name}: this option is for clusters; with a wafer give --model, --batch, "
                "--sequence, --optimizer, --microbatch, --seed, --pareto or --no-baselines."
            )
    models, as_json, out, trace = (given[n] for n in ("model", "as_json", "out", "trace"))
    if models is not None and len(models) > 1:
        raise AtollError("model: a wafer job takes one model; run one search for each.")
    if out is not None:
        from atoll.explore.files import check_folder

        check_folder(out)
    with printing.progress(quiet=as_json, noun="candidates") as show:
        options = taken_by(run, given, microbatch="microbatches") | {
            "model": models[0] if models else None,
            "baselines": False if given["no_baselines"] else None,
        }
        result = run(**options, progress=show)
    if out is not None:
        from atoll.wafer.api import write_wafer_result

        write_wafer_result(result, out)
    if trace is not None:
        from atoll.report.trace import search_trace, write_trace

        write_trace(search_trace(result.to_dict()), trace)
    answer(result, as_json, print_wafer_result)


def estimate_wafer(context: typer.Context, given: Mapping[str, Any]) -> None:
    """Price one mapping on a wafer; any other option that was given is refused by name."""
    from atoll.wafer.answer.printing import print_wafer_estimate
    from atoll.wafer.api import estimate_wafer as run

    for name in options_given(context):
        if name not in _ESTIMATE:
            raise AtollError(
                f"{name}: this option is for clusters; an estimate on a wafer takes a job file, "
                "or --wafer with --mapping."
            )
    result = run(**taken_by(run, given))
    answer(result, given["as_json"], print_wafer_estimate)
