"""Named tuples that compiled functions take as one pointer."""

from __future__ import annotations

import pickle
import sys
from typing import Any, NamedTuple

import numpy as np
import pytest

from placewright.numerics.by_reference import by_reference
from placewright.numerics.njit import njit_cached, njit_internal, njit_no_refcount


@by_reference
class Part(NamedTuple):
    count: int
    is_on: bool
    rate: float
    values: Any
    sums: Any


@by_reference
class Whole(NamedTuple):
    part: Part
    weights: Any


@njit_internal
def _add(part: Part, at: int) -> None:
    part.sums[at] += part.values[at, 0] * part.rate


@njit_no_refcount
def _total(whole: Whole) -> float:
    total = 0.0
    for at in range(whole.part.count):
        _add(whole.part, at)
        total += whole.weights[at] * whole.part.sums[at]
    return total if whole.part.is_on else -1.0


@njit_cached
def _copy(whole: Whole) -> Any:
    return whole.part.sums[1:].copy()


def _whole(count: int, is_on: bool) -> Whole:
    part = Part(count, is_on, 0.5, np.arange(2.0 * count).reshape(count, 2), np.zeros(count))
    return Whole(part, np.arange(1.0, count + 1))


def _expected(count: int) -> np.ndarray:
    return 0.5 * np.arange(0.0, 2 * count, 2)


def test_fields_of_fields_are_read_and_what_arrays_hold_is_changed() -> None:
    """As often as they are called."""
    for count in (3, 50):
        whole = _whole(count, True)
        assert _total(whole) == pytest.approx(_expected(count) @ whole.weights)
        assert np.array_equal(whole.part.sums, _expected(count))
        assert _total(whole) == pytest.approx(2 * _expected(count) @ whole.weights)


def test_each_call_reads_its_own_tuple() -> None:
    """Nothing is kept of the call before."""
    assert [_total(_whole(n, on)) for n, on in ((2, True), (2, False), (1, True))] == [2, -1, 0]


def test_arrays_made_of_fields_outlive_the_call() -> None:
    """A copy is Python's."""
    whole = _whole(4, True)
    _total(whole)
    found, expected = _copy(whole), _expected(4)[1:]
    del whole
    assert np.array_equal(found, expected)


def test_one_compiled_function_for_all_sizes_and_its_type_can_be_stored() -> None:
    """As Numba's cache does."""
    (signature,) = {_total(_whole(n, True)) and s for n in (2, 3) for s in _total.signatures}
    assert pickle.loads(pickle.dumps(signature)) == signature


def test_a_field_that_is_not_there_is_named() -> None:
    """When it is compiled."""

    @njit_no_refcount
    def read(whole: Any) -> float:
        return whole.rate  # type: ignore[no-any-return]

    with pytest.raises(Exception, match="rate"):
        read(_whole(2, True))


def test_calls_hold_no_array_that_they_were_given() -> None:
    """Arrays are given back however deep they are, and with them the memory of what made them."""
    whole = _whole(5, is_on=True)
    _copy(whole), _total(whole)
    arrays = (whole.part.values, whole.part.sums, whole.weights)
    before = [sys.getrefcount(array) for array in arrays]
    for _ in range(10):
        _copy(whole), _total(whole)
    assert [sys.getrefcount(array) for array in arrays] == before
