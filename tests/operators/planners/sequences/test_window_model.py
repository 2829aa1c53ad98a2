"""The window model with very large costs."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.lns import Lns
from placewright.operators.problem import Links
from placewright.planning.contract import Context
from tests.operators.planners.sequences.test_schedule_model import practically_never
from tests.operators.planners.test_search import best_of_all

pytest.importorskip("ortools")


@pytest.mark.parametrize("links", Links)
def test_costs_past_64_bits_are_no_option(links: Links) -> None:
    """From every operator where it is fastest: no worse than every placement."""
    for seed in range(8):
        problem = practically_never(seed, links)
        problem = problem.replace(colocation=np.arange(problem.n))
        if problem.m < 2:
            continue
        start = OperatorPlan(problem.compute_s.argmin(axis=1))
        plan = Lns(windows=3)(problem, Context(seed=seed, incumbent=start)).plan
        assert judge(problem, plan).value <= best_of_all(problem) * (1 + 2e-5)
