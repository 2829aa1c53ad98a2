"""Connections are accepted only with the secret, also while others try without it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

import pytest

from placewright.errors import RunError
from placewright.runtime.connections import authentication
from placewright.runtime.connections.authentication import (
    BROKEN,
    LOOPBACK,
    AuthenticatedListener,
    connect,
)
from placewright.runtime.connections.channel import Codec

SECRET = b"known to us"


@dataclass(frozen=True)
class Version:
    """Only another version of ours knows it."""

    number: int


@pytest.fixture
def listener() -> Iterator[AuthenticatedListener]:
    """On loopback."""
    opened = AuthenticatedListener(socket.create_server((LOOPBACK, 0)), SECRET)
    yield opened
    opened.close()


def raw_client(listener: AuthenticatedListener, *words: bytes) -> socket.socket:
    """A connection that sends these bytes instead of the protocol."""
    caller = socket.create_connection((LOOPBACK, listener.port), timeout=10.0)
    for message in words:
        caller.sendall(message)
    return caller


def test_unauthenticated_clients_keep_no_worker_out(listener: AuthenticatedListener) -> None:
    """One who says nothing, one who takes us for a web server, some who leave, one who guesses."""
    address = (LOOPBACK, listener.port)
    with raw_client(listener), raw_client(listener, b"GET / HTTP/1.1\r\n\r\n"):
        raw_client(listener).close()
        raw_client(listener, b"\0\0").close()
        with pytest.raises(AuthenticationError):
            connect(address, b"guessed", "a stranger")
        with connect(address, SECRET, "one of us") as ours:
            called = listener.accept(10.0)
            assert called is not None
            who, channel = called
            assert who == "one of us"
            channel.send("an order")
            assert ours.recv() == "an order"
            channel.close()
        assert listener.accept(0.0) is None


def test_silent_connections_are_closed_only_before_authentication(
    listener: AuthenticatedListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silence is borne for a while before the secret is proved, and for ever after it."""
    monkeypatch.setattr(authentication, "PROOF_S", 0.1)
    address = (LOOPBACK, listener.port)
    with connect(address, SECRET, limit_s=0.2) as ours, raw_client(listener) as silent:
        while silent.recv(256):  # the question for the secret, then the end
            pass
        called = listener.accept(10.0)
        assert called is not None
        _, channel = called
        assert not channel.poll(0.4)
        ours.send("at last")
        assert channel.recv() == "at last"
        channel.close()


def test_the_newest_callers_take_the_places_of_the_oldest(
    listener: AuthenticatedListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many say nothing, one of us is let in at once, and so many threads wait at most."""
    monkeypatch.setattr(authentication, "MOST_CALLERS", 8)
    before = threading.active_count()
    silent = [raw_client(listener) for _ in range(50)]
    with connect((LOOPBACK, listener.port), SECRET, "one of us"):
        called = listener.accept(10.0)
        assert called is not None
        called[1].close()
    for caller in silent[:30]:
        while caller.recv(256):
            pass
    assert threading.active_count() <= before + 9
    for caller in silent:
        caller.close()


def test_a_client_sends_nothing_to_a_listener_without_the_secret() -> None:
    """Neither who we are nor an answer that is worth anything, and not for ever."""
    with socket.create_server((LOOPBACK, 0)) as fake:
        address = fake.getsockname()
        with pytest.raises(EOFError):
            connect(address, SECRET, "one of us", limit_s=0.2)
        fake.accept()[0].close()
        threading.Thread(target=_take_any_answer, args=(fake,), daemon=True).start()
        with pytest.raises(AuthenticationError):
            connect(address, SECRET, "one of us")


def _take_any_answer(fake: socket.socket) -> None:
    """Welcome whoever calls, then guess."""
    caller, _ = fake.accept()
    connection = Connection(caller.detach())
    with suppress(AuthenticationError):
        deliver_challenge(connection, b"guessed")
    connection.send_bytes(b"#WELCOME#")
    with suppress(*BROKEN):
        answer_challenge(connection, b"guessed")
    connection.close()


def test_a_proof_for_another_port_is_none(listener: AuthenticatedListener) -> None:
    """Whoever makes us call his port cannot pass what we say on to the real one and back."""
    with socket.create_server((LOOPBACK, 0)) as fake:
        passing = threading.Thread(target=_pass_on, args=(fake, listener.port), daemon=True)
        passing.start()
        with pytest.raises(BROKEN):
            connect(fake.getsockname(), SECRET, "one of us")
        passing.join(timeout=10.0)
    assert listener.accept(0.1) is None


def _pass_on(fake: socket.socket, port: int) -> None:
    """One caller's words to the real listener, and its words back."""
    caller, _ = fake.accept()
    with caller, socket.create_connection((LOOPBACK, port)) as real:
        back = threading.Thread(target=_pump, args=(real, caller), daemon=True)
        back.start()
        _pump(caller, real)
        back.join(timeout=10.0)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(4096):
            target.sendall(data)
        target.shutdown(socket.SHUT_RDWR)


def test_an_answer_is_none_in_the_other_direction() -> None:
    """A fake listener has one caller answer what another one asks it."""
    failed: list[BaseException] = []

    def call(address: tuple[str, int]) -> None:
        try:
            connect(address, SECRET, "one of us").close()
        except BROKEN as error:
            failed.append(error)

    with socket.create_server((LOOPBACK, 0)) as fake:
        arguments = (fake.getsockname(),)
        callers = [threading.Thread(target=call, args=arguments, daemon=True) for _ in range(2)]
        for caller in callers:
            caller.start()
        one, other = (Connection(fake.accept()[0].detach()) for _ in range(2))
        one.send_bytes(b"#CHALLENGE#" + bytes(20))
        one.recv_bytes(256)
        one.send_bytes(b"#WELCOME#")
        other.send_bytes(one.recv_bytes(256))
        one.send_bytes(other.recv_bytes(256))
        assert one.recv_bytes(256) == b"#FAILURE#"
        one.close()
        other.close()
        for caller in callers:
            caller.join(timeout=10.0)
    assert len(failed) == 2


def test_a_hello_that_is_too_long_is_not_read(listener: AuthenticatedListener) -> None:
    """Nor one of another version, and the error names it."""
    address = (LOOPBACK, listener.port)
    with connect(address, SECRET, b"\0" * (1 << 17)):
        assert listener.accept(0.3) is None
    later = connect(address, SECRET, Version(2), codec=Codec(Version))
    with later, pytest.raises(RunError, match="same version"):
        listener.accept(10.0)


def test_a_listener_that_is_closed_takes_no_calls(listener: AuthenticatedListener) -> None:
    """Nothing listens there any more."""
    listener.close()
    with pytest.raises(ConnectionRefusedError):
        raw_client(listener)
