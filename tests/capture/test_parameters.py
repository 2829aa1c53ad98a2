"""What training changes beside a parameter's value is refused by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from placewright.capture.model import capture
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
    with pytest.raises(UnsupportedError, match=r"'0\.weight' and '1\.weight' share memory"):
        capture(model, torch.ones(2, 4), training=True)
