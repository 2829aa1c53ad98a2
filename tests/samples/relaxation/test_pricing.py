"""Prices of columns against a dense matrix, and against scipy's own reduced costs."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.samples.problem import Batches
from placewright.samples.relaxation.generation import Pricing, bound_and_columns, price
from placewright.samples.relaxation.program import program_of
from tests.samples.relaxation.clouds import cloud
from tests.samples.relaxation.reference import Reference, reference

SEEDS = range(36)


def by_move(pricing: Pricing, lp: Reference) -> np.ndarray:
    """Reduced costs in the order of the reference's columns."""
    tables = [pricing.reduced_s(c) for c in range(pricing.program.problem.k)]
    return np.array([tables[c][i, j] for i, j, c in lp.moves])


@pytest.mark.parametrize("seed", SEEDS)
def test_the_optimums_multipliers_prove_the_optimum(seed: int) -> None:
    """Scipy's multipliers give scipy's reduced costs, and its value as the bound."""
    problem = cloud(seed, "label_mix")
    lp = reference(problem)
    found = lp.solved()
    if found.status != 0:
        return
    pricing = price(program_of(problem), lp.prices(-found.ineqlin.marginals))
    expected = found.lower.marginals[-len(lp.moves) :]
    np.testing.assert_allclose(by_move(pricing, lp), expected, atol=1e-8)
    bound, columns, least = bound_and_columns(pricing, 3)
    assert bound == pytest.approx(lp.value_s(), rel=1e-7)
    assert least >= -1e-9
    assert len(columns) == 0 or least < 0


@pytest.mark.parametrize("seed", SEEDS)
def test_the_columns_that_pay_most_are_found(seed: int) -> None:
    """Any multipliers: the least entry out of and into every node, and nothing that costs."""
    problem = cloud(seed, batches=Batches.PROPORTIONAL)
    lp = reference(problem)
    multipliers = added_up(lp, np.random.default_rng(seed).exponential(size=len(lp.rows)))
    pricing = price(program_of(problem), lp.prices(multipliers))
    reduced = np.array(list(lp.cost.values())) + multipliers @ lp.matrix()
    np.testing.assert_allclose(by_move(pricing, lp), reduced[-len(lp.moves) :], atol=1e-9)
    cost = dict(zip(lp.moves, reduced[-len(lp.moves) :].tolist(), strict=True))
    _, columns, least = bound_and_columns(pricing, 1)
    rows = (columns.source.tolist(), columns.target.tolist(), columns.sample_class.tolist())
    chosen = set(zip(*rows, strict=True))
    assert least == pytest.approx(min(0.0, *cost.values()))
    assert all(cost[move] < 0 for move in chosen)
    for end in (0, 1):
        for node in range(problem.n):
            for kind in range(problem.k):
                mine = [m for m in cost if m[end] == node and m[2] == kind]
                best = min(mine, key=lambda move: cost[move])
                assert cost[best] > -1e-12 or best in chosen


def added_up(lp: Reference, multipliers: np.ndarray) -> np.ndarray:
    """Such that those of each time add up to one."""
    made = multipliers.copy()
    matrix = lp.matrix()
    for t in range(sum(key[0] == "T" for key in lp.cost)):
        mine = matrix[:, t] < 0
        made[mine] /= made[mine].sum()
    return made
