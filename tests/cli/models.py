"""Custom models, given on the command line as ``tests.cli.models:factory``."""

from __future__ import annotations

from typing import Any

import torch

from placewright.capturing.zoo.small_gpt import small_gpt


class Drifting(torch.nn.Module):
    """Computes something else in every step, which no captured program does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Times a number that grows."""
        self.calls += 1
        out: torch.Tensor = self.layer(x) * float(self.calls)
        return out


def drifting() -> tuple[torch.nn.Module, torch.Tensor]:
    """A model whose check fails."""
    return Drifting(), torch.ones(4, 8)


def tower() -> tuple[torch.nn.Module, torch.Tensor]:
    """Two layers."""
    layers = [torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)]
    return torch.nn.Sequential(*layers), torch.ones(4, 8)


def dropped() -> tuple[torch.nn.Module, torch.Tensor]:
    """Its dropout draws random numbers."""
    layers = [torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2)]
    return torch.nn.Sequential(*layers), torch.ones(4, 8)


def tiny_gpt(batch: int = 4) -> Any:
    """One block on pieces of text."""
    return small_gpt(batch=batch, width=16, blocks=1)


def shapes_only() -> tuple[torch.nn.Module, torch.Tensor]:
    """Two layers without weights, and an input without values."""
    with torch.device("meta"):
        return tower()
