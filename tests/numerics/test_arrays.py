"""Frozen arrays and their versions for kernels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from placewright.numerics.arrays import (
    FloatArray,
    IntArray,
    freeze_arrays,
    frozen_bool,
    frozen_float,
    frozen_int,
    thawed,
)


@pytest.mark.parametrize("freeze", [frozen_bool, frozen_float, frozen_int])
def test_frozen_is_a_copy_that_refuses_writes(freeze: object) -> None:
    """What is frozen neither changes nor shares memory with what it was made of."""
    array = np.ones((2, 3))
    frozen = freeze(array)  # type: ignore[operator]
    array[:] = 0
    assert frozen.all()
    with pytest.raises(ValueError, match="read-only"):
        frozen[0, 0] = 0


@dataclass(frozen=True)
class Record:
    """What a problem is made of."""

    times_s: FloatArray
    count: IntArray | None = None
    name: str = "one"

    def __post_init__(self) -> None:
        freeze_arrays(self)


def test_arrays_of_a_record_are_frozen_by_their_annotations() -> None:
    """Lists become arrays of their type; what is no array, or not given, stays."""
    record = Record([1, 2], [3.0])  # type: ignore[arg-type]
    assert record.times_s.dtype == np.float64
    assert record.count is not None
    assert record.count.dtype == np.int64
    assert not record.times_s.flags.writeable
    assert Record(np.ones(1)).count is None


def test_thawed_shows_numba_one_type() -> None:
    """The same memory where it can be, a copy of a part, and never marked as read-only."""
    frozen = frozen_int(np.arange(6).reshape(2, 3))
    for array in (frozen, frozen[1], frozen.ravel(), np.arange(3)):
        assert thawed(array).tolist() == array.tolist()
        assert thawed(array).flags.writeable
    assert np.shares_memory(thawed(frozen), frozen)
    assert not np.shares_memory(thawed(frozen[1]), frozen)
