"""The cost of a message beside its link: fitted where known, else measured."""

from __future__ import annotations

import math

import numpy as np
import pytest

from placewright.profiling.message_cost import (
    EMULATED,
    HOPS,
    SIZES,
    MessageCost,
    fitted,
    hop_seconds,
    measured_messages,
)
from placewright.runtime.step_record import StepLog, StepRecord

COST = MessageCost(real_s=8e-5, real_s_per_byte=6e-10, extra_s=3e-5, extra_s_per_byte=2e-10)
COUNT = len(SIZES) * (HOPS + 1)
_measured = measured_messages  # the fixture that stands in for it is for the other tests


def record(apart: bool, operator_s: float, burst_s: float = 0.0) -> StepRecord:
    """The chains with `COST` between operators of two devices, nothing on one."""
    now_s, spans = 0.0, np.zeros((COUNT, 2))
    for k in range(COUNT):
        size, hop = SIZES[k // (HOPS + 1)], k % (HOPS + 1) - 1
        if apart and hop >= 0:
            own_s = EMULATED.latency_s + size / EMULATED.bandwidth
            there = own_s + COST.extra_s + size * COST.extra_s_per_byte
            back = COST.real_s + size * COST.real_s_per_byte
            now_s += (there if hop % 2 == 0 else back) + burst_s
        spans[k] = now_s, now_s + operator_s
        now_s += operator_s
    homes = [k % (HOPS + 1) % 2 if apart else 0 for k in range(COUNT)]
    logs = []
    for device in (0, 1):
        own = tuple(k for k in range(COUNT) if homes[k] == device)
        logs.append(StepLog(0.0, now_s, own, tuple(spans[list(own)].ravel())))
    return StepRecord(0.0, now_s, tuple(logs))


def test_a_known_cost_is_found() -> None:
    """To rounding, whatever the operators take, and in spite of a step with a burst."""
    apart = [record(True, 1e-5), record(True, 1e-5, burst_s=0.5), record(True, 1e-5)]
    found = fitted(hop_seconds(apart, [record(False, 1e-5)] * 3))
    for name, value in COST.as_entries().items():
        assert found.as_entries()[name] == pytest.approx(value, rel=1e-6), name


def test_nothing_costs_less_than_nothing() -> None:
    """A link that was faster than asked gives zero, not a negative latency or slope."""
    hops_s = np.array([[1e-4, 1e-4, 1e-4, 1e-4], [5e-6, 6e-5, 2e-4, 9e-4]])
    found = fitted(hops_s)
    assert found.extra_s == 0.0
    assert found.extra_s_per_byte == 0.0
    assert found.real_s >= 0.0
    assert found.real_s_per_byte > 0.0


def test_two_workers_measure_the_message_cost() -> None:
    """Positive and finite over real workers."""
    found = _measured().as_entries().values()
    assert all(math.isfinite(value) and value >= 0 for value in found)
    assert sum(found) > 0


def test_a_given_link_takes_its_own_time_and_the_executors() -> None:
    """Added once; and no less than this machine's memory needs."""
    assert COST.line(2e-4, 8e-9, given=True) == pytest.approx((2.3e-4, 8.2e-9))
    assert COST.line(0.0, 0.0, given=True) == (8e-5, 6e-10)


def test_a_link_that_is_not_given_is_this_machines_memory() -> None:
    """What was assumed for it does not count."""
    assert COST.line(3e-5, 1e-10, given=False) == (8e-5, 6e-10)


def test_a_kept_profile_has_all_of_it_or_none() -> None:
    """A number that is missing is no zero."""
    kept = COST.as_entries()
    assert MessageCost.of(kept) == COST
    del kept["extra_s"]
    assert MessageCost.of(kept) is None
