"""The worker process before its first order."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import cast

import pytest

from placewright.runtime import worker
from placewright.runtime.specs import WorkerSpec


def test_collections_skip_what_was_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's objects: each collection would look at all of them."""
    monkeypatch.setattr(worker, "load_program", lambda name: lambda worker: "program")
    bare = SimpleNamespace(handle=None, interface="", cores=(), program="")
    before = gc.get_freeze_count()
    try:
        assert worker.start_program(cast("WorkerSpec", bare)) == "program"
        assert gc.get_freeze_count() > before + 10_000
    finally:
        gc.unfreeze()
