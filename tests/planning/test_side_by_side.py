"""Two plans side by side, of any wing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from placewright.errors import InputError
from placewright.planning.contract import Direction
from placewright.planning.side_by_side import (
    Side,
    side_by_side_page,
    side_of,
    side_of_data,
    verdict,
)
from placewright.planning.solving import solve
from placewright.planning.wings import registered
from placewright.report.gantt import timelines_in
from tests.cli.run_cli import run_cli
from tests.planning.test_toy_wing import EIGHT, WING, Packing
from tests.report.examples import HOSTILE, chain, measured, result_of


def operators_side(name: str = "ours", **changes: object) -> Side:
    """A plan that alternates between two devices."""
    side = side_of(result_of(chain()), name)
    return replace(side, data=side.data | changes)


def test_the_page_has_values_differences_and_both_timelines(tmp_path: Path) -> None:
    """To one scale; the operators that moved, and how many from where to where."""
    first, second = result_of(chain()), solve(chain(), "only:dev1")
    page = first.report_beside(second, tmp_path / "page.html").read_text()
    changed = "3 of 6 parts differ: 3 from dev0 to dev1"
    for words in (changed, "heft, predicted</b> timeline over", "-29.41 %"):
        assert words in page
    (one, other) = timelines_in(page)
    assert one[1].duration_s == first.value
    assert other[1].duration_s == second.value
    assert page.count('"until":17.0') == 2
    same = side_by_side_page(side_of(first), side_of(first))
    assert "Nothing: all 6 parts are the same" in same
    assert "predicted to be worth the same" in same


def test_the_better_one_is_named_in_either_direction() -> None:
    """By how much; measured too; not where plans are of two wings."""
    slow, fast = operators_side("slow", value=3.0), operators_side("fast", value=2.0)
    assert "better one: the other one's value is <b>50.0 %</b> higher" in verdict(slow, fast)
    more = {"direction": str(Direction.MAXIMISE)}
    up = [replace(side, data=side.data | more) for side in (slow, fast)]
    assert "<b>slow</b> is predicted" in verdict(*up)
    ran = [replace(s, data=s.data | {"measured_s": m}) for s, m in ((slow, 2.0), (fast, 2.5))]
    assert "Measured, <b>slow</b> is, by <b>25.0 %</b>" in verdict(*ran)
    assert "two problems" in verdict(slow, operators_side(problem_hash="another"))
    with registered(WING):
        assert "do not compare" in verdict(slow, side_of(solve(EIGHT)))


def test_values_of_two_objectives_do_not_compare(tmp_path: Path) -> None:
    """Neither in the sentence nor in the table; numbers have the unit that each side has."""
    bare = chain().replace(dimensionless=True)
    first, second = solve(bare, "heft"), solve(bare, "heft", objective=lambda judged: 3e4)
    page = first.report_beside(second, tmp_path / "page.html").read_text()
    assert "of one is latency, that of the other own objective: their values do not" in page
    assert ">30000<" in page
    assert f">{first.value:g}<" in page
    assert "better one" not in page
    assert f"timeline over {first.value:g}<" in page
    drawn = first.gantt(tmp_path / "bare.svg").read_text(), second.gantt(tmp_path / "own.svg")
    assert drawn[0].count(" s<") == drawn[1].read_text().count(" s<") == 0
    timed = solve(chain(), "heft", objective=lambda judged: 3e4).gantt(tmp_path / "timed.svg")
    assert " s<" in timed.read_text()


def test_a_wing_without_an_edit() -> None:
    """What its plans consist of is what stands in their files."""
    with registered(WING):
        results = [
            solve(Packing((3, 3, 3, 7, 7, 7), 10), planner) for planner in ("first-fit", "shuffled")
        ]
        sides = [side_of(result) for result in results]
        assert sides[0].parts()["bins[0]"] == "0"
        page = side_by_side_page(*sides)
    assert "parts differ" in page
    assert "4 bins" in page


def test_names_are_escaped() -> None:
    """Of files, operators and devices."""
    problem = chain().replace(operator_names=tuple(f"{HOSTILE}{k}" for k in range(6)))
    sides = [side_of(result_of(problem), HOSTILE), side_of(solve(problem, "only:dev1"), HOSTILE)]
    assert "<script>alert" not in side_by_side_page(*sides)


@pytest.mark.parametrize(
    "data",
    [{}, {"plan": 3}, {"plan": {"placement": {"a": 1}}}, {"plan": {"placement": {}, "x": 1}}],
)
def test_what_is_no_plan_is_refused(data: dict[str, object]) -> None:
    """With its name."""
    with pytest.raises(InputError, match=r"bad\.json"):
        side_of_data(data, "bad.json")


def test_files_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`show` with two plans; one that was measured says so."""
    first, second, page = (tmp_path / name for name in ("a.json", "b.json", "page.html"))
    result = result_of(chain())
    result.save(first)
    solve(chain(), "only:dev1").save(second)
    assert run_cli(capsys, "show", first, second, "-o", page, "--no-open").code == 0
    assert len(list(timelines_in(page.read_text()))) == 2
    ran = result.as_json() | {"measured_s": measured(result).measured_s}
    assert side_of_data(ran, "ran").measured_s == measured(result).measured_s
