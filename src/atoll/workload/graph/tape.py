"""Construction of the backward pass: gradient tensors and operators collected so far."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from atoll.workload.graph.layer import Layer
from atoll.workload.graph.operator import (
    CollectiveKind,
    Operator,
    Role,
    TensorCollective,
    VectorWork,
    pass_over,
)


class Tape:
    """Collects backward operators and gradient tensors.

    The gradient of x is named "d" + x. Where several operators read x, each writes a share, and
    an explicit addition sums them. Gradients that are equal (through an addition, a bias, an
    all-reduce) are not copied: they share one tensor.
    """

    def __init__(self, layer: Layer, group: int) -> None:
        values = (Role.ACTIVATION, Role.WEIGHT)
        self.tensors = {name: t for name, t in layer.tensors.items() if t.role in values}
        self.operators: list[Operator] = []
        self.group = group
        reads = (name for op in layer.forward for name in op.reads)
        # What leaves for later layers comes back with the sum of their gradients.
        self._readers = Counter([*reads, *layer.more_outputs])
        self._entering = Counter(name for op in layer.forward for name in op.enters)
        self._partials: dict[str, list[str]] = {}
        gathers = (op for op in layer.forward if op.kind == CollectiveKind.ALL_GATHER)
        sums = (op for op in layer.forward if op.kind == CollectiveKind.ALL_REDUCE)
        self._gathered = {op.writes[0]: op for op in gathers}
        self._reduced = {op.reads[0]: op.writes[0] for op in sums}
        self._shares: dict[str, list[str]] = {}
        self._gathered_again: set[str] = set()

    def has_gradient(self, name: str) -> bool:
        return name in self._shares

    def gradient(self, name: str) -> str:
        """Return the gradient of a forward tensor, summing its shares."""
        shares = self._shares[name]
        if len(shares) == 1:
            return shares[0]
        total = self._declare(f"d{name}", name, Role.ACTIVATION_GRADIENT)
        add = self.vector("add", name)
        adds = (add,) * (len(shares) - 1)
        self.operators.append(Operator(f"d{name}", "add", tuple(shares), (total,), vectors=adds))
        self._shares[name] = [total]
        return total

    def give(self, name: str) -> str:
        """Declare a gradient of `name` (a share, if it has several readers)."""
        shares = self._shares.setdefault(name, [])
        label = f"d{name}" if self._readers[name] <= 1 else f"d{name}.{len(shares)}"
        shares.append(self._declare(label, name, Role.ACTIVATION_GRADIENT))
        return label

    def pass_on(self, name: str, gradient: str) -> None:
        """Use an existing tensor as the gradient of `name`, or as a share of it."""
        self._shares.setdefault(name, []).append(gradient)

    def give_entering(self, op: Operator, name: str) -> tuple[str, tuple[Operator, ...]]:
        """As `give`, for a read that may be a weight or enter a tensor-parallel region: the tensor
        to write, and the all-reduce (to be run after) that completes it, where there is a group to
        sum over. Of several such reads of one tensor the last brings the sum and the one all-reduce
        of all."""
        if self.tensors[name].role is Role.WEIGHT:
            return self.weight_gradient(name), ()
        if self.group == 1 or name not in op.enters:
            return self.give(name), ()
        if self._entering[name] == 1:
            total = self.give(name)
            partial = self._declare(f"{total}.partial", name, Role.ACTIVATION_GRADIENT)
            return partial, (self._all_reduce(partial, total),)
        partials = self._partials.setdefault(name, [])
        label = f"d{name}.partial.{len(partials)}"
        partials.append(self._declare(label, name, Role.ACTIVATION_GRADIENT))
        if len(partials) < self._entering[name]:
            return label, ()
        total = self.give(name)
        summed = self._declare(f"{total}.partial", name, Role.ACTIVATION_GRADIENT)
        adds = (self.vector("add", name),) * (len(partials) - 1)
        add = Operator(summed, "add", tuple(partials), (summed,), vectors=adds)
        return label, (add, self._all_reduce(summed, total))

    def _all_reduce(self, partial: str, total: str) -> Operator:
        size = self.tensors[partial].bytes
        sum_ = TensorCollective(CollectiveKind.ALL_REDUCE, size, self.group)
        return Operator(f"{total}.reduce", "all_reduce", (partial,), (total,), collective=sum_)

    def weight_gradient(self, name: str) -> str:
        return self._declare(f"d{name}", name, Role.WEIGHT_GRADIENT)

    def saved(self, name: str) -> str:
        """A forward tensor for use in the backward pass. One that was gathered over the sequence
        is not kept but gathered again (Korthikanti et al., arXiv:2205.05198, section 4.2.2), and
        of a partial sum its total is meant."""
        name = self._reduced.get(name, name)
        gather = self._gathered.get(name)
        if gather is None:
            return name
        again = f"{name}.again"
        if name not in self._gathered_again:
            self._gathered_again.add(name)
            self.tensors[again] = replace(self.tensors[name], name=again)
            self.operators.append(replace(gather, name=f"{gather.name}.again", writes=(again,)))
        return again

    def insert_early(self, op: Operator) -> None:
        """Insert an operator directly after its producer, so that a collective overlaps the weight
        gradient."""
        ready = [i for i, o in enumerate(self.operators) if set(o.writes) & set(op.reads)]
        self.operators.insert(ready[-1] + 1 if ready else len(self.operators), op)

    def vector(self, function: str, over: str) -> VectorWork:
        return pass_over(function, self.tensors[over])

    def _declare(self, label: str, like: str, role: Role) -> str:
        self.tensors[label] = self.tensors[like].like(label, role)
        return label
