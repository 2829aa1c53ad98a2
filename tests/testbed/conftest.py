"""Testbeds for tests: made as root, and removed whatever happens."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from placewright.cluster.cluster import Cluster
from placewright.testbed import Testbed, record
from placewright.testbed.record import Record, this_boot
from placewright.testbed.testbed import missing

DUO = """
devices:
  - {name: left, node: a}
  - {name: right, node: b, speed: 0.5, memory: 256MiB}
links:
  - {from: left, to: right, bandwidth: 40Mbps, latency: 5ms}
"""

Start = Callable[[], subprocess.Popen[bytes]]

_numbers = count()


def cluster(text: str = DUO, name: str = "") -> Cluster:
    """A cluster of a name that nobody else on this machine uses."""
    own = name or f"test {os.getpid()} {next(_numbers)}"
    return Cluster.from_text(text, where="a test", name=own)


@pytest.fixture
def up() -> Iterator[Callable[[Cluster], Testbed]]:
    """`Testbed.up`, for the length of a test."""
    if reason := missing():
        pytest.skip(f"no testbed here: {reason}")
    with ExitStack() as stack:
        yield lambda wanted: stack.enter_context(Testbed.up(wanted))


@pytest.fixture
def duo(up: Callable[[Cluster], Testbed]) -> Testbed:
    """Two devices and a link of 40 Mbit/s and 5 ms."""
    return up(cluster())


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process that sleeps, for the length of a test."""
    with ExitStack() as stack:

        def started() -> subprocess.Popen[bytes]:
            words = [sys.executable, "-c", "import time; time.sleep(60)"]
            process = stack.enter_context(subprocess.Popen(words))
            stack.callback(process.kill)
            return process

        yield started


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    """A testbed of no devices, in a folder of its own."""
    monkeypatch.setattr(record, "HOME", tmp_path)
    return Record("x", "", (), (), (0,), 0, this_boot(), made_ns=1)
