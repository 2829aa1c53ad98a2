"""The process that ends the rest of a Ray whose launcher was killed.

Ray ends its head with the launcher, and workers that are up end with the head. Those that are
still starting wait for the head that is gone, for 10 to 60 s, and so do Ray's own agents.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MARK = "PLACEWRIGHT_RAY"
"""Variable in the environment of every process of one Ray, and of nothing else."""

GRACE_S = 2.0
"""What Ray's processes have to end by themselves once the launcher has ended."""


class Keeper:
    """Started around the start of a Ray; acts once this process, or `close`, ends its input."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def marking(self) -> Iterator[None]:
        """Processes that are started within are Ray's."""
        mark = secrets.token_hex(8)
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, mark],
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in a terminal is not for it
        )
        os.environ[MARK] = mark
        try:
            yield
        finally:
            del os.environ[MARK]  # what a user's script starts later is not Ray's

    def close(self) -> None:
        """End what is left of Ray, and the keeper."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(2 * GRACE_S)
        except subprocess.TimeoutExpired:  # somebody has stopped it
            self._process.kill()
            self._process.wait()


def marked(mark: str) -> list[int]:
    """Processes that were started with this mark."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def main(mark: str) -> None:
    """Wait until the launcher has ended, then end what is left of its Ray."""
    sys.stdin.buffer.read()
    deadline = time.monotonic() + GRACE_S
    while marked(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    while left := marked(mark):  # a process that starts others may be among them
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


if __name__ == "__main__":
    main(sys.argv[1])
