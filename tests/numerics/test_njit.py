"""How often numba compiles one function."""

from __future__ import annotations

from typing import Any, cast

from placewright.numerics.njit import inner, lean


@inner
def double(x: int) -> int:
    """Called with numbers that stand in the code."""
    return 2 * x


@lean
def sums(x: int) -> int:
    """Calls `double` in three ways."""
    return double(3) + double(4) + double(x)


def test_numbers_in_a_call_are_of_one_type() -> None:
    """Neither 3 nor 4 has a compiled function of its own."""
    plain, caller = cast("Any", double), cast("Any", sums)
    assert sums(5) == 24
    caller.recompile()  # what a former run left on the disk would compile nothing
    assert len(plain.overloads) == 1
