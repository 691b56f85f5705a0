"""Write a user's run as a row of a table of measured runs, for `validate` and `calibrate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atoll.base.errors import AtollError
from atoll.files.csvfile import append_csv
from atoll.step.layout import Layout
from atoll.training.estimate import Estimate, estimate
from atoll.training.run import Run
from atoll.validation.row_model import ACTIVATIONS, NORMS, POSITIONS
from atoll.validation.row_runs import run_from_row
from atoll.validation.tables import RUN_COLUMNS, RunRow
from atoll.workload.adapters import TARGETS
from atoll.workload.families.model_config import ModelConfig

WIDTHS = ("hidden", "heads", "kv_heads", "head_dim")
TOLERANCE = 1e-3
"""Relative difference in step time or memory up to which a row read back describes the run."""


def append_run(path: Path, name: str, priced: Estimate, measured: dict[str, Any]) -> None:
    """Append a run and its measurements to a table of runs, which must have all its columns."""
    cells = {"id": name, **_model(priced.run.model), **_run(priced.run), **_layout(priced.layout)}
    values = (cells | measured).items()
    row = {name: str(int(v) if isinstance(v, bool) else v) for name, v in values}
    _check(row, priced)

    def aligned(header: Sequence[str]) -> Mapping[str, str]:
        matching = {column: row[column] for column in header if column in row}
        dropped = [column for column, text in row.items() if text and column not in matching]
        try:
            if set(measured) & set(dropped):
                raise AtollError("measurements would be lost")
            _check(matching, priced)
        except AtollError:
            raise AtollError(
                f"{path}: the table has no column {', '.join(dropped)}, which this run needs; add "
                "them to its header and its rows, or give another file"
            ) from None
        return matching

    append_csv(path, list(row), aligned, RUN_COLUMNS, "runs")


def _check(row: Mapping[str, str], priced: Estimate) -> None:
    """Refuse a run that a row cannot describe: its estimate must be the same when read back."""
    try:
        reread = estimate(*run_from_row(RunRow(1, row)))
    except AtollError as error:
        raise AtollError(f"the run cannot be written as a row ({error})") from None
    figures = (reread.step.time_s, priced.step.time_s), (reread.worst.needed, priced.worst.needed)
    if any(abs(mine / theirs - 1) > TOLERANCE for mine, theirs in figures):
        raise AtollError(
            "the run cannot be written as a row: tables of runs have no columns for all that "
            "decides its speed and memory"
        )


def _model(model: ModelConfig) -> dict[str, Any]:
    experts = {
        "n_experts": model.experts,
        "top_k": model.experts_per_token,
        "moe_ffn": model.ffn,
        "shared_expert_ffn": model.shared_ffn,
        "dense_layers": len(model.dense_layers),
        "dense_ffn": model.dense_ffn,
    }
    latent = {
        "kv_lora_rank": model.latent_kv,
        "q_lora_rank": model.latent_q,
        "qk_rope_dim": model.rotary_dim,
        "qk_nope_dim": model.head_dim - (model.rotary_dim or 0),
        "v_head_dim": model.value_dim,
    }
    return {
        "model": model.name,
        **{name: getattr(model, name) for name in ("layers", *WIDTHS)},
        "ffn": model.dense_ffn or model.ffn,
        "vocab": model.vocab,
        "mlp_gated": model.gated,
        "activation": _word(ACTIVATIONS, model.activation),
        "normalization": _word(NORMS, model.norm),
        "position_embedding": _word(POSITIONS, model.positions),
        "tied_embeddings": model.tied_embeddings,
        "bias_qkv": model.attention_bias,
        "bias_linear": model.output_bias,
        "qk_layernorm": model.qk_norm,
        **{name: getattr(model, name) for name in ("dropout", "window", "mtp_layers")},
        **(experts if model.experts else dict.fromkeys(experts, "")),
        **(latent if model.latent_kv else dict.fromkeys(latent, "")),
    }


def _word(meanings: dict[str, str], wanted: str) -> str:
    return next((word for word, meaning in meanings.items() if meaning == wanted), "")


def _run(run: Run) -> dict[str, Any]:
    tuned: dict[str, Any] = dict.fromkeys(("method", "lora_rank", "lora_targets"), "")
    if run.adapters:
        words = {names[0]: word for word, names in TARGETS.items() if len(names) == 1}
        targets = "+".join(words[name] for name in run.adapters.targets)
        tuned = {"method": "lora", "lora_rank": run.adapters.rank, "lora_targets": targets}
    asked = run.question
    usual = run.tool.flags if asked is None or asked.stack is None else ""
    flags = (usual, asked.flags if asked else "")
    return {
        **tuned,
        "device": run.gpu.name,
        "network": run.network.name,
        "devices": run.devices,
        "seq": run.sequence,
        "global_batch": run.global_batch,
        "framework": run.stack.name,
        "flags": " ".join(filter(None, flags)),
        "optimizer_states": run.states.name,
        "attention_kernel": run.attention,
        "precision": run.precision,
    }


def _layout(layout: Layout) -> dict[str, Any]:
    degrees = {name: getattr(layout, name) for name in ("dp", "tp", "pp", "cp", "ep", "etp", "vpp")}
    modules = layout.recompute if "_" in layout.recompute else ""
    return {
        **degrees,
        "micro_batch": layout.microbatch,
        "sp": layout.sp,
        "zero_stage": layout.zero,
        "schedule": layout.schedule,
        "recompute": "selective" if modules else layout.recompute,
        "recompute_modules": modules.replace("+", " "),
    }
