"""What a killed launcher has started of Ray ends, and nothing else does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from placewright.runtime.engines.ray_keeper import Keeper

LAUNCHER = """
import subprocess, time
from placewright.runtime.engines.ray_keeper import Keeper

keeper = Keeper()
with keeper.marking():
    rays = subprocess.Popen(["sleep", "300"])
other = subprocess.Popen(["sleep", "300"])
print(rays.pid, other.pid, flush=True)
time.sleep(300)
"""


def alive(pid: int) -> bool:
    """Neither gone nor a zombie."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] not in "ZX"
    return False


def test_what_a_killed_launcher_leaves_of_ray_is_ended() -> None:
    """A user's own child, started later, goes on."""
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER], stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    rays, other = map(int, launcher.stdout.readline().split())
    try:
        assert alive(rays)
        launcher.kill()
        deadline = time.monotonic() + 50
        while alive(rays) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not alive(rays)
        assert alive(other)
    finally:
        launcher.wait()
        launcher.stdout.close()
        for pid in (rays, other):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def test_closing_ends_the_rest_and_leaves_no_mark() -> None:
    """A second time, or before anything began, it does nothing."""
    before = dict(os.environ)
    keeper = Keeper()
    with keeper.marking():
        child = subprocess.Popen(["sleep", "300"])
    assert dict(os.environ) == before
    keeper.close()
    assert child.wait(50) == -signal.SIGKILL
    keeper.close()
    Keeper().close()
