"""`ServerProcess`: the worker process of one server, driven from an asyncio loop.

One order is under way at a time. The process can end in several ways: it is killed or crashes; it
raises an error; it is stopped (SIGSTOP) or silent; or no link leads to it any more. Each calls
`on_loss` once, after which nothing that this process still sends is read: no request is answered
twice. `LocalProcess` is a child of this process; see `ray_workers` for an actor of Ray.

The process's connection and sentinel are looked at through an epoll of their own: uvloop would
make them non-blocking, and large messages would be cut off.
"""

from __future__ import annotations

import asyncio
import select
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from placewright.cluster.cluster import Cluster, Device
from placewright.errors import InputError, RunError
from placewright.requests.serving.models import NotLoaded, ServedModel, program_for
from placewright.requests.serving.priority import answer_first
from placewright.runtime import limits
from placewright.runtime.connections import FrameReader, unheard_s
from placewright.runtime.engines.local import Local, LocalGroup

if TYPE_CHECKING:
    from placewright.testbed.record import NodeHandle

STOPPED_S = 0.5
"""A server that is stopped for longer is replaced."""

FACTORY_S = 600.0
"""Of a factory, which may read or fetch weights of any size."""

SMALL_BYTES, SMALL_OVER_LINKS = 1 << 17, 1 << 15
"""Orders of that size go out at once, since a connection's buffer takes them; larger ones by a
thread."""


class OneByOne(Executor):
    """One thread that the end of Python does not wait for, as it does for those of a pool.

    The start of a process may hang for minutes: where the process is stopped, or its fork server.
    """

    def __init__(self, name: str) -> None:
        self._works: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._name = name
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """See `Executor.submit`."""
        future: Future[Any] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work(*arguments, **named))
                except BaseException as error:
                    future.set_exception(error)

        self._works.put(run)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        return future

    def _run(self) -> None:
        while True:
            self._works.get()()


_STARTING = OneByOne("placewright-start")
"""Starts processes one after another: that changes ``__main__`` for a moment."""

_ENDING = OneByOne("placewright-end")
"""Cleans up after processes that were killed; a start that hangs does not hold that up."""

_SENDING = ThreadPoolExecutor(32, "placewright-send", answer_first)


class ServerProcess(ABC):
    """One server's process.

    `speed`: relative to this machine.
    `on_loss`: called with the reason when the process is gone or was given up.
    """

    def __init__(self, name: str, speed: float, on_loss: Callable[[str], None]) -> None:
        self.name, self.speed = name, speed
        self._on_loss = on_loss
        self._answer: asyncio.Future[Any] | None = None
        self._since_s = self._limit_s = self._looked_s = self._stopped_s = 0.0

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """Of the process, while there is one."""

    @abstractmethod
    async def start(self, models: Mapping[str, ServedModel]) -> None:
        """Start the process and load these variants.

        Raises
        ------
        InputError
            One of them is no model that runs there.
        RunError
            It does not start, or is lost.
        """

    @abstractmethod
    def give(self, name: str, *arguments: Any, limit_s: float) -> asyncio.Future[Any]:
        """Give an order; the future of its answer, or of a `RunError`."""

    @abstractmethod
    def failure(self) -> str:
        """Why this process can no longer be used, as far as it can be seen from here; or empty."""

    @abstractmethod
    def end(self) -> None:
        """End the process now; nothing more that it sends is read. Twice is fine."""

    async def order(self, name: str, *arguments: Any, limit_s: float) -> Any:
        """Give an order and wait for its answer.

        Raises
        ------
        RunError
            The process is lost, or takes longer than `limit_s`.
        """
        return await self.give(name, *arguments, limit_s=limit_s)

    async def load(self, models: Mapping[str, ServedModel]) -> None:
        """Load variants; errors as `order`, and one more.

        Raises
        ------
        InputError
            One of them is no model that runs there.
        """
        for key, model in models.items():
            made = model.kind == "factory"
            limit_s = limits.patience(FACTORY_S) if made else limits.order_s(len(model))
            failed = await self.order("load", key, model, limit_s=limit_s)
            if isinstance(failed, NotLoaded):
                where = ", ".join(filter(None, (f"server {self.name!r}", failed.where)))
                raise InputError(failed.what, where=where, by=failed.by, hint=failed.hint)

    def check(self) -> None:
        """Give the process up where it cannot be used any more, or owes an answer for too long."""
        if self.pid is None:
            return
        failure = self.failure()
        if failure:
            self.lose(failure)
        elif self._answer is not None and time.monotonic() - self._since_s > self._limit_s:
            self.lose(f"its process did not answer within {self._limit_s:.1f} s")

    def stopped(self, now: bool) -> str:
        """Why a process that is stopped, or not, can no longer be used; or empty."""
        now_s = time.monotonic()
        # At most a second counts: if this loop was stopped itself, the process need not have been.
        passed_s, self._looked_s = min(now_s - self._looked_s, 1.0), now_s
        self._stopped_s = self._stopped_s + passed_s if now else 0.0
        long = self._stopped_s > STOPPED_S
        return f"its process was stopped for {self._stopped_s:.1f} s" if long else ""

    def close(self) -> None:
        """End the process without a call of `on_loss`."""
        self._fail("the server was closed")
        self.end()

    def lose(self, reason: str) -> None:
        """End the process, fail its order, and report the loss."""
        self.end()
        self._fail(reason)
        self._on_loss(reason)

    def expect(self, limit_s: float) -> asyncio.Future[Any]:
        """The future of the next answer."""
        assert self._answer is None, "one order at a time"
        self._since_s, self._limit_s = time.monotonic(), limit_s
        self._answer = asyncio.get_running_loop().create_future()
        return self._answer

    def answered(self, value: Any) -> None:
        """The answer is there."""
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_result(value)

    def _fail(self, reason: str) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_exception(RunError(reason, where=f"server {self.name!r}"))
            answer.exception()  # it may be that nobody waits for it


class LocalProcess(ServerProcess):
    """A process of this machine.

    Parameters
    ----------
    handle
        The node of a testbed that it works on; else a slower server waits.
    caller
        The node of the same testbed from which its orders come, over the links of the testbed.
    program
        What it executes; by default what its variants need.
    """

    def __init__(
        self,
        name: str,
        speed: float,
        on_loss: Callable[[str], None],
        handle: NodeHandle | None = None,
        caller: NodeHandle | None = None,
        program: str | None = None,
    ) -> None:
        super().__init__(name, speed, on_loss)
        self._program = program
        self.handle = handle
        device = Device(name, node=name, speed=min(speed, 1.0))
        handles = None if handle is None else {name: handle}
        self._engine = Local(handles, pin=False, caller=caller)
        self._over_links = caller is not None
        self._cluster = Cluster((device,), (), f"server {name}")
        self._group: LocalGroup | None = None
        self._poll: select.epoll
        self._frames: FrameReader

    @property
    def pid(self) -> int | None:
        """See `ServerProcess.pid`."""
        return self._group.processes[0].pid if self._group is not None else None

    async def start(self, models: Mapping[str, ServedModel]) -> None:
        """See `ServerProcess.start`."""
        loop = asyncio.get_running_loop()
        program = self._program or program_for(models.values())
        group = self._engine.group(self._cluster, program)
        try:
            await loop.run_in_executor(_STARTING, group.launch)
        except BaseException:
            # By the same thread: if this was cancelled, it still starts the process.
            _STARTING.submit(group.close)
            raise
        self._group, self._stopped_s = group, 0.0
        channel = group.connections[0]
        self._frames = FrameReader(channel.fileno())
        self._poll = select.epoll()
        self._poll.register(channel.fileno(), select.EPOLLIN)
        self._poll.register(group.watched(0), select.EPOLLIN)
        started = self.expect(limits.patience(limits.START_S))
        # The epoll can be read when one of its two can: the loop never touches the connection
        # itself.
        loop.add_reader(self._poll.fileno(), self._ready)
        await started
        await self.load(models)

    def give(self, name: str, *arguments: Any, limit_s: float) -> asyncio.Future[Any]:
        """See `ServerProcess.give`."""
        if self._group is None:
            raise RunError("the server has no process", where=f"server {self.name!r}")
        answer = self.expect(limit_s)
        channel = self._group.connections[0]
        data = channel.codec.pack((name, arguments))
        if len(data) <= (SMALL_OVER_LINKS if self._over_links else SMALL_BYTES):
            with suppress(OSError):  # one that died: the sentinel shows it
                channel.send_packed(data)
        else:
            # A duplicate: the connection may be closed, and its number used again, while the thread
            # sends.
            _SENDING.submit(_send, channel.duplicate(), data)
        return answer

    def failure(self) -> str:
        """See `ServerProcess.failure`."""
        assert self._group is not None
        if stopped := self.stopped(self._group.stopped(0)):
            return stopped
        if self._over_links:
            unheard = unheard_s(self._group.connections[0].connection)
            if unheard:
                return f"nothing came over its link for {unheard:.1f} s: it may be cut"
        return ""

    def end(self) -> None:
        """See `ServerProcess.end`."""
        # `pid` is None from now on: checks and orders leave it alone.
        group, self._group = self._group, None
        if group is None:
            return
        asyncio.get_running_loop().remove_reader(self._poll.fileno())
        self._poll.close()
        self._frames.close()
        # At once: a stopped process reads no order to end, and whoever sends to it would wait.
        group.kill()
        _ENDING.submit(group.close)  # takes up to half a second

    def _ready(self) -> None:
        """An answer is there, or the process has ended, or both."""
        assert self._group is not None
        ready = {fd for fd, _ in self._poll.poll(0)}
        # What it sent before it ended is read first; its end is seen next time.
        if self._group.connections[0].fileno() in ready:
            self._read()
        elif ready:
            self.lose("its process was killed or crashed")

    def _read(self) -> None:
        assert self._group is not None
        try:
            data = self._frames.read()
            if data is None:
                return  # the rest of it is still to come
            status, value = self._group.connections[0].codec.unpack(data)
        except OSError as error:
            self.lose(f"its connection is lost: {error.strerror}")
        except (EOFError, RunError):
            self.lose("its process ended")
        else:
            if status == "error":
                self.lose(f"its process raised {str(value).strip().splitlines()[-1]}")
            else:
                self.answered(value)


async def ended(limit_s: float) -> None:
    """Wait until nothing is left to start or clean up, for so long at most."""
    works = [each.submit(lambda: None) for each in (_STARTING, _ENDING)]
    await asyncio.wait([asyncio.wrap_future(work) for work in works], timeout=limit_s)


def _send(channel: Any, data: bytes) -> None:
    """Send a large order; the duplicate may outlive the connection."""
    with suppress(OSError), channel:
        channel.send_packed(data)
