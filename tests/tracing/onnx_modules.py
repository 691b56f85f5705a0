"""Small modules whose exported graphs lie in onnx_files, and the script that exports them.

    python -m tracing.onnx_modules          # from tests/, with torch and onnxscript

writes every module twice, by torch's exporter and by its older one, and takes the weights out: the
files then name a file of weights that does not exist.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

FOLDER = Path(__file__).parent / "onnx_files"
WIDTH, TOKENS, VOCAB, HEADS = 64, 16, 96, 4
EXPORTERS = ("dynamo", "script")


def heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


class GptBlock(nn.Module):
    """Norms first, causal fused attention from one joint projection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads(part) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """The head is tied to the word table."""

    inputs = (("tokens", (TOKENS,), torch.int64),)

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(GptBlock() for _ in range(3))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class BertLayer(nn.Module):
    """Norms behind, attention in small steps under a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out, self.norm1 = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (heads(part(x)) for part in (self.query, self.key, self.value))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.norm1(x + self.out(y.transpose(1, 2).flatten(2)))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Bert(nn.Module):
    inputs = (("tokens", (TOKENS,), torch.int64), ("mask", (TOKENS,), torch.int64))

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCAB, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.layer = nn.ModuleList(BertLayer() for _ in range(3))
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        x = self.norm(self.words(tokens))
        hidden = (1.0 - mask[:, None, None, :].to(x.dtype)) * -10000.0
        for layer in self.layer:
            x = layer(x, hidden)
        return self.head(x)


class RmsNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class LlamaLayer(nn.Module):
    """RMS norms in small steps, rotary positions, a gated feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = RmsNorm(), RmsNorm()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = (heads(part(y)) for part in (self.q, self.k, self.v))
        q, k = (t * cosine + self.turned(t) * sine for t in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

    @staticmethod
    def turned(x: Tensor) -> Tensor:
        left, right = x.chunk(2, -1)
        return torch.cat((-right, left), -1)


class Llama(nn.Module):
    inputs = (("tokens", (TOKENS,), torch.int64),)

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(LlamaLayer() for _ in range(3))
        self.norm, self.head = RmsNorm(), nn.Linear(WIDTH, VOCAB, bias=False)
        steps = torch.arange(0, WIDTH // HEADS, 2) / (WIDTH // HEADS)
        self.register_buffer("frequencies", 10000.0**-steps, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        places = torch.arange(tokens.shape[1], device=tokens.device)
        angles = torch.outer(places.to(self.frequencies.dtype), self.frequencies).repeat(1, 2)
        for layer in self.layers:
            x = layer(x, angles.cos(), angles.sin())
        return self.head(self.norm(x))


class ConvBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.depth = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.norm = nn.GroupNorm(4, 16)
        self.mix = nn.Conv2d(16, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.mix(self.norm(self.depth(x))))


class ConvNet(nn.Module):
    inputs = (("image", (3, 16, 16), torch.float32),)

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(*(ConvBlock() for _ in range(3)))
        self.head = nn.Linear(16, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = F.max_pool2d(self.blocks(self.stem(image)), 2)
        return self.head(x.mean(dim=(2, 3)))


MODULES: dict[str, type[nn.Module]] = {
    "gpt": Gpt, "bert": Bert, "llama": Llama, "conv": ConvNet,
}  # fmt: skip


def examples(module: type[nn.Module], batch: int) -> tuple[Tensor, ...]:
    return tuple(
        torch.ones((batch, *shape), dtype=kind)
        for _, shape, kind in module.inputs  # type: ignore[attr-defined]
    )


def export(name: str, exporter: str, target: Path) -> None:
    """Write one file, with weights that are all different."""
    kind = MODULES[name]
    torch.manual_seed(0)
    module = kind().eval()
    for weight in module.parameters():
        nn.init.normal_(weight)
    names = [given[0] for given in kind.inputs]  # type: ignore[attr-defined]
    inputs = examples(kind, 2)
    if exporter == "dynamo":
        torch.onnx.export(
            module, inputs, str(target), dynamo=True, verbose=False, external_data=False,
            input_names=names, dynamic_shapes=tuple({0: "batch"} for _ in names),
        )  # fmt: skip
    else:
        torch.onnx.export(
            module, inputs, str(target), dynamo=False, input_names=names, opset_version=17,
            dynamic_axes={given: {0: "batch"} for given in names},
        )  # fmt: skip


def main() -> None:
    import onnx

    for name in MODULES:
        for exporter in EXPORTERS:
            target = FOLDER / f"{name}-{exporter}.onnx"
            export(name, exporter, target)
            model = onnx.load(target)
            for tensor in model.graph.initializer:
                if tensor.data_type == onnx.TensorProto.FLOAT and max(tensor.dims, default=0) > 8:
                    onnx.external_data_helper.set_external_data(tensor, "weights.bin")
                    tensor.ClearField("raw_data")
                    tensor.data_location = onnx.TensorProto.EXTERNAL
            for node in model.graph.node:  # lines of torch's own and of this script
                kept = [p for p in node.metadata_props if p.key == "pkg.torch.onnx.name_scopes"]
                del node.metadata_props[:]
                node.metadata_props.extend(kept)
                node.doc_string = ""
            onnx.save(model, target)
            print(target.name, target.stat().st_size)


if __name__ == "__main__":
    main()
