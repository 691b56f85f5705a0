"""Tensor and sequence parallelism: from an annotated layer to one device's share of it.

Tensors shrink as their regions say, products follow from their tensors, and collectives appear
where an operator enters or leaves a tensor-parallel region (Megatron-LM, arXiv:1909.08053; with
sequence parallelism arXiv:2205.05198). The backward pass is then derived from the sharded forward
pass. Not here, because once a step and not once a microbatch: summing the gradients of replicated
weights (norms under sequence parallelism, shared key and value heads) over the group.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from atoll.base.errors import AtollError, check_count
from atoll.workload.builders.model import shared_parameters
from atoll.workload.families.model_config import ModelConfig
from atoll.workload.graph.backward import differentiate
from atoll.workload.graph.layer import Layer, LayerOrModel
from atoll.workload.graph.operator import (
    CollectiveKind,
    Matmul,
    Operator,
    Region,
    Role,
    Tensor,
    TensorCollective,
    Uneven,
    VectorWork,
)
from atoll.workload.graph.products import linear_product, local_attention, scan_products
from atoll.workload.stored import StoredModel, stored_widths

LINEAR = ("linear", "data_linear")
SCAN_PRODUCTS = 4  # without a delta rule
PER_TENSOR_KINDS = ("rotary", "conv")  # passes of theirs go over one of their tensors each


def shard(
    workload: LayerOrModel, tp: int, sequence_parallel: bool = False, expert_tensor: int = 0
) -> LayerOrModel:
    """One device's share of an unsharded, unfused layer or model; width 1 changes nothing. Experts
    may have a tensor width of their own, where sequence parallelism divides the tokens."""
    experts = expert_tensor or tp
    check_count(f"{workload.name}: tensor_parallel", tp)
    if tp == experts == 1:
        return workload
    if isinstance(workload, Layer):
        return _Sharding(workload, tp, sequence_parallel, experts).layer()
    try:
        model = workload.map(lambda layer: _Sharding(layer, tp, sequence_parallel, experts).layer())
    except AtollError as error:
        raise AtollError(f"{workload.name}, {error}") from None
    shared, sequence = shared_parameters(model.layers), sequence_parallel
    return replace(model, tensor_parallel=tp, sequence_parallel=sequence, shared_parameters=shared)


def widths(config: ModelConfig | StoredModel, tps: Iterable[int]) -> tuple[int, ...]:
    """Return the candidates that are valid tensor-parallel widths of the model, in order."""
    if isinstance(config, StoredModel):
        return stored_widths(config, tps)
    return tuple(
        t
        for t in tps
        if t >= 1
        and config.heads % t == 0
        and (config.kv_heads % t == 0 or t % config.kv_heads == 0)
        and all(width % t == 0 for width in config.ffn_widths)
        and (config.scan is None or config.scan.groups % t == 0 or t % config.scan.groups == 0)
    )


class _Sharding:
    """The per-device forward graph of one layer while it is written."""

    def __init__(self, unsharded: Layer, tp: int, sequence: bool, experts: int) -> None:
        if any(op.collective is not None or "+" in op.kind for op in unsharded.forward):
            raise AtollError(
                f"layer {unsharded.name}: already sharded or fused, but only a whole, unfused "
                "layer can be sharded"
            )
        self.unsharded, self.tp, self.sequence, self.experts = unsharded, tp, sequence, experts
        self.folded: frozenset[str] = frozenset()
        self.combined: set[str] = set()
        if experts != tp:
            self.folded = _expert_tensors(unsharded)
            combines = (op for op in unsharded.forward if op.kind == "combine")
            self.combined = {n for op in combines for n in op.writes}
        self.tensors = {
            name: self._local(tensor)
            for name, tensor in unsharded.tensors.items()
            if tensor.role in (Role.ACTIVATION, Role.WEIGHT)
        }
        self.operators: list[Operator] = []
        self._gathered: set[str] = set()

    def layer(self) -> Layer:
        for op in self.unsharded.forward:
            self._share(op)
        forward = tuple(self.operators)
        local = replace(self.unsharded, tensors=self.tensors, forward=forward, backward=())
        return differentiate(local, self.tp)

    def _local(self, tensor: Tensor) -> Tensor:
        """This device's part of a tensor."""
        if tensor.name in self.folded:
            return self._folded_part(tensor)
        if tensor.name in self.combined:
            batch, tokens, columns = tensor.shape
            return replace(tensor, shape=(batch, tokens // self.tp, columns))
        if tensor.split is Region.UNDIVIDED:
            return tensor
        if tensor.split is Region.SEQUENCE and not self.sequence:
            return tensor
        size = tensor.shape[tensor.split_dim]
        units = tensor.units or size
        if units % self.tp == 0:
            part = size // self.tp
        elif tensor.uneven is Uneven.PAD:
            # Rounded up to a multiple of the width; Megatron-LM pads a vocabulary to 128 times it.
            part = -(-size // self.tp)
        elif tensor.uneven is Uneven.REPLICATE and self.tp % units == 0:
            part = size // units
        else:
            raise AtollError(self._refusal(tensor, units))
        shape = list(tensor.shape)
        shape[tensor.split_dim] = part
        return tensor.part(tuple(shape), tensor.units * part // size)

    def _refusal(self, tensor: Tensor, units: int) -> str:
        what = f"the {units} units (heads or columns) of tensor {tensor.name}"
        if tensor.split is Region.SEQUENCE:
            what = f"the sequence of {units} that sequence parallelism would cut"
        elif tensor.uneven is Uneven.REPLICATE:
            what = f"the {units} key and value heads, nor is a multiple of them"
        where = f"layer {self.unsharded.name}"
        return f"{where}: tensor_parallel is {self.tp}, but does not divide {what}"

    def _share(self, op: Operator) -> None:
        """Write one operator, with the collectives around it."""
        after = op.exits and op.reads[0] in self.combined
        if after or self.folded.intersection(op.reads + op.writes):
            self._share_folded(op)
            return
        cut = [name for name in op.enters if self._cut(name)]
        entering = {name: self._gather(name) for name in cut}
        reads = tuple(entering.get(name, name) for name in op.reads)
        products = self._products(op, reads)
        enters = tuple(name for name in op.enters if name not in entering)
        local = Operator(
            op.name, op.kind, reads, op.writes, products, self._vectors(op, products),
            op.collective, op.on_chip, enters, False, op.steps,
        )  # fmt: skip
        if op.exits and self.tp > 1:
            self._reduce(local)
        else:
            self.operators.append(local)

    def _cut(self, name: str) -> bool:
        """Whether a tensor is divided along the sequence."""
        return self.sequence and self.unsharded.tensors[name].split is Region.SEQUENCE

    def _gather(self, name: str) -> str:
        """Gather a tensor that is divided along the sequence."""
        full = f"{name}.full"
        if name not in self._gathered:
            tensor = self.unsharded.tensors[name]
            self.tensors[full] = replace(tensor, name=full, split=Region.UNDIVIDED)
            self._collective(CollectiveKind.ALL_GATHER, name, full)
            self._gathered.add(name)
        return full

    def _reduce(self, op: Operator) -> None:
        """Sum an operator's first output over the group, and only then add its bias."""
        out, *others = op.writes
        output = self.unsharded.tensors[out]
        partial = replace(output, name=f"{out}.partial", split=Region.UNDIVIDED)
        self.tensors[partial.name] = partial
        biases = [v for v in op.vectors if v.function == "bias"]
        total = out
        if biases:
            total = f"{out}.sum"
            self.tensors[total] = replace(self.tensors[out], name=total)
        *reads, last = op.reads
        read = tuple(reads) if biases else op.reads
        vectors = tuple(v for v in op.vectors if v.function != "bias")
        writes = (partial.name, *others)
        self.operators.append(replace(op, reads=read, writes=writes, vectors=vectors))
        scatter = self.sequence and output.split is Region.SEQUENCE
        kind = CollectiveKind.REDUCE_SCATTER if scatter else CollectiveKind.ALL_REDUCE
        self._collective(kind, partial.name, total)
        if biases:
            name, reads_ = f"{op.name}.bias", (total, last)
            self.operators.append(Operator(name, "bias", reads_, (out,), vectors=tuple(biases)))

    def _folded_part(self, tensor: Tensor) -> Tensor:
        """Part of an expert tensor under a separate expert tensor width: columns (or rows of the
        second product) / that width, and the tokens gathered from as many devices."""
        shape = list(tensor.shape)
        if tensor.split is Region.TENSOR:
            if (tensor.units or shape[tensor.split_dim]) % self.experts:
                raise AtollError(self._refusal(tensor, tensor.units))
            shape[tensor.split_dim] //= self.experts
        if tensor.role is Role.ACTIVATION:
            # Experts' tokens, or those of the residual stream: in both the dimension before last.
            shape[-2] = -(-shape[-2] * self.experts // self.tp)
        return replace(tensor, shape=tuple(shape), units=tensor.units // self.experts)

    def _share_folded(self, op: Operator) -> None:
        """Write an expert operator with collectives over the expert tensor width."""
        reads = tuple(self._folded_gather(n) if n in op.enters else n for n in op.reads)
        if op.kind == "add":  # the shared experts' partial sums are completed by themselves
            reads = reads[0], self._completed(reads[1])
        products = self._products(op, reads)
        tokens = self.experts if op.kind != "add" else 1
        vectors = []
        for v in op.vectors:
            cols = v.cols // self.experts if v.split is Region.TENSOR else v.cols
            vectors.append(replace(v, rows=-(-v.rows * tokens // self.tp), cols=cols))
        work = tuple(vectors)
        local = replace(op, reads=reads, enters=(), exits=False, matmuls=products, vectors=work)
        if op.kind != "combine" or self.experts == 1:
            self.operators.append(local)
            return
        out = op.writes[0]
        partial = replace(self._folded_part(self.unsharded.tensors[out]), name=f"{out}.partial")
        self.tensors[partial.name] = partial
        self.operators.append(replace(local, writes=(partial.name,)))
        self._collective(CollectiveKind.REDUCE_SCATTER, partial.name, out, self.experts)

    def _folded_gather(self, name: str) -> str:
        """Gather stream tokens from all devices that share an expert's columns."""
        if self.experts == 1:
            return name
        full = f"{name}.folded"
        if full not in self.tensors:
            part = self._folded_part(self.unsharded.tensors[name])
            self.tensors[full] = replace(part, name=full, split=Region.UNDIVIDED)
            self._collective(CollectiveKind.ALL_GATHER, name, full, self.experts)
        return full

    def _completed(self, name: str) -> str:
        """Reduce-scatter a partial sum to this device's tokens."""
        if self.tp == 1:
            return name
        partial, total = self.tensors[name], f"{name}.sum"
        batch, tokens, columns = partial.shape
        shape = batch, tokens // self.tp, columns
        self.tensors[total] = replace(partial, name=total, shape=shape)
        self._collective(CollectiveKind.REDUCE_SCATTER, name, total)
        return total

    def _collective(self, kind: CollectiveKind, source: str, target: str, group: int = 0) -> None:
        gathers = kind is CollectiveKind.ALL_GATHER
        full = self.tensors[target if gathers else source]
        sent = TensorCollective(kind, full.bytes, group or self.tp)
        name = f"{target}.{'gather' if gathers else 'reduce'}"
        self.operators.append(Operator(name, str(kind), (source,), (target,), collective=sent))

    def _products(self, op: Operator, reads: tuple[str, ...]) -> tuple[Matmul, ...]:
        if op.kind == "scan" and op.matmuls:
            values, keys = (self.tensors[name] for name in reads[:2])
            delta = len(op.matmuls) > SCAN_PRODUCTS
            return scan_products(values, keys, op.matmuls[0].m, delta=delta)
        return tuple(self._product(op, reads, m) for m in op.matmuls)

    def _product(self, op: Operator, reads: tuple[str, ...], product: Matmul) -> Matmul:
        if op.kind in LINEAR:
            tensors = [self.tensors[name] for name in reads]
            weights = [t for t in tensors if t.role is Role.WEIGHT and len(t.shape) > 1]
            # Tokens are cut by sequence parallelism only; without it every device runs them all.
            split = "" if product.split == "m" and not self.sequence else product.split
            return linear_product(tensors[0], weights, split)
        kv = op.reads[1]
        kv_width = self.unsharded.tensors[kv].shape[-1] // self.tensors[kv].shape[-1]
        return local_attention(product, self.tp, kv_width)

    def _vectors(self, op: Operator, products: tuple[Matmul, ...]) -> tuple[VectorWork, ...]:
        if op.kind in LINEAR:
            (product,) = products
            cut = self.sequence and op.exits
            rows = self.tensors[op.writes[0]].rows if cut else product.m
            return tuple(v.sized(rows, product.n) for v in op.vectors)
        return tuple(self._vector(op, index, v) for index, v in enumerate(op.vectors))

    def _vector(self, op: Operator, index: int, work: VectorWork) -> VectorWork:
        """Scale a pass with the operator's main tensor (rotary, convolution: with each tensor)."""
        if work.split is Region.UNDIVIDED or (work.split is Region.SEQUENCE and not self.sequence):
            return work
        main = op.reads[index % len(op.writes) if op.kind in PER_TENSOR_KINDS else 0]
        before, after = self.unsharded.tensors[main], self.tensors[main]
        if work.split is Region.SEQUENCE:
            return work.sized(work.rows * after.rows // before.rows, work.cols)
        full, part = before.shape[before.split_dim], after.shape[before.split_dim]
        # Heads are rows to attention and to their own norms, columns to everything else.
        if op.kind in ("attention", "norm") or before.split_dim < len(before.shape) - 1:
            return work.sized(work.rows * part // full, work.cols)
        return work.sized(work.rows, work.cols * part // full)


def _expert_tensors(layer: Layer) -> frozenset[str]:
    """Tensors of a layer's experts, from the dispatched tokens to their outputs."""
    names: set[str] = set()
    for op in layer.forward:
        if op.kind == "dispatch" or names.intersection(op.reads):
            if op.kind == "combine":
                break
            names.update(n for n in op.reads if layer.tensors[n].role is Role.WEIGHT)
            names.update(op.writes)
    return frozenset(names)
