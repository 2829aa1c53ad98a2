"""`ServerProcess`: the worker process of one server, driven from an asyncio loop.

The process's pipe and sentinel are looked at through an epoll of their own: uvloop would make them
non-blocking, and large messages would be cut off.

One order is under way at a time. The process can end in three ways: it is killed or crashes, which
its sentinel shows at once; it raises an error; or it is stopped (SIGSTOP) or silent, which
`ServerProcess.check` finds by its state and by a time limit. Each calls `on_loss` once, after
which nothing that this process still sends is read: no request is answered twice.
"""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from placewright.cluster.cluster import Cluster, Device
from placewright.errors import RunError
from placewright.requests.serving.program import VARIANT_SERVER
from placewright.runtime import limits
from placewright.runtime.engines.local import Local, LocalGroup

if TYPE_CHECKING:
    from placewright.testbed.node_handle import NodeHandle

STOPPED_S = 0.5
"""A server that is stopped for longer is replaced."""

SMALL_BYTES = 1 << 15
"""Orders of that size go out at once; larger ones by a thread."""

_STARTING = ThreadPoolExecutor(1, thread_name_prefix="placewright-start")
"""Starts processes one after another: that changes ``__main__`` for a moment."""


class ServerProcess:
    """One server's process.

    Parameters
    ----------
    speed
        Relative to this machine; on engine ``local`` a slower server waits.
    handle
        The node of a testbed that it works on.
    on_loss
        Called with the reason when the process is gone or was given up.
    """

    def __init__(
        self,
        name: str,
        speed: float,
        handle: NodeHandle | None,
        on_loss: Callable[[str], None],
    ) -> None:
        self.name, self.speed, self.handle = name, speed, handle
        self._on_loss = on_loss
        device = Device(name, node=name, speed=min(speed, 1.0))
        handles = None if handle is None else {name: handle}
        self._engine = Local(handles, pin=False)
        self._cluster = Cluster((device,), (), f"server {name}")
        self._group: LocalGroup | None = None
        self._answer: asyncio.Future[Any] | None = None
        self._since_s = self._limit_s = self._looked_s = self._stopped_s = 0.0
        self._poll: select.epoll

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        return self._group.processes[0].pid if self._group is not None else None

    async def start(self, models: Mapping[str, bytes]) -> None:
        """Start the process and load these variants.

        Raises
        ------
        RunError
            It does not start, or cannot load one of them.
        """
        loop = asyncio.get_running_loop()
        group = self._engine.group(self._cluster, VARIANT_SERVER)
        try:
            await loop.run_in_executor(_STARTING, group.launch)
        except BaseException:
            group.close()
            raise
        self._group = group
        self._poll = select.epoll()
        self._poll.register(group.connections[0].fileno(), select.EPOLLIN)
        self._poll.register(group.watched(0), select.EPOLLIN)
        started = self._expect(limits.patience(limits.START_S))
        loop.add_reader(self._poll.fileno(), self._ready)
        await started
        for key, model in models.items():
            await self.order("load", key, model, limit_s=limits.order_s(len(model)))

    async def order(self, name: str, *arguments: Any, limit_s: float) -> Any:
        """Give an order and wait for its answer.

        Raises
        ------
        RunError
            The process is lost, or takes longer than `limit_s`.
        """
        return await self.give(name, *arguments, limit_s=limit_s)

    def give(self, name: str, *arguments: Any, limit_s: float) -> asyncio.Future[Any]:
        """Give an order; the future of its answer, or of a `RunError`."""
        if self._group is None:
            raise RunError("the server has no process", where=f"server {self.name!r}")
        answer = self._expect(limit_s)
        channel = self._group.connections[0]
        data = channel.codec.pack((name, arguments))
        if len(data) <= SMALL_BYTES:
            with suppress(OSError):  # one that died: the sentinel shows it
                channel.send_packed(data)
        else:
            asyncio.get_running_loop().run_in_executor(None, _send, channel.duplicate(), data)
        return answer

    def check(self) -> None:
        """Give the process up where it is stopped, or owes an answer for too long."""
        now_s = time.monotonic()
        passed_s, self._looked_s = min(now_s - self._looked_s, 1.0), now_s
        if self._group is None:
            return
        self._stopped_s = self._stopped_s + passed_s if self._group.stopped(0) else 0.0
        if self._stopped_s > STOPPED_S:
            self._lose(f"its process was stopped for {self._stopped_s:.1f} s")
        elif self._answer is not None and now_s - self._since_s > self._limit_s:
            self._lose(f"its process did not answer within {self._limit_s:.1f} s")

    def close(self) -> None:
        """End the process without a word to `on_loss`."""
        group, self._group = self._group, None
        if group is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._poll.fileno())
        self._poll.close()
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_exception(RunError("the server was closed", where=f"server {self.name!r}"))
            answer.exception()  # it may be that nobody waits for it
        _STARTING.submit(group.close)  # takes up to half a second

    def _expect(self, limit_s: float) -> asyncio.Future[Any]:
        assert self._answer is None, "one order at a time"
        self._since_s, self._limit_s = time.monotonic(), limit_s
        self._answer = asyncio.get_running_loop().create_future()
        return self._answer

    def _ready(self) -> None:
        """An answer is there, or the process has ended, or both."""
        assert self._group is not None
        ready = {fd for fd, _ in self._poll.poll(0)}
        if self._group.connections[0].fileno() in ready:
            self._read()
        elif ready:
            self._lose("its process was killed or crashed")

    def _read(self) -> None:
        assert self._group is not None
        try:
            status, value = self._group.receive(0)
        except (EOFError, OSError, RunError):
            self._lose("its process ended")
            return
        if status == "error":
            self._lose(f"its process raised {str(value).strip().splitlines()[-1]}")
            return
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_result(value)

    def _lose(self, reason: str) -> None:
        answer, self._answer = self._answer, None
        self.close()
        if answer is not None and not answer.done():
            answer.set_exception(RunError(reason, where=f"server {self.name!r}"))
            answer.exception()
        self._on_loss(reason)


def _send(channel: Any, data: bytes) -> None:
    """Send a large order; the duplicate may outlive the connection."""
    with suppress(OSError), channel:
        channel.send_packed(data)
