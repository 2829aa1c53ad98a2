"""Bounds never exceed any plan's value, and equal published values or an LP's."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from scipy.optimize import linprog

from placewright.errors import InfeasibleError
from placewright.operators.bounds import bounds
from placewright.operators.conformance import named_instances, random_problem, tiny
from placewright.operators.judge import OperatorJudge
from placewright.operators.load_bounds import load_bound
from placewright.operators.problem import Links, Objective, OperatorProblem, Overlap
from placewright.operators.readers.task_graphs import read_dag
from tests.published import published

DAGS = [
    "layered_n100_ccr0.2_s0.json",
    "layered_n1000_ccr1.0_s0.json",
    "narrow_n100_ccr1.0_s7.json",
]


def all_values(problem: OperatorProblem) -> list[float]:
    """Values of every placement that keeps the rules and fits, by rank and by some orders."""
    allowed = problem.allowed()
    rows = [
        row
        for row in itertools.product(*(np.flatnonzero(a).tolist() for a in allowed))
        if all(row[i] == row[j] for i, j in enumerate(problem.colocation))
    ]
    judge, rng = OperatorJudge(problem), np.random.default_rng(0)
    orders = [None, *(rng.permutation(problem.n) for _ in range(8))]
    found: list[float] = []
    for order in orders:
        value, over = judge.many(rows, order)
        found += value[over == 0].tolist()
    return found


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize(("links", "overlap"), list(itertools.product(Links, Overlap)))
def test_no_plan_beats_a_bound(objective: Objective, links: Links, overlap: Overlap) -> None:
    """Every placement of tiny problems, dispatched by rank and by random orders."""
    checked = 0
    for seed in range(60):
        problem = random_problem(
            seed,
            most_operators=5,
            most_devices=3,
            objective=objective,
            links=links,
            overlap=overlap,
        )
        try:
            best = max(bounds(problem).values())
        except InfeasibleError:
            assert not all_values(problem)
            continue
        values = all_values(problem)
        checked += len(values)
        assert best <= min(values, default=np.inf)
    assert checked > 1000


def test_the_published_bounds_are_reached() -> None:
    """Work and critical path of the dag files, which stand in them."""
    for name in DAGS:
        path = published(f"dag/{name}")
        published_bounds = json.loads(path.read_text())["lower_bounds"]
        found = bounds(read_dag(path))
        assert found["load"] == pytest.approx(published_bounds["work"], rel=1e-9)
        assert found["ceft"] == pytest.approx(published_bounds["critical_path"], rel=1e-9)


def solved(work: np.ndarray, resident: np.ndarray, memory: np.ndarray) -> float:
    """The fractional load problem by an LP solver."""
    n, m = work.shape
    loads = np.zeros((m, n * m + 1))
    full = np.zeros((m, n * m + 1))
    whole = np.zeros((n, n * m + 1))
    for i, d in itertools.product(range(n), range(m)):
        loads[d, i * m + d] = work[i, d]
        full[d, i * m + d] = resident[i]
        whole[i, i * m + d] = 1
    loads[:, -1] = -1
    upper = np.concatenate([np.zeros(m), memory])
    cost = np.r_[np.zeros(n * m), 1]
    answer = linprog(cost, np.vstack([loads, full]), upper, whole, np.ones(n))
    return float(answer.fun) if answer.success else np.inf


def test_the_load_bound_is_near_the_linear_program() -> None:
    """Never above it, and within 3 % on average, with heterogeneous devices and scarce memory."""
    ratios = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        n, m = int(rng.integers(5, 60)), int(rng.integers(2, 6))
        work, resident = rng.uniform(0.1, 5, (n, m)), rng.uniform(0, 2, n)
        memory = resident.sum() * rng.dirichlet(np.full(m, 5.0)) * 1.3
        exact, bound = solved(work, resident, memory), load_bound(work, resident, memory)[0]
        assert bound <= exact * (1 + 1e-9)
        ratios.append(bound / exact)
    assert np.mean(ratios) > 0.97


def test_excess_memory_is_reported_in_bytes() -> None:
    """Too much in all, or one group too large for any device."""
    chain = [(0, 1.0, [1])]
    both = tiny([[1.0, 1.0]] * 2, chain, resident_bytes=[6.0, 6.0], memory_bytes=[6.0, 5.0])
    with pytest.raises(InfeasibleError, match=r"12 B of 11 B; .* needs 1 B more"):
        bounds(both)
    one = tiny([[1.0, 1.0]] * 2, chain, resident_bytes=[9.0, 1.0], memory_bytes=[7.0, 8.0])
    with pytest.raises(InfeasibleError, match="1 B more than 'dev1' has"):
        bounds(one)
    together = one.replace(resident_bytes=[5.0, 5.0], colocation=[0, 0])
    with pytest.raises(InfeasibleError, match="2 B more than 'dev1' has"):
        bounds(together)


def test_a_single_device_is_bounded_by_its_work() -> None:
    """Where all must be done on one device the load is the value."""
    problem = named_instances()["one-device"]
    assert bounds(problem)["load"] == pytest.approx(3.0)


def test_work_between_head_and_tail() -> None:
    """One second before, ten of work for two equal devices, one after: seven, not ten halves."""
    fork = [(0, 0.0, list(range(1, 11))), *((i, 0.0, [11]) for i in range(1, 11))]
    found = bounds(tiny([[1.0, 1.0]] * 12, fork))
    assert found["head-load-tail"] == pytest.approx(7.0)
    assert found["load"] == pytest.approx(6.0)
    assert found["ceft"] == pytest.approx(3.0)


def test_very_many_bytes_that_just_fit_are_not_refused() -> None:
    """In floats each 3 that is added to 2^54 makes 4 more."""
    bytes_of = [2.0**53, 2.0**53, 3.0, 3.0, 3.0, 3.0]
    for colocation in ([0] * 6, list(range(6))):
        problem = tiny(
            np.ones((6, 1)).tolist(),
            resident_bytes=bytes_of,
            memory_bytes=[2.0**54 + 12],
            colocation=colocation,
        )
        assert OperatorJudge(problem).many([[0] * 6])[1].tolist() == [0]
        assert bounds(problem)["load"] == pytest.approx(6.0)
        with pytest.raises(InfeasibleError):
            bounds(problem.replace(memory_bytes=[2.0**54 + 8]))
