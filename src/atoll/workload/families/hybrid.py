"""Steps of families with state spaces, gated delta nets, linear attention or short convolutions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from atoll.base.errors import AtollError
from atoll.workload.families.config_fields import Fields
from atoll.workload.families.experts import experts, with_experts
from atoll.workload.families.family import Step
from atoll.workload.families.layer_kinds import DENSE, EXPERTS, FULL, LINEAR, with_kinds
from atoll.workload.families.model_config import ModelConfig, StateSpace

_DELTA_CHUNK = 64  # tokens, in every public implementation


def mamba2(names: Mapping[str, tuple[str, int]], inner: str = "") -> Step:
    """The sizes of Mamba-2 by their names in the file, with the values that are usual; `inner`
    names the columns of its values where they are free."""

    def step(fields: Fields, config: ModelConfig) -> ModelConfig:
        def size(part: str) -> int:
            name, usual = names[part]
            return fields.size(name, usual or None)

        def on(part: str) -> bool:
            name, usual = names[part]
            return fields.flag(name, bool(usual))

        heads = size("heads")
        width = fields.size(inner, 0) if inner else 0
        if not width and names["expand"][0]:
            width = size("expand") * config.hidden
        name, usual = names["head_dim"]
        auto = not usual and fields.get(name) in (None, "auto")
        columns = width // heads if auto else fields.size(name, usual or None)
        if width and heads * columns != width:
            raise AtollError(
                f"{fields.where}: {names['heads'][0]} is {heads} and {name} {columns}, but "
                f"together they must be the {width} columns of the state space"
            )
        scan = StateSpace(
            heads=heads,
            head_dim=columns,
            state=size("state"),
            groups=size("groups"),
            kernel=size("kernel"),
            chunk=size("chunk"),
            conv_bias=on("conv_bias"),
            bias=on("bias"),
            norm=on("norm"),
        )
        fields.divides(names["groups"][0], scan.groups, names["heads"][0], heads)
        return replace(config, scan=scan)

    return step


def mamba1(fields: Fields, config: ModelConfig) -> ModelConfig:
    inner = fields.size("mamba_expand", 2) * config.hidden
    name = "mamba_dt_rank"
    auto = fields.get(name) in (None, "auto")
    scan = StateSpace(
        heads=inner,
        head_dim=1,
        state=fields.size("mamba_d_state", 16),
        groups=1,
        kernel=fields.size("mamba_d_conv", 4),
        conv_bias=fields.flag("mamba_conv_bias", True),
        bias=fields.flag("mamba_proj_bias", False),
        rank=-(-config.hidden // 16) if auto else fields.size(name),
    )
    return replace(config, scan=scan)


def delta(fields: Fields, config: ModelConfig) -> ModelConfig:
    scan = StateSpace(
        heads=fields.size("linear_num_value_heads", 32),
        head_dim=fields.size("linear_value_head_dim", 128),
        state=fields.size("linear_key_head_dim", 128),
        groups=fields.size("linear_num_key_heads", 16),
        kernel=fields.size("linear_conv_kernel_dim", 4),
        chunk=_DELTA_CHUNK,
    )
    key_heads = "linear_num_key_heads"
    fields.divides(key_heads, scan.groups, "linear_num_value_heads", scan.heads)
    return replace(config, scan=scan)


def lightning(fields: Fields, config: ModelConfig) -> ModelConfig:
    heads, columns, chunk = config.heads, config.head_dim, fields.size("block_size", 256)
    scan = StateSpace(heads=heads, head_dim=columns, state=columns, groups=heads, chunk=chunk)
    return replace(config, scan=scan, rotary_dim=fields.size("rotary_dim", 0))


def short_conv(fields: Fields, config: ModelConfig) -> ModelConfig:
    """LFM2 takes two thirds of the given feed-forward width, times a factor, rounded up."""
    bias = fields.flag("conv_bias", False)
    scan = StateSpace(
        heads=config.hidden,
        head_dim=1,
        state=1,
        groups=config.hidden,
        kernel=fields.size("conv_L_cache", 3),
        conv_bias=bias,
        bias=bias,
    )
    width = config.ffn
    if fields.flag("block_auto_adjust_ff_dim", True):
        unit, factor = fields.size("block_multiple_of", 256), fields.get("block_ffn_dim_multiplier")
        factor = factor if isinstance(factor, int | float) else 1.0
        width = -(-int(factor * int(2 * width / 3)) // unit) * unit
    return replace(config, scan=scan, ffn=width)


def jamba(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Attention, and experts, in every n-th block from an offset on."""
    layers = range(config.layers)

    def chosen(kind: str, period: int, offset: int) -> set[int]:
        n = fields.size(f"{kind}_layer_period", period)
        return {i for i in layers if i % n == fields.count(f"{kind}_layer_offset", offset)}

    attends, sparse = chosen("attn", 8, 4), chosen("expert", 2, 1)
    config = with_kinds(config, tuple(FULL if i in attends else LINEAR for i in layers), "mamba1")
    if fields.size("num_experts", 16) == 1:
        return config
    dense = tuple(i for i in layers if i not in sparse)
    return with_experts(fields, config, "num_experts", dense, "intermediate_size")


def granite_experts(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Without routed experts the shared one is the feed-forward layer."""
    shared = fields.size("shared_intermediate_size", 1024)
    rotary = fields.get("position_embedding_type") == "rope"
    config = replace(config, positions="rotary" if rotary else "none")
    if not fields.count("num_local_experts", 8):
        return replace(config, ffn=shared)
    return experts(shared="shared_intermediate_size")(fields, config)


_LETTERS = {"M": LINEAR, "*": FULL, "-": DENSE, "E": EXPERTS}


def nemotron_h(fields: Fields, config: ModelConfig) -> ModelConfig:
    """A letter or a word for every block, each a mixer or a feed-forward layer."""
    pattern = fields.get("hybrid_override_pattern")
    words = tuple(_LETTERS.get(c, "") for c in pattern) if isinstance(pattern, str) else ()
    block_types = fields.get("layers_block_type")
    if not words and isinstance(block_types, list):
        legacy = {"mamba": LINEAR, "attention": FULL}
        words = tuple(legacy.get(str(w), str(w)) for w in block_types)
    if not words or set(words) - set(_LETTERS.values()):
        raise AtollError(
            f"{fields.where}: hybrid_override_pattern is {pattern!r}, but must say M, *, - or E "
            "for each block"
        )
    config = with_kinds(replace(config, layers=len(words)), words, "mamba2")
    if EXPERTS not in words:
        return config
    dense = tuple(i for i, word in enumerate(words) if word == DENSE)
    config = with_experts(fields, config, "n_routed_experts", dense, "moe_intermediate_size")
    shared = "moe_shared_expert_intermediate_size"
    return replace(config, router="sigmoid", shared_ffn=fields.count(shared, 0))
