"""Builders against captures of the real modules, at real size.

    pip install -e '.[torch,transformers]'
    python benchmarks/capture_agreement.py [NAME ...]

For every zoo model given (default: one of each family, at full depth): seconds and memory of the
capture, parameters and matrix-product FLOPs of both passes (must be equal), bytes kept for the
backward pass, the step time that `atoll search` finds on one fixed chip, and step time and memory
by `atoll estimate` on one H100 and on four (tensor width 4), captured over built. Each model runs
in a process of its own, so that the memory shown is its own peak. Dropout is left out on both
sides; attention that the module computes step by step is fused, as the builder's is.
`estimate_agreement.py` says which part of an estimate differs.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from importlib import resources
from pathlib import Path

from record import recorded

MODELS = (
    "bert-large", "roberta-large", "gpt2-xl", "gpt-j-6b", "gpt-neox-20b", "opt-350m", "bloom-7b1",
    "llama2-7b", "llama3-70b", "mistral-7b", "qwen2-7b", "qwen3-8b", "gemma-7b", "gemma2-9b",
    "phi-2", "phi3-mini", "mixtral-8x7b", "qwen1.5-moe-a2.7b", "qwen3-30b-a3b", "deepseek-v2-lite",
    "deepseek-v3", "vit-b16", "vit-l16", "megatron-bert",
)  # fmt: skip

CHIP = """
name: one chip
tensor_cores: 8
vector_cores: 8
width: 128
depth: 128
glb: 128 MiB
hbm: [{ capacity: 80 GiB, bandwidth: 2.04 TB/s }]
constraints: { max_area: 1000 mm2 }
"""


def one(name: str, sequence: int, search: bool) -> dict[str, object]:
    """All figures of one model."""
    warnings.filterwarnings("ignore")
    import transformers

    import atoll
    from atoll.tracing.record.huggingface import module_from_config
    from atoll.workload import config_from_hf, prepare, widths

    transformers.logging.set_verbosity_error()
    entry = resources.files("atoll.workload") / "zoo" / f"{name}.json"
    given = json.loads(entry.read_text(encoding="utf-8"))
    for field in list(given):
        if "dropout" in field or field.endswith("_pdrop") or field.endswith("_dropout_prob"):
            given[field] = 0.0
    config = config_from_hf(given, name)
    length = min(sequence, config.max_sequence)
    length = config.sequence if config.patch_inputs else length
    module, inputs = module_from_config(given, sequence=length)
    start = time.perf_counter()
    captured = atoll.capture(module, inputs, name=name, sequence=length)
    seconds = time.perf_counter() - start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    model = prepare(captured, 1)
    built = prepare(config, 1, length)

    def total(of: str, which: object) -> int:
        return sum(getattr(layer, of) * n for layer, n in which.layers)  # type: ignore[attr-defined]

    def block(which: object) -> int:
        layer, _ = max(which.layers, key=lambda e: (e[1], len(e[0].forward)))  # type: ignore[attr-defined]
        return int(layer.saved_bytes)

    with tempfile.TemporaryDirectory() as folder:
        space = Path(folder) / "chip.yaml"
        space.write_text(CHIP, encoding="utf-8")
        plain = Path(folder) / f"{name}.json"
        plain.write_text(json.dumps(given), encoding="utf-8")
        file = captured.save(Path(folder) / "captured.json")
        steps = [0.0, 0.0]
        if search:
            steps = [_step(atoll, str(path), str(space), length) for path in (file, plain)]
        estimates = [_estimate(file, plain, length, 1)]
        if 4 in widths(captured, (4,)) and 4 in widths(config, (4,)):
            estimates.append(_estimate(file, plain, length, 4))
    return {
        "model": name,
        "layers": sum(n for _, n in model.layers),
        "distinct": len(model.layers),
        "capture_s": round(seconds, 1),
        "peak_GB": round(memory, 2),
        "parameters": model.parameters,
        "parameters_differ": model.parameters - built.parameters,
        "forward_differ": total("flops_forward", model) - total("flops_forward", built),
        "backward_differ": total("flops_backward", model) - total("flops_backward", built),
        "kept": total("saved_bytes", model) / total("saved_bytes", built),
        "kept_block": block(model) / block(built),
        "step": steps[0] / steps[1] if all(steps) else None,
        "estimates": estimates,
    }


def _estimate(file: Path, plain: Path, length: int, width: int) -> tuple[float, float]:
    """Step time and memory by `atoll estimate`, captured over built."""
    from atoll.training.estimate import estimate
    from atoll.training.request import make_layout, make_run

    samples = max(1, 4096 // length)
    found = []
    for model in (file, plain):
        run = make_run(str(model), "h100", width, batch=samples, sequence=length)
        layout = make_layout(run, tp=width, microbatch=samples, sp=False)
        found.append(estimate(run, layout))
    mine, built = found
    return (
        mine.step.time_s / built.step.time_s,
        mine.worst.allocated / built.worst.allocated,
    )


def _step(atoll: object, model: str, space: str, length: int) -> float:
    """Step time on the fixed chip; 0 where no layout fits."""
    try:
        result = atoll.search(  # type: ignore[attr-defined]
            model=model, space=space, devices=64, batch=256, sequence=length,
            microbatch=[1], tp=[1], baselines=False,
        )  # fmt: skip
    except atoll.InfeasibleError:  # type: ignore[attr-defined]
        return 0.0
    return float(result.to_dict()["best"]["models"][0]["placement"]["step_time_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--sequence", type=int, default=2048)
    parser.add_argument("--no-search", action="store_true", help="leave the search's step out")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.models[0], options.sequence, not options.no_search)))
        return
    print("| model | layers (distinct) | s | peak GB | parameters | FLOPs differ | kept | "
          "kept, block | step | estimate | tp 4 | memory |")  # fmt: skip
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for name in options.models:
        command = [sys.executable, __file__, name, "--one", "--sequence", str(options.sequence)]
        command += ["--no-search"] if options.no_search else []
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(f"| {name} | failed: {done.stderr.strip().splitlines()[-1]} |")
            continue
        row = json.loads(done.stdout.strip().splitlines()[-1])
        same = "0" if not row["parameters_differ"] else f"{row['parameters_differ']:+,}"
        step = f"{row['step']:.4f}" if row["step"] else "-"
        narrow, *wide = row["estimates"]
        wider = f"{wide[0][0]:.4f}" if wide else "-"
        print(
            f"| {name} | {row['layers']} ({row['distinct']}) | {row['capture_s']} | "
            f"{row['peak_GB']} | {row['parameters']:,} ({same}) | "
            f"{row['forward_differ']}, {row['backward_differ']} | {row['kept']:.4f} | "
            f"{row['kept_block']:.4f} | {step} | {narrow[0]:.4f} | {wider} | {narrow[1]:.4f} |",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(recorded(main))
