"""Frozen arrays, their axes, and their versions for kernels."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from placewright.errors import InputError
from placewright.numerics.arrays import (
    FloatArray,
    IntArray,
    axes,
    check_axes,
    check_names,
    fill_in,
    freeze_arrays,
    frozen_bool,
    frozen_float,
    frozen_int,
    table,
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


@dataclass(frozen=True)
class Tables:
    """Arrays whose fields say which axes they have."""

    rows: FloatArray = field(metadata=axes("nk"))
    pairs: FloatArray = table("n2", np.nan)
    kind: IntArray = table("n", 3)

    def __post_init__(self) -> None:
        fill_in(self, {"n": len(self.rows), "k": 3})
        freeze_arrays(self)


def test_arrays_that_are_left_out_are_full_of_their_value() -> None:
    """Also where an empty list stands for them; others stay, of whatever shape."""
    made = Tables(np.ones((4, 3)))
    assert made.pairs.shape == (4, 2)
    assert np.isnan(made.pairs).all()
    assert made.kind.tolist() == [3] * 4
    given = Tables([[1.0, 2.0, 3.0]], [], [7])  # type: ignore[arg-type]
    assert given.pairs.shape == (1, 2)
    assert given.kind.tolist() == [7]
    assert Tables(np.ones((2, 3)), [[]]).pairs.shape == (1, 0)  # type: ignore[arg-type]


def test_an_array_with_other_axes_is_refused() -> None:
    """By its name, with both shapes; else all come by their names."""
    made = Tables(np.ones((4, 3)))
    assert [*check_axes(made, {"n": 4, "k": 3}, "here")] == ["rows", "pairs", "kind"]
    for key, value, shapes in (
        ("rows", np.ones((4, 2)), r"\(4, 2\), expected \(4, 3\)"),
        ("pairs", np.ones((4, 3)), r"\(4, 3\), expected \(4, 2\)"),
        ("kind", np.ones((4, 1)), r"\(4, 1\), expected \(4,\)"),
    ):
        with pytest.raises(InputError, match=f"^here: {key} has the wrong shape \\({shapes}\\)"):
            check_axes(replace(made, **{key: value}), {"n": 4, "k": 3}, "here")


def test_two_of_a_kind_have_other_names() -> None:
    """The first name that is there twice is named."""
    check_names("node", (x for x in "abc"), "here")
    with pytest.raises(InputError, match=r"^here: the node 'b' is there twice\n  next: rename it"):
        check_names("node", "abcbc", "here", "rename it")
