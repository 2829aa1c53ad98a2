"""Post, and the baselines that only draw or walk at random."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.errors import InputError
from placewright.operators.conformance import random_problem
from placewright.operators.judge import judge
from placewright.operators.planners import planners
from placewright.operators.planners.learned.edits import LocalSearch, RandomSearch
from placewright.operators.planners.learned.evaluation import Evaluations
from placewright.operators.planners.learned.planner import learned
from placewright.operators.planners.learned.post import Post
from placewright.operators.problem import OperatorProblem
from placewright.operators.readers.task_graphs import read_dag
from placewright.planning.contract import Context, Planner
from placewright.planning.solving import solve
from placewright.testing import PlannerConformance
from tests.published import published


def layered() -> OperatorProblem:
    """A published graph of 100 operators."""
    return read_dag(published("dag/layered_n100_ccr1.0_s0.json"), "contended")


class TestPost(PlannerConformance):
    """Post, with few samples."""

    def planner(self, problem: OperatorProblem) -> Planner:
        """60 samples: a step of each kind."""
        return Post(samples=60, window=24)


class TestLocalSearch(PlannerConformance):
    """Local search, with few samples."""

    def planner(self, problem: OperatorProblem) -> Planner:
        """Three walks."""
        return LocalSearch(samples=60, walk=20)


@pytest.mark.parametrize("profile", ["as_published", "repaired"])
def test_post_finds_what_random_search_does_not(profile: str) -> None:
    """At equal evaluations; what it returns is what it says."""
    problem, values = layered(), {}
    for planner in (Post(samples=1200, profile=profile), RandomSearch(samples=1200)):  # type: ignore[arg-type]
        evaluations = Evaluations(problem, limit=1200)
        plan = learned(planner, evaluations).plan
        values[planner.name] = judge(problem, plan).value
        assert values[planner.name] == evaluations.best.score.value_s
        assert evaluations.count == 1200
    assert values["post"] < 0.9 * values["random-search"]


def test_repaired_post_beats_heft_and_the_published_one() -> None:
    """It begins at list schedules and improves on them."""
    problem = layered()
    values = {}
    for profile in ("as_published", "repaired"):
        evaluations = Evaluations(problem, limit=1200)
        learned(Post(profile=profile), evaluations)  # type: ignore[arg-type]
        values[profile] = evaluations.best.score.value_s
    heft = judge(problem, planners(problem)["heft"](problem, Context())).value
    assert values["repaired"] < values["as_published"]
    assert values["repaired"] < heft


def test_post_goes_on_from_its_parameters() -> None:
    """Softmaxes that were learned draw better placements from the first batch."""
    problem = layered()
    first = Evaluations(problem, limit=1200)
    learned(Post(start="uniform"), first)
    second = Evaluations(problem, limit=40, parameters=first.parameters)
    learned(Post(start="uniform"), second)
    fresh = Evaluations(problem, limit=40)
    learned(Post(start="uniform"), fresh)
    assert second.best.score.value_s < fresh.best.score.value_s


def test_interrupted_post_returns_the_best_so_far() -> None:
    """Ctrl-C in an evaluation."""
    problem = random_problem(5)
    evaluations = Evaluations(problem)
    calls = []

    def interrupt(placements: np.ndarray) -> np.ndarray:
        calls.append(len(placements))
        if len(calls) > 2:
            raise KeyboardInterrupt
        return np.full(len(placements), 1e9)

    evaluations.measure = interrupt
    proposal = learned(Post(), evaluations)
    assert proposal.interrupted
    assert judge(problem, proposal.plan).value >= 0


def test_they_run_only_by_name() -> None:
    """Neither ``auto`` nor a comparison without names waits for them."""
    from placewright.operators.planners import portfolio
    from placewright.planning.solving import compare

    problem = random_problem(5)
    assert "post" in planners(problem)
    assert "post" not in portfolio(problem)
    assert "post" not in {c.planner for c in compare(problem, time_limit_s=0.0).candidates}


@pytest.mark.parametrize("text", ["post(batch=0)", "post(samples=-5)", "post(edits=-1)"])
def test_counts_that_mean_nothing_are_refused(text: str) -> None:
    """A batch of none would judge the teachers and end without a word."""
    name = text[5:].partition("=")[0]
    with pytest.raises(InputError, match=f"{name} must be a whole number >= "):
        solve(layered(), text)
