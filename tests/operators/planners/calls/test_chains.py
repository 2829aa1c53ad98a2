"""Chains of calls: what a deadline that has passed leaves of them."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from placewright.operators.planners.calls import chains
from placewright.operators.planners.calls.graph import call_graph
from placewright.operators.planners.calls.lattice import line
from tests.operators.star_instances import star_problem


def test_nothing_is_prepared_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lattice of thousands of operators takes seconds: no chain, and nothing proved."""
    problem = star_problem(0, operators=6, accelerators=2)
    graph = call_graph(problem, np.zeros(problem.n, dtype=np.bool_))
    assert math.isfinite(chains.best_chain(graph, line(graph)).value_s)
    monkeypatch.setattr(chains, "lattice", None)
    found = chains.best_chain(graph, line(graph), deadline_s=time.perf_counter() - 1.0)
    assert (found.value_s, found.bound_s) == (math.inf, 0.0)
    assert found.place.tolist() == [-1] * problem.n
