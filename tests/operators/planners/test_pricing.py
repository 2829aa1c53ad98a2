"""Placement as a PBQP: its edge costs against the true total time."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright.operators.conformance import random_placement, random_problem, tiny
from placewright.operators.costs import group_costs
from placewright.operators.judge import OperatorJudge, judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.min_cut import MinCut
from placewright.operators.planners.pbqp import PbqpPlanner
from placewright.operators.planners.pricing import (
    placement_graph,
    placement_pbqp,
    pricing_context,
    serial_bound,
    within_memories,
)
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import Context, Planner, proposal_of
from placewright.solvers.pbqp import PbqpSolution, solve_pbqp


def totals(problem: OperatorProblem, seed: int) -> tuple[float, float, float]:
    """Shared, true and full total of one random placement; the truth is the serial judge's."""
    graph = placement_graph(problem)
    costs = group_costs(graph.groups, problem.compute_s)
    place = random_placement(problem, np.random.default_rng(seed))
    choice = place[graph.groups.first]
    low, high = (placement_pbqp(problem, graph, costs, fanout=f).value(choice) for f in (0.0, 1.0))
    truth = OperatorJudge(problem.replace(overlap="serial")).many(place)[0][0]
    return low, float(truth), high


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_true_total_lies_between_shared_and_full(seed: int) -> None:
    """Readers that share a transfer never cost more than the truth, readers that pay in full
    never less.
    """
    low, truth, high = totals(random_problem(seed), seed)
    if np.isfinite(truth):
        assert low <= truth + 1e-9 * (1 + abs(truth))
        assert truth <= high + 1e-9 * (1 + abs(truth))
    else:
        assert high == np.inf


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_one_reader_per_tensor_is_exact(seed: int) -> None:
    """Without fan-out the PBQP's value is the total time."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 9))
    tensors = [(int(rng.integers(0, j)), float(rng.random()), [j]) for j in range(1, n)]
    problem = tiny(rng.random((n, 3)).tolist(), tensors, latency_s=0.1)
    low, truth, high = totals(problem, seed)
    assert abs(low - truth) < 1e-9
    assert abs(high - truth) < 1e-9


def test_groups_are_one_node() -> None:
    """Colocated operators add their costs and do not pay each other."""
    problem = tiny([[1.0, 2.0]] * 3, [(0, 5.0, [1]), (1, 7.0, [2])], colocation=[0, 0, 2])
    graph = placement_graph(problem)
    assert group_costs(graph.groups, problem.compute_s).tolist() == [[2.0, 4.0], [1.0, 2.0]]
    assert graph.pairs.tolist() == [[0, 1]]


@pytest.mark.parametrize("planner", [PbqpPlanner(), MinCut()], ids=lambda planner: planner.name)
@pytest.mark.parametrize("proved", [2.5, -math.inf, math.inf])
def test_a_solve_without_an_answer_is_a_bound_at_most(
    monkeypatch: pytest.MonkeyPatch, planner: Planner, proved: float
) -> None:
    """The heuristic may run into what is forbidden while branching is cut short."""
    if planner.name == "min-cut":
        pytest.importorskip("ortools")

    def astray(*arguments: object, **options: object) -> PbqpSolution:
        found = solve_pbqp(*arguments, **options)  # type: ignore[arg-type]
        if "exact" in options:  # a placement, and not the bound
            return found
        return replace(found, value=math.inf, lower_bound=proved, proved=False)

    monkeypatch.setattr(sys.modules[serial_bound.__module__], "solve_pbqp", astray)
    problem = tiny([[1.0, 2.0, 3.0]] * 3, [(0, 9.0, [1, 2])], overlap="serial")
    proposal = proposal_of(planner(problem, Context()))
    plan = proposal.plan
    assert judge(problem, plan).value == 3.0
    assert proposal.bound == pytest.approx(2.5 if proved == 2.5 else 0.0)


def chain(layers: int, memory_bytes: float) -> OperatorProblem:
    """Layers on a fast and a slow device, each with as many bytes; transfers are cheap."""
    return tiny(
        [[1.0, 2.0]] * layers,
        [(i, 1.0, [i + 1]) for i in range(layers - 1)],
        seconds_per_byte=0.01,
        resident_bytes=[10.0] * layers,
        memory_bytes=[memory_bytes, memory_bytes],
    )


def test_no_placement_where_memory_is_enough() -> None:
    """Plans of problems that fit are those of the planner without prices."""
    problem = chain(12, 500.0)
    d = pricing_context(problem, 4)
    assert within_memories(d, d.costs(problem.compute_s), 6) == []


def test_the_least_price_keeps_what_fits_on_the_fast_device() -> None:
    """Of 40 layers in a row as many stay as brute force over all cuts leaves there."""
    problem = chain(40, 262.0)
    d = pricing_context(problem, 4)
    places = within_memories(d, d.costs(problem.compute_s), 8)
    judge = OperatorJudge(problem)
    fit = [p for p in places if judge(OperatorPlan(p)).feasible]
    assert fit
    cuts = [np.where(np.arange(40) < k, 0, 1) for k in range(41)]
    fitting = [c for c in cuts if judge(OperatorPlan(c)).feasible]
    most = max(int((c == 0).sum()) for c in fitting)
    assert max(int((p == 0).sum()) for p in fit) >= most - 1
