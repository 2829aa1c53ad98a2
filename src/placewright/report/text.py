"""Text primitives: aligned tables and short numbers with units."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from placewright.io.units import BYTES, SECONDS, show

Row = Sequence[str]

_BARE = ContextVar("_BARE", default=False)


@contextmanager
def bare_numbers(bare: bool = True) -> Iterator[None]:
    """In the block, `seconds` and `size` give no unit: costs of the problem shown have none."""
    token = _BARE.set(bare)
    try:
        yield
    finally:
        _BARE.reset(token)


def numbers_are_bare() -> bool:
    """Whether this is within `bare_numbers`."""
    return _BARE.get()


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """The text with what would control a terminal, or turn its direction, written out.

    Names come from files, and files may come from anybody.
    """
    return _CONTROL.sub(lambda found: repr(found.group())[1:-1], text)


def plain_table(header: Row, rows: Sequence[Row], right: str = "") -> str:
    """Columns aligned with spaces; `right` has an ``r`` for each column that ends flush."""
    cells = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[c]) for row in cells) for c in range(len(header))]
    sides = right.ljust(len(header))
    lines = [
        "  ".join(
            cell.rjust(width) if side == "r" else cell.ljust(width)
            for cell, width, side in zip(row, widths, sides, strict=True)
        ).rstrip()
        for row in cells
    ]
    return "\n".join(lines)


def seconds(value: float) -> str:
    """``12.34 ms``; ``-`` where there is no value."""
    return amount(value, "") if _BARE.get() else elapsed(value)


def elapsed(value: float) -> str:
    """``12.34 ms`` of a clock, such as planning took, whatever the problem's costs are."""
    return show(value, SECONDS, digits=4)


def percent(value: float) -> str:
    """``3.2 %``; ``-`` where there is no value."""
    if not math.isfinite(value):
        return "-"
    return f"{value * 100:.0f} %" if abs(value) >= 1 else f"{value * 100:.1f} %"


def size(value: float) -> str:
    """``1.95 GiB``; ``-`` where unlimited."""
    return amount(value, "") if _BARE.get() else show(value, BYTES)


def shorten(text: str, most: int = 72) -> str:
    """One line of at most `most` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 3] + "..."


def joined(*parts: str) -> str:
    """The parts that are not empty, a line break between them."""
    return "\n".join(part for part in parts if part)


def counted(items: Sequence[object], noun: str) -> str:
    """``3 devices``, ``1 device``."""
    return f"{len(items)} {noun}" + ("" if len(items) == 1 else "s")


def relative_change(then: float, now: float) -> str:
    """``+3.20 %``: how much `then` exceeds `now`; ``-`` where that is unknown."""
    return f"{(then / now - 1) * 100:+.2f} %" if math.isfinite(then) and now else "-"


def amount(value: float, unit: str = "s") -> str:
    """`value` in its unit: seconds and bytes with the prefix that suits, others as they are."""
    if unit == "s":
        return seconds(value)
    if unit == "bytes":
        return size(value)
    return f"{value:.6g} {unit}".rstrip() if math.isfinite(value) else "-"


def ago(time_s: float | None) -> str:
    """How long ago something was, in words."""
    if time_s is None:
        return "-"
    past_s = max(0.0, time.time() - time_s)
    for unit, length_s in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if past_s >= length_s:
            count = int(past_s / length_s)
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"
