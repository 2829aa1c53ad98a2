"""The simplest plan within a tolerance, against brute force on tiny models."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright import (
    Context,
    InfeasibleError,
    InputError,
    OperatorPlan,
    OperatorProblem,
    judge,
    solve,
)
from placewright.operators.conformance import random_problem, tiny
from placewright.operators.plan import check_plan
from placewright.operators.planners import deployable
from placewright.operators.planners.deployable import Complexity, Deployable, complexity
from placewright.planning.contract import proposal_of

TOLERANCE = 0.01


def simplified(problem: OperatorProblem, *plans: OperatorPlan) -> OperatorPlan:
    """What `Deployable` makes of plans."""
    answer = Deployable()(problem, plans, TOLERANCE, Context())
    return proposal_of(answer).plan  # type: ignore[no-any-return]


def layers(count: int, **fields: Any) -> OperatorProblem:
    """A chain of layers of two operators each on two fast devices and a slow one."""
    n = 2 * count
    return tiny(
        [[1.0, 1.0, 30.0]] * n,
        [(k, 8.0, [k + 1]) for k in range(n - 1)],
        latency_s=1e-3,
        seconds_per_byte=1e-4,
        operator_modules=tuple(f"layers.{k // 2}.{'ab'[k % 2]}" for k in range(n)),
        **fields,
    )


def best_of_all(problem: OperatorProblem) -> tuple[float, dict[tuple[int, ...], float]]:
    """The least value, and the values of all placements that fit."""
    values = {}
    for place in product(range(problem.m), repeat=problem.n):
        judged = judge(problem, OperatorPlan(np.array(place)))
        if judged.feasible:
            values[place] = judged.value
    return min(values.values()), values


@pytest.mark.parametrize("seed", range(12))
def test_as_simple_as_any_plan_within_the_tolerance(seed: int) -> None:
    """Six operators on three devices, memories that one device may not have: 729 placements."""
    rng = np.random.default_rng(seed)
    slower = np.array([1.0, rng.choice([1.0, 1.002, 1.2]), rng.choice([1.001, 2.0])])
    problem = tiny(
        (rng.integers(1, 4, (6, 1)) * slower).tolist(),
        [(k, 1.0, [k + 1]) for k in range(5)] + [(0, 2.0, [1, 3])],
        seconds_per_byte=float(rng.choice([1e-4, 0.3])),
        resident_bytes=np.full(6, 4.0),
        memory_bytes=np.full(3, rng.choice([40.0, 24.0])),
        operator_modules=("in", "h.0", "h.0", "h.1", "h.1", "out"),
    )
    least, values = best_of_all(problem)
    near = [np.array(place) for place, v in values.items() if v <= least * (1 + TOLERANCE)]
    simplest = min(complexity(problem, OperatorPlan(place)) for place in near)
    worst = max(near, key=lambda place: complexity(problem, OperatorPlan(place)))
    best = next(np.array(place) for place, v in values.items() if v == least)
    for begin in (best, worst):
        found = simplified(problem, OperatorPlan(best), OperatorPlan(begin))
        assert complexity(problem, found) == simplest
        assert judge(problem, found).value <= least * (1 + TOLERANCE)


def test_a_cheap_operator_joins_its_consumer() -> None:
    """An ``arange`` on the slow device, and an operator that a tensor goes out to and back."""
    problem = layers(4)
    place = np.zeros(8, dtype=np.int64)
    place[0], place[5] = 2, 1
    assert complexity(problem, OperatorPlan(place)) == Complexity(3, 2, 3, 3, 3)
    cheap = problem.replace(
        compute_s=np.where(np.arange(8)[:, None] == 0, 1e-4, problem.compute_s), name="cheap"
    )
    found = simplified(cheap, OperatorPlan(place))
    assert (found.placement == found.placement[0]).all()


def test_a_layer_is_not_split_where_a_whole_one_is_as_good() -> None:
    """Memory for six of eight operators each; a cut within a layer becomes one between two."""
    problem = layers(4, resident_bytes=np.full(8, 1.0), memory_bytes=np.array([22.0, 22.0, 22.0]))
    found = simplified(problem, OperatorPlan(np.array([0, 0, 0, 1, 1, 1, 1, 0])))
    assert complexity(problem, found) == Complexity(2, 1, 1, 1, 1) or len(set(found.placement)) == 1


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_never_above_the_tolerance_nor_more_complex(seed: int) -> None:
    """Any problem over links with modules: pins, groups and memories are kept."""
    problem = random_problem(seed, objective=("latency", "throughput")[seed % 2])
    problem = problem.replace(operator_modules=tuple(f"m.{k // 2}" for k in range(problem.n)))
    if Deployable().unsupported_reason(problem) is not None:
        return
    try:
        result = solve(problem, "auto(tolerance=0)", time_limit_s=0.2)
    except InfeasibleError:
        return
    before = complexity(problem, result.plan)
    found = simplified(problem, result.plan)
    check_plan(problem, found)
    judged = judge(problem, found)
    assert judged.feasible
    assert judged.value <= result.value * (1 + TOLERANCE) * (1 + 1e-12)
    assert complexity(problem, found) <= before


def test_auto_ends_with_it_and_the_best_plan_stays_a_candidate() -> None:
    """Two devices, each of which is about 1 % faster for one of eight operators."""
    compute = np.ones((8, 2))
    compute[3, 1], compute[5, 0] = 0.96, 0.99
    problem = tiny(
        compute.tolist(),
        [(k, 8.0, [k + 1]) for k in range(7)],
        latency_s=1e-4,
        seconds_per_byte=1e-6,
        operator_modules=tuple(f"layers.{k}" for k in range(8)),
    )
    exact = solve(problem, "auto(tolerance=0)", time_limit_s=5.0)
    chosen = solve(problem, time_limit_s=5.0)
    assert exact.value < chosen.value <= exact.value * (1 + TOLERANCE)
    assert len(set(chosen.plan.placement.tolist())) == 1
    assert chosen.planner.startswith("only:")
    assert "simpler" in chosen.note
    assert min(c.value for c in chosen.candidates) == exact.value
    without = problem.replace(operator_modules=())
    assert solve(without, time_limit_s=5.0).value == exact.value


def test_whole_layers_where_splitting_each_gains_less_than_predictions_err() -> None:
    """Ten equal layers, two equal devices with memory for six: half of a branch in each layer."""
    n = 40
    problem = tiny(
        [[t, t] for t in (1.0, 0.03, 0.03, 0.1)] * 10,
        [
            edge
            for k in range(0, n, 4)
            for edge in ((k, 8.0, [k + 1, k + 2]), (k + 1, 8.0, [k + 3]), (k + 2, 8.0, [k + 3]))
        ]
        + [(k + 3, 8.0, [k + 4]) for k in range(0, n - 4, 4)],
        latency_s=1e-4,
        seconds_per_byte=1e-6,
        resident_bytes=np.full(n, 10.0),
        memory_bytes=np.full(2, 240.0 + 8 * 8),
        operator_modules=tuple(f"layers.{k // 4}.{'abcd'[k % 4]}" for k in range(n)),
    )
    best = solve(problem, "auto(tolerance=0)", time_limit_s=2.0)
    assert complexity(problem, best.plan).cuts >= 10
    chosen = solve(problem, time_limit_s=2.0)
    assert complexity(problem, chosen.plan).cuts <= 1
    assert best.value < chosen.value < 1.05 * best.value
    assert "predictions of such plans are known to err by" in chosen.note
    kept = solve(problem, incumbent=best.plan, time_limit_s=2.0)
    assert kept.value <= best.value


@pytest.mark.parametrize("text", ["auto(tolerance=-1)", "auto(tolerence=0)", "auto(tolerance='x')"])
def test_a_wrong_tolerance_is_refused(text: str) -> None:
    """Negative, misspelt, no number."""
    with pytest.raises(InputError, match="tolerance"):
        solve(layers(1), text)


def test_a_best_plan_on_one_device_is_simple_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is simulated, nor compiled for it."""
    monkeypatch.setattr(deployable, "OperatorJudge", None)
    best = OperatorPlan(np.zeros(8, int))
    assert Deployable()(layers(4), [best], TOLERANCE, Context()) is best
