"""Whole steps of Hugging Face models on one device: the schema of `h200_steps.csv` as run rows.

Columns: model, family, layers, hidden, heads, kv_heads, ffn, vocab, experts, top_k, dropout,
tied_embeddings, mbs, seq, recompute (0 or 1), accum, compiled, step_ms, peak_bytes. Parameters,
gradients and moments are 16-bit; `benchmarks/measure_steps.py` writes such files.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from atoll.errors import AtollError
from atoll.files.csvfile import Line, read_csv
from atoll.hardware.catalog import load_network
from atoll.hardware.gpu import load_gpu
from atoll.step.layout import Layout
from atoll.step.states import STATES
from atoll.training.run import Run
from atoll.training.stack import STACKS
from atoll.validation.run_table import RunRow
from atoll.workload.families.config_fields import MOST_LAYERS
from atoll.workload.families.model_config import ModelConfig

REQUIRED = ("family", "layers", "hidden", "heads", "ffn", "vocab", "mbs", "seq", "step_ms")
H200_STEPS = files("atoll") / "data" / "h200_steps.csv"
H200_STEPS_LATER = files("atoll") / "data" / "h200_steps_later.csv"


def is_step_file(header: list[str]) -> bool:
    """Whether a CSV's columns are those of measured steps."""
    return all(name in header for name in REQUIRED)


def read_steps(path: str | Path | Traversable, device: str) -> tuple[RunRow, ...]:
    """The file's rows, as runs of one device."""
    header, lines = read_csv(path)
    missing = [name for name in REQUIRED if name not in header]
    if missing:
        raise AtollError(f"{path}: the columns {', '.join(missing)} are missing")
    return tuple(_run_row(line, str(path), device) for line in lines)


def _run_row(line: Line, path: str, device: str) -> RunRow:
    """A step in the terms of a run's table, its own columns kept beside them."""
    cells = line.cells
    name = cells.get("model") or cells.get("family", "")
    name = "-".join((name, cells.get("mbs", ""), cells.get("seq", "")))
    values = {**cells, "device": device, "devices": "1"}
    own = RunRow(line.number, name, path, device, "A", values)
    if line.trouble:
        return replace(own, trouble=f"line {line.number}: {line.trouble}")
    try:
        return replace(own, values={**own.values, **_as_run(own)})
    except AtollError as error:
        return replace(own, trouble=str(error))  # the other rows are still worth reading


def _as_run(own: RunRow) -> dict[str, str]:
    peak_GB = own.number("peak_bytes", 0.0) / 1e9
    return {
        "global_batch": str(own.count("mbs") * own.count("accum", 1)),
        "micro_batch": own.values["mbs"],
        "recompute": "full" if own.whole("recompute", 0) else "none",
        "measured_iter_time_s": str(own.number("step_ms") / 1e3),
        "measured_peak_mem_GB": str(peak_GB) if peak_GB else "",
        "n_experts": own.values.get("experts", ""),
        "framework": "PyTorch",  # and no other, so that nobody guesses
        "attention_kernel": "flash",
    }


def step_run_of(row: RunRow) -> tuple[Run, Layout]:
    """The run and layout of a measured step."""
    gpu = load_gpu(row.device)
    stack = STACKS["compiled" if row.whole("compiled", 0) else "eager"]
    run = Run(
        model=model_of(row),
        gpu=gpu,
        network=load_network(gpu.network),
        devices=1,
        sequence=row.count("seq"),
        global_batch=row.count("global_batch"),
        stack=stack,
        states=STATES["bf16"],
    )
    layout = Layout(
        microbatch=row.count("micro_batch"), zero=0, recompute=row.text("recompute", "none")
    )
    return run, layout


def model_of(row: RunRow) -> ModelConfig:
    """The Hugging Face model of a row's family and sizes."""
    family = row.text("family")
    hidden, heads, sequence = row.count("hidden"), row.count("heads"), row.count("seq")
    if hidden % heads:
        raise AtollError(f"line {row.line} ({row.id}): heads {heads} do not divide hidden {hidden}")
    dropout = row.number("dropout", 0.0)
    base = ModelConfig(
        name=row.text("model", family),
        family=family,
        hidden=hidden,
        layers=row.count("layers", most=MOST_LAYERS),
        heads=heads,
        kv_heads=row.count("kv_heads", heads),
        head_dim=hidden // heads,
        ffn=row.count("ffn"),
        vocab=row.count("vocab"),
        max_sequence=max(sequence, 1024),
        position_rows=max(sequence, 1024),
        tied_embeddings=bool(row.whole("tied_embeddings", 0)),
        dropout=dropout,
        attention_dropout=dropout,
        embedding_dropout=dropout,
    )
    return _family(base, row, family, sequence)


def _family(base: ModelConfig, row: RunRow, family: str, sequence: int) -> ModelConfig:
    if family in ("llama", "mistral", "qwen2", "mixtral"):
        gated = replace(
            base,
            gated=True,
            activation="silu",
            norm="rmsnorm",
            positions="rotary",
            attention_bias=family == "qwen2",
            output_bias=False,
            mlp_bias=False,
        )
        experts = row.whole("n_experts", 0)
        if not experts:
            return gated
        return replace(gated, experts=experts, experts_per_token=row.count("top_k", 2))
    if family == "opt":
        return replace(base, activation="relu", position_rows=sequence + 2)
    if family == "bert":
        return replace(
            base,
            post_norm=True,
            causal=False,
            mlm_head=True,
            token_types=2,
            position_rows=512,
            embedding_norm=True,
            final_norm=False,
        )
    if family == "gpt2":
        return base
    raise AtollError(f"family {family!r} of measured steps is not known")
