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
from typing import NamedTuple

from atoll.answers.answer import made_of
from atoll.answers.wafer import BaselineDetails
from atoll.fabric.digits import Digits, digit_systems
from atoll.fabric.mesh import Rectangle
from atoll.hardware.wafer import Wafer
from atoll.step.stages import even_sizes
from atoll.wafer.costs.layer import tables_of
from atoll.wafer.encoding.block import make_block
from atoll.wafer.encoding.block_parts import Block
from atoll.wafer.encoding.codes import legal
from atoll.wafer.encoding.genes import OPTIMIZER, BlockMapping
from atoll.wafer.encoding.mapping import StageMapping, WaferMapping
from atoll.wafer.evaluate import Evaluation, evaluate, head_codes, setting_of
from atoll.wafer.exact.exact import Exact
from atoll.wafer.others.accpar import accpar_codes

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

    def answer(self) -> BaselineDetails:
        return made_of(
            BaselineDetails,
            self,
            out_of_memory=not self.fits_as_published,
            needed_GiB_per_die=self.needed_bytes / 2**30,
            used_GiB_per_die=self.evaluation.memory_bytes / 2**30,
            fits_with_least_recomputation=self.evaluation.fits,
        )


class _Setting(NamedTuple):
    """One setting of a method, before memory is looked at."""

    words: str
    mapping: WaferMapping | None
    """None: not legal on this wafer."""
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

    def mapping(
        self, rectangles: Sequence[Rectangle], digits: Digits, microbatch: int, genes: BlockMapping,
        streaming: bool,
    ) -> WaferMapping | None:  # fmt: skip
        """Layers evenly over the stages, all with the same genes; None where that is not legal."""
        block = self.block(microbatch)
        heads = head_codes(block, digits, genes.stream)
        units = zip(genes.codes, block.units, strict=True)
        fits = all(legal(code, unit.sizes, digits) for code, unit in units)
        if not fits or not heads or not legal(genes.stream, block.stream_sizes, digits):
            return None
        if len(rectangles) > block.layers:
            return None
        sizes = even_sizes(block.layers, len(rectangles))
        stages = tuple(
            StageMapping(rectangle, digits, layers, genes, heads[-1])
            for rectangle, layers in zip(rectangles, sizes, strict=True)
        )
        return WaferMapping(
            self.model, self.batch, microbatch, self.sequence, stages, streaming, "ring",
            optimizer=self.optimizer,
        )  # fmt: skip


def run_baseline(
    name: str, wafer: Wafer, model: str, batch: int, sequence: int, optimizer: str = OPTIMIZER
) -> Baseline | None:
    """The best setting of a method; None where nothing of it can run on this wafer at all.

    The fastest that fits as published; else the fastest with the least recomputation; else the
    one that needs the least memory, marked as not fitting.
    """
    task = _Task(wafer, model, batch, sequence, optimizer)
    priced = [
        (setting, evaluate(wafer, setting.mapping))
        for setting in _METHODS[name](task)
        if setting.mapping is not None
    ]
    if not priced:
        return None
    fitting = [(r, e) for r, e in priced if e.fits]
    variants = {
        kind: max((e.samples_per_s for r, e in fitting if r.variant == kind), default=None)
        for kind in dict.fromkeys(r.variant for r, _ in priced if r.variant)
    }
    if fitting:
        setting, found = min(fitting, key=lambda pair: (pair[1].step_s, pair[0].words))
        return Baseline(name, setting.words, found, True, found.memory_bytes, variants)
    least = min(e.memory_bytes for _, e in priced)
    rescued = []
    for setting, found in priced:
        smaller = _least_recompute(wafer, found.mapping)
        if smaller is not None:
            again = evaluate(wafer, smaller)
            if again.fits:
                rescued.append((setting, again))
    if rescued:
        setting, found = min(rescued, key=lambda pair: (pair[1].step_s, pair[0].words))
        words = setting.words + ", least recomputation"
        return Baseline(name, words, found, False, least, variants)
    setting, found = min(priced, key=lambda pair: (pair[1].memory_bytes, pair[0].words))
    return Baseline(name, setting.words, found, False, least, variants)


def _least_recompute(wafer: Wafer, mapping: WaferMapping) -> WaferMapping | None:
    """The same mapping with, in every stage, the fastest set of tensors to keep that fits."""
    block = mapping.blocks()
    setting = setting_of(wafer, mapping)
    priced = evaluate(wafer, mapping)
    stages = []
    for number, stage in enumerate(mapping.stages):
        exact = Exact(tables_of(block, stage.digits, setting, stage.block), (stage.block.homes[0],))
        in_flight = min(len(mapping.stages) - number, mapping.microbatches)
        limit = wafer.memory_bytes - priced.stages[number].ends.bytes
        found = exact.solve(stage.layers, in_flight, limit)
        if found is None:
            return None
        stages.append(replace(stage, block=found.mapping))
    return replace(mapping, stages=tuple(stages))


# --- the methods ----------------------------------------------------------------------------------


def _genes(
    block: Block, stream: str, codes: Sequence[str], home: str, policy: str = "none"
) -> BlockMapping:
    """The same home for all weights; selective recomputation runs the attention core again (its
    scores are never kept here).
    """
    names = [edge.kept_name for chain in block.chains for edge in chain.edges if edge.kept_name]
    dropped = {"none": (), "selective": ("context",), "full": ("",)}[policy]
    keep = tuple(not any(part in name for part in dropped) for name in names)
    return BlockMapping(stream, tuple(codes), (home,) * len(codes), keep)


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


def _megatron(task: _Task) -> Iterator[_Setting]:
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
                        genes = _genes(block, stream, codes, "optimizer", policy)
                        mapping = task.mapping(rectangles, digits, microbatch, genes, False)
                        yield _Setting(words, mapping, f"{policy} recomputation")


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


def _deepspeed(task: _Task) -> Iterator[_Setting]:
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
                rectangles = _row_major(wafer, width, height, stages)
                for stage, home in enumerate(("optimizer", "gradients", "weights"), start=1):
                    words = f"data {dies} x pipeline {stages}, microbatch {microbatch}"
                    genes = _genes(block, code, (code,) * len(block.units), home)
                    mapping = task.mapping(rectangles, digits, microbatch, genes, True)
                    yield _Setting(f"ZeRO-{stage}, {words}", mapping, f"ZeRO-{stage}")


def _accpar(task: _Task) -> Iterator[_Setting]:
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
                words = f"{rows} x {columns} dies, microbatch {microbatch}, types "
                genes = _genes(block, *chosen, "replicated")
                whole = (Rectangle(0, 0, columns, rows),)
                mapping = task.mapping(whole, digits, microbatch, genes, False)
                yield _Setting(words + "/".join(genes.codes), mapping)


def _weight_streaming(task: _Task) -> Iterator[_Setting]:
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
        genes = _genes(block, code, (code,) * len(block.units), "external")
        mapping = task.mapping((Rectangle(0, 0, width, height),), digits, microbatch, genes, True)
        yield _Setting(f"rows of the batch on all dies, microbatch {microbatch}", mapping)


_METHODS = {
    "accpar": _accpar,
    "deepspeed": _deepspeed,
    "megatron": _megatron,
    "weight-streaming": _weight_streaming,
}
NAMES = tuple(_METHODS)
