"""Names that other tools give to fields, for the sentence about an unknown option or keyword."""

from __future__ import annotations

from collections.abc import Callable, Container

FOREIGN_NAMES = (
    ("attention", "attn_implementation attention_backend attn_backend"),
    ("batch", "batch_size bs gbs global_batch global_batch_size train_batch_size"),
    ("batch_tokens", "tokens_per_batch tokens_per_step"),
    ("budget", "max_cost dollars"),
    ("cp", "context_parallel context_parallel_size context_parallel_degree cp_size"),
    ("deadline", "days max_days"),
    ("device", "gpu gpu_type gpu_name gpu_model device_type device_name hardware hw tpu chip"),
    ("device", "accelerator accelerator_type"),
    ("devices", "gpus ngpus n_gpus num_gpus gpu_count num_devices n_devices device_count"),
    ("devices", "world_size accelerators num_accelerators chips num_chips tpus"),
    ("devices (all nodes together)", "nodes nnodes num_nodes n_nodes nproc_per_node gpus_per_node"),
    ("devices (dp is devices / (tp x pp x cp))", "dp dp_size data_parallel data_parallel_size"),
    ("ep", "expert_parallel expert_parallel_size expert_model_parallel_size ep_size"),
    ("launch_file", "script launch_script"),
    ("lora_rank", "lora_r rank"),
    ("max_area", "area area_budget die_area"),
    ("max_area (or --max-power, or --per dollar)", "budget price cost max_cost"),
    ("max_power", "tdp power_budget power_limit watts"),
    ("method", "lora qlora peft finetune finetuning_type"),
    ("microbatch", "mbs micro_batch micro_batch_size microbatch_size local_batch_size"),
    ("microbatch", "per_device_train_batch_size train_micro_batch_size_per_gpu"),
    ("model", "model_name model_name_or_path model_path model_id model_type model_size llm arch"),
    ("network", "interconnect fabric topology"),
    ("optimizer", "optim optimiser"),
    ("out", "output output_dir out_dir outdir save save_dir"),
    ("pp", "pipeline_parallel pipeline_parallel_size pipeline_model_parallel_size pp_size stages"),
    ("precision", "dtype mixed_precision bf16 fp16 fp8"),
    ("price", "gpu_price hourly_price price_per_hour cost_per_hour"),
    ("recompute", "activation_checkpointing gradient_checkpointing recompute_activations remat"),
    ("recompute", "recompute_granularity"),
    ("sequence", "seq seqlen seq_len seq_length sequence_length max_seq_len max_seq_length ctx"),
    ("sequence", "max_length max_position_embeddings context context_length block_size"),
    ("tokens", "train_tokens num_tokens total_tokens training_tokens"),
    ("tool", "framework backend engine runtime"),
    ("tp", "tensor_parallel tensor_parallel_size tensor_model_parallel_size tp_size"),
    ("vpp", "virtual_pipeline_model_parallel_size"),
    ("zero", "zero_stage fsdp sharding_stage"),
)
"""Field, with what to know about it, and its names in other tools."""


def meant_field(name: str, fields: Container[str], spelled: Callable[[str], str] = str) -> str:
    """Return the field that another tool's name stands for, as users write it; empty if none."""
    name = name.lstrip("-").replace("-", "_").lower()
    for words, names in ((name, name), *FOREIGN_NAMES):
        field, blank, remark = words.partition(" ")
        if field in fields and name in names.split():
            return spelled(field) + blank + remark
    return ""
