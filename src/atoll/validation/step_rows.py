"""Steps of Hugging Face models on one device: rows of the schema of `h200_steps.csv` as run rows.

Columns: model, family, layers, hidden, heads, kv_heads, ffn, vocab, experts, top_k, dropout,
tied_embeddings, mbs, seq, recompute (0 or 1), accum, compiled, step_ms, peak_bytes. Parameters,
gradients and moments are 16-bit; `benchmarks/measure_steps.py` writes such files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from atoll.base.errors import AtollError
from atoll.files.csvfile import CsvLine, read_csv
from atoll.hardware.catalog import load_network
from atoll.hardware.gpu import load_gpu
from atoll.step.layout import Layout
from atoll.step.states import STATES
from atoll.tools.software import flagged
from atoll.tools.stack import STACKS, with_adapters
from atoll.training.run import Run
from atoll.validation.row_model import adapters_from_row
from atoll.validation.run_table import RunRow
from atoll.workload.families.config import config_from_hf
from atoll.workload.families.config_fields import MOST_LAYERS
from atoll.workload.families.model_config import ModelConfig

REQUIRED = ("family", "layers", "hidden", "heads", "ffn", "vocab", "mbs", "seq", "step_ms")
H200_STEPS = files("atoll") / "data" / "h200_steps.csv"
H200_STEPS_LATER = files("atoll") / "data" / "h200_steps_later.csv"


# Names of sizes in configurations of Hugging Face models.
SIZES = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "ffn": "intermediate_size",
    "vocab": "vocab_size",
}
MIXTURE = {
    "n_experts": "num_local_experts",
    "top_k": "num_experts_per_tok",
    "moe_ffn": "moe_intermediate_size",
    "shared_experts": "n_shared_experts",
    "dense_layers": "first_k_dense_replace",
}
# Widths of latent attention that tables omit (arXiv:2412.19437, section 4.2).
LATENT = {
    "deepseek_v3": {
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    }
}
PLAIN: dict[str, Callable[[int], dict[str, Any]]] = {
    "gpt2": lambda sequence: {},
    "opt": lambda sequence: {"activation": "relu", "position_rows": sequence + 2},
    "bert": lambda sequence: {
        "post_norm": True,
        "causal": False,
        "mlm_head": True,
        "token_types": 2,
        "position_rows": 512,
        "embedding_norm": True,
        "final_norm": False,
    },
}


def is_step_file(header: list[str]) -> bool:
    """Return whether a CSV's columns are those of measured steps."""
    return all(name in header for name in REQUIRED)


def read_steps(path: str | Path | Traversable, device: str) -> tuple[RunRow, ...]:
    """Read the file's rows as runs of one device."""
    header, lines = read_csv(path)
    missing = [name for name in REQUIRED if name not in header]
    if missing:
        raise AtollError(f"{path}: the columns {', '.join(missing)} are missing")
    return tuple(_run_row(line, str(path), device) for line in lines)


def _run_row(line: CsvLine, path: str, device: str) -> RunRow:
    """Return a step as a run row, with the columns of both schemas."""
    cells = line.cells
    name = cells.get("model") or cells.get("family", "")
    name = "-".join((name, cells.get("mbs", ""), cells.get("seq", "")))
    values = {**cells, "device": device, "devices": "1"}
    row = RunRow(line.number, name, path, device, "A", values)
    if line.trouble:
        return replace(row, trouble=f"line {line.number}: {line.trouble}")
    try:
        return replace(row, values={**row.values, **_run_cells(row)})
    except AtollError as error:
        return replace(row, trouble=str(error))  # the other rows are still read


def _run_cells(row: RunRow) -> dict[str, str]:
    peak_GB = row.number("peak_bytes", 0.0) / 1e9
    return {
        "global_batch": str(row.count("mbs") * row.count("accum", 1)),
        "micro_batch": row.values["mbs"],
        "recompute": "full" if row.integer("recompute", 0) else "none",
        "measured_iter_time_s": str(row.number("step_ms") / 1e3),
        "measured_peak_mem_GB": str(peak_GB) if peak_GB else "",
        "n_experts": row.values.get("experts", ""),
        "framework": "PyTorch",  # stated, so that no default applies
        "attention_kernel": "flash",
    }


def run_from_step(row: RunRow) -> tuple[Run, Layout]:
    """Return the run and layout of a measured step."""
    gpu = load_gpu(row.device)
    stack = STACKS["compiled" if row.integer("compiled", 0) else "eager"]
    adapters = adapters_from_row(row)
    if row.text("experts_implementation") == "grouped_mm":
        stack = flagged(stack, "grouped_mm")
    run = Run(
        model=model_from_step(row),
        gpu=gpu,
        network=load_network(gpu.network),
        devices=1,
        sequence=row.count("seq"),
        global_batch=row.count("global_batch"),
        stack=with_adapters(stack) if adapters else stack,
        states=STATES["bf16"],
        adapters=adapters,
        fine_tuned=adapters is not None,
    )
    layout = Layout(
        microbatch=row.count("micro_batch"), zero=0, recompute=row.text("recompute", "none")
    )
    return run, layout


def model_from_step(row: RunRow) -> ModelConfig:
    """Return the Hugging Face model of a row's family and sizes."""
    family = row.text("family")
    if family in PLAIN:
        return _plain(row, family)
    fields = {key: row.integer(name) for name, key in SIZES.items() if row.text(name)}
    fields |= {key: size for name, key in MIXTURE.items() if (size := row.integer(name, 0))}
    longest = max(row.count("seq"), 1024)
    tied = bool(row.integer("tied_embeddings", 0))
    config = config_from_hf(
        {
            "model_type": family,
            "max_position_embeddings": longest,
            "tie_word_embeddings": tied,
            **fields,
            **LATENT.get(family, {}),
        },
        f"line {row.line} ({row.id})",
    )
    return replace(config, name=row.text("model", family))


def _plain(row: RunRow, family: str) -> ModelConfig:
    """Return a model of a family without rotary positions and gates."""
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
        tied_embeddings=bool(row.integer("tied_embeddings", 0)),
        dropout=dropout,
        attention_dropout=dropout,
        embedding_dropout=dropout,
    )
    return replace(base, **PLAIN[family](sequence))
