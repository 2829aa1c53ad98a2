"""Inception-v3 (arXiv:1512.00567): 27.16 million parameters with its auxiliary head, 23.83 without.

In training it answers with the pair (main, auxiliary); in evaluation with the main output.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from placewright.capturing.zoo.images import classification_loss, images, labels
from placewright.capturing.zoo.inception_blocks import (
    ConvNorm,
    Expanded,
    Factored,
    Grid,
    Plain,
    Shrink,
    ShrinkFactored,
)

AUXILIARY_WEIGHT = 0.4
"""Weight of the auxiliary head in the loss."""


class Auxiliary(nn.Module):
    """A small classifier on the 17x17 grid that helps gradients on their way."""

    def __init__(self, inputs: int, classes: int, grid: Grid) -> None:
        super().__init__()
        self.pool = nn.AvgPool2d(5, stride=3)
        self.conv0 = ConvNorm(inputs, grid(128), 1)
        self.conv1 = ConvNorm(grid(128), grid(768), 5)
        self.last = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(grid(768), classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.last(self.conv1(self.conv0(self.pool(x)))).flatten(1)
        return self.fc(x)  # type: ignore[no-any-return]


def _stem(grid: Grid) -> nn.Sequential:
    return nn.Sequential(
        ConvNorm(3, grid(32), 3, stride=2),
        ConvNorm(grid(32), grid(32), 3),
        ConvNorm(grid(32), grid(64), 3, padding=1),
        nn.MaxPool2d(3, stride=2),
        ConvNorm(grid(64), grid(80), 1),
        ConvNorm(grid(80), grid(192), 3),
        nn.MaxPool2d(3, stride=2),
    )


class InceptionV3(nn.Module):
    """A stem, three grids of Inception blocks (35, 17 and 8 pixels wide), one linear layer."""

    def __init__(self, classes: int = 1000, divide_by: int = 1) -> None:
        super().__init__()
        grid = Grid(divide_by)
        self.stem = _stem(grid)
        self.coarse = nn.Sequential(
            Plain(grid(192), 32, grid),
            Plain(grid(256), 64, grid),
            Plain(grid(288), 64, grid),
            Shrink(grid(288), grid),
            Factored(grid(768), 128, grid),
            Factored(grid(768), 160, grid),
            Factored(grid(768), 160, grid),
            Factored(grid(768), 192, grid),
        )
        self.auxiliary = Auxiliary(grid(768), classes, grid)
        self.fine = nn.Sequential(
            ShrinkFactored(grid(768), grid),
            Expanded(grid(1280), grid),
            Expanded(grid(2048), grid),
            nn.AdaptiveAvgPool2d(1),
            nn.Dropout(0.5),
            nn.Flatten(),
        )
        self.fc = nn.Linear(grid(2048), classes)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        x = self.coarse(self.stem(x))
        extra = self.auxiliary(x) if self.training else None
        main = self.fc(self.fine(x))
        return main if extra is None else (main, extra)


def inception_loss(output: Any, target: Tensor) -> Tensor:
    """Cross-entropy of the main head plus `AUXILIARY_WEIGHT` times that of the other."""
    if isinstance(output, Tensor):
        return classification_loss(output, target)
    main, extra = (classification_loss(part, target) for part in output)
    return torch.add(main, extra, alpha=AUXILIARY_WEIGHT)


def inception_v3(
    *, batch: int = 1, image_size: int = 299, classes: int = 1000, divide_by: int = 1
) -> tuple[Any, ...]:
    """Inception-v3 on `batch` square images of `image_size` pixels (299 or more to train).

    Parameters
    ----------
    divide_by
        Every convolution has this many times fewer channels than in the paper.
    """
    model = InceptionV3(classes, divide_by)
    return model, (images(batch, image_size),), inception_loss, labels(batch, classes)
