"""Workers on the nodes of a testbed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from placewright.adapt.membership import all_talk
from placewright.cluster.cluster import Cluster, Device, Link
from placewright.errors import RunError
from placewright.runtime.engines.local import Local, on_testbed
from placewright.testbed.testbed import missing


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


def test_a_stopped_link_emulator_ends_the_wait() -> None:
    """What is sent between devices of a testbed does not arrive any more."""
    emulator = subprocess.Popen(["sleep", "60"])
    handle = SimpleNamespace(emulator_pid=emulator.pid, demand_links=lambda: None)
    group = Local().group(Cluster((Device("a"), Device("b"))))
    group.specs = tuple(replace(spec, handle=handle) for spec in group.specs)
    try:
        assert group.stopped_too_long([], 60.0) == []
        emulator.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, emulator.pid, os.WSTOPPED | os.WNOWAIT)
        assert group.stopped_too_long([], 1.0) == []
        with pytest.raises(RunError, match="link emulator is stopped"):
            group.stopped_too_long([], 60.0)
    finally:
        emulator.kill()
        emulator.wait()


def test_a_killed_link_emulator_is_named() -> None:
    """Not the device whose worker fails, or is silent, for the lack of it."""
    if reason := missing():
        pytest.skip(f"no testbed here: {reason}")
    pair = Device("a", node="x"), Device("b", node="y")
    links = Link("a", "b", 1e8), Link("b", "a", 1e8)
    cluster = Cluster(pair, links, f"killed {os.getpid()}")
    with on_testbed(cluster) as engine, engine.group(cluster) as group:
        handles = dict(engine.handles or {})
        os.kill(handles["a"].emulator_pid, signal.SIGKILL)
        arguments = Path(f"/proc/{handles['a'].emulator_pid}/cmdline")
        while arguments.exists() and arguments.read_bytes():  # a zombie has none
            time.sleep(0.01)
        with pytest.raises(RunError, match="link emulator has ended"):
            group.answers(60.0, "waiting for what nobody has asked for")
        with pytest.raises(RunError, match="link emulator has ended"):
            all_talk(list(handles.values()))
