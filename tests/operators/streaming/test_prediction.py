"""Prediction of a stream: period, latency and samples in flight."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.operators.conformance import random_placement, random_problem, tiny
from placewright.operators.judge import judge
from placewright.operators.judgement import OperatorJudgement
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.operators.streaming.prediction import StreamPrediction, predict, segments_of

CHAIN = tiny(
    [[1.0, 1.0]] * 4,
    [(0, 1, (1,)), (1, 1, (2,)), (2, 1, (3,))],
    seconds_per_byte=0.1,
    objective="throughput",
)


def _judged(*placement: int) -> OperatorJudgement:
    return judge(CHAIN, OperatorPlan(np.array(placement)))


@pytest.mark.parametrize("placement", [(0, 0, 1, 1), (0, 1, 0, 1), (0, 1, 1, 0)])
def test_two_devices_halve_the_period(placement: tuple[int, ...]) -> None:
    """Contiguous or not: transfers happen while devices compute."""
    assert predict(_judged(*placement)).period_s == pytest.approx(2.0, rel=0.01)


def test_one_sample_in_flight_takes_as_long_as_a_step() -> None:
    """Period, latency and the judge's makespan are then one number."""
    found = predict(_judged(0, 0, 1, 1), window=1)
    assert found.period_s == pytest.approx(4.1)
    assert found.latency_s == pytest.approx(4.1)
    step = judge(CHAIN.replace(objective="latency"), OperatorPlan(np.array([0, 0, 1, 1])))
    assert step.value == pytest.approx(4.1)


def test_memory_bounds_the_samples_in_flight() -> None:
    """Every further sample needs room for what it has received."""
    plan = OperatorPlan(np.array([0, 0, 1, 1]))
    roomy, tight = (
        predict(judge(CHAIN.replace(memory_bytes=np.full(2, size)), plan)) for size in (100.0, 3.0)
    )
    assert not roomy.limited_by_memory
    assert (tight.window, tight.limited_by_memory) == (2, True)
    assert tight.period_s > roomy.period_s


@pytest.mark.parametrize("seed", range(40))
def test_a_stream_takes_what_its_busiest_device_or_channel_takes(seed: int) -> None:
    """The judge's value is its period, but for turns that devices with links both ways wait for."""
    problem = random_problem(seed, objective="throughput")
    plan = OperatorPlan(random_placement(problem, np.random.default_rng(seed)))
    judgement = judge(problem, plan)
    found = predict(judgement, window=16)
    assert 0.97 * judgement.value <= found.period_s <= 1.1 * judgement.value + 1e-9
    assert _spans_do_not_overlap(found)


def _spans_do_not_overlap(found: StreamPrediction) -> bool:
    """A device does one segment at a time."""
    trace = found.trace
    for track in range(trace.devices):
        own = trace.track == track
        start, end = np.sort(trace.start_s[own]), np.sort(trace.end_s[own])
        if (start[1:] < end[:-1] - 1e-9).any():
            return False
    return True


def _edges(problem: OperatorProblem) -> list[tuple[int, int]]:
    tensor = np.repeat(np.arange(problem.t), np.diff(problem.consumer_offsets))
    return list(zip(problem.tensor_producer[tensor], problem.consumers, strict=True))


@pytest.mark.parametrize("seed", range(60))
def test_no_segment_waits_for_a_later_one(seed: int) -> None:
    """Every operator once; what crosses devices goes to a later segment."""
    problem = random_problem(seed)
    placement = random_placement(problem, np.random.default_rng(seed))
    found = segments_of(problem, placement)
    assert sorted(found.order.tolist()) == list(range(problem.n))
    position = np.argsort(found.order)
    assert (found.device[found.segment] == placement).all()
    assert (np.diff(found.segment[found.order]) >= 0).all()
    for before, after in _edges(problem):
        assert position[before] < position[after]
        if placement[before] != placement[after]:
            assert found.segment[before] < found.segment[after]
    for device, runs in enumerate(found.lengths(problem.m)):
        assert sum(runs) == (placement == device).sum()


def test_a_chain_of_devices_has_one_segment_each() -> None:
    """Whatever skips a device: 0 -> 1 -> 2 with a tensor from 0 to 2."""
    problem = tiny([[1, 1, 1]] * 4, [(0, 1, (1, 3)), (1, 1, (2,)), (2, 1, (3,))])
    found = segments_of(problem, np.array([2, 0, 0, 1]))
    assert found.device.tolist() == [2, 0, 1]
    assert found.segment.tolist() == [0, 1, 1, 2]


def test_a_device_that_is_come_back_to_has_two() -> None:
    """Between them it can work on another sample."""
    problem = tiny([[1, 1]] * 3, [(0, 1, (1, 2)), (1, 1, (2,))])
    found = segments_of(problem, np.array([0, 1, 0]))
    assert found.device.tolist() == [0, 1, 0]
    assert found.lengths(2) == ((1, 1), (1,))
