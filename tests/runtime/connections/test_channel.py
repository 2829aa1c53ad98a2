"""Messages through pipes and between processes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright.errors import RunError
from placewright.runtime.connections.channel import PLAIN, Channel, Codec, FrameReader, wait


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


@dataclass(frozen=True, slots=True)
class Point:
    x: float
    tags: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Other:
    x: float


PLAIN_CODEC = Codec(Point)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
)
keys = (
    st.text() | st.integers(-(2**63), 2**64 - 1) | st.tuples(st.integers(0, 9), st.integers(0, 9))
)
messages = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner).map(tuple)
        | st.dictionaries(keys, inner)
        | st.builds(Point, st.floats(allow_nan=False), st.lists(inner).map(tuple))
    ),
)


@settings(max_examples=50)
@given(messages)
def test_messages_come_back_equal(message: Any) -> None:
    """Of the same types, too: the text of what comes back is that of what was sent."""
    back = PLAIN_CODEC.unpack(PLAIN_CODEC.pack(message))
    assert back == message
    assert repr(back) == repr(message)


def test_lists_come_back_as_tuples() -> None:
    """Wherever they stand."""
    assert PLAIN_CODEC.unpack(PLAIN_CODEC.pack([1, {"a": [2]}, Point(0.0, ([3],))])) == (
        1,
        {"a": (2,)},
        Point(0.0, ((3,),)),
    )


@pytest.mark.parametrize(
    "value", [Other(1.0), object(), {1}, np.array([len]), np.zeros(2, "m8[s]"), len, Point]
)
def test_values_that_are_no_data_are_not_sent(value: Any) -> None:
    """Dataclasses that are not listed, arrays of other than numbers, functions and classes."""
    with pytest.raises(TypeError, match=r"cannot be sent"):
        PLAIN_CODEC.pack(["in", value])


@pytest.mark.parametrize("dtype", ["f8", ">f4", "i8", "u1", "?"])
@pytest.mark.parametrize("shape", [(), (0, 3), (3,), (2, 1, 3)])
def test_arrays_come_back_equal(dtype: str, shape: tuple[int, ...]) -> None:
    """With their types and shapes, and they can be changed."""
    sent = np.random.default_rng(0).uniform(-9, 9, shape).astype(dtype)
    (back,) = PLAIN_CODEC.unpack(PLAIN_CODEC.pack([sent]))
    assert (back.dtype, back.shape) == (sent.dtype, sent.shape)
    assert back.tobytes() == sent.tobytes()
    back[...] = 0


@pytest.mark.parametrize(
    "entry",
    [["|O8", [1], bytes(8)], ["<f8", [2], bytes(8)], ["<f8", [1], bytes(9)], ["<f8", [1]]],
)
def test_an_array_of_objects_or_of_another_size_is_no_message(entry: list[Any]) -> None:
    """Nor one with a part missing."""
    with pytest.raises(RunError, match="cannot be read"):
        PLAIN.unpack(msgpack.packb(msgpack.ExtType(2, msgpack.packb(entry))))


def test_a_dataclass_that_the_reader_does_not_list_is_not_made() -> None:
    """Nor one with another number of fields."""
    sent = Codec(Point, Other).pack(Other(1.0))
    with pytest.raises(RunError, match=r"KeyError.*\n.*same version"):
        PLAIN_CODEC.unpack(sent)
    with pytest.raises(RunError, match="cannot be read"):
        PLAIN.unpack(PLAIN_CODEC.pack(Point(1.0)))
    fewer = sent.replace(b"Other", b"Point").replace(b"\x92", b"\x91")[:-9]
    with pytest.raises(RunError, match="cannot be read"):
        PLAIN_CODEC.unpack(fewer)


@given(st.binary())
def test_anything_else_is_an_error_of_ours(data: bytes) -> None:
    """Whatever the bytes, they are a message or a `RunError`."""
    with suppress(RunError):
        PLAIN_CODEC.unpack(data)


def test_a_pickle_is_no_message() -> None:
    """Of anything, in any protocol."""
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(RunError, match="cannot be read"):
            PLAIN_CODEC.unpack(pickle.dumps({"verb": "steps"}, protocol))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.binary(max_size=50_000), max_size=4))
def test_messages_of_a_connection(messages: list[bytes]) -> None:
    """What the standard library sends arrives; then the end does."""
    ours, theirs = Pipe()
    with ours, FrameReader(ours.fileno()) as reader:
        for message in messages:
            theirs.send_bytes(message)
            assert reader.read() == message
        assert reader.read() is None
        theirs.close()
        with pytest.raises(EOFError):
            reader.read()


@pytest.mark.parametrize("long", [False, True])
def test_a_message_that_arrives_byte_by_byte_is_not_waited_for(long: bool) -> None:
    """``None`` until the last byte; the next message is not lost."""
    head = struct.pack("!iQ", -1, 5) if long else struct.pack("!i", 5)
    ours, theirs = Pipe()
    with ours, theirs, FrameReader(ours.fileno()) as reader, FrameReader(theirs.fileno()) as other:
        data = head + b"hello" + struct.pack("!i", 0)
        for byte in data[:-5]:
            other._socket.send(bytes([byte]))
            assert reader.read() is None
        other._socket.send(data[-5:])
        assert reader.read() == b"hello"
        assert reader.read() == b""
        assert reader.read() is None
