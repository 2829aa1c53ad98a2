"""The worker process: it takes its place on the machine and carries out a program's orders.

It ends when it gets the order to, when an order fails, or when the process that started it is gone.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import signal
import socket
import threading
import traceback
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

from placewright.runtime.connections.channel import Channel
from placewright.runtime.program import WorkerProgram, load_program
from placewright.runtime.specs import WorkerSpec

_ARENA_MAX = -8
"""Of ``mallopt(3)``."""


@dataclass(frozen=True, slots=True)
class Worker:
    """What a program finds in its process.

    `listening`: the port at `WorkerSpec.address`, where the caller holds it open.
    """

    spec: WorkerSpec
    listening: socket.socket | None = None

    def port(self) -> socket.socket:
        """The port on which other workers reach this one; on a testbed it is opened here."""
        assert self.spec.address is not None
        return self.listening or socket.create_server(self.spec.address)


def worker_main(
    spec: WorkerSpec, orders: Channel, listening: socket.socket | None, lifeline: Connection
) -> None:
    """Entry point of the process; the frames are drawn in `placewright.runtime.program`."""
    # Ctrl-C goes to all processes of a terminal: who gives the orders decides what ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    share_one_arena()
    end_with_parent(lifeline)
    try:
        program = start_program(spec, listening)
        orders.send(("ok", None))
        while (order := orders.recv())[0] != "stop":
            orders.send(("ok", program.obey(*order)))
    except BaseException:
        # Of an order, which may have connections of its own; where the caller is gone, nobody
        # reads it.
        with suppress(OSError):
            orders.send(("error", traceback.format_exc()))
    finally:
        # Not by an exception: threads of gloo and NCCL may wait for others that are gone, and would
        # keep the process from ending.
        os._exit(0)


def start_program(spec: WorkerSpec, listening: socket.socket | None = None) -> WorkerProgram:
    """Set this process up as `spec` says and make its program.

    What is imported by then stays until the process ends. Garbage collections skip it from here on:
    with PyTorch's 170,000 objects each would take 85 ms, and one is due whenever a part of a model
    is loaded.
    """
    if spec.handle is not None:
        spec.handle.enter()
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        if spec.handle is not None:
            os.environ[name] = spec.handle.interface
        elif spec.interface:
            os.environ.setdefault(name, spec.interface)
    if spec.cores:
        os.sched_setaffinity(0, spec.cores)
    program = load_program(spec.program)(Worker(spec, listening))
    gc.freeze()
    return program


def share_one_arena() -> None:
    """Let threads that begin from now on allocate from the main thread's arena of glibc.

    In an arena of its own a thread gives back what it frees, whatever it is told to keep, and pays
    a page fault for every 4 KiB of every activation: streams are executed by such a thread.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)


def end_with_parent(lifeline: Connection) -> None:
    """Exit as soon as the other end of the lifeline is closed, whatever the process does then.

    A thread alone is not enough: some of torch's waits, for the file that workers meet in for one,
    let no other thread of Python run. So the kernel is asked to send a signal, where it can.
    """

    def end() -> None:
        with suppress(EOFError, OSError):
            lifeline.recv()
        os._exit(1)

    with suppress(OSError, AttributeError):
        # SIGKILL in place of SIGIO, sent when the pipe becomes readable: at its end, as nothing is
        # ever written.
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)
    threading.Thread(target=end, daemon=True).start()
    if lifeline.poll():  # closed before the thread listened
        os._exit(1)
