"""What the command line captures: a builder, a config.json or an ONNX file, by name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from atoll.base.errors import AtollError
from atoll.tracing.capture import capture, check_request, import_run_module
from atoll.tracing.from_onnx.capture import capture_onnx
from atoll.tracing.inputs import parse_inputs
from atoll.workload.stored import StoredModel


def capture_target(
    target: str,
    inputs: Sequence[str],
    *,
    name: str | None = None,
    sequence: int | None = None,
    batch_dim: int | None = 0,
    dtype: str | None = "bfloat16",
    keep: Literal["fused", "eager"] = "fused",
) -> StoredModel:
    """As `capture`, for a "package.module:builder", a config.json or an ONNX file, and inputs in
    words."""
    form: dict[str, Any] = {"batch_dim": batch_dim, "dtype": dtype, "keep": keep}
    if target.endswith(".onnx"):
        return capture_onnx(target, name=name, inputs=inputs, sequence=sequence, **form)
    run_module = import_run_module()
    check_request(keep, sequence)
    example_inputs: Any = _inputs(inputs, run_module)
    if target.endswith(".json") or Path(target).is_dir():
        from atoll.tracing.record.huggingface import module_from_config

        module, examples = module_from_config(target, sequence=sequence or 512)
        path = Path(target)
        name = name or (path.stem if path.name != "config.json" else path.parent.name)
        tokens = sequence if "input_ids" in examples else None
        return capture(module, example_inputs or examples, name=name, sequence=tokens, **form)
    if not example_inputs:
        raise AtollError(
            'inputs: at least one is needed, such as --inputs "int64[1,4096]" or '
            '--inputs "input_ids=int64[1,4096]"'
        )
    name = name or target.rpartition(":")[2]
    return capture(_builder(target), example_inputs, name=name, sequence=sequence, **form)


def _builder(target: str) -> Any:
    module_name, colon, attribute = target.partition(":")
    if not colon or not module_name or not attribute:
        raise AtollError(
            f"{target}: expected package.module:builder (a function that returns the module, the "
            "module's class, or the module itself) or a config.json"
        )
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        builder: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever the user's file raises
        first = (str(error) or "no message").strip().splitlines()[0]
        kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
        raise AtollError(f"{target}: cannot import {module_name} ({kind}{first})") from None
    for part in attribute.split("."):
        if not hasattr(builder, part):
            raise AtollError(f"{target}: {module_name} has no {attribute!r}")
        builder = getattr(builder, part)
    return builder


def _inputs(texts: Sequence[str], run_module: Any) -> tuple[Any, ...] | dict[str, Any]:
    """Example inputs from "int64[1,4096]" (in order) or "labels=int64[1,4096]" (by name)."""
    example = "int64[1,4096] or labels=int64[1,4096]"
    parsed = parse_inputs(texts, example)
    for text, (_, _, shape) in zip(texts, parsed, strict=True):
        if 0 in shape:
            raise AtollError(f"inputs: every size must be at least 1, got {text!r}")
    tensors = [(name, run_module.make_tensor(shape, dtype)) for name, dtype, shape in parsed]
    named = {name: tensor for name, tensor in tensors if name}
    return named or tuple(tensor for _, tensor in tensors)
