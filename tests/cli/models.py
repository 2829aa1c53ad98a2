"""A user's model, as ``tests.cli.models:factory``."""

from __future__ import annotations

import torch


def tower() -> tuple[torch.nn.Module, torch.Tensor]:
    """Two layers."""
    layers = [torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)]
    return torch.nn.Sequential(*layers), torch.ones(4, 8)
