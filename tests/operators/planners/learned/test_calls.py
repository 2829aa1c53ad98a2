"""Placements become calls: always valid, and unchanged where they were."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from placewright import judge, solve
from placewright.errors import InfeasibleError
from placewright.operators.plan import OperatorPlan, check_plan
from placewright.operators.planners import LEARNED
from placewright.operators.planners.learned.calls import CallDecoder
from placewright.operators.problem import OperatorProblem
from placewright.operators.simulation.star import star_scores
from tests.operators.simulation.test_star import drawn, judged
from tests.operators.star_instances import best_latency, star_problem


@pytest.mark.parametrize("calls", [1, 2])
def test_what_is_decoded_can_be_run_and_fits(calls: int) -> None:
    """Any row becomes a plan that the judge accepts and whose value `star_scores` says."""
    mended = 0
    for seed in range(60):
        problem = star_problem(seed, operators=9, calls=calls, alike=seed % 2 == 0)
        rows = drawn(problem, np.random.default_rng(seed), 5)
        decoder = CallDecoder(problem)
        places, made = decoder(np.concatenate([rows, decoder.fills()]))
        values, over = star_scores(problem, places, made)
        for place, call, value, bytes_over in zip(places, made, values, over, strict=True):
            plan = OperatorPlan(place, call=call)
            check_plan(problem, plan)
            found = judge(problem, plan)
            assert found.feasible
            assert (found.value, found.violation_bytes) == (value, bytes_over)
        mended += int((places[: len(rows)] != rows).any(axis=1).sum())
    assert mended > 50


def test_what_can_be_run_stays_as_it_is() -> None:
    """With one call each: of every placement of small problems."""
    kept = 0
    for seed in range(12):
        problem = star_problem(seed, operators=5, groups=False)
        decoder = CallDecoder(problem)
        choices = [np.flatnonzero(row).tolist() for row in problem.allowed()]
        rows = np.array(list(product(*choices)))
        values, over = star_scores(problem, rows)
        good = rows[np.isfinite(values) & (over == 0)]
        assert np.array_equal(decoder(good)[0], good)
        assert star_scores(problem, *decoder(rows))[0].min() == best_latency(problem)
        kept += len(good)
    assert kept > 100


def without_slow_parts(problem: OperatorProblem) -> list[str]:
    """Planners that learn, made small."""
    small = {"hp3c": "hidden=8, groups=4", "hsdag": "hidden=8, imitation=5", "rnn": "hidden=8"}
    small |= {"doppler": "hidden=8, imitation=5", "placeto": "hidden=8, episodes=2"}
    names = [p.name for p in LEARNED if p.unsupported_reason(problem) is None]
    return [f"{name}({small[name]}, samples=40)" if name in small else name for name in names]


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_no_learned_planner_is_worse_than_a_single_device(objective: str) -> None:
    """All but `transfer` take star problems, with plans that the judge accepts."""
    pytest.importorskip("torch")
    problem = star_problem(11, operators=12, accelerators=3).replace(objective=objective)
    fitting = []
    for d in np.flatnonzero(problem.allowed().all(axis=0)).tolist():
        value, over = judged(problem, OperatorPlan(np.full(problem.n, d)))
        fitting.append(value if over == 0 else np.inf)
    names = without_slow_parts(problem)
    assert len(names) == len(LEARNED) - 1
    for name in [*names, "post(profile=as_published)", "hsdag(profile=as_published, hidden=8)"]:
        result = solve(problem, name)
        assert judge(problem, result.plan).feasible
        assert result.value <= min(fitting)


def test_unrepairable_placements_are_refused() -> None:
    """Without a CPU and with one call, two accelerators that wait for each other stay so."""
    problem = star_problem(3, operators=6, groups=False)
    only = problem.replace(
        compute_s=np.where(np.arange(problem.m) == problem.m - 1, np.inf, 1.0)
        + np.zeros((problem.n, 1)),
        memory_bytes=[1.0] * (problem.m - 1) + [np.inf],
        resident_bytes=np.ones(problem.n),
    )
    with pytest.raises(InfeasibleError):
        solve(only, "post(samples=20)")
