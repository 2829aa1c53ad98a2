"""Memory curves."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from placewright.planning.views import COLUMNS, column_peaks, memory_charts
from tests.report.examples import chain, result_of


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 1e9)), min_size=1, max_size=40))
def test_no_peak_is_lost_between_pixels(steps: list[tuple[float, float]]) -> None:
    """The highest column is the highest value; every column is a value that was held."""
    steps.sort()
    times, held = (np.array(x) for x in zip(*steps, strict=True))
    peaks = column_peaks(times, held, 10.0)
    assert len(peaks) == COLUMNS
    assert peaks.max() == held.max()
    assert set(peaks.tolist()) <= {0.0, *held.tolist()}


def test_capacity_is_drawn_where_there_is_one() -> None:
    """dev0 has a limit, dev1 has none; a limit far away is printed, not drawn."""
    charts = memory_charts(result_of(chain()).judgement.trace())
    assert charts.count("<figure") == 2
    assert charts.count('class="capacity"') == 1
    assert "no limit" in charts
    roomy = memory_charts(result_of(chain(memory_bytes=[1e9, np.inf])).judgement.trace())
    assert 'class="capacity"' not in roomy
    assert "far below its 954 MiB" in roomy
