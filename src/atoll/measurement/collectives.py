"""Stand-ins for collectives of fake process groups, so that a rank computes on sensible data.

The fake group's own gather is one copy per rank, which the host cannot launch in time from some 512
ranks on, and its reductions leave outputs as they are. Here one kernel (copysign, which nothing
else uses) copies this rank's part; `kineto.STAND_IN` matches it in a profile.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

STREAMS = ("all_gather_copy_in_stream", "all_gather_stream", "reduce_scatter_stream",
           "all_reduce_stream")  # fmt: skip
"""Streams of FSDP2's collectives."""
PENDING: list[torch.Tensor] = []
"""Input of the functional collective that runs now."""
ENDED = SimpleNamespace(wait=lambda: None)
"""A collective that has ended."""


def copy_into(rows: torch.Tensor, part: torch.Tensor) -> None:
    """Copy one part into every row, by a kernel that nothing else uses."""
    if rows.is_floating_point():
        torch.copysign(part.expand_as(rows), part, out=rows)
    else:
        rows.copy_(part)


def run_in_line(model: Any) -> None:
    """Let FSDP2's collectives run between the kernels of the pass: then no stand-in slows a kernel
    down, and the time of all of them can be taken out of a step.
    """
    current = torch.cuda.current_stream()
    for module in model.modules():
        if hasattr(module, "_get_fsdp_state"):
            context = module._get_fsdp_state()._comm_ctx
            for name in STREAMS:
                setattr(context, name, current)


def _gather(output_tensor: Any, input_tensor: Any, group: Any = None, async_op: Any = False) -> Any:
    copy_into(output_tensor.view(dist.get_world_size(group), -1), input_tensor.clone().view(-1))
    return ENDED if async_op else None


def _scatter(output: Any, input: Any, op: Any = None, group: Any = None, async_op: Any = 0) -> Any:
    if output.untyped_storage().data_ptr() != input.untyped_storage().data_ptr():
        copy_into(output.view(-1), input.reshape(dist.get_world_size(group), -1)[0])
    return ENDED if async_op else None


@functools.cache
def patch_collectives() -> None:
    """Let gathers and scatters return this rank's part, by one kernel each: those that FSDP2 and
    Megatron-Core call, those of DTensor; and let DistributedDataParallel keep its gradients.
    """
    dist.all_gather_into_tensor, dist.reduce_scatter_tensor = _gather, _scatter
    wrap = functional._maybe_wrap_tensor
    gather, scatter = functional.all_gather_tensor, functional.reduce_scatter_tensor

    def wrapped(tensor: torch.Tensor) -> Any:
        if PENDING:
            source = PENDING.pop()
            # A collective's output counts as new: checkpoints refuse cached tensors that changed.
            with torch.autograd._unsafe_preserve_version_counter(tensor):
                copy_into(tensor.view(-1, *source.shape), source)
        return wrap(tensor)

    def gathered(self: Any, gather_dim: int, group: Any, tag: str = "") -> Any:
        PENDING.append(self)
        return gather(self, gather_dim, group, tag)

    def scattered(self: Any, reduceOp: str, scatter_dim: int, group: Any, tag: str = "") -> Any:
        name = functional._resolve_group_name(group, tag)
        size = functional.c10d._get_group_size_by_name(name)
        PENDING.append(self.narrow(scatter_dim, 0, self.size(scatter_dim) // size))
        return scatter(self, reduceOp, scatter_dim, group, tag)

    functional._maybe_wrap_tensor = wrapped
    functional.all_gather_tensor, functional.reduce_scatter_tensor = gathered, scattered
    ddp: Any = torch.nn.parallel.DistributedDataParallel
    start = ddp.__init__

    def unreduced(_, bucket):  # type: ignore[no-untyped-def]  # DDP reads annotations
        tensor = bucket.buffer()
        future = torch.futures.Future(devices=[tensor.device] if tensor.is_cuda else [])
        future.set_result(tensor)
        return future

    def started(self: Any, *args: Any, **words: Any) -> None:
        start(self, *args, **words)
        self.register_comm_hook(None, unreduced)

    ddp.__init__ = started
