"""micro-batches: textbook pipelines, and their memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from placewright.operators.conformance import tiny
from placewright.operators.costs import groups_of
from placewright.operators.files import read_problem, write_problem
from placewright.operators.judge import OperatorJudge, judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.chains import chain_of, units_by_group
from placewright.operators.planners.micro_batches import MicroBatches, best_stages, windowed
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import Context
from placewright.planning.solving import solve
from tests.operators.simulation.reference import simulate


def pipeline(parts: int, stages: int = 2, *, memory_bytes: float = np.inf) -> OperatorProblem:
    """Forward and backward of every stage take 1 s; a forward pass keeps 8 bytes for its backward.

    Operators of micro-batch j: forward of stage 0, 1, ..., then backward of the last, ..., of 0.
    """
    passes = 2 * stages
    tensors = []
    for j in range(parts):
        for s in range(stages):
            forward, backward = passes * j + s, passes * j + passes - 1 - s
            if s + 1 < stages:
                tensors += [(forward, 0.0, [forward + 1]), (backward - 1, 0.0, [backward])]
            tensors.append((forward, 8.0, [backward]))
    stage = [min(k, passes - 1 - k) for k in range(passes)] * parts
    return tiny(
        np.ones((passes * parts, stages)).tolist(),
        tensors,
        colocation=stage,
        memory_bytes=np.full(stages, memory_bytes),
        micro_batch=np.repeat(np.arange(1, parts + 1), passes),
        operator_modules=tuple(f"stage{s}" for s in stage),
    )


@pytest.mark.parametrize(("parts", "stages"), [(1, 2), (4, 2), (6, 3)])
def test_equal_stages_take_the_time_of_the_textbook(parts: int, stages: int) -> None:
    """(M + S - 1) forward and backward passes: Huang et al. 2019, arXiv 1811.06965."""
    problem = pipeline(parts, stages)
    plan = solve(problem, "micro-batches", time_limit_s=60).plan
    assert judge(problem, plan).value == 2.0 * (parts + stages - 1)
    assert sorted(set(plan.placement.tolist())) == list(range(stages if parts > 1 else 1)) or (
        parts == 1
    )


@pytest.mark.parametrize("window", [1, 2, 3])
def test_memory_bounds_how_many_are_in_flight(window: int) -> None:
    """With room for w activations the first stage holds w; alone they follow one another."""
    problem = pipeline(6, memory_bytes=8.0 * window)
    found = judge(problem, MicroBatches()(problem, Context()).plan)
    assert found.feasible
    assert found.value == (24.0 if window == 1 else 14.0)
    schedules = dict(windowed(OperatorJudge(problem), np.array([0, 1, 1, 0] * 6)))
    assert judge(problem, schedules[window]).peak_bytes[0] == 8.0 * window


def test_without_an_order_the_oldest_micro_batch_comes_first() -> None:
    """Rule O4, as in the reference; on one device memory is that of one micro-batch."""
    problem = pipeline(5)
    for place in ([0] * 20, [0, 1, 1, 0] * 5):
        plan = OperatorPlan(np.array(place))
        found, wanted = judge(problem, plan), simulate(problem, plan)
        assert found.value == wanted.value
        assert dict(enumerate(found.op_start_s.tolist())) == dict(wanted.start_s)
    assert judge(problem, OperatorPlan(np.zeros(20, dtype=int))).peak_bytes[0] == 16.0


def test_micro_batches_are_kept_in_files(tmp_path: Path) -> None:
    """And count in the hash where there are any."""
    problem = pipeline(2)
    again = read_problem(write_problem(problem, tmp_path / "p.json"))
    assert again.hash() == problem.hash()
    assert problem.replace(micro_batch=np.zeros(problem.n, dtype=int)).hash() != problem.hash()


def test_a_device_that_cannot_run_one_stage_can_run_a_later_one() -> None:
    """What is pinned to one device leaves the rest of the chain to the others."""
    problem = pipeline(2)
    problem = problem.replace(pinned=np.where(problem.colocation == 0, 0, -1))
    groups = groups_of(problem)
    line = chain_of(problem, groups, units_by_group(problem, groups))
    found = best_stages(problem, line, (0, 1))
    assert found is not None
    assert (found[0], found[1].tolist()) == (4.0, [0, 1])
    assert best_stages(problem, line, (1, 0)) is None


def test_a_step_without_them_is_left_to_others() -> None:
    """By name of what is missing."""
    plain = tiny([[1.0, 1.0]])
    assert MicroBatches().unsupported_reason(plain) == "the step has no micro-batches"


def test_devices_that_can_run_nothing_take_no_place_in_the_pipeline() -> None:
    """However many of them come first."""
    problem = pipeline(2)
    barred = np.full((problem.n, 5), np.inf)
    problem = tiny(
        np.hstack([barred, problem.compute_s]).tolist(),
        micro_batch=problem.micro_batch,
        operator_modules=problem.operator_modules,
        colocation=problem.colocation,
    )
    plan = MicroBatches()(problem, Context()).plan
    assert set(plan.placement.tolist()) <= {5, 6}


def test_numbers_of_micro_batches_may_have_gaps() -> None:
    """Windows are as many as there are micro-batches, and the schedules those without gaps."""
    problem = pipeline(3)
    place = problem.colocation
    gaps = problem.replace(micro_batch=problem.micro_batch**2)
    plans = [
        [p.order.tolist() for _, p in windowed(OperatorJudge(q), place)] for q in (problem, gaps)
    ]
    assert plans[0] == plans[1]
    assert len(plans[0]) == 3
