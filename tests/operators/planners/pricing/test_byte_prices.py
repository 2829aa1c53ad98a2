"""Prices of bytes let PBQP fit limited memory, and change nothing elsewhere."""

from __future__ import annotations

import numpy as np

from placewright.operators.conformance import tiny
from placewright.operators.judge import Judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.pricing.byte_prices import within_memories
from placewright.operators.planners.pricing.priced import pricing_context
from placewright.operators.problem import OperatorProblem


def chain(layers: int, memory_bytes: float) -> OperatorProblem:
    """Layers on a fast and a slow device, each with as many bytes; transfers are cheap."""
    return tiny(
        [[1.0, 2.0]] * layers,
        [(i, 1.0, [i + 1]) for i in range(layers - 1)],
        seconds_per_byte=0.01,
        resident_bytes=[10.0] * layers,
        memory_bytes=[memory_bytes, memory_bytes],
    )


def test_no_placement_where_memory_is_enough() -> None:
    """Plans of problems that fit are those of the planner without prices."""
    problem = chain(12, 500.0)
    d = pricing_context(problem, 4)
    assert within_memories(d, d.costs(problem.compute_s), 6) == []


def test_the_least_price_keeps_what_fits_on_the_fast_device() -> None:
    """Of 40 layers in a row as many stay as brute force over all cuts leaves there."""
    problem = chain(40, 262.0)
    d = pricing_context(problem, 4)
    places = within_memories(d, d.costs(problem.compute_s), 8)
    judge = Judge(problem)
    fit = [p for p in places if judge(OperatorPlan(p)).feasible]
    assert fit
    cuts = [np.where(np.arange(40) < k, 0, 1) for k in range(41)]
    fitting = [c for c in cuts if judge(OperatorPlan(c)).feasible]
    most = max(int((c == 0).sum()) for c in fitting)
    assert max(int((p == 0).sum()) for p in fit) >= most - 1
