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
from pathlib import Path
from placewright.runtime.engines.ray_keeper import Keeper
from placewright.io.scratch import Scratch

scratch, other = Scratch(sys.argv[1]), Scratch()  # Ray's sockets have short paths

def started(folder, log):
    logs = Path(folder, "r", "session", "logs")
    logs.mkdir(parents=True, exist_ok=True)
    with (logs / log).open("w") as out:
        # without an environment: setproctitle may have overwritten it
        return subprocess.Popen(["/bin/sleep", "300"], stdout=out, env={}).pid

keeper = Keeper()
keeper.begin(scratch.name + "/r")
print(
    scratch.name,
    other.name,
    started(scratch.name, "raylet.out"),
    started(scratch.name, f"python-core-driver_{os.getpid()}.log"),
    started(other.name, "raylet.out"),
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
    """Not what it forked, not another Ray of its own, not a user's child; nor the files of one."""
    (short := tmp_path / "short").mkdir()
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(short)],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdin is not None
    assert launcher.stdout is not None
    words = launcher.stdout.readline().split()
    folders = words[:2]
    rays, *others = map(int, words[2:])
    try:
        assert alive(rays)
        if killed:
            launcher.kill()
        else:
            launcher.stdin.close()
            launcher.stdin = None
            assert launcher.stdout.readline() == "closed\n"
        deadline = time.monotonic() + 50
        kept = [not killed] * 2
        while time.monotonic() < deadline and (
            alive(rays) or [Path(folder).exists() for folder in folders] != kept
        ):
            time.sleep(0.05)
        assert not alive(rays)
        assert [Path(folder).exists() for folder in folders] == kept
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
    keeper.begin("/nowhere/at/all")
    keeper.close()
    keeper.close()
