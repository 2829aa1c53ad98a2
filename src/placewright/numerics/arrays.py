"""Arrays that problems, plans and traces are made of: their types, their axes, names along them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field, fields
from functools import cache
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


def frozen_int(values: Any, where: str = "") -> IntArray:
    """A read-only int64 copy of `values`; `where` they stand, for errors.

    Raises `InputError`: what is no whole number, or one that 64 bits cannot hold.
    """
    given = np.asarray(values)
    if given.size and given.dtype.kind not in "biufO":
        raise _no_whole_numbers(given, where)
    try:
        with np.errstate(invalid="ignore"):
            made = np.array(values, dtype=np.int64, order="C")
    except OverflowError:
        by = "at most 2^63 - 1"
        raise InputError("a whole number is too large", where=where, by=by) from None
    except (TypeError, ValueError):  # objects
        raise _no_whole_numbers(given, where) from None
    if given.dtype.kind in "fO" and not (made == given).all():
        raise _no_whole_numbers(given, where)
    return _frozen(made)


def _no_whole_numbers(given: npt.NDArray[Any], where: str) -> InputError:
    by, hint = f"got an array of {given.dtype}", "give an array of whole numbers"
    return InputError("must be whole numbers", where=where, by=by, hint=hint)


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


def axes(letters: str) -> dict[str, Any]:
    """What says of a dataclass' array which axes it has: ``field(metadata=axes("nk"))``.

    `letters`: one for each axis, or a digit for one of that size.
    """
    return {"axes": letters}


def table(letters: str, value: float = 0.0) -> Any:
    """A field of a dataclass that may be left out: an array with these `axes`, full of `value`."""
    metadata = {**axes(letters), "value": value}
    return field(default_factory=lambda: np.zeros(0), metadata=metadata)


@cache
def _tables(kind: Any) -> tuple[tuple[str, str, float | None], ...]:
    """Name and axes of a dataclass' arrays, and what those are full of that may be left out."""
    found = [(f.name, f.metadata) for f in fields(kind) if "axes" in f.metadata]
    return tuple((name, known["axes"], known.get("value")) for name, known in found)


def fill_in(record: Any, sizes: Mapping[str, int]) -> None:
    """Set arrays that were left out. `sizes`: of the axes, by their letters."""
    for name, letters, value in _tables(record.__class__):
        if value is not None and _is_left_out(getattr(record, name)):
            object.__setattr__(record, name, np.full(_shape(letters, sizes), value))


def check_axes(record: Any, sizes: Mapping[str, int], where: str) -> dict[str, npt.NDArray[Any]]:
    """Refuse arrays that do not have their `axes`.

    Raises `InputError`, which names the first of them.

    Returns
    -------
    All of them, by name.
    """
    found = {}
    for name, letters, _ in _tables(record.__class__):
        array, expected = getattr(record, name), _shape(letters, sizes)
        if array.shape != expected:
            by = f"{array.shape}, expected {expected}"
            raise InputError(f"{name} has the wrong shape", where=where, by=by)
        found[name] = array
    return found


def digest_of(*records: Any, leave_out: Collection[str] = ()) -> str:
    """SHA-256 over the fields of dataclasses, but for those with one of these names."""
    digest = hashlib.sha256()
    for record in records:
        for item in fields(record):
            if item.name not in leave_out:
                value = getattr(record, item.name)
                digest.update(item.name.encode() + b"\0")
                array = isinstance(value, np.ndarray)
                digest.update(np.ascontiguousarray(value).data if array else repr(value).encode())
    return digest.hexdigest()


def check_names(kind: str, names: Iterable[str], where: str, hint: str = "") -> None:
    """Raise `InputError` where two of a kind have the same name."""
    twice = next((name for name, times in Counter(names).items() if times > 1), None)
    if twice is not None:
        raise InputError(f"the {kind} {twice!r} is there twice", where=where, hint=hint)


def _is_left_out(given: Any) -> bool:
    shape = getattr(given, "shape", None)
    return given in ([], ()) if shape is None else shape[:1] == (0,)


def _shape(letters: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(int(a) if a.isdigit() else sizes[a] for a in letters)


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
