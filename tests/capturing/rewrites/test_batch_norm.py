"""Normalisation layers: their updates of buffers are captured in every variant."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from placewright.capturing.model import capture_source
from placewright.capturing.source import ModelSource
from tests.capturing.against_eager import differences, inference_differences

LAYERS = {
    "plain": lambda: nn.BatchNorm2d(4),
    "without statistics": lambda: nn.BatchNorm2d(4, track_running_stats=False),
    "without weights": lambda: nn.BatchNorm2d(4, affine=False, momentum=0.3),
    "cumulative": lambda: nn.BatchNorm2d(4, momentum=None),
    "cumulative, without weights": lambda: nn.BatchNorm2d(4, affine=False, momentum=None),
    "instance": lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
    "group": lambda: nn.GroupNorm(2, 4),
    "local response": lambda: nn.LocalResponseNorm(2),
}


class Around(nn.Module):
    """A convolution, a normalisation twice (so that its statistics change twice), a sum."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), norm

    def forward(self, x: Tensor) -> Tensor:
        """Shape (batch, 4, 4, 4)."""
        return self.norm(self.norm(self.conv(x)) * 2.0)


@pytest.mark.parametrize("name", LAYERS)
def test_normalisation_equals_eager(name: str) -> None:
    """Training in any order, statistics included, and inference."""
    torch.manual_seed(0)
    source = ModelSource(Around(LAYERS[name]()), torch.randn(2, 3, 6, 6))
    assert differences(source) == {}
    assert differences(source, shuffle=2) == {}
    assert inference_differences(source) == {}


def test_inference_changes_nothing() -> None:
    """No copies of the statistics, no updates."""
    source = ModelSource(Around(nn.BatchNorm2d(4)), torch.randn(2, 3, 6, 6))
    graph = capture_source(source)
    assert not any(call.mutates for call in graph.program.instructions)
    kinds = {call.target for call in graph.program.instructions if "batch_norm" in call.target}
    assert kinds == {"aten._native_batch_norm_legit_no_training.default"}
