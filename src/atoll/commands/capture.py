"""Bringing one's own model: `atoll capture`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from atoll import printing
from atoll.commands.common import JsonFlag, leave_when_interrupted, print_json


def capture(
    target: Annotated[
        str,
        typer.Argument(
            help="package.module:builder, a config.json (with the transformers library), or an "
            "ONNX file (with the onnx package)."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Write the atoll-model file here.")],
    inputs: Annotated[
        list[str] | None,
        typer.Option(help='Type and shape, "int64[1,4096]" or "labels=int64[1,4096]"; repeatable.'),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the model in the file.")] = None,
    sequence: Annotated[
        int | None, typer.Option(help="Tokens in a sample; the open dimension of an ONNX file.")
    ] = None,
    batch_dim: Annotated[
        int, typer.Option(help="Dimension of the inputs that counts samples; -1 for none.")
    ] = 0,
    dtype: Annotated[
        str, typer.Option(help="Type of weights and floating inputs; keep leaves them.")
    ] = "bfloat16",
    keep: Annotated[
        str, typer.Option(help="Kernels and what they keep: fused (a compiler) or eager (PyTorch).")
    ] = "fused",
    as_json: JsonFlag = False,
) -> None:
    """Capture a PyTorch module or an ONNX graph, forward and backward, without its weights.

    The file can be given wherever a command takes --model.
    """
    from atoll.api import describe_model
    from atoll.tracing import capture_target
    from atoll.workload import StoredModel
    from atoll.workload.stored import check_target

    check_target(out)
    start = time.perf_counter()
    with leave_when_interrupted():
        model: StoredModel = capture_target(
            target,
            inputs or [],
            name=name,
            sequence=sequence,
            batch_dim=None if batch_dim < 0 else batch_dim,
            dtype=None if dtype == "keep" else dtype,
            keep=keep,
        )
    seconds = time.perf_counter() - start
    model.save(out)
    microbatch = model.file.microbatch or 1
    shown: dict[str, Any] = describe_model(str(out), microbatch=microbatch)
    shown |= {"file": str(out), "notes": list(model.file.notes), "seconds": seconds}
    for words in model.file.warnings:
        print(f"atoll: warning: {words}", file=sys.stderr)
    if as_json:
        print_json(shown)
        return
    printing.print_model(shown)
    for note in model.file.notes:
        print(f"note: {note}")
    print(f"{out}: written after {seconds:.1f} s")
