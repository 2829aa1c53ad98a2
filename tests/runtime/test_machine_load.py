"""Load of other processes is distinguished from the session's own."""

from __future__ import annotations

import time

import pytest

from placewright.cluster.cluster import Cluster, Device
from placewright.runtime import host
from placewright.runtime.host import Host
from placewright.runtime.machine_load import LoadMeter, cpu_reading
from placewright.runtime.session import Session
from tests.runtime.chain import diamond

known = pytest.mark.skipif(not host.STAT.exists(), reason="the system does not tell")


@known
def test_a_session_tells_others_from_its_own_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the readings of its workers, of which one is made up here: 3 s busy, 1 s of them ours."""
    graph, state = diamond()
    cluster = Cluster((Device("a"), Device("b")), name="pair")
    with Session(graph, cluster, state) as session:
        session.load([0, 0, 1, 1], [0, 1, 2, 3])
        meter = LoadMeter(session)
        with meter.round():
            session.run(2)
        readings = iter([[(0.0, 0.0, 10.0)] * 2, [(2.0, 0.5, 13.0)] * 2])
        monkeypatch.setattr(LoadMeter, "_readings", lambda self: next(readings))
        monkeypatch.setattr(LoadMeter, "_ours", lambda self: 0.0)
        made_up = LoadMeter(session)
        with made_up.round():
            pass
    load = made_up.load()
    assert load is not None
    assert load.other_cpus == load.peak_cpus == pytest.approx(1.0)
    assert load.cpus == len(Host.here().cores)
    assert load.cores == min(2, load.cpus)


def test_a_system_that_does_not_tell_is_no_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither calm nor disturbed: unknown."""
    monkeypatch.setattr(host, "STAT", host.STAT.with_name("nothing here"))
    assert cpu_reading([0])[2] is None
    graph, state = diamond()
    with Session(graph, Cluster((Device("a"),), name="one"), state) as session:
        session.load([0, 0, 0, 0], [0, 1, 2, 3])
        meter = LoadMeter(session)
        monkeypatch.setattr(LoadMeter, "_readings", lambda self: [(time.perf_counter(), 0.0, None)])
        with meter.round():
            session.run(1)
        assert meter.load() is None
