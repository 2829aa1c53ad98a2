"""Garbage collection, switched off while many objects are made that stay."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

FEWEST = 2_000_000
"""Blocks of memory since the last full collection below which none is worth its time: those of
half a million objects."""


@dataclass(slots=True)
class _Lasting:
    """Blocks when the last full collection was known to have ended; 0 before the first."""

    blocks: int = 0


_LASTING = _Lasting()


@contextmanager
def collector_paused() -> Iterator[None]:
    """Look for no garbage inside, and afterwards take what was made for lasting.

    Importing PyTorch's tracer, tracing a model or compiling a kernel makes a million small objects
    that nearly all stay: looking for garbage among them, inside or three times right after, takes a
    tenth to a fifth of the time. Python does not count objects that come into the oldest generation
    this way, so it is here that a full collection is made once they are half of all: a process that
    traces one model after another would keep the garbage of each. Counting them takes a tenth of a
    second once PyTorch is there; blocks of memory are counted in less than a thousandth.
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
                _collect_where_many(sys.getallocatedblocks())
            gc.enable()


def _collect_where_many(blocks: int) -> None:
    before = _LASTING.blocks or blocks
    _LASTING.blocks = min(before, blocks)
    if blocks - before > max(FEWEST, before):
        gc.collect()
        _LASTING.blocks = sys.getallocatedblocks()
