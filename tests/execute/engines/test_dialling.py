"""Whoever knows the secret is let in, whoever else is calling."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from multiprocessing import AuthenticationError

import pytest

from placewright.execute.engines import dialling
from placewright.execute.engines.dialling import LOOPBACK, Door, dial

SECRET = b"known to us"


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    """On loopback."""
    for variable in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"):
        monkeypatch.setenv(variable, "2")
    opened = Door(SECRET)
    yield opened
    opened.close()


def stranger(door: Door, *words: bytes) -> socket.socket:
    """One who says something else than we do."""
    caller = socket.create_connection((LOOPBACK, door.port), timeout=10.0)
    for said in words:
        caller.sendall(said)
    return caller


def test_strangers_keep_nobody_out(door: Door) -> None:
    """One who says nothing, one who takes us for a web server, some who leave, one who guesses."""
    with stranger(door), stranger(door, b"GET / HTTP/1.1\r\n\r\n"):
        stranger(door).close()
        stranger(door, b"\0\0").close()
        with pytest.raises(AuthenticationError):
            dial(door.port, b"guessed", "a stranger")
        with dial(door.port, SECRET, "one of us") as ours:
            called = door.caller(10.0)
            assert called is not None
            who, connection = called
            assert who == "one of us"
            connection.send("an order")
            assert ours.recv() == "an order"
        assert door.caller(0.0) is None


def test_one_who_says_nothing_is_shut_out_and_one_of_us_may(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silence is borne for a while before the secret is proved, and for ever after it."""
    monkeypatch.setattr(dialling, "_SILENCE_S", 0.1)
    with dial(door.port, SECRET, "one of us") as ours, stranger(door) as silent:
        while silent.recv(256):  # the question for the secret, then the end
            pass
        called = door.caller(10.0)
        assert called is not None
        _, connection = called
        assert not connection.poll(0.2)
        ours.send("at last")
        assert connection.recv() == "at last"


def test_a_door_that_is_closed_takes_no_calls(door: Door) -> None:
    """Nothing listens there any more."""
    door.close()
    with pytest.raises(ConnectionRefusedError):
        stranger(door)
