"""Names for the array types that problems, plans and traces are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from placewright.errors import InputError

T = TypeVar("T", bound=np.generic)

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

FloatVector: TypeAlias = Annotated[FloatArray, 1]
IntVector: TypeAlias = Annotated[IntArray, 1]
"""Arrays with one axis: `placewright.io.arguments` refuses others."""

Numbers: TypeAlias = Annotated[Any, 1]
NumberTable: TypeAlias = Annotated[Any, 2]
"""Arguments that become a `FloatArray` with so many axes: lists of numbers, or an array."""


def frozen_float(values: Any) -> FloatArray:
    """A read-only float64 copy of `values`."""
    return _frozen(np.array(values, dtype=np.float64, order="C"))


def frozen_int(values: Any) -> IntArray:
    """A read-only int64 copy of `values`.

    Raises `InputError`: a number that 64 bits cannot hold.
    """
    try:
        return _frozen(np.array(values, dtype=np.int64, order="C"))
    except OverflowError:
        raise InputError("a whole number is too large", by="at most 2^63 - 1") from None


def frozen_bool(values: Any) -> BoolArray:
    """A read-only boolean copy of `values`."""
    return _frozen(np.array(values, dtype=np.bool_, order="C"))


def freeze_arrays(record: Any) -> None:
    """Put read-only copies in the place of a frozen dataclass' arrays, by their annotations.

    For ``__post_init__``. Arrays may be given as nested lists; ``None`` stays where it is a type.
    """
    for item in fields(record):
        freeze = _FREEZE.get(str(item.type).removesuffix(" | None"))
        if freeze is not None and getattr(record, item.name) is not None:
            object.__setattr__(record, item.name, freeze(getattr(record, item.name)))


_FREEZE: dict[str, Callable[[Any], Any]] = {
    "FloatArray": frozen_float,
    "FloatVector": frozen_float,
    "IntArray": frozen_int,
    "IntVector": frozen_int,
    "BoolArray": frozen_bool,
}


def thawed(array: Any) -> Any:
    """The same numbers for a kernel that reads them only, not marked as read-only.

    Numba compiles a function again for arrays that are marked.
    """
    owner = array.base
    if array.flags.writeable:
        return array
    if isinstance(owner, np.ndarray) and owner.flags.writeable and owner.shape == array.shape:
        return owner
    return array.copy()


def _frozen(owner: npt.NDArray[T]) -> npt.NDArray[T]:
    """A read-only view, the whole of its owner: see `thawed`."""
    array = owner.view()
    array.setflags(write=False)
    return array
