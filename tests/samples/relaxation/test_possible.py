"""Infeasibility is reported only where the judge admits no plan."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest

from placewright.errors import InfeasibleError
from placewright.planning.contract import BoundContext, Context, proposal_of
from placewright.planning.solving import solve
from placewright.samples.bounds import refined_bounds
from placewright.samples.judge import judge
from placewright.samples.plan import nothing
from placewright.samples.planners import planners
from placewright.samples.problem import SampleProblem
from placewright.samples.relaxation.columns import relaxation
from tests.samples.tiny import best_value, tiny


def at_the_limit(**fields: object) -> SampleProblem:
    """Two full nodes keep two samples of one class each: a whole sample off any even mix."""
    return tiny(
        [[2, 0], [0, 2], [100, 100], [10, 10]],
        keep=np.array([[2, 0], [0, 2], [0, 0], [0, 0]]),
        storage=np.array([2, 2, np.inf, np.inf]),
        seconds_per_sample=np.array([0.001, 0.001, 0.01, 0.001]),
        send_s=np.where(np.eye(4, dtype=bool), np.inf, 1e-4),
        label_mix=0.0,
        **fields,
    )


@pytest.mark.parametrize("planner", ["none", "lp", "ilp", "auto"])
def test_a_mix_that_is_missed_by_all_that_is_allowed_has_plans(planner: str) -> None:
    """The judge takes them; most samples go to the node that is ten times as fast."""
    problem = at_the_limit()
    still = judge(problem, nothing())
    assert still.feasible
    result = solve(problem, planner, time_limit_s=20)
    assert result.lower_bound <= result.value
    assert result.value < 0.3 * still.value or planner == "none"


@pytest.mark.parametrize("seed", range(30))
def test_no_plan_means_that_none_of_all_plans_fits(seed: int) -> None:
    """Two classes on two nodes, tight mixes, every plan tried."""
    rng = np.random.default_rng(seed)
    held = rng.integers(0, 6, (2, 2)) + np.array([[1, 0], [0, 1]])
    problem = tiny(
        held,
        keep=np.minimum(held, rng.integers(0, 4, (2, 2))),
        storage=held.sum(axis=1) + rng.integers(0, 3, 2).astype(float),
        label_mix=float(rng.uniform(0, 0.1)),
    )
    best = best_value(problem)
    try:
        bound = refined_bounds(problem)["lp"]
    except InfeasibleError:
        assert np.isinf(best)
    else:
        assert bound <= best
    if np.isfinite(best):
        found = proposal_of(planners(problem)["ilp"](problem, Context()))
        judged = judge(problem, found.plan)
        assert judged.violation == ""
        assert judged.value == pytest.approx(best, rel=2e-4)


def test_samples_that_are_dear_to_receive_are_not_in_the_wrong_place() -> None:
    """Moving them takes longer than anything else; and where nothing takes time, they move too."""
    free = np.where(np.eye(2, dtype=bool), np.inf, 0.0)
    dear = tiny([9, 0], send_s=free, receive_s=free + 1e4, storage=np.array([5, np.inf]))
    assert relaxation(dear).value_s == pytest.approx(4e4 + 0.4, rel=1e-4)
    none = tiny([9, 0], send_s=free, seconds_per_sample=np.zeros(2), storage=np.array([5, np.inf]))
    assert relaxation(none).value_s == 0.0
    assert solve(none, "lp").value == 0.0


def test_a_solve_that_has_a_plan_is_not_ended_by_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the relaxation says; without a plan its result is reported."""

    def refused(*_: object) -> None:
        raise InfeasibleError("no plan keeps storage, protection and label mix")

    # The package has a function of the module's name.
    monkeypatch.setattr(import_module("placewright.samples.bounds"), "relaxation", refused)
    assert solve(tiny([5, 1]), "greedy").judgement.feasible
    with pytest.raises(InfeasibleError):
        refined_bounds(tiny([5, 1]), BoundContext(np.inf, 0.0, np.inf, auto=True))
