"""Initial values of a program."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from placewright.capturing.lowering import spec_of
from placewright.capturing.model import capture, capture_source, load_model
from placewright.capturing.source import ModelSource
from placewright.capturing.state import decode, initial_state
from placewright.errors import InputError
from placewright.graph.graph import TensorSpec
from small_zoo import small
from tests.capturing.models import unseen
from tests.capturing.small_graphs import small_graph


@pytest.mark.parametrize("name", ["transposed", "counting", "normed"])
def test_every_value_has_the_layout_that_was_captured(name: str) -> None:
    """Strides and constants included."""
    source = unseen(name)
    program = capture_source(source, training=True).program
    state = initial_state(source, program)
    assert {e.name: e.spec for e in program.inputs} == {k: spec_of(v) for k, v in state.items()}


def test_it_holds_copies_of_the_model() -> None:
    """Running a program does not change the model."""
    source = small("alexnet")
    state = initial_state(source, small_graph("alexnet", training=True).program)
    name, weight = next(iter(source.model.named_parameters()))
    copied = state[f"parameter:{name}"]
    assert torch.equal(copied, weight)
    assert copied.data_ptr() != weight.data_ptr()
    assert not copied.requires_grad


def test_optimizer_state_is_zero() -> None:
    """Moments and step counts."""
    program = small_graph("alexnet", training=True).program
    state = initial_state(small("alexnet"), program)
    kept = [e for e in program.inputs if e.role == "state"]
    assert len(kept) == 3 * len(list(small("alexnet").model.parameters()))
    assert all(state[e.name].count_nonzero() == 0 for e in kept)


def test_only_what_is_asked_for() -> None:
    """A worker asks for what lives on its device."""
    program = small_graph("alexnet").program
    assert set(initial_state(small("alexnet"), program, only={"input:0"})) == {"input:0"}


def test_constants_come_from_the_program() -> None:
    """A tensor that the model holds as a plain attribute."""
    source = unseen("counting")
    program = capture_source(source).program
    state = initial_state(source, program)
    held = [state[e.name] for e in program.inputs if e.role == "constant"]
    assert any(torch.equal(value, torch.tensor([1.0, 2.0, 3.0, 4.0])) for value in held)


def test_one_tensor_as_input() -> None:
    """Without a tuple around it."""
    model, x = nn.Linear(2, 2), torch.ones(1, 2)
    state = initial_state(ModelSource(model, x), capture(model, x).program)
    assert torch.equal(state["input:0"], x)


def test_decode_of_an_empty_constant() -> None:
    """No bytes, a shape with a zero."""
    assert decode("", TensorSpec((0, 3), "int64", (3, 1))).shape == (0, 3)


def test_a_model_without_weights_cannot_run() -> None:
    """It can be planned; the hint says how to load it."""
    source = load_model("zoo:alexnet", weights=False)
    with pytest.raises(InputError, match="weights=True"):
        initial_state(source, capture_source(source).program)


def test_another_model_is_refused() -> None:
    """By the first value that does not fit."""
    program = capture(nn.Linear(3, 2), torch.ones(1, 3)).program
    with pytest.raises(InputError, match="differs from the one that was captured"):
        initial_state(ModelSource(nn.Linear(4, 2), torch.ones(1, 4)), program)
    with pytest.raises(InputError, match="has no parameter 'weight'"):
        initial_state(ModelSource(nn.ReLU(), torch.ones(1, 3)), program)
