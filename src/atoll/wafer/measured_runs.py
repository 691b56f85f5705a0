"""Compare predictions with runs on wafers and on tori of TPUs (`atoll validate --wafer`).

A TPU row is estimated as by `atoll estimate`, on the torus of its slice, with its layout, or fully
sharded if the table has none. A wafer row is priced as weight streaming: one group of all dies,
layer after layer, with the fastest microbatch; weights and layer inputs come through the ports.
Several wafers divide the batch.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import gcd, prod
from pathlib import Path

from atoll.answers.validation import RunsValidation
from atoll.base.errors import AtollError, InfeasibleError
from atoll.fabric.mesh import Rectangle
from atoll.hardware.wafer import Wafer
from atoll.hardware.wafer_files import load_wafer
from atoll.questions.verbs import ValidateQuestion
from atoll.step.layout import Layout
from atoll.training.estimate import Estimate, Estimator
from atoll.training.run import Run
from atoll.validation.row_runs import run_from_row
from atoll.validation.tables import RunRow, read_runs
from atoll.validation.validate import PredictedRun, Prediction, predicted_run, report
from atoll.wafer.evaluate import MappingCost
from atoll.wafer.search import QUICK_CODES
from atoll.wafer.staging.planner import Planner, WaferOptions, rough
from atoll.workload.families.model_config import ModelConfig
from atoll.workload.load import load_config

REQUIRED = ("id", "device", "devices", "layers", "hidden", "seq", "global_batch")
WAFER = re.compile(r"\bcs-?(\d)\b", re.IGNORECASE)
TORUS = re.compile(r"\d+(?:x\d+)+")
ZOO_MODELS = {"bert": "bert-large", "gpt-j": "gpt-j-6b", "llama": "llama2-7b", "gpt": "gpt3-175b"}
"""By family, a zoo model with the same kind of block."""
CLASSIFIER_COLUMNS = 128
"""Columns of a classifier's head: of negligible cost, yet enough to cut between dies."""
UNGATED = re.compile(r"bert|gpt-?[23j]|maxtext", re.IGNORECASE)
"""Measured models whose feed-forward layers have no gate."""


def judge_meshes(question: ValidateQuestion) -> RunsValidation:
    """Report the errors over the TPU and wafer rows of a file of measured runs."""
    for name in ("data", "chips", "expect", "site"):
        if getattr(question, name) is not None:
            raise AtollError(f"{name} is given, but not taken beside wafer: ask for one of them")
    assert question.wafer is not None
    return report([predicted(row) for row in read_mesh_runs(question.wafer)], out=question.out)


def read_mesh_runs(path: str | Path) -> tuple[RunRow, ...]:
    """Read the TPU and wafer rows of a file."""
    devices = [(row, row.device) for row in read_runs(path, required=REQUIRED)]
    mesh_rows = tuple(r for r, d in devices if d.lower().startswith("tpu") or WAFER.search(d))
    if not mesh_rows:
        raise AtollError(f"{path}: no row is of a TPU or of a wafer; use --data for other devices")
    return mesh_rows


def predicted(row: RunRow) -> Prediction:
    """Price a row, or record why it cannot be priced."""
    try:
        row.check()
        machine = WAFER.search(row.device)
        if machine:
            return Prediction(row, _on_wafer(row, load_wafer(f"cs-{machine[1]}")))
        estimate = _on_torus(row)
        return Prediction(row, predicted_run(row, estimate), estimate=estimate)
    except AtollError as error:
        return Prediction(row, None, str(error))


# -- TPUs ------------------------------------------------------------------------------------------


def _on_torus(row: RunRow) -> Estimate:
    """Estimate with the row's layout, or fully sharded with the least recomputation that fits."""
    if row.text("tp"):
        run, layout = _sliced(*run_from_row(row), row)
        return Estimator(run).estimate(layout)
    devices, batch = row.integer("devices"), row.integer("global_batch")
    replicas = gcd(devices, batch)
    values = {
        **row.values,
        "tp": "1",
        "pp": "1",
        "dp": str(replicas),
        "cp": str(devices // replicas),
        "zero_stage": "3",
        "mlp_gated": str(int(not UNGATED.search(row.text("model")))),
        "method": "pretrain",
    }
    for recompute in ("none", "selective", "full"):
        changed = replace(row, values={**values, "recompute": recompute})
        run, layout = _sliced(*run_from_row(changed), row)
        estimate = Estimator(run).estimate(layout)
        if estimate.fits:
            break
    return estimate


def _sliced(run: Run, layout: Layout, row: RunRow) -> tuple[Run, Layout]:
    """Place the run on the torus that the row names, if it names one."""
    written = TORUS.search(row.text("topology"))
    if written is None:
        return run, layout
    axes = tuple(int(length) for length in written[0].split("x"))
    inner, *outer = run.network.levels
    levels = replace(inner, shapes=(axes,), devices=prod(axes)), *outer
    return replace(run, network=replace(run.network, levels=levels)), layout


# -- wafers ----------------------------------------------------------------------------------------


def _on_wafer(row: RunRow, wafer: Wafer) -> PredictedRun:
    wafers, batch = row.integer("devices"), row.integer("global_batch")
    cost = fastest_streamed(wafer, _model(row), -(-batch // wafers), row.integer("seq"))
    return PredictedRun(
        time_s=cost.step_s,
        peak_bytes=cost.memory_bytes,
        stage_bytes=tuple(stage.total_bytes for stage in cost.stages),
        fits=cost.fits,
        layout=f"{wafers} x {wafer.name}, microbatches of {cost.mapping.microbatch}",
        kind="wafer",
    )


def fastest_streamed(wafer: Wafer, model: ModelConfig, batch: int, sequence: int) -> MappingCost:
    """Return the fastest mapping of one group of all dies with external weights."""
    options = rough(WaferOptions(homes=("external",)))
    planner = Planner(wafer, model, batch, sequence, options, QUICK_CODES)
    all_dies = (Rectangle(0, 0, wafer.columns, wafer.rows),)
    sizes = [2**n for n in range(batch.bit_length())]
    costs = [cost for cost in (planner.best(all_dies, size) for size in sizes) if cost is not None]
    if not costs:
        raise InfeasibleError(f"model {model.name}: no microbatch fits wafer {wafer.name}")
    return min(costs, key=lambda cost: cost.step_s)


def _model(row: RunRow) -> ModelConfig:
    """Build a model with the row's sizes and its family's blocks."""
    name = row.text("model", row.id)
    form = next((zoo for family, zoo in ZOO_MODELS.items() if family in name.lower()), None)
    if form is None:
        raise AtollError(
            f"{row.where}: model {name!r} is of no family that was measured on "
            f"wafers: {', '.join(ZOO_MODELS)}"
        )
    hidden, sequence = row.integer("hidden"), row.integer("seq")
    heads = row.integer("heads")
    classifies = row.text("method").startswith("fine-tune")
    config = replace(
        load_config(form),
        name=name,
        hidden=hidden,
        layers=row.integer("layers"),
        heads=heads,
        kv_heads=row.integer("kv_heads", heads),
        head_dim=row.integer("head_dim", hidden // heads),
        ffn=row.integer("ffn", 4 * hidden),
        vocab=CLASSIFIER_COLUMNS if classifies else row.integer("vocab", 50257),
        max_sequence=sequence,
        position_rows=sequence,
        dropout=0.0,
        attention_dropout=0.0,
        embedding_dropout=0.0,
    )
    return replace(config, mlm_head=False) if classifies else config
