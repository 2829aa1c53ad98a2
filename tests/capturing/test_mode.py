"""Training mode during capture, and counters that a module changes itself."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from placewright.capturing.mode import CaptureWarning
from placewright.capturing.model import capture


class _Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.inner(x) * self.calls


@pytest.mark.parametrize("training", [False, True])
def test_a_number_that_a_module_counts_up_is_named(training: bool) -> None:
    """The program has 1 in every step; the model is left as it was."""
    model = nn.Sequential(_Counting())
    with pytest.warns(CaptureWarning, match="module '0' changes its attribute 'calls' from 0 to"):
        capture(model, torch.ones(2, 3), training=training)
    assert model[0].calls == 0


def test_what_stays_as_it_is_is_not_named() -> None:
    """Nor is the mode, which capture itself changes for a while."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        capture(model, torch.ones(2, 3), training=True)
        capture(model.eval(), torch.ones(2, 3), training=True)
