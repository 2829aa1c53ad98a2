"""Access to the fields of a strategy file, with errors that name them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from placewright.errors import InputError
from placewright.layers.files import field

Row = dict[str, Any]


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
