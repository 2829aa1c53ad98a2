"""The Gantt chart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placewright.report.gantt import MOST_LINKS, gantt
from placewright.report.page import ticks
from tests.report.examples import chain, many_spans, result_of


def test_every_operator_and_transfer_is_there() -> None:
    """Few spans are drawn one by one, each with its name and times."""
    trace = result_of(chain()).judgement.trace()
    picture = gantt(trace, title="t")
    assert picture.count('class="span"') == len(trace.label)
    assert all(f"{trace.labels[k]}\n" in picture for k in trace.label)


def test_the_critical_path_is_marked() -> None:
    """Every span on it, alone or merged with others, and no other; by an outline and in words."""
    trace = result_of(chain()).judgement.trace()
    critical = np.arange(len(trace.track)) % 2 == 0
    picture = gantt(trace, title="t", critical=critical)
    assert picture.count('class="span critical"') == critical.sum()
    assert picture.count("on the critical path") == critical.sum()
    many = many_spans(50_000)
    one = np.arange(50_000) == 2000
    assert gantt(many, title="t", critical=one).count('class="span critical"') == 1


def test_idle_links_have_no_track_and_idle_devices_have_one() -> None:
    """A device that does nothing is news, a link that carries nothing is not."""
    problem = chain(3)
    trace = result_of(problem).judgement.trace()
    used = trace.track != trace.tracks.index("dev1->dev0")
    fewer = replace(
        trace,
        track=trace.track[used],
        label=trace.label[used],
        start_s=trace.start_s[used],
        end_s=trace.end_s[used],
    )
    assert gantt(fewer, title="t").count('class="row"') == 3
    none = replace(
        fewer, **{k: getattr(fewer, k)[:0] for k in ("track", "label", "start_s", "end_s")}
    )
    assert gantt(none, title="t").count('class="row"') == 2


def test_many_links_become_the_busiest() -> None:
    """And the rest is counted."""
    count = MOST_LINKS + 5
    trace = many_spans(2 * count)
    tracks = ("dev", *(f"link{k}" for k in range(count)))
    many = replace(trace, tracks=tracks, track=np.arange(2 * count) % count + 1)
    picture = gantt(many, title="t")
    assert picture.count('class="row"') == MOST_LINKS + 1
    assert "and 5 quieter links" in picture


def test_a_hundred_thousand_spans_stay_small() -> None:
    """As many marks as pixels."""
    assert len(gantt(many_spans(100_000), title="t")) < 500_000


@pytest.mark.parametrize("top", [1e-6, 0.037, 1.0, 99.0, 12345.6])
def test_ticks_are_round_and_cover_the_axis(top: float) -> None:
    """Equal steps of 1, 2 or 5 times a power of ten."""
    marks = ticks(top)
    steps = np.diff(marks)
    assert 3 <= len(marks) <= 9
    np.testing.assert_allclose(steps, steps[0])
    assert marks[-1] <= top * 1.000001 < marks[-1] + steps[0] * 1.000001
    assert f"{steps[0]:.0e}"[0] in "125"
