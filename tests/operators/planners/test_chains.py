"""Chains: the order of operators, units, tensors across cuts, merged units."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.operators.conformance import random_problem, tiny
from placewright.operators.costs import groups_of
from placewright.operators.planners.chains import (
    chain_of,
    coarse,
    depth_first_line,
    units_by_group,
    units_by_module,
)

CHAIN = [(0, 1.0, [1]), (1, 2.0, [2]), (2, 3.0, [3])]


@pytest.mark.parametrize("seed", range(30))
def test_the_chain_is_a_topological_order(seed: int) -> None:
    """Producers stand before their readers, every operator once."""
    problem = random_problem(seed, most_operators=30)
    position = depth_first_line(problem)
    assert sorted(position.tolist()) == list(range(problem.n))
    for k in range(problem.t):
        readers = problem.consumers[problem.consumer_offsets[k] : problem.consumer_offsets[k + 1]]
        assert (position[readers] > position[problem.tensor_producer[k]]).all()


def test_operators_needed_late_come_late() -> None:
    """A weight that is transposed (3) for the last operator (2) stands right before that."""
    problem = tiny([[1.0, 1.0]] * 4, [(0, 1.0, [1]), (1, 1.0, [2]), (3, 1.0, [2])])
    assert depth_first_line(problem).tolist() == [0, 1, 3, 2]


def test_bytes_over_cuts() -> None:
    """A tensor crosses every cut up to its last reader, where it cannot be sent before."""
    problem = tiny([[1.0, 1.0]] * 4, [*CHAIN, (0, 50.0, [3])])
    groups = groups_of(problem)
    chain = chain_of(problem, groups, units_by_group(problem, groups))
    assert chain.ahead_bytes.tolist() == [0.0, 51.0, 52.0, 53.0, 0.0]
    assert chain.ahead_count.tolist() == [0.0, 2.0, 2.0, 2.0, 0.0]
    assert chain.early_s.tolist() == [[1.0, 0.0, 0.0, 0.0]] * 2
    quick = tiny([[9.0, 9.0]] * 4, [*CHAIN, (0, 8.0, [3])])
    chain = chain_of(quick, groups, units_by_group(quick, groups))
    assert chain.ahead_bytes.tolist() == [0.0, 9.0, 2.0, 3.0, 0.0]


def test_a_module_is_one_unit_with_its_backward_pass() -> None:
    """Forward a, b, loss, backward b, a: gradients cross back, and layers are not taken apart."""
    problem = tiny(
        [[1.0, 1.0]] * 5,
        [(0, 1.0, [1]), (1, 1.0, [2]), (2, 1.0, [3]), (3, 7.0, [4]), (0, 9.0, [4])],
        operator_modules=["a", "b.in", "", "b.in", "a"],
    )
    groups = groups_of(problem)
    unit = units_by_module(problem, groups)
    assert unit.tolist() == [0, 1, 2, 1, 0]
    chain = chain_of(problem, groups, unit)
    assert chain.ahead_bytes.tolist() == [0.0, 1.0, 1.0, 0.0]
    assert chain.back_bytes.tolist() == [0.0, 7.0, 1.0, 0.0]


@pytest.mark.parametrize("seed", range(20))
def test_merged_units_hold_the_same(seed: int) -> None:
    """Time and bytes add up, cuts that stay keep what crosses them."""
    problem = random_problem(seed, most_operators=30)
    groups = groups_of(problem)
    chain = chain_of(problem, groups, units_by_group(problem, groups))
    for most in (2, 5, 100):
        merged = coarse(chain, most)
        assert merged.units <= max(most, 1)
        assert merged.seconds.sum(axis=1) == pytest.approx(chain.seconds.sum(axis=1))
        assert merged.resident_bytes.sum() == chain.resident_bytes.sum()
        assert (np.diff(merged.unit[np.argsort(chain.unit, kind="stable")]) >= 0).all()
        assert set(merged.ahead_bytes.tolist()) <= set(chain.ahead_bytes.tolist())
