"""Orders between operators that no value carries."""

from __future__ import annotations

import pytest
import torch

from placewright.capturing.dataflow import resolve
from placewright.capturing.lowered import Call, Lowered
from placewright.graph.graph import TensorSpec
from placewright.graph.program import Instruction, ProgramInput, Ref
from tests.capturing.small_graphs import small_graph

SPEC = TensorSpec((2,), "float32", (1,))


def step_of(*calls: Instruction) -> Lowered:
    """A step over one buffer ``b`` and one input ``x``."""
    inputs = (ProgramInput("b:", "buffer", "b", SPEC), ProgramInput("x:", "input", "0", SPEC))
    return Lowered(inputs, tuple(Call(call, (SPEC,) * len(call.results)) for call in calls))


def pure(name: str, target: str, *names: str) -> Instruction:
    """A call without effects."""
    return Instruction(name, target, tuple(Ref(n) for n in names), {}, (name,))


def update(name: str, *names: str) -> Instruction:
    """A write to ``b``."""
    args = (Ref("b:"), *(Ref(n) for n in names))
    return Instruction(name, "aten.copy_.default", args, {}, ("",), mutates=("b:",))


@pytest.mark.parametrize("target", ["aten.t.default", "aten.unsafe_split.Tensor"])
def test_an_update_waits_for_readers_of_views_too(target: str) -> None:
    """The reader of a view of the buffer has no value that the update reads."""
    step = step_of(
        pure("view", target, "b:"),
        pure("reader", "aten.relu.default", "view"),
        pure("new", "aten.relu.default", "x:"),
        update("write", "new"),
    )
    assert resolve(step).order == {0: [3], 1: [3]}


def test_a_reader_behind_an_update_waits_for_it() -> None:
    """And the next update waits for that reader and for the update."""
    step = step_of(
        pure("new", "aten.relu.default", "x:"),
        update("write", "new"),
        pure("reader", "aten.relu.default", "b:"),
        update("again", "x:"),
    )
    assert resolve(step).order == {1: [2, 3], 2: [3]}


def test_orders_that_a_value_carries_are_not_repeated() -> None:
    """The update reads the reader's result."""
    step = step_of(pure("reader", "aten.relu.default", "b:"), update("write", "reader"))
    assert resolve(step).order == {}


def test_a_buffer_that_nobody_changes_orders_nothing() -> None:
    """Two readers may run in any order."""
    calls = [pure(name, "aten.relu.default", "b:") for name in ("one", "two")]
    assert resolve(step_of(*calls)).order == {}


@pytest.mark.parametrize("name", ["resnet50", "gpt2"])
def test_the_forward_read_of_a_weight_precedes_its_update(name: str) -> None:
    """By reachability over the graph's tensors, for every parameter and every reader."""
    graph = small_graph(name, training=True)
    position = {op: k for k, op in enumerate(graph.operator_names)}
    reach = torch.eye(len(position), dtype=torch.bool)
    after: list[set[int]] = [set() for _ in position]
    for tensor in graph.tensors:
        after[position[tensor.producer]] |= {position[c] for c in tensor.consumers}
    for k in reversed(range(len(position))):
        for c in sorted(after[k]):
            reach[k] |= reach[c]
    for update_ in graph.program.instructions:
        for name_ in update_.mutates:
            for call in graph.program.instructions:
                if Ref(name_) in call.args and call.name != update_.name:
                    a, b = position[call.name], position[update_.name]
                    assert reach[a, b] or reach[b, a]
