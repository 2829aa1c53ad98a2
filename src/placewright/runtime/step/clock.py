"""Times of one step that workers on several machines took, on one clock.

``time.perf_counter()`` counts from another moment on every machine, and the counts drift apart.
Workers leave the barrier that begins a step at the same moment, up to a link's latency: there
the clocks of other machines are set to that of the first worker, anew in every step. Workers of
one machine share a clock, and theirs is left as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from placewright.runtime.device_group import StepLog
from placewright.runtime.host import Host


def aligned(logs: Sequence[StepLog], hosts: Sequence[Host]) -> tuple[StepLog, ...]:
    """The logs of one step, all on the clock of the first worker's host."""
    first: dict[str, float] = {}
    for log, host in zip(logs, hosts, strict=True):
        first.setdefault(host.boot, log.start_s)
    origin = logs[0].start_s
    return tuple(
        _shifted(log, origin - first[host.boot]) for log, host in zip(logs, hosts, strict=True)
    )


def _shifted(log: StepLog, by_s: float) -> StepLog:
    if by_s == 0:
        return log
    return replace(
        log,
        start_s=log.start_s + by_s,
        end_s=log.end_s + by_s,
        spans_s=tuple(t + by_s for t in log.spans_s),
        transfers=tuple((tag, to, a + by_s, b + by_s) for tag, to, a, b in log.transfers),
    )
