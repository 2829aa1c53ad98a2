"""Define three small models, their batches and a custom optimizer for training_equality.py."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Batches = list[tuple[torch.Tensor, torch.Tensor]]


class Lion(torch.optim.Optimizer):
    """Sign of an average of gradients (arXiv:2302.06675)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            first, second = group["betas"]
            for p in (p for p in group["params"] if p.grad is not None):
                state = self.state[p]
                average = state.setdefault("average", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_((average * first + p.grad * (1 - first)).sign(), alpha=-group["lr"])
                average.mul_(second).add_(p.grad, alpha=1 - second)


class Conv(nn.Module):
    """Convolutions, batch norm (buffers) and dropout (random numbers)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 16, 3, stride=2)
        self.norm, self.drop, self.head = nn.BatchNorm2d(8), nn.Dropout(0.3), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores."""
        x = functional.relu(self.second(functional.relu(self.norm(self.first(x)))))
        return self.head(self.drop(x.mean((2, 3))))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Two layers of attention over tokens; the embedding is the head's weight, too."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.tokens = nn.Embedding(20, width)
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.norm = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of the next token, tokens last."""
        h = self.tokens(x)
        for qkv, out, norm in zip(self.qkv, self.out, self.norm, strict=True):
            q, k, v = qkv(norm(h)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            h = h + self.drop(out(mixed.transpose(1, 2).flatten(2)))
        return functional.linear(h, self.tokens.weight).transpose(1, 2)


class Recurrent(nn.Module):
    """An LSTM over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.cell = nn.Embedding(20, 12), nn.LSTM(12, 16, batch_first=True)
        self.head = nn.Linear(16, 20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of the next token, tokens last."""
        return self.head(self.cell(self.tokens(x))[0]).transpose(1, 2)  # type: ignore[no-any-return]


MODELS = {"convolutions": Conv, "attention": Attention, "LSTM": Recurrent}


def model_and_batches(name: str, steps: int) -> tuple[nn.Module, Batches]:
    """A model with fixed weights and so many batches, every fifth of them an odd one."""
    torch.manual_seed(0)
    model = MODELS[name]()
    draw = torch.Generator().manual_seed(1)
    batches = []
    for step in range(1, steps + 1):
        size = 6 if step % 5 else 4
        if name == "convolutions":
            x = torch.randn(size, 3, 12, 12, generator=draw)
            y = torch.randint(0, 5, (size,), generator=draw)
        else:
            x, y = (torch.randint(0, 20, (size, 7), generator=draw) for _ in range(2))
        batches.append((x, y))
    return model, batches
