"""A model that no builder knows, captured, searched and explained.

    pip install "atoll[torch]"
    python examples/custom_model.py

Each block mixes tokens in two ways: a gated linear recurrence behind a short depth-wise convolution
(as in Mamba and its relatives, in the parallel form that training uses), then attention; a gated
feed-forward layer follows. The same from the command line, run in this folder:

    atoll capture custom_model:build --out hybrid.json \\
        --inputs "int64[1,1024]" --inputs "int64[1,1024]"
    atoll search --model hybrid.json --space spaces/tiny.yaml --devices 16 --out runs/hybrid
    atoll explain runs/hybrid
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class Recurrence(nn.Module):
    """h[t] = a[t] h[t-1] + (1 - a[t]) v[t] with gates a of the input alone, for all t at once.

    Unrolled, h[t] is a weighted sum over the past with weights exp(A[t] - A[s]), where A is the
    cumulative sum of log a: two cumulative sums instead of a loop over tokens.
    """

    def __init__(self, width: int, inner: int, taps: int = 4) -> None:
        super().__init__()
        self.into = nn.Linear(width, 3 * inner, bias=False)
        self.conv = nn.Conv1d(inner, inner, taps, groups=inner, padding=taps - 1)
        self.out = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        value, gate, decay = self.into(x).chunk(3, dim=-1)
        value = self.conv(value.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
        log_a = F.logsigmoid(decay.float())
        total = log_a.cumsum(dim=1)
        fed = F.silu(value).float() * (1 - log_a.exp())
        state = (fed * (-total).exp()).cumsum(dim=1) * total.exp()
        return self.out(state.to(x.dtype) * F.silu(gate))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = (
            part.view(batch, tokens, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, tokens, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(3))
        self.recurrence = Recurrence(width, 2 * width)
        self.attention = Attention(width, heads)
        self.up = nn.Linear(width, 8 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.recurrence(self.norms[0](x))
        x = x + self.attention(self.norms[1](x))
        gate, value = self.up(self.norms[2](x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * value)


class Hybrid(nn.Module):
    def __init__(self, width: int, heads: int, layers: int, vocab: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def build() -> Hybrid:
    """A small one: 24 blocks of width 1,024."""
    return Hybrid(width=1024, heads=16, layers=24, vocab=32_000)


def main() -> None:
    # Here, so that the model itself can be imported and trained without Atoll.
    import atoll

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--space", default=str(Path(__file__).parent / "spaces" / "tiny.yaml"))
    parser.add_argument("--devices", type=int, default=16)
    options = parser.parse_args()

    tokens = torch.empty(1, 1024, dtype=torch.int64, device="meta")
    model = atoll.capture(build, (tokens, tokens), name="hybrid")
    with tempfile.TemporaryDirectory() as folder:
        file = model.save(Path(folder) / "hybrid.json")
        shown = atoll.describe_model(str(file))
        print(f"{shown.parameters:,} parameters")
        for layer in shown.layers:
            print(
                f"  {layer.name} x {layer.repeat}: {layer.flops_forward / 1e9:.1f} GFLOP "
                f"forward, {layer.flops_backward / 1e9:.1f} backward, "
                f"{layer.saved_bytes / 1e6:.1f} MB kept"
            )
        result = atoll.search(
            model=str(file),
            space=options.space,
            devices=options.devices,
            batch=256,
            microbatch=[1, 4],
            tp=[1, 2],
            baselines=False,
        )
    print(result)
    result.explain().show()


if __name__ == "__main__":
    main()
