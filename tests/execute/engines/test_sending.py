"""What is sent arrives whole, however late and slowly it is read."""

from __future__ import annotations

import os
import socket
import time
from multiprocessing import Pipe

import pytest

from placewright.execute.engines.sending import _header, send

SIZES = (0, 1 << 15, 1 << 16, 10 << 20)


@pytest.mark.parametrize("size", SIZES)
def test_one_who_reads_late_finds_every_message_whole(size: int) -> None:
    """The sender has gone on long before, and his next message comes after it."""
    ours, theirs = Pipe()
    message = bytes(range(256)) * (size // 256)
    send(ours, message)
    time.sleep(0.1)
    assert theirs.recv() == message
    send(ours, "the next")
    assert theirs.recv() == "the next"


@pytest.mark.parametrize("size", SIZES)
def test_nobody_hears_of_one_who_has_left(size: int) -> None:
    """Before a message, or in the middle of it."""
    for early in (True, False):
        ours, theirs = Pipe()
        if early:
            theirs.close()
        send(ours, bytes(size))
        theirs.close()


def test_a_timeout_that_sockets_have_by_default_is_none_for_connections() -> None:
    """A program may have set one for its own sockets; answers are waited for all the same."""
    ours, theirs = Pipe()
    socket.setdefaulttimeout(0.01)
    try:
        send(ours, bytes(10 << 20))
    finally:
        socket.setdefaulttimeout(None)
    assert os.get_blocking(ours.fileno())
    assert theirs.recv() == bytes(10 << 20)


def test_the_header_of_a_message_that_32_bits_cannot_count() -> None:
    """As Python writes it: -1, then 64 bits."""
    assert _header(5) == b"\0\0\0\5"
    assert _header(1 << 31) == b"\xff" * 4 + b"\0\0\0\0\x80\0\0\0"
