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
    assign_ranks,
    busy_seconds,
    children_of,
    is_stopped,
    process_seconds,
)

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
        time.sleep(0.6)
        after = busy_seconds([first])
    finally:
        other.kill()
        other.wait()
    assert before is not None
    assert after is not None
    assert after - before > 0.2
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
