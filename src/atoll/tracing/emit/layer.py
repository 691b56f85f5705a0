"""From the nodes of one captured layer to the operators and tensors of an `atoll-model` file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from atoll.tracing.emit.cluster import cluster
from atoll.tracing.emit.kernel import eager_steps, kernel_kind, kernel_passes
from atoll.tracing.emit.value_pieces import Parts
from atoll.tracing.record.node import CallNode, NodeKind, Nodes, VectorPass
from atoll.tracing.record.segment import Segment
from atoll.tracing.record.trace import ModuleTrace, TensorView, Value, ValueSource
from atoll.tracing.split.division import Splits
from atoll.workload.graph.operator import Matmul, once
from atoll.workload.modelfile import (
    LayerEntry,
    MatmulEntry,
    OperatorEntry,
    Role,
    TensorEntry,
    VectorEntry,
)


@dataclass
class Emission:
    """Writes one captured layer as a file entry."""

    segment: Segment
    trace: ModuleTrace
    forward: Nodes
    backward: Nodes
    outside: set[int]
    """Values that other layers read, or that the step ends with."""
    splits: Splits
    fused: bool = True
    """Whether vector operators of a module call run as one kernel, not one each as in eager."""
    causal: frozenset[int] = frozenset()
    """Results of causal softmaxes."""
    tensors: dict[str, TensorEntry] = field(default_factory=dict)
    name_counts: Counter[str] = field(default_factory=Counter)
    names: dict[int, str] = field(default_factory=dict)

    def layer(self, repeat: int) -> LayerEntry:
        nodes = [*self.forward, *self.backward]
        undivided = {*self.segment.entering, *self.segment.leaving, *self.splits.reduced}
        self.values = self.trace.values
        self.parts = Parts(nodes, self.values, undivided)
        self.late = {v.value for call in self.trace.calls if call.backward for v in call.outs}
        self.late |= {v.value for node in self.backward for v in node.outs}
        self.weights = {v.number for v in self.values if v.source is ValueSource.WEIGHT}
        self._name_crossing()
        forward_groups, backward_groups = (
            cluster(nodes, self.splits.reduced) if self.fused else [[node] for node in nodes]
            for nodes in (self.forward, self.backward)
        )
        saved = {view.value for group in backward_groups for node in group for view in node.ins}
        forward = self._pass(forward_groups, saved, False)
        backward = _reductions_first(self._pass(backward_groups, set(), True))
        inputs = [self.tensor(self._flat_view(v))[0] for v in self.segment.entering]
        outputs = [self.tensor(self._flat_view(v))[0] for v in self.segment.leaving]
        self._weights()
        return LayerEntry(
            name=self.segment.name,
            repeat=repeat,
            inputs=tuple(inputs) or (self._first_input(),),
            outputs=tuple(outputs) or (self._last_output(),),
            tensors=self.tensors,
            forward=tuple(forward),
            backward=tuple(backward),
        )

    # --- names -----------------------------------------------------------------------------------

    def _unique(self, name: str) -> str:
        self.name_counts[name] += 1
        return name if self.name_counts[name] == 1 else f"{name}.{self.name_counts[name]}"

    def _name_crossing(self) -> None:
        """The gradient of x is called "d" + x, also where it comes from or goes to a neighbour."""
        for index, value in enumerate(self.segment.entering):
            self.names[value] = self._unique("x" if not index else f"x{index}")
        for index, value in enumerate(self.segment.leaving):
            if value not in self.names:
                self.names[value] = self._unique("y" if not index else f"y{index}")
        backward_outputs = {v.value for node in self.backward for v in node.outs}
        weights = set(self.trace.gradient_weights)
        leaving = [v for n in self.backward for v in n.outs if v.value in self.outside - weights]
        forward = {v.value for n in self.forward for v in n.outs}
        inner = {*backward_outputs, *forward, *self.segment.entering}
        foreign = [
            v for n in self.backward for v in n.ins
            if v.value in self.late - inner
            and self.values[v.value].source is ValueSource.COMPUTED
        ]  # fmt: skip
        self._match(self.segment.entering, leaving)
        self._match(self.segment.leaving, foreign)
        for gradient, weight in self.trace.gradient_weights.items():
            if gradient in backward_outputs:
                name = self._unique(f"gradient {weight}").replace(f"gradient {weight}", "")
                self.names[gradient] = f"d{self.values[weight].name}{name}"

    def _match(self, crossing: Sequence[int], gradients: Sequence[TensorView]) -> None:
        """Pair values with their gradients: those of the same shape, then of the same size."""
        shapes = {v.value: v.shape for call in self.trace.calls for v in call.outs}
        left = {v.value: v.shape for v in gradients}
        open_ = list(crossing)
        for exact in (True, False):
            for value in list(open_):
                size, values = self.values[value].elements, self.values
                same = [
                    number
                    for number, shape in left.items()
                    if (shape == shapes.get(value) if exact else values[number].elements == size)
                ]
                if same:
                    left.pop(same[-1])
                    open_.remove(value)
                    self.names[same[-1]] = self._unique(f"d{self.names[value]}")

    def tensor(self, view: TensorView) -> list[str]:
        """The names of the tensors that a view covers, declared on first use."""
        value = self.values[view.value]
        if value.source is ValueSource.WEIGHT:
            return [self._declare(value.name, value, None)]
        if value.number not in self.names:
            default = "context" if value.source is ValueSource.COMPUTED else "buffer"
            self.names[value.number] = self._unique(value.name or default)
        name = self.names[value.number]
        if value.number not in self.parts.pieces:
            return [self._declare(name, value, None)]
        return [self._declare(f"{name}.part{i}", value, i) for i in self.parts.covered(view)]

    def _declare(self, name: str, value: Value, part: int | None) -> str:
        if name not in self.tensors:
            shape, strides = self.parts.shape(value.number, part)
            split = self.splits.value_split(value.number, shape, strides)
            size, role = value.element_bytes, self._role(value)
            self.tensors[name] = TensorEntry(
                shape=shape, element_bytes=size, role=role, split=split
            )
        return name

    def _role(self, value: Value) -> Role:
        if value.source is ValueSource.WEIGHT:
            return "weight"
        if value.number in self.trace.gradient_weights:
            return "weight_gradient"
        late = value.source is ValueSource.COMPUTED and value.number in self.late
        return "activation_gradient" if late else "activation"

    def _flat_view(self, value: int) -> TensorView:
        size = self.values[value]
        return TensorView(value, (size.elements,), (1,), 0, size.element_bytes, True)

    # --- operators -------------------------------------------------------------------------------

    def _pass(
        self, groups: list[list[CallNode]], saved: set[int], backward: bool
    ) -> list[OperatorEntry]:
        readers: dict[int, set[int]] = {}
        for index, group in enumerate(groups):
            for node in group:
                for view in node.ins:
                    readers.setdefault(view.value, set()).add(index)
        used_elsewhere = {
            *saved,
            *self.outside,
            *self.trace.gradient_weights,
            *self.segment.leaving,
        }
        operators = []
        for index, group in enumerate(groups):
            group_outputs = {v.value: v for node in group for v in node.outs}
            reads = [v for node in group for v in node.ins if v.value not in group_outputs]
            writes = [
                view
                for value, view in group_outputs.items()
                if readers.get(value, set()) - {index} or value in used_elsewhere
            ]
            if writes:
                operators += self._operator(group, reads, writes, backward)
        return operators

    def _operator(
        self, group: Nodes, reads: list[TensorView], writes: list[TensorView], backward: bool
    ) -> list[OperatorEntry]:
        name = self._operator_name(group, backward)
        if group[0].lookup_table is not None:
            return self._lookup(group[0], name, backward)
        for view in writes:
            self.names.setdefault(view.value, self._unique(name))
        read = once(n for view in reads for n in self.tensor(view))
        written = once(n for view in writes for n in self._all_parts(view))
        matmuls = [self._matmul(node, i, m) for node in group for i, m in enumerate(node.matmuls)]
        label = f"{name}.bwd" if backward and not group[0].matmuls else name
        behind = [op for v in writes for op in self._reduction(v)]
        behind += self._row_sums(group, label)
        partial = {op.writes[0]: op.reads[0] for op in behind}
        extra = tuple(op.reads[0] for op in behind if op.writes[0] not in written)
        operator = OperatorEntry(
            name=label,
            kind=kernel_kind(group, backward, self.weights, self.trace.gradient_weights),
            reads=read,
            writes=(*(partial.get(n, n) for n in written), *extra),
            matmuls=tuple(matmuls),
            vectors=tuple(self._vector(work) for work in kernel_passes(group)),
            on_chip=group[0].kind is NodeKind.ATTENTION,
            causal=any(v.value in self.causal for node in group for v in node.outs),
            steps={} if group[0].matmuls else eager_steps(group, self.splits.labels),
        )
        return [operator, *behind]

    def _matmul(self, node: CallNode, index: int, product: Matmul) -> MatmulEntry:
        sizes: dict[str, Any] = {name: getattr(product, name) for name in ("batch", "m", "n", "k")}
        if node.grouped_rows is not None:
            name, rows = node.grouped_rows
            sizes[name] = f"{rows}/{product.batch}"
        split = self.splits.product_split(node, index)
        return MatmulEntry(**sizes, fraction=product.fraction, split=split)

    def _row_sums(self, group: Nodes, label: str) -> list[OperatorEntry]:
        """All-reduce of two numbers per row, for a softmax over columns that are cut."""
        nodes = [node for node in group if id(node) in self.splits.rows_summed]
        if not nodes or nodes[0].call.backward:
            return []
        total = self._unique(f"{label}.rows")
        self.tensors[total] = TensorEntry(shape=(nodes[0].passes[0].rows, 2), element_bytes=4)
        return [self._all_reduce(total)]

    def _reduction(self, view: TensorView) -> list[OperatorEntry]:
        """Return the reduction after an operator that writes a partial sum, if any."""
        reduced = view.value in self.splits.reduced
        return [self._all_reduce(self.names[view.value])] if reduced else []

    def _all_reduce(self, total: str) -> OperatorEntry:
        partial, name = f"{total}.partial", f"{total}.reduce"
        self.tensors[partial] = self.tensors[total]
        return OperatorEntry(
            name=name, kind="all_reduce", reads=(partial,), writes=(total,), collective="all_reduce"
        )

    def _all_parts(self, view: TensorView) -> list[str]:
        return self.tensor(self._flat_view(view.value))

    def _operator_name(self, group: Nodes, backward: bool) -> str:
        call = group[-1].call
        path = call.path.removeprefix(self.segment.prefix)
        inside = f"{call.path}." != self.segment.prefix
        path = path.removeprefix(f"{self.segment.name}.") if inside else ""
        if group[0].kind is NodeKind.PRODUCT:
            label = path or "product"
            if backward:
                gradient = any(v.value in self.trace.gradient_weights for v in group[0].outs)
                label += ".wgrad" if gradient else ".dgrad"
            return self._fresh(label)
        word = "attention" if group[0].kind is NodeKind.ATTENTION else call.op.strip("_")
        label = f"{path}.{word}" if path else word
        return self._fresh(label + (".grad" if backward else ""))

    def _fresh(self, label: str) -> str:
        self.name_counts[f"operator {label}"] += 1
        used = self.name_counts[f"operator {label}"]
        return label if used == 1 else f"{label}{used}"

    def _lookup(self, node: CallNode, name: str, backward: bool) -> list[OperatorEntry]:
        """Emit a look-up, which moves the requested rows, not the table."""
        table, ids = node.lookup_table, node.ins[1]
        assert table is not None
        label = self._unique(f"{name}.rows")
        self.tensors[label] = TensorEntry(
            shape=(ids.elements, table.shape[-1]),
            element_bytes=table.element_bytes,
            role="activation_gradient" if backward else "activation",
            split=self.splits.lookup_split(table),
        )
        if backward:
            reads = once(n for v in node.ins for n in self.tensor(v))
            return [OperatorEntry(name=name, kind="scatter_add", reads=reads, writes=(label,))]
        self.names.setdefault(node.outs[0].value, self._unique(name))
        reads = once((*self.tensor(ids), label))
        writes = once(self._all_parts(node.outs[0]))
        behind = self._reduction(node.outs[0])
        writes = behind[0].reads if behind else writes
        return [OperatorEntry(name=name, kind="lookup", reads=reads, writes=writes), *behind]

    def _vector(self, work: VectorPass) -> VectorEntry:
        split = self.splits.pass_split(work)
        return VectorEntry(function=work.function, rows=work.rows, cols=work.cols, split=split)

    # --- the ends --------------------------------------------------------------------------------

    def _weights(self) -> None:
        """Declare weights that only look-ups read, and a gradient for every weight."""
        for node in (*self.forward, *self.backward):
            for view in node.ins:
                if self.values[view.value].source is ValueSource.WEIGHT:
                    self.tensor(view)
        for weight in dict.fromkeys(self.trace.gradient_weights.values()):
            entry = self.tensors.get(self.values[weight].name)
            name = f"d{self.values[weight].name}"
            if entry is not None and name not in self.tensors:
                self.tensors[name] = entry.model_copy(update={"role": "weight_gradient"})

    def _first_input(self) -> str:
        reads = (view for node in self.forward for view in node.ins)
        inputs = (view for view in reads if self.values[view.value].source is ValueSource.INPUT)
        return self.tensor(next(inputs, self.forward[0].outs[0]))[0]

    def _last_output(self) -> str:
        outputs = (view for node in reversed(self.forward) for view in node.outs)
        ends = (view for view in outputs if view.value in self.trace.targets)
        return self._all_parts(next(ends, self.forward[-1].outs[0]))[0]


def _reductions_first(operators: list[OperatorEntry]) -> list[OperatorEntry]:
    """Weight gradients, which nothing in the pass waits for, run behind the next reduction: it
    travels while they are computed (Megatron-LM does so)."""
    result: list[OperatorEntry] = []
    waiting: list[OperatorEntry] = []
    for op in operators:
        if op.kind == "linear_wgrad":
            waiting.append(op)
            continue
        result.append(op)
        if op.collective is not None:
            result += waiting
            waiting = []
    return result + waiting
