"""Worker programs: what a worker process executes, its orders, and the process itself.

A program is a class, named by where it is (``"package.module:Class"``). Its orders are the methods
marked with `order`; their arguments and answers are plain data, arrays and the dataclasses that it
lists. A wing defines its own; the runtime knows none of them but placed steps, its default:

    class Mover(WorkerProgram):
        messages = (Transfer, Sent)

        @order("sending samples")
        def send(self, transfers: tuple[Transfer, ...]) -> Sent: ...

One worker takes one order at a time. Each frame is one message (`Channel`, `Codec`):

    coordinator                                        worker process
         | <------------ ("ok", None) ------------------- |   started, and the program is made
         | ----- ("send", (transfers,)) ----------------> |   an order: name, arguments
         | <------------ ("ok", Sent(...)) -------------- |   its answer
         | ----- ("send", ...) -------------------------> |
         | <------------ ("error", traceback) ----------- |   it raised; the process ends
         | ----- ("stop", ()) --------------------------> |   the process ends

No answer is a third outcome: the process was killed, was stopped, or waits for one that was. The
caller finds out by the process's sentinel, by its state and by a time limit (`limits`).

Files travel in orders where a worker shares no disk with the caller (`FileTransfer`). What it keeps
has no name in any folder: nothing of it is left, however the worker ends. It ends when it gets the
order to, when an order fails, or when the process that started it is gone.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import signal
import socket
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, ClassVar, TypeVar

from placewright.errors import RunError
from placewright.io.scratch import Scratch
from placewright.runtime.connections import Channel, Codec
from placewright.runtime.emulation import ShapedLink
from placewright.runtime.host import Host
from placewright.runtime.specs import Driven, Layout, WorkerSpec

Method = TypeVar("Method", bound=Callable[..., Any])

_MARK = "order_description"


def order(description: str) -> Callable[[Method], Method]:
    """Mark a method of a program as an order.

    `description`: what a worker does at it, as it goes on after "no answer in time while".
    """

    def mark(method: Method) -> Method:
        setattr(method, _MARK, description)
        return method

    return mark


class WorkerProgram:
    """Base class of what worker processes execute; made once the process is set up.

    Files travel in orders where a worker shares no disk with the caller
    (`placewright.runtime.program`).

    Attributes
    ----------
    messages
        Dataclasses that orders and answers hold.
    noun
        What one worker stands for in error messages.
    listens
        Whether each worker needs a TCP port on which the others reach it.
    uses_torch
        Whether PyTorch is loaded before workers are forked, which then share its memory.
    imports_much
        Whether the program's module is, too: what it imports takes seconds in each process.
    """

    messages: ClassVar[tuple[type, ...]] = ()
    noun: ClassVar[str] = "device"
    listens: ClassVar[bool] = False
    uses_torch: ClassVar[bool] = True
    imports_much: ClassVar[bool] = False

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.files = FileTransfer()

    def obey(self, name: str, arguments: Sequence[Any]) -> Any:
        """Carry out one order and return its answer.

        Raises `RunError`: the program has no order of this name.
        """
        if not hasattr(getattr(type(self), name, None), _MARK):
            raise RunError(
                f"{type(self).__name__} has no order {name!r}",
                hint="install the same version of Placewright on every machine",
            )
        # Marked methods alone: a name from a frame can call nothing else of the object.
        return getattr(self, name)(*arguments)

    @order("receiving a file")
    def begin_file(self) -> str:
        """Make an empty file to be filled; the path under which this process finds it."""
        return self.files.begin()

    @order("receiving a file")
    def append_file(self, piece: bytes) -> None:
        """Add the next piece to it."""
        self.files.append(piece)

    @order("writing a file")
    def write_file(self, name: str) -> str:
        """Let the order `name` write a file, to be read in pieces; why it cannot, if it cannot."""
        return self.files.pack(lambda path: str(self.obey(name, (path,))))

    @order("sending a file")
    def read_file(self) -> bytes:
        """The next piece of what was written; empty after the last."""
        return self.files.take()


@cache
def load_program(name: str) -> type[WorkerProgram]:
    """The program of that name.

    The name comes from a process that started this one or has proved to know the run's secret.
    Still, it can name nothing but a class that was written as a worker program.

    Raises `RunError` where there is no such program here.
    """
    module, _, attribute = name.partition(":")
    try:
        found = getattr(import_module(module), attribute, None)
    except ImportError as error:
        raise _no_program(name, str(error)) from error
    if not (isinstance(found, type) and issubclass(found, WorkerProgram)):
        raise _no_program(name, "that is no WorkerProgram")
    return found


def describe_order(program: str, name: str) -> str:
    """What a worker does at an order, as it goes on after "while"."""
    method = getattr(load_program(program), name, None)
    return str(getattr(method, _MARK, f"executing {name!r}"))


@cache
def codec_of(program: str) -> Codec:
    """What messages between a coordinator and workers of this program may hold."""
    return Codec(*_CONTROL, *load_program(program).messages)


_CONTROL = (Host, WorkerSpec, Layout, Driven, ShapedLink)

CONTROL = Codec(*_CONTROL)
"""Messages between the coordinator and the agents that start workers."""


def _no_program(name: str, why: str) -> RunError:
    return RunError(
        f"there is no worker program {name!r}",
        by=why,
        hint="install the same version of Placewright on every machine",
    )


PIECE_BYTES = 16 << 20
"""A few of them are in memory at a time."""


class FileTransfer:
    """One file that comes in, and one that goes out."""

    def __init__(self) -> None:
        self._incoming: IO[bytes] | None = None
        self._outgoing: IO[bytes] | None = None

    def begin(self) -> str:
        """An empty file that comes in; the path under which this process finds it."""
        self._incoming = tempfile.TemporaryFile(prefix="placewright-")  # noqa: SIM115
        return f"/proc/self/fd/{self._incoming.fileno()}"

    def append(self, piece: bytes) -> None:
        """The next piece of what comes in."""
        assert self._incoming is not None
        self._incoming.write(piece)
        self._incoming.flush()

    def pack(self, write: Callable[[str], str]) -> str:
        """Keep what `write` writes into the path that it is given, to be taken away.

        Returns
        -------
        str
            Why it cannot be written; empty if it is.
        """
        try:
            with Scratch() as folder:
                path = Path(folder) / "file"
                why = write(str(path))
                if not why:
                    # Opened before the folder goes: the file lives on without a name.
                    self._outgoing = path.open("rb")
        except OSError as error:
            return str(error)
        return why

    def take(self) -> bytes:
        """The next piece of what goes out; empty after the last."""
        piece = b"" if self._outgoing is None else self._outgoing.read(PIECE_BYTES)
        if not piece and self._outgoing is not None:
            self._outgoing.close()  # has no name any more: now the disk has its room back
            self._outgoing = None
        return piece


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
