"""Every planner passes the conformance kit, and `auto` is at least as good as each."""

from __future__ import annotations

import math

import pytest
from benchmarks.requests_auto import generated

from placewright.planning.contract import Context
from placewright.planning.solving import compare, solve
from placewright.requests import WING, planners
from placewright.requests.judge import judge
from placewright.requests.planners import listed
from placewright.requests.problem import first_requests
from placewright.testing import PlannerConformance


class TestPolicies(PlannerConformance):
    wing = WING
    named = (
        "rolling",
        "thesis",
        "edf-fastest-batch",
        "least-completion",
        "selected",
        "opportunity",
        "tuned",
    )


@pytest.mark.parametrize(("seed", "bounds"), [(1, False), (12, True)])
def test_auto_is_never_worse_than_a_policy(seed: int, bounds: bool) -> None:
    """On generated services: the best effective accuracy, and the success of the policy with it."""
    problem = generated(seed, 500)
    own = solve(problem, time_limit_s=math.inf, bounds=bounds)
    names = [policy.name for policy in listed()]
    best = compare(problem, names, time_limit_s=math.inf, bounds=False)
    assert own.value >= best.value
    assert own.judgement.success_rate >= best.judgement.success_rate - 0.005
    assert {*names, "tuned"} == {c.planner for c in own.candidates}
    assert "time limit reached" not in {c.note for c in own.candidates}


def test_likely_winners_are_judged_first_on_long_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a sample of the stream: after a time limit only those have been judged."""
    problem = generated(3, 600)
    monkeypatch.setattr(planners, "LONG", 500)
    monkeypatch.setattr(planners, "SAMPLE", 300)
    names = planners.portfolio(problem)
    assert sorted(names) == sorted([*(policy.name for policy in listed()), "tuned"])
    sample = first_requests(problem, 300)
    known = planners.planners(problem)
    able = [name for name in names[:-1] if known[name].unsupported_reason(sample) is None]
    values = [judge(sample, known[name](sample, Context())).value for name in able]
    assert values == sorted(values, reverse=True)
