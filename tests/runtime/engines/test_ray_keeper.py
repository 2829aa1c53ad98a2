"""The keeper ends the Ray processes of a killed launcher, and no others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from placewright.runtime.engines.ray_keeper import Keeper

LAUNCHER = """
import os, subprocess, sys, time
from datetime import datetime
from pathlib import Path
from placewright.runtime.engines.ray_keeper import STARTED, Keeper

def started(log, since=None):
    now = since or datetime.now().strftime(STARTED)
    folder = Path(sys.argv[1]) / f"session_{now}_000000_{os.getpid()}" / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / log).open("w") as out:
        # without an environment: setproctitle may have overwritten it
        return subprocess.Popen(["/bin/sleep", "300"], stdout=out, env={}).pid

keeper = Keeper()
keeper.begin()
print(
    started("raylet.out"),
    started(f"python-core-driver_{os.getpid()}.log"),
    started("raylet.out", "2020-01-01_00-00-00"),
    subprocess.Popen(["/bin/sleep", "300"], stdout=subprocess.DEVNULL).pid,
    flush=True,
)
sys.stdin.read()
keeper.close()
print("closed", flush=True)
time.sleep(300)
"""


def alive(pid: int) -> bool:
    """Neither gone nor a zombie."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] not in "ZX"
    return False


@pytest.mark.parametrize("killed", [True, False])
def test_ray_processes_of_a_killed_launcher_are_ended(tmp_path: Path, killed: bool) -> None:
    """Not what it forked, not a Ray of an earlier process of this number, not a user's child."""
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdin is not None
    assert launcher.stdout is not None
    rays, *others = map(int, launcher.stdout.readline().split())
    try:
        assert alive(rays)
        if killed:
            launcher.kill()
        else:
            launcher.stdin.close()
            launcher.stdin = None
            assert launcher.stdout.readline() == "closed\n"
        deadline = time.monotonic() + 50
        while alive(rays) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not alive(rays)
        assert all(map(alive, others))
    finally:
        launcher.kill()
        launcher.communicate()
        for pid in (rays, *others):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def test_closing_before_anything_began_does_nothing() -> None:
    """And a second time."""
    Keeper().close()
    keeper = Keeper()
    keeper.begin()
    keeper.close()
    keeper.close()
