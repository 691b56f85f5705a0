"""Whole steps of Hugging Face models on one device: the schema of `h200_steps.csv` as run rows.

Columns: model, family, layers, hidden, heads, kv_heads, ffn, vocab, experts, top_k, dropout,
tied_embeddings, mbs, seq, recompute (0 or 1), accum, compiled, step_ms, peak_bytes. Parameters,
gradients and moments are 16-bit; `benchmarks/measure_steps.py` writes such files.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from atoll.errors import AtollError
from atoll.hardware.catalog import load_network
from atoll.hardware.gpu import Gpu, load_gpu
from atoll.training.layout import Layout
from atoll.training.rows import RunRow
from atoll.training.run import STATES, Run
from atoll.training.stack import load_stack
from atoll.workload.model_config import ModelConfig

REQUIRED = ("family", "layers", "hidden", "heads", "ffn", "vocab", "mbs", "seq", "step_ms")
H200_STEPS = files("atoll") / "data" / "h200_steps.csv"
H200_STEPS_LATER = files("atoll") / "data" / "h200_steps_later.csv"


def is_step_file(header: list[str]) -> bool:
    """Whether a CSV's columns are those of measured steps."""
    return all(name in header for name in REQUIRED)


def read_steps(path: str | Path | Traversable, device: str) -> tuple[RunRow, ...]:
    """The file's rows, as runs of one device."""
    source = Path(path) if isinstance(path, str) else path
    try:
        rows = list(csv.DictReader(source.read_text(encoding="utf-8").splitlines()))
    except FileNotFoundError:
        raise AtollError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise AtollError(f"{path}: cannot be read as CSV ({error})") from None
    found = []
    for number, row in enumerate(rows, start=2):
        values = {k: v or "" for k, v in row.items() if k is not None}
        identity = "-".join(
            (values.get("model", "") or values["family"], values["mbs"], values["seq"])
        )
        found.append(RunRow(number, identity, str(path), device, "A", _schema(values, device)))
    return tuple(found)


def _schema(values: Mapping[str, str], device: str) -> dict[str, str]:
    """A row in the terms of a run's table, its own columns kept beside them."""
    whole = {name: values.get(name, "") for name in values}
    number = RunRow(0, "", "", device, "", values)
    batch = number.whole("mbs") * number.whole("accum", 1)
    seconds = number.number("step_ms") / 1e3
    peak = number.number("peak_bytes", 0.0) / 1e9
    return whole | {
        "device": device,
        "devices": "1",
        "global_batch": str(batch),
        "micro_batch": values["mbs"],
        "recompute": "full" if number.whole("recompute", 0) else "none",
        "measured_iter_time_s": str(seconds),
        "measured_peak_mem_GB": str(peak) if peak else "",
        "n_experts": values.get("experts", ""),
    }


def step_run_of(row: RunRow) -> tuple[Run, Layout]:
    """The run and layout of a measured step."""
    gpu: Gpu = load_gpu(row.device)
    stack = load_stack("compiled" if row.whole("compiled", 0) else "eager")
    run = Run(
        model=model_of(row),
        gpu=gpu,
        network=load_network(gpu.network),
        devices=1,
        sequence=row.whole("seq"),
        global_batch=row.whole("global_batch"),
        stack=stack,
        states=STATES["bf16"],
    )
    layout = Layout(
        microbatch=row.whole("micro_batch"), zero=0, recompute=row.text("recompute", "none")
    )
    return run, layout


def model_of(row: RunRow) -> ModelConfig:
    """The Hugging Face model of a row's family and sizes."""
    family = row.text("family")
    hidden, heads, sequence = row.whole("hidden"), row.whole("heads"), row.whole("seq")
    dropout = row.number("dropout", 0.0)
    base = ModelConfig(
        name=row.text("model", family),
        family=family,
        hidden=hidden,
        layers=row.whole("layers"),
        heads=heads,
        kv_heads=row.whole("kv_heads", heads),
        head_dim=hidden // heads,
        ffn=row.whole("ffn"),
        vocab=row.whole("vocab"),
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
        return replace(gated, experts=experts, experts_per_token=row.whole("top_k", 2))
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
