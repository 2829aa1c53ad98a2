"""Arguments of an fx node as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from placewright.errors import UnsupportedError
from placewright.graph.program import Const, Ref


def plain(argument: Any, values: Mapping[fx.Node, str], where: str) -> Any:
    """Numbers, strings, ``None``, `Ref`, `Const`, and tuples of these.

    Parameters
    ----------
    values
        The value name of every node that was lowered before.
    where
        The operator's name, for the error.
    """
    if isinstance(argument, fx.Node):
        return Ref(values[argument])
    if isinstance(argument, tuple | list):
        return tuple(plain(part, values, where) for part in argument)
    if argument is None or isinstance(argument, bool | int | float | str):
        return argument
    for kind, type_ in _CONSTANTS.items():
        if isinstance(argument, type_):
            return Const(kind, str(argument).removeprefix("torch."))
    raise UnsupportedError(
        f"an argument of type {type(argument).__name__}",
        where=f"operator {where!r}",
        hint="only tensors, numbers, strings and lists of these can be kept in a program",
    )


_CONSTANTS = {
    "dtype": torch.dtype,
    "device": torch.device,
    "layout": torch.layout,
    "memory_format": torch.memory_format,
}
