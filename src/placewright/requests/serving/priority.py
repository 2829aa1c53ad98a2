"""What answers clients gets a processor before what computes, on the machine that both share."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress

NICENESS, ANSWERING = 10, -10
"""Of processes that compute batches, inherited by the threads of their runtime; and, where that is
allowed, of threads that answer: one that has just run may not yet take the place of another, until
that has caught up, which it does the sooner the more apart they are."""

SLICE_S, LONG_SLICE_S = 1e-3, 1e-2
"""Of threads that answer and begin, and of those that compute. A thread that wakes up with a
shorter slice than the one that runs takes its place at once, not at the next tick of the scheduler
(1 to 10 ms), and then keeps it until its slice is over: a few answers take less."""

SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
"""Numbers of the system call, which Python has no function for."""

RESET_ON_FORK = 1
"""Flag: processes and threads started from here have ordinary slices."""

HEAD = struct.Struct("=IIQiIQQQ")
"""``struct sched_attr``, first version: size, policy, flags, nice, priority, runtime, deadline,
period; `runtime` is the slice of an ordinary thread in nanoseconds (since Linux 6.12)."""


def answer_first() -> None:
    """Let this thread take a processor as soon as it wakes up; without effect on older kernels."""
    _take_slices(SLICE_S, ANSWERING)
    _take_slices(SLICE_S)


def send_first() -> None:
    """Let this thread, a load client's, run before all ordinary ones: clients have own machines."""
    if _ordinary():
        answer_first()  # where only root may do what follows
        with suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


def compute_behind() -> None:
    """Let this process compute when those that answer have nothing to do, but begin at once."""
    os.nice(NICENESS)
    _take_slices(SLICE_S)


@contextmanager
def computing() -> Iterator[None]:
    """Long slices of time, which threads that wake up break off."""
    os.sched_yield()  # first goes on who was broken off as this thread woke up
    _take_slices(LONG_SLICE_S)
    try:
        yield
    finally:
        _take_slices(SLICE_S)


def _take_slices(seconds: float, nice: int | None = None) -> None:
    """Set this thread's slice of time, and its niceness where that is given and allowed."""
    number = SCHED_SETATTR.get(platform.machine())
    if not _ordinary() or number is None:
        return
    nice = os.getpriority(os.PRIO_PROCESS, 0) if nice is None else nice
    slice_ns = int(seconds * 1e9)
    given = HEAD.pack(HEAD.size, os.SCHED_OTHER, RESET_ON_FORK, nice, 0, slice_ns, 0, 0)
    ctypes.CDLL(None).syscall(number, 0, given, 0)


def _ordinary() -> bool:
    """Whether nobody has chosen another policy for this thread."""
    return platform.system() == "Linux" and not (os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK)
