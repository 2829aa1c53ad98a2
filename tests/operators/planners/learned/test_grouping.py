"""Groups of operators that a policy places together."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.operators.conformance import random_problem, tiny
from placewright.operators.planners.learned.grouping import How, group_operators


def uses(edges: list[tuple[int, int]]) -> list[tuple[int, float, list[int]]]:
    """A tensor of one byte per edge."""
    return [(producer, 1.0, [consumer]) for producer, consumer in edges]


@pytest.mark.parametrize("how", ["colocation", "chains", "modules"])
def test_groups_keep_every_rule(how: How) -> None:
    """Colocated operators stay together, and every group has a device that can run it all."""
    for seed in range(40):
        problem = random_problem(seed)
        grouping = group_operators(problem, how, at_most=4)
        allowed = problem.allowed()
        assert sorted(set(grouping.group.tolist())) == list(range(grouping.count))
        for g in range(grouping.count):
            members = np.flatnonzero(grouping.group == g)
            assert np.array_equal(grouping.allowed[g], allowed[members].all(axis=0))
            assert grouping.allowed[g].any()
        for one in np.unique(problem.colocation):
            assert len(set(grouping.group[problem.colocation == one].tolist())) == 1


def test_chains_become_one_group_and_branches_do_not() -> None:
    """A -> b -> c is one group; a diamond's two arms are groups of their own."""
    chain = tiny([[1.0, 1.0]] * 3, tensors=uses([(0, 1), (1, 2)]))
    assert group_operators(chain, "chains").count == 1
    diamond = tiny([[1.0, 1.0]] * 4, tensors=uses([(0, 1), (0, 2), (1, 3), (2, 3)]))
    assert group_operators(diamond, "chains").count == 4


def test_modules_are_cut_at_the_level_that_fits() -> None:
    """Two layers of two operators each, and their two parts of one each."""
    names = ("net.0.a", "net.0.b", "net.1.a", "net.1.b")
    edges = [(0, 2), (0, 3), (1, 2), (1, 3)]
    problem = tiny([[1.0, 1.0]] * 4, tensors=uses(edges)).replace(operator_modules=names)
    assert group_operators(problem, "modules", at_most=8).count == 4
    assert group_operators(problem, "modules", at_most=2).group.tolist() == [0, 0, 1, 1]


def test_too_many_groups_are_joined_by_work() -> None:
    """At most as many as asked for, neighbours in topological order."""
    edges = [(0, k) for k in range(1, 40)]
    problem = tiny([[1.0, 1.0]] * 40, tensors=uses(edges))
    grouping = group_operators(problem, "chains", at_most=8)
    assert 4 <= grouping.count <= 8
    assert grouping.work_s.sum() == pytest.approx(40.0)
    placements = grouping.placements(np.arange(grouping.count) % 2)
    assert np.array_equal(grouping.devices(problem, placements[0]), np.arange(grouping.count) % 2)
