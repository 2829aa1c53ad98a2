"""Annealing walks stop when they are interrupted, and are never worse than their start."""

from __future__ import annotations

import time

import numpy as np

from placewright.numerics.arrays import IntArray
from placewright.operators.planners.pipelines.contraction import contract
from placewright.operators.planners.pipelines.slots.program import slot_kinds
from placewright.operators.planners.pipelines.slots.walks import annealed, beside
from tests.operators.star_cases import star


def test_walks_end_when_they_are_told_to() -> None:
    """Without end otherwise; their best is no worse than the start, and stays what it was."""
    problem = star(3, memory_bytes=np.full(star(3).m, np.inf))
    c = contract(problem, contiguous=False)
    kinds = slot_kinds(c)
    slot = np.array([kinds.index(k) for k in c.work_s.argmin(axis=1)])

    def value(slots: IntArray) -> float:
        return float(np.bincount(slots, c.work_s[np.arange(c.nodes), np.array(kinds)[slots]]).max())

    alone, _ = annealed(c, slot, value, seed=5, deadline_s=time.perf_counter() + 60.0, walks=1)
    with beside(c, slot, value, seed=5) as best:
        time.sleep(0.2)
        assert value(best()) <= value(slot)
        assert np.array_equal(best(), best())
    assert value(alone) <= value(slot)
