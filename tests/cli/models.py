"""Custom models, given on the command line as ``tests.cli.models:factory``."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from placewright.capturing.zoo.language import small_gpt

_FACTORS = itertools.chain([1.0] * 4, itertools.repeat(2.0))


class Drifting(torch.nn.Module):
    """Computes something else after four calls: two for real, two of a capture."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Times a number that an iterator of the module gives, which no guard watches."""
        out: torch.Tensor = self.layer(x) * next(_FACTORS)
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
