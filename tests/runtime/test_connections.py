"""Messages through pipes and between processes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import AuthenticationError, Pipe
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright.errors import RunError
from placewright.runtime import connections
from placewright.runtime.connections import (
    BROKEN,
    LOOPBACK,
    PLAIN,
    AuthenticatedListener,
    Channel,
    Codec,
    FrameReader,
    connect,
    send,
    wait,
)


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


@pytest.mark.parametrize("make", [Pipe, lambda: sockets()], ids=["pipe", "tcp"])
@pytest.mark.parametrize("timeout_s", [None, 5.0])
def test_orders_are_sent_whole_whether_they_are_read_or_not(
    make: Callable[[], Iterable[Connection]], timeout_s: float | None
) -> None:
    """Nothing waits for who does not read; nor is it disturbed by a program's default timeout."""
    before_s = socket.getdefaulttimeout()
    ours, theirs = (Channel(end, CODEC) for end in make())
    socket.setdefaulttimeout(timeout_s)
    try:
        with ours, theirs:
            for size in (0, 1, 1 << 15, 1 << 18, 1 << 24):
                text = bytes(range(256)) * (size // 256) or b"x" * size
                send(theirs, (text, Order("load")))
                if size == 1 << 24:
                    theirs.close()
                assert ours.recv() == (text, Order("load"))
            send(ours, "to one that is gone")
    finally:
        socket.setdefaulttimeout(before_s)


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
    | st.complex_numbers(allow_nan=False)
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
    monkeypatch.setattr(connections, "PROOF_S", 1.5)
    address = (LOOPBACK, listener.port)
    with connect(address, SECRET, limit_s=2.0) as ours, raw_client(listener) as silent:
        while silent.recv(256):  # the question for the secret, then the end
            pass
        called = listener.accept(10.0)
        assert called is not None
        _, channel = called
        assert not channel.poll(2.5)
        ours.send("at last")
        assert channel.recv() == "at last"
        channel.close()


def test_the_newest_callers_take_the_places_of_the_oldest(
    listener: AuthenticatedListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many say nothing, one of us is let in at once, and so many threads wait at most."""
    monkeypatch.setattr(connections, "MOST_CALLERS", 8)
    before = threading.active_count()
    silent = [raw_client(listener) for _ in range(50)]
    with connect((LOOPBACK, listener.port), SECRET, "one of us"):
        called = listener.accept(10.0)
        assert called is not None
        called[1].close()
    for caller in silent[:30]:
        while caller.recv(256):
            pass
    deadline = time.monotonic() + 10.0  # a thread ends a moment after its caller has been told
    while threading.active_count() > before + 9 and time.monotonic() < deadline:
        time.sleep(0.01)
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
