"""Messages arrive complete, however late and slowly they are read."""

from __future__ import annotations

import time
from multiprocessing import Pipe

import pytest

from placewright.runtime.connections import Channel, send

SIZES = (0, 1 << 15, 1 << 16, 10 << 20)


@pytest.mark.parametrize("size", SIZES)
def test_a_late_reader_gets_complete_messages(size: int) -> None:
    """The sender has gone on long before, and his next message comes after it."""
    ours, theirs = (Channel(end) for end in Pipe())
    message = bytes(range(256)) * (size // 256)
    send(ours, message)
    time.sleep(0.1)
    assert theirs.recv() == message
    send(ours, "the next")
    assert theirs.recv() == "the next"


@pytest.mark.parametrize("size", SIZES)
def test_a_closed_connection_receives_nothing(size: int) -> None:
    """Before a message, or in the middle of it."""
    for early in (True, False):
        ours, theirs = (Channel(end) for end in Pipe())
        if early:
            theirs.close()
        send(ours, bytes(size))
        theirs.close()


def test_a_connection_may_be_closed_while_a_message_waits_to_be_read() -> None:
    """What is on its way arrives all the same, and goes nowhere else."""
    ours, theirs = (Channel(end) for end in Pipe())
    send(ours, bytes(10 << 20))
    ours.close()
    assert theirs.recv() == bytes(10 << 20)
