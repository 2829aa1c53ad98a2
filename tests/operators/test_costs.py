"""CEFT's tables by their definition, its path by brute force, its bound on every placement."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from placewright.errors import InfeasibleError
from placewright.operators.conformance import (
    named_instances,
    random_placement,
    random_problem,
    tiny,
)
from placewright.operators.costs import ceft
from placewright.operators.judge import OperatorJudge
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem

SEEDS = range(80)


def move(p: OperatorProblem, k: int, a: int, b: int) -> float:
    """Seconds of a transfer, zero on one device."""
    return 0.0 if a == b else p.latency_s[a, b] + p.tensor_bytes[k] * p.seconds_per_byte[a, b]


def edges(p: OperatorProblem) -> list[tuple[int, int, int]]:
    """(producer, tensor, consumer)."""
    return [
        (int(p.tensor_producer[k]), k, int(j))
        for k in range(p.t)
        for j in p.consumers[p.consumer_offsets[k] : p.consumer_offsets[k + 1]]
    ]


def work_of(p: OperatorProblem) -> np.ndarray:
    """Seconds, ``inf`` where not allowed."""
    return np.where(p.allowed(), p.compute_s, np.inf)


def tables(p: OperatorProblem) -> tuple[np.ndarray, np.ndarray]:
    """Both tables, straight from the formulas."""
    work, all_edges, m = work_of(p), edges(p), range(p.m)
    down, up = np.zeros((p.n, p.m)), np.zeros((p.n, p.m))
    for i in p.topology.order:
        for d in m:
            ways = [
                min(down[a, q] + move(p, k, q, d) for q in m) for a, k, b in all_edges if b == i
            ]
            down[i, d] = work[i, d] + max(ways, default=0.0)
    for i in p.topology.order[::-1]:
        for d in m:
            ways = [min(move(p, k, d, q) + up[b, q] for q in m) for a, k, b in all_edges if a == i]
            up[i, d] = work[i, d] + max(ways, default=0.0)
    return down, up


def paths(p: OperatorProblem) -> list[list[tuple[int, int]]]:
    """Every way from an entry to an exit: (tensor that leads there, operator)."""
    all_edges = edges(p)
    entries = set(range(p.n)) - {b for _, _, b in all_edges}
    found: list[list[tuple[int, int]]] = []
    open_ = [[(-1, i)] for i in sorted(entries)]
    while open_:
        path = open_.pop()
        after = [(k, b) for a, k, b in all_edges if a == path[-1][1]]
        found += [] if after else [path]
        open_ += [[*path, step] for step in after]
    return found


def best_on_path(p: OperatorProblem, path: list[tuple[int, int]]) -> float:
    """Least length of one path over all assignments of devices to it."""
    work = work_of(p)
    return min(
        sum(work[i, d] for (_, i), d in zip(path, devices, strict=True))
        + sum(move(p, path[x + 1][0], devices[x], devices[x + 1]) for x in range(len(path) - 1))
        for devices in itertools.product(range(p.m), repeat=len(path))
    )


def test_the_tables_are_their_definition() -> None:
    """Bit for bit, downwards and upwards."""
    for seed in SEEDS:
        problem = random_problem(seed)
        found, (down, up) = ceft(problem), tables(problem)
        assert found.ceft_s.tolist() == down.tolist()
        assert found.ceft_up_s.tolist() == up.tolist()
        assert found.critical_s == max(down.min(axis=1))


def test_no_path_is_longer_at_its_best() -> None:
    """CEFT reaches or exceeds the best assignment of every single path."""
    for seed in SEEDS:
        problem = random_problem(seed, most_operators=7, most_devices=3)
        longest = max(best_on_path(problem, path) for path in paths(problem))
        assert ceft(problem).critical_s >= longest - 1e-12


def test_the_path_is_a_path_and_as_long_as_it_says() -> None:
    """From an entry, over edges, each on an allowed device, to the critical length."""
    for seed in SEEDS:
        problem = random_problem(seed)
        found, work = ceft(problem), work_of(problem)
        steps = {(a, b): k for a, k, b in reversed(edges(problem))}
        path, devices = found.path.tolist(), found.path_devices.tolist()
        assert found.ceft_s[path[0], devices[0]] == work[path[0], devices[0]]
        for (a, q), (b, d) in itertools.pairwise(zip(path, devices, strict=True)):
            assert (a, b) in steps
            assert problem.allowed()[b, d]
            assert found.ceft_s[a, q] < np.inf
        last = found.ceft_s[path[-1], devices[-1]]
        assert last == found.critical_s == found.ceft_s[path[-1]].min()


def test_no_placement_ends_an_operator_before_its_ceft() -> None:
    """Not only the whole: every operator's end on its device."""
    for seed in SEEDS:
        problem = random_problem(seed)
        table = ceft(problem).ceft_s
        judge, rng = OperatorJudge(problem), np.random.default_rng(seed)
        for _ in range(5):
            plan = OperatorPlan(random_placement(problem, rng))
            ends = judge(plan).op_end_s
            assert (ends >= table[np.arange(problem.n), plan.placement]).all()


def test_slack_on_the_path_is_not_above_zero() -> None:
    """The critical path has no slack where CEFT puts it, and no other choice has less than it."""
    found = ceft(named_instances()["chain"])
    assert found.slack_s[found.path, found.path_devices].tolist() == [0.0] * 5
    assert found.path.tolist() == [0, 1, 2, 3, 4]
    assert found.path_devices.tolist() == [0] * 5


def test_averages_would_name_another_path() -> None:
    """An operator that one device does in no time is not critical, whatever its mean."""
    problem = tiny([[1.0, 1.0], [0.1, 100.0], [5.0, 5.0], [1.0, 1.0]], [
        (0, 0.0, [1, 2]), (1, 0.0, [3]), (2, 0.0, [3]),
    ])  # fmt: skip
    assert ceft(problem).path.tolist() == [0, 2, 3]


def test_an_unreachable_operator_is_an_error() -> None:
    """Pinned apart without a link."""
    problem = named_instances()["unlinked"].replace(pinned=[0, 1, -1])
    with pytest.raises(InfeasibleError, match="inputs of 'op1'"):
        ceft(problem)
