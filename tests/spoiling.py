"""Files with one value spoilt, for tests of what reads them."""

from __future__ import annotations

import copy
from typing import Any

HOSTILE = (
    *(None, True, -1, 0, 2.5, 1e308, 10**30, 10**400, float("nan"), float("inf")),
    *("", "x", [], [[]], {}, {"a": {"b": []}}),
)
"""Whatever the value should be."""


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where there is a value."""
    inner: Any = ()
    if isinstance(data, dict | list):
        inner = data.items() if isinstance(data, dict) else enumerate(data)
    deeper = [found for key, value in inner for found in places(value, (*path, key))]
    return ([path] if path else []) + deeper


def spoilt(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The same with another value there; ``...`` for none."""
    made = copy.deepcopy(data)
    inner = made
    for key in path[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return made
