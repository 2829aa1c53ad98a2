"""Ctrl-C: the first one takes effect after the current step, the second one at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Let the block end before a Ctrl-C within it becomes a `KeyboardInterrupt`.

    A second Ctrl-C interrupts at once. Nothing changes in threads, which get none, and where the
    caller handles the signal in a way of its own.
    """
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    pressed: list[int] = []

    def remember(number: int, _: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        pressed.append(number)

    signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # In `finally`: also where the block ended by an error, which becomes the context of this
        # one.
        if pressed:
            raise KeyboardInterrupt
