"""ResNet-50 (arXiv:1512.03385), stride in the 3x3 convolution: 25.56 million parameters."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from placewright.capturing.zoo.data import classification_loss, images, labels

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
