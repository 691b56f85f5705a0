"""Multi-head latent attention: queries, keys and values by way of narrow latents.

DeepSeek-AI, arXiv:2405.04434, section 2.1, in the form used for training: keys and values are made
for every head, and the rotated part of the key, common to all heads, is joined to each. The narrow
projections are not cut by tensor parallelism, as in Megatron-LM.
"""

from __future__ import annotations

from atoll.workload.builders.graph import GraphBuilder
from atoll.workload.graph.operator import Region, VectorWork


def latent_projections(graph: GraphBuilder, x: str) -> tuple[str, str, str]:
    """Queries and keys (rotated) and values."""
    config = graph.config
    heads, rotated = config.heads, config.rotated
    q = graph.columns("q", heads * config.head_dim, heads)
    if config.latent_q:
        latent = graph.stream("q_a", config.latent_q)
        graph.linear("q_a", x, latent, bias=config.attention_bias, split="m")
        graph.linear("q_b", graph.norm("q_a_norm", latent), q, bias=False, split="n")
    else:
        graph.linear("q", x, q, bias=False, split="n")
    head_keys, common, values = _keys_and_values(graph, x)
    q_rotated, common_rotated = graph.like("q.rotated", q), graph.like("k_common.rotated", common)
    vectors = (
        VectorWork("rotary", graph.tokens, heads * rotated, Region.TENSOR),
        graph.vector("rotary", common),
    )
    graph.run("rotary", "rotary", (q, common), (q_rotated, common_rotated), vectors=vectors)
    keys = graph.columns("k", heads * config.head_dim, heads)
    graph.run("keys", "join_keys", (head_keys, common_rotated), (keys,), enters=(common_rotated,))
    return q_rotated, keys, values


def _keys_and_values(graph: GraphBuilder, x: str) -> tuple[str, str, str]:
    """The heads' own part of the keys, the part common to all, and the values."""
    config = graph.config
    heads, key_columns = config.heads, config.head_dim - config.rotated
    latent = graph.stream("kv_a", config.latent_kv)
    common = graph.stream("k_common", config.rotated)
    width = config.latent_kv + config.rotated
    down = graph.weight("kv_a.weight", (config.hidden, width))
    bias = (graph.weight("kv_a.bias", (width,)),) if config.attention_bias else ()
    graph.product("kv_a", x, (down, *bias), (latent, common), "m")
    head_keys = graph.columns("k_own", heads * key_columns, heads)
    values = graph.columns("v", heads * config.value_width, heads)
    up = tuple(
        graph.weight(f"{name}.weight", (config.latent_kv, heads * columns), 1, heads)
        for name, columns in (("k_b", key_columns), ("v_b", config.value_width))
    )
    graph.product("kv_b", graph.norm("kv_a_norm", latent), up, (head_keys, values), "n")
    return head_keys, common, values
