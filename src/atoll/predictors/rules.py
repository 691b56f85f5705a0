"""Predictors of a few lines: a rule of thumb, and a roofline without any efficiency."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from atoll.predictors.predictor import Asked, Predicted, Predictor
from atoll.training.run import Run
from atoll.workload.builders.model import build_model
from atoll.workload.families.model_config import ModelConfig
from atoll.workload.flops import model_flops

USUAL_MFU = 0.4
"""Of the peak at the precision of the products, what tuned runs report: 30 to 50 %."""
HALF_BYTES = 2.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """Parameters of a model: of its experts, all others, and those that a token meets."""

    dense: float
    expert: float
    active: float

    @property
    def all(self) -> float:
        return self.dense + self.expert


@lru_cache(maxsize=512)
def sizes_of(config: ModelConfig) -> Sizes:
    built = build_model(config, 1)
    idle = built.parameters - built.active_parameters
    share = config.experts_per_token / config.experts if config.experts else 0.0
    expert = idle / (1.0 - share) if share < 1.0 else 0.0
    return Sizes(built.parameters - expert, expert, built.active_parameters)


def _held(asked: Asked) -> float:
    """Parameters on one device, before ZeRO divides them."""
    layout, sizes = asked.layout, sizes_of(asked.run.model)
    return (sizes.dense / layout.tp + sizes.expert / (layout.ep * layout.etp)) / layout.pp


def _tokens(asked: Asked) -> float:
    """Of a microbatch on one device of a tensor group."""
    return asked.layout.microbatch * asked.run.sequence / asked.layout.cp


def _passes(asked: Asked) -> float:
    """FLOPs of a step over those that the model needs: a forward pass is computed twice where all
    of it is recomputed; weights that are not trained have no gradients.
    """
    whole = 2.0 if asked.run.adapters else 3.0
    return (whole + (asked.layout.recompute == "full")) / whole


def _activation_bytes(asked: Asked) -> float:
    """Saved of the layers of a first stage, by Korthikanti et al. (arXiv:2205.05198, table 2)."""
    run, layout = asked.run, asked.layout
    t, sbh = layout.tp, _tokens(asked) * run.model.hidden
    apart = t if layout.sp else 1
    scores = 5.0 * run.model.heads * run.sequence / (layout.cp * run.model.hidden)
    if run.attention != "unfused" or layout.recompute not in ("none", "full"):
        scores = 0.0
    if layout.recompute == "full":
        each = 2.0 * sbh / apart
    else:
        each = sbh * (10.0 / apart + 24.0 / t + scores / t)
    # The first stage holds a microbatch for every stage, and more where chunks are interleaved.
    held = min(1.0, layout.microbatches(run.global_batch) / layout.pp)
    if layout.vpp > 1:
        held *= 1.0 + (layout.pp - 1) / (layout.pp * layout.vpp)
    head = 4.0 * sbh / t * (1.0 + run.model.vocab / run.model.hidden) if layout.pp == 1 else 0.0
    return each * run.model.layers * held + head


def _state_bytes(asked: Asked) -> float:
    run, layout, held = asked.run, asked.layout, _held(asked)
    divided = held / (layout.dp * layout.cp) * layout.hsdp
    if run.adapters is not None:
        return run.frozen_bytes * (divided if layout.zero == 3 else held)
    return sum(run.states.parts(held, divided, layout.zero))


def _rule_of_thumb(asked: Asked) -> Predicted:
    run, layout = asked.run, asked.layout
    each = (4.0 if run.adapters else 6.0) * sizes_of(run.model).active * _passes(asked)
    rate = run.devices * run.gpu.peak_flops(run.precision) * USUAL_MFU
    peak = _state_bytes(asked) + _activation_bytes(asked)
    return Predicted(
        time_s=each * run.tokens / rate,
        peak_bytes=peak,
        fits=peak <= run.capacity_bytes,
        order=(layout.tp, layout.pp, -layout.microbatch),
    )


def _network_s(asked: Asked) -> float:
    """All collectives and sends at the bandwidths of the levels that each group spans."""
    run, layout = asked.run, asked.layout
    model, m = run.model, layout.microbatches(run.global_batch)
    blocks = m * model.layers / layout.pp
    tensor = HALF_BYTES * _tokens(asked) * model.hidden
    keys = HALF_BYTES * _tokens(asked) * 2 * model.kv_heads * model.head_dim / layout.tp
    gathers = 2 * m if layout.zero == 3 else 1
    states = run.states
    weights = 0.0 if run.adapters else _held(asked) * (states.reduced + gathers * states.weight)
    chosen = model.experts_per_token if model.experts else 0
    # Two sums a block forward and two backward; keys go round forward, with gradients backward.
    return (
        _collective_s(run, layout.tp, 1, 8.0 * blocks * tensor)
        + _collective_s(run, layout.cp, layout.tp, 3.0 * blocks * keys)
        + _collective_s(run, layout.dp * layout.cp, layout.tp, weights)
        + _exchange_s(run, layout.ep, layout.tp, 4.0 * blocks * chosen * tensor / layout.tp)
        + _exchange_s(run, layout.pp, run.devices // layout.pp, 2.0 * m * layout.vpp * tensor)
    )


def _spans(run: Run, ranks: int, stride: int) -> list[tuple[int, int, float]]:
    """Of a group on each level that it reaches: its ranks inside of one group of the level below,
    those inside of one of this level, and the bandwidth, of a torus on all axes at once.
    """
    found, below = [], 1
    levels = run.network.levels
    for level in levels:
        last = level is levels[-1]
        inside = ranks if last else min(ranks, max(1, level.devices // stride))
        axes = max(1, sum(length > 1 for length in level.torus))
        if inside > below:
            found.append((below, inside, level.bandwidth_Bps * axes))
        below = inside
    return found


def _collective_s(run: Run, ranks: int, stride: int, whole: float) -> float:
    """Gathers and sums level by level: each is crossed by the share of a rank below it."""
    spans = _spans(run, ranks, stride)
    return max((whole * (1 / low - 1 / high) / Bps for low, high, Bps in spans), default=0.0)


def _exchange_s(run: Run, ranks: int, stride: int, sent: float) -> float:
    """Each rank sends every other one as much."""
    spans = _spans(run, ranks, stride)
    return max((sent * (high - low) / ranks / Bps for low, high, Bps in spans), default=0.0)


def _roofline(asked: Asked) -> Predicted:
    run, layout, held = asked.run, asked.layout, _held(asked)
    m = layout.microbatches(run.global_batch)
    flops = model_flops(run.model, run.sequence, run.adapters) * run.global_batch * _passes(asked)
    compute_s = flops / run.devices / run.gpu.peak_flops(run.precision)
    # A microbatch reads the weights forward and backward and adds to the gradients; what is saved
    # is written and read; the optimizer moves its share once.
    trained = 0.0 if run.adapters else held
    owned = trained / (layout.dp * layout.cp) if layout.zero else trained
    moved = m * (
        2.0 * run.frozen_bytes * held
        + 2.0 * run.states.gradient * trained
        + 2.0 * _activation_bytes(asked) / layout.pp
    )
    moved += run.states.update * owned
    return Predicted(time_s=max(compute_s, moved / run.gpu.hbm_Bps, _network_s(asked)))


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
