"""Inputs, labels and losses of the zoo's models, and the optional package transformers."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from placewright.errors import MissingDependencyError


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
