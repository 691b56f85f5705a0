"""List the ranks of layouts that were measured on one H200, as jobs of `atoll.measurement`.

    python measure_ranks.py --out jobs.jsonl           # the jobs, about 240
    python measure_ranks.py --out jobs.jsonl --tiny    # tiny models, to rehearse on the CPU
    python measure_ranks.py --out jobs.jsonl --run records.jsonl --budget 540
    python measure_ranks.py --out jobs.jsonl --records records.jsonl --rows h200_ranks_2.csv

Models are cut to a few blocks. `half` says which half of the data a row belongs to; it depends on
the model alone, and was set before anything was measured.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import importlib.abc
import importlib.machinery
import json
import os
import sys
import time
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from atoll.files.csvfile import write_csv
from atoll.measurement.measure import COLUMNS, rank_row
from atoll.measurement.runner import MEASURED, RankJob, read_jobs

GIB = 2**30
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ATTENTION = LINEAR[:4]
Config = dict[str, Any]


def decoder(
    kind: str, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, **more: Any
) -> Config:
    """Return the configuration of a decoder with the names that most families use."""
    return {
        "model_type": kind, "hidden_size": hidden, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "intermediate_size": ffn, "vocab_size": vocab,
        "tie_word_embeddings": False, **more,
    }  # fmt: skip


def llama(hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int = 128256) -> Config:
    """Return the configuration of a Llama model."""
    return decoder("llama", hidden, heads, kv_heads, ffn, vocab)


MODELS: dict[str, tuple[Config, int, str]] = {
    # torchtitan: configuration, blocks, half
    "llama3-1b": (llama(2048, 32, 8, 8192), 10, "fit"),
    "llama3-3b": (llama(3072, 24, 8, 8192), 8, "judge"),
    "llama3-8b": (llama(4096, 32, 8, 14336), 6, "fit"),
    "llama3-70b": (llama(8192, 64, 8, 28672), 2, "judge"),
    "llama3-405b": (llama(16384, 128, 8, 53248), 1, "fit"),
    "llama2-7b": (llama(4096, 32, 32, 11008, 32000), 8, "judge"),
    "llama2-13b": (llama(5120, 40, 40, 13824, 32000), 6, "fit"),
    "codellama-34b": (llama(8192, 64, 8, 22016, 32016), 3, "judge"),
    # Hugging Face
    "hf-llama3-8b": (llama(4096, 32, 8, 14336), 6, "fit"),
    "hf-llama3-70b": (llama(8192, 64, 8, 28672), 2, "judge"),
    "hf-qwen2-7b": (decoder("qwen2", 3584, 28, 4, 18944, 152064), 6, "judge"),
    "hf-qwen2-1.5b": (decoder("qwen2", 1536, 12, 2, 8960, 151936), 8, "judge"),
    "hf-qwen3-8b": (decoder("qwen3", 4096, 32, 8, 12288, 151936, head_dim=128), 6, "fit"),
    "hf-mistral-7b": (decoder("mistral", 4096, 32, 8, 14336, 32000, sliding_window=None), 6,
                      "judge"),
    "hf-gemma-7b": (decoder("gemma", 3072, 16, 16, 24576, 256000, head_dim=256), 4, "fit"),
    "hf-phi3-mini": (decoder("phi3", 3072, 32, 32, 8192, 32064, pad_token_id=0), 8, "judge"),
    "hf-gpt2-xl": ({"model_type": "gpt2", "n_embd": 1600, "n_head": 25, "n_positions": 1024,
                    "vocab_size": 50257, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
                    "attn_pdrop": 0.0, "tie_word_embeddings": False}, 16, "fit"),
    "hf-pythia-2.8b": ({"model_type": "gpt_neox", "hidden_size": 2560, "num_attention_heads": 32,
                        "intermediate_size": 10240, "vocab_size": 50304, "rotary_pct": 0.25,
                        "tie_word_embeddings": False}, 10, "judge"),
    "hf-opt-6.7b": ({"model_type": "opt", "hidden_size": 4096, "num_attention_heads": 32,
                     "ffn_dim": 16384, "vocab_size": 50272, "word_embed_proj_dim": 4096,
                     "dropout": 0.0, "attention_dropout": 0.0, "max_position_embeddings": 2048,
                     "tie_word_embeddings": False}, 6, "fit"),
    # experts
    "hf-mixtral-8x7b": (decoder("mixtral", 4096, 32, 8, 14336, 32000, num_local_experts=8,
                                num_experts_per_tok=2, sliding_window=None), 1, "fit"),
    "hf-qwen3-30b-a3b": (decoder("qwen3_moe", 2048, 32, 4, 6144, 151936, head_dim=128,
                                 num_experts=128, num_experts_per_tok=8,
                                 moe_intermediate_size=768, norm_topk_prob=True,
                                 decoder_sparse_step=1, mlp_only_layers=[]), 3, "judge"),
    "hf-olmoe": (decoder("olmoe", 2048, 16, 16, 1024, 50304, num_experts=64,
                         num_experts_per_tok=8), 4, "fit"),
    "hf-qwen2-moe": (decoder("qwen2_moe", 2048, 16, 16, 5632, 151936, num_experts=60,
                             num_experts_per_tok=4, moe_intermediate_size=1408,
                             shared_expert_intermediate_size=5632), 3, "judge"),
}  # fmt: skip
TITAN = [name for name in MODELS if not name.startswith("hf-")]
EXPERTS = ["hf-mixtral-8x7b", "hf-qwen3-30b-a3b", "hf-olmoe", "hf-qwen2-moe"]
SHORT = {"hf-gpt2-xl": 1024, "hf-pythia-2.8b": 2048, "hf-opt-6.7b": 2048}
"""Tokens of a sequence of models with a table of positions or of that length."""
WIDE = ["hf-llama3-8b", "hf-llama3-70b", "hf-qwen2-7b", "hf-qwen3-8b", "hf-mistral-7b"]
"""Hugging Face models that are divided by tensor parallelism and get adapters."""
TINY = {
    "hidden_size": 512, "n_embd": 500, "n_head": 25, "intermediate_size": 256, "ffn_dim": 256,
    "vocab_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64,
    "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64, "word_embed_proj_dim": 512,
}  # fmt: skip


def job(name: str, **more: Any) -> RankJob:
    """Return a rank of a model, cut to its blocks or to `layers`."""
    config, layers, half = MODELS[name]
    layers = more.pop("layers", layers)
    tool = more.pop("tool", "transformers" if name.startswith("hf-") else "torchtitan")
    sequence = more.pop("sequence", SHORT.get(name, 4096))
    count = "n_layer" if config["model_type"] == "gpt2" else "num_hidden_layers"
    longest: Config = {}
    if config["model_type"] not in ("gpt2", "opt"):
        longest = {"max_position_embeddings": max(sequence, 2048)}
    contents = {**config, count: layers, **longest}
    parts = [name, f"{layers}l", f"{more.get('microbatch', 1)}x{sequence}"]
    parts += [f"{key}{value}" for key, value in more.items() if key != "microbatch"
              and key not in ("lora_targets", "blocks", "memory_bytes")]  # fmt: skip
    if more.get("memory_bytes"):
        parts.append(f"cap{more['memory_bytes'] / GIB:.2f}")
    labels = {"half": half, "model": name}
    if tool == "megatron-lm":
        parts.insert(1, "mg")
    words = "-".join(map(str, parts)).replace("_", "")
    return RankJob(words, tool, contents, sequence=sequence, labels=labels, **more)


def dense_torchtitan() -> Iterator[RankJob]:
    """Yield torchtitan's layouts."""
    for index, name in enumerate(TITAN):
        small = max(1, MODELS[name][1] // 2)
        yield job(name, fsdp=16)
        yield job(name, fsdp=16 << index, recompute="full")
        yield job(name, fsdp=64, recompute="alternate")
        yield job(name, fsdp=128, reshard=False, recompute=("none", "full")[index % 2])
        yield job(name, fsdp=8, replicate=2 << index, recompute="full")
        yield job(name, tp=2 << index % 3, fsdp=8)
        yield job(name, tp=8, fsdp=(16, 64, 128, 512)[index % 4], recompute="alternate")
        yield job(name, fsdp=32, sequence=16384, layers=small, recompute="full")
        yield job(name, fsdp=8, microbatch=4, sequence=2048)
        yield job(name, fsdp=48, rank=47, weights="bf16", reduce="bf16")
        if name != "llama3-405b":
            yield job(name, fsdp=1, replicate=8 << index, layers=small)
            yield job(name, fsdp=32, microbatches=2, recompute="every-second-block")
            yield job(name, tp=4, fsdp=16, sequence=32768, layers=small, recompute="full")
        if name in ("llama3-1b", "llama3-8b", "llama2-7b", "codellama-34b"):
            for stage in (0, 3):
                blocks = (stage * 2, stage * 2 + 2)
                yield job(name, layers=8, pp=4, stage=stage, fsdp=8, blocks=blocks, rank=stage * 8,
                          microbatches=6)  # fmt: skip
        if name in ("llama3-8b", "llama2-7b"):
            yield job(name, fsdp=32, compiled=True)
            yield job(name, fsdp=256, compiled=True, recompute="full")


def dense_hugging_face() -> Iterator[RankJob]:
    """Yield layouts of Hugging Face's dense models."""
    names = [n for n in MODELS if n.startswith("hf-") and n not in EXPERTS]
    for index, name in enumerate(names):
        small = max(1, MODELS[name][1] // 2)
        most = 4 if name in SHORT else 1
        yield job(name, fsdp=8, microbatch=most)
        yield job(name, fsdp=16 << index % 6, recompute="full", microbatch=2 * most)
        yield job(name, fsdp=512, weights="bf16", reduce="bf16", microbatch=most)
        yield job(name, fsdp=256, reshard=False, recompute="full", microbatch=most)
        yield job(name, replicate=8 << index % 4, layers=small, weights="bf16", microbatch=most)
        yield job(name, replicate=64, layers=small, recompute="full", microbatch=most)
        if index % 2:
            yield job(name, fsdp=8, replicate=16, recompute="full", microbatch=most)
        else:
            yield job(name, fsdp=40, rank=39, microbatches=2, microbatch=most)
        if name not in SHORT:
            yield job(name, fsdp=128, sequence=16384, layers=small, recompute="full")
        if name in WIDE:
            lora: dict[str, Any] = {"weights": "bf16", "reduce": "bf16", "lora_targets": LINEAR}
            yield job(name, tp=2, clip=False, weights="bf16", reduce="bf16")
            yield job(name, tp=4, fsdp=32, clip=False, weights="bf16", reduce="bf16")
            yield job(name, fsdp=8, lora_rank=8, **lora)
            yield job(name, fsdp=64, lora_rank=32, recompute="full", microbatch=2, **lora)
            yield job(name, replicate=16, lora_rank=16, recompute="full",
                      **lora | {"lora_targets": ATTENTION})  # fmt: skip
            yield job(name, fsdp=2048, lora_rank=16, recompute="full", sequence=16384,
                      layers=small, **lora)  # fmt: skip
    yield job("hf-qwen3-8b", fsdp=4096, recompute="full")
    yield job("hf-mistral-7b", fsdp=4096)


def experts() -> Iterator[RankJob]:
    """Yield layouts of models with experts."""
    for name in EXPERTS:
        yield job(name, fsdp=16)
        yield job(name, fsdp=64, recompute="full", microbatch=2)
        yield job(name, fsdp=512, weights="bf16", reduce="bf16")
        yield job(name, fsdp=8, replicate=32, recompute="full")
        yield job(name, fsdp=128, sequence=16384, recompute="full")
        yield job(name, replicate=8, layers=1, weights="bf16")


def capped() -> Iterator[RankJob]:
    """Yield layouts of known peaks on devices of little more memory: which of them still fit?"""
    lora: dict[str, Any] = {"weights": "bf16", "reduce": "bf16", "lora_rank": 16,
                            "lora_targets": LINEAR}  # fmt: skip
    peaks_GB = [
        (21.749, job("llama3-8b", layers=16, sequence=8192, fsdp=8, recompute="full")),
        (24.419, job("hf-llama3-8b", layers=12, fsdp=8)),
        (17.211, job("llama3-70b", layers=6, sequence=8192, fsdp=64, recompute="full")),
        (18.971, job("hf-qwen2-7b", layers=12, microbatch=2, fsdp=64, recompute="full",
                     weights="bf16")),
        (22.169, job("hf-llama3-8b", layers=16, fsdp=8, **lora)),
        (8.396, job("llama3-70b", layers=6, sequence=8192, tp=4, fsdp=32,
                    recompute="every-second-block")),
        (22.735, job("hf-mistral-7b", layers=10, sequence=8192, fsdp=16)),
    ]  # fmt: skip
    for peak_GB, base in peaks_GB:
        for factor in (1.01, 1.05, 1.10, 1.18):
            limit = int(peak_GB * 1e9 * factor)
            yield replace(base, id=f"{base.id}-cap{factor}", memory_bytes=limit, steps=1)


def megatron() -> Iterator[RankJob]:
    """Yield layouts of Megatron-LM."""
    for index, name in enumerate(TITAN):
        layers = MODELS[name][1]
        small = max(1, layers // 2)
        tool = {"tool": "megatron-lm", "weights": "bf16"}
        yield job(name, **tool, fsdp=16 << index)
        yield job(name, **tool, fsdp=64, recompute="full", microbatches=2)
        yield job(name, **tool, tp=2 << index % 3, fsdp=8)
        yield job(name, **tool, tp=8, fsdp=4, sequence=16384, layers=small, recompute="full")
        if name not in ("llama3-405b", "llama3-70b", "codellama-34b"):
            yield job(name, **tool, replicate=8, layers=small)
            yield job(name, **tool, layers=8, pp=4, stage=(0, 3)[index % 2], tp=2, fsdp=4,
                      blocks=(0, 2), rank=(0, 24)[index % 2], microbatches=6)  # fmt: skip


def near_bases() -> list[RankJob]:
    """Return layouts that are run near the capacity."""
    lora: dict[str, Any] = {"weights": "bf16", "reduce": "bf16", "lora_rank": 16,
                            "lora_targets": LINEAR}  # fmt: skip
    return [
        job("llama3-8b", layers=12, fsdp=16),
        job("llama3-1b", layers=14, fsdp=32, recompute="full", microbatch=2),
        job("hf-qwen3-8b", layers=10, fsdp=32, recompute="full", microbatch=2),
        job("llama2-7b", layers=16, fsdp=16),
        job("llama3-3b", layers=16, fsdp=64, recompute="full", microbatch=2),
        job("hf-mistral-7b", layers=16, fsdp=8, **lora),
        job("codellama-34b", layers=5, tp=4, fsdp=8),
        job("hf-qwen2-1.5b", layers=20, fsdp=16, microbatch=2),
        job("llama2-7b", layers=8, tool="megatron-lm", weights="bf16", fsdp=32),
    ]


def near_capacity() -> Iterator[RankJob]:
    """Yield layouts on devices with 1.02 to 1.14 times the peak that was predicted for them."""
    yield from limited(near_bases(), (1.02, 1.06, 1.1, 1.14), expandable=False)


def near_growing() -> Iterator[RankJob]:
    """Yield layouts on devices within a tenth of their predicted peak, in segments that grow."""
    megatron: dict[str, Any] = {"tool": "megatron-lm", "weights": "bf16"}
    more = [
        job("llama3-8b", layers=16, sequence=8192, fsdp=8, recompute="full"),
        job("llama3-70b", layers=6, sequence=8192, tp=4, fsdp=32,
            recompute="every-second-block"),
        job("llama2-13b", layers=10, fsdp=8, recompute="alternate"),
        job("llama3-3b", layers=12, tp=2, fsdp=8, microbatch=2),
        job("llama3-8b", layers=8, replicate=8),
        job("llama2-7b", layers=12, fsdp=32, reshard=False),
        job("codellama-34b", layers=4, fsdp=16, sequence=8192, recompute="full"),
        job("hf-llama3-8b", layers=12, fsdp=8),
        job("hf-llama3-70b", layers=3, fsdp=16, recompute="full", sequence=8192),
        job("hf-qwen2-7b", layers=12, microbatch=2, fsdp=64, recompute="full", weights="bf16"),
        job("hf-gemma-7b", layers=8, fsdp=16),
        job("hf-phi3-mini", layers=16, replicate=8, weights="bf16"),
        job("hf-pythia-2.8b", layers=20, fsdp=8, microbatch=4),
        job("hf-olmoe", layers=8, fsdp=16, recompute="full"),
        job("hf-qwen2-moe", layers=6, fsdp=16, weights="bf16", reduce="bf16"),
        job("llama3-8b", layers=8, tp=2, fsdp=8, **megatron),
        job("codellama-34b", layers=4, tp=4, fsdp=4, recompute="full", microbatches=2,
            **megatron),
        job("llama3-1b", layers=12, fsdp=16, microbatch=2, **megatron),
    ]  # fmt: skip
    yield from limited([*near_bases(), *more], (0.93, 0.97, 1.01, 1.03, 1.06, 1.09))


def limited(
    bases: list[RankJob], factors: tuple[float, ...], expandable: bool = True
) -> Iterator[RankJob]:
    """Yield layouts on devices with multiples of the peaks that are predicted for them."""
    for base in bases:
        peak_bytes = predicted_peak_bytes(base)
        for factor in factors:
            yield replace(
                base, id=f"{base.id}-{'grow' if expandable else 'near'}{factor}", steps=1,
                memory_bytes=int(peak_bytes * factor), expandable=expandable,
            )  # fmt: skip


def predicted_peak_bytes(base: RankJob) -> float:
    """Return the predicted peak of a rank."""
    from atoll.validation.tables import RunRow, with_run
    from atoll.validation.validate import predict

    cells = {n: str(v) for n, v in rank_row(base, {"outcome": "oom"}).items()}
    (prediction,) = predict([with_run(RunRow(1, cells), "third.csv", "h200")])
    assert prediction.predicted is not None, prediction.reason
    return prediction.predicted.peak_bytes


def mixed(jobs: list[RankJob]) -> list[RankJob]:
    """Return the jobs in an order that mixes kinds, so that any beginning of it is a sample."""
    job_by_id = {each.id: each for each in jobs}
    return sorted(job_by_id.values(), key=lambda each: hashlib.sha256(each.id.encode()).digest())


def all_jobs() -> list[RankJob]:
    """Return the jobs of the second file."""
    return mixed([*dense_torchtitan(), *dense_hugging_face(), *experts(), *capped()])


def third_jobs() -> list[RankJob]:
    """Return the jobs of the third file: those that failed or changed since the second one, new
    ones, and then those of the second file again, with collectives in line.
    """
    with Path(__file__).with_name("h200_ranks_2.csv").open(newline="", encoding="utf-8") as file:
        measured = {row["id"] for row in csv.DictReader(file) if row["reduction"] != "last"}
    again = all_jobs()
    failed = [each for each in again if each.id not in measured]
    uncapped = [each for each in again if each.id in measured and not each.memory_bytes]
    return [*failed, *mixed([*megatron(), *near_capacity()]), *uncapped]


def fifth_jobs() -> list[RankJob]:
    """Return the jobs of the fifth file: near the capacity, in segments that grow."""
    return mixed(list(near_growing()))


def shrunken(full: RankJob) -> RankJob:
    """Return the job with a tiny model, for the CPU."""
    config = {key: TINY.get(key, value) for key, value in full.config.items()}
    if full.config["model_type"] == "phi3" or full.tp == 1:
        config["num_hidden_layers"] = 8 if full.pp > 1 else 2
    if config["model_type"] == "gpt2":
        config["n_layer"] = 2
    return replace(full, config=config, sequence=min(full.sequence, 64), compiled=False, steps=1)


def write_rows(jobs: list[RankJob], records: Path, table: Path) -> None:
    """Write the table of the jobs with a result, and beside it the kernels of each."""
    lines = map(json.loads, records.read_text(encoding="utf-8").splitlines())
    record_by_id = {record["id"]: record for record in lines if record["outcome"] in MEASURED}
    measured = [(each, record_by_id[each.id]) for each in jobs if each.id in record_by_id]
    rows = [rank_row(*pair) for pair in measured]
    write_csv(table, COLUMNS, [[row.get(name, "") for name in COLUMNS] for row in rows])
    kernels = {each.id: record["kernels"] for each, record in measured if "kernels" in record}
    packed = gzip.compress(json.dumps(kernels, separators=(",", ":")).encode(), mtime=0)
    table.with_name(f"{table.stem}_kernels.json.gz").write_bytes(packed)


def run_recorded(jobs: list[RankJob], records: Path, device: str, budget_s: float) -> None:
    """Run the jobs without a result in a file, each in a fork of this process, which has imported
    PyTorch and the tools but not used the device; append a line of JSON for each.
    """
    from atoll.measurement import rank

    sys.meta_path.insert(0, MissingPackages())
    importlib.import_module("torchtitan.components.loss")
    importlib.import_module("torchtitan.models.llama3")
    importlib.import_module("transformers.models.llama.modeling_llama")
    end = time.monotonic() + budget_s
    lines = records.read_text(encoding="utf-8").splitlines() if records.exists() else []
    recorded = {r["id"] for r in map(json.loads, lines) if r["outcome"] in MEASURED}
    for each in jobs:
        if each.id in recorded or time.monotonic() > end:
            continue
        if child := os.fork():
            os.waitpid(child, 0)
            continue
        record = rank.run_job(each, device)
        with records.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        peak_GB, times_ms = record.get("peak_bytes", 0) / 1e9, record.get("step_ms") or [0.0]
        print(
            f"{record['id']}: {record['outcome']}, step {min(times_ms):.1f} ms, peak "
            f"{peak_GB:.1f} GB {record.get('error', '')[:160]}",
            flush=True,
        )
        os._exit(0)


class MissingPackages(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stand in for packages that torchtitan imports and a step does not need."""

    NAMES = ("datasets", "torchdata", "tensorboard", "torch.utils.tensorboard")

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return a specification for the packages that are stood in for."""
        if name.split(".")[0] in self.NAMES or name in self.NAMES:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        """Return a module whose every attribute is an empty class."""

        class Empty(types.ModuleType):
            def __getattr__(self, name: str) -> Any:
                if name.startswith("__"):
                    raise AttributeError(name)
                return type(name, (), {})

        return Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Leave the module empty."""


JOBS = {"second": all_jobs, "third": third_jobs, "fifth": fifth_jobs}
"""Jobs of the files of ranks, by the number of the file."""


def main() -> None:
    """Write the jobs, or the rows of those that were run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--file", choices=JOBS, default="second", help="the file of the jobs")
    parser.add_argument("--run", type=Path, help="run the jobs without a record in this file")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds of all jobs")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--records", type=Path)
    parser.add_argument("--rows", type=Path)
    options = parser.parse_args()
    jobs = JOBS[options.file]()
    if options.records is not None:
        write_rows(jobs, options.records, options.rows)
        return
    if options.run is not None:
        run_recorded(read_jobs(options.out), options.run, options.device, options.budget)
        return
    jobs = [shrunken(each) for each in jobs] if options.tiny else jobs
    lines = [json.dumps(each.to_dict(), allow_nan=False) for each in jobs]
    options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    halves = [each.labels["half"] for each in jobs]
    print(f"{len(jobs)} jobs: {halves.count('fit')} fit, {halves.count('judge')} judge")


if __name__ == "__main__":
    main()
