"""Dynamic programming over ideals and over a line: brute force, published values, limits."""

from __future__ import annotations

import sys
import time

import numpy as np
import pytest

from placewright.errors import InfeasibleError
from placewright.operators.conformance import tiny
from placewright.operators.judge import judge
from placewright.operators.planners.contiguous_dp import IdealDp, LinearisedDp
from placewright.operators.planners.pipelines.contiguous import lattice_of
from placewright.operators.planners.pipelines.contraction import contract, depth_first_order
from placewright.operators.problem import OperatorProblem
from placewright.operators.readers.neural_networks import read_msr
from placewright.planning.contract import Context, proposal_of
from placewright.planning.solving import solve
from tests.operators.star_cases import best_value, equals_brute_force, star
from tests.published import published

LINE_MS = {
    "layer_bert24_inference": 17.790,
    "layer_bert24_training": 41.746,
    "layer_gnmt_inference": 33.033,
    "layer_resnet50_inference": 33.775,
    "layer_resnet50_training": 78.650,
    "op_bert3_inference": 27.919,
    "op_bert3_training": 65.303,
    "op_resnet50_inference": 124.349,
}


@pytest.mark.parametrize("name", LINE_MS)
def test_lines_are_as_good_as_published(name: str) -> None:
    """At or below the linearised DP of the paper's own code."""
    problem = read_msr(published(f"msr/throughput/{name}.json"), contiguous=True)
    result = solve(problem, "dpl")
    assert result.judgement.feasible
    assert 1e3 * result.value <= LINE_MS[name] + 6e-4


def test_ideals_equal_brute_force() -> None:
    """The optimum, and its proof; a line is never better."""
    exact = lines = 0
    for seed in range(60):
        problem = star(seed, contiguous=True)
        wanted = best_value(problem)
        if not equals_brute_force(IdealDp(), problem, wanted, 1e-9):
            continue
        exact += 1
        try:
            line = judge(problem, LinearisedDp()(problem, Context()))
        except InfeasibleError:
            continue
        assert line.feasible
        assert line.value >= wanted * (1 - 1e-9)
        lines += line.value <= wanted * (1 + 1e-9)
    assert exact > 40
    assert lines > 0.8 * exact


def test_all_ideals_are_found() -> None:
    """As many as down-sets of the forward graph, by trying all sets."""
    for seed in range(100):
        c = contract(roomy(seed), contiguous=True)
        sets = range(2**c.nodes)
        closed = sum(all(not s >> b & 1 or s >> a & 1 for a, b in c.edges.tolist()) for s in sets)
        lattice = lattice_of(c, 10**6)
        assert lattice is not None
        assert len(lattice.offsets) - 1 == closed
        assert lattice_of(c, closed - 1) is None


def test_contraction_keeps_every_load() -> None:
    """Groups, cycles and twins are one node; edges rise along the line."""
    for seed in range(200):
        problem = roomy(seed)
        c = contract(problem, contiguous=True)
        assert (c.edges[:, 0] < c.edges[:, 1]).all()
        assert sorted(depth_first_order(c.nodes, c.edges, last_first=False)) == list(range(c.nodes))
        groups = problem.colocation
        same = groups[:, None] == groups
        assert (c.node[:, None] == c.node)[same].all()


def test_a_node_that_fits_nowhere_says_by_how_much() -> None:
    """What a cycle between groups puts together can be too large for every device."""
    problem = tiny(
        [[1.0, 1.0]] * 4,
        [(0, 1.0, [1]), (2, 1.0, [3])],
        colocation=[0, 1, 1, 0],
        resident_bytes=[3.0, 3.0, 3.0, 3.0],
        memory_bytes=[7.0, 10.0],
        objective="throughput",
        communication="star",
    )
    with pytest.raises(InfeasibleError) as error:
        contract(problem, contiguous=True)
    assert "2 B more than 'dev1' has" in str(error.value)
    assert contract(problem, contiguous=False).nodes == 2


def test_more_ideals_than_allowed_is_said() -> None:
    """The line's plan with a note, and no bound."""
    problem = wide(10)
    proposal = IdealDp(most_ideals=100)(problem, Context())
    plan = proposal.plan
    assert "more than 100 ideals" in proposal.note
    assert not proposal.bound
    assert judge(problem, plan).feasible
    assert IdealDp()(problem, Context()).bound == pytest.approx(5.0)


def test_without_time_there_is_still_a_plan() -> None:
    """The first line's."""
    problem = wide(10)
    for planner in (IdealDp(), LinearisedDp()):
        plan = proposal_of(planner(problem, Context(deadline_s=time.perf_counter()))).plan
        assert judge(problem, plan).feasible


def roomy(seed: int) -> OperatorProblem:
    """A random pipeline that fits anywhere."""
    problem = star(seed)
    free = np.nan_to_num(problem.compute_s, posinf=3.0)
    return problem.replace(
        compute_s=free, pinned=np.full(problem.n, -1), memory_bytes=np.full(problem.m, np.inf)
    )


def wide(n: int) -> OperatorProblem:
    """Operators without an order: 2**n ideals."""
    return tiny([[1.0, 1.0]] * n, objective="throughput", communication="star", contiguous=True)


def test_ctrl_c_over_ideals_keeps_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan of the line, which was there before."""

    def pressed(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules[IdealDp.__module__], "over_ideals", pressed)
    problem = read_msr(published("msr/throughput/layer_gnmt_inference.json"), contiguous=True)
    proposal = IdealDp()(problem, Context())
    plan = proposal.plan
    assert proposal.interrupted
    assert 1e3 * judge(problem, plan).value <= LINE_MS["layer_gnmt_inference"]
    assert not proposal.bound


def test_a_pipeline_in_which_only_transfers_take_time_is_cut() -> None:
    """The first limit on a load is zero then, and doubling it would never end."""
    problem = tiny(
        [[0.0, 0.0]] * 3,
        [(0, 1.0, [1]), (1, 1.0, [2])],
        objective="throughput",
        communication="star",
        contiguous=True,
        resident_bytes=[1.0] * 3,
        memory_bytes=[2.0, 2.0],
        host_seconds_per_byte=[1.0, 1.0],
    )
    assert judge(problem, LinearisedDp()(problem, Context())).value == 1.0
