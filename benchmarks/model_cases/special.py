# ruff: noqa: D102 - what `forward` does is documented by the class
"""Hand-written models, each with one feature that is easily captured or placed wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from placewright.capturing.source import ModelSource, default_loss


class Lora(nn.Module):
    """A frozen linear layer and a low-rank update that is trained."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + 2.0 * self.up(self.down(x))  # type: ignore[no-any-return]


class Autocast(nn.Module):
    """Computes in bfloat16 under autocast, with parameters in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU(), nn.Flatten()
        )
        self.last = nn.Linear(8 * 64, 8)
        self.again = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.last(self.layers(x))
            y = self.again(self.again(y).relu())
        return y.float().softmax(-1)  # type: ignore[no-any-return]


class Counting(nn.Module):
    """Buffers that are updated in place and replaced; a running mean."""

    calls: Tensor
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y = self.norm(self.linear(x))
        self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        return y - self.mean + self.calls  # type: ignore[no-any-return]


class InPlace(nn.Module):
    """Changes its input in place, and intermediate values through views."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(0.5)[:, 0] += 1
        y = self.first(x).relu_().clone()
        y[:, 2:4].mul_(2).add_(x[:, :2])
        return self.last(y)  # type: ignore[no-any-return]


class Checkpointed(nn.Module):
    """Blocks, with dropout unless `last` makes others, computed again in the backward pass."""

    def __init__(
        self, reentrant: bool, last: Callable[[], nn.Module] = lambda: nn.Dropout(0.2)
    ) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first = nn.Linear(6, 8)
        blocks = (nn.Sequential(nn.Linear(8, 8), nn.GELU(), last()) for _ in range(3))
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=self.reentrant)
        return x


class Recurrent(nn.Module):
    """Embedding, a recurrent layer of PyTorch's own, and a linear one."""

    def __init__(self, kind: Callable[..., nn.Module], **settings: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 12)
        self.layer = kind(12, 16, **settings)
        self.last = nn.Linear(16 * (2 if settings.get("bidirectional") else 1), 30)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.last(self.layer(self.embedding(tokens))[0])  # type: ignore[no-any-return]


class Tied(nn.Module):
    """One weight for the embedding, a layer in the middle and the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 16)
        self.middle = nn.Linear(16, 16)
        self.last = nn.Linear(16, 30, bias=False)
        self.last.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.middle(self.embedding(tokens)).tanh()
        x = x + functional.linear(self.last(x).softmax(-1), self.embedding.weight.T)
        return self.last(x)  # type: ignore[no-any-return]


class Denoiser(nn.Module):
    """A diffusion U-Net: time embedding, residual blocks, attention, skip connections."""

    frequencies: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 16))
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.down = nn.ModuleList(Residual(16, 16) for _ in range(2))
        self.shrink = nn.Conv2d(16, 16, 3, 2, 1)
        self.norm, self.attention = nn.GroupNorm(4, 16), nn.MultiheadAttention(16, 2)
        self.up = nn.ModuleList(Residual(32, 16) for _ in range(2))
        self.last = nn.Conv2d(16, 3, 3, padding=1)
        self.register_buffer("frequencies", torch.exp(-torch.arange(8.0)))

    def forward(self, noisy: Tensor, step: Tensor) -> Tensor:
        angles = step[:, None] * self.frequencies
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        x, skips = self.first(noisy), []
        for block in self.down:
            x = block(x, time)
            skips.append(x)
        x = self.shrink(x)
        tokens = self.norm(x).flatten(2).permute(2, 0, 1)
        x = x + self.attention(tokens, tokens, tokens)[0].permute(1, 2, 0).view_as(x)
        x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
        for block in self.up:
            x = block(torch.cat([x, skips.pop()], 1), time)
        return self.last(x)  # type: ignore[no-any-return]


class Residual(nn.Module):
    """Two convolutions and the time between them."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.norm, self.first = (
            nn.GroupNorm(4, in_channels),
            nn.Conv2d(in_channels, out_channels, 3, padding=1),
        )
        self.time, self.dropout = nn.Linear(16, out_channels), nn.Dropout(0.1)
        self.second = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        self.skip = nn.Conv2d(in_channels, out_channels, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.first(functional.silu(self.norm(x))) + self.time(time)[:, :, None, None]
        made: Tensor = self.second(self.dropout(functional.silu(y))) + self.skip(x)
        return made


class Masked(nn.Module):
    """Attention under a mask, from keyword arguments, with several outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 16)
        self.attention = nn.MultiheadAttention(16, 4, dropout=0.1, batch_first=True)
        self.last = nn.Linear(16, 5)

    def forward(self, *, tokens: Tensor, mask: Tensor) -> dict[str, Tensor]:
        x = self.embedding(tokens)
        y, weights = self.attention(x, x, x, key_padding_mask=~mask)
        return {"scores": self.last(y.masked_fill(~mask[..., None], 0.0)), "weights": weights}


class Margin(nn.Module):
    """A loss with a parameter and a running mean of its own."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.mean.lerp_(outputs.detach().mean(), 0.1)
        made: Tensor = (self.scale * (outputs - self.mean) - targets).square().mean()
        return made


class Branching(nn.Module):
    """Branches on a value."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y if y.sum() > 0 else -y


class Hidden(nn.Module):
    """Reads its weight through a list instead of its attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.kept = [self.linear.weight]

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + self.kept[0].sum()  # type: ignore[no-any-return]


def _rows() -> Tensor:
    return torch.randn(4, 6)


def _tokens() -> Tensor:
    return torch.randint(0, 30, (3, 7))


def _image() -> Tensor:
    return torch.randn(2, 3, 8, 8)


def _plain(make: Callable[[], nn.Module], inputs: Callable[[], Any]) -> Callable[[], ModelSource]:
    return lambda: ModelSource(make(), inputs(), default_loss)


def _lora() -> ModelSource:
    model = nn.Sequential(nn.Embedding(30, 16), Lora(16, 2), nn.GELU(), Lora(16, 2))
    return ModelSource(model, _tokens(), default_loss)


def _denoiser() -> ModelSource:
    inputs = (_image(), torch.tensor([3.0, 40.0]))
    return ModelSource(Denoiser(), inputs, functional.mse_loss, _image())


def _masked() -> ModelSource:
    mask = torch.ones(3, 7, dtype=torch.bool)
    mask[1, 4:] = False
    return ModelSource(Masked(), {"tokens": _tokens(), "mask": mask}, default_loss)


def _own_loss() -> ModelSource:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    return ModelSource(model, _rows(), Margin(), _rows())


def _exported() -> ModelSource:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
    return ModelSource(torch.export.export(model, (_rows(),)).module(), _rows(), default_loss)


SPECIAL: dict[str, Callable[[], ModelSource]] = {
    "dict inputs, masks": _masked,
    "tied weights": _plain(Tied, _tokens),
    "LoRA": _lora,
    "autocast": _plain(Autocast, _image),
    "buffers": _plain(Counting, _rows),
    "input changed in place": _plain(InPlace, _rows),
    "checkpointing": _plain(lambda: Checkpointed(False), _rows),
    "checkpointing, reentrant": _plain(lambda: Checkpointed(True), _rows),
    "checkpointing, batch norm": _plain(
        lambda: Checkpointed(False, lambda: nn.BatchNorm1d(8)), _rows
    ),
    "checkpointing, reentrant, batch norm": _plain(
        lambda: Checkpointed(True, lambda: nn.BatchNorm1d(8)), _rows
    ),
    "loss with parameters": _own_loss,
    "torch.export module": _exported,
    "LSTM": _plain(lambda: Recurrent(nn.LSTM, num_layers=2, dropout=0.1), _tokens),
    "GRU": _plain(lambda: Recurrent(nn.GRU, num_layers=2), _tokens),
    "GRU, both ways": _plain(lambda: Recurrent(nn.GRU, bidirectional=True), _tokens),
    "RNN": _plain(lambda: Recurrent(nn.RNN, batch_first=True), _tokens),
    "diffusion U-Net": _denoiser,
    "branching on a value": _plain(Branching, _rows),
    "weight read past its name": _plain(Hidden, _rows),
}
"""Name -> factory of the model."""
