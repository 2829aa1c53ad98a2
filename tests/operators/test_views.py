"""The self-contained page of a plan."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from placewright.adapt.timeline import Timeline
from placewright.graph.graph import Graph, Operator
from placewright.measurement import MachineLoad, Measurement
from placewright.operators.plan import OperatorPlan
from placewright.operators.streaming.prediction import DEALT
from placewright.operators.views import explored, fragment, run_table, saved_page, stream_trace
from placewright.operators.views import page as view
from placewright.planning.candidates import Candidates, Outcome, Status
from placewright.planning.solving import FixedPlan, solve
from placewright.report.text import percent, seconds
from tests.report.examples import HOSTILE, beside, chain, measured, result_of

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Checker(HTMLParser):
    """Every tag is closed where it was opened, and scripts and texts are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.attributes: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An opening tag."""
        self.tags.append(tag)
        self.attributes += [value or "" for _, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A tag without inside."""
        self.tags.append(tag)
        self.attributes += [value or "" for _, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        """A closing tag: of what was opened last."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Text."""
        self.texts.append(data)


def check(page: str) -> Checker:
    """The page, parsed; fails where a tag is left open."""
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    return checker


def test_the_page_is_complete_and_self_contained() -> None:
    """Well formed, no reference to the network, light and dark."""
    page = view(result_of(chain()))
    check(page)
    assert not re.search(r"(src|href)\s*=|@import|url\(|https?://|fetch\(", page)
    assert "prefers-color-scheme: dark" in page


def test_the_page_shows_value_bound_and_plan() -> None:
    """Value, bound, gap, status, planner, candidates, memory and provenance."""
    result = result_of(chain())
    words = " ".join(check(view(result)).texts)
    for part in (
        "FEASIBLE",
        "100 %",
        "only:dev1",
        "chosen",
        "Memory",
        result.provenance.problem_hash,
    ):
        assert part in words
    assert "1.50" in words


def test_predicted_beside_measured() -> None:
    """A measurement adds a second timeline to the same scale, and what was emulated."""
    result = result_of(chain())
    plain, both = view(result), view(result, measured(result))
    assert both.count('aria-label="measured timeline"') == 1
    assert 'aria-label="measured timeline"' not in plain
    assert "dev1 at half speed" in both
    assert "-9.1 %" in both


def test_the_headline_is_predicted_until_something_is_measured() -> None:
    """And says so; then it is what was measured, with the measured baseline and the interval."""
    result = result_of(chain())
    predicted = view(result)
    assert "Predicted: " in predicted
    assert "predicted <b>1.50&times;</b> as fast as dev1" in predicted
    both = view(result, beside(result, 0.8, 0.81, 0.79))
    assert "Measured: " in both
    assert "1.50" not in both.partition("Candidates")[0]
    assert "Measured: slower, 0.80 times as fast as dev1" in both
    assert "measured, dev1 alone" in both
    assert "95 % interval 0.7" in both
    assert "<title>" in both
    assert "measured" in both.partition("</title>")[0]


def test_a_device_with_copies_is_not_shown_idle() -> None:
    """It has the operators and the memory of the device that it copies, and takes other samples."""
    problem = chain(
        memory_bytes=[np.inf, np.inf],
        resident_bytes=np.full(6, 4.0),
        objective="throughput",
        pipeline=DEALT,
    )
    plan = OperatorPlan(np.zeros(6, dtype=np.int64), replica_of=np.array([0, 0]))
    page = view(solve(problem, FixedPlan(plan, name="whole-copies")))
    for words in ("6 operators, copy of dev0", "8 samples of a full pipeline", "per sample"):
        assert words in page
    first, second = re.findall(r"memory of dev\d: peak ([^<\"]*)", page)[:2]
    assert first == second != "0 B"


def test_a_busy_machine_is_on_the_page() -> None:
    """In the headline, where the number is."""
    result = result_of(chain())
    load = MachineLoad("here", cpus=2, cores=2, other_cpus=1.2, peak_cpus=2.0)
    page = view(result, replace(beside(result, 1.0, 1.1), machine=load))
    assert "warning: other processes kept 1.2 of 2 CPUs" in page.partition("Timeline")[0]


def test_names_are_escaped() -> None:
    """No name of an operator, device, tensor, problem or note becomes markup."""
    problem = chain()
    problem = problem.replace(
        operator_names=tuple(f"{HOSTILE}{k}" for k in range(problem.n)),
        tensor_names=tuple(f"{HOSTILE}{k}" for k in range(problem.t)),
        device_names=(f"{HOSTILE}a", f"{HOSTILE}b"),
        channel_names=tuple(f"{HOSTILE}{k}" for k in range(len(problem.channel_names))),
        name=HOSTILE,
    )
    result = result_of(problem, planner=HOSTILE, note=HOSTILE)
    checker = check(view(result, measured(result)))
    assert checker.tags.count("script") == 6  # data of explorer and timelines, three scripts
    assert "alert" not in " ".join(checker.tags)
    assert any(HOSTILE in value for value in checker.attributes)


def test_same_result_same_bytes(tmp_path: Path) -> None:
    """Nothing of the machine or the time of day is in it."""
    result = result_of(chain())
    first = result.report(tmp_path / "a.html").read_bytes()
    assert first == result.report(tmp_path / "b.html").read_bytes()


def test_a_large_problem_gives_a_small_page() -> None:
    """Ten thousand operators with all that is known of them stay below two megabytes."""
    page = view(result_of(chain(10_000, memory_bytes=[np.inf, np.inf])))
    assert len(page) < 2_000_000


def test_the_explorer_has_what_the_graph_knows() -> None:
    """Phases, modules, kinds and FLOPs of the graph beside devices and times of the plan."""
    problem = chain(8, memory_bytes=[np.inf, np.inf])
    operators = tuple(
        Operator(name, "mm", flops=2.0, phase="forward" if k < 4 else "backward", module="layer1")
        for k, name in enumerate(problem.operator_names)
    )
    drawn = explored(result_of(problem), Graph("g", operators, ()))
    assert [c.name for c in drawn.categories] == ["device", "phase", "kind"]
    assert {"time", "memory", "starts", "ends", "FLOPs", "alone on dev1"} <= {
        a.name for a in drawn.amounts
    }
    assert drawn.flow.modules == ("layer1",) * 8


def test_the_explorer_says_why_an_operator_is_where_it_is() -> None:
    """Pins, support, groups, speed and the critical path."""
    problem = chain(4).replace(
        compute_s=[[1.0, 2.0], [np.inf, 2.0], [1.0, 2.0], [1.0, 2.0]], pinned=[0, -1, -1, -1]
    )
    (reasons,) = (n.of for n in explored(result_of(problem)).facts if n.name == "here because")
    assert reasons[0].startswith("pinned to this device")
    assert reasons[1].startswith("no other device runs it")
    assert reasons[2].startswith("no device is faster for it")
    assert reasons[3].startswith("another device is faster for it alone")
    assert all(words.endswith("on the critical path") for words in reasons)


@pytest.mark.parametrize("status", [Status.OPTIMAL, Status.INTERRUPTED])
def test_a_closed_gap_is_said_to_be_proved(status: Status) -> None:
    """Value equal to the bound reads as the best possible."""
    result = result_of(chain(), status=status)
    closed = result_of(chain(), status=status, bound=result.value)
    assert "proved to be the best possible" in view(closed)
    assert "No lower bound is known" in view(result_of(chain(), bound=0.0))


def test_what_is_proved_is_said_of_the_prediction() -> None:
    """Not after a measured sentence as if it was about that."""
    closed = result_of(chain(), bound=result_of(chain()).value)
    shown = view(closed, beside(closed, 1.5, 1.51))
    sentence = shown.partition('class="verdict"')[2].partition("</p>")[0]
    assert "Of the prediction: under the costs it was planned with, it is proved" in sentence


def test_a_predicted_stream_shows_the_samples_that_a_measured_one_shows() -> None:
    """Not one sample on one board: every device that works has spans of all samples."""
    problem = chain(memory_bytes=[np.inf, np.inf], objective="throughput")
    result = solve(problem, FixedPlan(OperatorPlan(np.array([0, 0, 0, 1, 1, 1]))))
    trace = stream_trace(result)
    assert trace is not None
    assert trace.labels[:2] == ("sample 0", "sample 1")
    for device in (0, 1):
        assert len(set(trace.label[trace.track == device].tolist())) == len(trace.labels)
    assert stream_trace(result_of(chain())) is None
    saved = saved_page("plan", result.as_json(), Path("plan.json"))
    assert "Timeline of one sample" in saved


def test_a_measured_stream_stands_beside_its_period_not_its_load() -> None:
    """Predicted, measured and the error between them agree; the load has a name of its own."""
    problem = chain(memory_bytes=[np.inf, np.inf], objective="throughput")
    result = solve(problem, FixedPlan(OperatorPlan(np.array([0, 0, 0, 1, 1, 1]))))
    period_s = 1.25 * result.value
    page = view(result, Measurement((2.0 * period_s,), period_s, None, "local"))
    found = re.findall(r'<div class="fact[^"]*"><span>([^<]*)</span><b>([^<]*)</b>', page)
    expected = {
        "predicted": seconds(period_s),
        "measured": seconds(2.0 * period_s),
        "prediction error": percent(-0.5),
        "busiest device or link": seconds(result.value),
    }
    assert {name: value for name, value in found if name in expected} == expected


def test_a_run_that_had_no_step_left_has_no_step_time() -> None:
    """It went on after the last one."""
    result = result_of(chain())
    shown = run_table(result, beside(result, 1.0, 1.1), Timeline(first_step=8)).splitlines()
    assert shown[-2:] == ["nothing happened", "0 steps done"]


def test_a_notebook_gets_a_fragment() -> None:
    """No whole page, no script; the style is scoped to it."""
    part = fragment(result_of(chain()))
    check(part)
    assert "<script" not in part
    assert "<html" not in part
    assert part == result_of(chain())._repr_html_()


def test_devices_that_were_not_tried_alone_are_not_said_to_be_too_small() -> None:
    """The sentence about single devices needs an answer for each of them."""
    result = result_of(chain())
    unfit = [replace(c, outcome=Outcome.DOES_NOT_FIT) for c in result.candidates[:2]]
    for tried, said in ((unfit, True), (unfit[:1], False)):
        shown = view(replace(result, candidates=Candidates((*tried, result.candidates[2]))))
        assert ("No single device can take it alone" in shown) is said


def test_the_map_keeps_the_names_of_modules() -> None:
    """A list called h is not H on the page."""
    problem = chain(4).replace(operator_modules=("h.0", "h.1", "h.2", "h.3"))
    assert "<p>h 0 on dev0, 1 on dev1" in view(result_of(problem))
