"""Names for the array types that problems, plans and traces are made of."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from placewright.errors import InputError

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]


def frozen_float(values: Any) -> FloatArray:
    """A read-only float64 copy of `values`."""
    array = np.array(values, dtype=np.float64, order="C")
    array.setflags(write=False)
    return array


def frozen_int(values: Any) -> IntArray:
    """A read-only int64 copy of `values`.

    Raises
    ------
    InputError
        A number that 64 bits cannot hold.
    """
    try:
        array = np.array(values, dtype=np.int64, order="C")
    except OverflowError:
        raise InputError("a whole number is too large", by="at most 2^63 - 1") from None
    array.setflags(write=False)
    return array


def frozen_bool(values: Any) -> BoolArray:
    """A read-only boolean copy of `values`."""
    array = np.array(values, dtype=np.bool_, order="C")
    array.setflags(write=False)
    return array
