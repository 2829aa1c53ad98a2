"""`solve` and `compare`: time limits, missing packages, plans from files."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from placewright.errors import (
    InfeasibleError,
    InputError,
    MissingDependencyError,
    OutOfTimeError,
)
from placewright.numerics.clocks import CompileClock, stop_flag
from placewright.operators.conformance import tiny
from placewright.operators.files import read_proposal
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.baselines import Metis
from placewright.planning import portfolio, solving
from placewright.planning.candidates import Candidate, Outcome, Status
from placewright.planning.contract import Context, Needs, Proposal, silent
from placewright.planning.portfolio import Limits, Portfolio
from placewright.planning.solving import (
    compare,
    judged_plan,
    refuse_beside_plan,
    run_portfolio,
    solve,
)
from placewright.planning.wings import judge, wing_of
from placewright.report.text import amount
from tests.cli.run_cli import run_cli

if TYPE_CHECKING:
    from typing import assert_type

    from placewright.operators.judgement import OperatorJudgement
    from placewright.operators.problem import OperatorProblem
    from placewright.planning.result import Result
    from placewright.planning.wings import Judge
    from placewright.samples.plan import SamplePlan
    from placewright.samples.problem import SampleProblem


if TYPE_CHECKING:

    def results_have_the_types_of_their_wing(
        operators: OperatorProblem, samples: SampleProblem
    ) -> None:
        """As mypy, which checks this file, infers them."""
        assert_type(solve(operators), Result[OperatorPlan, OperatorJudgement])
        assert_type(compare(samples).plan, SamplePlan)
        assert_type(Judge(operators)([0]), OperatorJudgement)


TWO = tiny([[2.0, 5.0], [4.0, 3.0], [2.0, 2.0]], [(0, 1.0, [1]), (1, 1.0, [2])], name="two")


@pytest.mark.parametrize("limit_s", [math.nan, -1.0])
def test_a_time_limit_is_a_number_of_seconds(limit_s: float) -> None:
    """NaN would be neither over nor left."""
    with pytest.raises(InputError, match="time_limit_s of solve"):
        solve(TWO, time_limit_s=limit_s)


def test_without_a_time_limit_every_planner_has_its_turn() -> None:
    """All the time in the world is more than any share that is kept for bounds."""
    result = solve(TWO, time_limit_s=math.inf)
    assert result.status is Status.OPTIMAL
    assert not [c.planner for c in result.candidates if c.note == "time limit reached"]


def test_a_missing_package_costs_its_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all planners the others answer; one that was named must be had."""
    monkeypatch.setitem(sys.modules, "pymetis", None)
    result = compare(TWO)
    assert "pip install" in next(c.note for c in result.candidates if c.planner == "metis")
    assert math.isfinite(result.value)
    with pytest.raises(MissingDependencyError):
        compare(TWO, ["heft", "metis"])


def test_what_was_proved_holds_for_its_own_problem(tmp_path: Path) -> None:
    """A plan of a slow device is not optimal on a fast one because its file says so."""
    plan = solve(TWO, "exact").save(tmp_path / "plan.json")
    assert judged_plan(TWO, plan).status is Status.OPTIMAL
    fast = TWO.replace(compute_s=TWO.compute_s / 10)
    result = judged_plan(fast, plan)
    assert result.lower_bound <= solve(fast, "exact").value <= result.value
    said = f"its file says {amount(solve(TWO, 'exact').value)}: these costs are others"
    assert result.proposal.note == said
    assert judged_plan(TWO, plan).proposal.note == ""


def test_how_its_planner_ended_is_not_said_of_a_plan_from_a_file(tmp_path: Path) -> None:
    """A plan that Ctrl-C left behind is judged like any other."""
    path = solve(TWO, "heft").save(tmp_path / "plan.json")
    path.write_text(path.read_text().replace('"note": ""', '"note": "interrupted"'))
    assert read_proposal(path, TWO).note == "interrupted"
    assert judged_plan(TWO, path).status is not Status.INTERRUPTED


def test_a_plan_that_does_not_fit_names_its_file(tmp_path: Path) -> None:
    """And not only the problem."""
    path = solve(TWO, "heft").save(tmp_path / "plan.json")
    never = TWO.compute_s.copy()
    never[:, solve(TWO, "heft").plan.placement[0]] = math.inf
    with pytest.raises(InfeasibleError, match=r"plan\.json"):
        read_proposal(path, TWO.replace(compute_s=never))


def test_auto_plans_no_longer_than_its_steps_could_save(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no steps to come the first plan is taken, with endless ones the best."""
    monkeypatch.setattr(portfolio, "QUICK_S", 0.0)
    split = tiny([[2.0, 5.0], [9.0, 3.0], [2.0, 2.0]], [(0, 1.0, [1]), (1, 1.0, [2])], name="split")
    result = solve(split, "auto(steps=0)")
    later = [c for c in result.candidates if c.note == "took longer than it could save already"]
    assert len(later) > 10
    assert solve(split, "auto").value < result.value == 10.0
    with pytest.raises(InputError, match="steps"):
        solve(TWO, "auto(steps=-1)")


def test_a_planner_that_fails_ends_its_own_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Named beside others it is a row with the reason; alone it raises."""

    def fail(*_: object) -> None:
        raise MemoryError("Unable to allocate 6.1 GiB")

    monkeypatch.setattr(Metis, "__call__", fail)
    with pytest.warns(RuntimeWarning, match="6.1 GiB"):
        result = compare(TWO, ["heft", "metis"])
    assert [(c.planner, c.fits) for c in result.candidates] == [("heft", True), ("metis", False)]
    with pytest.raises(MemoryError):
        compare(TWO, ["metis"])


def test_bounds_are_computed_on_request() -> None:
    """Without them nothing is known about better plans."""
    assert solve(TWO, "heft").bound_names
    result = solve(TWO, "heft", bounds=False)
    assert not result.bound_names
    assert result.bound == 0.0


def test_what_takes_no_time_is_best_without_any_bound() -> None:
    """No plan is faster; no bound has to be named for that."""
    result = solve(tiny([[0.0, 0.0]], []), bounds=False)
    assert (result.value, result.status) == (0.0, Status.OPTIMAL)
    assert result.note.endswith("nothing can be better")


@pytest.mark.parametrize(("option", "value"), [("--planner", "heft"), ("--time-limit", 0)])
def test_a_run_does_not_plan_what_is_planned(
    option: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names the option and the plan."""
    command = ("operators", "run", "zoo:alexnet", "plan.json", "--on", "edge-duo", option, value)
    output = run_cli(capsys, *command)
    assert output.code == 1
    assert f"{option}: a plan that is given is not made again" in output.err
    assert "plan.json" in output.err


def test_either_alone_is_fine() -> None:
    """A plan, or how to make one."""
    refuse_beside_plan(Path("plan.json"), None, None)
    refuse_beside_plan(None, "lp", 0.0)


QUICK = Needs()


@dataclass(frozen=True, slots=True)
class Answering:
    """A planner of a user's, with any answer."""

    answer: Any
    estimate: Any = QUICK
    name: str = "own"

    def unsupported_reason(self, problem: Any) -> str | None:
        """Never one."""
        return None

    def needs(self, problem: Any) -> Any:
        """What was given."""
        return self.estimate

    def __call__(self, problem: Any, context: Any) -> Any:
        """What was given."""
        return self.answer


GOOD = OperatorPlan([0, 0, 0])


@pytest.mark.parametrize("answer", [None, [0, 0, 0], {"op0": "dev0"}, Proposal(None), "plan"])
def test_an_answer_that_is_no_plan_names_its_planner(answer: Any) -> None:
    """Alone an error that says what to return, beside others a row."""
    with pytest.raises(InputError, match="planner 'own': must answer with a OperatorPlan") as error:
        solve(TWO, Answering(answer))
    assert "got" in error.value.by
    assert "return a plan" in error.value.hint
    with pytest.warns(RuntimeWarning, match="must answer with"):
        result = compare(TWO, ["heft", Answering(answer)])
    assert [c.fits for c in result.candidates] == [True, False]


@pytest.mark.parametrize("own", ["own", "heft"])
def test_rows_of_one_name_are_refused(own: str) -> None:
    """Both would be marked as chosen, and the first be found by no name."""
    with pytest.raises(InputError, match=f"planner {own!r} is there twice"):
        compare(TWO, [Answering(GOOD, name=own), "heft", Answering(GOOD, name="own")])


@pytest.mark.parametrize("estimate", [3, None, "soon"])
@pytest.mark.filterwarnings("ignore:planner 'own' failed")
def test_needs_that_are_none_end_their_own_row(estimate: Any) -> None:
    """They are looked at before the planner runs."""
    result = compare(TWO, [Answering(GOOD, estimate), "heft"])
    assert result.candidates["own"].outcome is Outcome.FAILED
    assert result.planner == "heft"
    with pytest.raises(InputError, match="own: needs: must return Needs"):
        solve(TWO, Answering(GOOD, estimate))


@pytest.mark.filterwarnings("ignore:planner 'incumbent' failed")
@pytest.mark.parametrize("found", [math.nan, "x", 10**400, 1j], ids=["nan", "x", "large", "1j"])
def test_an_objective_that_fails_on_the_given_plan_ends_its_row(found: Any) -> None:
    """The others are valued."""

    def objective(judgement: Any) -> Any:
        return found if judgement.placement.tolist() == given else judgement.value

    given = [1, 0, 1]
    result = compare(TWO, ["only:dev1", "heft"], incumbent=given, objective=objective)
    assert result.candidates["incumbent"].outcome is Outcome.FAILED
    assert result.candidates["only:dev1"].fits
    with pytest.raises(InputError, match="objective: must return a number"):
        solve(TWO, "heft", incumbent=given, objective=objective)


def test_an_objective_that_finds_every_plan_useless_is_named() -> None:
    """Not the planners, which have taken the problem."""
    for planner in ("heft", "auto"):
        with pytest.raises(InfeasibleError, match=r"no plan has a finite value.*heft") as error:
            solve(TWO, planner, objective=lambda judgement: math.inf)
        assert "objective" in error.value.hint


@dataclass(frozen=True)
class Beside:
    """Answers, or fails, once so many are at work."""

    name: str
    together: threading.Barrier
    proved: float | None = None
    fails: bool = False
    beside: ClassVar[bool] = True

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Takes every problem."""
        return None

    def needs(self, problem: OperatorProblem) -> Needs:
        """More than the time for which none begins before its turn."""
        return Needs(1.0, 1e9)

    def __call__(self, problem: OperatorProblem, context: Context) -> Proposal[OperatorPlan]:
        """All on the second device."""
        self.together.wait(60.0)
        if self.fails:
            raise ValueError("no plan")
        return Proposal(OperatorPlan([1] * problem.n), bound=self.proved)


@dataclass(frozen=True)
class UntilStopped(Beside):
    """Works until it is told that nobody needs its answer."""

    ended: threading.Event = field(default_factory=threading.Event)

    def __call__(self, problem: OperatorProblem, context: Context) -> Proposal[OperatorPlan]:
        """Has no plan."""
        self.together.wait(60.0)
        with stop_flag(math.inf) as flag:
            while not flag[0]:
                time.sleep(0.001)
        self.ended.set()
        raise OutOfTimeError("time limit reached")


def run_beside(
    planners: Sequence[Beside], cores: int, monkeypatch: pytest.MonkeyPatch
) -> list[Candidate]:
    """What a portfolio of them has tried."""
    monkeypatch.setattr(solving, "cores", lambda: cores)
    with CompileClock(lambda: None) as clock:
        p = Portfolio(wing_of(TWO), TWO, clock, tolerant=True)
        limits = Limits(time.perf_counter(), 60.0, 0, bounds=False)
        assert not run_portfolio(p, [(each.name, each) for each in planners], limits, silent, True)
    return p.tried


def test_planners_begin_beside_the_one_whose_turn_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there are cores; each is entered, or fails, when its turn comes."""
    three = threading.Barrier(3)
    planners = [Beside("a", three), Beside("b", three, fails=True), Beside("c", three)]
    with pytest.warns(RuntimeWarning, match="'b' failed: ValueError: no plan"):
        rows = run_beside(planners, 3, monkeypatch)
    assert [row.planner for row in rows] == ["a", "b", "c"]
    assert [row.outcome for row in rows] == [Outcome.FITS, Outcome.FAILED, Outcome.FITS]
    assert rows[0].value == rows[2].value


@pytest.mark.parametrize(("cores", "limit_bytes"), [(1, 4e9), (8, 1.5e9)])
def test_none_begins_early_without_a_core_or_memory(
    monkeypatch: pytest.MonkeyPatch, cores: int, limit_bytes: float
) -> None:
    """Each in its turn, in the thread that asks."""
    monkeypatch.setattr(solving, "_memory_limit", lambda alone: limit_bytes)
    monkeypatch.setattr(solving, "Begun", None)
    alone = threading.Barrier(1)
    rows = run_beside([Beside("a", alone), Beside("b", alone)], cores, monkeypatch)
    assert [row.outcome for row in rows] == [Outcome.FITS, Outcome.FITS]


def test_what_has_begun_is_stopped_where_it_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a plan is proved optimal its thread computes no more."""
    both, ended = threading.Barrier(2), threading.Event()
    optimal = float(judge(TWO, OperatorPlan([1] * TWO.n)).value)
    later = UntilStopped("later", both, ended=ended)
    rows = run_beside([Beside("proved", both, optimal), later], 2, monkeypatch)
    assert [row.outcome for row in rows] == [Outcome.FITS, Outcome.NOT_RUN]
    assert ended.wait(60.0)
