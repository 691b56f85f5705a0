"""What others would do on the same wafer: the same encoding, priced by the same evaluator.

* accpar: all dies as one group, cut in halves again and again; at each cut every weighted layer is
  of type I (rows), II (inputs) or III (outputs), chosen by dynamic programming on communication
  volume with AccPar's tables (Song et al., HPCA 2020); no pipeline, all activations kept.
* deepspeed: data parallel with ZeRO 1, 2 or 3 over the dies of a stage, with or without a pipeline;
  all activations kept (Rajbhandari et al., SC 2020).
* megatron: tensor parallel 4 or 8 on consecutive dies, then data, then pipeline; with and without
  sequence parallelism; no, selective or full recomputation; blocking ring collectives (Narayanan et
  al., SC 2021; Korthikanti et al., 2022).
* weight-streaming: activations stay on the wafer, weights pass through it layer by layer (Lie, Hot
  Chips 34).

Each takes the best of its own settings. One that does not fit is reported as out of memory, and
again with the least recomputation that makes it fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, NamedTuple

from atoll.fabric.digits import Digits, digit_systems
from atoll.fabric.mesh import Rectangle, snake
from atoll.hardware.wafer import Wafer
from atoll.step.stages import even_sizes
from atoll.wafer.costs.layer import tables_of
from atoll.wafer.costs.tables import OPTIMIZER
from atoll.wafer.encoding.block import make_block
from atoll.wafer.encoding.block_parts import Block
from atoll.wafer.encoding.codes import legal
from atoll.wafer.encoding.genes import BlockMapping
from atoll.wafer.encoding.mapping import StageMapping, WaferMapping
from atoll.wafer.evaluate import Evaluation, evaluate, head_codes, setting_of
from atoll.wafer.exact.exact import Exact
from atoll.wafer.others.accpar import accpar_codes

NAMES = ("accpar", "deepspeed", "megatron", "weight-streaming")
POLICIES = ("none", "selective", "full")


@dataclass(frozen=True)
class Baseline:
    """The best setting of one method."""

    name: str
    setting: str
    """In words."""
    evaluation: Evaluation
    fits_as_published: bool
    """Whether it fits with the recomputation that the method itself prescribes."""
    needed_bytes: float
    """Most memory of a die under the method's own recomputation."""
    variants: Mapping[str, float | None] = field(default_factory=dict)
    """Samples/s of its settings by kind (ZeRO stage, recomputation); None: out of memory."""

    @property
    def samples_per_s(self) -> float | None:
        return self.evaluation.samples_per_s if self.evaluation.fits else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "setting": self.setting,
            "samples_per_s": self.samples_per_s,
            "out_of_memory": not self.fits_as_published,
            "needed_GiB_per_die": self.needed_bytes / 2**30,
            "used_GiB_per_die": self.evaluation.memory_bytes / 2**30,
            "fits_with_least_recomputation": self.evaluation.fits,
            "variants": dict(self.variants),
        }


@dataclass(frozen=True)
class _Recipe:
    """One setting of a method, before memory is looked at."""

    words: str
    rectangles: tuple[Rectangle, ...]
    digits: Digits
    microbatch: int
    stream: str
    codes: tuple[str, ...]
    home: str
    keep: tuple[bool, ...]
    streaming: bool
    variant: str = ""


class _Task(NamedTuple):
    """What every method has to map."""

    wafer: Wafer
    model: str
    batch: int
    sequence: int
    optimizer: str

    def block(self, microbatch: int) -> Block:
        return make_block(self.model, microbatch, self.sequence)


def run_baselines(
    wafer: Wafer, model: str, batch: int, sequence: int, names: Sequence[str] = NAMES,
    optimizer: str = OPTIMIZER,
) -> dict[str, Baseline | None]:  # fmt: skip
    """The best setting of every method; None where nothing of it can run on this wafer at all."""
    makers = {
        "accpar": _accpar,
        "deepspeed": _deepspeed,
        "megatron": _megatron,
        "weight-streaming": _weight_streaming,
    }
    task = _Task(wafer, model, batch, sequence, optimizer)
    return {name: _best(name, task, makers[name](task)) for name in names}


def _best(name: str, task: _Task, recipes: Iterator[_Recipe]) -> Baseline | None:
    """The fastest that fits as published; else the fastest with the least recomputation; else the
    one that needs the least memory, marked as not fitting.
    """
    wafer = task.wafer
    built = [(recipe, _build(recipe, task)) for recipe in recipes]
    priced = [
        (recipe, evaluate(wafer, mapping)) for recipe, mapping in built if mapping is not None
    ]
    if not priced:
        return None
    fitting = [(r, e) for r, e in priced if e.fits]
    variants = {
        kind: max((e.samples_per_s for r, e in fitting if r.variant == kind), default=None)
        for kind in dict.fromkeys(r.variant for r, _ in priced if r.variant)
    }
    if fitting:
        recipe, found = min(fitting, key=lambda pair: (pair[1].step_s, pair[0].words))
        return Baseline(name, recipe.words, found, True, found.memory_bytes, variants)
    least = min(e.memory_bytes for _, e in priced)
    rescued = []
    for recipe, found in priced:
        smaller = _least_recompute(wafer, found.mapping)
        if smaller is not None:
            again = evaluate(wafer, smaller)
            if again.fits:
                rescued.append((recipe, again))
    if rescued:
        recipe, found = min(rescued, key=lambda pair: (pair[1].step_s, pair[0].words))
        words = recipe.words + ", least recomputation"
        return Baseline(name, words, found, False, least, variants)
    recipe, found = min(priced, key=lambda pair: (pair[1].memory_bytes, pair[0].words))
    return Baseline(name, recipe.words, found, False, least, variants)


def _build(recipe: _Recipe, task: _Task) -> WaferMapping | None:
    block = task.block(recipe.microbatch)
    genes = BlockMapping(
        recipe.stream, recipe.codes, tuple(recipe.home for _ in recipe.codes), recipe.keep
    )
    for unit, code in zip(block.units, recipe.codes, strict=True):
        if not legal(code, unit.sizes, recipe.digits):
            return None
    heads = head_codes(block, recipe.digits, recipe.stream)
    if not legal(recipe.stream, block.stream_sizes, recipe.digits) or not heads:
        return None
    count = len(recipe.rectangles)
    if count > block.layers:
        return None
    stages = tuple(
        StageMapping(rectangle, recipe.digits, n, genes, heads[-1])
        for rectangle, n in zip(recipe.rectangles, even_sizes(block.layers, count), strict=True)
    )
    return WaferMapping(
        task.model, task.batch, recipe.microbatch, task.sequence, stages, recipe.streaming, "ring",
        optimizer=task.optimizer,
    )  # fmt: skip


def _least_recompute(wafer: Wafer, mapping: WaferMapping) -> WaferMapping | None:
    """The same mapping with, in every stage, the fastest set of tensors to keep that fits."""
    block = mapping.blocks()
    setting = setting_of(wafer, mapping)
    priced = evaluate(wafer, mapping)
    stages = []
    for number, stage in enumerate(mapping.stages):
        exact = Exact(
            tables_of(block, stage.digits, setting, stage.block), (stage.block.homes[0],)
        )
        in_flight = min(len(mapping.stages) - number, mapping.microbatches)
        limit = wafer.memory_bytes - priced.stages[number].ends.bytes
        found = exact.solve(stage.layers, in_flight, limit)
        if found is None:
            return None
        stages.append(replace(stage, block=found.mapping))
    return replace(mapping, stages=tuple(stages))


# --- the methods ----------------------------------------------------------------------------------


def _kept(block: Block, policy: str) -> tuple[bool, ...]:
    names = [edge.kept_name for chain in block.chains for edge in chain.edges if edge.kept_name]
    if policy == "full":
        return tuple(False for _ in names)
    # Selective recomputation runs the attention core again (its scores are never kept here).
    return tuple(not (policy == "selective" and "context" in name) for name in names)


def _columns(block: Block) -> Iterator[str]:
    """Tensor parallelism: outputs of a branch's first product, then what follows, then inputs of
    its last product.
    """
    for chain in block.chains:
        for unit in chain.units:
            if unit.kind == "linear":
                yield "n" if unit is chain.units[0] else "k"
            else:
                yield "h" if unit.kind == "attention" else "c"


def _megatron(task: _Task) -> Iterator[_Recipe]:
    wafer, batch = task.wafer, task.batch
    for tensor in (4, 8):
        for data, width, height in _consecutive(wafer, tensor):
            most = (wafer.columns // width) * (wafer.rows // height)
            for samples in (1, 2, 4):
                microbatch = data * samples
                if microbatch > batch:
                    continue
                block = task.block(microbatch)
                digits = digit_systems(width, height)[-1]
                split = _inner_tensor(digits, tensor)
                if split is None:
                    continue
                codes = tuple(
                    "".join("b" if outer else tag for outer in split) for tag in _columns(block)
                )
                rectangles = _row_major(wafer, width, height, most)
                for sequence_parallel in (True, False):
                    tag = "s" if sequence_parallel else "r"
                    stream = "".join("b" if outer else tag for outer in split)
                    for policy in POLICIES:
                        words = (
                            f"tensor {tensor} x pipeline {most} x data {data}, microbatch "
                            f"{microbatch}, {'sequence parallel, ' if sequence_parallel else ''}"
                            f"{'no' if policy == 'none' else policy} recomputation"
                        )
                        yield _Recipe(
                            words, rectangles, digits, microbatch, stream, codes, "optimizer",
                            _kept(block, policy), False, f"{policy} recomputation",
                        )  # fmt: skip


def _consecutive(wafer: Wafer, tensor: int) -> Iterator[tuple[int, int, int]]:
    """(data, width, height): groups of ranks numbered along rows, tensor innermost, then data."""
    if tensor > wafer.columns:
        return
    across = wafer.columns // tensor
    for data in range(1, across * wafer.rows + 1):
        if data <= across and across % data == 0:
            yield data, data * tensor, 1
        elif data % across == 0 and wafer.rows % (data // across) == 0:
            yield data, across * tensor, data // across


def _inner_tensor(digits: Digits, tensor: int) -> list[bool] | None:
    """Which digits belong to data parallelism when the innermost of x are tensor parallel."""
    outer = [True] * digits.count
    left = tensor
    for i in reversed(range(len(digits.x))):
        if left == 1:
            break
        if left % digits.x[i]:
            return None
        left //= digits.x[i]
        outer[i] = False
    return outer if left == 1 else None


def _row_major(wafer: Wafer, width: int, height: int, stages: int) -> tuple[Rectangle, ...]:
    """Stages in the order of rank numbers, without regard to the mesh."""
    across = wafer.columns // width
    return tuple(
        Rectangle(i % across * width, i // across * height, width, height) for i in range(stages)
    )


def _deepspeed(task: _Task) -> Iterator[_Recipe]:
    wafer, batch = task.wafer, task.batch
    for width in range(1, wafer.columns + 1):
        for height in range(1, wafer.rows + 1):
            if wafer.columns % width or wafer.rows % height:
                continue
            dies = width * height
            stages = wafer.dies // dies
            if stages > 16 or dies > batch:
                continue
            digits = digit_systems(width, height)[0]
            for samples in (1, 2):
                microbatch = dies * samples
                if microbatch > batch and samples > 1:
                    continue
                block = task.block(microbatch)
                code = "b" * digits.count
                for stage, home in enumerate(("optimizer", "gradients", "weights"), start=1):
                    yield _Recipe(
                        f"ZeRO-{stage}, data {dies} x pipeline {stages}, microbatch {microbatch}",
                        _row_major(wafer, width, height, stages), digits, microbatch, code,
                        (code,) * len(block.units), home, _kept(block, "none"), True,
                        f"ZeRO-{stage}",
                    )  # fmt: skip


def _accpar(task: _Task) -> Iterator[_Recipe]:
    wafer, batch = task.wafer, task.batch
    for rows in (wafer.rows, wafer.rows - wafer.rows % 2 or 1):
        for columns in (wafer.columns, wafer.columns - wafer.columns % 2 or 1):
            digits = digit_systems(columns, rows)[0]
            for microbatch in (1, 2, 4, 8, 16, 32, 64, 128):
                if microbatch > batch:
                    continue
                block = task.block(microbatch)
                chosen = accpar_codes(block, digits)
                if chosen is None:
                    continue
                stream, codes = chosen
                yield _Recipe(
                    f"{rows} x {columns} dies, microbatch {microbatch}, types "
                    + "/".join(codes), (Rectangle(0, 0, columns, rows),), digits, microbatch,
                    stream, codes, "replicated", _kept(block, "none"), False,
                )  # fmt: skip


def _weight_streaming(task: _Task) -> Iterator[_Recipe]:
    wafer, batch = task.wafer, task.batch
    width, height = wafer.columns, wafer.rows
    digits = digit_systems(width, height)[0]
    for microbatch in sorted({1, 2, 4, 8, 16, 32, 64, batch}):
        if microbatch > batch:
            continue
        block = task.block(microbatch)
        left = microbatch
        tags = []
        for radix in digits.radix:
            tags.append("b" if left % int(radix) == 0 else "s")
            left = left // int(radix) if left % int(radix) == 0 else left
        code = "".join(tags)
        rows = prod(int(r) for r, t in zip(digits.radix, tags, strict=True) if t == "s")
        if rows > task.sequence:
            continue
        rectangles = snake(wafer.rows, wafer.columns, width, height, 1)
        assert rectangles is not None
        yield _Recipe(
            f"rows of the batch on all dies, microbatch {microbatch}", rectangles, digits,
            microbatch, code, (code,) * len(block.units), "external", _kept(block, "none"), True,
        )  # fmt: skip
