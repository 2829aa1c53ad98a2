"""Worker programs: what a worker process executes, and the orders that it takes.

A program is a class, named by where it is (``"package.module:Class"``). Its orders are the methods
marked with `order`; their arguments and answers are plain data, arrays and the dataclasses that it
lists. A wing defines its own; the runtime knows none of them but placed steps, its default:

    class Mover(WorkerProgram):
        messages = (Transfer, Sent)

        @order("sending samples")
        def send(self, transfers: tuple[Transfer, ...]) -> Sent: ...

One worker takes one order at a time. Each frame is one message (`connections.channel`, `codec`):

    coordinator                                        worker process
         | <------------ ("ok", None) ------------------- |   started, and the program is made
         | ----- ("send", (transfers,)) ----------------> |   an order: name, arguments
         | <------------ ("ok", Sent(...)) -------------- |   its answer
         | ----- ("send", ...) -------------------------> |
         | <------------ ("error", traceback) ----------- |   it raised; the process ends
         | ----- ("stop", ()) --------------------------> |   the process ends

No answer is a third outcome: the process was killed, was stopped, or waits for one that was. The
caller finds out by the process's sentinel, by its state and by a time limit (`limits`).

A worker's side of files that travel in orders, where it shares no disk with the caller.

What a worker keeps has no name in any folder: nothing of it is left, however the worker ends.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, TypeVar

from placewright.errors import RunError
from placewright.runtime.connections.channel import Codec
from placewright.runtime.emulation import ShapedLink
from placewright.runtime.host import Host
from placewright.runtime.messages.layout import Driven, Layout
from placewright.runtime.scratch import Scratch
from placewright.runtime.specs import WorkerSpec

if TYPE_CHECKING:
    from placewright.runtime.worker import Worker


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
    """

    messages: ClassVar[tuple[type, ...]] = ()
    noun: ClassVar[str] = "device"
    listens: ClassVar[bool] = False
    uses_torch: ClassVar[bool] = True

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
