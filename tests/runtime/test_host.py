"""Devices of each process of a launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from placewright.cluster.cluster import Cluster, Device
from placewright.errors import InputError
from placewright.runtime import host
from placewright.runtime.host import (
    Host,
    LoadMeter,
    assign_ranks,
    busy_seconds,
    children_of,
    cpu_reading,
    is_stopped,
    process_seconds,
)
from placewright.runtime.session import Session
from tests.runtime.chain import diamond

TRIO = Cluster((Device("a", node="x"), Device("b", node="y"), Device("c", node="x")), name="trio")


def hosts(*names: str) -> list[Host]:
    """One per rank."""
    return [Host(name, name, (0,)) for name in names]


def test_devices_sit_on_hosts_of_their_nodes_names() -> None:
    """Whatever order torchrun gave the ranks; where no name is known, in order."""
    assert assign_ranks(TRIO, hosts("y", "x", "x")) == {"a": 1, "b": 0, "c": 2}
    assert assign_ranks(TRIO, hosts("h1", "h1", "h2")) == {"a": 0, "b": 1, "c": 2}


def test_a_node_with_too_few_processes_is_named() -> None:
    """What, where, how many are where, and how to say which node a machine is."""
    with pytest.raises(InputError, match=r"node 'x' has 2 devices and 1 processes") as caught:
        assign_ranks(TRIO, hosts("x", "y", "h3"))
    assert "PLACEWRIGHT_NODE=x" in str(caught.value)
    assert "h3 (1)" in str(caught.value)


SPIN = "while True: pass"

known = pytest.mark.skipif(not host.STAT.exists(), reason="the system does not tell")


@known
def test_a_busy_process_counts_on_its_cores_only() -> None:
    """What it uses of its core is there, and nothing of it on no core at all."""
    first = min(os.sched_getaffinity(0))
    other = subprocess.Popen(["taskset", "-c", str(first), sys.executable, "-c", SPIN])
    try:
        before = busy_seconds([first])
        assert before is not None
        until = time.monotonic() + 20
        while (busy_seconds([first]) or 0.0) - before < 0.2:
            assert time.monotonic() < until
            time.sleep(0.02)
    finally:
        other.kill()
        other.wait()
    assert busy_seconds([]) == 0.0


@known
def test_a_child_is_found_with_its_time_and_whether_it_is_stopped() -> None:
    """Until it has ended: then it has no time."""
    child = subprocess.Popen([sys.executable, "-c", SPIN])
    try:
        assert child.pid in children_of(os.getpid())
        until = time.monotonic() + 20
        while process_seconds(child.pid) == 0 and time.monotonic() < until:
            time.sleep(0.02)
        assert process_seconds(child.pid) > 0
        assert not is_stopped(child.pid)
        child.send_signal(signal.SIGSTOP)
        while not is_stopped(child.pid) and time.monotonic() < until:
            time.sleep(0.02)
        assert is_stopped(child.pid)
    finally:
        child.kill()
        child.wait()
    assert process_seconds(child.pid) == 0
    assert not is_stopped(child.pid)
    assert child.pid not in children_of(os.getpid())


def test_a_system_without_figures_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown is not idle."""
    monkeypatch.setattr(host, "STAT", host.STAT.with_name("nothing here"))
    assert busy_seconds() is None


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
