"""Prices of columns against a dense matrix, infeasibility against the judge, whole samples."""

from __future__ import annotations

import math
from importlib import import_module

import numpy as np
import pytest

from placewright.errors import InfeasibleError
from placewright.planning.contract import BoundContext, Context, proposal_of
from placewright.planning.solving import solve
from placewright.samples.bounds import refined_bounds, relaxation
from placewright.samples.column_generation import Pricing, bound_and_columns, price, whole_plan
from placewright.samples.flow_program import all_moves, program_of
from placewright.samples.judge import judge
from placewright.samples.plan import nothing
from placewright.samples.planners import planners
from placewright.samples.problem import Batches, SampleProblem
from tests.samples.clouds import cloud
from tests.samples.reference import Reference, reference
from tests.samples.tiny import best_value, random_tiny, tiny

SEEDS = range(36)


def by_move(pricing: Pricing, lp: Reference) -> np.ndarray:
    """Reduced costs in the order of the reference's columns."""
    tables = [pricing.reduced_s(c) for c in range(pricing.program.problem.k)]
    return np.array([tables[c][i, j] for i, j, c in lp.moves])


@pytest.mark.parametrize("seed", SEEDS)
def test_the_optimums_multipliers_prove_the_optimum(seed: int) -> None:
    """Scipy's multipliers give scipy's reduced costs, and its value as the bound."""
    problem = cloud(seed, "label_mix")
    lp = reference(problem)
    found = lp.solved()
    if found.status != 0:
        return
    pricing = price(program_of(problem), lp.prices(-found.ineqlin.marginals))
    expected = found.lower.marginals[-len(lp.moves) :]
    np.testing.assert_allclose(by_move(pricing, lp), expected, atol=1e-8)
    bound, columns, least = bound_and_columns(pricing, 3)
    assert bound == pytest.approx(lp.value_s(), rel=1e-7)
    assert least >= -1e-9
    assert len(columns) == 0 or least < 0


@pytest.mark.parametrize("seed", SEEDS)
def test_the_columns_that_pay_most_are_found(seed: int) -> None:
    """Any multipliers: the least entry out of and into every node, and nothing that costs."""
    problem = cloud(seed, batches=Batches.PROPORTIONAL)
    lp = reference(problem)
    multipliers = added_up(lp, np.random.default_rng(seed).exponential(size=len(lp.rows)))
    pricing = price(program_of(problem), lp.prices(multipliers))
    reduced = np.array(list(lp.cost.values())) + multipliers @ lp.matrix()
    np.testing.assert_allclose(by_move(pricing, lp), reduced[-len(lp.moves) :], atol=1e-9)
    cost = dict(zip(lp.moves, reduced[-len(lp.moves) :].tolist(), strict=True))
    _, columns, least = bound_and_columns(pricing, 1)
    rows = (columns.source.tolist(), columns.target.tolist(), columns.sample_class.tolist())
    chosen = set(zip(*rows, strict=True))
    assert least == pytest.approx(min(0.0, *cost.values()))
    assert all(cost[move] < 0 for move in chosen)
    for end in (0, 1):
        for node in range(problem.n):
            for kind in range(problem.k):
                mine = [m for m in cost if m[end] == node and m[2] == kind]
                best = min(mine, key=lambda move: cost[move])
                assert cost[best] > -1e-12 or best in chosen


def added_up(lp: Reference, multipliers: np.ndarray) -> np.ndarray:
    """Such that those of each time add up to one."""
    made = multipliers.copy()
    matrix = lp.matrix()
    for t in range(sum(key[0] == "T" for key in lp.cost)):
        mine = matrix[:, t] < 0
        made[mine] /= made[mine].sum()
    return made


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


@pytest.mark.parametrize("seed", range(16))
def test_moves_that_are_not_offered_are_not_made(seed: int) -> None:
    """Without one link: the best of all plans that do without it, and no bound for the others."""
    problem = random_tiny(seed)
    moves = all_moves(problem)
    cut = problem.send_s.copy()
    cut[0, 1] = np.inf
    best = best_value(problem.replace(send_s=cut))
    some = moves.where((moves.source != 0) | (moves.target != 1))
    try:
        proposal = whole_plan(problem, some, math.inf)
    except InfeasibleError:
        assert np.isinf(best)
        return
    plan = proposal.plan
    judged = judge(problem, plan)
    assert judged.feasible
    assert not ((plan.source == 0) & (plan.target == 1)).any()
    assert proposal.bound == 0.0
    assert judged.value == pytest.approx(best, rel=2e-4)


def test_infeasibility_is_reported() -> None:
    """Everything must stay and the mix be missed."""
    held = np.array([[40, 0], [0, 40]])
    problem = tiny(held, keep=held, label_mix=0.1)
    with pytest.raises(InfeasibleError, match="no plan of whole samples"):
        whole_plan(problem, all_moves(problem), math.inf)


def test_a_label_mix_proves_nothing() -> None:
    """Solvers keep the mix by a hair more than the judge: their bound may exceed a plan's value."""
    problem = cloud(6)
    assert np.isfinite(problem.label_mix)
    found = whole_plan(problem, all_moves(problem), math.inf, every=True)
    assert found.bound == 0.0
