"""Prediction of a stream: period, latency and samples in flight."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.errors import InfeasibleError, InputError
from placewright.operators.bounds import bounds
from placewright.operators.conformance import random_placement, random_problem, tiny
from placewright.operators.judge import judge
from placewright.operators.judgement import OperatorJudgement
from placewright.operators.pipeline import Pipeline
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.operators.streaming.prediction import (
    DEALT,
    StreamPrediction,
    predict,
    predicted,
    segments_of,
    simulated,
    stages_of,
    whole_copies,
)
from placewright.runtime.dealing import Copy, next_copy

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


UNLIKE = tiny(
    [[1.0, 2.0, 4.0]] * 3,
    [(0, 1, (1,)), (1, 1, (2,))],
    objective="throughput",
    pipeline=DEALT,
)
"""Three devices that take 3, 6 and 12 s for a sample: together 1 / (1/3 + 1/6 + 1/12) s."""


def test_every_number_of_copies_is_judged_and_predicted_by_the_sum_of_the_speeds() -> None:
    """The value is the period, and no bound is above it."""
    plans = list(whole_copies(UNLIKE))
    for plan, speeds in zip(plans, ((3.0, 6.0), (3.0, 6.0, 12.0)), strict=True):
        found = judge(UNLIKE, plan)
        assert found.feasible
        assert found.value == pytest.approx(1.0 / sum(1.0 / s for s in speeds))
        assert max(bounds(UNLIKE).values()) <= found.value
        assert predicted(UNLIKE, plan).period_s == pytest.approx(found.value, rel=0.02)


@pytest.mark.parametrize("seconds", [(1.0, 2.0), (1.0, 1.0, 1.0), (1.0, 3.7, 9.0)])
def test_samples_are_delivered_once_in_order_and_queues_are_bounded(
    seconds: tuple[float, ...],
) -> None:
    """Nobody idles for long, nobody has more than its window, shares follow the speeds."""
    slowest = max(seconds)
    copies = [Copy(d, s, 2 + int(np.ceil(slowest / s))) for d, s in enumerate(seconds)]
    problem = tiny([seconds], [], objective="throughput", pipeline=DEALT)
    window = sum(copy.window for copy in copies)
    run = simulated(problem, np.zeros(1, dtype=np.int64), (tuple(copies),), window, 500)
    taken, done, spans = run.taken_s, run.done_s, run.spans
    assert len(done) == len(taken) == 500
    assert done == sorted(done)
    assert sorted(n for _, n, _, _ in spans) == list(range(500))
    in_flight = np.arange(500) - np.searchsorted(done, taken, side="right")
    assert in_flight.max() < sum(copy.window for copy in copies)
    for copy in copies:
        own = sum(d == copy.device for d, *_ in spans) / 500
        assert own == pytest.approx((1 / copy.seconds) / sum(1 / s for s in seconds), abs=0.02)


def test_a_copy_that_falls_behind_gets_fewer() -> None:
    """The choice is by what waits, not by turns; a full window is passed over."""
    copies = [Copy(0, 1.0, 3), Copy(1, 2.0, 3)]
    assert next_copy(copies, [0, 0]) == 0
    assert next_copy(copies, [2, 0]) == 1
    assert next_copy(copies, [1, 0]) == 0  # 2 s each: the first
    assert next_copy(copies, [3, 2]) == 1


def test_memory_and_devices_that_cannot_run_everything() -> None:
    """A copy needs the memory of the whole model; a device that lacks an operator gets none."""
    resident = UNLIKE.replace(
        resident_bytes=np.full(3, 10.0), memory_bytes=np.array([100.0, 100.0, 20.0])
    )
    fits = [judge(resident, plan).feasible for plan in whole_copies(resident)]
    assert fits == [True, False]
    lacking = UNLIKE.replace(compute_s=np.where(UNLIKE.compute_s == 2.0, np.inf, UNLIKE.compute_s))
    plans = list(whole_copies(lacking))
    assert [plan.replica_of.tolist() for plan in plans if plan.replica_of is not None] == [
        [0, 1, 0]
    ]
    with pytest.raises(InfeasibleError, match="cannot be copied to"):
        judge(lacking, OperatorPlan(np.zeros(3), replica_of=np.array([0, 0, 2])))


PARTS = tiny(
    [[2.0, 9.0, 9.0, 9.0], [9.0, 3.0, 6.0, 9.0], [9.0, 9.0, 9.0, 1.5]],
    [(0, 1, (1,)), (1, 1, (2,))],
    latency_s=0.1,
    objective="throughput",
    pipeline=DEALT,
)
"""Three stages of 2, 3 or 6, and 1.5 s: the middle one on two devices does a sample in 2 s."""

SPLIT = OperatorPlan(np.array([0, 1, 3]), replica_of=np.array([0, 1, 1, 3]))


def test_copies_of_a_part_are_predicted_by_what_limits_them() -> None:
    """Two devices share the middle stage: 3 s for a sample without the second one, 2 s with it."""
    alone = predicted(PARTS, OperatorPlan(np.array([0, 1, 3])))
    both = predicted(PARTS, SPLIT)
    assert alone.period_s == pytest.approx(3.0, rel=0.01)
    assert both.period_s == pytest.approx(2.0, rel=0.03)
    assert both.latency_s >= 2.0 + 3.0 + 1.5
    run = simulated(PARTS, SPLIT.placement, stages_of(PARTS, SPLIT), both.window, 90)
    assert run.done_s == sorted(run.done_s)
    of = [[n for device, n, *_ in run.spans if device == d] for d in range(4)]
    assert of[0] == of[3] == list(range(90))
    assert sorted(of[1] + of[2]) == list(range(90))
    assert all(own == sorted(own) for own in of)
    assert len(of[2]) == pytest.approx(30, abs=3)


def test_windows_are_bounded_by_the_memory_of_the_smallest_copy() -> None:
    """Each copy may have to hold what the whole window sends it."""
    little = PARTS.replace(memory_bytes=np.array([9.0, 9.0, 3.0, 9.0]))
    found = predicted(little, SPLIT)
    assert found.limited_by_memory
    assert found.window < predicted(PARTS, SPLIT).window
    assert found.period_s > 2.1
    assert all(p <= m for p, m in zip(found.peak_bytes, little.memory_bytes, strict=True))


def test_speeds_without_copies_are_refused() -> None:
    """And a plan without copies has no stages to deal samples to."""
    with pytest.raises(InputError, match="by_speed"):
        Pipeline(by_speed=True)
    assert stages_of(UNLIKE, OperatorPlan(np.zeros(3))) == ()
