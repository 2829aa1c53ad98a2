"""Costs computed from a model and a cluster, against those that a worker counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from placewright.capturing.updates import update_of
from placewright.cluster.cluster import Cluster, Device, Link
from placewright.errors import UnknownNameError
from placewright.layers.execution.layer_problem import layer_problem
from placewright.layers.execution.stage_orders import TracedModel
from placewright.layers.execution.timing import LayerTimer
from placewright.layers.problem import LayerProblem
from placewright.layers.workers import Workers
from placewright.planning.solving import solve
from tests.layers.models import language_model


def pair(**fast: float) -> Cluster:
    """Two nodes and a link."""
    devices = Device("a", node="a", **fast), Device("b", node="b")
    return Cluster(devices, (Link("a", "b", 1e9, 1e-4), Link("b", "a", 1e9, 1e-4)), "pair")


@pytest.fixture(scope="module")
def problem() -> LayerProblem:
    """A small transformer, on a device and another of half its speed."""
    return layer_problem(language_model(), cluster=pair(speed=2.0))


@pytest.mark.parametrize("degree", [1, 2])
def test_memory_and_collectives_are_those_that_a_worker_counts(
    problem: LayerProblem, degree: int
) -> None:
    """Element by element, whole and split."""
    model = TracedModel(language_model())
    state = {name: nn.Parameter(value) for name, value in model.state().items()}
    common = state, torch.device("cpu"), 1.0, model.programs(model.batch), model.feeds()
    timer = LayerTimer(*common, degree)
    for _ in range(2):
        timer.round()
    found = timer.times(update_of("sgd", 0.1).made)
    at = problem.degree_index(degree)
    np.testing.assert_array_equal(problem.activation_bytes[:, at], found.saved_bytes / model.batch)
    can = np.isfinite(problem.parameters[:, at])
    np.testing.assert_array_equal(problem.parameters[can, at], found.elements[can])
    if degree == 2:
        np.testing.assert_array_equal(problem.tensor_bytes, found.tensor_bytes / model.batch)


def test_twice_as_fast_a_device_takes_half_as_long(problem: LayerProblem) -> None:
    """What the device's kind is assumed to do scales with its speed."""
    for times in (problem.forward_s, problem.backward_s):
        np.testing.assert_allclose(times[1], 2 * times[0])
        assert (times[:, :, 1:] >= times[:, :, :-1]).all()  # more samples take longer
    assert problem.optimizer_s[1] > 1.9 * problem.optimizer_s[0]


def test_links_are_those_of_the_description(problem: LayerProblem) -> None:
    """Latency and bandwidth; nodes that nothing joins have none."""
    link = problem.link(0, 1)
    assert link is not None
    assert link.seconds(1e6) == pytest.approx(1e-4 + 1e-3)
    apart = Cluster(pair().devices, (), "apart")
    assert layer_problem(language_model(blocks=1), cluster=apart).link(0, 1) is None


def test_plans_of_computed_costs_give_the_faster_worker_more(problem: LayerProblem) -> None:
    """From a model to a plan without a worker."""
    shares = solve(problem, "data").plan.stages[0].shares
    assert sum(shares) == 12
    assert len(shares) == 1 or shares[0] > shares[1]


def test_equal_devices_of_a_node_can_share_layers_beside_its_cpu() -> None:
    """Degrees divide the number of workers, or that of equal ones of a node."""
    assert Workers(Cluster.preset("server-4gpu")).degrees == (1, 2, 4, 5)
    assert Workers(pair()).degrees == (1, 2)


def test_an_unknown_optimizer_is_named() -> None:
    """Before anything is traced."""
    with pytest.raises(UnknownNameError, match="adagrad"):
        layer_problem(language_model(), optimizer="adagrad")
