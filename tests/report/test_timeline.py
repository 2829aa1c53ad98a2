"""Timelines: their data, and what they do in Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placewright.operators.explain import critical_spans, waited_for
from placewright.report.gantt import MOST_SPANS, timeline, timelines_in
from placewright.report.page import Note, html_page, section
from tests.report.examples import HOSTILE, chain, in_chromium, many_spans, measured, result_of


def test_the_data_are_the_trace() -> None:
    """Sorted by track and start; a hostile name stays a name; too many spans have no data."""
    trace = many_spans(300)
    trace = type(trace)(
        **{k: getattr(trace, k) for k in trace.__slots__} | {"labels": (HOSTILE,) * 300}
    )
    ((title, read),) = timelines_in(html_page("a", timeline(trace, title=HOSTILE)))
    order = np.lexsort((trace.start_s, trace.track))
    assert (title, read.tracks, read.labels) == (HOSTILE, trace.tracks, (HOSTILE,) * 300)
    np.testing.assert_array_equal(read.track, trace.track[order])
    np.testing.assert_allclose(read.start_s, trace.start_s[order], rtol=1e-8)
    np.testing.assert_allclose(read.end_s, trace.end_s[order], rtol=1e-8)
    assert list(timelines_in(timeline(many_spans(MOST_SPANS + 1), title="t"))) == []


def test_waits_and_notes_follow_their_spans() -> None:
    """In the order of the page, whatever the trace's is."""
    trace = many_spans(4)  # tracks 0, 1, 0, 1: in the page 0, 2, 1, 3
    markup = timeline(
        trace, title="t", waits=np.array([-1, 0, 1, 2]), notes=[Note("n", list("abcd"))]
    )
    assert '"waits":[-1,2,0,1]' in markup
    assert '"notes":[{"name":"n","of":[0,1,2,3],"values":["a","c","b","d"]}]' in markup


def test_a_critical_span_waited_for_a_critical_one() -> None:
    """Back from the end to the first span, without a gap: as `critical_spans` defines it."""
    judged = result_of(chain(9)).judgement
    trace, waits, critical = judged.trace(), waited_for(judged), critical_spans(judged)
    for span in np.flatnonzero(critical).tolist():
        before = int(waits[span])
        assert (before < 0) == (trace.start_s[span] == 0)
        assert before < 0 or (critical[before] and trace.end_s[before] == trace.start_s[span])


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The report of a measured run in Chromium; fails where a script does."""
    result = result_of(chain(9))
    file: Path = result.report(tmp_path_factory.mktemp("page") / "page.html", measured(result))
    with in_chromium(file) as opened:
        yield opened


def test_keys_zoom_both_timelines_and_explain(page: Any) -> None:
    """w, s, a, d, 0; arrows choose, Enter explains, its cause is a button, Esc clears."""
    first, second = page.locator(".timeline").all()
    drawn = [first.locator(".span").count(), second.locator(".span").count()]
    first.locator("svg").focus()
    for key in "wwww":
        page.keyboard.press(key)
    page.wait_for_function("document.querySelector('.timeline .axis text').textContent != '0 s'")
    seen = first.locator("output").inner_text()
    assert " to " in seen
    assert first.locator(".span").count() < drawn[0]
    assert second.locator(".span").count() < drawn[1]
    page.keyboard.press("d")
    assert first.locator("output").inner_text() != seen
    page.keyboard.press("0")
    page.wait_for_function(f"document.querySelectorAll('.timeline .span').length == {sum(drawn)}")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert first.locator("output").inner_text().startswith("op2 on dev0")
    page.keyboard.press("Enter")
    said = first.locator(".about").inner_text()
    for words in ("op2", "dev0 3 s, dev1 2 s", "waited for", "on it: if this takes", "measured"):
        assert words in said
    first.get_by_role("button", name="tensor1").click()
    assert "from dev1 to dev0" in first.locator(".about").inner_text()
    first.locator("svg").focus()
    page.keyboard.press("Escape")
    assert first.locator(".about").inner_text() == ""


def test_a_click_explains_a_bar(page: Any) -> None:
    """Of a measured one: when it ran, what came before, and what was predicted."""
    second = page.locator(".timeline").nth(1)
    second.locator("[data-track='0'] .span").nth(1).click()
    said = second.locator(".about").inner_text()
    assert said.startswith("op2")
    assert "comes after" in said
    assert "predicted timeline" in said


def test_sections_are_apart() -> None:
    """The script is there once, however many timelines there are, and only where there is one."""
    chart = timeline(many_spans(4), title="t")
    assert (
        html_page("a", section("a", "", chart), section("b", "", chart)).count("class Timeline")
        == 1
    )
    assert "class Timeline" not in html_page("a", "b")
