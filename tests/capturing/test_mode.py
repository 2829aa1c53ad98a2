"""Modes during capture: what the user has set stays; and caches that a first call fills."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from placewright.capturing.model import capture
from placewright.capturing.python_state import in_mode, set_mode
from placewright.capturing.real_calls import called
from placewright.capturing.source import ModelSource
from placewright.graph.graph import Program
from tests.capturing.against_eager import differences


def _random(model: nn.Module, training: bool) -> int:
    """Operators that draw random numbers."""
    program = capture(model, torch.ones(2, 3), training=training).program
    assert isinstance(program, Program)
    return sum(call.random for call in program.instructions)


def test_a_batch_norm_that_the_user_froze_stays_frozen() -> None:
    """Its statistics do not change in a training step, as in eager."""
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.BatchNorm1d(3)).train()
    model[1].eval()
    source = ModelSource(model, torch.randn(4, 3), name="frozen")
    assert differences(source) == {}
    program = capture(model, source.inputs, training=True).program
    changed = {item.key for item in program.inputs if item.role == "buffer" and item.mutated}
    assert changed == {"2.running_mean", "2.running_var", "2.num_batches_tracked"}
    assert [m.training for m in model] == [True, False, True]


@pytest.mark.parametrize("training", [False, True])
def test_dropout_is_on_where_the_user_has_it_on(training: bool) -> None:
    """In evaluation too; a model in the other mode is switched as a whole."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Dropout(0.5)).train(training)
    model[1].train(not training)
    assert _random(model, training) == 1
    assert _random(model, not training) == (0 if training else 2)
    assert [m.training for m in model] == [training, not training, training]


class _Frozen(nn.Module):
    """Keeps its batch norm in evaluation by overriding `train`."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def train(self, mode: bool = True) -> _Frozen:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


def test_an_overridden_train_is_called() -> None:
    """And the flags are back afterwards."""
    model = nn.Sequential(_Frozen()).eval()
    with in_mode(model, training=True):
        assert model.training
        assert not model[0].norm.training
    assert not any(module.training for module in model.modules())
    set_mode(model, training=True)
    assert not model[0].norm.training


class _Caching(nn.Module):
    """Keeps a mask by length, counts, and has a running mean."""

    def __init__(self) -> None:
        super().__init__()
        self.masks: dict[int, Any] = {}
        self.calls, self.seen = 0, torch.zeros(())
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen += 1
        if len(x) not in self.masks:
            self.masks[len(x)] = torch.ones(len(x), len(x)).tril()
        return self.masks[len(x)] @ self.norm(x)


def test_a_first_call_fills_caches_and_changes_nothing_else() -> None:
    """Counts, buffers, plain tensors, modes and random numbers are as before."""
    model, x = _Caching().eval(), torch.randn(4, 3)
    random = torch.get_rng_state()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    called(ModelSource(model, (x,)), training=True)
    assert type(model.masks[4]) is Tensor
    assert (model.calls, float(model.seen), model.training) == (0, 0.0, False)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())


def test_a_first_call_that_fails_is_left_to_the_trace() -> None:
    """Which names the module and the inputs; nor is a model without values called."""
    called(ModelSource(nn.Linear(3, 3), (torch.ones(2, 5),)), training=False)
    called(ModelSource(nn.Linear(3, 3, device="meta"), (torch.ones(2, 3),)), training=False)


class _Lazy:
    """Its attributes are what other libraries compute when they are first asked for."""

    __slots__ = ("__count", "ref")

    def __init__(self) -> None:
        self.__count = [0]

    def __getattr__(self, name: str) -> Any:
        raise TypeError(name)

    def add(self) -> int:
        """One more call."""
        self.__count[0] += 1
        return self.__count[0]


class _Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lazy = _Lazy()

    def forward(self, x: Tensor) -> Tensor:
        self.lazy.add()
        return x


def test_slots_are_read_without_computing_what_is_not_set() -> None:
    """Private ones, too, which are then as they were before."""
    model = _Counting()
    with in_mode(model, training=True):
        model(torch.ones(1))
    assert model.lazy.add() == 1
