"""The process that ends the rest of a Ray whose launcher was killed.

Ray ends its head with the launcher, and workers that are up end with the head. Those that are
still starting wait for the head that is gone, for 10 to 60 s, and so do Ray's own agents.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from placewright.interpreter import python_command, python_environment

STARTED = "%Y-%m-%d_%H-%M-%S"
"""How Ray writes a start into a session's name: local time, in order as texts."""

GRACE_S = 2.0
"""What Ray's processes have to end by themselves once the launcher has ended."""

SURE_S = 0.3
"""For how long none of Ray's processes must have been seen for all to have ended."""


class Keeper:
    """Begins before a Ray is started; acts once this process, or `close`, ends its input."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Start the process; what this process starts of Ray from now on ends with it."""
        self._process = subprocess.Popen(
            python_command("-m", __name__, str(os.getpid()), f"{datetime.now():{STARTED}}"),
            stdin=subprocess.PIPE,
            env=python_environment(),
            start_new_session=True,  # Ctrl-C in a terminal is not for it
        )

    def close(self) -> None:
        """End what is left of Ray, and the keeper."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(2 * GRACE_S + SURE_S)
        except subprocess.TimeoutExpired:  # somebody has stopped it
            self._process.kill()
            self._process.wait()


def of_ray(launcher: int, since: str) -> list[int]:
    """Processes of the Ray that the process `launcher` has started at `since` or later.

    They write into the folder of their session, ``session_<start>_<launcher>``, from their first
    instruction on. A mark in their environment would not do: setproctitle overwrites half of it.
    The launcher's own files there, ``*_<launcher>.log``, are open in what it has forked, too.
    """
    start = r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d"
    session = re.compile(rf"/session_({start})_\d+_{launcher}/(?!.*_{launcher}\.log$)")
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            for file in (entry / "fd").iterdir():
                with suppress(OSError):
                    named = session.search(str(file.readlink()))
                    if named and named[1] >= since:
                        found.append(int(entry.name))
                        break
    return found


def main(launcher: int, since: str) -> None:
    """Wait until the launcher has ended, then end what is left of its Ray."""
    sys.stdin.buffer.read()
    now = seen = time.monotonic()
    grace = now + GRACE_S
    while now < seen + SURE_S:  # one look is not enough: a process may be starting another
        if left := of_ray(launcher, since):
            seen = now
        for pid in left if now > grace else ():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
        now = time.monotonic()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
