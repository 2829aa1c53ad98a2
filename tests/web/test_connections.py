"""Connections that end, many at once."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from placewright.web import connections
from placewright.web.connections import ClientConnection, Server
from placewright.web.listening import listen


def connection(closed: list[int], number: int, *, complete: bool | None, tls: bool = False) -> Any:
    """One whose transport notes its end; `complete`: of the answer, ``None``: nobody has asked."""
    made: Any = object.__new__(ClientConnection)
    made.loop = asyncio.get_running_loop()
    made.cycle = None if complete is None else SimpleNamespace(response_complete=complete)
    made.transport = SimpleNamespace(
        close=lambda: closed.append(number), get_extra_info=lambda name: tls or None
    )
    return made


@pytest.mark.parametrize("complete", [None, True])
def test_idle_connections_that_end_together_are_closed_a_few_in_a_turn(
    complete: bool | None,
) -> None:
    """In order, each once; another that ends later is closed too."""

    async def main() -> tuple[list[int], list[int]]:
        closed, counts = list[int](), list[int]()
        count = 2 * connections.CLOSED_AT_ONCE + 5
        for k in range(count):
            assert connection(closed, k, complete=complete).eof_received()
        assert not closed
        for _ in range(4):
            await asyncio.sleep(0)
            counts.append(len(closed))
        assert connection(closed, count, complete=complete).eof_received()
        await asyncio.sleep(0)
        return closed, counts

    closed, counts = asyncio.run(main())
    some = connections.CLOSED_AT_ONCE
    assert counts == [some, 2 * some, 2 * some + 5, 2 * some + 5]
    assert closed == list(range(2 * some + 6))


@pytest.mark.parametrize(("complete", "tls"), [(False, False), (None, True)])
def test_others_end_at_once(complete: bool | None, tls: bool) -> None:
    """Whose request is under way is to be known as gone; TLS has no half of a connection."""

    async def main() -> bool:
        ends: bool = connection([], 0, complete=complete, tls=tls).eof_received()
        return ends

    assert asyncio.run(main()) is False


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """An application."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"here"})


def test_silent_connections_wait_for_a_request_until_the_end() -> None:
    """None has a protocol before; what is sent at the end is answered, and others are closed."""

    async def until(true: Any) -> None:
        while not true():
            await asyncio.sleep(0.01)

    async def ask(link: socket.socket) -> bytes:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(link, b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        return await loop.sock_recv(link, 1000)

    async def main() -> None:
        listening = listen("127.0.0.1", 0)
        server = Server(answer, listening)
        serving = asyncio.create_task(server.serve())
        await until(lambda: server.started)
        links = [socket.create_connection(listening.getsockname()) for _ in range(300)]
        for link in links:
            link.setblocking(False)
        silent = server._acceptor._silent
        await until(lambda: len(silent) == 300)
        assert not server.server_state.connections
        assert (await ask(links[7])).startswith(b"HTTP/1.1 200 ")
        assert len(server.server_state.connections) == 1
        for link in links[10:]:
            link.close()
        await until(lambda: len(silent) == 9)
        server.should_exit = True
        await until(lambda: server._acceptor._ending)
        assert (await ask(links[3])).startswith(b"HTTP/1.1 200 ")
        await serving
        assert await asyncio.get_running_loop().sock_recv(links[4], 10) == b""
        for link in links[:10]:
            link.close()

    asyncio.run(asyncio.wait_for(main(), 30))
