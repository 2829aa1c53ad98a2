"""Frames are read in pieces of any size, in the format of `Connection`."""

from __future__ import annotations

import struct
from multiprocessing import Pipe

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright.runtime.connections.frames import FrameReader


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
