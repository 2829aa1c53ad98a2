"""An executed plan computes what eager PyTorch computes."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from placewright.capturing.source import ModelSource
from placewright.capturing.state import initial_state
from placewright.cluster.cluster import Cluster, Device, Link
from placewright.errors import InputError
from placewright.operators.plan import OperatorPlan
from placewright.operators.run import SHORT_S, MeasuringRounds, as_json, best_single, running
from placewright.planning.solving import compare
from placewright.profiling.profiler import profile
from small_zoo import small
from tests.capturing.small_graphs import small_graph

WORKERS = Cluster((Device("a"), Device("b"), Device("c")), name="workers")
DUO = Cluster(
    (Device("a", node="a"), Device("b", node="b", speed=0.5)),
    (Link("a", "b", 1e9, 1e-4), Link("b", "a", 1e9, 1e-4)),
    name="duo",
)


@pytest.mark.parametrize("name", ["alexnet", "resnet50", "gnmt", "gpt2"])
def test_a_placed_training_step_is_eager_bit_for_bit(name: str) -> None:
    """Loss, parameters and buffers after three steps, at random on three workers."""
    source = small(name)
    graph = small_graph(name, training=True)
    problem = profile(graph, WORKERS, method="analytic")
    rng = np.random.default_rng(0)
    devices = rng.integers(0, 3, size=problem.colocation.max() + 1)
    plan = OperatorPlan(devices[problem.colocation])
    with running(graph, WORKERS, initial_state(source, graph.program)) as runner:
        runner.load(problem, plan, seed=1)
        assert runner.check(source, seed=1).max_abs_error == 0.0


def test_a_measurement_says_what_was_predicted_measured_and_emulated() -> None:
    """All of it is in the object that the command line prints, and the trace has every span."""
    source, graph = small("alexnet"), small_graph("alexnet")
    state = initial_state(source, graph.program)
    problem = profile(graph, DUO, state=state)
    result = compare(problem, ["round-robin"])
    single = best_single(problem)
    with running(graph, DUO, state) as runner:
        measured = runner.measure(result, beside=single, steps=3, check=source)
    report = as_json(measured)
    assert report["steps"] == 3
    assert report["max_abs_error"] == 0.0
    assert "b at 0.5x" in report["emulated"]
    assert report["baseline"]["name"] == "a"
    assert len(report["baseline"]["step_s"]) == 3
    assert report["speed_up"]["rounds"] == 3
    assert report["speed_up"]["low"] < report["speed_up"]["ratio"] < report["speed_up"]["high"]
    assert measured.trace is not None
    transfers = len(result.judgement.transfers)
    assert len(measured.trace.start_s) == problem.n + transfers
    assert (measured.trace.end_s >= measured.trace.start_s).all()


def test_another_model_is_noticed(tmp_path: object) -> None:
    """A check against different weights reports a difference: the check can fail."""
    source, other = small("alexnet"), small("alexnet", seed=1)
    other = ModelSource(other.model, source.inputs, source.loss_fn, source.targets)
    graph = small_graph("alexnet")
    problem = profile(graph, DUO, method="analytic")
    plan = OperatorPlan(np.zeros(problem.n))
    with running(graph, DUO, initial_state(source, graph.program)) as runner:
        runner.load(problem, plan)
        assert runner.check(other, seed=0).max_abs_error > 1e-6


def test_a_plan_for_another_graph_is_refused() -> None:
    """The error says that the two do not belong together."""
    graph, other = small_graph("alexnet"), small_graph("gpt2")
    result = compare(profile(other, DUO, method="analytic"), ["only:a"])
    state = initial_state(small("alexnet"), graph.program)
    with running(graph, DUO, state) as runner, pytest.raises(InputError, match="another graph"):
        runner.measure(result)


@pytest.mark.parametrize(
    ("seen_s", "warmup", "cold"),
    [
        ([], 3, 3),
        ([SHORT_S * 2] * 2, 3, 1),
        ([SHORT_S / 2] * 2, 3, 3),
        ([SHORT_S * 2] * 2, 0, 0),
    ],
)
def test_short_steps_are_warmed_up_in_every_block(
    seen_s: list[float], warmup: int, cold: int
) -> None:
    """Long ones in the first block, and one step after another plan; none where none is asked."""
    turns = MeasuringRounds(cast(Any, None), [cast(Any, None)])
    turns.step_s[0] = [seen_s]
    assert turns._cold_steps(0, warmup) == cold
