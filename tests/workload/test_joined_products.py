"""What modules keep that compute queries, keys and values in one product."""

from __future__ import annotations

import pytest

from atoll.workload import load_config
from atoll.workload.graph.layer import Layer
from atoll.workload.joined_products import copied_heads, one_projection, views_of_projection
from atoll.workload.prepare import prepare

ROWS_BYTES = 2 * 4096 * 3072
"""One tensor of 4,096 tokens of Phi-3 mini in 16 bits."""


@pytest.fixture
def block() -> Layer:
    model = prepare(load_config("phi3-mini"), 1, 4096, attention="flash", fusion="none")
    layers: dict[str, Layer] = {}
    model.map(lambda layer: layers.setdefault(layer.name, layer))
    return one_projection(layers["block"])


def test_values_keep_the_whole_output_of_their_product(block: Layer) -> None:
    kept = views_of_projection(block)
    assert kept.saved_bytes - block.saved_bytes == 2 * ROWS_BYTES
    assert views_of_projection(kept) == kept


def test_attention_of_concatenated_heads_is_kept_twice(block: Layer) -> None:
    copied = copied_heads(block)
    assert copied.saved_bytes - block.saved_bytes == ROWS_BYTES
    assert copied.flops_forward == block.flops_forward
    (copy,) = (op for op in copied.forward if op.kind == "copy")
    projection = next(op for op in copied.forward if op.name == "proj")
    assert copy.writes[0] in projection.reads
    assert copy.reads[0] not in projection.reads
