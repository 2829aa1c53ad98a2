"""Ctrl-C ends a search, and what it found last is the answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from placewright.planning.contract import INTERRUPTED

Found = TypeVar("Found")


def last_of(finds: Iterable[Found]) -> tuple[Found, str]:
    """The last of a search's finds, each better than the one before.

    Ctrl-C ends the search: the last one yet, and `INTERRUPTED`, which is empty otherwise.

    Raises
    ------
    KeyboardInterrupt
        It came before anything was found.
    """
    found: list[Found] = []
    try:
        for better in finds:
            found = [better]
    except KeyboardInterrupt:
        if not found:
            raise
        return found[0], INTERRUPTED
    return found[0], ""
