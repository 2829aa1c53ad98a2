"""Garbage collection, switched off while many objects are made that stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Look for no garbage inside, and afterwards take what was made for lasting.

    Importing PyTorch's tracer, tracing a model or compiling a kernel makes a million small objects
    that nearly all stay: looking for garbage among them, inside or three times right after, takes a
    tenth to a fifth of the time.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            if not gc.get_freeze_count():  # what others have frozen would be thawed with it
                gc.freeze()
                gc.unfreeze()  # in the oldest generation now, where only full collections look
            gc.enable()
