# ruff: noqa: D102 - the docstring of the class describes `forward`
"""Random numbers that checkpointing draws twice are drawn once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from placewright.capturing.model import capture, capture_source
from placewright.capturing.source import ModelSource
from placewright.errors import UnsupportedError
from tests.capturing.against_eager import differences


class Deep(nn.Module):
    """The same checkpointed layers twice: they are computed again in the opposite order."""

    def __init__(self, *, reentrant: bool = False, preserve: bool = True) -> None:
        super().__init__()
        self.how = {"use_reentrant": reentrant, "preserve_rng_state": preserve}
        self.first = nn.Linear(4, 6)
        self.layers = nn.Sequential(
            nn.Linear(6, 6), nn.Dropout(0.3), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout1d(0.4)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(2):
            x = checkpoint(self.layers, x, **self.how) + torch.rand_like(x)
        return x


def deep(**how: bool) -> ModelSource:
    """With inputs."""
    torch.manual_seed(0)
    return ModelSource(Deep(**how), torch.randn(5, 4), name="deep")


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("preserve", [False, True])
def test_checkpointed_dropout_trains_as_eager(reentrant: bool, preserve: bool) -> None:
    """Masks, running statistics and what is drawn between the checkpoints."""
    source = deep(reentrant=reentrant, preserve=preserve)
    graph = capture_source(source, training=True)
    assert differences(source, graph) == {}
    assert not graph.program.constants
    draws = sum(call.random for call in graph.program.instructions)
    assert draws == (6 if preserve else 10)


class Seeded(nn.Module):
    """Does something with the generator."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.linear, self.what, self.state = nn.Linear(4, 4), what, torch.get_rng_state()

    def forward(self, x: Tensor) -> Tensor:
        if self.what == "seed":
            torch.manual_seed(3)
        elif self.what == "restore":
            torch.set_rng_state(self.state)
        elif self.what == "other numbers":
            state = torch.get_rng_state()
            x = x + torch.rand(4)
            torch.set_rng_state(state)
            x = x + torch.randn(4)
        elif self.what == "ends earlier":
            with torch.random.fork_rng(devices=[]):
                x = x + torch.rand(4)
        return self.linear(x) + torch.rand(4) if self.what == "same numbers" else self.linear(x)


@pytest.mark.parametrize("what", ["seed", "restore", "other numbers", "ends earlier"])
@pytest.mark.parametrize("training", [False, True])
def test_a_generator_that_is_set_back_otherwise_is_refused(what: str, training: bool) -> None:
    """Every step would draw something else than eager does."""
    with pytest.raises(UnsupportedError, match="random generator"):
        capture(Seeded(what), torch.ones(2, 4), training=training)


def test_capture_leaves_the_generator_alone() -> None:
    """The caller's sequence goes on, and its functions are its own again."""
    functions = (torch.get_rng_state, torch.set_rng_state, torch.manual_seed)
    source = deep()
    before = torch.get_rng_state()
    capture_source(source, training=True)
    assert torch.equal(torch.get_rng_state(), before)
    assert (torch.get_rng_state, torch.set_rng_state, torch.manual_seed) == functions
