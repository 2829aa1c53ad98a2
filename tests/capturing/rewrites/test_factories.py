"""Fills that read a tensor only for its shape."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from placewright.capturing.model import capture
from placewright.capturing.source import ModelSource
from tests.capturing.against_eager import inference_differences

FILLS: dict[str, Callable[[Tensor], Tensor]] = {
    "zeros_like": torch.zeros_like,
    "ones_like": torch.ones_like,
    "full_like": lambda x: torch.full_like(x, 3.0),
    "integers": lambda x: torch.ones_like(x, dtype=torch.int64),
    "new_zeros": lambda x: x.new_zeros(2, 3),
    "new_ones": lambda x: x.new_ones(2, 3),
    "new_full": lambda x: x.new_full((2, 3), 5.0),
}


class Filled(nn.Module):
    """A fill of the input's shape, added to the input."""

    def __init__(self, fill: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.fill = fill

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The sum and the fill."""
        filled = self.fill(x)
        return x[:2, :3] + filled[:2, :3], filled


@pytest.mark.parametrize("name", FILLS)
@pytest.mark.parametrize("transposed", [False, True])
def test_fills_are_those_of_eager(name: str, transposed: bool) -> None:
    """Values and, for what is not row-major, strides."""
    x = torch.randn(4, 4).T if transposed else torch.randn(4, 4)
    assert inference_differences(ModelSource(Filled(FILLS[name]), x)) == {}


def test_a_fill_does_not_read_the_tensor_of_its_shape() -> None:
    """The input has one reader, the slice."""
    graph = capture(Filled(torch.zeros_like), torch.randn(4, 4))
    fills = [c for c in graph.program.instructions if c.target == "aten.zeros.default"]
    assert [call.args for call in fills] == [((4, 4),)]
