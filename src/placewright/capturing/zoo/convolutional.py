"""Convolutional networks: AlexNet, VGG-16, Inception-v3, ResNet-50, and a small one of digits.

AlexNet has one column (arXiv:1404.5997), VGG-16 is configuration D of arXiv:1409.1556. They have
61.1 and 138.36 million parameters.

Inception-v3 (arXiv:1512.00567) has 27.16 million parameters with its auxiliary head, 23.83 without.
In training it returns the pair (main, auxiliary); in evaluation the main output.

ResNet-50 (arXiv:1512.03385) has its stride in the 3x3 convolution, and 25.56 million parameters.

Inputs, labels and losses of the zoo's models, and the optional package transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from placewright.errors import InputError, MissingDependencyError
from placewright.numerics.arrays import IntArray


def images(batch: int, size: int) -> Tensor:
    """Shape (batch, 3, size, size), standard normal."""
    return torch.randn(batch, 3, size, size)


def labels(batch: int, classes: int) -> Tensor:
    """Shape (batch,), class indices."""
    return torch.randint(0, classes, (batch,))


def classification_loss(output: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy; `output` has shape (batch, classes)."""
    return cross_entropy(output, target)


def tokens(batch: int, sequence: int, vocabulary: int) -> Tensor:
    """Shape (batch, sequence), token numbers."""
    return torch.randint(0, vocabulary, (batch, sequence))


def token_loss(output: Any, target: Tensor) -> Tensor:
    """Mean cross-entropy over all tokens; `output` has shape (batch, sequence, vocabulary)."""
    logits = output if isinstance(output, Tensor) else output.logits
    return cross_entropy(logits.flatten(0, 1), target.flatten())


def transformers_needed(purpose: str) -> ModuleType:
    """The package transformers, imported; `MissingDependencyError` if it is not installed."""
    try:
        return import_module("transformers")
    except ImportError as error:
        raise MissingDependencyError("transformers", extra="torch", purpose=purpose) from error


class AlexNet(nn.Module):
    """Five convolutions, three of them pooled, and three fully connected layers."""

    def __init__(self, classes: int = 1000, width: int = 4096, dropout: float = 0.5) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 11, stride=4, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
        )
        self.pool = nn.AdaptiveAvgPool2d((6, 6))
        self.classifier = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(256 * 6 * 6, width),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.features(x)).flatten(1)
        return self.classifier(x)  # type: ignore[no-any-return]


def alexnet(
    *, batch: int = 1, image_size: int = 224, classes: int = 1000, width: int = 4096
) -> tuple[Any, ...]:
    """AlexNet on `batch` square images of `image_size` pixels (63 or more)."""
    model = AlexNet(classes, width)
    return model, (images(batch, image_size),), classification_loss, labels(batch, classes)


STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Channels and convolutions of each stage; every stage ends in a pooling."""


def _features(divide_by: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    inputs = 3
    for channels, count in STAGES:
        for _ in range(count):
            outputs = channels // divide_by
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True)]
            inputs = outputs
        layers.append(nn.MaxPool2d(2, 2))
    return nn.Sequential(*layers)


class VGG16(nn.Module):
    """Thirteen 3x3 convolutions and three fully connected layers."""

    def __init__(self, classes: int = 1000, width: int = 4096, divide_by: int = 1) -> None:
        super().__init__()
        self.features = _features(divide_by)
        self.pool = nn.AdaptiveAvgPool2d((7, 7))
        self.classifier = nn.Sequential(
            nn.Linear(512 // divide_by * 7 * 7, width),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(width, width),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(width, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.features(x)).flatten(1)
        return self.classifier(x)  # type: ignore[no-any-return]


def vgg16(
    *,
    batch: int = 1,
    image_size: int = 224,
    classes: int = 1000,
    width: int = 4096,
    divide_by: int = 1,
) -> tuple[Any, ...]:
    """VGG-16 on square images of 32 or more pixels, with `divide_by` times fewer channels."""
    model = VGG16(classes, width, divide_by)
    return model, (images(batch, image_size),), classification_loss, labels(batch, classes)


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


EXPANSION = 4
"""A block's output has this many times the channels of its inner convolutions."""


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions beside a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.relu(y + self.shortcut(x))  # type: ignore[no-any-return]


def _stage(inputs: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    rest = [Bottleneck(EXPANSION * width, width, 1) for _ in range(blocks - 1)]
    return nn.Sequential(Bottleneck(inputs, width, stride), *rest)


class ResNet(nn.Module):
    """A stem, four stages of bottlenecks, global pooling and one linear layer."""

    def __init__(self, blocks: tuple[int, ...], width: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        stages, inputs = [], width
        for k, count in enumerate(blocks):
            stages.append(_stage(inputs, width << k, count, stride=1 if k == 0 else 2))
            inputs = EXPANSION * (width << k)
        self.stages = nn.Sequential(*stages)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.avgpool(self.stages(x)).flatten(1)
        return self.fc(x)  # type: ignore[no-any-return]


def resnet50(
    *,
    batch: int = 1,
    image_size: int = 224,
    classes: int = 1000,
    blocks: tuple[int, ...] = (3, 4, 6, 3),
    width: int = 64,
) -> tuple[Any, ...]:
    """ResNet on `batch` square images of `image_size` pixels."""
    model = ResNet(blocks, width, classes)
    return model, (images(batch, image_size),), classification_loss, labels(batch, classes)


SIDE, CLASSES = 12, 10
NOISE, SHIFT, BRIGHTEST = 45.0, 2, 255
TEST_IMAGES, TEST_DIGITS = 500, 300

Labelled = tuple[Tensor, Tensor]
"""Pictures of shape (n, 1, side, side) from -1 to 1, and their classes, shape (n,)."""


def classifier(
    channels: int = 8, depth: int = 1, enlarged: int = 1, seed: int = 0
) -> tuple[nn.Module, nn.Module]:
    """Convolutions, a pooling and a linear layer; and the loss.

    `enlarged`: pictures are so many times as wide and high for the network, and so are its kernels
    and what it pools: more to compute, hardly more gradients.
    """
    sizes = [(1, channels), *[(channels, channels)] * (depth - 1)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        convolutions = [nn.Conv2d(a, b, 2 * enlarged + 1, padding=enlarged) for a, b in sizes]
        model = nn.Sequential(
            nn.Upsample(scale_factor=enlarged) if enlarged > 1 else nn.Identity(),
            *(layer for convolution in convolutions for layer in (convolution, nn.ReLU())),
            nn.MaxPool2d(2 * enlarged),
            nn.Flatten(),
            nn.Linear(channels * (SIDE // 2) ** 2, CLASSES),
        )
    return model, nn.CrossEntropyLoss()


def pictures(wanted: Sequence[int], seed: int = 0) -> tuple[Labelled, Labelled]:
    """Pictures to train on and others to test with.

    Handwritten ones where scikit-learn is installed and has enough of each class, else made from
    `seed`.

    Parameters
    ----------
    wanted
        How many of each class; a single number: in all, of any class.

    Raises
    ------
    InputError
        More classes than pictures have.
    """
    if len(wanted) > CLASSES:
        raise InputError(
            "the pictures of digits have fewer classes than the samples",
            where="example model",
            by=f"{len(wanted)} classes, at most {CLASSES}",
            hint="give a model and a data set of your own, or join classes",
        )
    if find_spec("sklearn") is not None:
        pixels, labels = handwritten(seed)
        if _enough(labels[TEST_DIGITS:], wanted):
            return (pixels[TEST_DIGITS:], labels[TEST_DIGITS:]), (
                pixels[:TEST_DIGITS],
                labels[:TEST_DIGITS],
            )
    classes = None if len(wanted) == 1 else np.repeat(np.arange(len(wanted)), wanted)
    return drawn(sum(wanted), seed, classes), drawn(TEST_IMAGES, seed + 1)


def _enough(labels: Tensor, wanted: Sequence[int]) -> bool:
    if len(wanted) == 1:
        return len(labels) >= wanted[0]
    there = torch.bincount(labels, minlength=CLASSES)
    return all(int(there[c]) >= count for c, count in enumerate(wanted))


def drawn(count: int, seed: int = 0, labels: IntArray | None = None) -> Labelled:
    """Pictures made from a seed, a pattern per class in noise; classes are alike for all seeds."""
    patterns = np.random.default_rng(0).uniform(40, 215, (CLASSES, SIDE, SIDE))
    rng = np.random.default_rng((0, seed))
    labels = rng.integers(0, CLASSES, count) if labels is None else labels
    shifts = rng.integers(-SHIFT, SHIFT + 1, (count, 2))
    moved = np.stack(
        [
            np.roll(patterns[label], shift, axis=(0, 1))
            for label, shift in zip(labels.tolist(), shifts.tolist(), strict=True)
        ]
    )
    noisy = moved + rng.normal(0, NOISE, moved.shape)
    return _labelled(np.clip(noisy, 0, BRIGHTEST), labels)


def handwritten(seed: int = 0) -> Labelled:
    """The 1,797 handwritten digits that come with scikit-learn, shuffled, in a frame of 12 x 12.

    Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998,
    doi:10.24432/C50P49 (the test part).

    Raises `MissingDependencyError`: scikit-learn is not installed.
    """
    try:
        found = import_module("sklearn.datasets").load_digits()
    except ImportError:
        raise MissingDependencyError(
            "scikit-learn", extra="dev", purpose="training on handwritten digits"
        ) from None
    order = np.random.default_rng(seed).permutation(len(found.target))
    margin = (SIDE - found.images.shape[1]) // 2
    framed = np.pad(found.images[order], ((0, 0), (margin, margin), (margin, margin)))
    return _labelled(framed * BRIGHTEST / found.images.max(), found.target[order].astype(np.int64))


def _labelled(
    pixels: np.ndarray[tuple[int, ...], np.dtype[np.float64]], labels: IntArray
) -> Labelled:
    whole = np.clip(pixels, 0, BRIGHTEST).astype(np.uint8)
    scaled = torch.tensor(whole.astype(np.float32) / 128.0 - 1.0)
    return scaled[:, None], torch.tensor(labels)
