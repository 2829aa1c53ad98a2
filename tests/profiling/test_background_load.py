"""Detection of other load before a measurement."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings

import pytest

from placewright.profiling import profile_warnings
from placewright.profiling.profile_warnings import (
    BusyMachineWarning,
    busy_cpus,
    warn_of_background_load,
)
from placewright.runtime import host

SPIN = "while True: pass"


@pytest.mark.skipif(not host.STAT.exists(), reason="no /proc/stat on this system")
def test_processes_at_work_are_counted() -> None:
    """A process per core makes at least half of the machine busy, and a warning says so."""
    count = os.cpu_count() or 1
    begin = f"import subprocess, sys; [subprocess.Popen([sys.executable, '-c', {SPIN!r}]) for _ in "
    begin += f"range({count})]; print(flush=True); sys.stdin.read()"
    other = subprocess.Popen(
        [sys.executable, "-c", begin],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert other.stdout is not None
        other.stdout.readline()
        assert busy_cpus(0.5) > 0.5 * count
        with pytest.warns(BusyMachineWarning, match="step was measured while other processes"):
            warn_of_background_load("step", 1)
    finally:
        os.killpg(other.pid, signal.SIGKILL)
        other.communicate()


@pytest.mark.skipif(not host.STAT.exists(), reason="no /proc/stat on this system")
def test_children_of_this_process_do_not_count() -> None:
    """A fork server that loads torch is no reason to profile again."""
    own = subprocess.Popen([sys.executable, "-c", SPIN])
    try:
        with_it, without = [], []
        for _ in range(4):
            with_it.append(busy_cpus(0.2))
            os.kill(own.pid, signal.SIGSTOP)
            without.append(busy_cpus(0.2))
            os.kill(own.pid, signal.SIGCONT)
        assert min(with_it) < max(without) + 0.7
    finally:
        own.kill()
        own.wait()


@pytest.mark.parametrize(
    ("busy", "cores", "warned"), [(0.2, 4, False), (0.5, 4, True), (2.5, 1, False), (3.1, 1, True)]
)
def test_only_load_that_takes_cores_is_reported(
    monkeypatch: pytest.MonkeyPatch, busy: float, cores: int, warned: bool
) -> None:
    """Of four CPUs those that the measurement needs must be free, give or take a shell."""
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(profile_warnings, "busy_cpus", lambda: busy)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_background_load("step", cores)
    assert [w.category for w in caught] == [BusyMachineWarning] * warned


def test_a_system_without_load_figures_counts_as_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """No /proc, no warning."""
    monkeypatch.setattr(host, "STAT", host.STAT.with_name("nothing here"))
    monkeypatch.setattr(host, "PROCESSES", host.STAT.with_name("nothing here"))
    assert busy_cpus(0.0) == 0.0
