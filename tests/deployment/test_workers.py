"""Placements measured on workers: once each, with an error bar, or refused."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest

from placewright.capturing.model import capture_call
from placewright.cluster.cluster import Cluster, Device
from placewright.deployment.workers import MeasuredPlacements, measured_rewards
from placewright.deployment.workload import Workload
from placewright.errors import WorkerError
from placewright.planning.solving import solve
from placewright.profiling.profiler import profile
from small_zoo import small

PAIR = Cluster((Device("a"), Device("b")), name="pair")


def test_workers_reward_a_planner() -> None:
    """Post on two workers: placements that were executed, each once, and its note has them."""
    captured = capture_call(small("alexnet"))
    problem = profile(captured.graph, PAIR, method="analytic")
    workload = Workload(captured, PAIR, captured.state(), problem)
    with measured_rewards(workload) as measure:
        choice = {"name": "post", "reward": "measured", "samples": 8, "rehearsal": 60}
        result = solve(problem, choice, measure=measure, time_limit_s=20.0)
        ran = [e for e in measure.known.values() if math.isfinite(e.median_s)]
        assert len(ran) >= 2
        assert all(e.median_s > 0 and e.steps >= 5 for e in ran)
    assert "placements measured" in result.candidates[0].note


def test_steps_go_on_until_the_interval_is_narrow() -> None:
    """Five steps where all are equal, `most` where they are not."""
    rng = np.random.default_rng(0)

    @contextmanager
    def opened(place: np.ndarray) -> Iterator[object]:
        def steps(count: int) -> Sequence[float]:
            return (1.0 + rng.random(count) * float(place[0])).tolist()

        yield steps

    measure = MeasuredPlacements(opened)  # type: ignore[arg-type]
    assert measure.estimate(np.array([0])).steps == 5
    noisy = measure.estimate(np.array([9]))
    assert noisy.steps == 30
    assert noisy.half_s > 0.03 * noisy.median_s
    assert measure.estimate(np.array([9])) == noisy
    assert measure.repeated == 1


def test_an_engine_that_only_fails_is_given_up() -> None:
    """Two lost workers are two refusals, the third is raised."""

    @contextmanager
    def lost(place: np.ndarray) -> Iterator[object]:
        raise WorkerError("was lost", where="worker 0")
        yield

    measure = MeasuredPlacements(lost)  # type: ignore[arg-type]
    assert np.isinf(measure(np.array([[0], [1]]))).all()
    assert set(measure.refused.values()) == {"was lost"}
    with pytest.raises(WorkerError):
        measure(np.array([[2]]))
