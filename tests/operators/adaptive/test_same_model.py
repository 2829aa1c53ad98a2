"""Snapshots of slightly different models are refused."""

from __future__ import annotations

import pytest
import torch

from placewright.adapt.snapshot import check_same_model
from placewright.capturing.model import capture_source
from placewright.capturing.source import ModelSource, default_loss
from placewright.capturing.state import initial_state
from placewright.errors import InputError
from placewright.graph.graph import Program
from placewright.operators.adaptive.run import AdaptiveJob
from tests.operators.adaptive.jobs import TRIO, net


def captured(
    *layers: torch.nn.Module, optimizer: str = "adam"
) -> tuple[AdaptiveJob, dict[str, torch.Tensor]]:
    """A job, and what a snapshot of it holds."""
    model = torch.nn.Sequential(*layers) if layers else net()
    source = ModelSource(model, (torch.ones(5, 6),), default_loss, None, "Sequential")
    graph = capture_source(source, training=True, optimizer=optimizer)
    assert isinstance(graph.program, Program)
    state = initial_state(source, graph.program)
    job = AdaptiveJob(graph, TRIO, None, state)  # type: ignore[arg-type]
    return job, {name: state[name] for name in job.changing}


def test_a_changed_model_or_optimizer_is_refused_by_what_differs() -> None:
    """The same class of model each time; its own snapshot is taken."""
    linear = torch.nn.Linear
    job, own = captured(linear(6, 8), torch.nn.ReLU(), linear(8, 3))
    check_same_model(own, job.changing, "here")
    others = [
        captured()[1],
        captured(linear(6, 8), torch.nn.ReLU(), linear(8, 4))[1],
        captured(linear(6, 8), torch.nn.ReLU(), linear(8, 3), optimizer="sgd")[1],
        {name: tensor.double() for name, tensor in own.items()},
    ]
    for other in others:
        with pytest.raises(InputError, match="of another model or optimizer") as caught:
            check_same_model(other, job.changing, "here")
        assert caught.value.where == "here"


def test_a_single_number_is_not_spread_over_many() -> None:
    """The error says both shapes."""
    job, own = captured()
    name = next(name for name, tensor in own.items() if tensor.shape == (8,))
    with pytest.raises(InputError) as caught:
        check_same_model(own | {name: torch.ones(1)}, job.changing, "here")
    assert caught.value.by == f"{name!r}: (1,) float32 in the snapshot, (8,) float32 in the model"
