"""A model that trains in milliseconds, for a service that allows it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def perceptron(batch: int = 8) -> tuple[Any, ...]:
    """Three layers, and a batch of numbers to fit."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2)
    )
    return model, (torch.randn(batch, 8),), nn.functional.mse_loss, torch.randn(batch, 2)


def wide(batch: int = 64) -> tuple[Any, ...]:
    """Two large layers: a step takes long beside what it takes to say so."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512))
    return model, (torch.randn(batch, 512),), nn.functional.mse_loss, torch.randn(batch, 512)
