"""Lowering of fx nodes to calls on named values."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from placewright.capturing.model import capture, capture_source
from placewright.capturing.source import ModelSource
from placewright.errors import UnsupportedError
from placewright.graph.files import graph_from_json, graph_json
from placewright.graph.graph import Const, Graph, Ref
from tests.capturing.against_eager import inference_differences


class Function(nn.Module):
    """A function as a model."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the function answers."""
        return self.function(*args, **kwargs)


def graph_of(function: Any, *inputs: Any) -> Graph:
    """The graph of a function of tensors."""
    return capture(Function(function), inputs)


def test_parts_of_a_result_are_named_after_their_producer() -> None:
    """Taking a part is no operator; a part that nobody reads has no name."""
    graph = graph_of(lambda x: x.max(1).indices + 1, torch.randn(2, 3))
    call = graph.program.instructions[0]
    assert call.results == ("", "max_1.1")
    assert [t.name for t in graph.tensors] == ["max_1.1"]


def test_a_list_of_results() -> None:
    """Split gives as many values as are read."""
    graph = graph_of(lambda x: x.split(2)[1] * 2, torch.randn(6, 3))
    assert graph.program.instructions[0].results == ("", "split.1", "")


def test_what_changes_nothing_is_no_operator() -> None:
    """detach, a view of the same shape, an expand to the same size."""
    graph = graph_of(lambda x: x.detach().view(2, 3).expand(2, 3).relu(), torch.randn(2, 3))
    assert graph.operator_names == ("relu",)
    assert graph.program.instructions[0].args == (Ref("input:0"),)


def test_outputs_are_numbered_when_there_are_several() -> None:
    """In the order of the flattened output, an input handed through included."""
    graph = graph_of(lambda x: {"a": x.relu(), "b": [x, 3, x.exp()]}, torch.randn(2))
    outputs = [(out.name, out.value) for out in graph.program.outputs]
    assert outputs == [("output.0", "relu"), ("output.1", "input:0"), ("output.2", "exp")]


def test_constants_of_the_framework_and_infinities() -> None:
    """Kept as data."""
    graph = graph_of(
        lambda x: x.to(torch.float64).clamp(min=-math.inf).contiguous(), torch.randn(2)
    )
    cast, clamp = graph.program.instructions[:2]
    assert Const("dtype", "float64") in cast.kwargs.values()
    assert -math.inf in clamp.args


def test_numbers_and_strings_among_the_inputs_become_constants() -> None:
    """Only tensors are inputs of the program."""

    def scaled(x: Tensor, factor: float, flags: dict[str, Any]) -> Tensor:
        return x * factor if flags["on"] else x

    model = Function(scaled)
    inputs = (torch.ones(2), 3.0, {"on": True, "note": "text", "bias": None})
    graph = capture(model, inputs)
    assert [e.name for e in graph.program.inputs] == ["input:0"]
    assert graph.program.instructions[0].args == (Ref("input:0"), 3.0)
    assert inference_differences(ModelSource(model, inputs), graph) == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
def test_constants_of_every_dtype(dtype: torch.dtype) -> None:
    """Their bytes are kept."""
    held = torch.tensor([1.0, 0.0]).to(dtype)
    source = ModelSource(Function(lambda x: torch.where(x > 0, held, held)), torch.randn(2))
    assert inference_differences(source) == {}


def test_a_constant_that_is_used_twice_is_one_input() -> None:
    """Every use has a node of its own; two tensors stay two."""
    scale, shift = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])

    def scaled(x: Tensor) -> Tensor:
        return x * scale + x.relu() * scale + shift

    source = ModelSource(Function(scaled), torch.randn(3, 2))
    graph = capture_source(source)
    names = [entry.name for entry in graph.program.inputs if entry.role == "constant"]
    assert len(names) == len({*names}) == 2
    assert inference_differences(source, graph_from_json(graph_json(graph), where="g.json")) == {}


def test_a_model_without_operators_is_refused() -> None:
    """There is nothing to place."""
    with pytest.raises(UnsupportedError, match="computes nothing"):
        graph_of(lambda x: x, torch.randn(2))
