"""Builders against captures under `atoll estimate`, with what makes the difference.

    pip install -e '.[torch,transformers]'
    python benchmarks/estimate_agreement.py [NAME or config.json ...]

For every model (default: one of each family of the zoo at full depth): the step time of the
captured module over that of the built model, under several layouts, devices and stacks. Behind it,
the difference in percent of the built model's step by part: products, attention and vector kernels
of the blocks, the same of the two ends, and the parts of the step that are no kernels. `--layers`
shortens models, `--operators` lists every operator of both, `--captures` keeps captured files.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import warnings
from collections import Counter
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from atoll.step.stages import stage_shares
from atoll.training.estimate import Estimate, Estimator
from atoll.training.operators.layers import operator_costs
from atoll.training.request import make_layout, make_run
from atoll.training.run import Run
from atoll.training.step import Stepper
from atoll.workload import config_from_hf
from record import recorded

MODELS = (
    "bert-large", "roberta-large", "megatron-bert", "gpt2-xl", "gpt-j-6b", "gpt-neox-20b",
    "opt-350m", "bloom-7b1", "llama2-7b", "llama3-8b", "mistral-7b", "qwen2-7b", "qwen3-8b",
    "gemma-7b", "gemma2-9b", "phi-2", "phi3-mini", "mixtral-8x7b", "qwen1.5-moe-a2.7b",
    "qwen3-30b-a3b", "deepseek-v2-lite", "deepseek-v3", "vit-b16", "vit-l16",
)  # fmt: skip
DEPTH = ("num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers")


@dataclass(frozen=True)
class Case:
    """A layout on a device under a stack."""

    name: str
    device: str = "h100"
    stack: str = "megatron"
    devices: int = 1
    tp: int = 1
    ep: int = 1
    zero: int = 1
    recompute: str = "none"
    sp: bool = False


CASES = (
    Case("one h100"),
    Case("one a100", device="a100-80"),
    Case("full recomputation", recompute="full"),
    Case("selective", recompute="selective"),
    Case("tp 2", devices=2, tp=2),
    Case("tp 4", devices=4, tp=4),
    Case("tp 4 a100", device="a100-80", devices=4, tp=4),
    Case("dp 8", devices=8),
    Case("zero 3", devices=8, zero=3),
    Case("compiled", stack="compiled"),
    Case("nemo tp 4", stack="nemo", devices=4, tp=4),
    Case("xla", stack="xla"),
    Case("eager", stack="eager"),
    Case("fsdp", stack="fsdp", devices=8, zero=3),
)


def published(name: str, layers: int | None) -> tuple[str, dict[str, Any]]:
    """A zoo entry or a file as a configuration without dropout."""
    file = Path(name)
    if file.suffix == ".json":
        text = file.read_text(encoding="utf-8")
    else:
        entry = resources.files("atoll.workload") / "zoo" / f"{name}.json"
        text = entry.read_text(encoding="utf-8")
    given = json.loads(text)
    for field in list(given):
        if "drop" in field and isinstance(given[field], float):
            given[field] = 0.0
        elif layers and field in DEPTH:
            given[field] = min(given[field], layers)
    return file.stem if file.suffix == ".json" else name, given


def captured(name: str, given: dict[str, Any], length: int, path: Path) -> Path:
    """The captured module as a file, made if it is not there."""
    if not path.exists():
        import atoll
        from atoll.tracing.record.huggingface import module_from_config

        logging.getLogger("transformers").setLevel(logging.ERROR)
        module, inputs = module_from_config(given, sequence=length)
        atoll.capture(module, inputs, name=name, sequence=length).save(path)
    return path


def run_of(case: Case, model: Path, length: int, batch: int, attention: str) -> Run:
    return make_run(
        str(model), case.device, case.devices, batch=batch * case.devices,
        sequence=length, stack=case.stack, attention=attention,
    )  # fmt: skip


def estimate(case: Case, run: Run, microbatch: int) -> tuple[Estimator, Estimate]:
    layout = make_layout(
        run, tp=case.tp, ep=case.ep, microbatch=microbatch, zero=case.zero,
        recompute=case.recompute, sp=case.sp,
    )  # fmt: skip
    estimator = Estimator(run)
    return estimator, estimator.estimate(layout)


def parts_of(estimator: Estimator, found: Estimate) -> dict[str, float]:
    """Seconds of the step by part, kernels by kind and place."""
    layout = found.layout
    costs = estimator.costs(layout)
    stepper = Stepper(found.run, layout)
    parts: Counter[str] = Counter()
    for stage in stage_shares(costs, layout.schedule, layout.pp, layout.vpp):
        for chunk in stage:
            for cost, n in chunk:
                again = cost.kept(layout.recompute if cost.is_block else "none").again
                where = "block" if cost.is_block else "ends"
                for spent in (cost.forward, cost.backward, again):
                    parts[f"{where} products"] += spent.matrix_s * n
                    parts[f"{where} attention"] += spent.attention_s * n
                    parts[f"{where} vector"] += spent.vector_s * n
    scaled = {name: value * stepper.microbatches for name, value in parts.items()}
    step = found.step.breakdown()
    rest = {name: s for name, s in step.items() if name not in ("compute", "recompute")}
    return {**scaled, **rest}


def compare(
    case: Case, models: tuple[Path, Path], length: int, batch: int, attention: str, operators: bool
) -> str:
    """One line: the ratio, and the parts that make it."""
    mine, built = (run_of(case, model, length, batch, attention) for model in models)
    (mine_by, ours), (built_by, theirs) = (estimate(case, r, batch) for r in (mine, built))
    whole_s = theirs.step.time_s
    ratio = ours.step.time_s / whole_s
    a, b = parts_of(mine_by, ours), parts_of(built_by, theirs)
    differ = {name: 100 * (a.get(name, 0.0) - b.get(name, 0.0)) / whole_s for name in {**a, **b}}
    shown = sorted(((v, k) for k, v in differ.items() if abs(v) >= 0.05), key=lambda e: -abs(e[0]))
    memory = ours.worst.allocated / theirs.worst.allocated
    text = ", ".join(f"{k} {v:+.2f}" for v, k in shown)
    held, built_held = ours.worst.parts(), theirs.worst.parts()
    bytes_differ = {k: 100 * (held[k] - built_held[k]) / theirs.worst.allocated for k in held}
    more = ", ".join(f"{k} {v:+.1f}" for k, v in bytes_differ.items() if abs(v) >= 0.5)
    text += f" | {more}" if more else ""
    mark = " " if abs(ratio - 1) <= 0.02 else "!"
    line = f"{mark} {case.name:<20} {ratio:.4f}  memory {memory:.3f}  {text}"
    if operators:
        for by, found in ((mine_by, ours), (built_by, theirs)):
            line += "\n" + "\n".join(_operators(by, found))
    return line


def _operators(by: Estimator, found: Estimate) -> list[str]:
    layout = found.layout
    lines = []
    for layer, n in by.model(layout).layers:
        lines.append(f"    {layer.name} x {n}")
        costs = operator_costs(layer, by.pricer, layout)
        for direction in ("forward", "backward"):
            for op in getattr(layer, direction):
                cost = costs[op.name]
                lines.append(
                    f"      {direction[0]} {op.name:<44}{op.kind:<18}"
                    f"{cost.matrix_s * 1e6:10.1f}{cost.attention_s * 1e6:10.1f}"
                    f"{cost.vector_s * 1e6:10.1f} us {cost.kernels:3d}"
                    f" {layer.traffic_bytes(op) / 1e6:10.2f} MB"
                    f" {[(v.function, v.rows, v.cols) for v in op.vectors] or ''}"
                    f" {op.collective.bytes if op.collective else ''}"
                )
    return lines


def main() -> None:
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--layers", type=int, help="at most so many layers")
    parser.add_argument("--sequence", type=int, default=2048)
    parser.add_argument("--batch", type=int, help="samples in a microbatch (default: 4096 tokens)")
    parser.add_argument("--attention", default="flash")
    parser.add_argument("--case", action="append", help="only these cases")
    parser.add_argument("--captures", type=Path, help="folder that keeps the captured files")
    parser.add_argument("--operators", action="store_true", help="list all operators")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.captures or Path(temporary)
        folder.mkdir(exist_ok=True)
        for model in options.models:
            name, given = published(model, options.layers)
            config = config_from_hf(given, name)
            length = min(options.sequence, config.max_sequence)
            length = config.sequence if config.patch_inputs else length
            plain = Path(temporary) / f"{name}.json"
            plain.write_text(json.dumps(given), encoding="utf-8")
            label = f"{name}-{options.layers or 'all'}-{length}.json"
            file = captured(name, given, length, folder / label)
            batch = options.batch or max(1, 4096 // length)
            attention = options.attention
            print(f"{name} ({length} tokens x {batch}, {attention})", flush=True)
            for case in CASES:
                if options.case and case.name not in options.case:
                    continue
                try:
                    print(compare(case, (file, plain), length, batch, attention, options.operators))
                except Exception as problem:
                    print(f"! {case.name:<20} {type(problem).__name__}: {problem}")


if __name__ == "__main__":
    sys.exit(recorded(main))
