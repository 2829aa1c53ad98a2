"""Ctrl-C at precise moments of a run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable

import pytest

from placewright.adapt.run import interrupts_wait


def press() -> None:
    """Ctrl-C."""
    signal.raise_signal(signal.SIGINT)


def waiting(doings: Iterable[Callable[[], object]]) -> None:
    """Do things one after the other, not to be interrupted."""
    with interrupts_wait():
        for do in doings:
            do()


def interrupted(*doings: Callable[[], object]) -> KeyboardInterrupt:
    """How that ends."""
    with pytest.raises(KeyboardInterrupt) as caught:
        waiting(doings)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return caught.value


def test_the_first_one_waits_for_the_end() -> None:
    """The block is carried out, then it is interrupted; afterwards all is as before."""
    done: list[int] = []
    interrupted(press, lambda: done.append(1))
    assert done == [1]
    with interrupts_wait():
        pass


def test_the_second_one_does_not_wait() -> None:
    """The block ends where it is."""
    done: list[int] = []
    interrupted(press, lambda: done.append(1), press, lambda: done.append(2))
    assert done == [1]


def test_an_error_does_not_hide_it() -> None:
    """Who presses Ctrl-C wants to end, whatever else happens; the error is its context."""
    assert isinstance(interrupted(press, lambda: int("one")).__context__, ValueError)


def test_who_handles_the_signal_goes_on_handling_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once; and a thread, which may not, touches nothing."""
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    try:
        with interrupts_wait():
            press()
            assert seen == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)
    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    thread = threading.Thread(target=lambda: interrupts_wait().__enter__())
    thread.start()
    thread.join()
    assert failed == []
