"""Logs of one step from machines with different clocks."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from placewright.runtime.host import Host
from placewright.runtime.step_record import StepLog, aligned

HERE, THERE = Host("x", "boot-1", (0,)), Host("y", "boot-2", (0,))
LOGS = (
    StepLog(10.0, 11.0, (0,), (10.2, 10.4), ((7, 1, 10.4, 10.6),)),
    StepLog(10.0, 12.0, (1,), (10.6, 11.9)),
    StepLog(10.5, 11.5, (2,), (10.7, 11.0), ((8, 0, 11.0, 11.2),)),
)


def shifted(log: StepLog, by_s: float) -> StepLog:
    """The same on a clock that is ahead by so much."""
    return replace(
        log,
        start_s=log.start_s + by_s,
        end_s=log.end_s + by_s,
        spans_s=tuple(t + by_s for t in log.spans_s),
        transfers=tuple((tag, to, a + by_s, b + by_s) for tag, to, a, b in log.transfers),
    )


@given(st.integers(-(10**6), 10**6))
def test_another_machines_clock_is_set_at_the_barrier(ahead: int) -> None:
    """Whatever its clock says, its step begins with ours; clocks of one machine stay."""
    hosts = (HERE, THERE, HERE)
    elsewhere = shifted(LOGS[1], float(ahead))
    first, second, third = aligned((LOGS[0], elsewhere, LOGS[2]), hosts)
    assert (first, third) == (LOGS[0], LOGS[2])
    assert second.start_s == LOGS[0].start_s
    assert abs(second.end_s - LOGS[1].end_s) < 1e-9
    assert abs(second.spans_s[1] - LOGS[1].spans_s[1]) < 1e-9
