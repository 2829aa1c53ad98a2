"""Names for the array types that problems, plans and traces are made of."""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from placewright.errors import InputError

T = TypeVar("T", bound=np.generic)

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]


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
