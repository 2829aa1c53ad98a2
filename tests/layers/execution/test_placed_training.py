"""`place_training`: refusals and notes, on worker processes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from placewright.capturing.source import ModelSource
from placewright.cluster.cluster import Cluster, Device
from placewright.errors import InputError, UnsupportedError
from placewright.layers.choice import LayerTrials, executables
from placewright.layers.conformance import tiny
from placewright.layers.costs.rings import ring_times
from placewright.layers.execution.measured_problem import TENSORS, with_shards
from placewright.layers.execution.refusals import demand_executable, measured_only
from placewright.layers.execution.stage_orders import TracedModel
from placewright.layers.links import Link
from placewright.layers.placed_training import place_training
from placewright.layers.plan import LayerPlan, Replica, Stage, Strategy
from placewright.layers.problem import LayerProblem
from placewright.planning.solving import solve
from tests.layers.models import image_model

TWO = Cluster((Device("a", node="m"), Device("b", node="n")), (), "two")


def norm_model() -> ModelSource:
    """Convolutions with batch norm."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten()
        )
        return ModelSource(model, (torch.randn(8, 3, 12, 12),), name="norms")


def test_peak_memory_is_that_of_the_processes() -> None:
    """A worker holds at least its framework, and what is left out has no number."""
    with place_training(image_model(), cluster=TWO, time_limit_s=2.0, trials=False) as placed:
        measured = placed.run(2, check=True)
        problem = placed.problem
    assert ((problem.gather_s > 0) <= (problem.parameters[:, 0] > 0)).all()
    assert problem.training.shards_wait
    measured.demand()
    found = measured.as_json()["memory"]
    assert set(found) == {TWO.device_names[w] for w in placed.result.plan.workers}
    for entry in found.values():
        assert entry["measured_peak_bytes"] > 50e6
        assert entry["predicted_peak_bytes"] == pytest.approx(entry["measured_peak_bytes"], rel=0.5)


def test_a_cluster_is_given_by_name_or_refused() -> None:
    """As `placewright.place` takes it."""
    with pytest.raises(InputError, match="edge-duos"):
        place_training(image_model(), cluster="edge-duos")
    with pytest.raises(InputError, match="cluster"):
        place_training(image_model(), cluster=3)  # type: ignore[arg-type]


def test_slow_shards_take_what_messages_do_not() -> None:
    """One second, and for each further parameter what many in one take more; none without any."""
    small = tiny([1.0, 1.0], parameters=np.array([[8.0, 4.0], [0.0, 0.0]]))
    problem = small.replace(training=replace(small.training, shards_wait=True))
    weighed = problem.parameters[:, 0] > 0
    layers = [SimpleNamespace(parameters=[None] * 2 * int(some)) for some in weighed]
    seconds = [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [1.0 + TENSORS - 1, 1.0]]
    session: Any = SimpleNamespace(
        group=SimpleNamespace(order_all=lambda *_, **__: [seconds, seconds]),
        model=SimpleNamespace(layers=layers),
    )
    slow = with_shards(session, problem)
    sent = problem.parameters[:, 0] * problem.training.weight_bytes
    messages = ring_times(problem, range(problem.w), sent, 1)
    np.testing.assert_allclose(slow.gather_s[weighed], 2.0 - messages[weighed])
    np.testing.assert_allclose(slow.scatter_s[weighed], 1.0 - messages[weighed])
    assert not slow.gather_s[~weighed].any()


def test_batch_norm_is_planned_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly: the whole batch in one place; a plan that splits it is refused by name."""
    monkeypatch.setattr(LayerTrials, "least_rounds", 1)
    monkeypatch.setattr(LayerTrials, "budget_s", 0.0)
    source = norm_model()
    with place_training(source, cluster=TWO, planner="auto", time_limit_s=2.0) as placed:
        plan = placed.result.plan
        assert plan.micro_batches == 1
        assert all(len(stage.replicas) == 1 for stage in plan.stages)
        norm = next(x.layer for x in placed.problem.refusals if x.strategy is Strategy.DATA)
        assert "conv" in placed.problem.layer_kinds[norm]
        placed.run(1, check=True).demand()
        with pytest.raises(UnsupportedError, match="takes mean and variance"):
            solve(placed.problem, "data")
    model = TracedModel(source)
    both = (Replica((0,), 4), Replica((1,), 4))
    plan = LayerPlan((Stage(0, len(model.layers) - 1, both),))
    with pytest.raises(UnsupportedError, match="part of the batch"):
        demand_executable(model, plan, 2, exact=True)
    demand_executable(model, plan, 2, exact=False)


def test_a_plan_that_cannot_be_executed_is_left_out_with_a_note() -> None:
    """And the next best one is taken, never one that was not the best of the rest."""
    ones, each = np.ones((3, 1)), np.array([[[[1.0, 2.0, 1.0]]]])
    problem = LayerProblem(
        ("a", "b", "c"),
        ones,
        ones,
        each,
        each,
        ("u", "v"),
        (Link.linear(1e9, 1e-3),),
        np.zeros((1, 1), dtype=np.int64),
        8,
    )
    found: list[LayerPlan] = []

    def demand(plan: LayerPlan) -> None:
        if not found or plan == found[0]:
            found.append(plan)
            raise UnsupportedError("has no executor", where="the plan")

    result = next(executables(problem, "auto", demand, time_limit_s=2.0))

    assert result.plan != found[0]
    assert "has no executor" in result.note


def test_a_layer_without_a_formula_is_named() -> None:
    """Only measurements know what it costs."""
    rnn = nn.RNN(6, 6, batch_first=True)

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.out = rnn, nn.Linear(6, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.rnn(x)[0])

    (note,) = measured_only(TracedModel(ModelSource(Last(), (torch.randn(4, 5, 6),), name="rnn")))
    assert "aten.rnn_tanh.input" in note
