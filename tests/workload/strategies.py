"""What the workload tests share: named models, random widths, and sums over operators."""

from __future__ import annotations

from hypothesis import strategies as st

from atoll.workload import Layer, Model, ModelConfig, load_config, widths, zoo_names

CANDIDATES = (1, 2, 3, 4, 5, 8, 16, 32, 64)
SHORT = 128  # a sequence that every width above except 3 and 5 divides


def layer_of(model: Model, name: str) -> Layer:
    return next(layer for layer, _ in model.layers if layer.name == name)


def valid_widths(config: ModelConfig, sequence: int = SHORT) -> tuple[int, ...]:
    return tuple(t for t in widths(config, CANDIDATES) if sequence % t == 0)


@st.composite
def sharded_case(draw: st.DrawFn) -> tuple[ModelConfig, int, int, bool, str]:
    """A zoo model, a width that fits it, a microbatch, sequence parallelism, attention."""
    config = load_config(draw(st.sampled_from(zoo_names())))
    width = draw(st.sampled_from(valid_widths(config)))
    microbatch = draw(st.integers(1, 3))
    sequence_parallel = draw(st.booleans())
    attention = draw(st.sampled_from(["flash", "unfused"]))
    return config, width, microbatch, sequence_parallel, attention


def vector_elements(layer: Layer) -> int:
    return sum(v.elements for op in (*layer.forward, *layer.backward) for v in op.vectors)


def traffic(layer: Layer) -> int:
    return sum(layer.traffic_bytes(op) for op in (*layer.forward, *layer.backward))
