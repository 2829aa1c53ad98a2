"""Exact throughput with copies, clusters and passes equals brute force."""

from __future__ import annotations

import pytest

from placewright.errors import InfeasibleError
from placewright.operators.judge import judge
from placewright.operators.planners.contiguous_dp import IdealDp, LinearisedDp
from placewright.operators.planners.exact import Exact
from placewright.planning.contract import Context, proposal_of
from tests.operators.pipelines import best_piped, piped
from tests.operators.star_cases import equals_brute_force

pytest.importorskip("ortools")


@pytest.mark.parametrize("contiguous", [True, False])
def test_exact_equals_brute_force(contiguous: bool) -> None:
    """By ideals, by CP-SAT and by HiGHS, with proof; or there is no plan at all."""
    found = 0
    for seed in range(28):
        problem = piped(seed, contiguous=contiguous)
        wanted = best_piped(seed, contiguous)
        planner = Exact(few_ideals=20_000 if seed % 2 else 0)
        found += equals_brute_force(planner, problem, wanted, 1e-5)
    assert found > 16


def test_dynamic_programs_hand_over_plans_that_fit() -> None:
    """Copies included; ideals are a proof where the tables count as the judge does."""
    proved = 0
    for seed in range(28):
        problem = piped(seed, contiguous=True)
        wanted = best_piped(seed, True)
        for planner in (LinearisedDp(), IdealDp()):
            try:
                proposal = proposal_of(planner(problem, Context()))
                plan = proposal.plan
            except InfeasibleError:
                continue
            judgement = judge(problem, plan)
            assert judgement.feasible, judgement.violation
            assert (proposal.bound or 0.0) <= wanted <= judgement.value * (1 + 1e-9)
            proved += (proposal.bound or 0.0) >= judgement.value * (1 - 1e-9) > 0
    assert proved > 5
