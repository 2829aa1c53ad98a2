"""Optimizer updates appended to a captured step."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from placewright.capturing.model import capture, capture_source
from placewright.capturing.source import ModelSource
from placewright.capturing.state import initial_state
from placewright.graph.graph import Graph
from tests.capturing.models import unseen
from tests.capturing.reference_interpreter import run


def test_every_trained_parameter_is_updated_once() -> None:
    """Frozen and unused ones are not."""
    graph = capture_source(unseen("frozen"), training=True)
    updated = [n for call in graph.program.instructions for n in call.mutates if "parameter" in n]
    assert updated == ["parameter:trained.weight", "parameter:trained.bias"]
    assert {e.key for e in graph.program.inputs if e.role == "parameter"} == {
        "trained.weight",
        "trained.bias",
        "frozen.weight",
        "frozen.bias",
    }


def test_the_settings_are_kept() -> None:
    """With the program, for whoever runs it against eager."""
    graph = capture(nn.Linear(2, 2), torch.ones(1, 2), training=True, lr=0.5)
    assert graph.program.optimizer["name"] == "adam"
    assert graph.program.optimizer["lr"] == 0.5
    graph = capture(nn.Linear(2, 2), torch.ones(1, 2), training=True, optimizer="sgd")
    assert graph.program.optimizer == {"name": "sgd", "lr": 1e-3}
    assert not [e for e in graph.program.inputs if e.role == "state"]


def sum_of_weights(model: nn.Linear) -> Any:
    """A loss that reads the model itself; its gradient is one number, expanded."""
    return lambda outputs, targets: model.weight.sum() + outputs.sum()


def test_a_gradient_gets_the_strides_of_its_parameter() -> None:
    """The fused kernel goes through memory without a look at strides."""
    model = nn.Linear(3, 1, bias=False)
    graph = capture(model, torch.ones(1, 3), training=True, loss_fn=lambda *_: model.weight.sum())
    (update,) = (c for c in graph.program.instructions if "fused_adam" in c.target)
    (gradient,) = update.args[1]
    results = {op.name: op.outputs[0] for op in graph.operators if len(op.outputs) == 1}
    assert results[gradient.name].stride == (3, 1)


def test_a_loss_may_read_the_parameters_of_the_model() -> None:
    """As weight decay does."""
    model = nn.Linear(3, 1, bias=False)
    source = ModelSource(model, torch.ones(2, 3), sum_of_weights(model))
    state, graph = _trained(source)
    expected = copy.deepcopy(model)
    step = torch.optim.SGD(expected.parameters(), lr=1e-3)
    sum_of_weights(expected)(expected(source.inputs), None).backward()
    step.step()
    assert torch.equal(state["parameter:weight"], expected.weight)
    assert not graph.program.constants


def _trained(source: ModelSource) -> tuple[dict[str, Tensor], Graph]:
    graph = capture_source(source, training=True, optimizer="sgd")
    state = initial_state(source, graph.program)
    run(graph, state)
    return state, graph
