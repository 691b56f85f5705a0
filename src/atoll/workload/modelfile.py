"""The `atoll-model` file: a model as layers of operators, written by `atoll capture` or any tool.

The schema is these classes (docs/capture.md shows it). A size is a whole number, or the text
"K*microbatch" where it grows with the number of samples in a microbatch, or "K*microbatch/D", which
is rounded up (rows dealt out to D experts). Both passes are written
out, at tensor-parallel width 1 and with every collective that a wider layout needs: at width 1
these fall away.
"""

from __future__ import annotations

import re
from math import prod
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from atoll.files.yamlfile import FileModel
from atoll.workload.families.config_fields import MOST, MOST_LAYERS

FORMAT = "atoll-model"
VERSION = 1

_NUMBER = "([1-9][0-9]{0,14})"
_SIZE = re.compile(rf"(?:(?:{_NUMBER}\*)?microbatch|{_NUMBER})(?:/{_NUMBER})?")
LARGEST_SIZE = 10**15 - 1
MOST_ELEMENTS = 2**60
"""Of one tensor, at one sample."""


def _size(value: object) -> object:
    number = isinstance(value, int) and not isinstance(value, bool)
    if not number and not (isinstance(value, str) and _SIZE.fullmatch(value)):
        raise ValueError(f"expected a whole number or 'K*microbatch', got {value!r}")
    if isinstance(value, int) and value < 1:
        raise ValueError(f"expected at least 1, got {value}")
    if isinstance(value, int) and value > LARGEST_SIZE:
        raise ValueError(f"expected at most {LARGEST_SIZE}, got {value}")
    return value


Number = Annotated[int, Field(ge=1, le=MOST)]
Size = Annotated[int | str, BeforeValidator(_size)]


def evaluated_size(size: int | str, microbatch: int) -> int:
    """A size for a number of samples in a microbatch."""
    if isinstance(size, int):
        return size
    match = _SIZE.fullmatch(size)
    assert match is not None  # checked on load
    size_ = int(match[2]) if match[2] else int(match[1] or 1) * microbatch
    return -(-size_ // int(match[3] or 1))


Uneven = Literal["refuse", "replicate", "pad"]
Role = Literal["activation", "weight", "weight_gradient", "activation_gradient"]
ProductSplit = Literal["", "batch", "m", "n", "k"]
PassSplit = Literal["", "rows", "cols"]


class SplitEntry(FileModel):
    """How tensor parallelism divides a tensor: dimension `dim` holds `units` pieces that stay
    whole (heads; columns); `replicate` allows widths beyond their number, `pad` any width."""

    dim: Annotated[int, Field(ge=0)]
    units: Size
    uneven: Uneven = "refuse"


class TensorEntry(FileModel):
    shape: tuple[Size, ...]
    element_bytes: Annotated[int, Field(ge=1, le=16)] = 2
    role: Role = "activation"
    split: SplitEntry | None = None

    @model_validator(mode="after")
    def _dimension_exists(self) -> TensorEntry:
        if prod(evaluated_size(size, 1) for size in self.shape) > MOST_ELEMENTS:
            raise ValueError(f"more than {MOST_ELEMENTS:,} elements")
        if self.split is not None and self.split.dim >= len(self.shape):
            raise ValueError(
                f"split.dim is {self.split.dim}, but the shape has {len(self.shape)} dimensions"
            )
        return self


class MatmulEntry(FileModel):
    """`batch` products of (m x k) by (k x n); `fraction` of the output tiles is computed; `split`
    is the dimension that the tensor width divides."""

    batch: Size = 1
    m: Size
    n: Size
    k: Size
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    split: ProductSplit = ""


class VectorEntry(FileModel):
    """One pass of a vector function over rows x cols elements."""

    function: str
    rows: Size
    cols: Size
    split: PassSplit = ""


class StepsEntry(FileModel):
    """Kernels of one vector function where every step of an operator runs alone, and the bytes
    that they move: a sum of sizes, of which `divided` ones are shared by the tensor group."""

    kernels: Number
    bytes: tuple[Size, ...] = ()
    divided: tuple[Size, ...] = ()


class OperatorEntry(FileModel):
    name: str
    kind: str = "operator"
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    matmuls: tuple[MatmulEntry, ...] = ()
    vectors: tuple[VectorEntry, ...] = ()
    collective: Literal["all_reduce", "all_gather", "reduce_scatter"] | None = None
    on_chip: bool = False
    causal: bool = False
    """Of attention's softmax where scores are masked: every row sees only what is before it."""
    steps: dict[str, StepsEntry] = Field(default_factory=dict)
    """By vector function ("copy" for none), how an eager framework runs the operator."""


class LayerEntry(FileModel):
    name: str
    repeat: Annotated[int, Field(ge=1, le=MOST_LAYERS)] = 1
    inputs: Annotated[tuple[str, ...], Field(min_length=1)]
    outputs: Annotated[tuple[str, ...], Field(min_length=1)]
    tensors: dict[str, TensorEntry]
    forward: tuple[OperatorEntry, ...]
    backward: tuple[OperatorEntry, ...]

    @model_validator(mode="after")
    def _names_are_declared(self) -> LayerEntry:
        for name in (*self.inputs, *self.outputs):
            if name not in self.tensors:
                raise ValueError(f"layer {self.name}: tensor {name!r} is not declared in tensors")
        written: set[str] = set()
        later = {n for op in (*self.forward, *self.backward) for n in op.writes}
        for which, operators in (("forward", self.forward), ("backward", self.backward)):
            names: set[str] = set()
            for op in operators:
                where = f"layer {self.name}, {which} operator {op.name}"
                if op.name in names:
                    raise ValueError(f"{where}: the name is used twice")
                names.add(op.name)
                for tensor in (*op.reads, *op.writes):
                    if tensor not in self.tensors:
                        raise ValueError(f"{where}: tensor {tensor!r} is not declared in tensors")
                for tensor in op.reads:
                    if tensor in later and tensor not in written and tensor not in self.inputs:
                        raise ValueError(f"{where}: reads {tensor!r} before it is written")
                for tensor in op.writes:
                    if tensor in written:
                        raise ValueError(f"{where}: writes {tensor!r}, which is written before")
                if op.collective and (len(op.reads), len(op.writes)) != (1, 1):
                    raise ValueError(f"{where}: a collective reads one tensor and writes one")
                written.update(op.writes)
        return self


class ModelFile(FileModel):
    """A whole model: a chain of layers."""

    format: Literal["atoll-model"]
    version: Literal[1]
    name: str
    sequence: Number
    """Tokens of one sample (1 where a sample is one thing): what throughput is counted in."""
    microbatch: Number | None = None
    """Set where the sizes hold for this number of samples only."""
    layers: Annotated[tuple[LayerEntry, ...], Field(min_length=1)]
    shared: dict[str, Annotated[int, Field(ge=2, le=MOST_LAYERS)]] = Field(default_factory=dict)
    """Weights that several layers (or repeats) hold in common, and how many hold them."""
    tensor_parallel: bool = False
    """Whether the splits are filled in; without, only width 1 is possible."""
    kernels: Literal["fused", "eager"] = "fused"
    """Vector operators as a fusing compiler runs them, or one kernel each as eager PyTorch does."""
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """What the file may have counted wrongly; every answer that uses it repeats them."""

    @model_validator(mode="after")
    def _weights_exist(self) -> ModelFile:
        tensors = (item for layer in self.layers for item in layer.tensors.items())
        weights = {name for name, tensor in tensors if tensor.role == "weight"}
        for name in self.shared:
            if name not in weights:
                raise ValueError(f"shared: {name!r} is no weight of any layer")
        if not weights:
            raise ValueError("no layer has a tensor with role weight: nothing to train")
        return self
