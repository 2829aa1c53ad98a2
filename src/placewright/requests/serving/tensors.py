"""Tensors of the Open Inference Protocol: datatypes, JSON data, raw binary data.

Binary data of one tensor are its values in row-major order, little endian, without padding.
Source: Open Inference Protocol v2, section "Tensor Data Types", and Triton's binary tensor data
extension, https://github.com/triton-inference-server/server/blob/main/docs/protocol/.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from placewright.web.refusals import Refusal

Array = np.ndarray[Any, Any]

NUMPY = {
    "BOOL": "|b1",
    "UINT8": "|u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "INT8": "|i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
}
"""Datatypes that are served, as numpy's; BYTES and BF16 are not."""

PIECE_BYTES = 1 << 15
"""Of JSON data that are read, and values that are written, at a time: about a millisecond."""

_DEEPEST = 64
"""Bytes in which the opening brackets of a nested list are looked for."""

_NO_FRAME = bytes(set(range(256)) - set(b"[],"))

_TYPES: dict[str, set[type]] = {"b": {bool}, "u": {int}, "i": {int}, "f": {int, float}}
"""Of Python's numbers, by kind of array."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output of a family.

    `datatype`: a key of `NUMPY`.
    `shape`: the first dimension is the number of rows and is -1.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]

    def metadata(self) -> dict[str, Any]:
        """As in the metadata of a model."""
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}


def check_shape(spec: TensorSpec, datatype: object, shape: object, most_rows: int) -> int:
    """Rows of a tensor that a client declares.

    Raises `Refusal`: 400: another datatype, another shape, or more than `most_rows` rows.
    """
    if datatype != spec.datatype:
        raise Refusal(
            400, f"input {spec.name!r} has datatype {datatype!r:.50}, not {spec.datatype}"
        )
    whole = isinstance(shape, list) and all(type(n) is int for n in shape)
    if not whole or tuple(shape[1:]) != spec.shape[1:] or len(shape) != len(spec.shape):  # type: ignore[index,arg-type]
        raise Refusal(400, f"input {spec.name!r} has shape {shape!r:.100}, not {list(spec.shape)}")
    rows: int = shape[0]  # type: ignore[index]
    if not 1 <= rows <= most_rows:
        raise Refusal(400, f"input {spec.name!r} has {rows} rows, not 1 to {most_rows}")
    return rows


async def from_json(spec: TensorSpec, rows: int, text: bytes) -> Array:
    """The tensor of a JSON list of numbers, flat or nested as its shape.

    Read in pieces, between which the loop goes on, straight into an array: neither the time in
    which nobody else is answered nor the memory grows with the number of Python objects.

    Raises `Refusal`: 400: values of another kind or out of range, or another number of them.
    """
    shape = (rows, *spec.shape[1:])
    size, kind = int(np.prod(shape)), np.dtype(NUMPY[spec.datatype])
    head = text[:_DEEPEST].translate(None, b" \t\r\n")
    depth = len(head) - len(head.lstrip(b"["))
    try:
        # A value and its comma take two bytes: a short text allocates no large array.
        if depth not in (1, len(shape)) or len(text) < 2 * size:
            raise ValueError
        found = np.empty(size, kind)
        filled = 0
        for values in _pieces(text, _frame((size,) if depth == 1 else shape), depth):
            found[filled : filled + len(values)] = _converted(values, kind)
            filled += len(values)
            if filled < size:
                await asyncio.sleep(0)
        if filled != size:
            raise ValueError
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise Refusal(
            400,
            f"input {spec.name!r}: data must be {size} values of {spec.datatype}, flat or nested "
            f"as its shape",
        ) from None
    return found.reshape(shape)


def _frame(shape: Sequence[int]) -> bytes:
    """Brackets and commas of a nested list of this shape."""
    text = b""
    for size in reversed(shape):
        text = b"[" + b",".join([text] * size) + b"]"
    return text


def _pieces(text: bytes, frame: bytes, depth: int) -> Iterator[list[Any]]:
    """Values of a nested list, piece by piece.

    A piece ends at a comma, wherever in the list that is; with the brackets that are open there it
    is a list of its own, which has to be JSON:

        [[1,2],[3,4]]  ->  [[1  2],[3  4]]  ->  [[1]]  [[2],[3]]  [[4]]

    Raises `ValueError`, `TypeError`: it is no JSON, or its brackets and commas are not `frame`.
    """
    start = place = opened = 0
    while start < len(text):
        end = text.find(b",", start + PIECE_BYTES)
        end = len(text) if end < 0 else end
        piece = text[start:end]
        own = piece.translate(None, _NO_FRAME)
        # The comma at which the piece ends is part of the frame.
        ends = own + b"," if end < len(text) else own
        if end - start > 2 * PIECE_BYTES or not frame.startswith(ends, place):
            raise ValueError
        after = opened + own.count(b"[") - own.count(b"]")
        values: Any = _NUMBERS.decode("[" * opened + piece.decode("ascii") + "]" * after)
        for _ in range(depth - 1):
            values = list(chain.from_iterable(values))
        yield values
        start, place, opened = end + 1, place + len(ends), after
    if place != len(frame):
        raise ValueError


def _converted(values: list[Any], kind: np.dtype[Any]) -> Array:
    """Python's numbers as such an array. Types are looked at before numpy sees them.

    Raises `ValueError`, `OverflowError`: another kind of number, or one that does not fit.
    """
    if values and not set(map(type, values)) <= _TYPES[kind.kind]:
        raise ValueError
    if kind.kind in "iu" and values:
        info = np.iinfo(kind)
        if min(values) < info.min or max(values) > info.max:
            raise ValueError
    if kind.kind != "f":
        return np.array(values, kind)
    with np.errstate(over="ignore"):
        found = np.array(values, np.float64).astype(kind)
    if not np.isfinite(found).all():  # JSON has no infinity: the number is too large
        raise ValueError
    return found


def no_constant(name: str) -> float:
    """Refuse NaN and infinity, which Python's JSON reader would take."""
    raise ValueError(f"{name} is no JSON number")


_NUMBERS = json.JSONDecoder(parse_constant=no_constant)


def from_bytes(spec: TensorSpec, rows: int, data: bytes | memoryview) -> Array:
    """The tensor of raw binary data.

    Raises `Refusal`: 400: another number of bytes.
    """
    shape, kind = (rows, *spec.shape[1:]), np.dtype(NUMPY[spec.datatype])
    wanted = int(np.prod(shape)) * kind.itemsize
    if len(data) != wanted:
        raise Refusal(400, f"input {spec.name!r} has {len(data)} bytes, not {wanted}")
    return np.frombuffer(data, kind).reshape(shape)
