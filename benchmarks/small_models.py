"""Twelve models whose steps take 1 to 20 ms, with weights and inputs from a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from placewright.capturing.source import ModelSource, default_loss


def dense(*widths: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with an activation between any two."""
    pairs = pairwise(widths)
    layers = [layer for a, b in pairs for layer in (nn.Linear(a, b), activation())]
    return nn.Sequential(*layers[:-1])


class Towers(nn.Module):
    """Branches beside each other, and a head over all of them."""

    def __init__(self, count: int = 4, width: int = 256) -> None:
        super().__init__()
        self.towers = nn.ModuleList(dense(*[width] * 4) for _ in range(count))
        self.head = nn.Linear(count * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """All branches read the same input."""
        return self.head(torch.cat([tower(x) for tower in self.towers], 1))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """An LSTM that classifies by its last output."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(width, width, batch_first=True), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The last output of the sequence."""
        found, _ = self.lstm(x)
        return self.head(found[:, -1])  # type: ignore[no-any-return]


class Unet(nn.Module):
    """One level down and up again, as in diffusion models."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.mid = self._block(3, 16), self._block(16, 32)
        self.up, self.last = self._block(48, 16), nn.Conv2d(16, 3, 1)

    @staticmethod
    def _block(a: int, b: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(4, b), nn.SiLU())

    def forward(self, x: Tensor) -> Tensor:
        """With a skip connection."""
        fine = self.down(x)
        coarse = functional.interpolate(self.mid(functional.max_pool2d(fine, 2)), scale_factor=2)
        return self.last(self.up(torch.cat([fine, coarse], 1)))  # type: ignore[no-any-return]


class Logits(nn.Module):
    """A GPT-2 of transformers that answers its logits."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            vocab_size=500, n_positions=64, n_embd=64, n_layer=2, n_head=2, bos_token_id=0,
            eos_token_id=0,
        )  # fmt: skip
        self.model = GPT2LMHeadModel(config)

    def forward(self, tokens: Tensor) -> Tensor:
        """Of every position."""
        return self.model(tokens, use_cache=False).logits  # type: ignore[no-any-return]


def convolutions() -> nn.Module:
    """Three convolutions with batch normalisation."""
    pairs = ((3, 16), (16, 32), (32, 64))
    blocks = [(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()) for a, b in pairs]
    pooled = [[*block, nn.MaxPool2d(2)] for block in blocks]
    layers = [layer for block in pooled for layer in block]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 10))


def encoder() -> nn.Module:
    """Two layers of a transformer."""
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


@dataclass(frozen=True, slots=True)
class Small:
    """A small model: how it is made, its inputs, its classes (0: the mean square is the loss)."""

    make: Callable[[], nn.Module]
    inputs: Callable[[], Tensor]
    classes: int = 0
    training: bool = True

    def source(self, name: str) -> ModelSource:
        """Weights and inputs from one seed."""
        torch.manual_seed(0)
        model, x = self.make(), self.inputs()
        if not self.training:
            return ModelSource(model, (x,), name=name)
        if not self.classes:
            return ModelSource(model, (x,), default_loss, None, name)
        targets = torch.randint(0, self.classes, x.shape if x.dtype == torch.int64 else x.shape[:1])
        return ModelSource(model, (x,), _cross_entropy, targets, name)


def _cross_entropy(outputs: Any, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def images(count: int) -> Callable[[], Tensor]:
    """Images of 32 x 32."""
    return lambda: torch.randn(count, 3, 32, 32)


MODELS = {
    "mlp, inference": Small(
        lambda: dense(784, 512, 512, 10), lambda: torch.randn(64, 784), training=False
    ),
    "mlp": Small(lambda: dense(784, 512, 512, 10), lambda: torch.randn(64, 784), 10),
    "deep narrow mlp": Small(
        lambda: dense(*[64] * 24, activation=nn.Tanh), lambda: torch.randn(32, 64)
    ),
    "towers, inference": Small(Towers, lambda: torch.randn(64, 256), training=False),
    "towers": Small(Towers, lambda: torch.randn(64, 256), 10),
    "cnn, inference": Small(convolutions, images(8), training=False),
    "cnn": Small(convolutions, images(8), 10),
    "encoder": Small(encoder, lambda: torch.randn(4, 32, 64)),
    "lstm": Small(Recurrent, lambda: torch.randn(16, 24, 128), 10),
    "gpt2, inference": Small(Logits, lambda: torch.randint(0, 500, (2, 32)), training=False),
    "gpt2": Small(Logits, lambda: torch.randint(0, 500, (2, 32)), 500),
    "u-net": Small(Unet, images(2)),
}
