"""Define models with much computation per weight, which can gain from workers on slow links.

Factories for ``FILE.py:factory``, with random inputs: ``resnet20`` (arXiv:1512.03385, section 4.2,
0.27 million parameters), ``denoiser`` (DnCNN, arXiv:1608.03981, without batch norm), ``mixer``
(MLP-Mixer, arXiv:2105.01601) and ``long_gpt`` (decoder blocks on 256 bytes).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from placewright.capturing.zoo.convolutional import (
    classification_loss,
    images,
    labels,
    token_loss,
    tokens,
)
from placewright.capturing.zoo.language import BYTES, Block


class Residual(nn.Module):
    """Two 3x3 convolutions with batch norm beside a shortcut, which is a 1x1 convolution."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Images of the block's size."""
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


def resnet20(*, batch: int = 24) -> tuple[Any, ...]:
    """Nine residual blocks on images of 32 pixels."""
    widths = (16, 16, 16, 16, 32, 32, 32, 64, 64, 64)
    blocks = [Residual(a, b, 1 if a == b else 2) for a, b in pairwise(widths)]
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )
    return model, (images(batch, 32),), classification_loss, labels(batch, 10)


def denoiser(*, batch: int = 12, width: int = 48, depth: int = 10) -> tuple[Any, ...]:
    """A chain of 3x3 convolutions on patches of 40 pixels, which keeps their size."""
    inner = [
        layer for _ in range(depth) for layer in (nn.Conv2d(width, width, 3, padding=1), nn.ReLU())
    ]
    ends = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
    model = nn.Sequential(ends[0], nn.ReLU(), *inner, ends[1])
    return model, (images(batch, 40),), nn.functional.mse_loss, images(batch, 40)


class MixerBlock(nn.Module):
    """An MLP over patches, then one over channels, each with layer norm before and a skip."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.over_patches = nn.Sequential(
            nn.Linear(patches, 2 * patches), nn.GELU(), nn.Linear(2 * patches, patches)
        )
        self.over_channels = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Shape as given."""
        x = x + self.over_patches(self.before(x).transpose(1, 2)).transpose(1, 2)
        mixed: Tensor = x + self.over_channels(self.between(x))
        return mixed


class Mixer(nn.Module):
    """Patches of 4 pixels, mixer blocks, the mean over patches and a linear layer."""

    def __init__(self, width: int, blocks: int, classes: int = 10) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.blocks = nn.Sequential(*(MixerBlock(256, width) for _ in range(blocks)))
        self.norm, self.scores = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of classes."""
        x = self.blocks(self.patches(x).flatten(2).transpose(1, 2))
        scores: Tensor = self.scores(self.norm(x).mean(1))
        return scores


def mixer(*, batch: int = 12, width: int = 64, blocks: int = 4) -> tuple[Any, ...]:
    """256 patches of images of 64 pixels."""
    return Mixer(width, blocks), (images(batch, 64),), classification_loss, labels(batch, 10)


class LongGpt(nn.Module):
    """Scores of the next byte at every one of `length` positions."""

    def __init__(self, width: int, blocks: int, length: int) -> None:
        super().__init__()
        self.bytes, self.positions = nn.Embedding(BYTES, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(blocks)))
        self.scores = nn.Linear(width, BYTES)

    def forward(self, text: Tensor) -> Tensor:
        """Scores of bytes."""
        scores: Tensor = self.scores(self.blocks(self.bytes(text) + self.positions.weight))
        return scores


def long_gpt(
    *, batch: int = 12, width: int = 96, blocks: int = 4, length: int = 256
) -> tuple[Any, ...]:
    """Pieces of `length` bytes."""
    words, targets = tokens(batch, length, BYTES), tokens(batch, length, BYTES)
    return LongGpt(width, blocks, length), (words,), token_loss, targets
