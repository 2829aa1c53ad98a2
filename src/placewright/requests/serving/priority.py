"""What answers clients gets a processor before what computes, on the machine that both share."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress

NICENESS = 10
"""Of processes that compute batches, inherited by the threads of their runtime."""

SLICE_S, LONG_SLICE_S = 1e-3, 1e-2
"""Of threads that answer and begin, and of those that compute. A thread that wakes up with a
shorter slice than the one that runs takes its place at the next tick of the scheduler (1 to 10 ms)
at the latest, and then keeps it until its slice is over: a few answers take less."""

SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
"""Numbers of the system call, which Python has no function for."""

RESET_ON_FORK = 1
"""Flag: processes and threads started from here have ordinary slices."""

HEAD = struct.Struct("=IIQiIQQQ")
"""``struct sched_attr``, first version: size, policy, flags, nice, priority, runtime, deadline,
period; `runtime` is the slice of an ordinary thread in nanoseconds (since Linux 6.12)."""


def answer_first() -> None:
    """Let this thread take a processor as soon as it wakes up: it never computes for long.

    In real time where that is allowed (root), for a thread that wakes up then waits for no tick;
    else with short slices, without effect on kernels before 6.12.
    """
    if _ordinary():
        _take_slices(SLICE_S)
        with suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def compute_behind() -> None:
    """Let this process compute when those that answer have nothing to do, but begin at once."""
    os.nice(NICENESS)
    answer_first()


@contextmanager
def computing() -> Iterator[None]:
    """Compute as an ordinary thread, in long slices, which threads that wake up break off."""
    if not _ordinary():  # somebody chose its policy
        yield
        return
    _take_slices(LONG_SLICE_S)
    os.sched_yield()  # first goes on who was broken off as this thread woke up
    try:
        yield
    finally:
        answer_first()


def _take_slices(seconds: float) -> None:
    """Make this thread an ordinary one with such slices of time."""
    nice, slice_ns = os.getpriority(os.PRIO_PROCESS, 0), int(seconds * 1e9)
    attributes = HEAD.pack(HEAD.size, os.SCHED_OTHER, RESET_ON_FORK, nice, 0, slice_ns, 0, 0)
    number = SCHED_SETATTR.get(platform.machine())
    if number is None or ctypes.CDLL(None).syscall(number, 0, attributes, 0):
        # In any case not in real time, in which nobody else would get this processor.
        os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))


def _ordinary() -> bool:
    """Whether nobody else has chosen another policy for this thread."""
    if platform.system() != "Linux":
        return False
    policy = os.sched_getscheduler(0)
    ours = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
    return policy == ours or not policy & ~os.SCHED_RESET_ON_FORK
