"""Modules that no builder knows, each small, each odd in its own way."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

WIDTH, TOKENS = 64, 16


class Perceptron(nn.Module):
    """Two linears; the smallest thing that can be trained."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 48)
        self.second = nn.Linear(48, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x))).square().mean()


class EncoderLayers(nn.Module):
    """torch's own transformer layers, fused and tied in nothing."""

    def __init__(self, layers: int = 3, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, 4, 4 * WIDTH, dropout=dropout, batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


class TwoHeads(nn.Module):
    """Several outputs and no loss: a gradient enters through each."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        self.policy = nn.Linear(WIDTH, 10)
        self.value = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.trunk(x)
        return {"policy": self.policy(y), "value": self.value(y)}


class Experts(nn.Module):
    """A mixture of experts by sorting: top-2 routing, grouped products."""

    def __init__(self, experts: int = 4, chosen: int = 2) -> None:
        super().__init__()
        self.chosen = chosen
        self.router = nn.Linear(WIDTH, experts, bias=False)
        self.up = nn.Parameter(torch.empty(experts, WIDTH, 2 * WIDTH))
        self.down = nn.Parameter(torch.empty(experts, 2 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        gates, choice = self.router(flat).softmax(-1).topk(self.chosen, dim=-1)
        order = choice.flatten().argsort()
        tokens = order // self.chosen
        counts = F.one_hot(choice.flatten(), self.up.shape[0]).sum(0)
        ends = counts.cumsum(0).to(torch.int32)
        hidden = F.silu(torch._grouped_mm(flat[tokens], self.up, offs=ends))
        out = torch._grouped_mm(hidden, self.down, offs=ends)
        out = out * gates.flatten()[order].unsqueeze(-1)
        return torch.zeros_like(flat).index_add(0, tokens, out).view_as(x)


class MixtureModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Experts() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(F.layer_norm(x, (WIDTH,)))
        return x.square().mean()


class Convolutions(nn.Module):
    """Images: convolutions, batch norms, a depth-wise one, pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.blocks = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(16, 16, 3, padding=1, groups=16),
                    nn.BatchNorm2d(16),
                    nn.Conv2d(16, 16, 1),
                    nn.ReLU(),
                )
                for _ in range(3)
            )
        )
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = self.blocks(self.stem(x)).mean(dim=(2, 3))
        return F.cross_entropy(self.head(x), labels)


class SkipConnections(nn.Module):
    """A value that crosses several layers before it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.up = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for layer in self.down:
            x = torch.relu(layer(x))
            kept.append(x)
        for layer in self.up:
            x = torch.relu(layer(x)) + kept.pop()
        return x.square().mean()


class SharedBlock(nn.Module):
    """One block used over and over: its weights count once."""

    def __init__(self, times: int = 3) -> None:
        super().__init__()
        self.times = times
        self.blocks = nn.ModuleList([nn.Linear(WIDTH, WIDTH)] * times)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return x.square().mean()


class Tied(nn.Module):
    """The output head is the embedding."""

    def __init__(self, vocab: int = 100) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, vocab, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + torch.relu(block(x))
        return F.cross_entropy(self.head(x).flatten(0, 1), tokens.flatten())


class Alternating(nn.Module):
    """Two kinds of blocks in turn: one period is the layer that repeats."""

    def __init__(self, pairs: int = 4) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Linear(WIDTH, WIDTH)
            if i % 2
            else nn.Sequential(nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH))
            for i in range(2 * pairs)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x.square().mean()


class Checkpointed(nn.Module):
    """Recomputation already in the module: forward operators run in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(lambda y, b=block: torch.tanh(b(y)), x, use_reentrant=False)
        return x.square().mean()


class DataDependent(nn.Module):
    """Branches on a value."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        if y.sum() > 0:  # the line that is to blame
            y = -y
        return y.mean()


class InPlace(nn.Module):
    """Writes into tensors, sums with +=, fills a slice."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.other = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).clone()
        y += x
        y[:, 0] = 0.0
        return self.other(torch.relu_(y)).square().mean()


class Recurrent(nn.Module):
    """An LSTM, which the library runs token by token."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(x)[0].square().mean()


class Frozen(nn.Module):
    """Half of it is not trained, and one weight is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.fixed = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.trained = nn.Linear(WIDTH, WIDTH)
        self.idle = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.trained(self.fixed(x)).square().mean()
