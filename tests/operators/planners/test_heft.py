"""HEFT against published values and a reference table."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.operators.conformance import random_problem, tiny
from placewright.operators.judge import judge
from placewright.operators.plan import Dispatch, OperatorPlan
from placewright.operators.planners.lists.insertion import (
    Setup,
    list_schedule,
    mean_upward_rank,
    scheduled_plan,
    set_up,
)
from placewright.operators.planners.lists.planners import HEFT, RankTables
from placewright.operators.problem import OperatorProblem
from placewright.operators.readers.task_graphs import read_dag
from placewright.planning.contract import Context
from tests.published import published

ORACLE = {
    "layered_n100_ccr0.2_s0": 627.615,
    "layered_n100_ccr1.0_s0": 777.744,
    "layered_n100_ccr5.0_s0": 920.712,
    "layered_n1000_ccr1.0_s0": 6076.139,
    "layered_n10000_ccr1.0_s0": 61261.308,
    "narrow_n100_ccr1.0_s7": 919.554,
    "narrow_n1000_ccr1.0_s7": 8610.771,
}

PAPER_COST = [
    [14, 16, 9],
    [13, 19, 18],
    [11, 13, 19],
    [13, 8, 17],
    [12, 13, 10],
    [13, 16, 9],
    [7, 15, 11],
    [5, 11, 14],
    [18, 12, 20],
    [21, 7, 16],
]
PAPER_EDGES = [
    (0, 18, [1]), (0, 12, [2]), (0, 9, [3]), (0, 11, [4]), (0, 14, [5]),
    (1, 19, [7]), (1, 16, [8]), (2, 23, [6]), (3, 27, [7]), (3, 23, [8]),
    (4, 13, [8]), (5, 15, [7]), (6, 17, [9]), (7, 11, [9]), (8, 13, [9]),
]  # fmt: skip


def paper(**changes: object) -> OperatorProblem:
    """The example of Topcuoglu et al. 2002, figure 2."""
    return tiny(PAPER_COST, PAPER_EDGES, links="free", **changes)


def schedule(setup: Setup, sequence: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The engine, with free links and all of the memory."""
    rules = setup.rules(np.array(setup.problem.memory_bytes))
    return list_schedule(setup.costs, rules, sequence, np.zeros(setup.allowed.shape), None)


def plan_in(problem: OperatorProblem, sequence: list[int]) -> OperatorPlan:
    """The plan of a list schedule that takes operators in this sequence."""
    return scheduled_plan(problem, *schedule(set_up(problem), np.array(sequence)))


def value(problem: OperatorProblem) -> float:
    """Value of HEFT's plan by the judge."""
    return judge(problem, HEFT(problem, Context())).value


def test_the_papers_example() -> None:
    """Upward ranks as in table 3 (two of them equal), and a schedule of length 80."""
    problem = paper()
    setup = set_up(problem)
    rank = mean_upward_rank(
        setup.costs, setup.mean_compute_s, setup.mean_latency_s, setup.mean_seconds_per_byte
    )
    published_ranks = [108, 77, 80, 80, 69, 63.333, 42.667, 35.667, 44.333, 14.667]
    assert rank == pytest.approx(published_ranks, abs=1e-3)
    assert value(problem) == 80


@pytest.mark.parametrize("name", ORACLE)
def test_the_oracle_column(name: str) -> None:
    """Makespans of the published dag files, to the last printed digit."""
    problem = read_dag(published(f"dag/{name}.json"))
    assert value(problem) == pytest.approx(ORACLE[name], abs=6e-4)


def test_the_judge_agrees_with_the_schedule() -> None:
    """Where links are free the in-order plan takes exactly as long as HEFT believed."""
    for seed in range(200):
        problem = random_problem(seed, links="free")
        setup = set_up(problem)
        place, start, end = schedule(setup, HEFT.sequence(RankTables(setup)))
        plan = scheduled_plan(problem, place, start, end)
        judgement = judge(problem, plan)
        assert plan.dispatch is Dispatch.IN_ORDER
        assert judgement.op_start_s.tolist() == start.tolist()
        assert judgement.op_end_s.tolist() == end.tolist()


def test_means_leave_out_the_link_to_oneself() -> None:
    """Two devices, transfers of 4: the mean is 4, not 2."""
    setup = set_up(tiny([[1.0, 1.0]] * 2, [(0, 4.0, [1])]))
    assert setup.mean_seconds_per_byte == 1.0
    unlike = paper().replace(seconds_per_byte=[[0, 1, 2], [3, 0, 4], [5, 6, 0]])
    assert set_up(unlike).mean_seconds_per_byte == 3.5


def test_means_leave_out_devices_that_can_not() -> None:
    """An operator that one device refuses has the mean of the others."""
    setup = set_up(tiny([[1.0, float("inf"), 3.0]]))
    assert setup.mean_compute_s.tolist() == [2.0]


def test_inner_gaps_are_used() -> None:
    """A late operator fits between two that are already there."""
    inf = float("inf")
    # dev0 runs a then c, which waits for b from dev1: a gap from 1 to 5 that d fits in.
    problem = tiny(
        [[1.0, inf], [inf, 4.0], [2.0, inf], [3.0, inf]],
        [(0, 0.0, [2]), (1, 1.0, [2])],
        links="free",
    )
    plan = plan_in(problem, [1, 0, 2, 3])
    assert judge(problem, plan).op_start_s.tolist() == [0.0, 0.0, 5.0, 1.0]


def test_the_gap_before_the_first_is_used() -> None:
    """An operator without inputs starts at zero though something later is booked already."""
    inf = float("inf")
    problem = tiny([[inf, 4.0], [2.0, inf], [3.0, inf]], [(0, 1.0, [1])], links="free")
    plan = plan_in(problem, [0, 1, 2])
    assert judge(problem, plan).op_start_s.tolist() == [0.0, 5.0, 0.0]


def test_ties_go_first_in_first_out_and_to_the_earlier_device() -> None:
    """Equal operators on equal devices: in input order, first device first."""
    problem = tiny([[1.0, 1.0]] * 4, links="free")
    assert HEFT.sequence(RankTables(set_up(problem))).tolist() == [0, 1, 2, 3]
    assert HEFT(problem, Context()).placement.tolist() == [0, 1, 0, 1]


def test_a_group_is_decided_by_its_first_operator() -> None:
    """Among devices that every member can use."""
    inf = float("inf")
    problem = tiny([[1.0, 5.0], [inf, 1.0], [1.0, 9.0]], [(0, 0.0, [2])], colocation=[0, 0, 2])
    assert HEFT(problem, Context()).placement.tolist() == [1, 1, 0]


def test_full_devices_are_passed_over() -> None:
    """Two operators prefer one device; its memory takes one of them."""
    problem = tiny([[1.0, 9.0]] * 2, resident_bytes=[3.0, 3.0], memory_bytes=[4.0, 4.0])
    plan = HEFT(problem, Context())
    assert sorted(plan.placement.tolist()) == [0, 1]
    assert judge(problem, plan).feasible


def test_activations_that_pile_up_are_mended() -> None:
    """Resident bytes fit the fast device, but not with all that is alive there at once."""
    n = 8
    tensors = [(i, 2.0, [n]) for i in range(n)]
    problem = tiny(
        [[1.0, 1.5]] * (n + 1),
        tensors,
        seconds_per_byte=0.001,
        resident_bytes=[1.0] * (n + 1),
        memory_bytes=[25.0, 18.0],
    )
    assert judge(problem, HEFT(problem, Context())).feasible
