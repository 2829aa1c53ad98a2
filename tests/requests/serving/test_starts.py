"""Starts of servers that are broken off."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import Any

import pytest

from placewright.requests.serving.fleet import Fleet
from placewright.requests.serving.server import ServingOptions, serve, serve_forever
from tests.requests.serving.models import family


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ctrl-C comes while a server starts, which takes a minute; the starts that were cancelled."""
    cancelled: list[str] = []

    async def slow(self: Fleet, name: str, speed: float) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(name)
            raise

    monkeypatch.setattr(Fleet, "add_server", slow)
    return cancelled


def test_ctrl_c_ends_a_start_in_a_thread(interrupted: list[str]) -> None:
    """No thread goes on serving behind the interrupted block."""

    def begin() -> None:
        with serve([family()], {"a": 1.0}, ServingOptions(port=0)):
            pytest.fail("it has not started")

    with pytest.raises(KeyboardInterrupt):
        begin()
    assert interrupted == ["a"]
    assert not [t for t in threading.enumerate() if t.name == "placewright-requests"]


def test_ctrl_c_ends_a_start(interrupted: list[str]) -> None:
    """At once, not when all servers have started and been measured."""

    def ready(running: Any) -> None:
        pytest.fail("it has not started")

    with pytest.raises(KeyboardInterrupt):
        serve_forever([family()], {"a": 1.0}, ServingOptions(port=0), on_ready=ready)
    assert interrupted == ["a"]
