"""Read a transformer block of `atoll.workload` as chains of operators between stream visits.

    stream -> norm -> qkv -> attention -> proj -> stream -> norm -> fc1 -> act -> fc2 -> stream

Norms may come before or after the branches, or both; branches may be sequential or parallel;
shared experts are a separate chain; a period of unlike layers is read layer by layer. Shapes,
products, vector passes and saved tensors are those of the workload: work of no operator of the
encoding is work on the stream, and a saved tensor of no edge is always kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from atoll.base.errors import AtollError
from atoll.wafer.encoding.block_parts import (
    Edge,
    OperatorChain,
    TaggedMatmul,
    TaggedVector,
    Unit,
    WaferBlock,
)
from atoll.wafer.encoding.captured_block import BlockForm, as_built, head_as_built
from atoll.workload import StoredModel, load_model, prepare
from atoll.workload.families.model_config import ModelConfig
from atoll.workload.graph.layer import Layer, Model
from atoll.workload.graph.operator import Matmul, Operator, Role

_WITH_QKV = ("rotary", "q_norm", "k_norm")
_UNITS = ("qkv", "attention", "proj", "fc1", "act", "fc2", "shared1", "shared_act", "shared2")


class _LayerReader:
    """Reads the branches of one layer; `prefix` names the layer of a period."""

    def __init__(self, model: Model, layer: Layer, prefix: str = "") -> None:
        self.model, self.layer, self.prefix = model, layer, prefix
        self.forward = {
            op.name.removeprefix(prefix): op for op in layer.forward if op.name.startswith(prefix)
        }

    def has(self, name: str) -> bool:
        return name in self.forward

    def op(self, name: str) -> Operator:
        if name not in self.forward:
            raise AtollError(
                f"model {self.model.name}: its block has no operator {name!r}; a wafer maps "
                "transformer blocks of attention and an MLP or experts, not this one."
            )
        return self.forward[name]

    # -- vector work ---------------------------------------------------------------------------

    def _local(self, operators: Iterable[Operator], rows: str, columns: str) -> list[TaggedVector]:
        passes = []
        for op in operators:
            starts = 1.0 / max(1, len(op.vectors))
            share = self.layer.traffic_bytes(op) * starts
            passes += [TaggedVector(work, rows, columns, share, starts) for work in op.vectors]
        return passes

    def passes(
        self, names: Sequence[str], rows: str = "bs", columns: str = "c"
    ) -> list[TaggedVector]:
        operators = (self.forward[name] for name in names if name in self.forward)
        return self._local(operators, rows, columns)

    def _owner(self, operator: Operator) -> str | None:
        """Return the forward name (`norm1` of norm1.bwd); None if another layer's."""
        for start in (self.prefix, f"d{self.prefix}"):
            if operator.name.startswith(start):
                return operator.name.removeprefix(start).rsplit(".", 1)[0]
        return None

    def backward_passes(self, names: Sequence[str], rows: str, columns: str) -> list[TaggedVector]:
        backward = (op for op in self.layer.backward if not op.matmuls)
        return self._local((op for op in backward if self._owner(op) in names), rows, columns)

    def stream_passes(self, entries: Sequence[str]) -> list[TaggedVector]:
        """Return forward and backward work on the stream: of no unit and no entry."""
        owned = (*_UNITS, *_WITH_QKV)
        forward = [name for name, op in self.forward.items() if not op.matmuls]
        passes = self.passes([name for name in forward if name not in (*owned, *entries)])
        backward = [op for op in self.layer.backward if not op.matmuls]
        return passes + self._local(
            (op for op in backward if self._owner(op) not in (None, *owned)), "bs", "c"
        )

    # -- tensors -------------------------------------------------------------------------------

    def bytes(self, *names: str) -> float:
        return float(sum(self.layer.tensors[self.prefix + name].bytes for name in names))

    def weights(self, op: Operator) -> int:
        tensors = self.layer.tensors
        return sum(tensors[n].elements for n in op.reads if tensors[n].role is Role.WEIGHT)

    def edge(self, name: str, totals: tuple[float, ...], *saved: str) -> Edge:
        """Return an edge for those of the tensors `saved` that the layer saves."""
        kept = [self.prefix + s for s in saved if self.prefix + s in self.layer.saved]
        return Edge(self.prefix + name, totals, ", ".join(kept))

    # -- operators -----------------------------------------------------------------------------

    def linear(self, name: str, small_products: Sequence[str] = ()) -> Unit:
        """Return a product with a weight and `small_products` of the same input (a router)."""
        op = self.op(name)
        (product,) = op.matmuls
        sizes = {"b": self.model.microbatch, "s": self.model.sequence}
        if product.batch > 1:
            sizes["e"] = product.batch
        elif product.m != self.model.tokens:
            raise AtollError(f"model {self.model.name}: operator {name} has an unexpected shape.")
        sizes |= {"k": product.k, "n": product.n}
        batch, m, n, k = product.batch, product.m, product.n, product.k
        forward = [TaggedMatmul(Matmul(batch, m, n, k), "e", "bs", "n", "k")]
        data = [TaggedMatmul(Matmul(batch, m, k, n), "e", "bs", "k", "n")]
        weight = [TaggedMatmul(Matmul(batch, k, n, m), "e", "k", "n", "bs")]
        parameters = self.weights(op)
        for small_op in (self.op(b) for b in small_products if self.has(b)):
            (small,) = small_op.matmuls
            m, n, k = small.m, small.n, small.k
            forward.append(TaggedMatmul(Matmul(1, m, n, k), "", "bs", "", "k"))
            data.append(TaggedMatmul(Matmul(1, m, k, n), "", "bs", "k", ""))
            weight.append(TaggedMatmul(Matmul(1, k, n, m), "", "k", "", "bs"))
            parameters += self.weights(small_op)
        fused_vectors = _WITH_QKV if name == "qkv" else ()
        return Unit(
            name=self.prefix + name, kind="linear", sizes=sizes, forward=tuple(forward),
            data_gradient=tuple(data), weight_gradient=tuple(weight),
            forward_passes=tuple(self.passes(fused_vectors, "bs", "n")),
            backward_passes=tuple(self.backward_passes(fused_vectors, "bs", "n")),
            parameters=parameters, on_chip=False, traffic_bytes=0.0,
            outputs=2 if name == "qkv" else 1,
        )  # fmt: skip

    def attention(self) -> Unit:
        op = self.op("attention")
        name = f"{self.prefix}attention.bwd"
        gradient = next(operator for operator in self.layer.backward if operator.name == name)
        heads = self.layer.tensors[f"{self.prefix}context.lse"].shape[1]
        rows = (("s", "t", ""), ("s", "", "t"))
        back_rows = (("s", "t", ""), ("t", "", "s"), ("s", "t", ""), ("s", "", "t"), ("t", "", "s"))
        if len(op.matmuls) != len(rows) or len(gradient.matmuls) != len(back_rows):
            raise AtollError(f"model {self.model.name}: attention of an unexpected form.")
        return Unit(
            name=f"{self.prefix}attention", kind="attention",
            sizes={"b": self.model.microbatch, "s": self.model.sequence, "h": heads,
                   "t": self.model.sequence},
            forward=tuple(
                TaggedMatmul(p, "bh", *tags) for p, tags in zip(op.matmuls, rows, strict=True)
            ),
            data_gradient=tuple(
                TaggedMatmul(p, "bh", *tags)
                for p, tags in zip(gradient.matmuls, back_rows, strict=True)
            ),
            weight_gradient=(),
            forward_passes=tuple(TaggedVector(v, "bhs", "t", 0.0, 0.0) for v in op.vectors),
            backward_passes=tuple(
                TaggedVector(v, "bhs", "t", 0.0, 0.0) for v in gradient.vectors
            ),
            parameters=0, on_chip=True, traffic_bytes=float(self.layer.traffic_bytes(op)),
        )  # fmt: skip

    def activation(self, name: str, producer: Unit) -> Unit:
        sizes = {tag: producer.sizes[tag] for tag in "bse" if tag in producer.sizes}
        sizes |= {"c": self.layer.tensors[self.prefix + name].shape[-1], "r": 1}
        return Unit(
            name=self.prefix + name, kind="vector", sizes=sizes, forward=(), data_gradient=(),
            weight_gradient=(), forward_passes=tuple(self.passes((name,), "bse", "c")),
            backward_passes=tuple(self.backward_passes((name,), "bse", "c")),
            parameters=0, on_chip=False, traffic_bytes=0.0,
        )  # fmt: skip

    def head(self, loss: Layer) -> Unit:
        """Return the product with the vocabulary, with vector work of its layer and the loss."""
        products = [n for n, op in self.forward.items() if op.matmuls and n != "logits"]
        unit = self.linear("logits", products)
        readers = [self] if loss is self.layer else [self, _LayerReader(self.model, loss)]
        forward, backward = (
            tuple(
                replace(work, columns="n" if work.work.cols == unit.sizes["n"] else "")
                for reader in readers
                for op in (reader.layer.backward if back else reader.layer.forward)
                if not op.matmuls
                for work in reader._local([op], "bs", "")
            )
            for back in (False, True)
        )
        return replace(unit, forward_passes=forward, backward_passes=backward)

    # -- chains --------------------------------------------------------------------------------

    def chains(self, config: BlockForm | ModelConfig) -> list[OperatorChain]:
        """Return the chains of attention, of the MLP or the experts, and of shared experts."""
        stream = self.bytes("proj")
        attention_entry, mlp_entry = self._entries(config)
        chains = [
            self._attention_chain(stream, attention_entry, "" if config.post_norm else "norm1"),
            self._mlp_chain(stream, mlp_entry),
        ]
        if self.has("shared1"):
            chains.append(self._shared_chain(stream))
        passes = self.stream_passes([*attention_entry, *mlp_entry])
        chains[1] = replace(chains[1], stream_passes=tuple(passes))
        return chains

    def _entries(self, config: BlockForm | ModelConfig) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the operators on the stream before attention, and before the MLP."""
        if config.post_norm:
            return (), ("norm1",)
        if config.parallel and not self.has("norm2"):
            return ("norm1",), ()
        return ("norm1",), ("norm2", "choose")

    def _attention_chain(self, stream: float, entry: tuple[str, ...], read: str) -> OperatorChain:
        q, k, v = inputs = [n.removeprefix(self.prefix) for n in self.op("attention").reads[:3]]
        return OperatorChain(
            units=(self.linear("qkv"), self.attention(), self.linear("proj")),
            edges=(
                self.edge(read or "x", (stream,), *([read] if read else [])),
                self.edge("qkv", (self.bytes(q), self.bytes(k, v)), *inputs),
                self.edge("context", (self.bytes("context", "context.lse"),), "context",
                          "context.lse"),
                self.edge("proj", (stream,), "middle", "sum1"),
            ),
            entry_passes=tuple(self.passes(entry)),
        )  # fmt: skip

    def _mlp_chain(self, stream: float, entry: tuple[str, ...]) -> OperatorChain:
        experts = self.has("dispatch")
        read = self.op("fc1").reads[0].removeprefix(self.prefix)
        keeps_input = read in ("sent", *entry)  # else another branch's edge keeps it
        first = self.linear("fc1", ("router",))
        output = "fc2" if experts else "y"
        return OperatorChain(
            units=(first, self.activation("act", first), self.linear("fc2")),
            edges=(
                self.edge(read, (self.bytes(read),), *([read] if keeps_input else [])),
                self.edge("fc1", (self.bytes("fc1"),), "fc1"),
                self.edge("act", (self.bytes("act"),), "act"),
                self.edge("y", (self.bytes("fc2") if experts else stream,), output, "sum2"),
            ),
            entry_passes=tuple(self.passes(entry)),
        )

    def _shared_chain(self, stream: float) -> OperatorChain:
        first = self.linear("shared1", ("shared_gate",))
        return OperatorChain(
            units=(first, self.activation("shared_act", first), self.linear("shared2")),
            edges=(
                self.edge("norm2.shared", (stream,)),
                self.edge("shared1", (self.bytes("shared1"),), "shared1"),
                self.edge("shared_act", (self.bytes("shared_act"),), "shared_act"),
                self.edge("shared2", (stream,), "shared2"),
            ),
        )


def _kept_always(layer: Layer, chains: Sequence[OperatorChain]) -> float:
    on_edges = {
        name for chain in chains for edge in chain.edges for name in edge.kept_name.split(", ")
    }
    unassigned = [name for name in layer.saved if name not in on_edges and name != layer.input]
    return float(sum(layer.tensors[name].bytes for name in unassigned))


def make_block(
    model: str | ModelConfig, microbatch: int, sequence: int | None = None
) -> WaferBlock:
    """Return the block of a zoo model, configuration file or configuration at a microbatch."""
    return _block(model, _age(model), microbatch, sequence)


def _age(model: str | ModelConfig) -> tuple[int, int] | None:
    """Return time and size of a configuration file, which change when it is edited."""
    if isinstance(model, ModelConfig):
        return None
    try:
        path = Path(model)
        file_status = (path / "config.json" if path.is_dir() else path).stat()
    except (OSError, ValueError):
        return None  # of the zoo, which does not change
    return file_status.st_mtime_ns, file_status.st_size


@lru_cache(maxsize=128)
def _block(
    source: str | ModelConfig, age: object, microbatch: int, sequence: int | None
) -> WaferBlock:
    config = load_model(source) if isinstance(source, str) else source
    model = source if isinstance(source, str) else source.name
    if not isinstance(config, StoredModel):
        _check_form(model, config)
    workload = prepare(config, microbatch, sequence, fusion="none")
    repeats = [repeat for _, repeat in workload.layers]
    layer, layers = max(workload.layers, key=lambda pair: (pair[1], len(pair[0].forward)))
    ends = 2 if isinstance(config, StoredModel) else 3  # embedding, head; built ones' loss
    if sum(repeats) - layers > ends:
        raise AtollError(
            f"model {model}: its blocks differ; a wafer maps models that repeat one block."
        )
    form: BlockForm | ModelConfig
    if isinstance(config, StoredModel):
        layer, form = as_built(layer, model)
        head_layer, loss_bytes = head_as_built(workload.layers[-1][0], model)
        loss = head_layer
    else:
        named = {entry.name: entry for entry, _ in workload.layers}
        form, head_layer, loss = config, named["head"], named["loss"]
        loss_bytes = float(sum(loss.tensors[n].bytes for n in loss.saved))
    # Of each layer of a block (a period of unlike layers).
    prefixes = [op.name[: -len("qkv")] for op in layer.forward if op.name.endswith("qkv")]
    chains = tuple(
        chain for prefix in prefixes for chain in _LayerReader(workload, layer, prefix).chains(form)
    )
    head_reader = _LayerReader(workload, head_layer)
    return WaferBlock(
        model=model,
        layers=layers,
        microbatch=microbatch,
        sequence=workload.sequence,
        hidden=layer.tensors[layer.input].shape[-1],
        stream_bytes=float(layer.tensors[layer.input].bytes),
        always_bytes=_kept_always(layer, chains),
        chains=chains,
        head=head_reader.head(loss),
        head_bytes=loss_bytes + head_reader.bytes("logits"),
        embedding_parameters=workload.layers[0][0].parameters,
        parameters=workload.parameters,
    )


def _check_form(model: str, config: ModelConfig) -> None:
    features = {
        "latent attention": config.latent_kv,
        "image patches": config.patch_inputs,
        "an encoder before them": config.encoder_layers,
        "mixers other than attention": config.recurrent,
    }
    form = next((feature for feature, present in features.items() if present), None)
    if form is not None:
        raise AtollError(
            f"model {model}: its blocks have {form}; a wafer maps transformer blocks of plain "
            "attention and an MLP or experts (GPT, BERT, Llama, Mixtral and like families)."
        )
