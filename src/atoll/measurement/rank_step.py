"""One rank of a parallel model on the local device, and its training step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

from atoll.measurement.profiler import Mark
from atoll.measurement.runner import RankJob

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass
class RankStep:
    """A parallel model and its training step: all microbatches, then the update."""

    job: RankJob
    device: str
    model: Any
    forward: Callable[[Any, Any], Any]
    """Takes a stage's input and the labels; returns the loss in the last stage, or activations."""
    update: Callable[[Mark], None]
    """Clips gradients and updates weights."""
    context: Callable[[], Any] = contextlib.nullcontext
    last_loss: Any = None

    def __post_init__(self) -> None:
        first_id = 5 if self.job.tool == "transformers" else 0  # ids below are of special words
        shape, vocabulary = (self.job.microbatch, self.job.sequence), self.job.config["vocab_size"]
        self.ids = torch.randint(first_id, vocabulary, shape, device=self.device)

    def step(self, mark: Mark = str) -> None:
        """Run one training step; tell `mark` where its phases begin."""
        with self.context():
            (self._pipelined if self.job.pp > 1 else self._accumulated)(mark)
        mark("clip")
        self.update(mark)
        mark("end")

    def _accumulated(self, mark: Mark) -> None:
        """Run microbatch after microbatch. accelerate reduces gradients after the last one,
        torchtitan after each of them.
        """
        sync = getattr(self.model, "set_requires_gradient_sync", None)
        for number in range(self.job.microbatches):
            if sync is not None and self.job.tool == "transformers":
                sync(number == self.job.microbatches - 1)
            mark("forward")
            loss = self.forward(self.ids, self.ids)
            mark("backward")
            loss.backward()
        self.last_loss = loss.detach()

    def _pipelined(self, mark: Mark) -> None:
        """Run one pipeline stage in 1F1B order: random activations come in, random gradients come
        back. All kernels count as one phase, as passes alternate.
        """
        mark("forward")
        count = self.job.microbatches
        warm = min(self.job.pp - self.job.stage - 1, count)
        queue = [self.forward(self._stage_input(), self.ids) for _ in range(warm)]
        for done in range(count):
            if warm + done < count:
                queue.append(self.forward(self._stage_input(), self.ids))
            if isinstance(self.model, FSDPModule):
                final = done == count - 1
                self.model.set_is_last_backward(final)
                self.model.set_requires_gradient_sync(final)
                self.model.set_reshard_after_backward(final)
            output = queue.pop(0)
            output.backward(None if self.job.last else torch.randn_like(output).mul_(1e-4))

    def _stage_input(self) -> Any:
        """Return the first stage's ids, or random activations, whose sequence is divided."""
        job = self.job
        if job.stage == 0:
            return self.ids
        sizes = [job.microbatch, job.sequence // job.tp]
        sizes = sizes[::-1] if job.tool == "megatron-lm" else sizes
        shape, dtype = (*sizes, job.config["hidden_size"]), DTYPES[job.compute]
        return torch.randn(shape, device=self.device, dtype=dtype).requires_grad_()


def adamw_update(
    model: Any, clip: Callable[[list[Any], float], Any] | None
) -> Callable[[Mark], None]:
    """Return the update of a model by fused AdamW, with one group per device mesh and dtype."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups: dict[Any, list[Any]] = {}
    for p in trained:
        groups.setdefault((str(getattr(p, "device_mesh", "")), p.dtype), []).append(p)
    optimizer = torch.optim.AdamW([{"params": g} for g in groups.values()], lr=1e-6, fused=True)

    def update(mark: Mark) -> None:
        if clip is not None:
            clip(trained, 1.0)
        mark("optimizer")
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return update


def local_part(tensor: Any) -> Any:
    """Return the part of a tensor that this rank has."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def randomize(model: Any) -> None:
    """Give parameters random values: matrices small ones, vectors ones."""
    with torch.no_grad():
        for parameter in model.parameters():
            data = local_part(parameter)
            data.normal_(0.0, 0.02) if parameter.dim() > 1 else data.fill_(1.0)


@contextlib.contextmanager
def empty_model(job: RankJob) -> Iterator[torch.dtype]:
    """Build a model of the job's dtype without storage; yield that dtype."""
    torch.set_default_dtype(DTYPES[job.weights])
    try:
        with torch.device("meta"):
            yield DTYPES[job.weights]
    finally:
        torch.set_default_dtype(torch.float32)
