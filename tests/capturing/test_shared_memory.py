"""Refusal of training steps that change more than a parameter's value."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from placewright.capturing.model import capture
from placewright.errors import UnsupportedError


@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_hook_on_a_parameter_is_refused(kind: str) -> None:
    """Eager calls it; inference has no gradient for it."""
    model = nn.Sequential(nn.Linear(4, 4))
    getattr(model[0].weight, kind)(lambda gradient: None)
    with pytest.raises(UnsupportedError, match=r"(?s)parameter '0\.weight'.*hook"):
        capture(model, torch.ones(2, 4), training=True)
    capture(model, torch.ones(2, 4))


def test_parameters_that_share_memory_are_refused() -> None:
    """An update of one is an update of the other; beside each other in one tensor is fine."""
    flat = torch.randn(32)
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[0].weight = nn.Parameter(flat[:16].view(4, 4))
    model[1].weight = nn.Parameter(flat[16:].view(4, 4))
    capture(model, torch.ones(2, 4), training=True)
    model[1].weight = nn.Parameter(flat[15:31].view(4, 4))
    with pytest.raises(
        UnsupportedError, match=r"'parameter:0\.weight' and 'parameter:1\.weight' share"
    ):
        capture(model, torch.ones(2, 4), training=True)


class _Doubling(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + y


def test_an_input_that_is_changed_and_shares_memory_is_refused() -> None:
    """Eager sees the change in both; inputs beside each other in one tensor are fine."""
    batch = torch.arange(12.0)
    capture(_Doubling(), (batch[:6], batch[6:]))
    capture(nn.Bilinear(6, 6, 2), (batch[:6].view(1, 6), batch[:6].view(1, 6)))
    for x, y in ((batch[:6], batch[5:11]), (batch, batch)):
        with pytest.raises(UnsupportedError, match="'input:0' and 'input:1' share memory"):
            capture(_Doubling(), (x, y))
