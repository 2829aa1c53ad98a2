"""Timing of a worker's own speed, apart from other load."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from placewright.capturing.source import ModelSource, default_loss
from placewright.capturing.updates import update_of
from placewright.layers.execution.layer_problem import measured_sizes, traced_alike
from placewright.layers.execution.stage_orders import TracedModel
from placewright.layers.execution.timing import LayerTimer, slowdown
from placewright.runtime.emulation import Stretch
from tests.layers.models import language_model


def test_only_emulation_and_quotas_slow_a_worker_down() -> None:
    """Whatever else keeps the cores busy, a worker without either has a slowdown of 1."""
    assert slowdown(None, throttled=False) == 1.0
    assert slowdown(Stretch(2.5), throttled=False) == 2.5
    assert slowdown(None, throttled=True, seconds=0.05) >= 1.0


def test_what_passes_hold_is_measured_where_it_is_asked_for() -> None:
    """On one worker that holds everything between the passes."""
    model = TracedModel(language_model())
    state = {name: nn.Parameter(value) for name, value in model.state().items()}
    programs, feeds = model.programs(model.batch), model.feeds()
    timer = LayerTimer(state, torch.device("cpu"), 1.0, programs, feeds)
    assert 0 <= timer.passes_bytes() < 64 << 20
    timer.round()
    found = timer.times(update_of("sgd", 0.1).made)
    assert math.isnan(found.passes_bytes)
    assert timer.round_s == pytest.approx(found.forward_s.sum() + found.backward_s.sum())


def test_a_single_sample_is_measured_where_a_layer_may_see_one() -> None:
    """A batch norm over one sample per channel is an error in PyTorch."""
    assert measured_sizes(24) == (1, 3, 8, 24)
    assert measured_sizes(24, whole=True) == (3, 8, 24)
    assert measured_sizes(8, whole=True) == (2, 8)  # batch norm refuses one row of features
    assert measured_sizes(2) == (1, 2)


class LooksAtItsBatch(nn.Module):
    """One call more where there are several samples."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Relu, unless there is one sample."""
        return self.inner(x if len(x) == 1 else x.relu())


def test_sizes_on_which_the_model_computes_something_else_are_not_measured() -> None:
    """As GPT-2's code, which expands its mask for several samples only."""
    model = TracedModel(ModelSource(LooksAtItsBatch(), torch.ones(4, 3), default_loss))
    assert traced_alike(model, (1, 2, 4)) == (2, 4)
