"""`ClientConnection`: uvicorn's HTTP connection with limits that a slow or hostile client meets.

uvicorn limits neither the time nor the size of a request's head, nor the time in which a client
reads its answer: connections of clients that do nothing would stay, until there are too many.

    head (request line and headers)   HEAD_BYTES, HEAD_S     431, 408
    body                              `placewright.web.bodies`
    answer that the client reads      READ_S                 the connection is broken off
    connections                       CONNECTIONS            503, Retry-After
    beyond, for health alone          RESERVED, RESERVED_S   503, Retry-After

Thousands of connections may end within a millisecond. Closing one takes some 70 microseconds, so
idle ones are closed `CLOSED_AT_ONCE` in a turn of the loop, and others are answered in between.

Where there are too many connections, health is still answered: the newest connections beyond stay
until they have asked for it, so that a supervisor does not take a busy server for a dead one.
"""

from __future__ import annotations

import json
import resource
from asyncio import AbstractEventLoop, TimerHandle, Transport
from collections import deque
from contextlib import suppress
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from placewright.web.bodies import PRESENCE, Presence

CONNECTIONS = 2048

RESERVED, RESERVED_S = 32, 1.0
HEALTH = (b"/v2/health/", b"/api/v1/health")

OTHER_FILES = 64
"""Open files of the server that are no connections: workers' pipes, the log."""

LAST_S = 0.3
"""From the end of the server until a connection is closed on which no answer is under way: a
request may be on its way."""

LOOK_S = 0.02
"""Later it is closed at last, if nothing was read until then."""

CLOSED_AT_ONCE = 64
"""Some five milliseconds."""

HEAD_BYTES = 1 << 16
HEAD_S = 10.0

READ_S = 30.0
"""From when an answer has to wait for its client until the client has read all of it."""


def allow_files() -> None:
    """Let this process open as many files as all connections need, where it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS + RESERVED + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def most_connections() -> int:
    """`CONNECTIONS`, or fewer where the system does not let this process open so many files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return CONNECTIONS
    return min(CONNECTIONS, max(1, soft - RESERVED - OTHER_FILES))


class ClientConnection(HttpToolsProtocol):
    """One client's connection; see the module."""

    _beyond: ClassVar[deque[ClientConnection]] = deque()
    """Connections beyond the limit that have not asked for anything yet, oldest first."""

    _silent: ClassVar[dict[ClientConnection, None]] = {}
    """Others that have not, oldest first: they give way to those beyond the limit that do."""

    _ended: ClassVar[WeakKeyDictionary[AbstractEventLoop, deque[ClientConnection]]] = (
        WeakKeyDictionary()
    )
    """Idle ones whose client has ended them, by the loop that they belong to."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.presence = Presence()
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
        self._reserved = len(self.connections) > most_connections()
        if self._reserved:
            if len(self._beyond) >= RESERVED:
                self._beyond.popleft().refuse_as_full()
            self._beyond.append(self)
        else:
            self._silent[self] = None
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
        self._leave_reserve()
        self._silent.pop(self, None)
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
        self._leave_reserve()
        self._silent.pop(self, None)
        if self._reserved and not self.url.startswith(HEALTH) and not self._displace():
            self.refuse_as_full()
            return
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
        body = json.dumps({"error": reason, "code": "malformed"}).encode()
        lines = [
            f"HTTP/1.1 {status}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            "connection: close",
            *headers,
        ]
        self.transport.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        self.transport.close()

    def refuse_as_full(self) -> None:
        """There are too many connections, and this one does not ask for health."""
        self.refuse("503 Service Unavailable", "too many connections", "retry-after: 1")

    def _displace(self) -> bool:
        """Take the place of a connection that asks for nothing; whether there is one."""
        other = next((each for each in self._silent if each in self.connections), None)
        if other is None:
            return False
        del self._silent[other]
        other.refuse_as_full()
        self._reserved = False
        return True

    def _leave_reserve(self) -> None:
        with suppress(ValueError):
            self._beyond.remove(self)

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
            self.refuse("408 Request Timeout", f"no request came within {HEAD_S:g} s")

    def _end_head_limit(self) -> None:
        if self._head_limit is not None:
            self._head_limit.cancel()
            self._head_limit = None

    def _end_read_limit(self) -> None:
        if self._read_limit is not None:
            self._read_limit.cancel()
            self._read_limit = None


def _close_some(loop: AbstractEventLoop, ended: deque[ClientConnection]) -> None:
    """Close connections that their clients have ended, and others in the next turns of the loop."""
    for _ in range(min(CLOSED_AT_ONCE, len(ended))):
        ended.popleft().transport.close()
    if ended:
        loop.call_soon(_close_some, loop, ended)
