"""CEFT+PBQP: never worse than the trivial, near the optimum, and quick to plan again."""

from __future__ import annotations

import sys
import time

import numpy as np
import pytest

from placewright.errors import InfeasibleError
from placewright.operators.conformance import random_problem, tiny
from placewright.operators.judge import OperatorJudge, judge
from placewright.operators.plan import OperatorPlan, check_plan
from placewright.operators.planners.lists.planners import HEFT
from placewright.operators.planners.pbqp import CeftPbqp, PbqpPlanner
from placewright.operators.planners.starts import LIST_SCHEDULERS
from placewright.operators.problem import OperatorProblem
from placewright.operators.readers.task_graphs import read_dag
from placewright.planning.candidates import Status
from placewright.planning.contract import Context, Planner, proposal_of
from placewright.planning.solving import solve
from placewright.testing import PlannerConformance
from tests.operators.planners.test_pbqp import every_placement
from tests.published import published

QUICK = CeftPbqp(effort=2e5)


def score(problem: OperatorProblem, plan: OperatorPlan) -> tuple[int, float]:
    """Bytes over, then seconds."""
    judgement = judge(problem, plan)
    return judgement.violation_bytes, judgement.value


def test_as_good_as_every_placement() -> None:
    """On tiny problems no placement under the judge's own order is better."""
    checked = 0
    for seed in range(60):
        problem = random_problem(seed, most_operators=6, most_devices=3)
        rows = every_placement(problem)
        values, over = OperatorJudge(problem).many(rows)
        playable = np.isfinite(values)
        if not playable.any():
            continue
        best = min(zip(over[playable].tolist(), values[playable].tolist(), strict=True))
        plan = QUICK(problem, Context()).plan
        check_plan(problem, plan)
        found = score(problem, plan)
        assert found[0] <= best[0], seed
        assert found[0] < best[0] or found[1] <= best[1] * (1 + 1e-9), seed
        checked += 1
    assert checked > 40


@pytest.mark.parametrize(
    "name", ["layered_n100_ccr0.2_s0", "layered_n100_ccr1.0_s0", "narrow_n100_ccr1.0_s7"]
)
def test_shorter_than_heft_and_than_one_device_under_contention(name: str) -> None:
    """With one transfer per channel at a time, better than HEFT and than any single device."""
    problem = read_dag(published(f"dag/{name}.json"), links="contended")
    value = judge(problem, CeftPbqp(effort=1e6)(problem, Context()).plan).value
    singles = OperatorJudge(problem).many(np.arange(problem.m)[:, None].repeat(problem.n, axis=1))[
        0
    ]
    assert value < judge(problem, HEFT(problem, Context())).value
    assert value < singles.min()


def test_never_worse_than_its_starts() -> None:
    """Every list schedule and trivial plan of random problems is at best as good."""
    for seed in range(20):
        problem = random_problem(seed, most_operators=12, most_devices=4)
        try:
            found = score(problem, QUICK(problem, Context()).plan)
        except InfeasibleError:
            continue
        for planner in LIST_SCHEDULERS:
            try:
                assert found <= score(problem, proposal_of(planner(problem, Context())).plan), (
                    seed,
                    planner.name,
                )
            except InfeasibleError:
                continue


def training_step(layers: int, memory_bytes: float) -> OperatorProblem:
    """Forward and backward of a chain on two different devices; weights bind the two together."""
    n = 2 * layers
    tensors = [(i, 2.0, [i + 1] + ([n - 1 - i] if i < layers - 1 else [])) for i in range(n - 1)]
    times = [[1.0, 2.0]] * layers + [[2.0, 4.0]] * layers
    return tiny(
        times,
        tensors,
        seconds_per_byte=0.05,
        resident_bytes=[30.0] * layers + [0.0] * layers,
        memory_bytes=[memory_bytes, memory_bytes],
        colocation=[min(i, n - 1 - i) for i in range(n)],
    )


@pytest.mark.parametrize("memory_bytes", [500.0, 620.0, 700.0])
def test_never_worse_than_pbqp_where_memory_is_short(memory_bytes: float) -> None:
    """PBQP's own way into the memories is among the starts."""
    problem = training_step(20, memory_bytes)
    found = score(problem, QUICK(problem, Context()).plan)
    assert found <= score(problem, PbqpPlanner()(problem, Context()).plan)


def test_fits_where_no_single_device_does() -> None:
    """A training step that overflows either device is split so that it fits both."""
    problem = training_step(20, 500.0)
    singles, over = OperatorJudge(problem).many([[0] * problem.n, [1] * problem.n])
    assert (over > 0).all()
    judgement = judge(problem, CeftPbqp()(problem, Context()).plan)
    assert judgement.feasible
    assert singles.min() <= judgement.value < singles.max()


def test_resolve_is_no_worse_than_keeping_the_plan() -> None:
    """After costs have changed the re-solve beats the old plan, and often by much."""
    rng = np.random.default_rng(0)
    better = 0
    for seed in range(10):
        problem = random_problem(seed, most_operators=12, most_devices=4)
        plan, state = QUICK.solve(problem, Context())
        factor = rng.uniform(0.2, 5.0, problem.m)
        changed = problem.replace(compute_s=problem.compute_s * factor)
        again, state = QUICK.resolve(changed, state, Context())
        check_plan(changed, again)
        assert score(changed, again) <= score(changed, plan), seed
        assert state.plan is again
        better += score(changed, again) < score(changed, plan)
    assert better > 0


def test_resolve_with_another_graph_solves_anew() -> None:
    """A state of another structure is not used."""
    _, state = QUICK.solve(tiny([[1.0, 2.0]] * 3), Context())
    other = tiny([[1.0, 2.0]] * 4, [(0, 1.0, [1])])
    plan, _ = QUICK.resolve(other, state, Context())
    assert np.array_equal(plan.placement, QUICK(other, Context()).plan.placement)


def test_resolve_survives_a_lost_device() -> None:
    """Where a device can run nothing any more the old plan is dropped, not repeated."""
    problem = tiny([[1.0, 2.0]] * 6)
    _, state = QUICK.solve(problem, Context())
    lost = problem.replace(compute_s=[[np.inf, 2.0]] * 6)
    plan, _ = QUICK.resolve(lost, state, Context())
    assert plan.placement.tolist() == [1] * 6


def test_passed_deadline_still_answers() -> None:
    """With no time left the best candidate comes back without moves."""
    problem = random_problem(3, most_operators=12)
    plan = CeftPbqp()(problem, Context(deadline_s=time.perf_counter())).plan
    check_plan(problem, plan)


class TestConformanceCeftPbqp(PlannerConformance):
    """CEFT+PBQP keeps to what every planner must."""

    def planner(self, problem: OperatorProblem) -> Planner:
        """The planner under test."""
        return QUICK


def test_ctrl_c_in_its_walks_keeps_the_best_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    """As good as the list schedules; re-planning beside a run raises the interrupt."""

    def pressed(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules[CeftPbqp.__module__], "improved", pressed)
    problem = random_problem(8, most_operators=40, most_devices=3)
    proposal = QUICK(problem, Context())
    plan = proposal.plan
    assert proposal.interrupted
    assert score(problem, plan) <= score(problem, HEFT(problem, Context()))
    assert solve(problem, QUICK).status in (Status.INTERRUPTED, Status.OPTIMAL)
    with pytest.raises(KeyboardInterrupt):
        QUICK.solve(problem, Context())
