"""Sets of nodes that reach each other, on a testbed and after its end."""

from __future__ import annotations

import os
import random
from itertools import combinations
from pathlib import Path

import pytest

from placewright.adapt.connectivity import all_talk, largest_clique
from placewright.cluster.cluster import Cluster, Device, Link
from placewright.errors import RunError
from placewright.testbed import Testbed
from placewright.testbed.node_handle import NodeHandle
from placewright.testbed.testbed import missing


def test_no_members_without_devices() -> None:
    """Which is not a testbed that was taken down."""
    assert all_talk([]) == frozenset()


def test_a_testbed_that_is_gone_says_so(tmp_path: Path) -> None:
    """Its control groups are not there; the devices are named."""
    handles = [NodeHandle(n, n, (str(tmp_path / n),), (0,), "10.0.0.1", "eth0") for n in "ab"]
    with pytest.raises(RunError, match="a, b: the testbed has been taken down"):
        all_talk(handles)


def test_the_largest_set_is_that_of_trying_all() -> None:
    """Random cuts, the first of equals; 40 nodes of which most pairs are cut end soon."""
    rng = random.Random(0)

    def cuts(n: int, share: float) -> dict[int, set[int]]:
        apart: dict[int, set[int]] = {k: set() for k in range(n)}
        for a, b in combinations(range(n), 2):
            if rng.random() < share:
                apart[a].add(b)
                apart[b].add(a)
        return apart

    for n in range(8):
        for share in (0.1, 0.3, 0.6, 0.9):
            apart = cuts(n, share)
            subsets = (list(s) for size in range(n, -1, -1) for s in combinations(range(n), size))
            best = next(s for s in subsets if not any(b in apart[a] for a in s for b in s))
            assert largest_clique(list(range(n)), apart) == best
    assert len(largest_clique(list(range(40)), cuts(40, 0.7))) >= 4


@pytest.mark.skipif(missing() is not None, reason=f"no testbed here: {missing()}")
def test_nodes_with_a_cut_link_are_in_different_sets() -> None:
    """Of the largest sets the first; all three again when the link is back."""
    names = ("a", "b", "c")
    links = tuple(Link(x, y, 1e7, 1e-3) for x in names for y in names if x != y)
    devices = tuple(Device(name, node=name, speed=0.2) for name in names)
    with Testbed.up(Cluster(devices, links, f"connectivity {os.getpid()}")) as bed:
        handles = [bed.handle(name) for name in names]
        assert all_talk(handles) == {"a", "b", "c"}
        bed.cut("b", "a")
        bed.cut("a", "b")
        assert all_talk(handles) == {"a", "c"}
        bed.restore("b", "a")
        bed.restore("a", "b")
        assert all_talk(handles) == {"a", "b", "c"}
