"""The portfolio: judged candidates, rising bounds, and notes on its end."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
import pytest

from placewright.errors import (
    InfeasibleError,
    InputError,
    MissingDependencyError,
    PlacewrightError,
    UnsupportedError,
)
from placewright.numerics.clocks import CompileClock
from placewright.operators import WING
from placewright.operators.conformance import tiny
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.planning.candidates import Status
from placewright.planning.contract import Context, Proposal
from placewright.planning.portfolio import Limits, Portfolio


@dataclass(frozen=True, slots=True)
class Fixed:
    """Everything on one device, with a bound that it claims."""

    name: str
    device: int = 0
    bound_s: float = 0.0
    resolution_s: float = 0.0
    missing: bool = False

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Devices that exist."""
        return None if self.device < problem.m else "no such device"

    def __call__(self, problem: OperatorProblem, context: Context) -> Proposal[OperatorPlan]:
        """The plan."""
        if self.device < 0:
            raise IndexError("no such device")
        if self.missing:
            raise MissingDependencyError("nothing", extra="exact", purpose=self.name)
        plan = OperatorPlan(np.full(problem.n, self.device))
        return Proposal(plan, self.bound_s, self.resolution_s)


def portfolio_of(problem: OperatorProblem, *, tolerant: bool = True) -> Portfolio:
    """With no bounds known."""
    return Portfolio(WING, problem, CompileClock(lambda: None), tolerant)


TWO = tiny([[2.0, 5.0]] * 3, [(0, 0.0, [1]), (1, 0.0, [2])])


def test_the_judge_decides_and_the_winner_is_explained() -> None:
    """The better plan stays, and the words say by how much and from where it started."""
    portfolio = portfolio_of(TWO)
    portfolio.run(Fixed("slow", 1), Context())
    portfolio.run(Fixed("fast", 0), Context(incumbent=portfolio.best.plan))
    assert (portfolio.best_planner, portfolio.value) == ("fast", 6.0)
    assert portfolio.why() == (
        "fast won: 60.0 % below slow, the best of 1 others; it started from the plan of slow"
    )
    assert portfolio.status(interrupted=True) is Status.INTERRUPTED


def test_a_proof_closes_it() -> None:
    """A bound that a planner proves is named and makes the plan optimal."""
    portfolio = portfolio_of(TWO)
    portfolio.run(Fixed("proof", 0, bound_s=6.0), Context())
    assert portfolio.closed
    assert portfolio.status(interrupted=False) is Status.OPTIMAL
    assert portfolio.why() == "proof won; nothing can be better (proof bound)"


def test_a_proof_holds_up_to_the_resolution_that_it_names() -> None:
    """A value within it is optimal, the next one is not; the bound stays what it is."""
    for resolution_s, status in ((0.01, Status.OPTIMAL), (0.009, Status.FEASIBLE)):
        portfolio = portfolio_of(TWO)
        portfolio.run(Fixed("proof", 0, 5.99, resolution_s), Context())
        assert portfolio.status(interrupted=False) is status
        assert portfolio.bound == 5.99


def test_a_missing_package_is_an_error_only_where_it_was_asked_for() -> None:
    """Tolerated, it is a note that says what to install."""
    with pytest.raises(MissingDependencyError):
        portfolio_of(TWO, tolerant=False).run(Fixed("learned", missing=True), Context())
    portfolio = portfolio_of(TWO)
    portfolio.run(Fixed("learned", missing=True), Context())
    portfolio.run(Fixed("fast"), Context())
    assert "not run: learned" in portfolio.why()


def test_a_bound_above_its_own_plan_is_not_believed() -> None:
    """Neither is one that is no number; the plan stays, and the note names the error."""
    for bound_s in (6.1, math.inf, math.nan):
        portfolio = portfolio_of(TWO)
        with pytest.warns(RuntimeWarning, match="contradicts its own plan"):
            portfolio.run(Fixed("liar", 0, bound_s), Context())
        assert (portfolio.value, portfolio.bound) == (6.0, 0.0)
        assert portfolio.tried[0].note.startswith("failed: its bound")


@pytest.mark.parametrize("first", ["liar", "fast"])
def test_a_bound_that_another_plan_beats_is_not_believed(first: str) -> None:
    """Whichever comes first: the better plan is no proof that it is optimal."""
    portfolio = portfolio_of(TWO)
    liar, fast = Fixed("liar", 1, bound_s=14.9, resolution_s=0.2), Fixed("fast", 0)
    portfolio.run(liar if first == "liar" else fast, Context())
    with pytest.warns(RuntimeWarning, match=r"14\.9 contradicts fast's value 6"):
        portfolio.run(fast if first == "liar" else liar, Context())
    assert (portfolio.value, portfolio.bound, portfolio.closed) == (6.0, 0.0, False)
    with pytest.warns(RuntimeWarning, match="'wrong' is left out: 7 contradicts fast's value 6"):
        portfolio.add_bounds({"wrong": 7.0, "right": 5.0})
    assert portfolio.bounds["right"] == portfolio.bound == 5.0


def test_a_failing_planner_costs_only_its_own_run() -> None:
    """What others have found stays; asked for by name, the error is the caller's."""
    portfolio = portfolio_of(TWO)
    portfolio.run(Fixed("fast"), Context())
    with pytest.warns(RuntimeWarning, match="'broken' failed: IndexError"):
        portfolio.run(Fixed("broken", device=-7), Context())
    assert portfolio.best_planner == "fast"
    assert portfolio.tried[1].note.startswith("failed: IndexError")
    assert portfolio.tried[1].runtime_s > 0
    with pytest.raises(IndexError):
        portfolio_of(TWO, tolerant=False).run(Fixed("broken", device=-7), Context())


@dataclass(frozen=True, slots=True)
class Refusing:
    """Raises an error that says what to do next."""

    error: PlacewrightError
    name: str = "refusing"

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Always supported."""
        return None

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """No plan."""
        raise self.error


@pytest.mark.parametrize("kind", [InfeasibleError, InputError])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_next_step_is_printed_once(kind: type[PlacewrightError]) -> None:
    """Also where a planner's note has it."""
    portfolio = portfolio_of(TWO)
    portfolio.run(Refusing(kind("no cut fits", by="3 bytes over", hint="try another")), Context())
    message = str(portfolio.no_plan(interrupted=False))
    assert message.count("next:") == 1
    assert "no cut fits" in message
    assert "3 bytes over" in message


def test_no_plan_says_why() -> None:
    """Too little memory names the bytes; nobody who takes it lists everybody's reason."""
    full = portfolio_of(
        tiny([[1.0]] * 2, [(0, 0.0, [1])], resident_bytes=[4.0, 4.0], memory_bytes=[5.0])
    )
    full.run(Fixed("only"), Context())
    assert math.isinf(full.value)
    assert isinstance(full.no_plan(interrupted=False), InfeasibleError)
    assert "3 B more" in str(full.no_plan(interrupted=False))
    two = tiny(
        [[1.0, 1.0]] * 2,
        [(0, 0.0, [1])],
        resident_bytes=[4.0, 4.0],
        memory_bytes=[5.0, 6.0],
        latency_s=1.0,
    )
    nearest = portfolio_of(two)
    nearest.run(Fixed("first", 0), Context())
    nearest.run(Fixed("nearer", 1), Context())
    assert "'dev1' needs 2 B more" in str(nearest.no_plan(interrupted=False))
    refused = portfolio_of(TWO)
    refused.run(Fixed("far", 7), Context())
    assert isinstance(refused.no_plan(interrupted=False), UnsupportedError)
    assert isinstance(refused.no_plan(interrupted=True), KeyboardInterrupt)


@dataclass(frozen=True)
class Choosing:
    """A simplifier that answers with everything on one device."""

    device: int
    name: str = "simplest"
    never_behind: tuple[str, ...] = ()

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """None."""

    def tolerance(self, problem: OperatorProblem, plan: OperatorPlan) -> float:
        """Always the same."""
        return 0.02

    def __call__(
        self, problem: OperatorProblem, plans: object, tolerance: float, context: Context
    ) -> Proposal[OperatorPlan]:
        """The plan."""
        return Proposal(OperatorPlan(np.full(problem.n, self.device)))


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ([2.0, 2.01], "simplest is simpler, and 0.50 % worse than fast, the best (auto takes the"),
        ([2.0, 2.0], "simplest is simpler than fast, at its value"),
        ([2.0, 1.99], "simplest is as simple as fast or simpler, and 0.50 % better"),
    ],
)
def test_what_a_simpler_plan_costs_is_said_with_its_sign(times: list[float], words: str) -> None:
    """The steps of a simplifier may also find a better plan."""
    portfolio = portfolio_of(tiny([times] * 3, [(0, 0.0, [1]), (1, 0.0, [2])]))
    portfolio.run(Fixed("fast", 0), Context())
    assert not portfolio.simplify(Choosing(1), 0.01, Limits(time.perf_counter(), 10.0, 0))
    assert portfolio.why().startswith(words)
    portfolio = portfolio_of(tiny([times] * 3, [(0, 0.0, [1]), (1, 0.0, [2])]))
    portfolio.run(Fixed("fast", 0), Context())
    assert not portfolio.simplify(Choosing(1), None, Limits(time.perf_counter(), 10.0, 0))
    assert portfolio.best_planner == "simplest"
    assert times[1] <= times[0] or "within 2 %, which is what predictions" in portfolio.why()
