"""The program over links: what has a load, which devices are alike, its time limit."""

from __future__ import annotations

import time

import numpy as np
import pytest

from placewright.operators.conformance import tiny
from placewright.operators.planners.pipelines import links
from placewright.operators.planners.pipelines.links import contract_pairs

pytest.importorskip("highspy")
CHAIN = tiny([[1.0, 1.0]] * 6, [(i, 0.1, [i + 1]) for i in range(5)], objective="throughput")


def test_what_overlaps_has_a_load_of_its_own() -> None:
    """Half of a chain on each device, or all of it where one thing runs at a time."""
    start = np.zeros(CHAIN.n, dtype=np.int64)
    for changes, wanted in (({}, 3.0), ({"links": "free"}, 3.0), ({"overlap": "serial"}, 6.0)):
        c = contract_pairs(CHAIN.replace(**changes), contiguous=False)
        found, bound_s, _ = links.best_pairs(c, start, seed=0, deadline_s=np.inf)
        assert found is not None
        assert c.value_s(found) == pytest.approx(wanted)
        assert bound_s == pytest.approx(wanted, rel=1e-6)


def test_devices_that_share_a_channel_differently_are_not_alike() -> None:
    """Of three equal devices the two whose links share a channel may change places, no others."""
    p = tiny([[1.0] * 3] * 2, [(0, 1.0, [1])], objective="throughput")
    assert contract_pairs(p, contiguous=False).alike.tolist() == [0, 0, 0]
    shared = p.channel.copy()
    shared[0, 1] = shared[0, 2]
    bus = p.replace(channel=shared)
    assert contract_pairs(bus, contiguous=False).alike.tolist() == [0, 1, 1]


def test_no_program_is_built_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is found and nothing is proved."""
    monkeypatch.setattr(links, "_build", None)
    c = contract_pairs(CHAIN, contiguous=False)
    start = np.zeros(c.nodes, dtype=np.int64)
    found = links.best_pairs(c, start, seed=0, deadline_s=time.perf_counter())
    assert found == (None, 0.0, False)
