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
from pathlib import Path

from placewright.interpreter import python_command, python_environment
from placewright.io.scratch import sweep
from placewright.runtime import limits

GRACE_S = 2.0
"""What Ray's processes have to end by themselves once the launcher has ended."""

SURE_S = 0.3
"""For how long none of Ray's processes must have been seen for all to have ended."""


class Keeper:
    """Begins before a Ray is started; acts once this process, or `close`, ends its input."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self, folder: str) -> None:
        """Start the process; a Ray of this process whose files are in `folder` ends with it.

        `folder`: in a `Scratch` of this process.
        """
        self._process = subprocess.Popen(
            python_command("-m", __name__, str(os.getpid()), folder),
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
            self._process.wait(limits.patience(2 * GRACE_S + SURE_S))
        except subprocess.TimeoutExpired:  # somebody has stopped it
            self._process.kill()
            self._process.wait()


def of_ray(launcher: int, folder: str) -> list[int]:
    """Processes of the Ray that the process `launcher` has started with its files in `folder`.

    They write into it from their first instruction on. A mark in their environment would not do:
    setproctitle overwrites half of it. The launcher's own files there, ``*_<launcher>.log``, are
    open in what it has forked, too.
    """
    inside = re.compile(rf"{re.escape(folder)}/(?!.*_{launcher}\.log$)")
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            for file in (entry / "fd").iterdir():
                with suppress(OSError):
                    if inside.match(str(file.readlink())):
                        found.append(int(entry.name))
                        break
    return found


def main(launcher: int, folder: str) -> None:
    """Wait until the launcher has ended, then end what is left of its Ray, and remove its files.

    Files of a launcher that lives are its own business: it holds the lock of their folder.
    """
    sys.stdin.buffer.read()
    seen = time.monotonic()
    grace = seen + GRACE_S
    while True:
        left = of_ray(launcher, folder)
        now = time.monotonic()  # after a look, which takes long on a busy machine
        if left:
            seen = now
        elif now > seen + SURE_S:  # one look is not enough: a process may be starting another
            break
        for pid in left if now > grace else ():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    sweep(str(Path(folder).parent.parent))  # which may be another than that of all other files
    sweep()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
