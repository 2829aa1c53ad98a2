"""Data with one value replaced or removed, to test the readers of files."""

from __future__ import annotations

import copy
from typing import Any

HOSTILE = (
    *(None, True, -1, 0, 2.5, 1e308, 10**30, 10**400, float("nan"), float("inf")),
    *("", "x", [], [[]], {}, {"a": {"b": []}}),
)
"""Values that are wrong in most places."""


def value_paths(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values inside nested lists and dictionaries."""
    inner: Any = ()
    if isinstance(data, dict | list):
        inner = data.items() if isinstance(data, dict) else enumerate(data)
    deeper = [found for key, value in inner for found in value_paths(value, (*path, key))]
    return ([path] if path else []) + deeper


def with_value(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy with another value at this path, or with none where `value` is ``...``."""
    changed = copy.deepcopy(data)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return changed
