"""Rounding of fractional plans keeps every limit."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from placewright.errors import InfeasibleError
from placewright.planning.solving import solve
from placewright.samples.balance import FlowState, clock_of
from placewright.samples.bounds import Relaxation, relaxation
from placewright.samples.files import read_problem
from placewright.samples.flow_program import all_moves
from placewright.samples.judge import judge
from placewright.samples.plan import plan_of
from placewright.samples.planners.lp import whole_flow
from placewright.samples.problem import SampleProblem
from tests.samples.clouds import cloud
from tests.samples.tiny import best_value, random_tiny, tiny


def crowded(seed: int) -> SampleProblem:
    """Samples of one kind; some nodes must keep theirs, some have little room."""
    rng = np.random.default_rng(seed)
    problem = cloud(seed, "label_mix", "keep", "storage")
    held = problem.held
    return problem.replace(
        samples=held[:, None],
        keep=(held * rng.uniform(0, 0.5, problem.n)).astype(np.int64)[:, None],
        class_names=("samples",),
        storage=np.where(rng.random(problem.n) < 0.6, held + rng.integers(0, 9), np.inf),
    )


def some_plan(problem: SampleProblem, rng: np.random.Generator) -> np.ndarray:
    """Flows of moves one after another, each of which keeps every limit."""
    p = problem
    flow, keep = np.zeros((p.n, p.n), dtype=np.int64), p.keep.sum(axis=1)
    for i, j in rng.permutation(np.argwhere(np.isfinite(p.send_s))).tolist():
        held = p.held + flow.sum(axis=0) - flow.sum(axis=1)
        left = held[i] - keep[i] if p.relay else p.held[i] - keep[i] - flow[i].sum()
        room = p.storage[j] - held[j]
        flow[i, j] += int(rng.integers(0, max(0, min(left, room)) + 1))
    return flow


@pytest.mark.parametrize("relay", [False, True])
def test_mixtures_of_plans_are_rounded_without_breaking_a_limit(relay: bool) -> None:
    """Any mixture of whole plans is a fractional one; what it becomes moves no more than it."""
    for seed in range(150):
        problem = crowded(seed).replace(relay=relay)
        rng = np.random.default_rng(seed)
        plans = [some_plan(problem, rng) for _ in range(3)]
        mixture = sum(w * f for w, f in zip(rng.dirichlet(np.ones(3)), plans, strict=True))
        flow = whole_flow(fractional(problem, mixture))
        assert judge(problem, plan_of(problem, flow)).violation == "", seed
        assert (flow <= mixture + 1e-5).all()


def fractional(problem: SampleProblem, flow: np.ndarray) -> Relaxation:
    """A relaxation that has answered `flow`."""
    moves = all_moves(problem)
    chosen = flow[moves.source, moves.target]
    return Relaxation(problem, moves, chosen, math.inf, 0.0, clock_of(problem), True)


def test_a_node_that_was_too_full_sends_the_rest_of_a_sample() -> None:
    """Three samples too many in two halves: all three leave."""
    problem = tiny([10, 0, 0], storage=np.array([7.0, np.inf, np.inf]))
    flow = np.zeros((3, 3))
    flow[0, 1] = flow[0, 2] = 1.5
    whole = whole_flow(fractional(problem, flow))
    assert whole[0].sum() == 3
    assert judge(problem, plan_of(problem, whole)).feasible


@pytest.mark.parametrize("relay", [False, True])
def test_a_full_neighbour_sends_on_what_a_node_that_was_too_full_must_send(relay: bool) -> None:
    """Rounded down, the neighbour sends a sample too few and has no room for one of five."""
    room = np.array([5.0, 5.0, np.inf, np.inf])
    problem = tiny([10, 5, 0, 0], storage=room, relay=relay)
    flow = np.zeros((4, 4))
    flow[0, 1], flow[1, 2:] = 5.0, 2.5
    whole = whole_flow(fractional(problem, flow))
    assert (whole[0, 1], whole[1].sum()) == (5, 5)
    assert judge(problem, plan_of(problem, whole)).feasible


@pytest.mark.parametrize("seed", range(36))
def test_rounded_optima_are_never_below_the_bound(seed: int) -> None:
    """Nor far above it once single samples are balanced; no limit is broken either time."""
    problem = crowded(seed)
    try:
        relaxed = relaxation(problem)
    except InfeasibleError:
        return
    flow = whole_flow(relaxed)
    state = FlowState.of(problem, flow)
    state.balance(relaxed.clock, 1)
    for made in (flow, state.flow):
        judged = judge(problem, plan_of(problem, made))
        assert judged.violation == ""
        assert judged.value >= relaxed.lower_bound_s
    one_sample_s = float(problem.work_s.max() + problem.send_s[np.isfinite(problem.send_s)].max())
    assert judged.value <= relaxed.value_s + problem.n * one_sample_s


def test_equal_batches_are_planned_to_the_optimum() -> None:
    """HiGHS 1.14 proved 10 seconds for this one, where steps were no whole numbers."""
    problem = tiny(
        [3, 4],
        seconds_per_sample=np.array([3.0, 1.0]),
        send_s=np.array([[np.inf, 0.0217], [0.2, np.inf]]),
        receive_s=np.array([[np.inf, 0.26], [1.0, np.inf]]),
        price_s=np.array([[0.0, 0.5], [0.1, 0.0]]),
        overlap="C",
        batches="equal",
    )
    found = solve(problem, "ilp")
    assert found.value == pytest.approx(best_value(problem)) == pytest.approx(8.5)
    assert found.bound <= found.value


ONE_WAY = """
nodes:
  - {name: a, samples: 4, seconds_per_sample: 0}
  - {name: b, samples: 5, seconds_per_sample: 3}
links: [{from: b, to: a, bandwidth: 1000}]
"""
LITTLE_ROOM = """
nodes:
  - {name: a, samples: 0, seconds_per_sample: 0.2}
  - {name: b, samples: 4, seconds_per_sample: 0.7}
  - {name: c, samples: 5, seconds_per_sample: 0.7, storage: 6}
links:
  - {from: c, to: a, bandwidth: 1000, duplex: false}
  - {from: b, to: c, bandwidth: 2000}
"""


@pytest.mark.parametrize(("nodes", "optimum"), [(ONE_WAY, 5.0), (LITTLE_ROOM, 6.6)])
def test_bounds_of_whole_plans_are_not_above_the_optimum(
    nodes: str, optimum: float, tmp_path: Path
) -> None:
    """Where the presolve of HiGHS 1.14 called 30 and 7 seconds optimal."""
    (tmp_path / "n.yaml").write_text(f"{nodes}\nsample_bytes: 1000\nepochs: 2\noverlap: A\n")
    problem = read_problem(tmp_path / "n.yaml")
    assert best_value(problem) == pytest.approx(optimum)
    for planner in ("ilp", "auto"):
        result = solve(problem, planner)
        assert result.value == pytest.approx(optimum)
        assert result.lower_bound <= optimum * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(60))
def test_whole_plans_are_optimal_where_nodes_cost_nothing_or_are_full(seed: int) -> None:
    """Against all plans: speeds of zero, storage and links one way, which `random_tiny` has not."""
    rng = np.random.default_rng(seed)
    problem = random_tiny(seed).replace(label_mix=math.inf)
    held = problem.held
    problem = problem.replace(
        overlap="A",
        batches="proportional",
        seconds_per_sample=rng.choice([0.0, 0.2, 0.7, 3.0], problem.n),
        storage=np.where(rng.random(problem.n) < 0.5, held + rng.integers(0, 4), np.inf),
    )
    result = solve(problem, "ilp", time_limit_s=20)
    optimum = best_value(problem)
    assert result.value == pytest.approx(optimum, rel=1e-6)
    assert result.lower_bound <= optimum * (1 + 1e-9)
