"""The time limit of annealing over links."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest

from placewright.operators.conformance import tiny
from placewright.operators.planners.pipelines.links import moves
from placewright.operators.planners.pipelines.links.contraction import contract_pairs

CHAIN = tiny([[1.0, 1.0]] * 6, [(i, 0.1, [i + 1]) for i in range(5)], objective="throughput")


def test_a_walk_cools_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that ticks at every look lets ten stretches begin, the last one nearly cold."""
    begun, ticks, most = list[int](), count(), 10**12

    def noted(*arguments: object) -> None:
        begun.append(int(arguments[2]))  # type: ignore[call-overload]

    monkeypatch.setattr(moves, "_run_moves", noted)
    monkeypatch.setattr(moves, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    c = contract_pairs(CHAIN, contiguous=False)
    moves.anneal(
        c, np.zeros(c.nodes, dtype=np.int64), moves=most, heat=0.3, seed=0, deadline_s=20.0
    )
    assert 5 <= len(begun) <= 10
    assert begun[-1] >= 0.8 * most


def test_stretches_are_one_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking at the clock more often changes nothing."""
    c, found = contract_pairs(CHAIN, contiguous=False), list[list[int]]()
    for chunk in (7, 10_000):
        monkeypatch.setattr(moves, "CHUNK", chunk)
        place = moves.anneal(c, np.zeros(c.nodes, dtype=np.int64), moves=500, heat=0.3, seed=4)
        found.append(place.tolist())
    assert found[0] == found[1]
    assert c.value_s(np.array(found[0])) < 6.0
