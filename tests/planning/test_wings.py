"""Registration of wings: listed, registered, from entry points."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from placewright.errors import InputError, UnknownNameError, UnsupportedError
from placewright.numerics.clocks import CompileClock
from placewright.operators import WING as OPERATORS
from placewright.operators.conformance import tiny
from placewright.planning import wings as registry
from placewright.planning.candidates import Status
from placewright.planning.contract import Context, Direction
from placewright.planning.portfolio import Portfolio
from placewright.planning.solving import compare, solve
from placewright.planning.wings import ENTRY_POINTS, find_wing, registered, wing_of, wings
from tests.planning.prizes import WING, Prizes, Take

PRIZES = Prizes((3.0, 8.0, 5.0))


def test_own_wings_are_found_by_problem_and_by_name() -> None:
    """An unknown name offers the nearest, an unknown problem names what is taken."""
    assert list(wings())[:2] == ["operators", "samples"]
    assert find_wing("operators") is OPERATORS is wing_of(tiny([[1.0]]))
    with pytest.raises(UnknownNameError, match="did you mean 'samples'"):
        find_wing("sample")
    with pytest.raises(UnsupportedError, match=r"(?s)no wing takes a Prizes.*SampleProblem"):
        wing_of(PRIZES)


def test_a_registered_wing_is_a_wing_like_any_other_and_goes_again() -> None:
    """Nothing else is one."""
    with registered(WING):
        assert wing_of(PRIZES) is find_wing("prizes") is WING
    assert "prizes" not in wings()
    with pytest.raises(InputError, match=r"wing of register_wing.*must be a Wing"):
        registry.register_wing("prizes")  # type: ignore[arg-type]


@pytest.fixture
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution with a good wing, a missing one, a string, and one whose name is taken."""
    (tmp_path / "prize_wing.py").write_text(
        "from tests.planning.prizes import WING\nfrom placewright.samples import WING as SAMPLES\n"
    )
    info = tmp_path / "prize_wing-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: prize-wing\nVersion: 1.0\n")
    points = {
        "broken": "no_such_module:WING",
        "prizes": "prize_wing:WING",
        "text": "prize_wing:__name__",
        "samples": "prize_wing:SAMPLES",
    }
    lines = "".join(f"{name} = {value}\n" for name, value in points.items())
    (info / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\n{lines}")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry._plugged.cache_clear()
    yield
    registry._plugged.cache_clear()
    sys.modules.pop("prize_wing", None)


@pytest.mark.usefixtures("offered")
def test_broken_entry_points_cost_themselves() -> None:
    """Each with a warning that names it; the good one is there."""
    with pytest.warns(RuntimeWarning, match="is left out") as caught:
        assert list(wings()) == [*registry.OWN, "prizes"]
    messages = [str(w.message) for w in caught]
    assert len(messages) == 3
    assert "ModuleNotFoundError" in messages[0]
    assert "a str is no" in messages[1]
    assert "'samples' already" in messages[2]
    assert solve(PRIZES, "take-1").value == 8.0


def test_what_is_installed_meanwhile_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entry points are not read again until a folder of the import path has changed."""
    monkeypatch.syspath_prepend(str(tmp_path))
    assert list(registry.plug_ins("own.group")) == []
    prepared = tmp_path / "prepared"
    prepared.mkdir()
    (prepared / "entry_points.txt").write_text("[own.group]\nroot = math:sqrt\n")
    prepared.rename(tmp_path / "late-1.0.dist-info")
    assert list(registry.plug_ins("own.group")) == [("root", math.sqrt)]
    monkeypatch.setattr(registry, "entry_points", None)
    assert list(registry.plug_ins("own.group")) == [("root", math.sqrt)]


def test_what_is_maximised_has_upper_bounds() -> None:
    """The largest value wins, the least bound counts, and ``auto`` stops where they meet."""
    with registered(WING):
        result = compare(PRIZES)
        assert (result.value, result.bound, result.planner) == (8.0, 16.0, "take-1")
        assert (result.lower_bound, result.upper_bound) == (8.0, 16.0)
        assert result.gap == 1.0
        assert result.status is Status.FEASIBLE
        auto = solve(Prizes((3.0, 8.0, 5.0), limit=8.0))
    assert auto.status is Status.OPTIMAL
    assert auto.note == (
        "take-1 won: 166.7 % above take-0, the best of 1 others; "
        "it started from the plan of take-0; nothing can be better (limit bound)"
    )


def test_claims_of_upper_bounds_are_checked() -> None:
    """One below its own plan's value is not believed; one that is tight proves the plan."""
    contest = Portfolio(WING, PRIZES, CompileClock(lambda: None), tolerant=True)
    with pytest.warns(RuntimeWarning, match="its bound 7 contradicts its own plan's value 8"):
        contest.run(Take(1, claim=7.0), Context())
    assert (contest.value, contest.bound) == (8.0, math.inf)
    contest.run(Take(0, claim=9.0), Context())
    assert "at most 11.1 % below the best (take-0 bound)" in contest.why()
    contest.run(Take(1, claim=8.0), Context())
    assert contest.closed


def test_the_nearest_miss_is_the_smallest() -> None:
    """In the wing's own measure."""
    with registered(WING), pytest.raises(Exception, match="5 too heavy"):
        solve(Prizes((9.0, 8.0, 7.0), limit=2.0))


@pytest.mark.parametrize(
    ("value", "bound", "gap"), [(4.0, 5.0, 0.25), (4.0, math.inf, math.inf), (0.0, 0.0, 0.0)]
)
def test_gaps_of_maximisation(value: float, bound: float, gap: float) -> None:
    """By how much the bound is larger."""
    assert Direction.MAXIMISE.gap(value, bound) == gap
    assert Direction.MINIMISE.gap(bound, value) == gap
