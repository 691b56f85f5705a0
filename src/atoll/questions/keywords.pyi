# Written by tests/questions/written.py from the questions.
# fmt: off
# ruff: noqa: E501
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from atoll.explore.proof.objective import Aim
from atoll.explore.strategies import Strategy
from atoll.hardware.template.cores import CostModel
from atoll.hardware.template.template import ChipTemplate
from atoll.predictors.predictor import Predictor
from atoll.profile import Profile
from atoll.tools.stack import Stack
from atoll.tools.tool import Tool

class BenchFields(TypedDict, total=False):
    oom: Sequence[str | Path] | str | Path | None
    predictors: Sequence[Literal["atoll", "rule-of-thumb", "roofline", "llm-analysis"] | str | Predictor] | Literal["atoll", "rule-of-thumb", "roofline", "llm-analysis"] | str | Predictor | None
    device: str | None
    out: str | Path | None

class CalibrateFields(TypedDict, total=False):
    trace: str | Path | None
    nccl_tests: Sequence[str | Path] | str | Path | None
    device: str | None
    out: str | Path | None

class CheckFields(TypedDict, total=False):
    tokens: float | str | None
    price: float | str | None
    mtbf: float | str | None
    checkpoint: float | str | None
    restart: float | str | None
    vocab: int | None
    set: Sequence[str] | str | None
    device: str | None
    devices: int | None
    model: str | None
    batch: int | None
    sequence: int | str | None
    network: str | None
    stack: str | None
    headroom: float | str | None
    power_cap: float | str | None
    log: str | Path | None
    trace: str | Path | None
    append: str | Path | None
    strict: bool | None
    least: float | str | None
    steps: int | None
    time_limit: float | str | None
    script_args: Sequence[str] | str | None

class ChipFields(TypedDict, total=False):
    from_: str | None
    model: Sequence[str | Mapping[str, Any]] | str | Mapping[str, Any] | None
    devices: int | None
    batch: int | None
    batch_tokens: int | str | None
    sequence: int | str | None
    optimizer: Literal["mixed", "mixed16", "mixed-both", "moments16", "bf16", "fp32", "8bit", "sgd", "momentum", "adafactor"] | str | None
    precision: Literal["bf16", "fp8", "nvfp4"] | None
    objective: Literal["mean", "weighted", "worst"] | str | Aim | None
    per: Literal["dollar", "watt", "tco"] | None
    years: float | str | None
    kwh_price: float | str | None
    pue: float | str | None
    network_price: float | str | None
    microbatch: Sequence[int] | int | None
    tp: Sequence[int] | int | None
    cp: Sequence[int] | int | None
    ep: Sequence[int] | int | None
    etp: Sequence[int] | int | None
    vpp: Sequence[int] | int | None
    hsdp: Sequence[int] | int | None
    sp: bool | None
    zero: Sequence[Literal[0, 1, 2, 3]] | Literal[0, 1, 2, 3] | None
    order: Sequence[Literal["1f1b", "interleaved", "gpipe", "zb-h1", "zb-h2", "zb-v", "dualpipe"]] | Literal["1f1b", "interleaved", "gpipe", "zb-h1", "zb-h2", "zb-v", "dualpipe"] | None
    recompute: Literal["optimal", "none", "full"] | None
    space: str | None
    template: Literal["systolic", "physical-28nm", "physical-16nm", "physical-12nm", "physical-7nm", "physical-5nm", "physical-4nm", "physical-3nm", "physical", "physical-links", "physical-banks", "physical-dies", "gpu-like-7nm", "gpu-like-5nm", "gpu-like-4nm", "gpu-like-3nm"] | str | ChipTemplate | None
    hbm: Sequence[int] | int | None
    max_area: float | str | None
    max_power: float | str | None
    cooling: float | str | None
    power: Literal["rated", "sustained"] | None
    network: str | None
    profile: Literal["default", "phaze"] | str | Profile | None
    cost_model: Literal["mapper"] | str | CostModel | None
    strategy: Literal["exact", "phaze", "evolve"] | str | Strategy | None
    evaluations: int | None
    tolerance: float | str | None
    time_limit: float | str | None
    pareto: bool | None
    robust: int | None
    baselines: bool | None
    beside: Sequence[str] | str | None
    seed: int | None
    workers: int | None
    cluster: str | None
    sweep: Sequence[str] | str | None
    out: str | Path | None
    trace: str | Path | None

class EstimateFields(TypedDict, total=False):
    tokens: float | str | None
    price: float | str | None
    mtbf: float | str | None
    checkpoint: float | str | None
    restart: float | str | None
    vocab: int | None
    set: Sequence[str] | str | None
    from_: str | None
    batch: int | None
    batch_tokens: int | str | None
    sequence: int | str | None
    network: str | None
    site: str | None
    tool: Literal["megatron-lm", "torchtitan", "deepspeed", "nemo", "trl", "llama-factory", "chip", "pytorch", "xla", "transformers", "nanotron", "gpt-neox", "none"] | str | Tool | None
    stack: Literal["chip", "eager", "compiled", "modular", "modular-norm", "modular-lean", "paddle", "fsdp", "fsdp-2023", "gaudi", "automodel", "megatron", "megatron-2023", "megatron-2021", "xla", "deepspeed", "zero3-2021", "nemo", "torchtitan", "torchtitan-compiled"] | str | Stack | None
    overlap: str | None
    cuda_graphs: str | None
    flags: str | None
    dropout: float | str | None
    optimizer: Literal["mixed", "mixed16", "mixed-both", "moments16", "bf16", "fp32", "8bit", "sgd", "momentum", "adafactor"] | str | None
    method: Literal["pretrain", "sft", "lora"] | None
    lora_rank: int | None
    lora_targets: str | None
    precision: Literal["bf16", "fp16", "fp8", "mxfp8", "nvfp4"] | None
    attention: Literal["flash", "flex", "flash2", "flash1", "unfused"] | None
    operators: Literal["model", "measured"] | None
    imbalance: float | str | None
    headroom: float | str | None
    power_cap: float | str | None
    tp: int | None
    pp: int | None
    cp: int | None
    ep: int | None
    etp: int | None
    dp: int | None
    vpp: int | None
    microbatch: int | None
    sp: bool | None
    zero: Literal[0, 1, 2, 3] | None
    hsdp: int | None
    recompute: Literal["none", "selective", "alternate", "full", "optimal"] | str | None
    order: Literal["1f1b", "interleaved", "gpipe", "zb-h1", "zb-h2", "zb-v", "dualpipe"] | None
    blocks: Sequence[int] | int | None
    launch_file: str | Path | None
    export: Literal["megatron-lm", "torchtitan", "deepspeed", "nemo", "trl", "llama-factory", "chip", "pytorch", "xla", "transformers", "nanotron", "gpt-neox", "none"] | str | Tool | None
    sweep: Sequence[str] | str | None
    out: str | Path | None
    trace: str | Path | None
    messages: str | Path | None
    chakra: str | Path | None
    wafer: str | None
    mapping: str | None

class LayoutFields(TypedDict, total=False):
    tp: int | None
    pp: int | None
    cp: int | None
    ep: int | None
    etp: int | None
    dp: int | None
    vpp: int | None
    microbatch: int | None
    sp: bool | None
    zero: Literal[0, 1, 2, 3] | None
    hsdp: int | None
    recompute: Literal["none", "selective", "alternate", "full", "optimal"] | str | None
    order: Literal["1f1b", "interleaved", "gpipe", "zb-h1", "zb-h2", "zb-v", "dualpipe"] | None
    blocks: Sequence[int] | int | None

class MeasureFields(TypedDict, total=False):
    tokens: float | str | None
    price: float | str | None
    mtbf: float | str | None
    checkpoint: float | str | None
    restart: float | str | None
    vocab: int | None
    set: Sequence[str] | str | None
    from_: str | None
    batch: int | None
    batch_tokens: int | str | None
    sequence: int | str | None
    network: str | None
    site: str | None
    tool: Literal["megatron-lm", "torchtitan", "deepspeed", "nemo", "trl", "llama-factory", "chip", "pytorch", "xla", "transformers", "nanotron", "gpt-neox", "none"] | str | Tool | None
    stack: Literal["chip", "eager", "compiled", "modular", "modular-norm", "modular-lean", "paddle", "fsdp", "fsdp-2023", "gaudi", "automodel", "megatron", "megatron-2023", "megatron-2021", "xla", "deepspeed", "zero3-2021", "nemo", "torchtitan", "torchtitan-compiled"] | str | Stack | None
    overlap: str | None
    cuda_graphs: str | None
    flags: str | None
    dropout: float | str | None
    optimizer: Literal["mixed", "mixed16", "mixed-both", "moments16", "bf16", "fp32", "8bit", "sgd", "momentum", "adafactor"] | str | None
    method: Literal["pretrain", "sft", "lora"] | None
    lora_rank: int | None
    lora_targets: str | None
    precision: Literal["bf16", "fp16", "fp8", "mxfp8", "nvfp4"] | None
    attention: Literal["flash", "flex", "flash2", "flash1", "unfused"] | None
    operators: Literal["model", "measured"] | None
    imbalance: float | str | None
    headroom: float | str | None
    power_cap: float | str | None
    tp: int | None
    pp: int | None
    cp: int | None
    ep: int | None
    etp: int | None
    dp: int | None
    vpp: int | None
    microbatch: int | None
    sp: bool | None
    zero: Literal[0, 1, 2, 3] | None
    hsdp: int | None
    recompute: Literal["none", "selective", "alternate", "full", "optimal"] | str | None
    order: Literal["1f1b", "interleaved", "gpipe", "zb-h1", "zb-h2", "zb-v", "dualpipe"] | None
    blocks: Sequence[int] | int | None
    ranks: Sequence[Literal["first", "last", "fullest"]] | Literal["first", "last", "fullest"] | None
    backend: Literal["cuda", "cpu"] | None
    limit: float | str | None
    append: str | Path | None
    dry_run: bool | None
    device_profile: str | Path | None

class ModelsFields(TypedDict, total=False):
    microbatch: int | None
    sequence: int | str | None
    tp: int | None

class PlaceFields(TypedDict, total=False):
    profile: Literal["default", "phaze"] | str | Profile | None

class PlanFields(TypedDict, total=False):
    tokens: float | str | None
    price: float | str | None
    mtbf: float | str | None
    checkpoint: float | str | None
    restart: float | str | None
    vocab: int | None
    set: Sequence[str] | str | None
    from_: str | None
    batch: int | None
    batch_tokens: int | str | None
    sequence: int | str | None
    network: str | None
    site: str | None
    tool: Literal["megatron-lm", "torchtitan", "deepspeed", "nemo", "trl", "llama-factory", "chip", "pytorch", "xla", "transformers", "nanotron", "gpt-neox", "none"] | str | Tool | None
    stack: Literal["chip", "eager", "compiled", "modular", "modular-norm", "modular-lean", "paddle", "fsdp", "fsdp-2023", "gaudi", "automodel", "megatron", "megatron-2023", "megatron-2021", "xla", "deepspeed", "zero3-2021", "nemo", "torchtitan", "torchtitan-compiled"] | str | Stack | None
    overlap: str | None
    cuda_graphs: str | None
    flags: str | None
    dropout: float | str | None
    optimizer: Literal["mixed", "mixed16", "mixed-both", "moments16", "bf16", "fp32", "8bit", "sgd", "momentum", "adafactor"] | str | None
    method: Literal["pretrain", "sft", "lora"] | None
    lora_rank: int | None
    lora_targets: str | None
    precision: Literal["bf16", "fp16", "fp8", "mxfp8", "nvfp4"] | None
    attention: Literal["flash", "flex", "flash2", "flash1", "unfused"] | None
    operators: Literal["model", "measured"] | None
    imbalance: float | str | None
    headroom: float | str | None
    power_cap: float | str | None
    launch_file: str | Path | None
    export: Literal["megatron-lm", "torchtitan", "deepspeed", "nemo", "trl", "llama-factory", "chip", "pytorch", "xla", "transformers", "nanotron", "gpt-neox", "none"] | str | Tool | None
    sweep: Sequence[str] | str | None
    out: str | Path | None
    trace: str | Path | None
    deadline: float | str | None
    budget: float | str | None
    tp: Sequence[int] | int | None
    pp: Sequence[int] | int | None
    cp: Sequence[int] | int | None
    ep: Sequence[int] | int | None
    etp: Sequence[int] | int | None
    vpp: Sequence[int] | int | None
    microbatch: Sequence[int] | int | None
    zero: Sequence[Literal[0, 1, 2, 3]] | Literal[0, 1, 2, 3] | None
    hsdp: Sequence[int] | int | None
    recompute: Sequence[Literal["none", "selective", "alternate", "full", "optimal"]] | Literal["none", "selective", "alternate", "full", "optimal"] | None
    order: Sequence[Literal["1f1b", "interleaved", "gpipe", "zb-h1", "zb-h2", "zb-v", "dualpipe"]] | Literal["1f1b", "interleaved", "gpipe", "zb-h1", "zb-h2", "zb-v", "dualpipe"] | None
    ties: float | str | None
    risk: Literal["mean", "median", "p75", "p90"] | None
    measure: int | None
    time_limit: float | str | None
    workers: int | None
    cluster: str | None
    layouts: str | Path | None
    pods: str | None

class RunFields(TypedDict, total=False):
    tokens: float | str | None
    price: float | str | None
    mtbf: float | str | None
    checkpoint: float | str | None
    restart: float | str | None
    vocab: int | None
    set: Sequence[str] | str | None
    from_: str | None
    batch: int | None
    batch_tokens: int | str | None
    sequence: int | str | None
    network: str | None
    site: str | None
    tool: Literal["megatron-lm", "torchtitan", "deepspeed", "nemo", "trl", "llama-factory", "chip", "pytorch", "xla", "transformers", "nanotron", "gpt-neox", "none"] | str | Tool | None
    stack: Literal["chip", "eager", "compiled", "modular", "modular-norm", "modular-lean", "paddle", "fsdp", "fsdp-2023", "gaudi", "automodel", "megatron", "megatron-2023", "megatron-2021", "xla", "deepspeed", "zero3-2021", "nemo", "torchtitan", "torchtitan-compiled"] | str | Stack | None
    overlap: str | None
    cuda_graphs: str | None
    flags: str | None
    dropout: float | str | None
    optimizer: Literal["mixed", "mixed16", "mixed-both", "moments16", "bf16", "fp32", "8bit", "sgd", "momentum", "adafactor"] | str | None
    method: Literal["pretrain", "sft", "lora"] | None
    lora_rank: int | None
    lora_targets: str | None
    precision: Literal["bf16", "fp16", "fp8", "mxfp8", "nvfp4"] | None
    attention: Literal["flash", "flex", "flash2", "flash1", "unfused"] | None
    operators: Literal["model", "measured"] | None
    imbalance: float | str | None
    headroom: float | str | None
    power_cap: float | str | None

class SearchFields(TypedDict, total=False):
    from_: str | None
    model: Sequence[str | Mapping[str, Any]] | str | Mapping[str, Any] | None
    devices: int | None
    batch: int | None
    batch_tokens: int | str | None
    sequence: int | str | None
    optimizer: Literal["mixed", "mixed16", "mixed-both", "moments16", "bf16", "fp32", "8bit", "sgd", "momentum", "adafactor"] | str | None
    precision: Literal["bf16", "fp8", "nvfp4"] | None
    objective: Literal["mean", "weighted", "worst"] | str | Aim | None
    per: Literal["dollar", "watt", "tco"] | None
    years: float | str | None
    kwh_price: float | str | None
    pue: float | str | None
    network_price: float | str | None
    microbatch: Sequence[int] | int | None
    tp: Sequence[int] | int | None
    cp: Sequence[int] | int | None
    ep: Sequence[int] | int | None
    etp: Sequence[int] | int | None
    vpp: Sequence[int] | int | None
    hsdp: Sequence[int] | int | None
    sp: bool | None
    zero: Sequence[Literal[0, 1, 2, 3]] | Literal[0, 1, 2, 3] | None
    order: Sequence[Literal["1f1b", "interleaved", "gpipe", "zb-h1", "zb-h2", "zb-v", "dualpipe"]] | Literal["1f1b", "interleaved", "gpipe", "zb-h1", "zb-h2", "zb-v", "dualpipe"] | None
    recompute: Literal["optimal", "none", "full"] | None
    space: str | None
    template: Literal["systolic", "physical-28nm", "physical-16nm", "physical-12nm", "physical-7nm", "physical-5nm", "physical-4nm", "physical-3nm", "physical", "physical-links", "physical-banks", "physical-dies", "gpu-like-7nm", "gpu-like-5nm", "gpu-like-4nm", "gpu-like-3nm"] | str | ChipTemplate | None
    hbm: Sequence[int] | int | None
    max_area: float | str | None
    max_power: float | str | None
    cooling: float | str | None
    power: Literal["rated", "sustained"] | None
    network: str | None
    profile: Literal["default", "phaze"] | str | Profile | None
    cost_model: Literal["mapper"] | str | CostModel | None
    strategy: Literal["exact", "phaze", "evolve"] | str | Strategy | None
    evaluations: int | None
    tolerance: float | str | None
    time_limit: float | str | None
    pareto: bool | None
    robust: int | None
    baselines: bool | None
    beside: Sequence[str] | str | None
    seed: int | None
    workers: int | None
    cluster: str | None
    sweep: Sequence[str] | str | None
    out: str | Path | None
    trace: str | Path | None
    wafer: str | None
    stage_shapes: Any
    stage_counts: Sequence[int] | int | None
    mapping: str | None
    layout: Any
    ablations: Sequence[Literal["no-recompute", "one-axis", "volume-only", "no-streaming", "no-zero-bubble", "no-offload", "shared-codes"]] | Literal["no-recompute", "one-axis", "volume-only", "no-streaming", "no-zero-bubble", "no-offload", "shared-codes"] | None
    dead_dies: Any
    dead_links: Any
    dead_share: float | str | None
    samples: int | None
    explain: Any

class ValidateFields(TypedDict, total=False):
    chips: str | Path | None
    wafer: str | Path | None
    device: str | None
    expect: Literal["oom"] | None
    site: str | None
    out: str | Path | None
