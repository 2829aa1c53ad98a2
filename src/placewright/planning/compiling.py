"""Compile a wing's kernels in processes beside the planner that needs the first of them.

Kernels are compiled once after an installation, which takes minutes on one core. A process of its
own per other core plans small problems (`Planning.rehearsals`), so that kernels which are needed
late are on the disk by then. It ends with the process that started it. `CompilingAhead` does so
before there is anything to plan.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from placewright.errors import PlacewrightError
from placewright.interpreter import python_command, python_environment
from placewright.io.arguments import environment_number
from placewright.numerics.clocks import CompileClock
from placewright.planning.wing import Wing
from placewright.planning.wings import find_wing, wings

COMPILERS = "PLACEWRIGHT_COMPILERS"
"""Environment variable: how many processes compile beside this one; 0: none."""

MOST_COMPILERS, MOST_ASKED = 3, 64
"""More would wait for each other; so many may be asked for, each of which takes 200 MB."""


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0))


def compilers() -> int:
    """As `COMPILERS` says, else one for every other core, at most `MOST_COMPILERS`.

    Raises `InputError`: it says something else than a number of processes.
    """
    if not os.environ.get(COMPILERS):
        return min(cores() - 1, MOST_COMPILERS)
    return environment_number(COMPILERS, MOST_ASKED, "0: none; or unset it")


def compile_beside(wing: Wing) -> None:
    """Start the other processes, once in the life of this one."""
    if wing.name in _COMPILED:
        return
    _COMPILED.add(wing.name)
    for k in range(compilers() if wing.planning().rehearsals() else 0):
        with suppress(OSError):  # no more processes can be had
            _start(wing.name, str(k))


_COMPILED: set[str] = set()


class CompilingAhead:
    """Compile the kernels of all wings in one process of low priority, until this one ends.

    `left`: what is being compiled, "part 3 of 12"; empty where nothing is.
    """

    def __init__(self) -> None:
        self.left = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._wanted, self._pauses, self._changing = False, 0, threading.Lock()

    def start(self) -> None:
        """Begin, unless `COMPILERS` is 0."""
        self._wanted = os.environ.get(COMPILERS) != "0"
        self._go_on()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """End the process while this lasts, and go on afterwards.

        Whoever needs the function that it is at waits for it, which at its priority takes minutes
        where others are busy.
        """
        with self._changing:
            self._pauses += 1
            process, self._process, self.left = self._process, None, ""
        if process is not None:
            process.kill()
        try:
            yield
        finally:
            with self._changing:
                self._pauses -= 1
        self._go_on()

    def _go_on(self) -> None:
        with self._changing, suppress(OSError):  # no more processes can be had
            if self._wanted and not self._pauses and self._process is None:
                self._process = process = _start(stdout=subprocess.PIPE)
                threading.Thread(target=self._follow, args=(process,), daemon=True).start()

    def _follow(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with self._changing:
                if process is self._process:
                    self.left = line.decode().strip()
        process.wait()
        with self._changing:
            if process is self._process:  # else it was paused
                self.left, self._process, self._wanted = "", None, False


def _start(*arguments: str, stdout: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """Start a process that compiles; see `main`."""
    process = subprocess.Popen(
        python_command("-m", __name__, *arguments),
        env=python_environment() | {COMPILERS: "0"},
        stdin=subprocess.PIPE,  # ends when this process does
        stdout=stdout,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    atexit.register(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    """What is being compiled is lost; what was written is whole."""
    with process:
        process.kill()


LOWEST = 19
"""Niceness of a process that compiles before there is anything to plan."""


def main(name: str = "", first: int = 0) -> None:
    """Plan a wing's small problems, beginning with one of them; those of all wings at low priority.

    Prints which one it is at, while something is compiled.
    """
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if not name:
        os.nice(LOWEST)
        with suppress(OSError):  # Linux shares CPUs among sessions first, and by nice within one
            Path("/proc/self/autogroup").write_text(str(LOWEST))
    planned = [find_wing(name)] if name else wings().values()
    rehearsals = [each for wing in planned for each in wing.planning().rehearsals()]
    at = 0

    def compiling() -> None:
        print(f"part {at} of {len(rehearsals)}", flush=True)

    first %= len(rehearsals)
    with CompileClock(compiling):
        for at, rehearse in enumerate((*rehearsals[first:], *rehearsals[:first]), 1):  # noqa: B007
            with suppress(PlacewrightError):
                rehearse()


def _end_with_parent() -> None:
    os.read(0, 1)  # returns when the other end is closed
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2])) if sys.argv[1:] else main()
    os._exit(0)  # though a thread waits for the parent's end
