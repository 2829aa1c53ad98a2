"""Parts of pages: memory curves; facts and candidates of a plan file."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from placewright.planning.views import (
    COLUMNS,
    column_peaks,
    memory_charts,
    result_facts,
    saved_candidates_section,
    saved_facts,
)
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


def test_the_first_candidates_are_those_of_every_page_and_the_rest_on_request() -> None:
    """The chosen one, the five best, baselines and what was measured; `short_list` says which."""
    every: list[dict[str, Any]] = [
        {"planner": f"p{k}", "value": float(k), "status": "FEASIBLE", "runtime_s": 0.1}
        for k in range(10)
    ]
    every[8]["baseline"] = True
    every[6]["measured_s"] = 6.5
    every.append({"planner": "big", "value": 0.0, "status": "INFEASIBLE", "runtime_s": 0.1})
    data: dict[str, Any] = {"planner": "p3", "value": 3.0, "candidates": every}
    shown, others = saved_candidates_section(data).split("<details>")
    assert _planners(shown) == ["p0", "p1", "p2", "p3", "p4", "p6", "p8"]
    assert _planners(others) == ["p5", "p7", "p9", "big"]
    data |= {"planner": "p9", "direction": "maximise"}
    assert _planners(saved_candidates_section(data))[0] == "p9"
    assert "style=" not in shown  # pages of the service let no element have one


def _planners(table: str) -> list[str]:
    return re.findall(r'class="who">([^<]+)<', table)


def test_facts_of_a_file_are_those_of_the_result() -> None:
    """As far as the file has them."""
    result = result_of(chain())
    saved = {name: value for name, value, _ in saved_facts(result.as_json())}
    assert saved["lower bound"] != "-"
    assert saved["planner"] == result.planner
    assert saved == {name: value for name, value, _ in result_facts(result)}
    assert [value for _, value, _ in saved_facts({"value": 1.0})] == ["1 s", "-", "-", "-", "-"]
