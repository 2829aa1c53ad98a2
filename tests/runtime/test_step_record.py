"""The record of a step, assembled from the logs of its devices."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from placewright.runtime.host import Host
from placewright.runtime.step_record import (
    StepLog,
    StepRecord,
    occupied_seconds,
    operator_seconds,
    step_record,
)

HERE, THERE = Host("x", "boot-1", (0,)), Host("y", "boot-2", (0,))
times = st.floats(0, 10, allow_nan=False)


@given(st.lists(st.tuples(times, times), min_size=1, max_size=5), st.floats(-1e5, 1e5))
def test_a_step_lasts_from_the_first_start_to_the_last_end(
    spans: list[tuple[float, float]], ahead_s: float
) -> None:
    """On one machine as they are; another machine's clock may say what it likes."""
    logs = [StepLog(start, start + length) for start, length in spans]
    record = step_record(logs, [HERE] * len(logs))
    assert record.origin_s == min(start for start, _ in spans)
    assert record.duration_s == max(log.end_s for log in logs) - record.origin_s
    assert record.logs == tuple(logs)
    far = StepLog(logs[0].start_s + ahead_s, logs[0].start_s + ahead_s + 1.0)
    both = step_record([*logs, far], [HERE] * len(logs) + [THERE])
    last_s = max(logs[0].start_s + 1.0, *(log.end_s for log in logs))
    assert abs(both.duration_s - (last_s - record.origin_s)) < 1e-6


def test_scalars_of_all_devices_are_the_steps() -> None:
    """A loss on one device, a count on another."""
    logs = (StepLog(0, 1, scalars={"loss": 0.5}), StepLog(0, 1, scalars={"count": 3.0}))
    assert StepRecord(0, 1, logs).scalars == {"loss": 0.5, "count": 3.0}


def test_operators_take_their_median() -> None:
    """Over steps, whichever device had them; one that was never seen is unknown."""
    rng = np.random.default_rng(0)
    seconds = rng.uniform(0.1, 1.0, (5, 4))
    records = [
        StepRecord(0, 9, (log((2, 0), row), StepLog(0, 9), log((1,), row))) for row in seconds
    ]
    found = operator_seconds(records, 4)
    np.testing.assert_allclose(found[:3], np.median(seconds[:, :3], axis=0), rtol=1e-12)
    assert np.isnan(found[3])


def test_a_device_is_occupied_until_its_next_operator_starts() -> None:
    """The last one until the step's end; all together are the step from the first start on."""
    spans = (1.0, 2.0, 2.5, 3.0, 3.0, 6.0)
    record = StepRecord(0, 7, (StepLog(0, 7.0, (1, 0, 2), spans),))
    assert occupied_seconds([record], 3).tolist() == [0.5, 1.5, 4.0]


def log(operators: tuple[int, ...], seconds: np.ndarray) -> StepLog:
    """They run one after another, each as long as `seconds` says."""
    spans: list[float] = []
    for k in operators:
        start = spans[-1] if spans else 0.0
        spans += [start, start + float(seconds[k])]
    return StepLog(0, 9, operators, tuple(spans))
