"""Thousands of spans are merged to as many as can be drawn."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placewright.report.gantt import visible_blocks
from tests.report.examples import many_spans


@given(st.integers(1, 300), st.integers(0, 50), st.floats(0, 50))
def test_no_work_is_lost(count: int, seed: int, finest_s: float) -> None:
    """Blocks hold every span once, in order, without overlap."""
    trace = many_spans(count, seed)
    mine = trace.track == 0
    blocks = visible_blocks(trace, 0, finest_s)
    assert sum(b.count for b in blocks) == mine.sum()
    busy = float((trace.end_s - trace.start_s)[mine].sum())
    assert sum(b.busy_s for b in blocks) == pytest.approx(busy)
    for before, after in pairwise(blocks):
        assert before.end_s <= after.start_s
    assert all(b.busy_s <= b.end_s - b.start_s + 1e-9 for b in blocks)


def test_long_spans_stay_alone() -> None:
    """What can be seen is drawn as it is."""
    trace = many_spans(200)
    blocks = visible_blocks(trace, 0, 0.5)
    long = [b for b in blocks if b.busy_s >= 2.0 and b.count == 1]
    expected = (trace.end_s - trace.start_s)[trace.track == 0] >= 2.0
    assert len(long) == expected.sum()


def test_as_many_blocks_as_pixels() -> None:
    """A hundred thousand spans give at most two blocks per pixel."""
    trace = many_spans(100_000)
    blocks = visible_blocks(trace, 0, trace.duration_s / 800)
    assert len(blocks) <= 1600


def test_the_label_is_that_of_the_longest_span() -> None:
    """A run is called after what took most of it."""
    trace = many_spans(40)
    (block,) = visible_blocks(trace, 0, 1e9)
    lengths = np.where(trace.track == 0, trace.end_s - trace.start_s, -1)
    assert block.label == lengths.argmax()
