"""Files for `fuzz_readers.py` that are not among the examples."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

SAMPLES = "128*microbatch"

COMMANDS = [
    "\n".join(words.split()).encode()
    for words in (
        "estimate --model llama3-8b --device h100 --devices 16 --batch 64 --tp 2 --pp 2 "
        "--microbatch 1 --sequence 1024",
        "plan --model gpt2-xl --device h100 --devices 16 --batch 64 --tp 1 --pp 2 "
        "--microbatch 1 --zero 1",
        "search --model gpt2-xl --devices 1 --batch 4 --microbatch 1 --tp 1 "
        "--space missing.yaml --max-area 1",
        "models gpt2-xl --microbatch 1 --sequence 128 --tp 1",
        "designs missing --limit 1 --offset 0 --where width=1",
    )
]


def measured_runs() -> bytes:
    """A table of training runs: dense, gated, with experts, with Mamba blocks."""
    usual = {"source": "a", "precision": "bf16", "recompute": "none", "global_batch": 256}
    gated = {"mlp_gated": 1, "device": "H100", "hidden": 4096, "heads": 32, "kv_heads": 8}
    rows: list[dict[str, Any]] = [
        {"id": "a-1", "model": "gpt", "layers": 24, "hidden": 2048, "heads": 16, "ffn": 8192,
         "vocab": 51200, "seq": 2048, "device": "A100-80GB", "devices": 64, "tp": 2, "pp": 2,
         "dp": 16, "micro_batch": 4, "recompute": "full", "measured_iter_time_s": 3.1,
         "measured_peak_mem_GB": 40, "decoder_first_pp_layers": "", "pp_layout_expanded": ""},
        {"id": "a-2", "model": "llama", "layers": 32, "ffn": 14336, "vocab": 128256, "seq": 8192,
         "devices": 32, "tp": 2, "pp": 1, "dp": 16, "micro_batch": 1, "recompute": "selective",
         "precision": "fp8", "measured_iter_time_s": 4.0, "cp": 1, "vpp": 1, **gated},
        {"id": "a-3", "model": "moe", "layers": 32, "ffn": 14336, "vocab": 32000, "seq": 4096,
         "devices": 64, "tp": 2, "pp": 2, "dp": 16, "micro_batch": 1, "ep": 8, "n_experts": 8,
         "top_k": 2, "measured_iter_time_s": 5.5, "kv_lora_rank": "", "arch": "gpt", **gated},
        {"id": "a-4", "model": "hybrid", "layers": 12, "hidden": 2048, "heads": 16, "ffn": 8192,
         "seq": 4096, "device": "H100", "devices": 8, "tp": 1, "pp": 1, "dp": 8, "micro_batch": 1,
         "hybrid_pattern": "M-M*M-M-M*M-", "mamba": "mamba-head-dim=64"},
    ]  # fmt: skip
    columns = list(dict.fromkeys(name for row in rows for name in usual | row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    writer.writerows(usual | row for row in rows)
    return text.getvalue().encode()


def stored_model() -> bytes:
    """Two layers, products, a norm, a reduction over the tensor group."""
    sizes: dict[str, Any] = {
        "x": {"shape": [SAMPLES, 256]},
        "w": {"shape": [256, 512], "role": "weight", "split": {"dim": 1, "units": 512}},
        "h": {"shape": [SAMPLES, 512], "split": {"dim": 1, "units": 512}},
        "v": {"shape": [512, 256], "role": "weight", "split": {"dim": 0, "units": 512}},
        "p": {"shape": [SAMPLES, 256]},
        "y": {"shape": [SAMPLES, 256]},
        "dy": {"shape": [SAMPLES, 256], "role": "activation_gradient"},
        "dx": {"shape": [SAMPLES, 256], "role": "activation_gradient"},
        "dw": {"shape": [256, 512], "role": "weight_gradient", "split": {"dim": 1, "units": 512}},
    }
    up = {"m": SAMPLES, "n": 512, "k": 256, "split": "n"}
    down = {"m": SAMPLES, "n": 256, "k": 512, "split": "k"}
    layer = {
        "name": "block",
        "repeat": 4,
        "inputs": ["x"],
        "outputs": ["y"],
        "tensors": sizes,
        "forward": [
            {
                "name": "up",
                "kind": "linear",
                "reads": ["x", "w"],
                "writes": ["h"],
                "matmuls": [up],
                "vectors": [{"function": "gelu", "rows": SAMPLES, "cols": 512, "split": "cols"}],
            },
            {
                "name": "down",
                "kind": "linear",
                "reads": ["h", "v"],
                "writes": ["p"],
                "matmuls": [down],
                "steps": {"copy": {"kernels": 2, "bytes": ["64*microbatch"], "divided": [512]}},
            },
            {"name": "sum", "reads": ["p"], "writes": ["y"], "collective": "all_reduce"},
        ],
        "backward": [
            {
                "name": "up.dw",
                "kind": "linear_wgrad",
                "reads": ["x", "dy"],
                "writes": ["dw"],
                "matmuls": [up],
            },
            {
                "name": "up.dx",
                "kind": "linear_dgrad",
                "reads": ["dy", "w"],
                "writes": ["dx"],
                "matmuls": [down],
            },
        ],
    }
    file = {
        "format": "atoll-model",
        "version": 1,
        "name": "mine",
        "sequence": 128,
        "tensor_parallel": True,
        "layers": [layer],
    }
    return json.dumps(file).encode()


def profiled_steps() -> bytes:
    """A trace of the PyTorch profiler: two steps with a hidden and an exposed collective."""
    events: list[dict[str, Any]] = []
    names = ("nvjet_gemm", "flash_fwd", "ncclDevKernel_ReduceScatter_Sum", "softmax")
    for step, name in [(step, name) for step in range(2) for name in names]:
        number, at = len(events) // 2, 1000.0 * step + 100 * names.index(name)
        told = {"correlation": number, "device": 0, "stream": 7}
        launched = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at, "dur": 5}
        ran = {"cat": "kernel", "name": name, "ts": at + 20, "dur": 110}
        events += [{"ph": "X", "args": told, **launched}, {"ph": "X", "args": told, **ran}]
    for step in range(2):
        mark = {"cat": "user_annotation", "name": f"ProfilerStep#{step}"}
        events.append({"ph": "X", **mark, "ts": 1000.0 * step, "dur": 1000})
    return json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()


SITE = b"""name: mine
source: 3 runs of runs.csv on h100
stack: megatron
attention: flash2
slack: {value: 1.07, low: 1.02, high: 1.12}
host: 1.4
overlap: {odds: {value: 0.8, low: 0.2, high: 3.2}, gradient: 0.6}
bandwidth: {inside: 0.9, between: {value: 0.7, low: 0.5, high: 0.95}}
latency: {between: 1.5}
runs: 3
error: 0.05
"""

NCCL_LOG = b"""# nccl-tests version 2.17.6
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 2 minBytes 8 maxBytes 268435456 step: 2(factor) warmup iters: 5 iters: 20
#  Rank  0 Group  0 Pid  901 on  node01 device  0 [0000:07:00] NVIDIA A100-SXM4-80GB
#  Rank  1 Group  0 Pid  902 on  node01 device  1 [0000:0f:00] NVIDIA A100-SXM4-80GB
#       size     count  type redop root   time  algbw  busbw #wrong   time  algbw  busbw #wrong
           8         2 float   sum   -1  14.10   0.00   0.00      0  14.02   0.00   0.00      0
       16384      4096 float   sum   -1  15.20   1.08   1.08      0  15.11   1.08   1.08      0
    67108864  16777216 float   sum   -1 380.10 176.55 176.55      0 379.20 176.97 176.97      0
   268435456  67108864 float   sum   -1 1310.2 204.88 204.88      0 1309.0 205.07 205.07      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 95.6
"""

MESHES = b"""id,device,devices,topology,model,layers,hidden,heads,seq,global_batch,precision,\
measured_iter_time_s,quality,ffn,kv_heads,head_dim,vocab,n_experts,top_k,method
a,TPU 7x (Ironwood),64,4x4x4,llama3.1-8b,4,4096,32,8192,128,bf16,1.0,A,14336,8,128,32000,0,0,train
b,Cerebras CS-2,2,1 wafer,GPT-3 256M,2,1088,17,256,16,mixed,0.1,A-,4352,17,64,1024,0,0,train
"""

TIMED = b"""device,op,precision,us,m,n,k,batch,heads,kv_heads,seq,head_dim,causal
h100,gemm,bf16,900.5,8192,8192,8192,1,,,,,
h100,bmm,bf16,120.0,512,512,128,64,,,,,
a100-80,gemm,fp8,30.0,1024,1024,1024,1,,,,,
h200,attention_prefill,bf16,410.0,,,,2,32,8,4096,128,1
"""
