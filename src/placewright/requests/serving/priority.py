"""What answers clients gets a processor before what computes, on the machine that both share."""

from __future__ import annotations

import ctypes
import os
import platform
import struct

NICENESS = 10
"""Of processes that compute batches; inherited by the threads of their runtime."""

SLICE_S = 1e-4
"""Shortest that Linux takes. A thread that wakes up with a shorter slice than the one that runs
takes its place at once, not at the next tick of the scheduler (1 to 10 ms)."""

SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
"""Numbers of the system call, which Python has no function for."""

RESET_ON_FORK = 1
"""Flag: processes and threads started from here have ordinary slices."""

HEAD = struct.Struct("=IIQiIQQQ")
"""``struct sched_attr``, first version: size, policy, flags, nice, priority, runtime, deadline,
period; `runtime` is the slice of an ordinary thread in nanoseconds (since Linux 6.12)."""


def answer_first() -> None:
    """Let this thread take a processor as soon as it wakes up; without effect on older kernels."""
    number = SCHED_SETATTR.get(platform.machine())
    if platform.system() != "Linux" or number is None or os.sched_getscheduler(0):
        return  # another policy than the ordinary one was chosen by somebody
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    given = HEAD.pack(HEAD.size, os.SCHED_OTHER, RESET_ON_FORK, nice, 0, int(SLICE_S * 1e9), 0, 0)
    ctypes.CDLL(None).syscall(number, 0, given, 0)


def compute_behind() -> None:
    """Let this process compute when those that answer have nothing to do."""
    os.nice(NICENESS)
