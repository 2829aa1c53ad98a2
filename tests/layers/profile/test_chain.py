"""Where a traced step is cut into layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from placewright.capturing.source import ModelSource
from placewright.layers.execution.stage_orders import TracedModel
from placewright.layers.execution.timing import LayerTimer
from placewright.layers.profile.chain import chain, in_place
from placewright.layers.profile.tracing import trace_step


class ChangesThroughView(nn.Module):
    """The first layer's output changes after the second layer, through a view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """What is read at the end is the changed value."""
        changed = self.first(x)
        other = self.second(x)
        changed.view(-1, 2, 4).mul_(0.5)
        out: Tensor = self.third(other.tanh() + changed)
        return out


def test_a_value_and_its_change_through_a_view_are_in_one_layer() -> None:
    """Its views would not see the change of a copy."""
    source = ModelSource(ChangesThroughView(), (torch.randn(4, 6),), name="views")
    step = trace_step(source, 4)
    (changed,) = [k for k, call in enumerate(step.instructions) if in_place(call)]
    made = next(k for k, c in enumerate(step.instructions) if c.target == "aten.linear.default")
    (layer,) = [layer for layer in chain(step) if layer.first <= changed < layer.end]
    assert layer.first <= made < changed
    model = TracedModel(source)
    assert len(model.layers) > 1
    state = {name: nn.Parameter(value) for name, value in model.state().items()}
    timer = LayerTimer(state, torch.device("cpu"), 1.0, model.programs(4), model.feeds())
    timer.round()  # each layer forwards and backwards, from what it is given


def test_a_change_of_a_value_without_views_allows_a_cut() -> None:
    """``nn.ReLU(inplace=True)`` begins a layer of its own where the chain is cut before it."""
    layers = [nn.Linear(6, 6), nn.ReLU(inplace=True)] * 3
    source = ModelSource(nn.Sequential(*layers), (torch.randn(4, 6),), name="relus")
    assert len(chain(trace_step(source, 4))) == 3
