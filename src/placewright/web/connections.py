"""`ClientConnection`: uvicorn's HTTP connection with limits that a slow or hostile client meets.

uvicorn limits neither the time nor the size of a request's head, nor the time in which a client
reads its answer: connections of clients that do nothing would stay, until there are too many.

    head (request line and headers)   HEAD_BYTES, HEAD_S     431, 408
    body                              `placewright.web.refusals`
    answer that the client reads      READ_S                 the connection is broken off
    connections                       CONNECTIONS            503, Retry-After
    beyond, for health alone          RESERVED, RESERVED_S   503, Retry-After

Thousands of connections may come or end within a moment. A protocol takes some 100 microseconds to
make, so none is made before its client sends something:

    listening socket --accept--> silent sockets, in an epoll --readable--> ClientConnection
                  ACCEPTED_AT_ONCE                         READ_AT_ONCE, in a turn of the loop

A silent socket takes some 10 microseconds to accept and to close. Closing a protocol takes some 70,
so idle ones are closed `CLOSED_AT_ONCE` in a turn, and others are answered in between.

Where there are too many connections, silent ones give way, and health is still answered: the newest
connections beyond stay until they have asked for it, so that a supervisor does not take a busy
server for a dead one.
"""

from __future__ import annotations

import asyncio
import json
import resource
import select
import socket
import ssl
from asyncio import AbstractEventLoop, TimerHandle, Transport
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from placewright.web.refusals import PRESENCE, Presence

CONNECTIONS = 2048

RESERVED, RESERVED_S = 128, 1.0
HEALTH = (b"/v2/health/", b"/api/v1/health")

OTHER_FILES = 64
"""Open files of the server that are no connections: workers' pipes, the log."""

LAST_S = 0.3
"""From the end of the server until a connection is closed on which no answer is under way: a
request may be on its way."""

LOOK_S = 0.02
"""Later it is closed at last, if nothing was read until then."""

ACCEPTED_AT_ONCE, READ_AT_ONCE, CLOSED_AT_ONCE = 128, 32, 64
"""A few milliseconds each."""

SWEEP_S = 0.1
"""Between two looks for silent connections whose time is over."""

NO_FILES_S = 0.1
"""Until connections are accepted again where the system gives no more files."""

HEAD_BYTES = 1 << 16
HEAD_S = 10.0

READ_S = 30.0
"""From when an answer has to wait for its client until the client has read all of it."""


def allow_files(beside: int = 0) -> None:
    """Let this process open as many files as all connections need, where it may.

    `beside`: connections of another port.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS + RESERVED + OTHER_FILES + beside
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def most_connections(beside: int = 0) -> int:
    """`CONNECTIONS`, or fewer where the system does not let this process open so many files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return CONNECTIONS
    return min(CONNECTIONS, max(1, soft - RESERVED - OTHER_FILES - beside))


def connections_beside(wanted: int) -> int:
    """Those of another port: `wanted`, or a quarter of the files that this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft // 4))


class ClientConnection(HttpToolsProtocol):
    """One client's connection; see the module."""

    _ended: ClassVar[WeakKeyDictionary[AbstractEventLoop, deque[ClientConnection]]] = (
        WeakKeyDictionary()
    )
    """Idle ones whose client has ended them, by the loop that they belong to."""

    def __init__(self, acceptor: Acceptor, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._acceptor, self.presence = acceptor, Presence()
        self._reserved = False
        self._heads = self._head_bytes = 0
        self._head_limit: TimerHandle | None = None
        self._read_limit: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Refuse one too many; wait for a head."""
        super().connection_made(transport)
        # `pause_writing` whenever a byte is left. Over TLS uvloop would never resume then: there it
        # is left at its default, 64 KiB that are not read.
        if transport.get_extra_info("sslcontext") is None:
            transport.set_write_buffer_limits(high=0)
        self._reserved = self._acceptor.joined(self)
        self._expect_head()

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more; whether the connection stays open for the moment."""
        busy = self.cycle is not None and not self.cycle.response_complete
        if busy or self.transport.get_extra_info("sslcontext") is not None:
            return False
        ended = self._ended.setdefault(self.loop, deque())
        ended.append(self)
        if len(ended) == 1:
            self.loop.call_soon(_close_some, self.loop, ended)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the limits."""
        self._end_head_limit()
        self._end_read_limit()
        self._acceptor.asked(self)
        super().connection_lost(exc)
        self.presence.leave()

    def on_headers_complete(self) -> None:
        """A head has ended; one that is too long may have come in one piece."""
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > HEAD_BYTES:
            self._head_bytes = size
            raise ValueError("the head is too long")  # `send_400_response` follows
        self._heads += 1
        self._head_bytes = 0
        self._end_head_limit()
        self._acceptor.asked(self)
        if self._reserved and not self.url.startswith(HEALTH):
            if not self._acceptor.displace():
                self.refuse_as_full()
                return
            self._reserved = False
        self.scope["extensions"] = {PRESENCE: {"client": self.presence}}
        super().on_headers_complete()
        if self._reserved:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """A piece of a body, which nobody reads where the request was refused at once."""
        if self.cycle is not None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """A whole request is here; read on, which is how it is seen that the client leaves."""
        if self.cycle is not None:
            super().on_message_complete()
            if not self.pipeline:
                self.flow.resume_reading()

    def shutdown(self) -> None:
        """End the connection once it is idle; a request that is on its way is answered."""
        if self.cycle is None or self.cycle.response_complete:
            self.loop.call_later(LAST_S, self._end_if_idle, True)
        else:
            self.cycle.keep_alive = False

    def _end_if_idle(self, look_again: bool) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
        elif look_again:  # a loop that was kept waiting calls timers before it reads what has come
            self.loop.call_later(LOOK_S, self._end_if_idle, False)
        else:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Count what belongs to a head that has not ended."""
        if self.transport.is_closing():
            return
        # One piece may hold the end of a body, whole requests and the beginning of a head.
        before, in_body = self._heads, self._body_goes_on()
        super().data_received(data)
        in_body = in_body or self._body_goes_on()  # its last piece leaves none to come
        if self._heads > before or in_body or self.transport.is_closing():
            return
        self._head_bytes += len(data)
        if self._head_bytes > HEAD_BYTES:
            self.send_400_response("")
        elif self._head_limit is None:
            self._expect_head()

    def pause_writing(self) -> None:
        """The client does not read as fast as it is answered."""
        super().pause_writing()
        self._read_limit = self.loop.call_later(READ_S, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has read everything."""
        self._end_read_limit()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """What the parser refuses, or a head that is too long."""
        if self._head_bytes > HEAD_BYTES:
            reason = f"the request line and headers are more than {HEAD_BYTES} bytes"
            self.refuse("431 Request Header Fields Too Large", reason)
        else:
            self.refuse("400 Bad Request", msg)

    def refuse(self, status: str, reason: str, *headers: str) -> None:
        """Answer without the application, and close the connection."""
        self.transport.write(_refusal(status, reason, *headers))
        self.transport.close()

    def refuse_as_full(self) -> None:
        """There are too many connections, and this one does not ask for health."""
        self.transport.write(FULL)
        self.transport.close()

    def _body_goes_on(self) -> bool:
        return self.cycle is not None and self.cycle.more_body

    def _expect_head(self) -> None:
        limit_s = min(HEAD_S, RESERVED_S) if self._reserved else HEAD_S
        self._head_limit = self.loop.call_later(limit_s, self._late_head)

    def _late_head(self) -> None:
        self._head_limit = None
        if self.transport.is_closing():
            return
        if self._reserved:
            self.refuse_as_full()
        else:
            self.refuse(*_late())

    def _end_head_limit(self) -> None:
        if self._head_limit is not None:
            self._head_limit.cancel()
            self._head_limit = None

    def _end_read_limit(self) -> None:
        if self._read_limit is not None:
            self._read_limit.cancel()
            self._read_limit = None


def _refusal(status: str, reason: str, *headers: str) -> bytes:
    """An answer without the application, after which the connection is closed."""
    body = json.dumps({"error": reason, "code": "malformed"}).encode()
    lines = [
        f"HTTP/1.1 {status}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "connection: close",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


FULL = _refusal("503 Service Unavailable", "too many connections", "retry-after: 1")


def _late() -> tuple[str, str]:
    """Status and reason for a client that has sent no request in time."""
    return "408 Request Timeout", f"no request came within {HEAD_S:g} s"


def _close_some(loop: AbstractEventLoop, ended: deque[ClientConnection]) -> None:
    """Close connections that their clients have ended, and others in the next turns of the loop."""
    for _ in range(min(CLOSED_AT_ONCE, len(ended))):
        ended.popleft().transport.close()
    if ended:
        loop.call_soon(_close_some, loop, ended)


class Acceptor:
    """The door of one server: connections that have not asked yet, and how many there are.

    Parameters
    ----------
    listening
        It is closed at the end.
    make
        Another connection's protocol, for this object.
    tls
        With which connections are made; ``None``: without.
    connections
        Those of the server that have sent something.
    beside
        Connections that another port of this process may have.
    """

    def __init__(
        self,
        listening: socket.socket,
        make: Callable[[Acceptor], ClientConnection],
        tls: ssl.SSLContext | None,
        connections: Collection[Any],
        beside: int = 0,
    ) -> None:
        self._listening, self._make, self._beside = listening, make, beside
        self._tls, self._connections = tls, connections
        self._loop, self._readable = asyncio.get_running_loop(), select.epoll()
        self._silent: dict[int, tuple[socket.socket, float]] = {}  # by file, oldest first; since
        self._opening: set[ClientConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._unasked: dict[ClientConnection, None] = {}  # a head has begun; oldest first
        self._beyond: deque[ClientConnection] = deque()  # beyond the limit; none has asked yet
        self._sweeping, self._ending = False, False
        listening.setblocking(False)
        self._loop.add_reader(listening, self._accept)
        self._loop.add_reader(self._readable, self._read)

    @property
    def most(self) -> int:
        """How many connections there may be."""
        return most_connections(self._beside)

    @property
    def full(self) -> bool:
        """Whether there are too many connections, silent ones among them."""
        count = len(self._silent) + len(self._opening) + len(self._connections)
        return count > self.most

    def joined(self, connection: ClientConnection) -> bool:
        """A connection has its transport; whether it is one too many."""
        self._opening.discard(connection)
        if self._ending:
            connection.shutdown()
        if not self.full:
            self._unasked[connection] = None
            return False
        if len(self._beyond) >= RESERVED:
            self._beyond.popleft().refuse_as_full()
        self._beyond.append(connection)
        return True

    def asked(self, connection: ClientConnection) -> None:
        """It has sent a whole head, or has left."""
        self._unasked.pop(connection, None)
        with suppress(ValueError):
            self._beyond.remove(connection)

    def displace(self) -> bool:
        """Send the oldest connection away that has not asked, for one that has; whether one has."""
        if self._silent and len(self._opening) + len(self._connections) <= self.most:
            self._refuse(next(iter(self._silent)), FULL)
            return True
        other = next(iter(self._unasked), None)
        if other is None:
            return False
        del self._unasked[other]
        other.refuse_as_full()
        return True

    async def end(self) -> None:
        """Accept no more; for a moment take what those send that are here."""
        self._ending = True
        self._loop.remove_reader(self._listening)
        self._listening.close()
        if self._silent:
            await asyncio.sleep(LAST_S)
            while self._read():  # a loop that was kept waiting calls timers before it reads
                await asyncio.sleep(0)
        for number in list(self._silent):
            self._refuse(number, b"")
        self._loop.remove_reader(self._readable)
        self._readable.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LAST_S)

    def _accept(self) -> None:
        """Accept some; others in the next turns of the loop."""
        now_s = self._loop.time()
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connection, _ = self._listening.accept()
            except BlockingIOError:
                break
            except ConnectionAbortedError:
                continue
            except OSError:  # no more files, or no memory
                self._loop.remove_reader(self._listening)
                self._loop.call_later(NO_FILES_S, self._accept_again)
                break
            connection.setblocking(False)
            self._silent[connection.fileno()] = connection, now_s
            self._readable.register(connection, select.EPOLLIN)
        self._read()
        while len(self._silent) > RESERVED and self.full:
            self._refuse(next(iter(self._silent)), FULL)
        if self._silent and not self._sweeping:
            self._sweeping = True
            self._loop.call_later(SWEEP_S, self._sweep)

    def _accept_again(self) -> None:
        if not self._ending:
            self._loop.add_reader(self._listening, self._accept)

    def _read(self) -> bool:
        """Make connections of some silent ones that can be read; whether there were any."""
        readable = self._readable.poll(0, READ_AT_ONCE)
        for number, _ in readable:
            connection = self._taken(number)
            try:
                left = not connection.recv(1, socket.MSG_PEEK)
            except OSError:
                left = True
            if left:
                connection.close()
                continue
            task = self._loop.create_task(self._open(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return bool(readable)

    async def _open(self, connection: socket.socket) -> None:
        made, limit_s = self._make(self), None if self._tls is None else HEAD_S
        self._opening.add(made)
        try:
            await self._loop.connect_accepted_socket(
                lambda: made, connection, ssl=self._tls, ssl_handshake_timeout=limit_s
            )
        except OSError:  # it has left, or does not speak TLS
            connection.close()
        finally:
            self._opening.discard(made)

    def _sweep(self) -> None:
        """Send away who has been silent for too long."""
        now_s, self._sweeping = self._loop.time(), False
        while self._silent:
            number, (_, since_s) = next(iter(self._silent.items()))
            if now_s - since_s >= min(HEAD_S, RESERVED_S) and self.full:
                self._refuse(number, FULL)
            elif now_s - since_s >= HEAD_S:
                self._refuse(number, _refusal(*_late()))
            else:
                self._sweeping = True
                self._loop.call_later(SWEEP_S, self._sweep)
                break

    def _refuse(self, number: int, answer: bytes) -> None:
        """Close a silent connection; over TLS without an answer, which it could not read."""
        connection = self._taken(number)
        if self._tls is None and answer:
            with suppress(OSError):
                connection.send(answer)
        connection.close()

    def _taken(self, number: int) -> socket.socket:
        """A silent connection, which is not waited for any more."""
        self._readable.unregister(number)
        return self._silent.pop(number)[0]


class Server(uvicorn.Server):
    """uvicorn's server on a socket that listens; it leaves signals to its caller.

    `beside`: connections that another port of this process may have. `options`: of
    `uvicorn.Config`.
    """

    def __init__(
        self, application: Any, listening: socket.socket, *, beside: int = 0, **options: Any
    ) -> None:
        fixed: dict[str, Any] = {"http": ClientConnection, "ws": "none", "lifespan": "off"}
        silent: dict[str, Any] = {"log_level": "error", "access_log": False, "server_header": False}
        super().__init__(uvicorn.Config(application, **fixed, **silent, **options))
        self._listening, self._beside = listening, beside

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections."""
        await super().startup(sockets=[])
        self._acceptor = Acceptor(
            self._listening,
            self._connection,
            self.config.ssl,
            self.server_state.connections,
            self._beside,
        )

    def _connection(self, acceptor: Acceptor) -> ClientConnection:
        return ClientConnection(
            acceptor,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what has come, and accept no more."""
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await self._acceptor.end()
        await super().shutdown(sockets=[])
