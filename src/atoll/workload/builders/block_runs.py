"""The blocks of a model: runs of equal blocks, and repeated patterns.

Most models repeat one block. Some begin with others (DeepSeek's dense ones), some alternate
(Gemma 2's windows): an alternation becomes one layer that holds a whole period of it, so that the
chain stays a short list of layers with repeats, in the order of the model. Where every block is to
stand alone, equal ones are one layer that occurs several times in the chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from typing import TypeVar

from atoll.workload.families.model_config import ModelConfig

_LONGEST_PERIOD = 8

Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True)
class BlockRun:
    """`repeat` times the same layer, made of one block or of a period of different ones."""

    name: str
    repeat: int
    blocks: tuple[tuple[str, ModelConfig], ...]
    """Each block with the prefix of its tensors' names: weights of different blocks must not
    share one, for equal names mean one and the same weight."""


@lru_cache(maxsize=64)
def block_runs(
    config: ModelConfig, sequence: int, *, merge_periods: bool = True
) -> tuple[BlockRun, ...]:
    """The chain between embedding and head, periods as one layer or block by block."""
    facts = [_facts(config, layer) for layer in range(config.layers)]
    kind_by_facts = {its: _kind(config, sequence, its) for its in dict.fromkeys(facts)}
    kinds = [kind_by_facts[its] for its in facts]
    several = len(set(kinds)) > 1
    repeated = periods(kinds)
    if not merge_periods and any(len(period) > 1 for period, _ in repeated):
        return _single_runs(config, kinds)
    runs: list[BlockRun] = []
    for period, repeat in repeated:
        label = _label(config, period[0]) if several and len(period) == 1 else ""
        name = _unused(f"{label}_block" if label else "block", runs)
        if len(period) == 1:
            prefix = "" if name == "block" else name.replace("_block", "") + "."
            blocks: tuple[tuple[str, ModelConfig], ...] = ((prefix, period[0]),)
        else:
            first = "" if name == "block" else name.replace("block", "period") + "."
            words = (_label(config, kind) or "block" for kind in period)
            labels = (f"{first}{word}{i}." for i, word in enumerate(words))
            blocks = tuple(zip(labels, period, strict=True))
        runs.append(BlockRun(name, repeat, blocks))
    return tuple(runs)


def _single_runs(config: ModelConfig, kinds: Sequence[ModelConfig]) -> tuple[BlockRun, ...]:
    """Merge equal neighbours into runs; runs of one kind share a name and a layer."""
    runs: dict[ModelConfig, BlockRun] = {}
    for kind in dict.fromkeys(kinds):
        label = _label(config, kind)
        name = _unused(f"{label}_block" if label else "block", tuple(runs.values()))
        runs[kind] = BlockRun(name, 1, ((name.replace("block", ""), kind),))
    return tuple(replace(runs[kind], repeat=len(list(same))) for kind, same in groupby(kinds))


def _facts(config: ModelConfig, layer: int) -> tuple[int, str, bool, bool, bool]:
    """Properties by which blocks differ: window, mixer, unrotated, dense, bare."""
    return (
        config.windows[layer] if config.windows else config.window,
        config.mixers[layer] if config.mixers else config.mixer,
        layer in config.unrotated,
        layer in config.dense_layers,
        config.bare_first and layer == 0,
    )


def _kind(
    config: ModelConfig, sequence: int, facts: tuple[int, str, bool, bool, bool]
) -> ModelConfig:
    """The configuration as if all blocks were like this one."""
    window, mixer, unrotated, dense, bare = facts
    attends = "attention" in mixer
    reach = window if config.causal else window // 2 + 1
    kind = replace(
        config,
        window=window if attends and reach < sequence else 0,  # one that hides something
        windows=(),
        dense_layers=(),
        dense_ffn=0,
        mixer=mixer,
        mixers=(),
        positions="none" if attends and unrotated else config.positions,
        unrotated=(),
        bare_first=bare,
    )
    alone = config.one_branch and mixer != "none"
    if not dense and not alone:
        return kind
    return replace(
        kind,
        ffn=0 if alone else config.dense_ffn,
        experts=0,
        experts_per_token=0,
        shared_ffn=0,
        shared_gate=False,
    )


def _label(config: ModelConfig, kind: ModelConfig) -> str:
    words = []
    if config.bare_first and kind.bare_first:
        words.append("first")
    if config.mixers and kind.mixer != "none":
        words.append(kind.mixer.replace("+", "_"))
    if config.windows and "attention" in kind.mixer:
        words.append("local" if kind.window else "global")
    if config.unrotated and kind.positions == "none":
        words.append("unrotated")
    if config.experts and kind.ffn and not kind.experts:
        words.append("dense")
    return "_".join(words)


def _unused(name: str, runs: Sequence[BlockRun]) -> str:
    used = {run.name for run in runs}
    candidates = (name, *(f"{name}{i}" for i in range(2, len(used) + 3)))
    return next(candidate for candidate in candidates if candidate not in used)


def periods(kinds: Sequence[Kind]) -> list[tuple[tuple[Kind, ...], int]]:
    """Cut the list into repeated periods, greedily: of those that start here, the one that reaches
    farthest, and the shortest of these. Two rounds may be chance, three are a pattern."""
    repeated: list[tuple[tuple[Kind, ...], int]] = []
    at = 0
    while at < len(kinds):
        best, repeat = 1, _repeats(kinds, at, 1)
        for length in range(2, _LONGEST_PERIOD + 1):
            times = _repeats(kinds, at, length)
            if times > 2 and times * length > best * repeat:
                best, repeat = length, times
        repeated.append((tuple(kinds[at : at + best]), repeat))
        at += best * repeat
    return repeated


def _repeats(kinds: Sequence[Kind], at: int, length: int) -> int:
    period = kinds[at : at + length]
    times = 1
    while kinds[at + times * length : at + (times + 1) * length] == period:
        times += 1
    return times
