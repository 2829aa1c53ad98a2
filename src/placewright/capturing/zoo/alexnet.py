"""AlexNet, the one-column form (arXiv:1404.5997): 61.1 million parameters."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from placewright.capturing.zoo.images import classification_loss, images, labels


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
