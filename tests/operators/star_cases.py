"""Small pipelines around host memory, all their plans, and planners that find the best one."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import IntArray
from placewright.operators.conformance import random_problem
from placewright.operators.judge import evaluate_many, judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import Context, Planner, proposal_of


def star(seed: int, *, operators: int = 7, devices: int = 3, **changes: Any) -> OperatorProblem:
    """A random problem with accelerators and CPUs, some of it backward, some memory short."""
    rng = np.random.default_rng(seed)
    size = {"most_operators": operators, "most_devices": devices}
    p = random_problem(seed, objective="throughput", communication="star", **size)
    late = np.zeros(p.n, dtype=bool)
    late[p.topology.order[int(rng.integers(0, p.n + 1)) :]] = rng.random() < 0.5
    rates = rng.choice([0.0, 1.0, 1.0, 0.3], p.m)
    alike = rng.random() < 0.5
    if alike:  # devices of one kind are where symmetry has to be broken rightly
        first = np.where(np.isfinite(p.compute_s[:, :1]), p.compute_s[:, :1], 2.0)
        p = p.replace(compute_s=np.repeat(first, p.m, axis=1), pinned=np.full(p.n, -1))
        rates = np.full(p.m, 1.0)
    return p.replace(**({"host_seconds_per_byte": rates, "is_backward": late} | changes))


def best_value(problem: OperatorProblem) -> float:
    """Value of the best of all placements by the judge, ``inf`` where none fits."""
    rows = every_placement(problem)
    value, over = evaluate_many(problem, rows)
    for k in np.argsort(np.where(over == 0, value, np.inf), kind="stable").tolist():
        if over[k] or not np.isfinite(value[k]):
            break
        # Batches do not ask for contiguity.
        judgement = judge(problem, OperatorPlan(rows[k]))
        if judgement.feasible:
            return judgement.value
    return float("inf")


def every_placement(p: OperatorProblem) -> IntArray:
    """All placements of which operators and groups allow, shape (k, n)."""
    groups = p.colocation.tolist()
    leader = np.array([groups.index(group) for group in groups])
    allowed = product(*(np.flatnonzero(row).tolist() for row in p.allowed()))
    rows: IntArray = np.array(list(allowed), dtype=np.int64).reshape(-1, p.n)
    return rows[(rows == rows[:, leader]).all(axis=1)]


def equals_brute_force(
    planner: Planner, problem: OperatorProblem, wanted: float, rel: float = 1e-6
) -> bool:
    """Whether there is a plan; the best one, with its proof, or else it is refused."""
    if wanted == np.inf:
        with pytest.raises(InfeasibleError):
            planner(problem, Context())
        return False
    proposal = proposal_of(planner(problem, Context()))
    judgement = judge(problem, proposal.plan)
    assert judgement.feasible, judgement.violation
    assert judgement.value == pytest.approx(wanted, rel=rel)
    assert wanted * (1 - max(rel, 1e-9)) <= proposal.bound <= wanted
    return True
