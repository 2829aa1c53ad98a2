"""Compile a wing's kernels in processes beside the planner that needs the first of them.

Kernels are compiled once after an installation, which takes minutes on one core. A process of its
own per other core plans small problems (`Planning.rehearsals`), so that kernels which are needed
late are on the disk by then. It ends with the process that started it.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
from contextlib import suppress

from placewright.errors import PlacewrightError
from placewright.interpreter import python_command, python_environment
from placewright.planning.wing import Wing
from placewright.planning.wings import find_wing

COMPILERS = "PLACEWRIGHT_COMPILERS"
"""Environment variable: how many processes compile beside this one; 0: none."""

MOST_COMPILERS = 3
"""More would wait for each other."""


def compilers() -> int:
    """As `COMPILERS` says, else one for every other core, at most `MOST_COMPILERS`."""
    asked = os.environ.get(COMPILERS, "")
    if asked.isdecimal():
        return int(asked)
    return min(len(os.sched_getaffinity(0)) - 1, MOST_COMPILERS)


def compile_beside(wing: Wing) -> None:
    """Start the other processes, once in the life of this one."""
    if wing.name in _COMPILED:
        return
    _COMPILED.add(wing.name)
    for k in range(compilers() if wing.planning().rehearsals() else 0):
        with suppress(OSError):  # no more processes can be had
            process = subprocess.Popen(
                python_command("-m", __name__, wing.name, str(k)),
                env=python_environment() | {COMPILERS: "0"},
                stdin=subprocess.PIPE,  # ends when this process does
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            atexit.register(_end, process)


_COMPILED: set[str] = set()


def _end(process: subprocess.Popen[bytes]) -> None:
    """What is being compiled is lost; what was written is whole."""
    with process:
        process.kill()


def main(name: str, first: int) -> None:
    """Plan a wing's small problems, beginning with one of them."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    rehearsals = find_wing(name).planning().rehearsals()
    first %= len(rehearsals)
    for rehearse in (*rehearsals[first:], *rehearsals[:first]):
        with suppress(PlacewrightError):
            rehearse()


def _end_with_parent() -> None:
    os.read(0, 1)  # returns when the other end is closed
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
    os._exit(0)  # though a thread waits for the parent's end
