"""Dropout masks have the strides of eager mode."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from placewright.capturing.model import capture
from placewright.capturing.rewrites import dropout_mask


@pytest.mark.parametrize("dims", [(0, 1, 2), (1, 0, 2), (2, 1, 0)])
def test_a_mask_is_what_the_draw_in_place_leaves(dims: tuple[int, ...]) -> None:
    """Same seed, same strides, same places."""
    room = torch.empty(4, 5, 6).permute(dims)
    torch.manual_seed(3)
    expected = torch.empty_like(room).bernoulli_(0.4)
    torch.manual_seed(3)
    got = dropout_mask(room, 0.4)
    assert torch.equal(got, expected)
    assert got.stride() == expected.stride()


def test_dropout_reads_nothing_to_draw_its_mask() -> None:
    """So the mask's operator may be anywhere, and no tensor travels to it."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    graph = capture(model, torch.randn(2, 4), training=True)
    (draw,) = (call for call in graph.program.instructions if call.random)
    assert draw.target == "placewright.bernoulli.default"
    assert draw.name not in {c for t in graph.tensors for c in t.consumers}


class Attention(nn.Module):
    """Scaled dot products with dropout."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout, self.linear = dropout, nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Attention of a sequence over itself."""
        q = self.linear(x)
        attend = nn.functional.scaled_dot_product_attention
        return attend(q, q, q, dropout_p=self.dropout if self.training else 0.0)


@pytest.mark.parametrize(("dropout", "draws"), [(0.0, 0), (0.1, 1)])
def test_attention_is_random_only_with_dropout(dropout: float, draws: int) -> None:
    """Its operator is tagged as random even where it draws nothing."""
    graph = capture(Attention(dropout), torch.randn(1, 2, 4, 8), training=True)
    assert sum(call.random for call in graph.program.instructions) == draws
