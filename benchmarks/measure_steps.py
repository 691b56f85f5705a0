"""Time whole training steps of Hugging Face models on a GPU, as a CSV for `atoll validate`.

    pip install torch transformers
    python benchmarks/measure_steps.py --out steps.csv

bf16 parameters, gradients and AdamW moments; eager PyTorch with SDPA attention; a step is `accum`
times forward and backward, then the optimizer. Every number is the median of several steps.
"""

from __future__ import annotations

import argparse
import csv
import gc
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

from record import recorded

FIELDS = [
    "model", "family", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "experts",
    "top_k", "dropout", "tied_embeddings", "params", "mbs", "seq", "recompute", "accum",
    "compiled", "step_ms", "fwd_nograd_ms", "opt_ms", "peak_bytes",
]  # fmt: skip

# name, family, layers, hidden, heads, kv_heads, ffn, vocab, ((microbatch, sequence), ...)
MODELS: list[tuple[str, str, int, int, int, int, int, int, list[tuple[int, int]]]] = [
    ("gpt2-medium", "gpt2", 24, 1024, 16, 16, 4096, 50257, [(4, 1024), (16, 1024)]),
    ("bert-base", "bert", 12, 768, 12, 12, 3072, 30522, [(16, 512), (64, 512)]),
    ("opt-350m-like", "opt", 24, 1024, 16, 16, 4096, 50272, [(4, 1024), (16, 2048)]),
    ("opt-2.7b", "opt", 32, 2560, 32, 32, 10240, 50272, [(2, 2048)]),
    ("qwen2-1.5b", "qwen2", 28, 1536, 12, 2, 8960, 151936, [(2, 4096)]),
    ("mistral-7b-8layers", "mistral", 8, 4096, 32, 8, 14336, 32000, [(2, 4096)]),
    ("llama-tiny", "llama", 12, 768, 12, 4, 2048, 32000, [(4, 1024), (32, 1024)]),
    ("llama3-8b-12layers", "llama", 12, 4096, 32, 8, 14336, 128256, [(1, 8192)]),
    ("mixtral-tiny", "mixtral", 8, 1024, 16, 4, 3584, 32000, [(4, 2048)]),
]


def config_of(row: tuple[Any, ...], seq: int) -> Any:
    _, family, layers, hidden, heads, kv_heads, ffn, vocab, _ = row
    if family == "gpt2":
        return AutoConfig.for_model(
            "gpt2", n_layer=layers, n_embd=hidden, n_head=heads, n_inner=ffn, vocab_size=vocab,
            n_positions=max(seq, 1024),
        )  # fmt: skip
    sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
    if family == "bert":
        return AutoConfig.for_model("bert", **sizes, intermediate_size=ffn, vocab_size=vocab)
    if family == "opt":
        return AutoConfig.for_model(
            "opt", **sizes, ffn_dim=ffn, vocab_size=vocab, max_position_embeddings=seq,
            word_embed_proj_dim=hidden,
        )  # fmt: skip
    return AutoConfig.for_model(
        family, **sizes, intermediate_size=ffn, vocab_size=vocab, num_key_value_heads=kv_heads,
        max_position_embeddings=seq, tie_word_embeddings=False, sliding_window=None,
    )  # fmt: skip


def median_ms(function: Any, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(True), torch.cuda.Event(True)
        start.record()
        function()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def measure(
    row: tuple[Any, ...], mbs: int, seq: int, recompute: bool, accum: int
) -> dict[str, Any]:
    name, family, layers, hidden, heads, kv_heads, ffn, vocab, _ = row
    config = config_of(row, seq)
    auto = AutoModelForMaskedLM if family == "bert" else AutoModelForCausalLM
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = auto.from_config(config, attn_implementation="sdpa")
    torch.set_default_dtype(torch.float32)
    model.train()
    if recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    ids = torch.randint(0, vocab, (mbs, seq), device="cuda")

    def backward() -> None:
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward() if family != "bert" else (
            model(input_ids=ids, labels=ids).loss.backward()
        )

    def step() -> None:
        for _ in range(accum):
            backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step_ms = median_ms(step, 8)
    peak = torch.cuda.max_memory_allocated()

    def forward() -> None:
        with torch.no_grad():
            model(input_ids=ids, labels=ids)

    forward_ms = median_ms(forward, 8)
    backward()
    optimizer_ms = median_ms(optimizer.step, 8)
    params = sum(p.numel() for p in model.parameters())
    experts = getattr(config, "num_local_experts", 0) if family == "mixtral" else 0
    top_k = getattr(config, "num_experts_per_tok", 0) if family == "mixtral" else 0
    dropout = 0.1 if family in ("gpt2", "bert", "opt") else 0.0
    tied = int(family in ("gpt2", "bert", "opt"))
    values = (
        name, family, layers, hidden, heads, kv_heads, ffn, vocab, experts, top_k, dropout, tied,
        params, mbs, seq, int(recompute), accum, 0, round(step_ms, 3), round(forward_ms, 3),
        round(optimizer_ms, 3), peak,
    )  # fmt: skip
    return dict(zip(FIELDS, values, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the CSV to write")
    out = parser.parse_args().out
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        for row in MODELS:
            for mbs, seq in row[-1]:
                for recompute in (False, True):
                    try:
                        writer.writerow(measure(row, mbs, seq, recompute, accum=1))
                    except Exception as error:  # a model that this transformers cannot build
                        print(f"{row[0]}: {error}", file=sys.stderr)
                    file.flush()
                    gc.collect()
                    torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(recorded(main))
