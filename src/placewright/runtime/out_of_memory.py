"""A worker's memory does not suffice: what it says, and the error that a caller gets.

A worker's error reaches the caller as text, its traceback; the numbers are read from there.
"""

from __future__ import annotations

import re
from typing import Self

import torch

from placewright.errors import RunError, WorkerError
from placewright.report.text import size

KILLED = "killed by signal 9"
"""How a worker ends that the kernel takes memory from, among others."""

_STATED = re.compile(r"out of memory: held (\d+) bytes, asked for (\d+) more")

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def asked_bytes(error: BaseException) -> int | None:
    """Bytes that an allocation was for; 0 if unknown, ``None`` for any other error."""
    text = str(error)
    host = re.search(r"tried to allocate (\d+) bytes", text)
    if host is not None:
        return int(host[1])
    gpu = re.search(r"Tried to allocate ([\d.]+) ([KMG]?)iB", text)
    if gpu is not None:
        return int(float(gpu[1]) * _UNITS[gpu[2]])
    lacks = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return 0 if lacks or "can't allocate memory" in text else None


class OutOfMemoryError(WorkerError):
    """A worker's memory did not suffice; bytes that it held, needed at least, and was to need.

    `expected`: by the judge; 0 if unknown.
    """

    held = needed = 0
    expected = 0.0

    @classmethod
    def of(cls, error: WorkerError, by: str, held: int, asked: int, expected: float) -> Self:
        """From the error that the worker ended with."""
        hint = "give the device a smaller `memory` in the cluster, or leave more of it free, and "
        hint += "place the model again"
        made = cls("the worker ran out of memory", where=error.where, by=by, hint=hint)
        made.held, made.needed, made.expected = held, held + asked, expected
        return made


def out_of_memory(held: int, asked: int) -> RunError:
    """What a worker raises; `explained` reads it."""
    return RunError(f"out of memory: held {held} bytes, asked for {asked} more")


def explained(error: WorkerError, expected: float) -> WorkerError:
    """The error with what the judge expected, where the worker's memory did not suffice.

    `expected`: bytes; 0 if unknown.
    """
    stated, held, asked = _STATED.search(error.hint), 0, 0
    if stated is not None:
        held, asked = int(stated[1]), int(stated[2])
        by = f"it held {size(held)} and asked for {size(asked) + ' ' if asked else ''}more"
        over = held + asked - expected
        if expected and over > 0:
            by += f", {size(over)} above the {size(expected)} that the judge expected"
        elif expected:  # it ended with less than it was to have
            by += f"; the judge expected {size(expected)}, at least {size(-over)} of it are missing"
    elif error.by.startswith("MemoryError"):  # while it read the order
        by = f"{size(expected)} is what the judge expected" if expected else error.by
    elif expected and error.by == KILLED:
        by = f"{KILLED}; the judge expected {size(expected)} for it"
        return WorkerError(error.what, where=error.where, by=by, hint=error.hint)
    else:
        return error
    return OutOfMemoryError.of(error, by, held, asked, expected)
