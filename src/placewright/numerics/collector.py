"""Garbage collection, switched off while many objects are made that stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Look for no garbage inside.

    Importing PyTorch's tracer or tracing a model makes a million small objects that all stay:
    looking for garbage among them takes a fifth of the time.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
