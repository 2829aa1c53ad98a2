"""Bodies of requests: what all of them together may take, and clients that leave."""

from __future__ import annotations

import asyncio
import time

import pytest

from placewright.web.refusals import (
    BodyBudget,
    Message,
    Presence,
    Refusal,
    body_pieces,
    headers_of,
    host_name,
)


def test_a_budget_is_shared_and_given_back() -> None:
    """What is too much for all is refused with 503 and room is there again afterwards."""
    budget = BodyBudget(100)
    with budget.share() as first, budget.share() as second:
        first(60)
        with pytest.raises(Refusal) as caught:
            second(41)
        second(40)
        assert budget.held_bytes == 100
    assert budget.held_bytes == 0
    assert (caught.value.status, caught.value.code) == (503, "bodies-full")
    assert caught.value.retry_after_s is not None


def test_a_client_leaves_once() -> None:
    """Who waits for it is called."""
    presence, calls = Presence(), list[bool]()
    presence.on_leave = lambda: calls.append(presence.left)
    presence.leave()
    assert calls == [True]


class Sender:
    """A client that sends so many pieces of a body, and nothing more until it leaves."""

    def __init__(self, pieces: int, *, leaves: bool) -> None:
        self._pieces, self._leaves = pieces, leaves

    async def receive(self) -> Message:
        """The next message."""
        if self._pieces:
            self._pieces -= 1
            return {"type": "http.request", "body": b"x" * 1000, "more_body": True}
        if not self._leaves:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}


@pytest.mark.parametrize(("leaves", "status"), [(False, 408), (True, 499)])
def test_a_large_body_stands_still_for_a_limited_time(leaves: bool, status: int) -> None:
    """What has come was passed on; a client that has left is not waited for."""
    passed = 0

    async def read() -> None:
        nonlocal passed
        sender = Sender(3, leaves=leaves)
        async for piece in body_pieces(sender.receive, 0.01, 1e9):
            passed += len(piece)

    with pytest.raises(Refusal) as caught:
        asyncio.run(read())
    assert caught.value.status == status
    assert passed == 3000


def test_a_large_body_may_take_longer_than_a_small_one() -> None:
    """By its size: here half a second for a kilobyte."""
    begun_s, passed = time.monotonic(), 0

    async def read() -> None:
        nonlocal passed
        sender = Sender(1, leaves=False)
        async for piece in body_pieces(sender.receive, 0.0, 2000.0):
            passed += len(piece)

    with pytest.raises(Refusal):
        asyncio.run(read())
    assert passed == 1000
    assert time.monotonic() - begun_s >= 0.5


@pytest.mark.parametrize("port", ["", ":8000"])
def test_the_name_of_a_host(port: str) -> None:
    """Without its port, in lower case; brackets of IPv6 go."""
    assert host_name(f"LocalHost{port}") == "localhost"
    assert host_name(f"[::1]{port}") == "::1"


@pytest.mark.parametrize(
    "host",
    ["evil@127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999", "[::1", "localhost/a", "localhost?"],
)
def test_what_no_browser_sends_is_the_name_of_no_host(host: str) -> None:
    """A user, a port that is none, brackets that do not close, a path, a query."""
    assert host_name(host) not in {"localhost", "127.0.0.1", "::1"}


def test_two_hosts_are_no_host() -> None:
    """Of other headers the last one counts."""
    given = [(b"Host", b"evil.com"), (b"accept", b"a"), (b"host", b"localhost"), (b"accept", b"b")]
    assert headers_of({"headers": given}) == {"host": "evil.com, localhost", "accept": "b"}
