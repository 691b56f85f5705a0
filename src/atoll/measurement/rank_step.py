"""One rank of a parallel model on the local device, and its training step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from atoll.measurement.profiler import Mark
from atoll.measurement.runner import RankJob

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class RankStep:
    """A parallel model and its training step: `passes` runs all microbatches forward and backward
    and returns the last loss, if there is one; `update` clips gradients and updates weights.
    """

    def __init__(
        self,
        model: Any,
        passes: Callable[[Mark], Any],
        update: Callable[[Mark], None],
        context: Callable[[], Any] = contextlib.nullcontext,
    ) -> None:
        self.model, self.passes, self.update, self.context = model, passes, update, context
        self.last_loss: Any = None

    def step(self, mark: Mark = str) -> None:
        """Run one training step; tell `mark` where its phases begin."""
        with self.context():
            self.last_loss = self.passes(mark)
        mark("clip")
        self.update(mark)
        mark("end")


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


def accumulated(model: Any, job: RankJob, loss: Callable[[], Any]) -> Callable[[Mark], Any]:
    """Return the passes of a rank without a pipeline: microbatch after microbatch. accelerate
    reduces gradients after the last one, torchtitan after each of them.
    """
    sync = getattr(model, "set_requires_gradient_sync", None)
    delayed = job.microbatches > 1 and job.tool == "transformers"

    def passes(mark: Mark) -> Any:
        value = None
        for number in range(job.microbatches):
            if delayed and sync is not None:
                sync(number == job.microbatches - 1)
            mark("forward")
            value = loss()
            mark("backward")
            value.backward()
        return None if value is None else value.detach()

    return passes


def pipelined(
    model: Any, job: RankJob, stage: Callable[[Any], Any], inputs: Callable[[], Any]
) -> Callable[[Mark], Any]:
    """Return the passes of one pipeline stage in 1F1B order: random activations come in, random
    gradients come back. All kernels count as one phase, as passes alternate.
    """
    from torch.distributed.fsdp import FSDPModule

    def forward() -> Any:
        return stage(inputs())

    def backward(output: Any, final: bool) -> None:
        if isinstance(model, FSDPModule):
            model.set_is_last_backward(final)
            model.set_requires_gradient_sync(final)
            model.set_reshard_after_backward(final)
        output.backward(None if job.last else torch.randn_like(output).mul_(1e-4))

    def passes(mark: Mark) -> Any:
        mark("forward")
        count, warm = job.microbatches, min(job.pp - job.stage - 1, job.microbatches)
        queue = [forward() for _ in range(warm)]
        for done in range(count):
            if warm + done < count:
                queue.append(forward())
            backward(queue.pop(0), done == count - 1)

    return passes
