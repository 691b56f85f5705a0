"""A model from an `atoll-model` file: reading, checking, and one device's share of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.base.errors import AtollError, check_count
from atoll.files.atomic_file import atomic_files, check_place
from atoll.files.yamlfile import validate_dict
from atoll.workload.families.model_config import ModelConfig
from atoll.workload.graph.layer import Layer, Model
from atoll.workload.graph.operator import (
    CollectiveKind,
    EagerSteps,
    Matmul,
    Operator,
    Region,
    Role,
    Tensor,
    TensorCollective,
    Uneven,
    VectorWork,
    once,
)

if TYPE_CHECKING:  # only models from files need these
    from atoll.workload.modelfile import LayerEntry, ModelFile, OperatorEntry, TensorEntry

_MOST_OPERATORS = 256
"""In one pass of a layer: what the schedule's compiled bounds take."""


@dataclass(frozen=True)
class StoredModel:
    """A model whose layers come from a file instead of a builder."""

    name: str
    file: ModelFile

    @property
    def sequence(self) -> int:
        """Tokens in a sample."""
        return self.file.sequence

    def save(self, path: str | Path) -> Path:
        """Write the file that `--model` and `model=` take.

        Args:
            path: The file.

        Returns:
            The file.

        Raises:
            AtollError: It cannot be written there.

        Examples:
            >>> import atoll, torch
            >>> module = torch.nn.Linear(64, 64)
            >>> file = atoll.capture(module, torch.empty(1, 64)).save("linear.json")
            >>> atoll.describe_model("linear.json").parameters
            4160
        """
        from atoll.workload.modelfile import FORMAT, VERSION

        head = {"format": FORMAT, "version": VERSION}
        text = json.dumps(self.file.model_dump(exclude_defaults=True) | head)
        # At once, or not at all; defaults are left out.
        with atomic_files(_write_error(path), Path(path)) as (part,):
            part.write_text(text + "\n", encoding="utf-8")
        return Path(path)

    @cached_property
    def fused_layers(self) -> tuple[LayerEntry, ...]:
        """The layers with fused attention wherever attention is recognised."""
        from atoll.workload.attention_pattern import with_fused_attention

        return tuple(with_fused_attention(layer) for layer in self.file.layers)

    @property
    def layers(self) -> int:
        """Layers in the chain, repeats included."""
        return sum(layer.repeat for layer in self.file.layers)


def model_warnings(model: ModelConfig | StoredModel) -> tuple[str, ...]:
    """What a captured model may have counted wrongly, or a configuration says that is not modelled,
    each a clause behind the model's name."""
    clauses = model.file.warnings if isinstance(model, StoredModel) else model.not_modelled
    return tuple(f"{model.name}: {words}" for words in clauses)


def is_stored(contents: object) -> bool:
    """Whether JSON data claim to be an atoll-model file."""
    return isinstance(contents, dict) and "format" in contents and "model_type" not in contents


def read_stored(contents: dict[str, Any], where: str, name: str | None = None) -> StoredModel:
    """Check the contents of a file; every problem is a sentence."""
    from atoll.workload.modelfile import FORMAT, VERSION, ModelFile

    if contents.get("format") != FORMAT:
        raise AtollError(
            f"{where}: format is {contents.get('format')!r}, but only {FORMAT!r} files and "
            "Hugging Face configurations are known"
        )
    version = contents.get("version")
    if version != VERSION:
        raise AtollError(f"{where}: version is {version!r}, but this Atoll reads version {VERSION}")
    file = validate_dict(contents, ModelFile, where)
    return StoredModel(name or file.name, file)


def _write_error(path: str | Path) -> Callable[[str], str]:
    return lambda why: f"{path}: cannot be written ({why})"


def check_target(path: str | Path) -> None:
    """Refuse a place where no file can be written, before the work of making one."""
    check_place(_write_error(path), Path(path))


def stored_widths(stored: StoredModel, candidates: Iterable[int]) -> tuple[int, ...]:
    """Return the candidates that are valid tensor-parallel widths of the model, in order."""
    if not stored.file.tensor_parallel:
        return tuple(t for t in candidates if t == 1)
    return tuple(t for t in candidates if t >= 1 and _obstacle(stored.file, t) is None)


def _obstacle(file: ModelFile, tp: int) -> str | None:
    """The first tensor that the width does not divide."""
    for layer in file.layers:
        for name, tensor in layer.tensors.items():
            if (split := tensor.split) is None:
                continue
            units = _evaluated(split.units, 1)
            shared = split.uneven == "replicate" and tp % units == 0
            if units % tp and split.uneven != "pad" and not shared:
                where = f"tensor {name} in layer {layer.name}"
                return f"the {units} units (heads or columns) of {where}"
    return None


def _evaluated(size: int | str, microbatch: int) -> int:
    from atoll.workload.modelfile import evaluated_size

    return evaluated_size(size, microbatch)


@dataclass(frozen=True, slots=True)
class _Share:
    """Parameters of one device's share of a layer."""

    microbatch: int
    tp: int
    vocabularies: frozenset[int]
    """Sizes that are padded on every device to a multiple of `unit`."""
    unit: int

    def size(self, size: int | str) -> int:
        return _evaluated(size, self.microbatch)

    def part(self, size: int) -> int:
        """Return a device's part of a size; vocabularies are padded."""
        unit = self.unit if size in self.vocabularies else 1
        return -(-size // (self.tp * unit)) * unit


def instantiate(
    stored: StoredModel,
    microbatch: int,
    sequence: int | None = None,
    tp: int = 1,
    *,
    vocabulary_unit: int = 1,
    attention: str = "unfused",
) -> Model:
    """One device's share of one microbatch, unfused; its part of the vocabulary (of every look-up
    table that tensor parallelism divides, and of its tied or own head) padded to whole units.
    With "flash", attention that the module computes step by step is one operator."""
    file = stored.file
    check_count(f"{stored.name}: microbatch", microbatch)
    for reason in _refusals(file, microbatch, sequence, tp):
        raise AtollError(f"{stored.name}: {reason}")
    vocabularies = _vocabularies(file) if vocabulary_unit > 1 else frozenset()
    share = _Share(microbatch, tp, vocabularies, vocabulary_unit)
    entries = stored.fused_layers if attention == "flash" else file.layers
    layers = tuple((_layer(entry, share), entry.repeat) for entry in entries)
    sizes = {name: tensor.elements for layer, _ in layers for name, tensor in layer.tensors.items()}
    return Model(
        name=stored.name,
        layers=layers,
        microbatch=microbatch,
        sequence=file.sequence,
        tensor_parallel=tp,
        shared_parameters=sum(sizes[name] * (n - 1) for name, n in file.shared.items()),
    )


def _refusals(file: ModelFile, microbatch: int, sequence: int | None, tp: int) -> Iterator[str]:
    if sequence is not None and sequence != file.sequence:
        yield (
            f"sequence is {sequence}, but the file holds the model at {file.sequence}; capture it "
            "again with inputs of that length"
        )
    if file.microbatch is not None and microbatch != file.microbatch:
        yield (
            f"microbatch is {microbatch}, but the file holds the model at {file.microbatch} "
            "samples only"
        )
    if tp != 1 and not file.tensor_parallel:
        yield (
            f"tensor_parallel is {tp}, but the file says nothing about how to divide its "
            "tensors; only width 1 is possible"
        )
    if tp != 1 and (obstacle := _obstacle(file, tp)) is not None:
        yield f"tensor_parallel is {tp}, but does not divide {obstacle}"


def _vocabularies(file: ModelFile) -> frozenset[int]:
    """Rows of the look-up tables that may be padded."""
    sizes = set()
    for layer in file.layers:
        if not any(op.kind == "lookup" for op in layer.forward):
            continue
        for tensor in layer.tensors.values():
            split = tensor.split
            if tensor.role == "weight" and split is not None and split.uneven == "pad":
                sizes.add(_evaluated(tensor.shape[split.dim], 1))
    return frozenset(sizes)


def check_size(model: Model) -> Model:
    """Refuse a (fused) model with a layer that is too long to be scheduled."""
    for layer, _ in model.layers:
        longest = max(len(layer.forward), len(layer.backward))
        if longest > _MOST_OPERATORS:
            raise AtollError(
                f"{model.name}: layer {layer.name} has {longest} operators in one pass, but at "
                f"most {_MOST_OPERATORS} can be scheduled; divide it into several modules of a "
                "list, or replace its loop over tokens by an operator over all of them"
            )
    return model


def _layer(entry: LayerEntry, share: _Share) -> Layer:
    width = share.tp
    tensors = {n: _tensor(n, t, share) for n, t in entry.tensors.items()}
    same: dict[str, str] = {}
    if width == 1:  # without a group a sum over it is the summand itself
        for op in reversed((*entry.forward, *entry.backward)):
            if op.collective is not None:
                same[op.reads[0]] = same.get(op.writes[0], op.writes[0])

    def operators(entries: tuple[OperatorEntry, ...]) -> tuple[Operator, ...]:
        active = (op for op in entries if width > 1 or op.collective is None)
        return tuple(_operator(op, tensors, same, share) for op in active)

    input_, *more_inputs = (same.get(n, n) for n in entry.inputs)
    output, *more_outputs = (same.get(n, n) for n in entry.outputs)
    distinct = {name: t for name, t in tensors.items() if name not in same}
    passes = operators(entry.forward), operators(entry.backward)
    more = tuple(more_inputs), tuple(more_outputs)
    return Layer(entry.name, distinct, *passes, input_, output, *more)


def _tensor(name: str, entry: TensorEntry, share: _Share) -> Tensor:
    shape = [share.size(n) for n in entry.shape]
    split = entry.split
    role = Role(entry.role)
    if split is None:
        return Tensor(name, tuple(shape), entry.element_bytes, role)
    units, full, size = share.size(split.units), shape[split.dim], entry.element_bytes
    if units % share.tp and split.uneven == "replicate":
        shape[split.dim] = full // units
    else:
        shape[split.dim] = share.part(full) if split.uneven == "pad" else -(-full // share.tp)
    units, uneven = max(1, units // share.tp), Uneven(split.uneven)
    return Tensor(name, tuple(shape), size, role, Region.TENSOR, split.dim, units, uneven)


def _operator(
    entry: OperatorEntry, tensors: dict[str, Tensor], same: dict[str, str], share: _Share
) -> Operator:
    width = share.tp
    collective = None
    if entry.collective is not None:
        size = max(tensors[n].bytes for n in (*entry.reads, *entry.writes))
        collective = TensorCollective(CollectiveKind(entry.collective), size, width)
    padded = any(tensors[n].uneven is Uneven.PAD for n in (*entry.reads, *entry.writes))

    def part(size: int) -> int:
        return share.part(size) if padded else -(-size // width)

    matmuls = []
    for m in entry.matmuls:
        dims = {d: share.size(getattr(m, d)) for d in ("batch", "m", "n", "k")}
        if m.split == "batch":  # heads that are too few are shared, and their rows divided
            common = gcd(dims["batch"], width)
            dims["batch"] //= common
            dims["m"] = -(-dims["m"] * common // width)
        elif m.split:
            dims[m.split] = part(dims[m.split])
        matmuls.append(Matmul(**dims, fraction=m.fraction, split=m.split))
    vectors = []
    for v in entry.vectors:
        rows, cols = share.size(v.rows), share.size(v.cols)
        rows = -(-rows // width) if v.split == "rows" else rows
        cols = part(cols) if v.split == "cols" else cols
        region = Region.TENSOR if v.split else Region.UNDIVIDED
        vectors.append(VectorWork(v.function, rows, cols, region))
    steps = []
    for function, step in entry.steps.items():
        device_bytes = -(-sum(map(share.size, step.divided)) // width)
        device_bytes += sum(map(share.size, step.bytes))
        steps.append(EagerSteps(function, step.kernels, device_bytes))
    return Operator(
        name=entry.name,
        kind=entry.kind,
        reads=once(same.get(n, n) for n in entry.reads),
        writes=once(same.get(n, n) for n in entry.writes),
        matmuls=tuple(matmuls),
        vectors=tuple(vectors),
        collective=collective,
        on_chip=entry.on_chip,
        steps=tuple(steps),
    )
