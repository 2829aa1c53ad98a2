"""Error messages of failed traces."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from placewright.capturing.model import capture
from placewright.errors import InputError, UnsupportedError


class Remembering(nn.Module):
    """Changes a plain tensor in place: no parameter, no buffer."""

    def __init__(self, change: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.memory, self.change = nn.Linear(2, 2), torch.zeros(2), change

    def forward(self, x: Tensor) -> Tensor:
        """The layer, scaled by what is remembered."""
        self.change(self.memory, x)
        return self.linear(x) * self.memory


CHANGES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "a count": lambda memory, x: memory.add_(1),
    "a part": lambda memory, x: memory[0].add_(1),
    "a draw": lambda memory, x: memory.uniform_(),
    "a copy": lambda memory, x: memory.copy_(x[0]),
    "a part of a copy": lambda memory, x: memory[:1].copy_(x[0, :1]),
    "an output": lambda memory, x: torch.add(x[0], 1, out=memory),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_a_plain_tensor_that_is_changed_in_place_is_refused(change: str, training: bool) -> None:
    """The next step would start from it, and no worker keeps it; the model stays as it was."""
    model = nn.Sequential(Remembering(CHANGES[change]))
    with pytest.raises(UnsupportedError, match=r"of module '0'.*changed in place") as caught:
        capture(model, torch.ones(3, 2), training=training)
    assert "register_buffer" in caught.value.hint
    assert model[0].memory.tolist() == [0.0, 0.0]


def test_the_same_tensor_as_a_buffer_is_kept() -> None:
    """What the message says helps."""
    model = Remembering(CHANGES["a copy"])
    memory = model.memory
    del model.memory
    model.register_buffer("memory", memory)
    graph = capture(model, torch.ones(3, 2))
    assert [entry.key for entry in graph.program.inputs if entry.mutated] == ["memory"]


def test_a_failing_second_trace_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """As what breaks the first one: as ours."""

    def broken(function: object) -> object:
        raise RuntimeError("no such rule")

    monkeypatch.setattr(torch.func, "functionalize", broken)
    with pytest.raises(InputError, match="model Linear: calling it raised RuntimeError: no such"):
        capture(nn.Linear(2, 2), torch.ones(1, 2))


_CALLS = 0


class _Scaled(nn.Module):
    """A layer whose output is multiplied by what a function of the module says."""

    def __init__(self, scale: Callable[[Any], float]) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(3, 3), scale
        self.calls, self.stats = 0, {"calls": 0}
        self.left, self.rate, self.seen = 50, 1.0, [0]
        self.counter = itertools.count()
        self.draws, self.python = np.random.default_rng(0), random.Random(0)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.scale(self)
        self.calls += 1
        self.stats["calls"] += 1
        return self.layer(x) * scale


def _global_count(_: _Scaled) -> float:
    global _CALLS
    _CALLS += 1
    return float(_CALLS)


def _made_count(model: Any) -> float:
    model.made = getattr(model, "made", 0) + 1
    return float(model.made)


def _decayed(model: Any) -> float:
    model.rate *= 0.5
    return 1.0 if model.rate > 1e-3 else 2.0


def _count_down(model: Any) -> float:
    model.left -= 1
    return 2.0 if model.left <= 0 else 1.0


def _round(model: Any) -> float:
    model.left = (model.left + 1) % 100
    return 2.0 if model.left == 57 else 1.0


def _history(model: Any) -> float:
    model.seen.append(1)
    return 1.0 + len(model.seen) // 300


REFUSED: dict[str, tuple[Callable[[Any], float], str]] = {
    "random": (lambda _: random.random(), "draws from random"),
    "numpy.random": (lambda _: float(np.random.rand()), "draws from numpy.random"),
    "a choice": (lambda _: 2.0 if random.random() > 0.5 else 1.0, "draws from random"),
    "a generator of its own": (lambda m: float(m.draws.random()), "not a function of its inputs"),
    "its own random.Random": (lambda m: m.python.random(), "not a function of its inputs"),
    "a clock": (lambda _: time.perf_counter(), "not a function of its inputs"),
    "an attribute": (lambda m: float(m.calls), "the model.calls"),
    "an attribute that it makes": (_made_count, "the model.made"),
    "a warm-up": (lambda m: 0.1 if m.calls < 100 else 1.0, "the model.calls"),
    "an entry of a dict": (lambda m: float(m.stats["calls"]), "the model.stats.calls"),
    "a rate that decays": (_decayed, "the model.rate"),
    "a count down": (_count_down, "the model.left"),
    "a number that comes round": (_round, "the model.left"),
    "one call of several": (lambda m: 2.0 if 4 <= m.calls <= 5 else 1.0, "the model.calls"),
    "the length of a list": (_history, "the model.seen"),
    "an iterator": (lambda m: float(next(m.counter)), "not a function of its inputs"),
    "a global variable": (_global_count, "_CALLS"),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_what_changes_from_call_to_call_is_refused(name: str, training: bool) -> None:
    """By the name of the generator or counter; nothing is left changed."""
    scale, says = REFUSED[name]
    model = nn.Sequential(_Scaled(scale))
    state, numpy, calls = random.getstate(), np.random.get_state(), _CALLS
    with pytest.raises(UnsupportedError, match=says.replace("the model", r"module '0'")) as caught:
        capture(model, torch.ones(2, 3), training=training)
    assert caught.value.hint
    assert "Sequential" in caught.value.where
    assert random.getstate() == state
    assert all(np.all(a == b) for a, b in zip(np.random.get_state(), numpy, strict=True))
    assert (model[0].calls, model[0].stats, _CALLS) == (0, {"calls": 0}, calls)


@pytest.mark.parametrize("training", [False, True])
def test_counters_that_nothing_is_computed_with_are_no_matter(training: bool) -> None:
    """They are as before behind the trace."""
    model = _Scaled(lambda m: 2.0 + 0 * m.seen[min(1, m.seen.append(0) or 0)])
    capture(model, torch.ones(2, 3), training=training)
    assert (model.calls, model.stats, model.seen) == (0, {"calls": 0}, [0])


def test_layers_that_were_all_dropped_are_refused_as_drawn() -> None:
    """Not because the loss depends on no parameter, which is only so by chance."""
    model = _Scaled(lambda _: random.random())
    model.forward = lambda x: x * random.random()
    with pytest.raises(UnsupportedError, match="draws from random"):
        capture(model, torch.ones(2, 3), training=True)


@settings(max_examples=30)
@given(st.lists(st.sampled_from(["layer", "tanh", "drop", "count"]), min_size=1, max_size=6))
def test_layer_drop_anywhere_is_refused(parts: list[str]) -> None:
    """A model is refused exactly where it has one."""

    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.calls = nn.Linear(3, 3), 0

        def forward(self, x: Tensor) -> Tensor:
            for part in parts:
                if part == "drop" and random.random() > 0.5:
                    continue
                self.calls += part == "count"
                x = x.tanh() if part == "tanh" else self.layer(x)
            return x

    if "drop" in parts:
        with pytest.raises(UnsupportedError, match="draws from random"):
            capture(Parts(), torch.ones(2, 3))
    else:
        capture(Parts(), torch.ones(2, 3))
