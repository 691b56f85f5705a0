"""Steps of real modules on a GPU against the estimate from their capture.

    python benchmarks/captured_steps.py measure --out steps.csv   # on the GPU
    python benchmarks/captured_steps.py compare [steps.csv]       # anywhere

Both need torch and transformers, the second Atoll as well. The
modules are those of the transformers library, at sizes of our choice, and the hybrid of
`examples/custom_model.py`, which no builder knows. bf16 parameters, gradients and moments, fused
AdamW, no dropout; eager and compiled. Without a file `compare` takes `captured_steps_h200.csv`
beside this script, which was measured so on one H200 (torch 2.11).
"""

from __future__ import annotations

import argparse
import csv
import gc
import statistics
import sys
from pathlib import Path
from typing import Any

from record import recorded

HERE = Path(__file__).parent
FIELDS = ["module", "mbs", "seq", "compiled", "params", "step_ms", "opt_ms", "peak_bytes"]
NOTHING = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _llama_like(kind: str, layers: int, hidden: int, heads: int, ffn: int, vocab: int,
                **more: Any) -> dict[str, Any]:  # fmt: skip
    return {
        "model_type": kind, "num_hidden_layers": layers, "hidden_size": hidden,
        "num_attention_heads": heads, "intermediate_size": ffn, "vocab_size": vocab,
        "max_position_embeddings": 4096, **more,
    }  # fmt: skip


# name: configuration (None: the hybrid), ((microbatch, sequence), ...), measured compiled too
MODULES: dict[str, tuple[dict[str, Any] | None, tuple[tuple[int, int], ...], bool]] = {
    "hybrid": (None, ((1, 1024), (8, 1024)), True),
    "bert-large": (
        _llama_like("bert", 24, 1024, 16, 4096, 30522, **NOTHING), ((16, 512),), True,
    ),
    "vit-large": (
        {"model_type": "vit", "num_hidden_layers": 24, "hidden_size": 1024,
         "num_attention_heads": 16, "intermediate_size": 4096, "num_labels": 1000, **NOTHING},
        ((64, 197),), True,
    ),
    "gpt2-medium": (
        {"model_type": "gpt2", "n_layer": 24, "n_embd": 1024, "n_head": 16, "n_positions": 1024,
         "vocab_size": 50257, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
        ((8, 1024),), True,
    ),
    "pythia-1.4b": (
        _llama_like("gpt_neox", 24, 2048, 16, 8192, 50304, rotary_pct=0.25), ((4, 2048),), False,
    ),
    "phi-like": (
        _llama_like("phi", 16, 2560, 32, 10240, 51200, partial_rotary_factor=0.4,
                    resid_pdrop=0.0), ((4, 2048),), False,
    ),
    "qwen2-1.5b": (
        _llama_like("qwen2", 28, 1536, 12, 8960, 151936, num_key_value_heads=2,
                    tie_word_embeddings=False), ((2, 4096),), True,
    ),
    "qwen3-1.7b": (
        _llama_like("qwen3", 28, 2048, 16, 6144, 151936, num_key_value_heads=8, head_dim=128,
                    tie_word_embeddings=True), ((2, 4096),), False,
    ),
    "gemma-2b": (
        _llama_like("gemma", 18, 2048, 8, 16384, 256000, num_key_value_heads=1, head_dim=256,
                    tie_word_embeddings=True), ((2, 4096),), False,
    ),
    "llama3-8b-8layers": (
        _llama_like("llama", 8, 4096, 32, 14336, 128256, num_key_value_heads=8,
                    tie_word_embeddings=False), ((2, 4096),), True,
    ),
    "mixtral-small": (
        _llama_like("mixtral", 12, 1024, 16, 3584, 32000, num_key_value_heads=4,
                    num_local_experts=8, num_experts_per_tok=2, tie_word_embeddings=False),
        ((4, 2048),), False,
    ),
}  # fmt: skip


# --- on the GPU -----------------------------------------------------------------------------------


def build(config: dict[str, Any] | None) -> Any:
    import torch

    if config is None:
        sys.path.insert(0, str(HERE.parent / "examples"))
        import custom_model

        make = custom_model.build
    else:
        import transformers

        given = dict(config)
        kind = given.pop("model_type")
        settings = transformers.AutoConfig.for_model(kind, **given)
        if "num_local_experts" in given:
            settings._experts_implementation = "grouped_mm"
        loader = {
            "bert": transformers.AutoModelForMaskedLM,
            "vit": transformers.AutoModelForImageClassification,
        }.get(kind, transformers.AutoModelForCausalLM)

        def make() -> Any:
            return loader.from_config(settings, attn_implementation="sdpa")

    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = make()
    torch.set_default_dtype(torch.float32)
    return model.to(torch.bfloat16).train()


def loss_of(model: Any, config: dict[str, Any] | None, mbs: int, seq: int) -> Any:
    """A function that computes the loss of one random microbatch."""
    import torch

    if config is not None and config["model_type"] == "vit":
        pixels = torch.randn(mbs, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
        labels = torch.randint(0, 1000, (mbs,), device="cuda")
        return lambda: model(pixel_values=pixels, labels=labels).loss
    vocab = 32_000 if config is None else config["vocab_size"]
    ids = torch.randint(0, vocab, (mbs, seq), device="cuda")
    if config is None:
        return lambda: model(ids, ids)
    if config["model_type"] == "bert":
        return lambda: model(input_ids=ids, labels=ids).loss
    return lambda: model(input_ids=ids, labels=ids, use_cache=False).loss


def measure_one(name: str, mbs: int, seq: int, compiled: bool) -> dict[str, Any]:
    import torch

    config = MODULES[name][0]
    torch.manual_seed(0)
    model = build(config)
    params = sum(p.numel() for p in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    loss = loss_of(torch.compile(model) if compiled else model, config, mbs, seq)

    def step() -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def median_ms(function: Any, repeats: int = 10) -> float:
        times = []
        for _ in range(repeats):
            start, end = torch.cuda.Event(True), torch.cuda.Event(True)
            start.record()
            function()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end))
        return statistics.median(times)

    for _ in range(4):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step_ms = median_ms(step)
    peak = torch.cuda.max_memory_allocated()
    loss().backward()
    values = (
        name, mbs, seq, int(compiled), params, round(step_ms, 3),
        round(median_ms(optimizer.step), 3), peak,
    )  # fmt: skip
    return dict(zip(FIELDS, values, strict=True))


def measure(out: Path) -> None:
    import torch

    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        for compiled in (False, True):
            for name, (_, shapes, both) in MODULES.items():
                for mbs, seq in shapes if both or not compiled else ():
                    try:
                        row = measure_one(name, mbs, seq, compiled)
                        writer.writerow(row)
                        print(row, flush=True)
                    except Exception as error:  # one that this library cannot build or compile
                        print(f"{name}: {str(error)[:300]}", file=sys.stderr, flush=True)
                    file.flush()
                    gc.collect()
                    torch._dynamo.reset()
                    torch.cuda.empty_cache()


# --- anywhere -------------------------------------------------------------------------------------


def captured_file(name: str, seq: int, keep: str, folder: Path) -> Path:
    import torch

    import atoll
    from atoll.tracing.record.huggingface import module_from_config

    config = MODULES[name][0]
    if config is None:
        sys.path.insert(0, str(HERE.parent / "examples"))
        import custom_model

        tokens = torch.empty(1, seq, dtype=torch.int64, device="meta")
        model = atoll.capture(custom_model.build, (tokens, tokens), name=name, keep=keep)
    else:
        module, inputs = module_from_config(config, sequence=seq)
        model = atoll.capture(module, inputs, name=name, keep=keep)
    return model.save(folder / f"{name}-{seq}-{keep}.json")


def compare(path: Path) -> None:
    import tempfile

    import atoll

    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    errors: dict[str, list[float]] = {"eager": [], "compiled": []}
    memory: list[float] = []
    print("| module | microbatch, sequence | stack | measured | estimated | error | memory error |")
    print("|---|---|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        files: dict[tuple[str, int, str], Path] = {}
        for row in rows:
            name, mbs, seq = row["module"], int(row["mbs"]), int(row["seq"])
            stack = "compiled" if row["compiled"] == "1" else "eager"
            key = name, seq, "fused" if stack == "compiled" else "eager"
            if key not in files:
                files[key] = captured_file(*key, Path(folder))
            found = atoll.estimate(
                str(files[key]), "h200", 1, batch=mbs, microbatch=mbs, zero=0,
                stack=stack, optimizer="bf16",
            )  # fmt: skip
            step_ms = found.step.time_s * 1e3
            error = step_ms / float(row["step_ms"]) - 1
            space = found.worst.allocated / float(row["peak_bytes"]) - 1
            errors[stack].append(abs(error))
            memory.append(abs(space))
            print(
                f"| {name} | {mbs}, {seq} | {stack} | {float(row['step_ms']):.1f} ms | "
                f"{step_ms:.1f} ms | {error:+.1%} | {space:+.1%} |",
                flush=True,
            )
    for stack, values in errors.items():
        if values:
            print(f"{stack}: mean {statistics.mean(values):.1%}, worst {max(values):.1%}")
    print(f"memory: mean {statistics.mean(memory):.1%}, worst {max(memory):.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("measure").add_argument("--out", type=Path, required=True)
    verbs.add_parser("compare").add_argument(
        "csv", type=Path, nargs="?", default=HERE / "captured_steps_h200.csv"
    )
    options = parser.parse_args()
    if options.verb == "measure":
        measure(options.out)
    else:
        compare(options.csv)


if __name__ == "__main__":
    sys.exit(recorded(main))
