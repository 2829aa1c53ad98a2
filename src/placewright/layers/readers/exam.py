"""Access to the fields of a strategy file, with errors that name them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from placewright.errors import InputError

Row = dict[str, Any]


def field(data: Any, path: str, where: str) -> Any:
    """The value at a dotted path.

    Raises `InputError`: there is none; names the first key that is missing.
    """
    for key in path.split("."):
        if not isinstance(data, Mapping) or key not in data:
            raise InputError(f"{key!r} is missing", where=f"{where}: {path}")
        data = data[key]
    return data


def optional(data: Any, path: str, default: Any = None) -> Any:
    """The value at a dotted path, `default` where it is absent or null."""
    for key in path.split("."):
        if not isinstance(data, Mapping) or data.get(key) is None:
            return default
        data = data[key]
    return data


def rows(table: Any, where: str, needed: Sequence[str] = ()) -> list[Row]:
    """A ``{"columns": [...], "rows": [[...], ...]}`` table as mappings."""
    columns, entries = field(table, "columns", where), field(table, "rows", where)
    for key in needed:
        if key not in columns:
            raise InputError(f"the column {key!r} is missing", where=where)
    for k, entry in enumerate(entries):
        if not isinstance(entry, Sequence) or len(entry) != len(columns):
            raise InputError("a row has another length than the columns", where=f"{where}[{k}]")
    return [dict(zip(columns, entry, strict=True)) for entry in entries]


MOST_WORKERS = 65_536
"""Workers have names, memories and places in a plan: of more the problem itself takes gigabytes."""


def count(value: Any, where: str, least: int = 0, most: int = 1_000_000) -> int:
    """A whole number of at least `least` and at most `most`."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or value % 1 != 0:  # so are infinity and NaN
        raise InputError("must be a whole number", where=where, by=f"got {value!r}"[:40])
    if not least <= value <= most:
        limit = f"at least {least}" if value < least else f"at most {most}"
        raise InputError(f"must be {limit}", where=where, by=f"got {value!r}"[:40])
    return int(value)


def amount(value: Any, where: str, *, needed: bool = False) -> float:
    """A number of at least 0; NaN for null, which is refused where a number is `needed`."""
    if value is None and not needed:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise InputError("must be a number >= 0", where=where, by=f"got {value!r}")
    return float(value)
