"""The judge against its slow reference, its own words, and hand-played examples."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from placewright.operators.judge import judge
from placewright.operators.plan import Dispatch, OperatorPlan
from placewright.operators.problem import Links, OperatorProblem, Overlap
from placewright.testing.instances import random_placement, random_problem
from tests.operators import reference_judge as slow

ASKED = list(itertools.product(Links, Overlap))


def some_plans(problem: OperatorProblem, rng: np.random.Generator) -> list[OperatorPlan]:
    """One placement, dispatched in three ways."""
    placement = random_placement(problem, rng)
    return [
        OperatorPlan(placement),
        OperatorPlan(placement, rng.permutation(problem.n)),
        OperatorPlan(placement, problem.topology.order, Dispatch.IN_ORDER),
    ]


def assert_equal_to_reference(problem: OperatorProblem, plan: OperatorPlan) -> None:
    """Every number that the judge gives is the reference's."""
    fast, played = judge(problem, plan), slow.play(problem, plan)
    assert fast.op_start_s.tolist() == [played.start[i] for i in range(problem.n)]
    assert fast.op_end_s.tolist() == [played.end[i] for i in range(problem.n)]
    moves = fast.transfers
    sent = {
        (int(k), int(d)): (float(a), float(b))
        for k, d, a, b in zip(moves.tensor, moves.target, moves.start_s, moves.end_s, strict=True)
    }
    assert sent == played.sent
    assert fast.peak_bytes.tolist() == slow.peaks(problem, plan, played)
    assert fast.value == played.makespan


@pytest.mark.parametrize(("links", "overlap"), ASKED)
@pytest.mark.parametrize("block", range(4))
def test_equal_to_the_reference_bit_for_bit(links: Links, overlap: Overlap, block: int) -> None:
    """Starts, ends, transfers, peaks and value are the reference's, on thousands of plans."""
    for seed in range(100 * block, 100 * (block + 1)):
        problem = random_problem(seed, links=links, overlap=overlap)
        for plan in some_plans(problem, np.random.default_rng(seed)):
            assert_equal_to_reference(problem, plan)
