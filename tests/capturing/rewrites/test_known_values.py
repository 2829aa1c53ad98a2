# ruff: noqa: D102 - the docstring of the class describes `forward`
"""Branches on values computed from constants are captured; branches on inputs are refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from placewright.capturing.model import capture, capture_source
from placewright.capturing.source import ModelSource
from placewright.errors import UnsupportedError
from tests.capturing.against_eager import differences


class Counting(nn.Module):
    """Looks at positions of its own making, or at its input's values."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        self.linear, self.own = nn.Linear(4, 4), own

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[0]) if self.own else x.sum(1)
        rates = [rate.item() for rate in torch.linspace(0.0, 1.0, 3)]
        made: Tensor = self.linear(x) * rates[1]
        return made if (positions.diff() == 1).all() else made + 1


def test_a_branch_on_constants_is_taken_as_eager_takes_it() -> None:
    """And numbers are read from a table that is computed on the way."""
    source = ModelSource(Counting(own=True), torch.randn(3, 4), name="counting")
    assert differences(source) == {}


def test_a_branch_on_an_input_is_refused() -> None:
    """Another batch might take the other branch."""
    with pytest.raises(UnsupportedError, match="depends on values"):
        capture(Counting(own=False), torch.randn(3, 4))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_transformers_leaves_out_the_mask_that_eager_leaves_out() -> None:
    """Without a cache it looks whether positions count on; with checkpoints there is no cache."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=20,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    model.gradient_checkpointing_enable()
    tokens = torch.randint(0, 20, (2, 6))
    inputs = {"input_ids": tokens, "labels": tokens.clone()}
    source = ModelSource(model, inputs, lambda outputs, _: outputs.loss, name="llama")
    graph = capture_source(source, training=True)
    assert not graph.program.constants
    assert differences(source, graph) == {}
