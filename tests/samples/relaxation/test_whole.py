"""Whole samples over some of the moves."""

from __future__ import annotations

import math

import numpy as np
import pytest

from placewright.errors import InfeasibleError
from placewright.samples.judge import judge
from placewright.samples.relaxation.generation import whole_plan
from placewright.samples.relaxation.program import all_moves
from tests.samples.relaxation.clouds import cloud
from tests.samples.tiny import best_value, random_tiny, tiny


@pytest.mark.parametrize("seed", range(16))
def test_moves_that_are_not_offered_are_not_made(seed: int) -> None:
    """Without one link: the best of all plans that do without it, and no bound for the others."""
    problem = random_tiny(seed)
    moves = all_moves(problem)
    cut = problem.send_s.copy()
    cut[0, 1] = np.inf
    best = best_value(problem.replace(send_s=cut))
    some = moves.where((moves.source != 0) | (moves.target != 1))
    try:
        proposal = whole_plan(problem, some, math.inf)
    except InfeasibleError:
        assert np.isinf(best)
        return
    plan = proposal.plan
    judged = judge(problem, plan)
    assert judged.feasible
    assert not ((plan.source == 0) & (plan.target == 1)).any()
    assert proposal.bound == 0.0
    assert judged.value == pytest.approx(best, rel=2e-4)


def test_infeasibility_is_reported() -> None:
    """Everything must stay and the mix be missed."""
    held = np.array([[40, 0], [0, 40]])
    problem = tiny(held, keep=held, label_mix=0.1)
    with pytest.raises(InfeasibleError, match="no plan of whole samples"):
        whole_plan(problem, all_moves(problem), math.inf)


def test_a_label_mix_proves_nothing() -> None:
    """Solvers keep the mix by a hair more than the judge: their bound may exceed a plan's value."""
    problem = cloud(6)
    assert np.isfinite(problem.label_mix)
    found = whole_plan(problem, all_moves(problem), math.inf, every=True)
    assert found.bound == 0.0
