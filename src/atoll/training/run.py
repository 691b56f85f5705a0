"""A training run on given devices: everything about it but its layout."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from atoll.fabric.network import Network
from atoll.hardware.device import Device
from atoll.hardware.gpu import ELEMENT_BYTES, SCALED, Gpu
from atoll.step.length import RunLength
from atoll.step.states import States
from atoll.training.stack import COMPOSED_GELU, Stack
from atoll.units import FLOPS, FREQUENCY, counted, format_bytes, format_quantity
from atoll.workload.adapters import Adapters
from atoll.workload.families.model_config import ModelConfig
from atoll.workload.stored import StoredModel, warnings_of

if TYPE_CHECKING:
    from atoll.questions import RunQuestion
    from atoll.training.site import Site

FUSED_MIXERS = {
    "mamba2": "fused Mamba-2 kernels (mamba-ssm, causal-conv1d)",
    "mamba1": "fused Mamba-1 kernels (mamba-ssm, causal-conv1d)",
    "delta": "fused kernels of gated delta nets (flash-linear-attention, causal-conv1d)",
    "lightning": "fused lightning attention (flash-linear-attention)",
    "conv": "fused short convolutions (causal-conv1d)",
}
"""By mixer, the kernels that prices suppose, with the packages that have them for GPUs."""
SLOW_PATH = " (on an H200 3.17 s were measured where 58 ms are estimated)"
"""24 blocks of 1,024 columns, 2 sequences of 2,048 tokens, in eager transformers without them."""


@dataclass(frozen=True)
class Timed:
    """Measured operators that stand in for the model of them."""

    source: str
    """The package that brings them, with its release."""


@dataclass(frozen=True)
class Run:
    """Model, devices, batch, and the software that runs it."""

    model: ModelConfig
    """The model's shape; of a captured one, a stand-in with what layouts ask for."""
    gpu: Device
    network: Network
    devices: int
    sequence: int
    global_batch: int
    stack: Stack
    states: States
    precision: str = "bf16"
    attention: str = "flash"
    """flash (the best of today), flash2 or flash1 (as of 2023 and 2022), or unfused."""
    imbalance: float = 1.0
    """Tokens of the busiest expert over the mean."""
    adapters: Adapters | None = None
    """What is trained of a model with frozen weights; none where all are."""
    fine_tuned: bool = False
    """Of a trained model, some weights or all, rather than a new one."""
    stored: StoredModel | None = None
    """The captured model, where there is no builder for it."""
    site: Site | None = None
    """What was measured where it runs: stack and network are as found there."""
    length: RunLength | None = None
    """The whole run, where its tokens are known."""
    timed: Timed | None = None
    """Whose timings of operators are used; none: the model's."""
    headroom: float = 0.0
    """Share of each device's memory that is to stay free."""
    question: RunQuestion | None = field(default=None, compare=False, repr=False)
    """What was asked, where the run comes from a question."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "network", self.network.cut(self.devices))

    def at(self, site: Site) -> Run:
        """The run at a site, its software as stated."""
        stack, network = site.on_stack(self.stack), site.on_network(self.network)
        return replace(self, stack=stack, network=network, site=site)

    @property
    def tokens(self) -> int:
        """Tokens in one step."""
        return self.global_batch * self.sequence

    @property
    def capacity_bytes(self) -> float:
        """Memory of a device that a layout may need."""
        return self.gpu.hbm_bytes * (1.0 - self.headroom)

    @property
    def slack(self) -> float:
        """Time of a step over what its parts explain; several nodes (of TPUs, slices) also wait for
        the slowest.
        """
        several = self.devices > self.network.levels[0].devices
        return self.stack.slack * (self.stack.straggling if several else 1.0)

    @property
    def frozen_bytes(self) -> float:
        """Of a weight in a block that is not trained: no master copy is kept beside it."""
        alone = self.precision in SCALED and self.stack.scaled_weights
        return ELEMENT_BYTES[self.precision] if alone else self.states.weight

    @property
    def given(self) -> str:
        """All that an answer holds for, in words."""
        return self.given_on(self.machine)

    def given_on(self, machines: str) -> str:
        """The same on other machines than its own."""
        trained = "" if self.adapters is None else f", adapters of rank {self.adapters.rank}"
        return (
            f"{self.model.name}{trained}, {counted(self.global_batch, 'sequence')} of "
            f"{self.sequence:,} tokens in a step; {machines}; {self.stack.name}, "
            f"{self.states.name} optimizer states, {self.attention} attention"
            f"{'' if self.timed is None else f', operators as timed by {self.timed.source}'}"
            f"{'' if self.site is None else f', as measured at {self.site.name}'}"
        )

    @property
    def machine(self) -> str:
        """Its devices and network, in words."""
        gpu, free = self.gpu, f", {self.headroom:.0%} of it kept free" if self.headroom else ""
        free += "" if gpu.cap_W is None else f", held to {gpu.cap_W:g} W"
        return (
            f"{self.devices:,} {gpu.name} "
            f"({format_quantity(gpu.peak_flops(self.precision), FLOPS, 3)} {self.precision} at "
            f"{format_quantity(gpu.clock_Hz, FREQUENCY, 3)}, {format_bytes(gpu.hbm_bytes)}{free}) "
            f"on {self.network.sentence(self.devices)}"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know before the figures are believed."""
        if self.stored is None:
            return (*warnings_of(self.model), *self._mixer_notes())
        return (*warnings_of(self.stored), *self._kernel_notes(self.stored))

    def _mixer_notes(self) -> tuple[str, ...]:
        """The kernels that mixers other than attention are priced with, which software may lack; a
        chip of the template runs the schedule that is priced.
        """
        model = self.model
        mixers = {part for mixer in (model.mixer, *model.mixers) for part in mixer.split("+")}
        assumed = [words for mixer, words in FUSED_MIXERS.items() if mixer in mixers]
        if not assumed or not isinstance(self.gpu, Gpu):
            return ()
        return (
            f"assumed: {' and '.join(assumed)}; without them the software runs these blocks in "
            f"many small kernels, and a step takes far longer{SLOW_PATH * ('mamba2' in mixers)}",
        )

    def _kernel_notes(self, stored: StoredModel) -> tuple[str, ...]:
        """Where the file's kernels are not those of the stack."""
        kernels = stored.file.kernels
        eager = self.stack.composed_gelu  # every element-wise step is a kernel
        if eager and kernels == "fused":
            return (
                f"{stored.name} was captured as a fusing compiler runs it; for the memory of "
                "eager PyTorch capture it with --keep eager",
            )
        if not eager and kernels == "eager":
            return (
                f"{stored.name} was captured as eager PyTorch runs it; for stack "
                f"{self.stack.name} capture it with --keep fused",
            )
        return ()

    @property
    def alias(self) -> dict[str, str]:
        """Functions that the stack runs in another form."""
        if self.stack.composed_gelu and self.model.family in COMPOSED_GELU:
            return {"gelu": "gelu_new", "gelu_bwd": "gelu_new_bwd"}
        return {}
