"""Measure single ranks of large layouts on one GPU, with fake process groups.

    python measure_ranks.py --out results              # every layout, on the GPU
    python measure_ranks.py --out results --tiny       # tiny models on the CPU: a check

`torch.testing._internal.distributed.fake_pg` lets one process be any rank of any world: kernels and
allocations are real, collectives return at once. Tools: torchtitan (its own model and
`parallelize_llama`) and Hugging Face models with FSDP2, DTensor tensor parallelism, DDP and PEFT.
A pipeline stage runs the 1F1B schedule by hand on random activations. So that products work on
sensible data, one kernel that copies this rank's part stands in for each gather and scatter
(`stand_in_ms`, outside `kernel_ms`); the fake group's own gather is one copy per rank, which the
host cannot launch in time from some 512 ranks on. Each layout runs in a process of its own: two
warm-up steps, two timed ones, one under Kineto.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib.abc
import importlib.machinery
import logging
import multiprocessing
import re
import statistics
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import measure_classes as classes
import torch
from measure_classes import BF16, FP32, Mark, ignore

FIELDS = [
    "id", "half", "tool", "mode", "model", "family", "layers", "model_layers", "hidden", "heads",
    "kv_heads", "head_dim", "ffn", "vocab", "experts", "top_k", "moe_ffn", "tied_embeddings",
    "params", "params_full", "trainable", "world", "rank", "tp", "fsdp", "replicate", "pp",
    "pp_rank", "microbatches", "sequence_parallel", "loss_parallel", "mbs", "seq", "weights",
    "compute", "reduce", "recompute", "reshard_after_forward", "compiled", "optimizer", "clip",
    "lora_rank", "lora_targets", "adapter_dtype", "attn", "experts_implementation", "step_ms",
    "spread", "forward_ms", "backward_ms", "clip_ms", "optimizer_ms", "host_ms", "static_bytes",
    "peak_bytes", "reserved_bytes", "requested_peak_bytes", "device_used_bytes",
    "device_total_bytes", "other_bytes", "alloc_retries", "power_W", "clock_MHz", "loss",
    "kernels", "kernel_ms", "k_products_ms", "k_attention_ms", "k_optimizer_ms",
    "k_softmax/loss_ms", "k_streaming_ms", "k_memory_ms", "k_grouped_ms",
    "k_attention_helpers_ms", "k_shard_copies_ms", "k_index_ms", "k_cat_ms", "k_fill_ms",
    "k_cast_ms", "k_norm_ms", "k_reduce_ms", "k_clip_ms", "k_forward_ms", "k_backward_ms",
    "stand_in_ms", "setup_s", "torch", "transformers", "torchtitan", "driver", "gpu", "error",
]  # fmt: skip

LINEAR = "q_proj+k_proj+v_proj+o_proj+gate_proj+up_proj+down_proj"


@dataclass(frozen=True)
class Layout:
    """Describe one rank of one layout."""

    model: str
    layers: int
    tool: str = "torchtitan"
    tp: int = 1
    fsdp: int = 1
    replicate: int = 1
    pp: int = 1
    pp_rank: int = 0
    rank: int = 0
    mbs: int = 1
    seq: int = 8192
    microbatches: int = 1
    recompute: str = "none"  # none, selective (every second block) or full
    weights: str = "fp32"
    compute: str = "bf16"
    reduce: str = "fp32"
    reshard: str = "default"  # default, always or never
    compiled: int = 0
    clip: int = 1
    lora_rank: int = 0

    @property
    def world(self) -> int:
        """Return the number of devices of the layout."""
        return self.tp * self.fsdp * self.replicate * self.pp

    @property
    def mode(self) -> str:
        """Return the kind of layout in a word."""
        if self.lora_rank:
            return "lora"
        if self.pp > 1:
            return "pipeline"
        if self.tp > 1:
            return "tensor"
        if self.fsdp > 1:
            return "hybrid" if self.replicate > 1 else "sharded"
        return "replicated"

    @property
    def half(self) -> str:
        """Return the half of the data: by model alone."""
        return "fit" if self.model in FIT_MODELS else "judge"

    @property
    def id(self) -> str:
        """Return a name that says all that is not the default."""
        parts = [self.tool[:2], self.model, f"{self.layers}l", f"{self.mbs}x{self.seq}"]
        for name in ("tp", "fsdp", "replicate", "pp"):
            if getattr(self, name) > 1:
                parts.append(f"{name}{getattr(self, name)}")
        parts += [f"stage{self.pp_rank}m{self.microbatches}"] if self.pp > 1 else []
        parts += [f"rank{self.rank}"] if self.rank else []
        parts += [self.recompute] if self.recompute != "none" else []
        parts += [self.weights] if self.weights != "fp32" else []
        parts += [f"compute-{self.compute}"] if self.compute != "bf16" else []
        parts += [f"reduce-{self.reduce}"] if self.reduce != "fp32" else []
        parts += [self.reshard] if self.reshard != "default" else []
        parts += ["compiled"] if self.compiled else []
        parts += [f"lora{self.lora_rank}"] if self.lora_rank else []
        parts += ["noclip"] if not self.clip else []
        return "-".join(parts)


# hidden, heads, kv heads, ffn, vocabulary, layers of the whole model
TITAN = {
    "llama3-1b": (2048, 32, 8, 8192, 128256, 16),
    "llama3-3b": (3072, 24, 8, 8192, 128256, 28),
    "llama3-8b": (4096, 32, 8, 14336, 128256, 32),
    "llama3-70b": (8192, 64, 8, 28672, 128256, 80),
    "llama3-405b": (16384, 128, 8, 53248, 128256, 126),
}
HUGGING: dict[str, tuple[dict[str, Any], int]] = {
    "hf-llama3-8b": (classes.llama8b(32), 32),
    "hf-qwen2-7b": (classes.qwen2("7b", 28), 28),
    "hf-qwen3-8b": (classes.qwen3("8b", 36), 36),
    "hf-mistral-7b": (classes.mistral(32), 32),
    "hf-mixtral-8x7b": (classes.mixtral(32, 4096, 32, 8, 14336), 32),
    "hf-qwen3-30b-a3b": (classes.qwen3_moe(48), 48),
    "hf-gpt2-xl": (classes.gpt2(48, 1600, 25), 48),
    "hf-pythia-2.8b": (classes.neox(32, 2560, 32, rotary_pct=0.25), 32),
}
FIT_MODELS = {
    "llama3-8b", "llama3-405b", "llama3-1b", "hf-llama3-8b", "hf-qwen3-8b", "hf-mixtral-8x7b",
    "hf-gpt2-xl",
}  # fmt: skip


def titan_layouts() -> Iterator[Layout]:
    """Yield the layouts of torchtitan."""
    base = Layout("llama3-8b", 16, fsdp=8)
    for recompute in ("none", "selective", "full"):
        yield replace(base, recompute=recompute)
    yield replace(base, fsdp=64, recompute="full")
    yield replace(base, fsdp=64, reshard="never")
    yield replace(base, fsdp=64, reshard="always")
    yield replace(base, fsdp=512)
    yield replace(base, fsdp=4096, recompute="full")
    yield replace(base, mbs=4, seq=2048)
    yield replace(base, mbs=2, seq=4096, recompute="selective", fsdp=32)
    yield replace(base, replicate=8)
    yield replace(base, replicate=16, fsdp=16, recompute="full")
    yield replace(base, tp=2)
    yield replace(base, tp=4, fsdp=16, recompute="full")
    yield replace(base, tp=8, fsdp=64, recompute="selective")
    yield replace(base, tp=8, fsdp=8, seq=32768, recompute="full")
    yield replace(base, weights="bf16", reduce="bf16")
    yield replace(base, reduce="bf16", fsdp=128)
    yield replace(base, compiled=1)
    yield replace(base, compiled=1, recompute="full", fsdp=64)
    yield replace(base, rank=7)
    yield replace(base, fsdp=64, rank=63, recompute="full")
    yield replace(base, fsdp=24, rank=23)
    yield replace(base, layers=4, seq=32768, recompute="full")
    yield replace(base, layers=32, fsdp=256, recompute="full")
    yield replace(base, layers=6, fsdp=1, replicate=8, mbs=1, seq=4096)
    yield replace(base, layers=6, fsdp=1, replicate=512, mbs=2, seq=4096, recompute="full")
    for stage in (0, 1, 3):
        yield replace(base, layers=16, pp=4, pp_rank=stage, fsdp=8, seq=4096, microbatches=8)
    large = Layout("llama3-70b", 6, fsdp=64, recompute="full")
    yield large
    yield replace(large, recompute="none")
    yield replace(large, recompute="selective", fsdp=128)
    yield replace(large, fsdp=512)
    yield replace(large, fsdp=4096, recompute="none")
    yield replace(large, reshard="never")
    yield replace(large, mbs=2, seq=4096, fsdp=256)
    yield replace(large, replicate=4, fsdp=32)
    yield replace(large, tp=8, fsdp=8)
    yield replace(large, tp=8, fsdp=16, recompute="none")
    yield replace(large, tp=8, fsdp=128, recompute="selective")
    yield replace(large, tp=4, fsdp=32, recompute="selective")
    yield replace(large, tp=2, fsdp=64)
    yield replace(large, tp=8, fsdp=16, seq=32768)
    yield replace(large, weights="bf16", reduce="bf16")
    yield replace(large, compiled=1)
    yield replace(large, fsdp=24, rank=23)
    yield replace(large, fsdp=512, rank=511)
    for stage in (0, 2, 3):
        yield replace(large, layers=16, tp=8, pp=4, pp_rank=stage, fsdp=4, seq=4096,
                      microbatches=8, recompute="none")  # fmt: skip
    huge = Layout("llama3-405b", 2, tp=8, fsdp=64, recompute="full")
    yield huge
    yield replace(huge, recompute="none")
    yield replace(huge, fsdp=128, recompute="selective")
    yield replace(huge, tp=1, fsdp=512)
    three = Layout("llama3-3b", 14, fsdp=8)
    yield three
    yield replace(three, fsdp=32, recompute="full")
    yield replace(three, reshard="never", fsdp=16)
    yield replace(three, tp=2, recompute="selective")
    yield replace(three, compiled=1, fsdp=16)
    yield replace(three, layers=8, fsdp=1, replicate=8, seq=4096)
    small = Layout("llama3-1b", 16, fsdp=8)
    yield small
    yield replace(small, mbs=2, fsdp=64, recompute="full")
    yield replace(small, replicate=8, fsdp=1, seq=4096)


def hugging_layouts() -> Iterator[Layout]:
    """Yield the layouts of Hugging Face models."""
    for model, layers in (("hf-llama3-8b", 12), ("hf-qwen2-7b", 12)):
        base = Layout(model, layers, tool="huggingface", fsdp=8, seq=4096)
        yield base
        yield replace(base, recompute="full", mbs=2)
        yield replace(base, weights="bf16", reduce="bf16")
        yield replace(base, fsdp=64, recompute="full", weights="bf16", mbs=2)
        yield replace(base, fsdp=1024, reshard="never")
        yield replace(base, fsdp=128, seq=16384, recompute="full")
        yield replace(base, fsdp=24, rank=23, recompute="full")
        yield replace(base, replicate=16, recompute="full")
        for tp, fsdp in ((2, 1), (4, 8), (8, 16)):
            if layers == 12 and model == "hf-qwen2-7b" and tp == 8:
                continue  # its four key and value heads cannot be split by eight
            yield replace(base, tp=tp, fsdp=fsdp, clip=0, weights="bf16", reduce="bf16")
        yield replace(base, layers=6, fsdp=1, replicate=8, weights="bf16")
        yield replace(base, layers=6, fsdp=1, replicate=64, weights="fp32", recompute="full")
        lora = replace(base, lora_rank=16, weights="bf16", reduce="bf16", layers=layers + 4)
        yield lora
        yield replace(lora, fsdp=64, recompute="full", mbs=2)
        yield replace(lora, fsdp=512, recompute="full", seq=16384)
        yield replace(lora, fsdp=1, replicate=8, recompute="full")
    for model, layers in (("hf-qwen3-8b", 10), ("hf-mistral-7b", 10)):
        base = Layout(model, layers, tool="huggingface", fsdp=16, seq=8192)
        yield base
        yield replace(base, recompute="full", fsdp=256)
    for model, layers in (("hf-mixtral-8x7b", 2), ("hf-qwen3-30b-a3b", 3)):
        base = Layout(model, layers, tool="huggingface", fsdp=8, seq=4096)
        yield base
        yield replace(base, fsdp=64, recompute="full", mbs=2)
        yield replace(base, fsdp=512, weights="bf16", reduce="bf16")
    for model, layers in (("hf-gpt2-xl", 24), ("hf-pythia-2.8b", 12)):
        seq = 1024 if "gpt2" in model else 2048
        base = Layout(model, layers, tool="huggingface", fsdp=8, mbs=4, seq=seq)
        yield base
        yield replace(base, fsdp=1, replicate=64)
        yield replace(base, fsdp=64, recompute="full", mbs=8)


def all_layouts() -> list[Layout]:
    """Return the layouts, those of both tools interleaved and none twice."""
    kinds = [list(titan_layouts()), list(hugging_layouts())]
    places = [
        ((index + 0.5) / len(kind), layout) for kind in kinds for index, layout in enumerate(kind)
    ]
    layout_by_id = {layout.id: layout for _, layout in sorted(places, key=lambda place: place[0])}
    return list(layout_by_id.values())


# --- stand-ins for collectives --------------------------------------------------------------------


class Fill:
    """Hold what a collective of tensor parallelism was given."""

    source: torch.Tensor | None = None


def copy_into(rows: torch.Tensor, part: torch.Tensor) -> None:
    """Copy one part into every row, by a kernel that nothing else uses."""
    if rows.is_floating_point():
        torch.copysign(part.expand_as(rows), part, out=rows)
    else:
        rows.copy_(part)


def patch_collectives() -> None:
    """Make gathers and scatters of fake groups return what this rank holds, by one kernel each."""
    from torch.distributed import _functional_collectives as funcol
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives as sharded

    def local_gather(
        self: Any, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any,
        async_op: bool = False,
    ) -> None:  # fmt: skip
        copy_into(output_tensor.view(group.size(), -1), input_tensor.clone().view(-1))

    def local_scatter(
        self: Any, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any,
        async_op: bool = False,
    ) -> None:  # fmt: skip
        copy_into(output_tensor.view(-1), input_tensor.view(group.size(), -1)[0])

    sharded.DefaultAllGather.__call__ = local_gather
    sharded.DefaultReduceScatter.__call__ = local_scatter
    wrap, gather_one, scatter_one = (
        funcol._maybe_wrap_tensor, funcol.all_gather_tensor, funcol.reduce_scatter_tensor,
    )  # fmt: skip

    def wrapped(tensor: torch.Tensor) -> Any:
        source, Fill.source = Fill.source, None
        if source is not None:
            copy_into(tensor.view(-1, *source.shape), source)
        return wrap(tensor)

    def gathered(self: torch.Tensor, gather_dim: int, group: Any, tag: str = "") -> Any:
        Fill.source = self
        return gather_one(self, gather_dim, group, tag)

    def scattered(
        self: torch.Tensor, reduceOp: str, scatter_dim: int, group: Any, tag: str = ""
    ) -> Any:
        size = funcol.c10d._get_group_size_by_name(funcol._resolve_group_name(group, tag))
        Fill.source = self.narrow(scatter_dim, 0, self.size(scatter_dim) // size)
        return scatter_one(self, reduceOp, scatter_dim, group, tag)

    ddp = torch.nn.parallel.DistributedDataParallel
    start = ddp.__init__

    def unreduced(_, bucket):  # type: ignore[no-untyped-def]  # DDP reads annotations
        tensor = bucket.buffer()
        future = torch.futures.Future(devices=[tensor.device] if tensor.is_cuda else [])
        future.set_result(tensor)
        return future

    def started(self: Any, *args: Any, **more: Any) -> None:
        start(self, *args, **more)
        self.register_comm_hook(None, unreduced)

    ddp.__init__ = started
    funcol._maybe_wrap_tensor = wrapped
    funcol.all_gather_tensor = gathered
    funcol.reduce_scatter_tensor = scattered


class StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stand in for packages that torchtitan imports and a step does not need."""

    NAMES = ("datasets", "torchdata", "tensorboard", "torch.utils.tensorboard")

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return a specification for the packages that are stood in for."""
        if name.split(".")[0] in self.NAMES or name in self.NAMES:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        """Return a module whose every attribute is an empty class."""

        class Stub(types.ModuleType):
            def __getattr__(self, name: str) -> Any:
                if name.startswith("__"):
                    raise AttributeError(name)
                return type(name, (), {})

        return Stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Leave the module empty."""


# --- steps ----------------------------------------------------------------------------------------


@dataclass
class RankStep:
    """Hold a parallel model and run its steps as `measure_classes.Prepared` does."""

    model: torch.nn.Module
    forward: Callable[[], torch.Tensor]
    optimizer: Any
    clip: Callable[[], None] | None = None
    context: Callable[[], Any] = contextlib.nullcontext
    schedule: Callable[[Mark], None] | None = None
    last_loss: torch.Tensor | None = None
    trained: list[torch.nn.Parameter] = field(default_factory=list)

    def step(self, mark: Mark = ignore) -> None:
        """Run one step."""
        if self.schedule is not None:
            self.schedule(mark)
        else:
            with self.context():
                mark("forward")
                loss = self.forward()
                mark("backward")
                loss.backward()
            self.last_loss = loss.detach()
        mark("clip")
        if self.clip is not None:
            self.clip()
        mark("optimizer")
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        mark("end")


def local(x: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor that this rank holds."""
    return x.to_local() if hasattr(x, "to_local") else x


def initialize(model: torch.nn.Module) -> None:
    """Give every parameter of this rank random values: matrices small ones, vectors ones."""
    with torch.no_grad():
        for parameter in model.parameters():
            data = local(parameter)
            data.normal_(0.0, 0.02) if parameter.dim() > 1 else data.fill_(1.0)


def adamw(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Return a fused AdamW with one group per device mesh and dtype."""
    groups: dict[Any, list[torch.nn.Parameter]] = {}
    for p in parameters:
        groups.setdefault((str(getattr(p, "device_mesh", "")), p.dtype), []).append(p)
    return torch.optim.AdamW([{"params": g} for g in groups.values()], lr=1e-6, fused=True)


def pipeline_schedule(
    model: torch.nn.Module, layout: Layout, forward: Callable[[Any, bool], torch.Tensor],
    inputs: Callable[[], Any],
) -> Callable[[Mark], None]:  # fmt: skip
    """Return a 1F1B step of one stage: random activations come in, random gradients come back."""
    from torch.distributed.fsdp import FSDPModule

    last = layout.pp_rank == layout.pp - 1

    def forward_pass() -> tuple[Any, torch.Tensor]:
        given = inputs()
        return given, forward(given, last)

    def back(pair: tuple[Any, torch.Tensor], final: bool) -> None:
        if isinstance(model, FSDPModule):
            model.set_is_last_backward(final)
            model.set_requires_gradient_sync(final)
            model.set_reshard_after_backward(final)
        out = pair[1]
        out.backward(None if last else torch.randn_like(out).mul_(1e-4))

    def schedule(mark: Mark) -> None:
        mark("forward")
        count = layout.microbatches
        warm = min(layout.pp - layout.pp_rank - 1, count)
        queue = [forward_pass() for _ in range(warm)]
        done = 0
        for _ in range(count - warm):
            queue.append(forward_pass())
            done += 1
            back(queue.pop(0), done == count)
        while queue:
            done += 1
            back(queue.pop(0), done == count)

    return schedule


def prepare_titan(layout: Layout, device: str, sizes: tuple[int, ...]) -> RankStep:
    """Build one rank of a torchtitan layout with the tool's own functions."""
    sys.meta_path.insert(0, StubFinder())
    from torchtitan.components.loss import build_cross_entropy_loss
    from torchtitan.config import JobConfig
    from torchtitan.distributed import ParallelDims
    from torchtitan.distributed import parallel_dims as titan_dims
    from torchtitan.distributed import utils as titan_utils
    from torchtitan.models.llama3 import Transformer, TransformerModelArgs, parallelize_llama

    titan_dims.device_type = device
    hidden, heads, kv_heads, ffn, vocab = sizes
    job = JobConfig()
    job.training.seq_len, job.training.local_batch_size = layout.seq, layout.mbs
    job.training.mixed_precision_param = {"bf16": "bfloat16", "fp32": "float32"}[layout.compute]
    job.training.mixed_precision_reduce = {"bf16": "bfloat16", "fp32": "float32"}[layout.reduce]
    job.parallelism.fsdp_reshard_after_forward = layout.reshard
    job.activation_checkpoint.mode = layout.recompute
    job.compile.enable = bool(layout.compiled)
    dims = ParallelDims(
        dp_replicate=layout.replicate, dp_shard=layout.fsdp, cp=1, tp=layout.tp, pp=layout.pp,
        ep=1, etp=1, world_size=layout.world,
    )  # fmt: skip
    dims.build_mesh()
    multiplier = ffn / int(2 * 4 * hidden / 3)
    arguments = TransformerModelArgs(
        dim=hidden, n_layers=layout.layers, n_heads=heads, n_kv_heads=kv_heads, vocab_size=vocab,
        ffn_dim_multiplier=multiplier * 0.999, multiple_of=256, rope_theta=500000,
    )  # fmt: skip
    arguments.update_from_config(job)
    torch.set_default_dtype(BF16 if layout.weights == "bf16" else FP32)
    with torch.device("meta"):
        model: Any = Transformer(arguments)
    torch.set_default_dtype(FP32)
    if layout.pp > 1:
        layers_per_stage = layout.layers // layout.pp
        kept = range(layout.pp_rank * layers_per_stage, (layout.pp_rank + 1) * layers_per_stage)
        for name in list(model.layers):
            if int(name) not in kept:
                del model.layers[name]
        if layout.pp_rank > 0:
            model.tok_embeddings = None
        if layout.pp_rank < layout.pp - 1:
            model.norm, model.output = None, None
    parallelize_llama(model, dims, job)
    model.to_empty(device=device)
    with torch.no_grad():
        initialize(model)
        with torch.device(device):
            model.freqs_cis = model._precompute_freqs_cis()
    model.train()
    trained = list(model.parameters())
    entropy = build_cross_entropy_loss(job)
    ids = torch.randint(0, vocab, (layout.mbs, layout.seq), device=device)
    tokens = layout.mbs * layout.seq
    split_loss = layout.tp > 1 and not job.parallelism.disable_loss_parallel
    amp = titan_utils.maybe_enable_amp(dims, job.training.mixed_precision_param, device)
    train_context = titan_utils.get_train_context(split_loss)

    def forward() -> torch.Tensor:
        with amp:
            return entropy(model(ids), ids) / tokens

    def clip() -> None:
        titan_utils.clip_grad_norm_(trained, 1.0, foreach=True)

    run = RankStep(
        model, forward, adamw(trained), clip if layout.clip else None, train_context,
        trained=trained,
    )  # fmt: skip
    if layout.pp > 1:
        part = layout.seq // layout.tp

        def inputs() -> torch.Tensor:
            if layout.pp_rank == 0:
                return ids
            shape = (layout.mbs, part, hidden)
            return torch.randn(shape, device=device, dtype=BF16).requires_grad_()

        def stage(given: Any, last: bool) -> torch.Tensor:
            out = model(given)
            return entropy(out, ids) / tokens if last else out

        inner = pipeline_schedule(model, layout, stage, inputs)

        def schedule(mark: Mark) -> None:
            with train_context():
                inner(mark)

        run.schedule = schedule
    return run


def tensor_plan() -> dict[str, Any]:
    """Return the tensor-parallel plan of Llama-like Hugging Face models."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    plan: dict[str, Any] = {"lm_head": ColwiseParallel(output_layouts=Replicate())}
    for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj",
                 "mlp.up_proj"):  # fmt: skip
        plan[f"model.layers.*.{name}"] = ColwiseParallel()
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        plan[f"model.layers.*.{name}"] = RowwiseParallel()
    return plan


def restore_buffers(model: torch.nn.Module, device: str) -> None:
    """Compute again the buffers that an empty model lacks: rotary frequencies."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if hasattr(child, "inv_freq"):
                setattr(parent, name, type(child)(config=model.config).to(device))


def prepare_hugging(layout: Layout, device: str, config: dict[str, Any]) -> RankStep:
    """Build one rank of a Hugging Face layout."""
    import transformers
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor.parallel import parallelize_module

    config_fields = dict(config)
    kind = config_fields.pop("model_type")
    config_fields["n_layer" if kind == "gpt2" else "num_hidden_layers"] = layout.layers
    config_fields["tie_word_embeddings"] = False
    if kind != "gpt2":
        config_fields["max_position_embeddings"] = max(layout.seq, 2048)
    settings = transformers.AutoConfig.for_model(kind, **config_fields)
    experts = "num_experts_per_tok" in config
    if experts:
        settings._experts_implementation = "grouped_mm"
    weights = BF16 if layout.weights == "bf16" else FP32
    torch.set_default_dtype(weights)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(
            settings, attn_implementation="sdpa", dtype=weights
        )
    torch.set_default_dtype(FP32)
    inner = model
    if layout.lora_rank:
        import peft

        model = peft.get_peft_model(
            model,
            peft.LoraConfig(r=layout.lora_rank, lora_alpha=32, target_modules=LINEAR.split("+"),
                            task_type="CAUSAL_LM"),
            autocast_adapter_dtype=False,
        )  # fmt: skip
    model.train()
    if layout.recompute == "full":
        inner.gradient_checkpointing_enable({"use_reentrant": False})
        if layout.lora_rank:
            inner.enable_input_require_grads()
    names, shape = ("replicate", "shard", "tp"), (layout.replicate, layout.fsdp, layout.tp)
    mesh = init_device_mesh(device, shape, mesh_dim_names=names)
    if layout.tp > 1:
        parallelize_module(model, mesh["tp"], tensor_plan())
    if layout.fsdp > 1:
        dtypes = {"bf16": BF16, "fp32": FP32}
        policy = MixedPrecisionPolicy(
            param_dtype=dtypes[layout.compute], reduce_dtype=dtypes[layout.reduce]
        )
        options: dict[str, Any] = {
            "mesh": mesh["replicate", "shard"] if layout.replicate > 1 else mesh["shard"],
            "mp_policy": policy, "reshard_after_forward": layout.reshard != "never",
        }  # fmt: skip
        for block in classes.blocks(inner):
            fully_shard(block, **options)
        fully_shard(model, **options)
    model.to_empty(device=device)
    initialize(model)
    restore_buffers(inner, device)
    trained = [p for p in model.parameters() if p.requires_grad]
    called: Any = model
    if layout.fsdp == 1 and layout.replicate > 1:
        called = torch.nn.parallel.DistributedDataParallel(
            model, device_ids=[0] if device == "cuda" else None,
            process_group=mesh["replicate"].get_group(),
        )  # fmt: skip
    ids = torch.randint(5, int(config["vocab_size"]), (layout.mbs, layout.seq), device=device)

    def amp() -> Any:
        plain = layout.fsdp > 1 or layout.weights == "bf16"
        return contextlib.nullcontext() if plain else torch.autocast(device, dtype=BF16)

    def forward() -> torch.Tensor:
        with amp():
            return called(input_ids=ids, labels=ids, use_cache=False).loss

    def clip() -> None:
        torch.nn.utils.clip_grad_norm_(trained, 1.0)

    return RankStep(model, forward, adamw(trained), clip if layout.clip else None, trained=trained)


def sizes_of(layout: Layout, tiny: bool) -> tuple[Any, dict[str, Any], int]:
    """Return what builds the model, its describing columns and its whole number of layers."""
    if layout.tool == "torchtitan":
        hidden, heads, kv_heads, ffn, vocab, model_layers = TITAN[layout.model]
        if tiny:
            hidden, heads, kv_heads, ffn, vocab = 256, 16, 8, 512, 1024
        columns: dict[str, Any] = {
            "family": "llama", "hidden": hidden, "heads": heads, "kv_heads": kv_heads,
            "ffn": ffn, "vocab": vocab,
        }  # fmt: skip
        return (hidden, heads, kv_heads, ffn, vocab), columns, model_layers
    config, model_layers = HUGGING[layout.model]
    if tiny:
        small = {"hidden_size": 512, "n_embd": 500, "intermediate_size": 256, "vocab_size": 1024,
                 "num_attention_heads": 8, "n_head": 25, "num_key_value_heads": 8, "head_dim": 64,
                 "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2,
                 "moe_intermediate_size": 64}  # fmt: skip
        config = {key: small.get(key, value) for key, value in config.items()}

    def first(*names: str) -> Any:
        return next((config[name] for name in names if config.get(name) is not None), "")

    columns = {
        "family": config["model_type"], "hidden": first("hidden_size", "n_embd"),
        "heads": first("num_attention_heads", "n_head"), "kv_heads": first("num_key_value_heads"),
        "head_dim": first("head_dim"), "ffn": first("intermediate_size"),
        "vocab": first("vocab_size"), "experts": first("num_local_experts", "num_experts") or 0,
        "top_k": first("num_experts_per_tok") or 0, "moe_ffn": first("moe_intermediate_size") or 0,
        "experts_implementation": "grouped_mm" if "num_experts_per_tok" in config else "",
    }  # fmt: skip
    return config, columns, model_layers


def layout_columns(layout: Layout, tiny: bool) -> dict[str, Any]:
    """Return the columns that the layout alone decides."""
    _, columns, model_layers = sizes_of(layout, tiny)
    titan = layout.tool == "torchtitan"
    return {
        "id": layout.id, "half": layout.half, "tool": layout.tool, "mode": layout.mode,
        "model": layout.model, "layers": layout.layers, "model_layers": model_layers, **columns,
        "tied_embeddings": 0, "world": layout.world, "rank": rank_of(layout), "tp": layout.tp,
        "fsdp": layout.fsdp, "replicate": layout.replicate, "pp": layout.pp,
        "pp_rank": layout.pp_rank, "microbatches": layout.microbatches,
        "sequence_parallel": int(titan and layout.tp > 1),
        "loss_parallel": int(titan and layout.tp > 1), "mbs": layout.mbs, "seq": layout.seq,
        "weights": layout.weights, "compute": layout.compute, "reduce": layout.reduce,
        "recompute": layout.recompute, "reshard_after_forward": layout.reshard,
        "compiled": layout.compiled, "optimizer": "fused", "clip": layout.clip,
        "lora_rank": layout.lora_rank, "lora_targets": LINEAR if layout.lora_rank else "",
        "adapter_dtype": layout.weights if layout.lora_rank else "", "attn": "sdpa",
    }  # fmt: skip


def rank_of(layout: Layout) -> int:
    """Return the global rank: the stage is the slowest of the mesh's dimensions."""
    stage = layout.pp_rank * (layout.world // layout.pp)
    return stage + layout.rank * (layout.tp if layout.pp == 1 else 1)


def prepare(layout: Layout, device: str, tiny: bool) -> RankStep:
    """Start the fake world and build the rank."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if device == "cuda":
        torch.cuda.set_device(0)
    torch.manual_seed(0)
    dist.init_process_group(
        backend="fake", rank=rank_of(layout), world_size=layout.world, store=FakeStore()
    )
    patch_collectives()
    source, _, _ = sizes_of(layout, tiny)
    if layout.tool == "torchtitan":
        return prepare_titan(layout, device, source)
    return prepare_hugging(layout, device, source)


def counts(run: RankStep) -> dict[str, Any]:
    """Return the numbers of parameters: of this rank, of the whole, and trained by this rank."""
    return {
        "params": sum(local(p).numel() for p in run.model.parameters()),
        "params_full": sum(p.numel() for p in run.model.parameters()),
        "trainable": sum(local(p).numel() for p in run.trained),
    }


def measure(layout: Layout, save: Callable[[str, Any], None]) -> None:
    """Measure a layout's rank on the GPU."""
    started = time.perf_counter()
    run = prepare(layout, "cuda", tiny=False)
    save("row", counts(run))
    for _ in range(2):
        run.step()
    torch.cuda.synchronize()
    static = torch.cuda.memory_allocated()
    save("row", {"setup_s": round(time.perf_counter() - started, 1)})
    torch.cuda.reset_peak_memory_stats()
    reserved = torch.cuda.memory_reserved()
    window = [time.monotonic_ns()]
    times, host, phases = classes.timed_steps(run, 2)  # type: ignore[arg-type]
    window.append(time.monotonic_ns())
    free, total = torch.cuda.mem_get_info()
    reserved = max(reserved, torch.cuda.max_memory_reserved())
    stats = torch.cuda.memory_stats()
    middle = statistics.median(times)
    save("window", window)
    save("row", {
        "step_ms": round(middle, 3), "spread": round((max(times) - min(times)) / middle, 3),
        "host_ms": round(statistics.median(host), 3),
        **{f"{name}_ms": round(ms, 3) for name, ms in phases.items()},
        "static_bytes": static, "peak_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": reserved,
        "requested_peak_bytes": stats.get("requested_bytes.all.peak", ""),
        "device_used_bytes": total - free, "device_total_bytes": total,
        "other_bytes": total - free - torch.cuda.memory_reserved(),
        "alloc_retries": stats.get("num_alloc_retries", 0), "gpu": torch.cuda.get_device_name(),
    })  # fmt: skip
    if run.last_loss is not None:
        loss = run.last_loss
        save("row", {"loss": round(float(loss.full_tensor() if hasattr(loss, "full_tensor")
                                         else loss), 4)})  # fmt: skip
    kernels = classes.profiled_kernels(run)  # type: ignore[arg-type]
    save("kernels", kernels)
    stand_in = 0.0
    for entries in kernels.values():
        for name in [name for name in entries if re.search(r"copysign|Memcpy DtoD", name)]:
            stand_in += entries.pop(name)[0]
    copies = sum(
        ms for entries in kernels.values() for name, (ms, _) in entries.items()
        if re.search(r"split_with_sizes|chunk_cat", name)
    )  # fmt: skip
    save("row", {
        **classes.kernel_columns(kernels), "stand_in_ms": round(stand_in, 3),
        "k_shard_copies_ms": round(copies, 3),
    })  # fmt: skip


def rehearse(layout: Layout, save: Callable[[str, Any], None]) -> None:
    """Run a shrunken layout on the CPU, to check that it can be built and trained."""
    layers = layout.pp if layout.pp > 1 else 2
    seq = 128 if layout.seq > 128 else layout.seq
    small = replace(layout, layers=layers, seq=seq, mbs=1, compiled=0)
    run = prepare(small, "cpu", tiny=True)
    save("row", counts(run))
    run.step()
    seen: list[str] = []
    run.step(seen.append)
    save("row", {"step_ms": 0, "loss": float(run.last_loss) if run.last_loss is not None else ""})


def record(
    layout: Layout, context: Any, out: Path, samples: str, limit: float, tiny: bool
) -> dict[str, Any]:
    """Measure one layout in a process of its own, write its lines and return its row."""
    row = layout_columns(layout, tiny)
    work = partial(rehearse if tiny else measure, layout)
    for name, value in classes.run_child(context, work, limit):
        if name == "row":
            row |= value
        elif name == "window":
            row |= classes.power_columns(samples, value)
        elif name == "kernels":
            entries = {
                phase: sorted(([round(ms, 4), int(n), k[:300]] for k, (ms, n) in kernels.items()),
                              reverse=True)
                for phase, kernels in value.items()
            }  # fmt: skip
            classes.append_json(out / "rank_kernels.jsonl", {"id": layout.id, "phases": entries})
        elif name == "error":
            row["error"] = value["error"]
            if value["oom"]:
                row |= {"step_ms": "OOM", **value["memory"]}
            elif value.get("trace"):
                print(layout.id, value["trace"][-700:], flush=True)
    return row


def titan_version() -> str:
    """Return the version of torchtitan, or nothing."""
    from importlib import metadata

    with contextlib.suppress(Exception):
        return metadata.version("torchtitan")
    return ""


def main() -> None:
    """Measure the layouts named on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--only", default="", help="a regular expression that ids must match")
    parser.add_argument("--start", type=int, default=0, help="the first layout")
    parser.add_argument("--stop", type=int, default=10**6, help="the layout to stop before")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which to stop")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for one layout")
    parser.add_argument("--tiny", action="store_true", help="rehearse on the CPU")
    parser.add_argument("--start-method", default="fork", help="fork, or spawn where it fails")
    parser.add_argument("--list", action="store_true", help="print the layouts and end")
    options = parser.parse_args()
    begin = time.monotonic()
    layouts = all_layouts()
    if options.list:
        for index, layout in enumerate(layouts):
            print(index, layout.half, layout.mode, layout.id)
        return
    warnings.filterwarnings("ignore")
    logging.getLogger("torch").setLevel(logging.ERROR)
    options.out.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context(options.start_method)
    classes.preload(context)
    for name in ("torch.distributed.fsdp", "torch.distributed.tensor.parallel",
                 "torch.testing._internal.distributed.fake_pg"):  # fmt: skip
        importlib.import_module(name)
    package_versions = classes.versions() | {"torchtitan": titan_version()}
    samples = "/dev/shm/atoll_rank_samples.txt"
    stop = context.Event()
    if not options.tiny:
        context.Process(target=classes.sample, args=(samples, stop), daemon=True).start()
    if not options.tiny and not classes.forked_cuda_works(context):
        sys.exit(3)
    print(f"ready after {time.monotonic() - begin:.1f} s: {package_versions}", flush=True)
    failed = 0
    with (options.out / "ranks.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, restval="", extrasaction="ignore")
        writer.writeheader()
        for index, layout in list(enumerate(layouts))[options.start : options.stop]:
            if options.only and not re.search(options.only, layout.id):
                continue
            if time.monotonic() - begin > options.budget:
                print(f"budget spent before layout {index}", flush=True)
                break
            since = time.monotonic()
            row = (
                record(layout, context, options.out, samples, options.limit, options.tiny)
                | package_versions
            )
            writer.writerow(row)
            file.flush()
            failed += bool(row.get("error"))
            print(
                f"{index} {layout.id} step {row.get('step_ms', '-')} ms, peak "
                f"{(row.get('peak_bytes') or 0) / 1e9:.1f} GB, reserved "
                f"{(row.get('reserved_bytes') or 0) / 1e9:.1f} GB, loss {row.get('loss', '-')}, "
                f"took {time.monotonic() - since:.1f} s {row.get('error', '')[:160]}",
                flush=True,
            )
    stop.set()
    print(f"done after {time.monotonic() - begin:.1f} s, {failed} failed", flush=True)


if __name__ == "__main__":
    main()
