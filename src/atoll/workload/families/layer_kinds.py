"""The kind of each block: as the configuration says, or the family's usual pattern."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from atoll.base.errors import AtollError
from atoll.workload.families.config_fields import Fields
from atoll.workload.families.family import Step
from atoll.workload.families.model_config import ModelConfig

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
LINEAR, CONV, DENSE, EXPERTS, BOTH = "linear_attention", "conv", "mlp", "moe", "hybrid"
# Words of transformers 4 for what 5 calls otherwise.
_LEGACY = {"attention": FULL, "mamba": LINEAR}
_WORDS = (FULL, SLIDING, CHUNKED, LINEAR, CONV, DENSE, EXPERTS, BOTH, *_LEGACY)

Usual = Callable[[Fields, int], tuple[str, ...]]


def every(
    name: str, default: int, last: str = FULL, between: str = SLIDING, first: bool = False
) -> Usual:
    """The last (or first) of every n blocks differs; a pattern such as "LLLG" has its length."""

    def usual(fields: Fields, layers: int) -> tuple[str, ...]:
        pattern = fields.get(name)
        period = len(pattern) if isinstance(pattern, str) else 0
        period = period or fields.size(name, default)
        return tuple(last if (i + (not first)) % period == 0 else between for i in range(layers))

    return usual


def listed(name: str, inside: str, outside: str) -> Usual:
    """Blocks whose numbers a field lists, and the others."""

    def usual(fields: Fields, layers: int) -> tuple[str, ...]:
        chosen = fields.indices(name, layers)
        return tuple(inside if i in chosen else outside for i in range(layers))

    return usual


def always(word: str) -> Usual:
    """Give all blocks the same kind."""
    return lambda fields, layers: (word,) * layers


def kinds(usual: Usual, mixer: str = "") -> Step:
    """The kind of every block, as `layer_types` says or as usual in the family. `mixer` is what the
    family has where it does not attend."""

    def step(fields: Fields, config: ModelConfig) -> ModelConfig:
        stated = fields.names("layer_types", _WORDS, config.layers)
        words = stated or usual(fields, config.layers)
        return with_kinds(config, tuple(_LEGACY.get(w, w) for w in words), mixer)

    return step


def with_kinds(config: ModelConfig, words: tuple[str, ...], mixer: str = "") -> ModelConfig:
    """The configuration with blocks of these kinds."""
    windows = tuple(config.window if word in (SLIDING, CHUNKED) else 0 for word in words)
    others = {LINEAR: mixer, CONV: mixer, BOTH: f"attention+{mixer}"}
    others |= {DENSE: "none", EXPERTS: "none"}
    mixers = tuple(others.get(word, "attention") for word in words)
    return replace(
        config,
        window=windows[0] if len(set(windows)) == 1 else 0,
        windows=windows if len(set(windows)) > 1 else (),
        mixer=mixers[0] if len(set(mixers)) == 1 else "attention",
        mixers=mixers if len(set(mixers)) > 1 else (),
        chunked=CHUNKED in words,
    )


def rotary_list(fields: Fields, config: ModelConfig) -> ModelConfig:
    """`no_rope_layers` has a 1 for each block with rotary positions (SmolLM3, Llama 4)."""
    flags = fields.get("no_rope_layers")
    every_nth = fields.size("no_rope_layer_interval", 4)
    if not flags:
        flags = [int((i + 1) % every_nth != 0) for i in range(config.layers)]
    if not isinstance(flags, list) or len(flags) != config.layers or not {*flags} <= {0, 1}:
        raise AtollError(
            f"{fields.where}: no_rope_layers is {flags!r}, but must be a list of {config.layers} "
            "times 0 or 1"
        )
    return replace(config, unrotated=tuple(i for i, rotated in enumerate(flags) if not rotated))


def rotary_in_windows(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Blocks without a window have no positions if others have windows (Cohere, EXAONE)."""
    unwindowed = tuple(i for i, window in enumerate(config.windows) if not window)
    return replace(config, unrotated=unwindowed)


def windows_if_used(fields: Fields, config: ModelConfig) -> ModelConfig:
    """No window unless `use_sliding_window` says so."""
    return config if fields.flag("use_sliding_window", False) else replace(config, window=0)


def last_windows(fields: Fields, config: ModelConfig) -> ModelConfig:
    """The blocks from `max_window_layers` on have a window."""
    first = fields.count("max_window_layers", config.layers)
    usual = tuple(FULL if i < first else SLIDING for i in range(config.layers))
    return kinds(lambda *_: usual)(fields, config)


def unrotated_windows(fields: Fields, config: ModelConfig) -> ModelConfig:
    """SmolLM3: blocks without rotary positions may have a window."""
    usual = tuple(SLIDING if i in config.unrotated else FULL for i in range(config.layers))
    return kinds(lambda *_: usual)(fields, config)
