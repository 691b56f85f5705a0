"""Writing down a forward graph: tensors and operators in the order in which they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from atoll.workload.families.model_config import ModelConfig
from atoll.workload.graph.operator import (
    Names,
    Operator,
    Region,
    Role,
    Tensor,
    Uneven,
    VectorWork,
    pass_over,
)
from atoll.workload.graph.products import linear_product

HALF = 2  # bytes of a bfloat16 element
FLOAT = 4
INDEX = 4
TOKEN = 8  # token ids and labels come as 64-bit integers
MASK = 1  # a dropout mask keeps one byte an element (Korthikanti et al., arXiv:2205.05198)


class GraphBuilder:
    """The forward graph of one layer while it is written.

    Activations of the residual stream are (batch, sequence, hidden) in the SEQUENCE region. All
    names get the `prefix` of the block that is being written, and weights that of their `owner` as
    well: weights of one name in two layers are one weight.
    """

    def __init__(self, config: ModelConfig, microbatch: int, sequence: int) -> None:
        self.config = config
        self.microbatch = microbatch
        self.sequence = sequence
        self.prefix = ""
        self.owner = ""
        self.more_inputs: tuple[str, ...] = ()
        self.more_outputs: tuple[str, ...] = ()
        self.tensors: dict[str, Tensor] = {}
        self.operators: list[Operator] = []

    @property
    def tokens(self) -> int:
        return self.microbatch * self.sequence

    @property
    def uneven(self) -> Uneven:
        """An image's patches and class token rarely divide evenly: sequence parallelism pads."""
        return Uneven.PAD if self.config.patch_inputs else Uneven.REFUSE

    def prefixed(self, name: str) -> str:
        return name if name.startswith(self.prefix) else f"{self.prefix}{name}"

    def add(
        self,
        name: str,
        shape: tuple[int, ...],
        element_bytes: int = HALF,
        split: Region = Region.UNDIVIDED,
        split_dim: int = 0,
        units: int = 0,
        uneven: Uneven = Uneven.REFUSE,
    ) -> str:
        """An activation."""
        name = self.prefixed(name)
        self.tensors[name] = Tensor(
            name, shape, element_bytes, Role.ACTIVATION, split, split_dim, units, uneven
        )
        return name

    def stream(self, name: str, width: int, element_bytes: int = HALF) -> str:
        """An activation of the residual stream: divided along the sequence, if at all."""
        shape = (self.microbatch, self.sequence, width)
        return self.add(name, shape, element_bytes, Region.SEQUENCE, 1, 0, self.uneven)

    def partial(self, name: str, width: int) -> str:
        """A sum over all tokens that is complete only after a reduction over the group."""
        return self.add(name, (self.microbatch, self.sequence, width))

    def columns(self, name: str, width: int, units: int = 0, uneven: Uneven = Uneven.REFUSE) -> str:
        """An activation inside a tensor-parallel region: divided along its last dimension."""
        shape = (self.microbatch, self.sequence, width)
        return self.add(name, shape, HALF, Region.TENSOR, 2, units, uneven)

    def like(self, name: str, template: str, element_bytes: int = 0) -> str:
        """A tensor of the same shape and layout."""
        t, name = self.tensors[template], self.prefixed(name)
        size = element_bytes or t.element_bytes
        self.tensors[name] = replace(t, name=name, element_bytes=size, role=Role.ACTIVATION)
        return name

    def weight(
        self,
        name: str,
        shape: tuple[int, ...],
        split_dim: int | None = None,
        units: int = 0,
        uneven: Uneven = Uneven.REFUSE,
    ) -> str:
        """A weight, divided by the tensor width along `split_dim`, or whole."""
        region = Region.UNDIVIDED if split_dim is None else Region.TENSOR
        name = f"{self.owner}{self.prefixed(name)}"
        self.tensors[name] = Tensor(
            name, shape, HALF, Role.WEIGHT, region, split_dim or 0, units, uneven
        )
        return name

    def run(self, name: str, kind: str, reads: Names, writes: Names, **work: Any) -> None:
        """Write an operator; `work`: further fields of `Operator`."""
        self.operators.append(Operator(self.prefixed(name), kind, reads, writes, **work))

    def vector(self, function: str, over: str) -> VectorWork:
        return pass_over(function, self.tensors[over])

    def norm(self, name: str, x: str) -> str:
        """LayerNorm or RMSNorm over the last dimension. Its tiny statistics are left out, and so is
        their sum over the group where that dimension is divided."""
        source = self.tensors[x]
        divided = 0 if source.split is Region.TENSOR else None
        shift = self.config.norm == "layernorm" and self.config.norm_bias
        weights = [
            self.weight(f"{name}.{part}", (source.shape[-1],), divided, source.units, source.uneven)
            for part in ("weight", "bias")[: 1 + shift]
        ]
        out = self.like(name, x)
        self.run(name, "norm", (x, *weights), (out,), vectors=(self.vector(self.config.norm, x),))
        return out

    def head_norm(self, name: str, x: str, columns: int, *, scaled: bool = True) -> str:
        """An RMS norm over each head, with one scale for all heads or none."""
        scale = (self.weight(f"{name}.weight", (columns,)),) if scaled else ()
        out = self.like(name, x)
        rows = self.tensors[x].elements // columns
        work = VectorWork("rmsnorm", rows, columns, Region.TENSOR)
        self.run(name, "norm", (x, *scale), (out,), vectors=(work,))
        return out

    def linear(
        self, name: str, x: str, out: str, *, bias: bool, split: str, inside: bool = False
    ) -> str:
        """A linear layer. `split`: "n" column-parallel, "k" row-parallel, "m" by tokens, "" on
        every device."""
        source, target = self.tensors[x], self.tensors[out]
        shape = source.shape[-1], target.shape[-1]
        label, division = f"{name}.weight", {"n": (1, target), "k": (0, source)}.get(split)
        if division is None:
            weight = self.weight(label, shape)
        else:
            weight = self.weight(label, shape, division[0], division[1].units, division[1].uneven)
        biases = self.bias(name, out, split) if bias else ()
        return self.product(name, x, (weight, *biases), (out,), split, inside=inside)

    def bias(self, name: str, out: str, split: str) -> Names:
        t, where = self.tensors[out], 0 if split == "n" else None
        return (self.weight(f"{name}.bias", t.shape[-1:], where, t.units, t.uneven),)

    def product(
        self, name: str, x: str, weights: Names, outs: Names, split: str, *, inside: bool = False
    ) -> str:
        """One product of x with its weights (matrices, then biases) side by side; `inside` a
        tensor-parallel region it neither opens nor closes one (the linears of an expert, the end of
        a parallel branch)."""
        matrices = [t for t in map(self.tensors.__getitem__, weights) if len(t.shape) > 1]
        matmul = linear_product(self.tensors[x], matrices, split)
        region = Region.TENSOR if split == "n" else self.tensors[outs[0]].split
        biased = len(matrices) < len(weights)
        vectors = (VectorWork("bias", matmul.m, matmul.n, region),) if biased else ()
        enters = (x,) if split == "n" and not inside else ()
        exits, reads = split == "k" and not inside, (x, *weights)
        work = {"matmuls": (matmul,), "vectors": vectors}
        self.run(name, "linear", reads, outs, enters=enters, exits=exits, **work)
        return outs[0]

    def joint(
        self, name: str, x: str, parts: Sequence[tuple[str, int, int, Uneven]], *, bias: bool
    ) -> list[str]:
        """Projections of one tensor in one product, cut by heads: (name, columns, heads, and what
        to do where these are too few) of each."""
        hidden = self.tensors[x].shape[-1]
        outs: list[str] = []
        weights: list[str] = []
        biases: list[str] = []
        for part, width, units, uneven in parts:
            weights.append(self.weight(f"{part}.weight", (hidden, width), 1, units, uneven))
            outs.append(self.columns(part, width, units, uneven))
            biases += self.bias(part, outs[-1], "n") if bias else ()
        self.product(name, x, (*weights, *biases), tuple(outs), "n")
        return outs

    def closing(self, name: str, x: str, *, bias: bool, open_end: bool) -> str:
        """The linear that closes a branch; with an `open_end` without its reduction and bias."""
        hidden = self.config.hidden
        if open_end:
            out = self.partial(name, hidden)
            return self.linear(name, x, out, bias=False, split="k", inside=True)
        return self.linear(name, x, self.stream(name, hidden), bias=bias, split="k")

    def cap(self, name: str, x: str, out: str) -> str:
        """c tanh(x / c)."""
        works = tuple(self.vector(function, x) for function in ("mul", "tanh", "mul"))
        self.run(name, "activation", (x,), (out,), vectors=works)
        return out

    def activation(self, name: str, x: str, out: str) -> str:
        """Activation function; over a pair (gate, up) side by side when the layer is gated."""
        function = self.config.activation
        vectors = [self.vector(function, out)]
        if self.tensors[x].shape != self.tensors[out].shape:
            vectors.append(self.vector("mul", out))
        # xIELU learns the slopes of its two sides (arXiv:2411.13010).
        slopes = (self.weight(f"{name}.slopes", (2,)),) if function == "xielu" else ()
        self.run(name, "activation", (x, *slopes), (out,), vectors=tuple(vectors))
        return out

    def gate(self, name: str, x: str, gate: str, function: str = "") -> str:
        """The product of a tensor with an activated gate of its size."""
        out = self.like(name, x)
        functions = (*filter(None, (function,)), "mul")
        vectors = tuple(self.vector(f, x) for f in functions)
        self.run(name, "glu", (x, gate), (out,), vectors=vectors)
        return out

    def dropout(self, name: str, x: str, probability: float) -> str:
        """Dropout with a saved mask; nothing at all when the probability is 0."""
        if not probability:
            return x
        out, mask = self.like(name, x), self.like(f"{name}.mask", x, MASK)
        self.run(name, "dropout", (x,), (out, mask), vectors=(self.vector("dropout", x),))
        return out

    def scale(self, name: str, x: str) -> str:
        """A product with a constant."""
        out = self.like(f"{name}d", x)
        self.run(name, "scale", (x,), (out,), vectors=(self.vector("mul", x),))
        return out

    def residual(self, name: str, branch: str, x: str, out: str) -> str:
        total = self.like(out, x)
        self.run(name, "add", (branch, x), (total,), vectors=(self.vector("add", x),))
        return total

    def reduced_sum(self, name: str, left: str, right: str) -> str:
        """The sum of two partial sums, then the one reduction of both."""
        out, work = self.stream(name, self.tensors[left].shape[-1]), (self.vector("add", left),)
        self.run(name, "add", (left, right), (out,), vectors=work, exits=True)
        return out

    def late_bias(self, name: str, x: str, experts: int = 0) -> str:
        """A bias apart from its linear: one whose output was reduced together with another's, or
        a bias for each of so many experts."""
        source = self.tensors[x]
        shape = (experts, source.shape[-1]) if experts else (source.shape[-1],)
        divided = len(shape) - 1 if source.split is Region.TENSOR else None
        weight = self.weight(f"{name}.bias", shape, divided, source.units)
        out = self.like(f"{name}.biased", x)
        self.run(f"{name}.bias", "bias", (x, weight), (out,), vectors=(self.vector("bias", x),))
        return out
