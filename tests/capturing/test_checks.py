"""Error messages of failed traces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
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
