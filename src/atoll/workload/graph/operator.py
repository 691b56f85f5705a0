"""Operators: what one device computes, moves and communicates, free of any hardware.

An operator is described by the work in it, not by its name: matrix products, passes of a vector
function over rows, and one collective at most. Fusing two operators is then the union of their
work minus the tensors that no longer leave the chip, and every cost model reads the same fields.
Dependencies are never stored: an operator depends on whoever writes a tensor that it reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, prod
from typing import Protocol, TypeVar


class _Named(Protocol):
    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=_Named)
Names = tuple[str, ...]


def once(names: Iterable[str]) -> Names:
    """Remove repeated names, keeping the first of each."""
    return tuple(dict.fromkeys(names))


def single(operators: Iterable[N]) -> N | None:
    """Return the one operator by name; None where there are none or several."""
    by_name = {op.name: op for op in operators}
    return by_name.popitem()[1] if len(by_name) == 1 else None


def replaced(
    operators: Sequence[N], old: Iterable[N], new: N, first: bool = False
) -> tuple[N, ...]:
    """Replace operators by one at the position of the last (or first) of them."""
    names = {op.name for op in old}
    places = [i for i, op in enumerate(operators) if op.name in names]
    at = places[0] if first else places[-1]
    kept = (i for i, op in enumerate(operators) if i == at or op.name not in names)
    return tuple(new if i == at else operators[i] for i in kept)


class Core(StrEnum):
    """The part of the chip that an operator occupies while it runs."""

    TENSOR = "tensor"
    VECTOR = "vector"
    PAIR = "pair"  # fused: tensor cores feed vector cores
    LINK = "link"  # a collective: the device's network port
    NONE = "none"  # moves bytes at most (embedding look-up, copies)


class Role(StrEnum):
    ACTIVATION = "activation"
    WEIGHT = "weight"
    WEIGHT_GRADIENT = "weight_gradient"
    ACTIVATION_GRADIENT = "activation_gradient"


class Region(StrEnum):
    """How a dimension of a tensor or a product is divided under tensor parallelism.

    TENSOR dimensions (heads, columns of the first linear, vocabulary) are divided by the tensor
    width always; SEQUENCE dimensions (tokens of the residual stream, norms) are divided only when
    sequence parallelism is on; UNDIVIDED dimensions never.
    """

    UNDIVIDED = "whole"
    TENSOR = "tensor"
    SEQUENCE = "sequence"


class Uneven(StrEnum):
    """What happens to a TENSOR dimension whose units the tensor width does not divide."""

    REFUSE = "refuse"  # query heads, feed-forward columns: no such layout exists
    REPLICATE = "replicate"  # fewer key/value heads than devices: each head lives on several
    PAD = "pad"  # vocabulary rows: rounded up to the next multiple of the width


class CollectiveKind(StrEnum):
    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named array on one device.

    `split` is the region of dimension `split_dim`: the dimension that tensor (or sequence)
    parallelism divides; the other dimensions are whole. That dimension holds `units` pieces that
    stay in one place (attention heads; 0: every element is a piece of its own), and `uneven` says
    what to do when the width does not divide them.
    """

    name: str
    shape: tuple[int, ...]
    element_bytes: float
    """Including the share of a block scale, so that it may be fractional."""
    role: Role
    split: Region = Region.UNDIVIDED
    split_dim: int = 0
    units: int = 0
    uneven: Uneven = Uneven.REFUSE

    def like(self, name: str, role: Role) -> Tensor:
        """Copy with another name and role; faster than `replace`, as graphs make many."""
        return Tensor(
            name, self.shape, self.element_bytes, role, self.split, self.split_dim, self.units,
            self.uneven,
        )  # fmt: skip

    def part(self, shape: tuple[int, ...], units: int) -> Tensor:
        """Copy with another shape and number of units."""
        return Tensor(
            self.name, shape, self.element_bytes, self.role, self.split, self.split_dim, units,
            self.uneven,
        )  # fmt: skip

    @property
    def rows(self) -> int:
        """All dimensions but the last, as one."""
        return prod(self.shape[:-1])

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return ceil(self.elements * self.element_bytes)


@dataclass(frozen=True, slots=True)
class Matmul:
    """`batch` independent products of (m x k) by (k x n).

    `fraction` is the share of output tiles that must be computed (causal attention that skips
    masked tiles: about one half). `split` says which of "batch", "m", "n", "k" the tensor width
    divides ("" for none).
    """

    batch: int
    m: int
    n: int
    k: int
    fraction: float = 1.0
    split: str = ""

    @property
    def flops(self) -> int:
        """Multiply-adds counted as two, masked tiles included (the usual convention)."""
        return 2 * self.batch * self.m * self.n * self.k


@dataclass(frozen=True, slots=True)
class VectorWork:
    """One pass of `function` over `rows` rows of `cols` elements; rows are independent.

    `function` names an entry of the vector cost table (for example "layernorm", "gelu_bwd").
    `split` is the region that divides the rows (TENSOR also stands for a division of columns:
    only the element count matters to the rows of an element-wise function).
    """

    function: str
    rows: int
    cols: int
    split: Region = Region.UNDIVIDED

    def sized(self, rows: int, cols: int) -> VectorWork:
        """Copy with another size."""
        return VectorWork(self.function, rows, cols, self.split)

    def by(self, function: str) -> VectorWork:
        """Copy with another function."""
        return VectorWork(function, self.rows, self.cols, self.split)

    @property
    def elements(self) -> int:
        return self.rows * self.cols


def pass_over(function: str, tensor: Tensor) -> VectorWork:
    """One pass of a function over a tensor."""
    return VectorWork(function, tensor.rows, tensor.shape[-1], tensor.split)


@dataclass(frozen=True, slots=True)
class TensorCollective:
    """A collective over the tensor-parallel group. `bytes` is the full (gathered) tensor."""

    kind: CollectiveKind
    bytes: int
    group: int


@dataclass(frozen=True, slots=True)
class EagerSteps:
    """Kernels of one vector function when each step of an operator runs as its own kernel, and
    their HBM bytes."""

    function: str
    kernels: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Operator:
    """One node of a layer's graph.

    `on_chip` marks operators whose products never spill operands to HBM (flash attention): their
    HBM traffic is what they read and write, not what a matrix mapper would move.

    `enters` and `exits` mark where tensor parallelism begins and ends (the conjugate operators f
    and g of Megatron-LM, arXiv:1909.08053, section 3): the reads in `enters` must be whole on every
    device, so their gradients are partial sums; an operator that `exits` writes a partial sum as
    its first output, complete only after a reduction over the group.
    """

    name: str
    kind: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    matmuls: tuple[Matmul, ...] = ()
    vectors: tuple[VectorWork, ...] = ()
    collective: TensorCollective | None = None
    on_chip: bool = False
    enters: tuple[str, ...] = ()
    exits: bool = False
    steps: tuple[EagerSteps, ...] = ()
    """Eager kernels of a captured operator."""

    @property
    def core(self) -> Core:
        if self.collective is not None:
            return Core.LINK
        if self.matmuls:
            return Core.PAIR if self.vectors else Core.TENSOR
        return Core.VECTOR if self.vectors else Core.NONE

    @property
    def flops(self) -> int:
        """Matrix-product FLOPs."""
        return sum(product.flops for product in self.matmuls)

    @property
    def weighs(self) -> bool:
        """Whether it computes a weight gradient, which a pipeline schedule may delay."""
        named = self.kind == "linear_grad" and self.name.endswith(".wgrad")
        return self.kind == "linear_wgrad" or named
