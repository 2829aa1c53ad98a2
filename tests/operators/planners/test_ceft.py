"""CEFT's list scheduler and CEFT-CPOP."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.operators.conformance import random_problem, tiny
from placewright.operators.costs import ceft
from placewright.operators.judge import judge
from placewright.operators.plan import check_plan
from placewright.operators.planners import planners
from placewright.operators.planners.lists.planners import CEFT, CEFT_CPOP, ListScheduler
from placewright.operators.readers.task_graphs import read_dag
from placewright.planning.contract import Context, proposal_of
from placewright.planning.parameters import choose
from tests.published import published

PLANNERS = [CEFT, CEFT_CPOP]


@pytest.mark.parametrize("planner", PLANNERS, ids=lambda p: p.name)
@pytest.mark.parametrize("seed", range(20))
def test_chain_meets_the_bound(planner: ListScheduler, seed: int) -> None:
    """On a chain CEFT's critical path is the least makespan, and both planners reach it."""
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(1, 12)), int(rng.integers(1, 5))
    chain = [(i, float(rng.random()), [i + 1]) for i in range(n - 1)]
    problem = tiny(rng.random((n, m)).tolist(), chain, latency_s=0.05)
    value = judge(problem, proposal_of(planner(problem, Context())).plan).value
    assert value == pytest.approx(ceft(problem).critical_s)


@pytest.mark.parametrize("planner", PLANNERS, ids=lambda p: p.name)
def test_plans_are_valid_and_not_below_the_bound(planner: ListScheduler) -> None:
    """Random problems with groups, pins and memory, free and contended."""
    for seed in range(40):
        for links in ("free", "contended"):
            problem = random_problem(seed).replace(links=links, overlap="parallel")
            problem = problem.replace(objective="latency")
            plan = proposal_of(planner(problem, Context())).plan
            check_plan(problem, plan)
            assert judge(problem, plan).value >= ceft(problem).critical_s * (1 - 1e-12)


def test_path_goes_to_its_devices() -> None:
    """CEFT-CPOP puts every operator of the critical path where CEFT says."""
    problem = tiny(
        [[4.0, 1.0], [1.0, 4.0], [4.0, 1.0], [1.0, 1.0]],
        [(0, 0.1, [1]), (1, 0.1, [2]), (0, 0.1, [3])],
    )
    tables = ceft(problem)
    plan = CEFT_CPOP(problem, Context())
    assert tables.path.tolist() == [0, 1, 2]
    assert plan.placement[tables.path].tolist() == tables.path_devices.tolist() == [1, 0, 1]


@pytest.mark.parametrize("planner", PLANNERS, ids=lambda p: p.name)
def test_published_graph_within_reach_of_heft(planner: ListScheduler) -> None:
    """On a published instance the free makespan lies within 15 % of the paper's HEFT."""
    problem = read_dag(published("dag/layered_n1000_ccr1.0_s0.json"))
    value = judge(problem, proposal_of(planner(problem, Context())).plan).value
    assert 6028.26 <= value <= 1.15 * 6076.139


def test_parameters_make_the_variant() -> None:
    """HEFT with CEFT's rank and device rule, given as text, is CEFT."""
    for seed in range(5):
        problem = random_problem(seed, most_operators=30)
        plans = [
            choose(planners(problem), text)[1](problem, Context())
            for text in ("heft(rank='ceft-up', device='ceft-up')", "ceft")
        ]
        assert plans[0].placement.tolist() == plans[1].placement.tolist()
