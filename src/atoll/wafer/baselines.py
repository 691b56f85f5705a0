"""Published methods on the same wafer: the same encoding, priced by the same evaluator.

* accpar: all dies as one group, bisected recursively; at each cut every weighted layer is
  of type I (rows), II (inputs) or III (outputs), chosen by dynamic programming on communication
  volume with AccPar's tables (Song et al., HPCA 2020); no pipeline, all activations kept.
* deepspeed: data parallel with ZeRO 1, 2 or 3 over the dies of a stage, with or without a pipeline,
  collectives streamed or not; all activations kept (Rajbhandari et al., SC 2020).
* megatron: tensor parallel 4 or 8 on consecutive dies, then data, then pipeline; with and without
  sequence parallelism; no, selective or full recomputation; blocking ring collectives (Narayanan et
  al., SC 2021; Korthikanti et al., 2022).
* weight-streaming: activations stay on the wafer, weights pass through it layer by layer (Lie, Hot
  Chips 34).

Each takes the best of its settings, and is also priced with the setting that its paper fixes
(`SOURCES`). A method that does not fit is reported as out of memory, and with the least
recomputation that makes it fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, NamedTuple, TypeVar

from atoll.answers.answer import build_from
from atoll.answers.wafer import BaselineDetails, BaselineSetting, FixedBaseline
from atoll.base.stopping import StopCheck, check_stop, never
from atoll.fabric.digits import Digits, digit_systems
from atoll.fabric.mesh import Rectangle
from atoll.hardware.wafer import Wafer
from atoll.step.stages import even_sizes
from atoll.wafer.costs.layer_cost import mapping_tables
from atoll.wafer.encoding.block import make_block
from atoll.wafer.encoding.block_parts import OPTIMIZER, BlockMapping, WaferBlock
from atoll.wafer.encoding.codes import legal
from atoll.wafer.encoding.mapping import StageMapping, WaferMapping
from atoll.wafer.evaluate import MappingCost, ends_by_time, evaluate, head_codes, setting_of
from atoll.wafer.exact.block_solver import BlockSolver

AnswerT = TypeVar("AnswerT", bound=BaselineSetting)
POLICIES = ("none", "selective", "full")
SOURCES = {
    "accpar": "the tensors that are cut are those of a whole mini-batch: nothing is accumulated, "
    "nothing computed again (Song et al., HPCA 2020; in its authors' program, linghaosong/AccPar, "
    "inputs and outputs of a layer are matrices of the whole batch by channels)",
    "deepspeed": "data parallelism alone, over as many dies as there are samples for, optimizer "
    "and gradients divided (what ZeRO-100B implements), weights too where that does not fit "
    "(Rajbhandari et al., SC 2020, sections 1 and 5)",
    "megatron": "tensor parallel as wide as a server of 8, then the shortest pipeline that fits, "
    "then data parallel; every layer computed again from its input (Narayanan et al., SC 2021, "
    "takeaways 1 and 2, and the FLOPs of its section 5)",
}
"""The setting that each paper fixes."""


@dataclass(frozen=True)
class WaferBaseline:
    """The best setting of one method."""

    name: str
    setting: str
    """In words."""
    evaluation: MappingCost
    fits_as_published: bool
    """Whether it fits with the recomputation that the method prescribes."""
    needed_bytes: float
    """Most memory of a die with the method's recomputation."""
    variants: Mapping[str, float | None] = field(default_factory=dict)
    """Samples/s of its settings by kind (ZeRO stage, recomputation); None: out of memory."""
    fixed: WaferBaseline | None = None
    """The setting that its paper fixes; None if illegal here or without a paper."""

    @property
    def samples_per_s(self) -> float | None:
        return self.evaluation.samples_per_s if self.evaluation.fits else None

    def answer(self) -> BaselineDetails:
        fixed = self.fixed and self.fixed._to_answer(FixedBaseline, source=SOURCES[self.name])
        return self._to_answer(BaselineDetails, as_fixed=fixed)

    def _to_answer(self, kind: type[AnswerT], **more: Any) -> AnswerT:
        return build_from(
            kind,
            self,
            out_of_memory=not self.fits_as_published,
            needed_GiB_per_die=self.needed_bytes / 2**30,
            used_GiB_per_die=self.evaluation.memory_bytes / 2**30,
            fits_with_least_recomputation=self.evaluation.fits,
            **more,
        )


class _MethodSetting(NamedTuple):
    """One setting of a method, before memory is checked."""

    words: str
    mapping: WaferMapping | None
    """None: not legal on this wafer."""
    variant: str = ""
    fixed: int | None = None
    """Rank of a setting fixed by the paper: the smallest that fits is taken."""


_EvaluatedSetting = tuple[_MethodSetting, MappingCost]


class _BaselineTask(NamedTuple):
    """The model and wafer that every method maps."""

    wafer: Wafer
    model: str
    batch: int
    sequence: int
    optimizer: str

    def block(self, microbatch: int) -> WaferBlock:
        return make_block(self.model, microbatch, self.sequence)

    def mapping(
        self, rectangles: Sequence[Rectangle], digits: Digits, microbatch: int, genes: BlockMapping,
        streaming: bool,
    ) -> WaferMapping | None:  # fmt: skip
        """Divide layers evenly over stages with the same variables; None if that is illegal."""
        block = self.block(microbatch)
        heads = head_codes(block, digits, genes.stream)
        sizes = block.stream_sizes, *(unit.sizes for unit in block.units)
        codes = zip((genes.stream, *genes.codes), sizes, strict=True)
        fits = all(legal(code, tags, digits) for code, tags in codes)
        if not fits or not heads or len(rectangles) > block.layers:
            return None
        layers = even_sizes(block.layers, len(rectangles))
        stages = tuple(
            StageMapping(rectangle, digits, count, genes, heads[-1])
            for rectangle, count in zip(rectangles, layers, strict=True)
        )
        mapping = WaferMapping(
            self.model, self.batch, microbatch, self.sequence, stages, streaming, "ring",
            optimizer=self.optimizer,
        )  # fmt: skip
        setting, ends = setting_of(self.wafer, mapping), (len(stages) == 1, True)
        outside = "external" in genes.homes, (streaming,)
        _, head, _ = ends_by_time(block, digits, setting, genes.stream, ends, *outside)[0]
        return replace(mapping, stages=tuple(replace(stage, head=head) for stage in stages))


def run_baseline(
    name: str, wafer: Wafer, model: str, batch: int, sequence: int,
    optimizer: str = OPTIMIZER, stop: StopCheck = never,
) -> WaferBaseline | None:  # fmt: skip
    """Return the best setting of a method; None if no setting is legal on this wafer.

    The fastest that fits as published; else the fastest with the least recomputation; else the
    one that needs the least memory, marked as not fitting.
    """
    task = _BaselineTask(wafer, model, batch, sequence, optimizer)
    priced = []
    for setting in _METHODS[name](task):
        check_stop(stop)
        if setting.mapping is not None:
            priced.append((setting, evaluate(wafer, setting.mapping)))
    if not priced:
        return None
    variants = {
        kind: max(
            (e.samples_per_s for s, e in priced if e.fits and s.variant == kind), default=None
        )
        for kind in dict.fromkeys(s.variant for s, _ in priced if s.variant)
    }
    fixed = [row for row in priced if row[0].fixed is not None]
    preferred = min((s.fixed for s, e in fixed if e.fits and s.fixed is not None), default=None)
    if preferred is not None:
        fixed = [row for row in fixed if row[0].fixed == preferred]
    return replace(
        _best(name, wafer, priced, stop),
        variants=variants,
        fixed=_best(name, wafer, fixed, stop) if fixed else None,
    )


def _best(
    name: str, wafer: Wafer, priced: list[_EvaluatedSetting], stop: StopCheck
) -> WaferBaseline:
    def rank(row: _EvaluatedSetting) -> tuple[float, str]:
        return row[1].step_s, row[0].words

    fitting = [row for row in priced if row[1].fits]
    if fitting:
        setting, evaluation = min(fitting, key=rank)
        return WaferBaseline(name, setting.words, evaluation, True, evaluation.memory_bytes)
    least = min(evaluation.memory_bytes for _, evaluation in priced)
    rescued = []
    for setting, evaluation in priced:
        check_stop(stop)
        smaller = _least_recompute(wafer, evaluation)
        if smaller is not None and (again := evaluate(wafer, smaller)).fits:
            rescued.append((setting, again))
    if rescued:
        setting, evaluation = min(rescued, key=rank)
        words = f"{setting.words}, least recomputation"
        return WaferBaseline(name, words, evaluation, False, least)
    setting, evaluation = min(priced, key=lambda row: (row[1].memory_bytes, row[0].words))
    return WaferBaseline(name, setting.words, evaluation, False, least)


def _least_recompute(wafer: Wafer, evaluation: MappingCost) -> WaferMapping | None:
    """Keep, in every stage of the mapping, the fastest set of tensors that fits."""
    mapping = evaluation.mapping
    block, setting = mapping.blocks(), setting_of(wafer, mapping)
    stages = []
    for number, stage in enumerate(mapping.stages):
        tables = mapping_tables(block, stage.digits, setting, stage.block)
        exact = BlockSolver(tables, (stage.block.homes[0],))
        in_flight = min(len(mapping.stages) - number, mapping.microbatches)
        limit = wafer.memory_bytes - evaluation.stages[number].ends.bytes
        solved = exact.solve(stage.layers, in_flight, limit)
        if solved is None:
            return None
        stages.append(replace(stage, block=solved.mapping))
    return replace(mapping, stages=tuple(stages))


# --- the methods ----------------------------------------------------------------------------------


def _block_mapping(
    block: WaferBlock, stream: str, codes: Sequence[str], home: str, policy: str = "none"
) -> BlockMapping:
    """Return variables with one home for all weights; `selective` recomputes attention."""
    dropped = {"none": (), "selective": ("context",), "full": ("",)}[policy]
    keep = tuple(not any(part in name for part in dropped) for name in block.saved_names)
    return BlockMapping(stream, tuple(codes), (home,) * len(codes), keep)


def _tp_tags(block: WaferBlock) -> Iterator[str]:
    """Yield tp tags: outputs of a branch's first product, then heads or columns, then inputs."""
    for chain in block.chains:
        for unit in chain.units:
            if unit.kind == "linear":
                yield "n" if unit is chain.units[0] else "k"
            else:
                yield "h" if unit.kind == "attention" else "c"


def _megatron(task: _BaselineTask) -> Iterator[_MethodSetting]:
    wafer = task.wafer
    for tp in (4, 8):
        for (dp, width, height), samples in product(_consecutive(wafer, tp), (1, 2, 4)):
            microbatch = dp * samples
            digits = digit_systems(width, height)[-1]
            outer = _data_digits(digits, tp)
            if microbatch > task.batch or outer is None:
                continue
            most = (wafer.columns // width) * (wafer.rows // height)
            block, rectangles = task.block(microbatch), _row_major(wafer, width, height, most)
            codes = ["".join("b" if d else tag for d in outer) for tag in _tp_tags(block)]
            for sequence_parallel, policy in product((True, False), POLICIES):
                tag = "s" if sequence_parallel else "r"
                stream = "".join("b" if d else tag for d in outer)
                words = (
                    f"tensor {tp} x pipeline {most} x data {dp}, microbatch {microbatch}, "
                    f"{'sequence parallel, ' if sequence_parallel else ''}"
                    f"{'no' if policy == 'none' else policy} recomputation"
                )
                genes = _block_mapping(block, stream, codes, "optimizer", policy)
                mapping = task.mapping(rectangles, digits, microbatch, genes, False)
                plain = tp == 8 and policy == "full" and not sequence_parallel
                kind = f"{policy} recomputation"
                yield _MethodSetting(words, mapping, kind, most if plain else None)


def _consecutive(wafer: Wafer, tp: int) -> Iterator[tuple[int, int, int]]:
    """Yield (dp, width, height) of groups of ranks along rows, tp innermost, then dp."""
    if tp > wafer.columns:
        return
    across = wafer.columns // tp
    for dp in range(1, across * wafer.rows + 1):
        if dp <= across and across % dp == 0:
            yield dp, dp * tp, 1
        elif dp % across == 0 and wafer.rows % (dp // across) == 0:
            yield dp, across * tp, dp // across


def _data_digits(digits: Digits, tp: int) -> list[bool] | None:
    """Return which digits are data parallel if the innermost of x are tensor parallel."""
    outer = [True] * digits.count
    for i in reversed(range(len(digits.x))):
        if tp == 1:
            break
        if tp % digits.x[i]:
            return None
        tp //= digits.x[i]
        outer[i] = False
    return outer if tp == 1 else None


def _row_major(wafer: Wafer, width: int, height: int, stages: int) -> tuple[Rectangle, ...]:
    """Return stages in the order of rank numbers, ignoring the mesh."""
    across = wafer.columns // width
    return tuple(
        Rectangle(i % across * width, i // across * height, width, height) for i in range(stages)
    )


def _deepspeed(task: _BaselineTask) -> Iterator[_MethodSetting]:
    for (width, height, stages), samples in product(_replicas(task.wafer, task.batch), (1, 2)):
        dies = width * height
        microbatch = dies * samples
        if microbatch > task.batch and samples > 1:
            continue
        block, digits = task.block(microbatch), digit_systems(width, height)[0]
        rectangles = _row_major(task.wafer, width, height, stages)
        code = "b" * digits.count
        for stage, home in enumerate(("optimizer", "gradients", "weights"), start=1):
            genes = _block_mapping(block, code, (code,) * len(block.units), home)
            fixed = stage if stage > 1 and stages == 1 else None
            for streaming in (True, False):
                words = (
                    f"ZeRO-{stage}, data {dies} x pipeline {stages}, microbatch {microbatch}"
                    f"{'' if streaming else ', blocking'}"
                )
                mapping = task.mapping(rectangles, digits, microbatch, genes, streaming)
                yield _MethodSetting(words, mapping, f"ZeRO-{stage}", fixed)


def _replicas(wafer: Wafer, batch: int) -> Iterator[tuple[int, int, int]]:
    """Yield (columns, rows, stages) of dp groups in pipelines; and the largest fed group."""
    shapes = [(w, h) for w in range(1, wafer.columns + 1) for h in range(1, wafer.rows + 1)]
    sampled_shapes = [(w, h) for w, h in shapes if w * h <= batch]
    for width, height in sampled_shapes:
        stages = wafer.dies // (width * height)
        if wafer.columns % width == 0 and wafer.rows % height == 0 and stages <= 16:
            yield width, height, stages
    most = max(w * h for w, h in sampled_shapes)
    if most < wafer.dies:
        yield from ((w, h, 1) for w, h in sampled_shapes if w * h == most)


def _weight_streaming(task: _BaselineTask) -> Iterator[_MethodSetting]:
    wafer = task.wafer
    digits = digit_systems(wafer.columns, wafer.rows)[0]
    rectangle = (Rectangle(0, 0, wafer.columns, wafer.rows),)
    for microbatch in sorted({1, 2, 4, 8, 16, 32, 64, task.batch}):
        if microbatch > task.batch:
            continue
        block = task.block(microbatch)
        code = _tags(["I"] * digits.count, block, digits)
        genes = _block_mapping(block, code, (code,) * len(block.units), "external")
        mapping = task.mapping(rectangle, digits, microbatch, genes, True)
        yield _MethodSetting(f"rows of the batch on all dies, microbatch {microbatch}", mapping)


# --- AccPar ---------------------------------------------------------------------------------------


def _accpar(task: _BaselineTask) -> Iterator[_MethodSetting]:
    """Yield partition types chosen by communication volume alone (Song et al., HPCA 2020)."""
    wafer, batch = task.wafer, task.batch
    grid_rows = wafer.rows, wafer.rows - wafer.rows % 2 or 1
    grid_columns = wafer.columns, wafer.columns - wafer.columns % 2 or 1
    microbatches = sorted({1, 2, 4, 8, 16, 32, 64, 128, batch})
    for rows, columns, microbatch in product(grid_rows, grid_columns, microbatches):
        if microbatch > batch:
            continue
        block, digits = task.block(microbatch), digit_systems(columns, rows)[0]
        genes = _block_mapping(block, *_accpar_codes(block, digits), "replicated")
        rectangle = (Rectangle(0, 0, columns, rows),)
        mapping = task.mapping(rectangle, digits, microbatch, genes, False)
        words = f"{rows} x {columns} dies, microbatch {microbatch}, types {'/'.join(genes.codes)}"
        yield _MethodSetting(words, mapping, fixed=1 if microbatch == batch else None)


TYPES = ("I", "II", "III")


def volume_between(previous: str, following: str, feature: float, error: float) -> float:
    """Return the elements that move between two layers at an equal bipartition. At each, a layer
    takes type I (rows of its input), II (its inputs' columns) or III (its outputs' columns); F is
    the feature map and E the error tensor (previous type in rows, next in columns):

                I             II            III
        I       0             (F+E)/4       F/2
        II      E/2           E/2           0
        III     (F+E)/4       0             F/2
    """
    table = {
        ("I", "I"): 0.0, ("I", "II"): (feature + error) / 4, ("I", "III"): feature / 2,
        ("II", "I"): error / 2, ("II", "II"): error / 2, ("II", "III"): 0.0,
        ("III", "I"): (feature + error) / 4, ("III", "II"): 0.0, ("III", "III"): feature / 2,
    }  # fmt: skip
    return table[previous, following]


def _volume_within(kind: str, weight: float, inputs: float, outputs: float) -> float:
    """Return what moves in a layer: weight gradient, output, or gradient of the input."""
    return {"I": weight, "II": outputs, "III": inputs}[kind]


def _accpar_codes(block: WaferBlock, digits: Digits) -> tuple[str, list[str]]:
    """Return the stream's layout and a code per operator."""
    linear = [unit for unit in block.units if unit.kind == "linear"]
    weights = [float(unit.parameters) for unit in linear]
    rows = float(block.microbatch * block.sequence)
    inputs = [rows * unit.sizes["k"] for unit in linear]
    outputs = [rows * unit.sizes["n"] for unit in linear]
    types_by_layer: list[list[str]] = [[] for _ in linear]
    for radix in digits.radix.tolist():
        for i, kind in enumerate(_cheapest_types(weights, inputs, outputs)):
            types_by_layer[i].append(kind)
            inputs[i] /= 1 if kind == "III" else radix
            outputs[i] /= 1 if kind == "II" else radix
            weights[i] /= 1 if kind == "I" else radix
    linear_codes = [_tags(types, block, digits) for types in types_by_layer]
    codes: list[str] = []
    layers = iter(linear_codes)
    for unit in block.units:
        if unit.kind == "linear":
            written = next(layers)
            codes.append(written)
        else:
            # The operator after a weighted layer has the layout of its output.
            columns = "h" if unit.kind == "attention" else "c"
            codes.append(written.replace("n", columns).replace("k", columns))
    return linear_codes[0].replace("k", "c").replace("n", "r"), codes


def _cheapest_types(
    weights: list[float], inputs: list[float], outputs: list[float]
) -> tuple[str, ...]:
    """Return the types with the least volume; the last layer's output feeds the first."""
    closed: list[tuple[float, tuple[str, ...]]] = []
    for first in TYPES:
        start = _volume_within(first, weights[0], inputs[0], outputs[0])
        best_by_type: dict[str, tuple[float, tuple[str, ...]]] = {first: (start, (first,))}
        for i in range(1, len(weights)):
            best_by_type = {
                kind: min(
                    (
                        volume
                        + volume_between(previous, kind, inputs[i], inputs[i])
                        + _volume_within(kind, weights[i], inputs[i], outputs[i]),
                        (*path, kind),
                    )
                    for previous, (volume, path) in best_by_type.items()
                )
                for kind in TYPES
            }
        for last, (volume, path) in best_by_type.items():
            closed.append((volume + volume_between(last, first, inputs[0], inputs[0]), path))
    return min(closed)[1]


def _tags(types: list[str], block: WaferBlock, digits: Digits) -> str:
    """Return the code of types: type I cuts samples while enough are left, then the sequence."""
    left = block.microbatch
    tags = []
    for kind, radix in zip(types, (int(r) for r in digits.radix), strict=True):
        if kind == "I" and left % radix == 0:
            left //= radix
            tags.append("b")
        else:
            tags.append({"I": "s", "II": "k", "III": "n"}[kind])
    return "".join(tags)


_METHODS = {
    "accpar": _accpar,
    "deepspeed": _deepspeed,
    "megatron": _megatron,
    "weight-streaming": _weight_streaming,
}
NAMES = tuple(_METHODS)
