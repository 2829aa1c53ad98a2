"""Copies of the whole model: samples are dealt out by speed and delivered in order."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.errors import InfeasibleError, InputError
from placewright.operators.bounds import bounds
from placewright.operators.conformance import tiny
from placewright.operators.judge import judge
from placewright.operators.pipeline import Pipeline
from placewright.operators.plan import OperatorPlan
from placewright.operators.streaming.copies import (
    DEALT,
    predicted,
    stages_of,
    whole_copies,
)
from placewright.operators.streaming.prediction import simulated
from placewright.runtime.stream.dealing import Copy, next_copy

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
