"""The time limit on building the program over links."""

from __future__ import annotations

import time

import numpy as np
import pytest

from placewright.operators.conformance import tiny
from placewright.operators.planners.pipelines import links
from placewright.operators.planners.pipelines.links import Pairs, contract_pairs

pytest.importorskip("highspy")
CHAIN = tiny([[1.0, 1.0]] * 6, [(i, 0.1, [i + 1]) for i in range(5)], objective="throughput")


def test_links_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once per tensor: it takes a look at every tensor on every link."""
    looks, level = [0], links._level

    def counted(c: Pairs) -> bool:
        looks[0] += 1
        return level(c)

    monkeypatch.setattr(links, "_level", counted)
    c = contract_pairs(CHAIN, contiguous=False)
    start = np.zeros(c.nodes, dtype=np.int64)
    found, bound_s, _ = links.best_pairs(c, start, seed=0, deadline_s=np.inf)
    assert found is not None
    assert c.value_s(found) == pytest.approx(3.1)
    assert bound_s == pytest.approx(3.1, rel=1e-6)
    assert looks == [1]


def test_no_program_is_built_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is found and nothing is proved."""
    monkeypatch.setattr(links, "_build", None)
    c = contract_pairs(CHAIN, contiguous=False)
    start = np.zeros(c.nodes, dtype=np.int64)
    found = links.best_pairs(c, start, seed=0, deadline_s=time.perf_counter())
    assert found == (None, 0.0, False)
