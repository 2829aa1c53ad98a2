"""AlexNet, one column (arXiv:1404.5997), and VGG-16 (arXiv:1409.1556, configuration D).

They have 61.1 and 138.36 million parameters.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from placewright.capturing.zoo.data import classification_loss, images, labels


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
