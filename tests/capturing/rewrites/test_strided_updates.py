# ruff: noqa: D102 - the docstring of the class describes `forward`
"""In-place operations on strided views round as eager's do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from placewright.capturing.model import capture_source
from placewright.capturing.source import ModelSource
from tests.capturing.against_eager import differences


class Gates(nn.Module):
    """Thirds of rows, each changed in place as the gates of a GRU are."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 51)

    def forward(self, x: Tensor) -> Tensor:
        whole = self.linear(x)
        first, second, third = whole[:, :17], whole[:, 17:34].tanh(), whole[:, 34:].clone()
        third = torch.cat([third, second], 1)[:, :17]
        first.add_(second).sigmoid_()
        third.mul_(first).tanh_()
        return third * second


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_sigmoid_and_tanh_of_parts_of_rows(rows: int) -> None:
    """Rows of 17: some of them fill a vector, some do not."""
    torch.manual_seed(rows)
    source = ModelSource(Gates(), 3 * torch.randn(rows, 6), name="gates")
    graph = capture_source(source, training=True)
    assert any(call.target == "aten.copy.default" for call in graph.program.instructions)
    assert differences(source, graph) == {}


@pytest.mark.parametrize("both_ways", [False, True])
def test_a_gru_trains_as_eager(both_ways: bool) -> None:
    """At sizes where the plain functional form differs by 1e-7 after three steps."""

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(30, 12)
            self.layer = nn.GRU(12, 16, 2, bidirectional=both_ways)

        def forward(self, tokens: Tensor) -> Tensor:
            made: Tensor = self.layer(self.embedding(tokens))[0]
            return made

    torch.manual_seed(0)
    source = ModelSource(Tagger(), torch.randint(0, 30, (3, 7)), name="gru")
    assert differences(source) == {}
