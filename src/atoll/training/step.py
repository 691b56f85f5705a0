"""Times of one layer per microbatch under one layout: computation, exposed communication, host.

`training.batch` sums them over the layers of a stage; the pipeline order gives the time of all
microbatches; then come gradients, optimizer and weights. docs/training.md has the formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import NamedTuple

from atoll.fabric.nested import all_to_all_s, collective_s, neighbours_s
from atoll.step.layout import Layout
from atoll.step.parts import TIME_PARTS
from atoll.step.replay import PassTime
from atoll.tools.stack import CLIP_ELEMENTS, HOST_UPDATES, UPDATES
from atoll.training.operators.layers import HALF, LayerCost, Share
from atoll.training.operators.policies import TensorLink
from atoll.training.run import Run

FLOAT = 4  # bytes
ADAPTER_TENSOR_S = 0.65e-6
"""Time per tensor of an adapter in the optimizer's kernels, of which one covers 36 small tensors:
21 to 40 us on an H200."""
HOST_UPDATES_PER_S = 4e9
"""Parameters that the processors of a node update per second: 1e9 to 1e10 take 0.22 to 2.57 s
(ZeRO-Offload, arXiv:2101.06840, table 4)."""


class PassSeconds(NamedTuple):
    """Seconds of one microbatch's pass through a stage, by part."""

    compute_s: float = 0.0
    tensor_s: float = 0.0
    context_s: float = 0.0
    expert_s: float = 0.0
    sharded_s: float = 0.0

    @property
    def total_s(self) -> float:
        return self.compute_s + self.tensor_s + self.context_s + self.expert_s + self.sharded_s


LayerPasses = tuple[PassSeconds, PassSeconds, PassSeconds]
"""Forward pass, backward pass and recomputation."""


class HostTime(NamedTuple):
    """Host seconds per microbatch: launches, which overlap with the device, and `waiting_s`."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    weight_s: float = 0.0
    waiting_s: float = 0.0

    @property
    def overlapped_s(self) -> float:
        return self.forward_s + self.backward_s + self.weight_s


@dataclass(frozen=True, slots=True)
class StageTime:
    """Times of one stage per microbatch, over all its chunks."""

    forward: PassSeconds
    backward: PassSeconds
    recompute: PassSeconds
    weight_s: float
    """Weight gradients in the backward pass, which a zero-bubble schedule may delay."""
    host_s: float
    """Host time that is not hidden by the device."""
    passes: tuple[PassTime, ...]
    """Passes through each chunk that the pipeline replays: with device times and exposed host time
    or, if hosts have a slower pace of their own, with host times."""

    @property
    def total_s(self) -> float:
        device_s = self.forward.total_s + self.backward.total_s + self.recompute.total_s
        return device_s + self.host_s


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one training step, by part."""

    time_s: float
    compute_s: float
    accumulate_s: float
    """Accumulation of the microbatches' gradients."""
    recompute_s: float
    tensor_s: float
    context_s: float
    expert_s: float
    sharded_s: float
    bubble_s: float
    send_s: float
    gradient_s: float
    optimizer_s: float
    host_s: float

    def scaled(self, factor: float) -> StepTime:
        """Return the step with all of its parts multiplied."""
        return StepTime(*(factor * seconds for seconds in astuple(self)))

    @property
    def busy_s(self) -> float:
        """Seconds in which the device computes."""
        return self.compute_s + self.accumulate_s + self.recompute_s + self.optimizer_s

    def breakdown(self) -> dict[str, float]:
        """Return the seconds by name of the part."""
        return dict(zip(PART_NAMES, astuple(self)[1:], strict=True))


PART_NAMES = tuple(part for part in TIME_PARTS if part != "offload")  # which exists on wafers only
"""Names of the fields of `StepTime` after the first."""


class SharedCollective(NamedTuple):
    """A collective of weights (gathers) or gradients over `group` ranks at distance `stride`: bytes
    of the full tensor per dense and per expert parameter of a stage.
    """

    kind: str
    gathers: bool
    dense: float
    expert: float
    group: int
    stride: int


class _FixedTimes(NamedTuple):
    """Times of a layer that do not depend on the recomputation choice."""

    forward: PassSeconds
    backward: PassSeconds
    waiting_s: float
    late_s: float
    """Messages that overlap with the forward pass's computation and outlast it."""
    late_back_s: float
    """`late_s` of the backward pass."""


class Stepper:
    """Computes times and messages of one run under one layout."""

    def __init__(self, run: Run, layout: Layout) -> None:
        self.run = run
        self.layout = layout
        self.microbatches = layout.microbatches(run.global_batch)
        self._links: dict[tuple[TensorLink, ...], float] = {}
        self._fixed: dict[int, tuple[LayerCost, _FixedTimes]] = {}

    def layer_passes(self, cost: LayerCost, recompute: str) -> LayerPasses:
        """Return the passes of one layer, without gathers of divided weights."""
        fixed, kept = self._fixed_times(cost), cost.kept(recompute)
        rings, exchanges = kept.share * kept.attention, kept.share * kept.exchange
        shown = kept.share * (1 - self.run.stack.overlap.in_products(self.layout.sp))
        again = PassSeconds(
            kept.again.total_s + exchanges * fixed.waiting_s,
            shown * self._links_s(kept.links),
            rings * fixed.forward.context_s,
            exchanges * fixed.forward.expert_s,
        )
        return fixed.forward, fixed.backward, again

    def hides_gathers_s(self, cost: LayerCost, recompute: str) -> tuple[float, float]:
        """Return the time in a layer's forward and backward pass behind which gathers of divided
        weights may hide: computation, and messages that outlast it. (With computation alone, slower
        attention would hide more of a ring's sends and of the gathers, and shorten the step.)
        Hooks gather ahead of their use only as far as the host is ahead of its device.
        """
        fixed, kept = self._fixed_times(cost), cost.kept(recompute)
        waiting_s = kept.exchange * fixed.waiting_s + kept.attention * fixed.late_s
        again_s = kept.again.total_s + kept.share * waiting_s
        hooked = self.layout.zero == 3 and self.run.stack.host_module_s > 0
        host = self.host(cost, recompute) if hooked else HostTime()
        forward_s = fixed.forward.compute_s + fixed.late_s - host.forward_s
        backward_s = fixed.backward.compute_s + fixed.late_back_s + again_s
        backward_s -= host.backward_s + host.weight_s
        return max(0.0, forward_s), max(0.0, backward_s)

    def _fixed_times(self, cost: LayerCost) -> _FixedTimes:
        cached = self._fixed.get(id(cost))
        if cached is None or cached[0] is not cost:
            cached = self._fixed[id(cost)] = cost, self._without_choice(cost)
        return cached[1]

    def _without_choice(self, cost: LayerCost) -> _FixedTimes:
        run, overlap = self.run, self.run.stack.overlap
        backward = cost.backwards(self.layout.schedule)
        # All devices wait for the one with the busiest experts.
        waiting_s = (run.imbalance - 1) * cost.expert_forward_s
        forward_s = cost.forward.total_s + waiting_s
        backward_s = backward.total_s + (run.imbalance - 1) * cost.expert_backward_s

        visible = 1 - overlap.in_products(self.layout.sp)
        forward_link_s = visible * self._links_s(cost.forward_links)
        may_hide_s = visible * overlap.tensor * self._links_s(cost.hidden_links)
        hides_s = min(may_hide_s, visible * backward.matrix_s)
        backward_link_s = visible * self._links_s(cost.backward_links) - hides_s

        ring_s = self._context_s(cost, cost.forward.attention_s)
        # Backwards, the gradients of keys and values are sent too.
        ring_back_s = self._context_s(cost, backward.attention_s, tensors=2)
        exchange_s = self._exchange_s(cost) * (1 - overlap.experts)
        sends_overlap = not run.stack.gives_heads(cost.kv_heads, self.layout.cp)
        return _FixedTimes(
            PassSeconds(forward_s, forward_link_s, ring_s, exchange_s),
            PassSeconds(backward_s, backward_link_s, ring_back_s, exchange_s),
            waiting_s,
            late_s=ring_s if sends_overlap else 0.0,
            late_back_s=may_hide_s - hides_s + (ring_back_s if sends_overlap else 0.0),
        )

    def unhidden(self, cost: LayerCost) -> bool:
        """Return whether products are longer than the collectives that may hide behind them."""
        hidden_s = self._links_s(cost.hidden_links)
        return self.run.stack.overlap.tensor * hidden_s <= cost.backward.matrix_s

    def _links_s(self, links: tuple[TensorLink, ...]) -> float:
        if links not in self._links:
            network = self.run.network
            self._links[links] = sum(
                collective_s(network, link.kind, link.bytes, link.group) for link in links
            )
        return self._links[links]

    def _context_s(self, cost: LayerCost, attention_s: float, tensors: int = 1) -> float:
        """Return the exposed time of ring attention's sends, which overlap with attention in all
        steps but the last; or the time of the exchange of heads, which does not overlap.
        """
        cp = self.layout.cp
        if cp == 1 or not cost.ring_bytes:
            return 0.0
        if self.run.stack.gives_heads(cost.kv_heads, cp):
            return all_to_all_s(self.run.network, cost.given_bytes(cp), cp, self.layout.tp)
        ring_step_s = neighbours_s(self.run.network, cost.ring_bytes, cp, self.layout.tp)
        hidden_s = self.run.stack.overlap.ring * attention_s * (cp - 1) / cp
        return max(0.0, ring_step_s * (cp - 1) * tensors - hidden_s)

    def exchange(self, cost: LayerCost) -> tuple[float, int]:
        """Return the bytes that a device sends per all-to-all of tokens, and the ranks' stride."""
        layout = self.layout
        if layout.ep == 1 or not cost.exchange_bytes:
            return 0.0, 1
        bytes_ = cost.exchange_bytes * self.run.imbalance
        if layout.sp or layout.etp != layout.tp:
            bytes_ /= layout.etp  # ranks that share an expert's columns send their own tokens
        return bytes_, layout.tp * layout.cp if layout.experts_outside else layout.etp

    def _exchange_s(self, cost: LayerCost) -> float:
        """Return the time of two all-to-alls: tokens to their experts and back."""
        bytes_, stride = self.exchange(cost)
        model, ep = self.run.model, self.layout.ep
        chosen = max(1, model.experts_per_token if self.run.stack.sends_once else 1)
        return 2 * all_to_all_s(self.run.network, bytes_, ep, stride, chosen, model.expert_groups)

    def host(self, cost: LayerCost, recompute: str) -> HostTime:
        """Return the host time of a layer per microbatch."""
        stack = self.run.stack
        if not stack.host_kernel_s:
            return HostTime()
        kept = cost.kept(recompute)
        weights = min(cost.weight.kernels, cost.backward.kernels)
        forward_s = stack.host_kernel_s * cost.forward.kernels
        backward_s = stack.host_kernel_s * (cost.backward.kernels - weights + kept.again.kernels)
        routed, again = stack.host_routed_s if cost.experts else 0.0, 0.0
        if cost.is_block:
            forward_s += stack.host_layer_s / 2 + routed
            backward_s += stack.host_layer_s / 2 + routed
            if kept.rerun:
                again = kept.share * kept.exchange
                backward_s += kept.share * stack.host_checkpoint_s + again * routed
        if self.layout.zero == 3:
            several = self.layout.ranks > 1 or self.layout.expert_ranks > 1
            gathered_s = cost.modules * (stack.host_module_s + several * stack.host_gather_s)
            forward_s += gathered_s
            backward_s += gathered_s * (1 + (kept.share if kept.rerun else 0.0))
        expert_s, sliced = cost.experts * stack.host_expert_s, stack.module_experts == "sliced"
        backward_s += 2 * sliced * expert_s
        waiting_s = (2 - sliced + again) * expert_s
        return HostTime(forward_s, backward_s, stack.host_kernel_s * weights, waiting_s)

    def launch_ratio(self, chunks: Sequence[Share], recompute: str) -> float:
        """Return the host time of the passes of a stage over their time on the device."""
        pairs = [pair for chunk in chunks for pair in chunk]
        host_s = sum(n * self.host(cost, recompute).overlapped_s for cost, n in pairs)
        passes = (
            (n, seconds) for cost, n in pairs for seconds in self.layer_passes(cost, recompute)
        )
        return host_s / sum(n * seconds.total_s for n, seconds in passes)

    def host_update_s(self, cost: LayerCost) -> float:
        """Return the host time of the optimizer's step for the tensors of a layer."""
        stack, eight_bits = self.run.stack, self.run.states.name == "8bit"
        per_tensor = HOST_UPDATES["8bit" if eight_bits else stack.optimizer]
        return cost.tensors * per_tensor * stack.host_tensor_s

    def sent_bytes(self, boundary_bytes: float) -> float:
        """Return the bytes of an activation (or gradient) that one device sends to the next stage:
        each rank of a tensor group sends its part (Narayanan et al., SC 2021, section 4.1); with
        sequence parallelism the boundary is divided already.
        """
        return boundary_bytes / (1 if self.layout.sp else self.layout.tp)

    def send_s(self, boundary_bytes: float) -> float:
        """Return the time of one activation (or gradient) to the next stage."""
        layout = self.layout
        if layout.pp == 1:
            return 0.0
        stride = layout.tp * layout.cp * layout.dp
        return neighbours_s(self.run.network, self.sent_bytes(boundary_bytes), layout.pp, stride)

    def shared(self) -> tuple[SharedCollective, ...]:
        """Return the collectives of weights and gradients over the ranks that share them: inside a
        replica (hsdp), over both stages with the same weights under DualPipe, and over replicas.
        Outside of a replica each rank sends its part.
        """
        layout, run = self.layout, self.run
        collectives: list[SharedCollective] = []
        # The same ranks share dense and expert parameters: one collective.
        both = layout.ep == 1 and layout.etp == layout.tp
        dense = (1, 1) if both else (1, 0), layout.ranks, layout.tp
        expert = (0, 1), layout.expert_ranks, layout.etp * layout.ep
        for counts, ranks, stride in (dense,) if both else (dense, expert):
            inside = max(1, ranks // (layout.copies * layout.hsdp)), stride
            everyone = layout.tp * layout.cp * layout.dp
            mirrored = layout.copies, everyone * (layout.pp - 1)  # the first stage and the last
            replicas = layout.hsdp, everyone // layout.hsdp
            owners = inside[0] * layout.copies
            summed = run.stack.reduces_all and layout.zero == 2
            reduction = "all_reduce" if summed else "reduce_scatter"
            if layout.zero:
                steps = [
                    ("all_gather", True, 1, inside),
                    ("all_gather", True, inside[0], mirrored),
                    (reduction, False, 1, inside),
                    ("reduce_scatter", False, inside[0], mirrored),
                    ("all_reduce", False, owners, replicas),
                ]
            elif layout.copies == 1:
                steps = [("all_reduce", False, 1, inside)]
            else:
                steps = [
                    ("reduce_scatter", False, 1, inside),
                    ("all_reduce", False, inside[0], mirrored),
                    ("all_gather", False, 1, inside),
                ]
            for kind, gathers, parts, (group, stride_) in steps:
                bytes_ = (run.gathered_bytes if gathers else run.states.reduced) / parts
                if group > 1:
                    sent = counts[0] * bytes_, counts[1] * bytes_, group, stride_
                    collectives.append(SharedCollective(kind, gathers, *sent))
        return tuple(collectives)


def resident_parameters(run: Run, cost: LayerCost) -> tuple[float, float]:
    """Return the dense and expert parameters of a layer with frozen ones, which count as trained
    parameters of the same bytes: the weights to keep and gather.
    """
    equivalent = run.frozen_bytes / run.states.weight if cost.is_block else 1.0
    dense, expert = cost.frozen
    return cost.parameters + equivalent * dense, cost.expert_parameters + equivalent * expert


ACCUMULATED_FP32_BYTES = 17.0
"""Bytes that take as long at the rate of plain streams as FSDP2's addition of 16-bit gradients to
fp32 ones (10 bytes; profiles of pipeline stages on one H200, benchmarks/h200, half `fit`)."""


def accumulation_s(run: Run, layout: Layout, m: int, dense: float, expert: float) -> float:
    """Return the time to accumulate a microbatch's gradients. Under ZeRO 2 all are copied into
    buckets, and a rank's part is added (under ZeRO 3 the fit of gathers includes copies). Under
    DualPipe a microbatch has gradients of one of a stage's copies. Linear in the parameters.
    """
    undivided = layout.zero < 2 or run.stack.delays_reduction
    parameters = dense + expert if undivided else layout.divided(dense, expert)
    bytes_per_parameter = run.stack.accumulated_bytes
    if run.stack.gathered_at_loss and layout.zero and undivided and run.states.reduced == FLOAT:
        bytes_per_parameter = ACCUMULATED_FP32_BYTES
    if run.stack.adds_in_products:
        bytes_per_parameter = 2 * run.states.gradient - HALF
    adds = m > layout.copies or run.stack.adds_first
    moved = parameters * bytes_per_parameter / layout.copies if adds else 0.0
    if run.states.on_host and layout.zero >= 2:
        # DeepSpeed adds on the device: the sum comes from the host and goes back to it.
        link_s = parameters * 2 * HALF / run.host_Bps if m > layout.copies else 0.0
        return moved / run.gpu.stream_Bps + link_s
    if layout.zero == 2:
        moved += (dense + expert) * (HALF + run.states.reduced)
    return moved / run.gpu.stream_Bps


def update_s(run: Run, layout: Layout, dense: float, expert: float) -> float:
    """Return the time of the optimizer's step: bytes of states through HBM times the calibrated
    excess traffic of its kernel, or the passes of separate kernels. Linear in the parameters.
    """
    parameters = layout.divided(dense, expert) if layout.zero >= 1 else dense + expert
    stack, states = run.stack, run.states
    half = states.name in ("bf16", "momentum", "adafactor")
    moved = states.update * (run.gpu.half_optimizer_traffic if half else run.gpu.optimizer_traffic)
    element = HALF if half else FLOAT
    if stack.optimizer in UPDATES and states.name != "8bit":
        moved = UPDATES[stack.optimizer] * element
    if states.on_host and layout.zero >= 2:  # gradients to the host, weights back
        sharing = min(run.devices, run.network.levels[0].devices)
        link_s = parameters * (states.gradient + states.weight) / run.host_Bps
        return link_s + parameters * sharing / HOST_UPDATES_PER_S
    if states.on_host:  # pages of states come and go while others are updated
        page_s = states.optimizer / run.host_Bps
        return parameters * max(moved / run.gpu.stream_Bps, page_s)
    if stack.clips:
        moved += CLIP_ELEMENTS * states.gradient
    parameter_s = moved / run.gpu.stream_Bps
    if run.adapters is not None:
        parameter_s += ADAPTER_TENSOR_S / (run.adapters.rank * run.model.hidden)
    passes = stack.zeroes_gradients + 2 * (stack.scales_gradients and layout.ranks > 1)
    undivided = dense + expert if layout.zero < 2 else 0.0
    passes_s = undivided * passes * states.gradient / run.gpu.stream_Bps
    return parameters * parameter_s + passes_s
