"""Inception-v3 (arXiv:1512.00567): 27.16 million parameters with its auxiliary head, 23.83 without.

In training it returns the pair (main, auxiliary); in evaluation the main output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from placewright.capturing.zoo.data import classification_loss, images, labels

AUXILIARY_WEIGHT = 0.4
"""Weight of the auxiliary head in the loss."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Channels as in the paper, divided for tests: ``Grid(8)(192) == 24``."""

    divide_by: int = 1

    def __call__(self, channels: int) -> int:
        return channels // self.divide_by


class ConvNorm(nn.Module):
    """Convolution, batch normalisation, ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: Any, **settings: Any) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, bias=False, **settings)
        self.bn = nn.BatchNorm2d(outputs, eps=0.001)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.bn(self.conv(x)))  # type: ignore[no-any-return]


class Branches(nn.Module):
    """Modules side by side on one input, their outputs joined along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def _pooled(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), ConvNorm(inputs, outputs, 1))


def _row(inputs: int, outputs: int, width: int) -> ConvNorm:
    return ConvNorm(inputs, outputs, (1, width), padding=(0, width // 2))


def _column(inputs: int, outputs: int, height: int) -> ConvNorm:
    return ConvNorm(inputs, outputs, (height, 1), padding=(height // 2, 0))


class Plain(Branches):
    """1x1, 5x5, double 3x3 and pooling (figure 5 of the paper)."""

    def __init__(self, inputs: int, pooled: int, grid: Grid) -> None:
        c48, c64, c96 = grid(48), grid(64), grid(96)
        super().__init__(
            ConvNorm(inputs, c64, 1),
            nn.Sequential(ConvNorm(inputs, c48, 1), ConvNorm(c48, c64, 5, padding=2)),
            nn.Sequential(
                ConvNorm(inputs, c64, 1),
                ConvNorm(c64, c96, 3, padding=1),
                ConvNorm(c96, c96, 3, padding=1),
            ),
            _pooled(inputs, grid(pooled)),
        )


class Shrink(Branches):
    """From the 35-pixel grid to the 17-pixel grid (figure 10)."""

    def __init__(self, inputs: int, grid: Grid) -> None:
        c64, c96 = grid(64), grid(96)
        super().__init__(
            ConvNorm(inputs, grid(384), 3, stride=2),
            nn.Sequential(
                ConvNorm(inputs, c64, 1),
                ConvNorm(c64, c96, 3, padding=1),
                ConvNorm(c96, c96, 3, stride=2),
            ),
            nn.MaxPool2d(3, stride=2),
        )


class Factored(Branches):
    """7x7 convolutions as 1x7 and 7x1 (figure 6)."""

    def __init__(self, inputs: int, width: int, grid: Grid) -> None:
        w, out = grid(width), grid(192)
        super().__init__(
            ConvNorm(inputs, out, 1),
            nn.Sequential(ConvNorm(inputs, w, 1), _row(w, w, 7), _column(w, out, 7)),
            nn.Sequential(
                ConvNorm(inputs, w, 1),
                _column(w, w, 7),
                _row(w, w, 7),
                _column(w, w, 7),
                _row(w, out, 7),
            ),
            _pooled(inputs, out),
        )


class ShrinkFactored(Branches):
    """From the 17-pixel grid to the 8-pixel grid."""

    def __init__(self, inputs: int, grid: Grid) -> None:
        c192 = grid(192)
        super().__init__(
            nn.Sequential(ConvNorm(inputs, c192, 1), ConvNorm(c192, grid(320), 3, stride=2)),
            nn.Sequential(
                ConvNorm(inputs, c192, 1),
                _row(c192, c192, 7),
                _column(c192, c192, 7),
                ConvNorm(c192, c192, 3, stride=2),
            ),
            nn.MaxPool2d(3, stride=2),
        )


class Expanded(Branches):
    """Filter banks widened side by side on the coarsest grid (figure 7)."""

    def __init__(self, inputs: int, grid: Grid) -> None:
        c384, c448 = grid(384), grid(448)
        super().__init__(
            ConvNorm(inputs, grid(320), 1),
            nn.Sequential(ConvNorm(inputs, c384, 1), self._split(c384)),
            nn.Sequential(
                ConvNorm(inputs, c448, 1), ConvNorm(c448, c384, 3, padding=1), self._split(c384)
            ),
            _pooled(inputs, grid(192)),
        )

    @staticmethod
    def _split(channels: int) -> Branches:
        return Branches(_row(channels, channels, 3), _column(channels, channels, 3))


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
    """Inception-v3 on square images (299 pixels to train), `divide_by` times fewer channels."""
    model = InceptionV3(classes, divide_by)
    return model, (images(batch, image_size),), inception_loss, labels(batch, classes)
