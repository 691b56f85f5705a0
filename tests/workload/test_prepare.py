"""The whole road in one call."""

from __future__ import annotations

import pytest

from atoll.answers.models import layer_table
from atoll.workload import build_model, load_config, prepare, widths, zoo_names


@pytest.mark.parametrize("name", zoo_names())
@pytest.mark.parametrize("microbatch", [1, 2])
def test_every_zoo_model_prepares_at_every_width(name: str, microbatch: int) -> None:
    config = load_config(name)
    whole = build_model(config, microbatch)
    for t in widths(config, (1, 2, 4, 5, 8)):
        sequence_parallel = whole.sequence % t == 0
        model = prepare(config, microbatch, None, t, sequence_parallel)
        first, *blocks, head, loss = [layer.name for layer, _ in model.layers]
        assert (first, head, loss) == ("embedding", "head", "loss")
        if config.encoder_layers:
            assert {"encoder_first", "encoder_block", "decoder_block", "decoder_last"} < {*blocks}
        else:
            assert all(name.endswith("block") for name in blocks) and "block" in blocks
        assert model.tensor_parallel == t
        assert [n for _, n in model.layers] == [n for _, n in whole.layers]
        assert model.parameters * t >= whole.parameters


def test_the_table_is_json_and_adds_up() -> None:
    model = prepare(load_config("llama2-7b"), 1)
    table = layer_table(model)
    assert [row.repeat for row in table] == [1, 32, 1, 1]
    block = table[1]
    operators = block.operators
    assert sum(op.flops for op in operators if op.pass_ == "forward") == block.flops_forward
    assert len(operators) == 8 + 14


def test_full_training_flops_are_six_a_parameter_and_token_plus_attention() -> None:
    """6 N + 12 l h s a token, N without the input embedding (PaLM, arXiv:2204.02311, app. B)."""
    config = load_config("llama2-7b")
    model = prepare(config, 1, attention="unfused")
    total = sum((a.flops_forward + a.flops_backward) * n for a, n in model.layers)
    norms = config.hidden * (2 * config.layers + 1)
    weights = model.parameters - config.vocab * config.hidden - norms
    attention = 12 * config.layers * config.hidden * model.sequence
    assert total == (6 * weights + attention) * model.tokens
