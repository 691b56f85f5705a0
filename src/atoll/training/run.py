"""A training run on its devices, without the layout."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from atoll.base.errors import AtollError
from atoll.base.units import FLOPS, FREQUENCY, counted, format_bytes, format_quantity
from atoll.fabric.network import Network
from atoll.hardware.device import Device
from atoll.hardware.gpu import ELEMENT_BYTES, SCALED, Gpu
from atoll.hardware.physical.device_power import slowest_of
from atoll.step.layout import Layout
from atoll.step.length import RunLength
from atoll.step.states import N, States
from atoll.tools.arguments import ArgumentAccount, Launch
from atoll.tools.registry import ANY_LAYOUT
from atoll.tools.stack import COMPOSED_GELU, Stack
from atoll.tools.tool import UNRESTRICTED, Tool
from atoll.workload.adapters import Adapters
from atoll.workload.families.model_config import ModelConfig
from atoll.workload.stored import StoredModel, model_warnings

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
"""Assumed kernels by mixer, with the packages that provide them for GPUs."""
HALF = 2.0
"""Bytes of a 16-bit element."""
DRIVER_BYTES = 0.9e9
"""Memory of the driver and of libraries in steps on one H200 (0.80 to 0.88 GB)."""
SLOW_PATH = " (on an H200 3.17 s were measured where 58 ms are estimated)"
"""24 blocks of 1,024 columns, 2 sequences of 2,048 tokens, in eager transformers without them."""


@dataclass(frozen=True)
class TimingSource:
    """Measured operator times that replace the model's."""

    source: str
    """The package that contains them, with its release."""


@dataclass(frozen=True)
class Run:
    """Model, devices, batch, and the software that runs it."""

    model: ModelConfig
    """The model's shape; for a captured model a stand-in for checks of layouts."""
    gpu: Device
    network: Network
    devices: int
    sequence: int
    global_batch: int
    stack: Stack
    states: States
    tool: Tool = ANY_LAYOUT
    """The training tool, which limits the layouts of a plan."""
    precision: str = "bf16"
    attention: str = "flash"
    """flash (the fastest today), flex (FlexAttention), flash2 or flash1, or unfused."""
    imbalance: float = 1.0
    """Tokens of the busiest expert over the mean."""
    adapters: Adapters | None = None
    """Trained adapters of a model with frozen weights; None: all weights are trained."""
    fine_tuned: bool = False
    """Whether a trained model is fine-tuned, in part or in full."""
    stored: StoredModel | None = None
    """The captured model, if there is no builder for it."""
    site: Site | None = None
    """Measured site; stack and network are adapted to it."""
    length: RunLength | None = None
    """Tokens and failures of the complete run, if known."""
    timed: TimingSource | None = None
    """Source of measured operator times; None: modelled times."""
    headroom: float = 0.0
    """Share of each device's memory to keep free."""
    network_assumed: bool = False
    """Whether the network is the device's usual one because none was stated."""
    question: RunQuestion | None = field(default=None, compare=False, repr=False)
    """The question that the run comes from, if any."""
    launch: Launch | None = field(default=None, compare=False, repr=False)
    """Launch file that the run comes from, if any."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "network", self.network.cut(self.devices))
        if columns := self.stack.loss_columns:
            stack = replace(self.stack, loss_chunks=-(-self.model.vocab // columns))
            object.__setattr__(self, "stack", stack)
        if self.devices == 1:  # which has no buffers of collectives
            context_bytes = min(self.stack.context_bytes, DRIVER_BYTES)
            object.__setattr__(self, "stack", replace(self.stack, context_bytes=context_bytes))
        if self.stack.hosts_optimizer:
            if not isinstance(self.gpu, Gpu):
                name = self.gpu.name
                raise AtollError(f"flags: host_optimizer is modelled for GPUs, not for {name}")
            object.__setattr__(self, "states", replace(self.states, on_host=True))

    def at(self, site: Site) -> Run:
        """Return the run at a site."""
        stack, network = site.on_stack(self.stack), site.on_network(self.network)
        return replace(self, stack=stack, network=network, site=site)

    @property
    def arguments(self) -> ArgumentAccount | None:
        """Arguments of the launch file, if there is one."""
        return self.launch.arguments if self.launch else None

    @property
    def not_priced(self) -> tuple[str, ...]:
        """Arguments of the launch file that the estimate leaves out."""
        return self.arguments.not_priced if self.arguments else ()

    @property
    def tokens(self) -> int:
        """Tokens per step."""
        return self.global_batch * self.sequence

    @property
    def capacity_bytes(self) -> float:
        """Memory per device that a layout may use."""
        return self.gpu.hbm_bytes * (1.0 - self.headroom)

    @property
    def host_Bps(self) -> float:
        """Rate of copies between a device and the host's memory; chips have no such link."""
        return self.gpu.host_Bps if isinstance(self.gpu, Gpu) else math.inf

    @property
    def overlap_gain(self) -> float:
        """Share of the time of hidden collectives that a step on the device saves."""
        return self.gpu.overlap_gain if isinstance(self.gpu, Gpu) else 1.0

    @property
    def slack(self) -> float:
        """Step time over the sum of its parts on a usual device."""
        return self.stack.slack * self.waiting

    @property
    def waiting(self) -> float:
        """Step time over that of a usual device: devices that exist wait for the slowest of all."""
        return slowest_of(self.devices) if isinstance(self.gpu, Gpu) else 1.0

    @property
    def autocast(self) -> bool:
        """Whether products run under autocast over fp32 weights."""
        return self.stack.autocast or (self.stack.autocast_alone and self.devices == 1)

    @property
    def frozen_bytes(self) -> float:
        """Bytes per frozen weight in a block, which has no master copy."""
        if self.stack.frozen_bytes is not None:
            return self.stack.frozen_bytes
        alone = self.precision in SCALED and self.stack.scaled_weights
        return ELEMENT_BYTES[self.precision] if alone else self.states.weight

    @property
    def gathered_bytes(self) -> float:
        """Bytes per weight that ZeRO gathers: 16 bits, unless fp32 weights are multiplied."""
        return self.states.weight if self.stack.wide else min(self.states.weight, HALF)

    def state_bytes(self, parameters: N, divided_parameters: N, zero: int) -> tuple[N, N, N]:
        """Return the bytes of weights, gradients and optimizer states per rank. FSDP divides fp32
        weights under every stage, and keeps their gathered 16-bit copies under 1 and 2.
        """
        weights, gradients, optimizer = self.states.parts(parameters, divided_parameters, zero)
        if self.stack.regathers and zero in (1, 2) and self.gathered_bytes < self.states.weight:
            copies = self.gathered_bytes * parameters
            weights = self.states.weight * divided_parameters + copies
        return weights, gradients, optimizer

    def expert_padding(self, layout: Layout) -> float:
        """Return the factor on experts' weights where FSDP2 divides their first dimension and pads
        it to a multiple of the ranks, at least one expert per rank (FSDPParam).
        """
        experts = self.model.experts // layout.ep
        if not self.stack.pads_experts or not layout.zero or not experts:
            return 1.0
        ranks = max(1, layout.expert_ranks // (layout.copies * layout.hsdp))
        return ranks * -(-experts // ranks) / experts

    def accumulated_bytes(self, parameters: N, divided_gradients: N, zero: int) -> N:
        """Return the bytes of gradients between microbatches, undivided if reduced at the end."""
        delayed = self.stack.delays_reduction and zero >= 2
        return self.states.reduced * parameters if delayed else divided_gradients

    @property
    def half_logits(self) -> bool:
        """Whether the loss takes 16-bit logits: that of masked language models and of T5."""
        model = self.model
        return (model.mlm_head and model.family != "modernbert") or model.encoder_layers > 0

    @property
    def software(self) -> str:
        """Tool and, where it is not the tool's own, the stack."""
        usual = (self.tool.software, *self.tool.software_by_precision.values())
        return self.tool.name if self.stack.name in usual else self.stack.name

    @property
    def given(self) -> str:
        """Description of the run's assumptions."""
        return self.given_on(self.machine)

    def given_on(self, machines: str) -> str:
        """Describe the same for other machines."""
        trained = "" if self.adapters is None else f", adapters of rank {self.adapters.rank}"
        choices = replace(self.stack, autocast=self.autocast).choices
        return (
            f"{self.model.name}{trained}, {counted(self.global_batch, 'sequence')} of "
            f"{self.sequence:,} tokens in a step; {machines}; {self.software}, "
            f"{self.states.name} optimizer states, {self.attention} attention"
            f"{''.join(f', {choice}' for choice in choices)}"
            f"{'' if self.timed is None else f', operators as timed by {self.timed.source}'}"
            f"{'' if self.site is None else f', as measured at {self.site.name}'}"
        )

    @property
    def machine(self) -> str:
        """Description of devices and network."""
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
        """Warnings about the estimate."""
        network = self._network_notes()
        if self.stored is not None:
            return (*network, *model_warnings(self.stored), *self._kernel_notes(self.stored))
        notes, plain = self._mixer_notes(), self.stack.plain_mixers
        first = (*self._argument_notes(), *(notes if plain else ()), *self._tool_notes())
        return (*first, *network, *model_warnings(self.model), *(() if plain else notes))

    def _network_notes(self) -> Iterator[str]:
        """Yield a note if a network file does not state what small messages cost."""
        if self.devices > 1 and self.network.left_out:
            yield (
                f"optimistic for small messages: network {self.network.name} states no "
                f"{' and no '.join(self.network.left_out)} in its first level; take them from "
                "atoll hardware dgx-h100 --yaml, or state 0"
            )

    def _argument_notes(self) -> Iterator[str]:
        """Yield what of a launch file is not priced, and what follows from that."""
        for words in self.not_priced:
            yield f"not priced: {words}"
        if self.not_priced:
            yield "the interval is wider for what is not priced, and no layout is proven best"

    def _tool_notes(self) -> Iterator[str]:
        """Yield a note if no usual tool runs what is asked."""
        asked = self.question
        if asked is not None and asked.tool is None and self.tool.name == UNRESTRICTED:
            yield (
                "no usual tool for this device, model and method runs what is asked; an "
                "unrestricted runtime is assumed (--tool names one)"
            )

    def _mixer_notes(self) -> Iterator[str]:
        """Yield the kernels assumed for mixers other than attention, which software may lack;
        template chips run the priced schedule.
        """
        model = self.model
        mixers = {part for mixer in (model.mixer, *model.mixers) for part in mixer.split("+")}
        assumed = [words for mixer, words in FUSED_MIXERS.items() if mixer in mixers]
        if not assumed or not isinstance(self.gpu, Gpu):
            return
        if self.stack.plain_mixers:
            yield (
                "state-space blocks run without their fused kernels: the time of their passes is "
                "counted, not measured, and may be twice as long (mamba-ssm and causal-conv1d make "
                "the step many times as fast)"
            )
            return
        yield (
            f"assumed: {' and '.join(assumed)}; without them the software runs these blocks in "
            f"many small kernels, and a step takes far longer{SLOW_PATH * ('mamba2' in mixers)}"
        )

    def _kernel_notes(self, stored: StoredModel) -> Iterator[str]:
        """Yield a note if the captured kernels are not those of the stack."""
        eager = self.stack.composed_gelu  # every element-wise step is a kernel
        if eager and stored.file.kernels == "fused":
            yield (
                f"{stored.name} was captured as a fusing compiler runs it; for the memory of "
                "eager PyTorch capture it with --keep eager"
            )
        if not eager and stored.file.kernels == "eager":
            yield (
                f"{stored.name} was captured as eager PyTorch runs it; for stack "
                f"{self.stack.name} capture it with --keep fused"
            )

    @property
    def alias(self) -> dict[str, str]:
        """Functions that the stack replaces by others."""
        if self.stack.composed_gelu and self.model.family in COMPOSED_GELU:
            return {"gelu": "gelu_new", "gelu_bwd": "gelu_new_bwd"}
        return {}
