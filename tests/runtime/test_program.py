"""The worker process: its start, its orders, its end."""

from __future__ import annotations

import gc
from multiprocessing import Pipe
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from placewright.runtime import program
from placewright.runtime.connections import Channel
from placewright.runtime.specs import WorkerSpec

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


def test_collections_skip_what_was_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's objects: each collection would look at all of them."""
    monkeypatch.setattr(program, "load_program", lambda name: lambda worker: "program")
    bare = SimpleNamespace(handle=None, interface="", cores=(), program="")
    before = gc.get_freeze_count()
    try:
        assert program.start_program(cast("WorkerSpec", bare)) == "program"
        assert gc.get_freeze_count() > before + 10_000
    finally:
        gc.unfreeze()


class _Failing:
    """A program whose peer is gone: its order raises what a closed connection raises."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def obey(self, name: str, arguments: object) -> None:
        raise self.error


@pytest.mark.parametrize("error", [EOFError("peer gone"), BrokenPipeError("peer gone")])
def test_a_connection_that_breaks_in_an_order_is_reported(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a program's own connection, not the one to the caller, who would see a death."""
    for name in ("share_one_arena", "end_with_parent"):
        monkeypatch.setattr(program, name, lambda *_: None)
    monkeypatch.setattr(program.signal, "signal", lambda *_: None)
    monkeypatch.setattr(program, "start_program", lambda *_: _Failing(error))
    monkeypatch.setattr(program.os, "_exit", lambda _: None)
    ours, theirs = (Channel(end) for end in Pipe())
    with ours, theirs:
        ours.send(("send", ()))
        program.worker_main(cast("WorkerSpec", None), theirs, None, cast("Connection", None))
        assert ours.recv() == ("ok", None)
        assert ours.poll()
        status, traceback = ours.recv()
    assert (status, type(error).__name__ in traceback) == ("error", True)


def test_a_worker_ends_with_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """An end without the order to stop: the caller is gone, and there is nobody to tell."""
    for name in ("share_one_arena", "end_with_parent"):
        monkeypatch.setattr(program, name, lambda *_: None)
    monkeypatch.setattr(program.signal, "signal", lambda *_: None)
    monkeypatch.setattr(program, "start_program", lambda *_: None)
    codes: list[int] = []
    monkeypatch.setattr(program.os, "_exit", codes.append)
    ours, theirs = (Channel(end) for end in Pipe())
    ours.close()
    program.worker_main(cast("WorkerSpec", None), theirs, None, cast("Connection", None))
    assert codes == [0]
