"""Access to the fields of a strategy file, with errors that name them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from placewright.errors import InputError
from placewright.io.boundary import Location, field_path
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


class UnknownFieldWarning(UserWarning):
    """A published file has a field that is not read."""


def warn_unknown(data: Any, known: Mapping[str, str], where: str) -> None:
    """Warn of fields that a published format does not have.

    `known`: field names by the dotted path of what holds them; ``*`` is every entry there.
    """
    for path, names in known.items():
        for place, holder in _holders(data, path.split(".") if path else []):
            for key in sorted(set(map(str, holder)) - set(names.split())):
                near = get_close_matches(key, names.split(), n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                text = f"{field_path([*place, key])} is not read: the format has no such field"
                warnings.warn(f"{where}: {text}{hint}", UnknownFieldWarning, stacklevel=2)


def _holders(
    data: Any, path: Sequence[str], place: Location = ()
) -> Iterator[tuple[Location, Any]]:
    """The mappings at a path, each with where it stands."""
    if not path:
        yield from [(place, data)] if isinstance(data, Mapping) else []
        return
    inner: Mapping[Any, Any] = data if isinstance(data, Mapping) else {}
    if path[0] == "*" and isinstance(data, list):
        inner = dict(enumerate(data))
    for key in list(inner) if path[0] == "*" else [path[0]] if path[0] in inner else []:
        yield from _holders(inner[key], path[1:], [*place, key])
