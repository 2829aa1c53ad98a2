"""Messages through pipes and between processes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import socket
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path

import pytest

from placewright.errors import RunError
from placewright.runtime.connections.channel import Channel, wait
from placewright.runtime.connections.codec import Codec


@dataclass(frozen=True)
class Order:
    verb: str


CODEC = Codec(Order)


def pair() -> tuple[Channel, Channel]:
    """Two ends."""
    one, other = Pipe()
    return Channel(one, CODEC), Channel(other, CODEC)


def test_messages_arrive_in_order_and_can_be_waited_for() -> None:
    """Whoever closes is noticed, by a duplicate of the end as well."""
    ours, theirs = pair()
    with ours, theirs:
        assert not ours.poll()
        assert wait([ours], timeout=0) == []
        theirs.send(Order("load"))
        theirs.send_packed(CODEC.pack("steps"))
        assert wait([ours, theirs], timeout=5.0) == [ours]
        assert [ours.recv(), ours.recv()] == [Order("load"), "steps"]
        duplicate = theirs.duplicate()
        theirs.close()
        duplicate.send("still here")
        duplicate.close()
        assert ours.recv() == "still here"
        with pytest.raises(EOFError):
            ours.recv()


def test_a_message_that_is_too_long_is_not_read() -> None:
    """Its length stands before it."""
    ours, theirs = pair()
    with ours, theirs:
        theirs.send(b"\0" * 1000)
        with pytest.raises(OSError, match="bad message length"):
            ours.recv(500)


class Evil:
    """Its pickle makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.mark),)


def test_a_pickle_is_not_executed(tmp_path: Path) -> None:
    """As `Connection.send` sends it."""
    ours, theirs = pair()
    evil = Evil(tmp_path / "executed")
    pickle.loads(pickle.dumps(Evil(tmp_path / "works")))
    assert (tmp_path / "works").exists()
    with ours, theirs:
        theirs.connection.send(evil)
        with pytest.raises(RunError, match="cannot be read"):
            ours.recv()
    assert not evil.mark.exists()


def echo(channel: Channel) -> None:
    """In a process of its own."""
    channel.send(channel.recv())


def test_an_end_can_be_given_to_a_process() -> None:
    """As workers are given theirs, a socket too."""
    context = multiprocessing.get_context("forkserver")
    for make in (Pipe, sockets):
        ours, theirs = (Channel(end, CODEC) for end in make())
        process = context.Process(target=echo, args=(theirs,))
        process.start()
        theirs.close()
        with ours:
            ours.send(Order("steps"))
            assert ours.recv() == Order("steps")
        process.join()


def sockets() -> tuple[multiprocessing.connection.Connection, ...]:
    """Ends of a connection over TCP."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    connections = multiprocessing.connection.Connection
    return connections(one.detach()), connections(other.detach())
