"""Dropout on parts of values: refused where results must be exact, in step where they need not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from placewright.capturing.source import ModelSource
from placewright.cluster.cluster import Cluster, Device, Link
from placewright.errors import UnsupportedError
from placewright.layers.execution.layer_module import LayerModule, own_numbers
from placewright.layers.execution.layer_problem import layer_problem
from placewright.layers.execution.stage_orders import TracedModel, demand_exact
from placewright.layers.plan import LayerPlan, Replica, Stage, Strategy


def source(rate: float = 0.5) -> ModelSource:
    """Dropout between two products, which tensor parallelism splits."""
    layers = [nn.Linear(8, 6), nn.Dropout(rate), nn.Linear(6, 8), nn.Linear(8, 2)]
    inputs, targets = torch.randn(4, 8), torch.randn(4, 2)
    return ModelSource(nn.Sequential(*layers), (inputs,), nn.MSELoss(), targets, "dropped")


def pair() -> Cluster:
    """Two devices of a node."""
    devices = Device("a", node="n"), Device("b", node="n")
    return Cluster(devices, (Link("a", "b", 1e9, 1e-4), Link("b", "a", 1e9, 1e-4)), "pair")


@pytest.mark.parametrize("exact", [True, False])
def test_exact_problems_refuse_to_split_dropout(exact: bool) -> None:
    """By samples and by features; a layer without random numbers can be split."""
    problem = layer_problem(source(), cluster=pair(), exact=exact)
    first = {(x.strategy, x.layer) for x in problem.refusals if x.layer == 0}
    assert ((Strategy.TENSOR, 0) in first) == exact
    assert ((Strategy.DATA, 0) in first) == exact
    assert not problem.refusal(problem.n - 1, Strategy.TENSOR, 2)


class Noisy(nn.Module):
    """Adds noise that is no dropout."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """With as much noise as value."""
        return x + torch.rand(len(x), 1)


def test_other_random_numbers_are_refused_as_dropout_is() -> None:
    """By samples: the layer that draws them."""
    model = nn.Sequential(nn.Linear(8, 6), Noisy(), nn.Linear(6, 2))
    of = ModelSource(model, (torch.randn(4, 8),), nn.MSELoss(), torch.randn(4, 2), "noisy")
    problem = layer_problem(of, cluster=pair())
    assert any(x.strategy is Strategy.DATA and "torch.rand" in x.reason for x in problem.refusals)


def test_a_plan_that_splits_dropout_is_refused_by_name() -> None:
    """Of a plan file: the layer, its strategy and why; without dropout it is exact."""
    model = TracedModel(source())
    stage = Stage(0, len(model.layers) - 1, (Replica((0, 1), 4),), 2)
    with pytest.raises(UnsupportedError, match=r"layer '0' cannot be tensor over parts of its"):
        demand_exact(model, LayerPlan((stage,)))
    demand_exact(TracedModel(source(0.0)), LayerPlan((stage,)))


def test_parts_of_any_size_leave_the_generators_equal() -> None:
    """What workers draw for whole values later is equal; their parts' masks differ."""
    masks, states = [], []
    for column, samples in enumerate((3, 3, 1)):
        torch.manual_seed(7)
        with own_numbers(column, {}):
            masks.append(torch.rand(samples))
        states.append(torch.get_rng_state())
    assert all(torch.equal(state, states[0]) for state in states)
    assert not torch.equal(masks[0], masks[1])


def test_a_layer_of_own_samples_draws_its_own_and_the_same_again() -> None:
    """Computed again from the same state of the generator, as recomputation does."""
    model = TracedModel(source())
    program, state = model.programs(2)[0], model.state()
    values = torch.ones(2, 8)
    feeds = dict.fromkeys(program.feeds, values)
    made = []
    for column in (None, 0, 1, 1):
        torch.manual_seed(3)
        layer = LayerModule(program, state, column=column)
        made.append(layer(*(values for _ in program.inputs), feeds=feeds)[0])
    assert torch.equal(made[2], made[3])
    assert not torch.equal(made[1], made[2])
