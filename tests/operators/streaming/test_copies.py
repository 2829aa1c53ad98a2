"""Copies of the whole model: samples are dealt out by speed and delivered in order."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.errors import InfeasibleError, InputError, UnsupportedError
from placewright.operators.bounds import bounds
from placewright.operators.instances import tiny
from placewright.operators.judge import judge
from placewright.operators.pipeline import Pipeline
from placewright.operators.plan import OperatorPlan
from placewright.operators.streaming.copies import (
    DEALT,
    copies_of,
    deal,
    predicted,
    whole_copies,
)
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
    taken, done, spans = deal(copies, 500)
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


def test_what_is_not_streamed_is_refused() -> None:
    """Copies of a part of the model; speeds without copies."""
    part = OperatorPlan(np.array([0, 1, 1]), replica_of=np.array([0, 1, 1]))
    assert judge(UNLIKE, part).value > 0
    with pytest.raises(UnsupportedError, match="copies of the whole model"):
        predicted(UNLIKE, part)
    with pytest.raises(InputError, match="by_speed"):
        Pipeline(by_speed=True)
    assert copies_of(UNLIKE, OperatorPlan(np.zeros(3))) == ()
