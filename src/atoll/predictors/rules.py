"""Simple predictors: a rule of thumb, and a roofline at peak rates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from atoll.predictors.predictor import Asked, Predicted, Predictor
from atoll.training.run import Run
from atoll.workload.builders.model import build_model
from atoll.workload.families.model_config import ModelConfig
from atoll.workload.flops import model_flops

USUAL_MFU = 0.4
"""Share of the peak at the products' precision; tuned runs report 30 to 50 %."""
HALF_BYTES = 2.0


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """Parameters of a model: of experts, all others, and active ones per token."""

    dense: float
    expert: float
    active: float

    @property
    def all(self) -> float:
        return self.dense + self.expert


@lru_cache(maxsize=512)
def parameter_counts(config: ModelConfig) -> ParameterCounts:
    built = build_model(config, 1)
    idle = built.parameters - built.active_parameters
    share = config.experts_per_token / config.experts if config.experts else 0.0
    expert = idle / (1.0 - share) if share < 1.0 else 0.0
    return ParameterCounts(built.parameters - expert, expert, built.active_parameters)


def _device_parameters(job: Asked) -> float:
    """Return the parameters per device, before ZeRO shards them."""
    layout, sizes = job.layout, parameter_counts(job.run.model)
    return (sizes.dense / layout.tp + sizes.expert / (layout.ep * layout.etp)) / layout.pp


def _tokens(job: Asked) -> float:
    """Return the tokens of a microbatch per tensor group."""
    return job.layout.microbatch * job.run.sequence / job.layout.cp


def _passes(job: Asked) -> float:
    """Return FLOPs / model FLOPs: full recomputation adds a forward pass."""
    passes = 2.0 if job.run.adapters else 3.0
    return (passes + (job.layout.recompute == "full")) / passes


def _activation_bytes(job: Asked) -> float:
    """Return bytes saved by the first stage: Korthikanti et al., arXiv:2205.05198, table 2."""
    run, layout = job.run, job.layout
    t, sbh = layout.tp, _tokens(job) * run.model.hidden
    norm_shards = t if layout.sp else 1
    scores = 5.0 * run.model.heads * run.sequence / (layout.cp * run.model.hidden)
    if run.attention != "unfused" or layout.recompute not in ("none", "full"):
        scores = 0.0
    if layout.recompute == "full":
        layer_bytes = 2.0 * sbh / norm_shards
    else:
        layer_bytes = sbh * (10.0 / norm_shards + 24.0 / t + scores / t)
    # The first stage keeps pp microbatches, and more with interleaved chunks.
    in_flight = min(1.0, layout.microbatches(run.global_batch) / layout.pp)
    if layout.vpp > 1:
        in_flight *= 1.0 + (layout.pp - 1) / (layout.pp * layout.vpp)
    head = 4.0 * sbh / t * (1.0 + run.model.vocab / run.model.hidden) if layout.pp == 1 else 0.0
    return layer_bytes * run.model.layers * in_flight + head


def _state_bytes(job: Asked) -> float:
    run, layout, parameters = job.run, job.layout, _device_parameters(job)
    sharded = parameters / (layout.dp * layout.cp) * layout.hsdp
    if run.adapters is not None:
        return run.frozen_bytes * (sharded if layout.zero == 3 else parameters)
    return sum(run.states.parts(parameters, sharded, layout.zero))


def _rule_of_thumb(job: Asked) -> Predicted:
    run, layout = job.run, job.layout
    active = parameter_counts(run.model).active
    flops = (4.0 if run.adapters else 6.0) * active * _passes(job)
    rate = run.devices * run.gpu.peak_flops(run.precision) * USUAL_MFU
    peak = _state_bytes(job) + _activation_bytes(job)
    return Predicted(
        time_s=flops * run.tokens / rate,
        peak_bytes=peak,
        fits=peak <= run.capacity_bytes,
        order=(layout.tp, layout.pp, -layout.microbatch),
    )


def _network_s(job: Asked) -> float:
    """Return the time of all collectives and sends at the bandwidths of their levels."""
    run, layout = job.run, job.layout
    model, m = run.model, layout.microbatches(run.global_batch)
    blocks = m * model.layers / layout.pp
    tensor = HALF_BYTES * _tokens(job) * model.hidden
    keys = HALF_BYTES * _tokens(job) * 2 * model.kv_heads * model.head_dim / layout.tp
    gathers = 2 * m if layout.zero == 3 else 1
    states = run.states
    parameters = 0.0 if run.adapters else _device_parameters(job)
    weights = parameters * (states.reduced + gathers * states.weight)
    chosen = model.experts_per_token if model.experts else 0
    # Two sums per block forward and two backward; keys are sent forward, with gradients backward.
    return (
        _collective_s(run, layout.tp, 1, 8.0 * blocks * tensor)
        + _collective_s(run, layout.cp, layout.tp, 3.0 * blocks * keys)
        + _collective_s(run, layout.dp * layout.cp, layout.tp, weights)
        + _exchange_s(run, layout.ep, layout.tp, 4.0 * blocks * chosen * tensor / layout.tp)
        + _exchange_s(run, layout.pp, run.devices // layout.pp, 2.0 * m * layout.vpp * tensor)
    )


def _spans(run: Run, ranks: int, stride: int) -> list[tuple[int, int, float]]:
    """Return, per level that a group spans: its ranks within a group of the level below, within one
    of this level, and the bandwidth (of a torus: of all axes)."""
    spans, below = [], 1
    levels = run.network.levels
    for level in levels:
        last = level is levels[-1]
        inside = ranks if last else min(ranks, max(1, level.devices // stride))
        axes = max(1, sum(length > 1 for length in level.torus))
        if inside > below:
            spans.append((below, inside, level.bandwidth_Bps * axes))
        below = inside
    return spans


def _collective_s(run: Run, ranks: int, stride: int, total_bytes: float) -> float:
    """Return the time of gathers and sums; each level carries the share of a rank below it."""
    spans = _spans(run, ranks, stride)
    return max((total_bytes * (1 / low - 1 / high) / Bps for low, high, Bps in spans), default=0.0)


def _exchange_s(run: Run, ranks: int, stride: int, sent_bytes: float) -> float:
    """Return the time of an all-to-all with equal messages."""
    spans = _spans(run, ranks, stride)
    return max((sent_bytes * (high - low) / ranks / Bps for low, high, Bps in spans), default=0.0)


def _roofline(job: Asked) -> Predicted:
    run, layout, parameters = job.run, job.layout, _device_parameters(job)
    m = layout.microbatches(run.global_batch)
    flops = model_flops(run.model, run.sequence, run.adapters) * run.global_batch * _passes(job)
    compute_s = flops / run.devices / run.gpu.peak_flops(run.precision)
    # Per microbatch: weights read forward and backward, gradients updated, saved tensors written
    # and read; per step: the optimizer's share.
    trained = 0.0 if run.adapters else parameters
    updated = trained / (layout.dp * layout.cp) if layout.zero else trained
    moved = m * (
        2.0 * run.frozen_bytes * parameters
        + 2.0 * run.states.gradient * trained
        + 2.0 * _activation_bytes(job) / layout.pp
    )
    moved += run.states.update * updated
    return Predicted(time_s=max(compute_s, moved / run.gpu.hbm_Bps, _network_s(job)))


RULE_OF_THUMB = Predictor(
    "rule-of-thumb",
    _rule_of_thumb,
    f"6 N D FLOPs (8 where all is recomputed) at {USUAL_MFU:.0%} of the peak; states by ZeRO, "
    "activations by Korthikanti et al.; of equals the smallest TP, then PP, then the largest "
    "microbatch",
)
ROOFLINE = Predictor(
    "roofline",
    _roofline,
    "the longest of FLOPs, HBM bytes and network bytes at their peaks, all hidden behind it; no "
    "memory",
)
