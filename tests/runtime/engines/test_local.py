"""Workers on the nodes of a testbed."""

from __future__ import annotations

import os

import pytest

from placewright.cluster.cluster import Cluster, Device, Link
from placewright.runtime.engines.local import on_testbed
from placewright.testbed.requirements import missing


def test_two_sessions_share_a_testbed() -> None:
    """At the same time, and of the same process: each meets at a port of its own."""
    if reason := missing():
        pytest.skip(f"no testbed here: {reason}")
    pair = Device("a", node="x"), Device("b", node="y")
    links = Link("a", "b", 1e8), Link("b", "a", 1e8)
    cluster = Cluster(pair, links, f"shared {os.getpid()}")
    with on_testbed(cluster) as engine, engine.group(cluster) as one, engine.group(cluster) as two:
        assert one.specs[0].rendezvous != two.specs[0].rendezvous
        assert [worker.exitcode for worker in one.processes + two.processes] == [None] * 4
