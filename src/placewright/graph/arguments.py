"""Arguments of instructions as JSON, and back.

A value is ``{"ref": "relu"}``, a constant of the framework ``{"dtype": "float32"}``, a number
that JSON cannot write ``{"float": "inf"}``; all else is itself, and tuples are lists.
"""

from __future__ import annotations

import math
from typing import Any

from placewright.errors import InputError
from placewright.graph.program import Const, Ref

CONSTANTS = ("dtype", "device", "layout", "memory_format")
_UNWRITABLE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def argument_json(argument: Any) -> Any:
    """An argument as JSON data."""
    if isinstance(argument, Ref):
        return {"ref": argument.name}
    if isinstance(argument, Const):
        return {argument.kind: argument.value}
    if isinstance(argument, tuple | list):
        return [argument_json(part) for part in argument]
    if isinstance(argument, float) and not math.isfinite(argument):
        return {"float": str(argument)}
    return argument


def argument_from_json(data: Any) -> Any:
    """The argument that `argument_json` wrote.

    Raises
    ------
    InputError
        A mapping that stands for nothing we know.
    """
    if isinstance(data, list | tuple):
        return tuple(argument_from_json(part) for part in data)
    if not isinstance(data, dict):
        return data
    kind, value = next(iter(data.items())) if len(data) == 1 else ("", None)
    if kind == "ref" and isinstance(value, str):
        return Ref(value)
    if kind in CONSTANTS and isinstance(value, str):
        return Const(kind, value)
    if kind == "float" and value in _UNWRITABLE:
        return _UNWRITABLE[value]
    raise InputError(
        "is no argument",
        by=f"got {data!r}"[:80],
        hint=f'write {{"ref": NAME}}, {{"float": "inf"}} or one of {", ".join(CONSTANTS)}',
    )
