"""Measurement in place: a plain step's time is shared among its operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placewright.numerics.arrays import FloatArray
from placewright.profiling import in_place
from placewright.profiling.in_place import (
    LEAST_KEPT,
    LEAST_STEPS,
    MOST_STEPS,
    in_place_seconds,
    scaled_to_step,
    without_marks,
)
from placewright.runtime.step_record import StepLog, StepRecord
from tests.runtime.chain import diamond

PLAIN_S, GAP_S = 0.9, 0.1
CALLS_S = np.array([0.1, 0.2, 0.3, 0.4])


class Workers:
    """A session on which the calls of the diamond take `CALLS_S`, with gaps after each."""

    steps: list[bool]

    def __init__(self, *arguments: Any) -> None:
        Workers.steps = []

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *raised: object) -> None:
        pass

    def load(self, *arguments: Any) -> None:
        """Nothing to do."""

    def run(self, steps: int, *, watched: bool = False) -> list[StepRecord]:
        """A watched step takes longer than others; the first of each kind has a burst."""
        burst_s = 5.0 if watched not in Workers.steps[2:] else 0.0
        Workers.steps += [watched] * steps
        if not watched:
            return [StepRecord(0.0, PLAIN_S + burst_s, ())] * steps
        starts = burst_s + np.concatenate([[0.0], np.cumsum(CALLS_S + GAP_S)[:-1]])
        spans = np.stack([starts, starts + CALLS_S], axis=1)
        end_s = float(spans[-1, 1] + GAP_S)
        log = StepLog(0.0, end_s, (0, 1, 2, 3), tuple(spans.ravel()))
        return [StepRecord(0.0, end_s, (log,))] * steps


def test_what_lies_between_operators_is_in_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once per operator, and the whole is the median of the steps that nobody watched."""
    monkeypatch.setattr(in_place, "Session", Workers)
    found = in_place_seconds(*diamond(), seconds=0.0)
    assert found.sum() == pytest.approx(PLAIN_S)
    assert found == pytest.approx((CALLS_S + GAP_S) * PLAIN_S / (CALLS_S + GAP_S).sum())


def test_steps_of_both_kinds_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a machine that changes its speed does so for both; a few at least, not for ever."""
    monkeypatch.setattr(in_place, "Session", Workers)
    for seconds, count in ((0.0, LEAST_STEPS), (1e9, MOST_STEPS)):
        in_place_seconds(*diamond(), seconds=seconds)
        assert Workers.steps == [False, False, *[True, False] * count]


def test_a_step_without_time_stays_so() -> None:
    """Nothing to scale."""
    assert scaled_to_step(np.zeros(3), 1.0).tolist() == [0.0] * 3


@given(
    st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=30).map(np.array),
    st.floats(0.01, 1.5),
)
def test_marks_take_the_same_off_each_operator(seconds: FloatArray, part: float) -> None:
    """They add up to the step; none has less than a tenth left unless all are scaled further."""
    step_s = float(part * seconds.sum())
    found = without_marks(seconds, step_s)
    assert found.sum() == pytest.approx(step_s)
    assert (np.diff(found[np.argsort(seconds)]) >= -1e-12).all()
    if LEAST_KEPT < part < 1.0:
        off = seconds - found
        whole = found > LEAST_KEPT * seconds * (1 + 1e-9)
        assert off[whole] == pytest.approx(off.max(), abs=1e-9)
        assert (found >= LEAST_KEPT * seconds * (1 - 1e-9)).all()
