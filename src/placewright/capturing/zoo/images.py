"""Images and labels for the convolutional networks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy


def images(batch: int, size: int) -> Tensor:
    """Shape (batch, 3, size, size), standard normal."""
    return torch.randn(batch, 3, size, size)


def labels(batch: int, classes: int) -> Tensor:
    """Shape (batch,), class indices."""
    return torch.randint(0, classes, (batch,))


def classification_loss(output: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy; `output` has shape (batch, classes)."""
    return cross_entropy(output, target)
