"""Launch files and logs of every kind that is read, for `fuzz_readers.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

SCRIPT = b"""#!/bin/bash
ARGS=(
  --num-layers 16 --hidden-size 2048 --num-attention-heads 16 --ffn-hidden-size 8192
  --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --swiglu
  --normalization RMSNorm --position-embedding-type rope --disable-bias-linear
  --untie-embeddings-and-output-weights --hidden-dropout 0 --attention-dropout 0
  --micro-batch-size 1 --global-batch-size ${BATCH:-64} --train-iters 1000
  --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --sequence-parallel --bf16
  --num-layers-per-virtual-pipeline-stage 4 --use-distributed-optimizer --lr 1e-4
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
)
NODES=$((4 / 2))
if [ "$NODES" -gt 1 ]; then MORE="--overlap-grad-reduce"; fi
torchrun --nproc-per-node ${GPUS} --nnodes $NODES pretrain_gpt.py "${ARGS[@]}" $MORE
"""
EXPERTS = b"""torchrun --nproc_per_node=8 --nnodes=2 pretrain_gpt.py \\
  --num-layers 8 --hidden-size 1024 \\
  --num-attention-heads 16 --group-query-attention --num-query-groups 4 --seq-length 1024 \\
  --max-position-embeddings 1024 --vocab-size 32000 --micro-batch-size 2 --global-batch-size 64 \\
  --num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 768 --expert-model-parallel-size 4 \\
  --moe-layer-freq '[0]*1+[1]*7' --moe-token-dispatcher-type alltoall --moe-grouped-gemm \\
  --tensor-model-parallel-size 2 --context-parallel-size 2 --bf16 --fp8-format hybrid
"""
TRAINER_SCRIPT = b"""accelerate launch --num_processes 16 --num_machines 2 train.py \\
  --model_name_or_path some/model --per_device_train_batch_size 2 --bf16 True \\
  --gradient_accumulation_steps 4 --gradient_checkpointing True --max_seq_length 1024 \\
  --fsdp "full_shard auto_wrap" --use_peft --lora_r 16 --lora_target_modules q_proj v_proj
"""
MLPERF = b"""export MODEL_SIZE="405b"
export MINIBS=144
export TENSOR_MODEL_PARALLEL=4
export PIPELINE_MODEL_PARALLEL=4
export INTERLEAVED_PIPELINE=2
export CONTEXT_PARALLEL=2
export MICRO_BATCH_SIZE=1
export FP8=True
export TP_COMM_OVERLAP=True
export ASYM_PP_EMBED=True
export ASYM_PP_LOSS=True
export DGXNNODES=64
export DGXNGPU=8
export WALLTIME=$((5 + ${NEXP:-1} * 420))
"""
TITAN = b"""[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
global_batch_size = 64
seq_len = 2048
steps = 100
mixed_precision_param = "bfloat16"
[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "Interleaved1F1B"
context_parallel_degree = 1
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
[compile]
enable = true
"""
DEEPSPEED = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "bf16": {"enabled": True},
    "gradient_clipping": 1.0,
    "zero_optimization": {
        "stage": 3,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_bucket_size": 5e8,
        "offload_optimizer": {"device": "none"},
    },
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95]}},
    "activation_checkpointing": {"partition_activations": False},
    "tensor_parallel": {"autotp_size": 2},
}
NEMO = b"""trainer: {num_nodes: 2, devices: 8, precision: bf16, max_steps: 1000}
model:
  micro_batch_size: 1
  global_batch_size: ${multiply:8, ${..trainer.num_nodes}}
  tensor_model_parallel_size: ${oc.env:TP,4}
  pipeline_model_parallel_size: 2
  virtual_pipeline_model_parallel_size: null
  encoder_seq_length: 2048
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 16
  hidden_size: 2048
  ffn_hidden_size: ${multiply:2, ${.hidden_size}}
  num_attention_heads: 32
  num_query_groups: 8
  normalization: rmsnorm
  activation: fast-swiglu
  bias: false
  share_embeddings_and_output_weights: false
  position_embedding_type: rope
  hidden_dropout: 0.0
  attention_dropout: 0.0
  override_vocab_size: 32000
  sequence_parallel: true
  activations_checkpoint_granularity: selective
  optim: {name: mcore_distributed_optim, lr: 1e-4, overlap_grad_sync: true}
"""
RECIPE = b"model: {tensor_model_parallel_size: 2, hidden_dropout: 0.1, seq_length: 1024}\n"
VALUES = b"""ENV_VARS: {NCCL_ALGO: Ring}
MODEL_ARGS:
  --num-layers: 12
  --hidden-size: 512
  --num-attention-heads: 8
  --seq-length: 1024
  --micro-batch-size: 4
  --global-batch-size: 32
  --vocab-size: 1000
  --bf16: true
  --tensor-model-parallel-size: 2
"""
TRAINER = b"""model_name_or_path: some/model
bf16: true
per_device_train_batch_size: 4
gradient_accumulation_steps: 8
gradient_checkpointing: true
max_seq_length: 1024
learning_rate: 2.0e-05
max_steps: -1
use_peft: true
lora_r: 16
lora_target_modules: [q_proj, v_proj]
"""
ACCELERATE = b"""compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_machines: 2
num_processes: 16
per_device_train_batch_size: 4
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_sharding_strategy: HYBRID_SHARD
  fsdp_offload_params: false
"""
LAUNCHES: Mapping[str, tuple[str, str, Sequence[bytes]]] = {
    "megatron": ("text", "run.sh", (SCRIPT, EXPERTS)),
    "trainer script": ("text", "run.sh", (TRAINER_SCRIPT,)),
    "mlperf": ("text", "config.sh", (MLPERF,)),
    "torchtitan": ("text", "job.toml", (TITAN,)),
    "deepspeed": ("json", "ds.json", (json.dumps(DEEPSPEED).encode(),)),
    "nemo": ("yaml", "train.yaml", (NEMO, RECIPE, VALUES)),
    "trainer": ("yaml", "train.yaml", (TRAINER, ACCELERATE)),
}
"""By kind: form, name and contents of a file."""

STEP = (
    " [2026-01-01 00:00:{0:02}] iteration {0:8}/     500 | consumed samples: 256 | elapsed time "
    "per iteration (ms): {1:.1f} | throughput per GPU (TFLOP/s/GPU): 401.0 | batch size: 256\n"
)
PEAK = (
    "[Rank {}] (after 5 iterations) memory (MB) | allocated: 9.0 | max allocated: 20000.0 | "
    "reserved: 1.0 | max reserved: 30000.0\n"
)
LINES = (
    "iteration 3/9 | lr: 1e-4 | train_step_timing in s: 2.5 | consumed_samples: 9\n",
    "step:  4  loss:  9.1  memory: 80.00GiB(57.2%)  tps: 1,024  mfu: 40%\n",
    "global_step=4, RunningAvgSamplesPerSec=1, CurrSamplesPerSec=2.0, MaxMemAllocated=20.5GB\n",
    ':::MLLOG {"key": "tracked_stats", "value": {"train_step_time": 2.5}}\n',
)
LOGS = [
    "".join([PEAK.format(0), *(STEP.format(n, 2500 + n) for n in range(6))]).encode(),
    *("".join(["starting\n", *[f"\x1b[32m0: {line}\x1b[0m\n"] * 5]).encode() for line in LINES),
]

PASTED = json.dumps(
    {"name": "job.toml", "text": TITAN.decode(), "device": "h100", "devices": 16, "model": ""}
).encode()
