"""Tensors of the Open Inference Protocol: datatypes, JSON data, raw binary data.

Binary data of one tensor are its values in row-major order, little endian, without padding.
Source: Open Inference Protocol v2, section "Tensor Data Types", and Triton's binary tensor data
extension, https://github.com/triton-inference-server/server/blob/main/docs/protocol/.
"""

from __future__ import annotations

import asyncio
import json
import math
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
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
    "BYTES": "|O",
}
"""Datatypes that are served, as numpy's; BYTES are arrays of `str`, and BF16 is not served."""

PIECE_BYTES = 1 << 15
"""Of JSON data that are read, and values that are written, at a time: about a millisecond."""

LENGTH_OF_STRING = struct.Struct("<I")

_DEEPEST = 64
"""Bytes in which the opening brackets of a nested list are looked for."""

_NO_FRAME = bytes(set(range(256)) - set(b"[],"))

_TYPES: dict[str, set[type]] = {"b": {bool}, "u": {int}, "i": {int}, "f": {int, float}}
"""Of Python's numbers, by kind of array."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output of a family.

    Attributes
    ----------
    datatype
        A key of `NUMPY`.
    shape
        The first dimension is the number of rows and is -1, unless a request is one row as a whole.
        Others are -1 where they are open.
    names
        What the model calls each dimension; empty for those that are not open.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    names: tuple[str, ...] = ()

    @property
    def dtype(self) -> np.dtype[Any]:
        """As numpy's."""
        return np.dtype(NUMPY[self.datatype])

    def sized(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape with these sizes by name."""
        names = self.names or ("",) * len(self.shape)
        return tuple(sizes.get(m, n) for n, m in zip(self.shape, names, strict=True))

    def metadata(self) -> dict[str, Any]:
        """As in the metadata of a model."""
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}


def check_shape(
    spec: TensorSpec, datatype: object, shape: object, most_rows: int
) -> tuple[int, ...]:
    """The shape of a tensor that a client declares.

    Raises `Refusal`: 400: another datatype, another shape, or more than `most_rows` rows.
    """
    if datatype != spec.datatype:
        raise Refusal(
            400, f"input {spec.name!r} has datatype {datatype!r:.50}, not {spec.datatype}"
        )
    found = tuple(shape) if isinstance(shape, list) else ()
    whole = len(found) == len(spec.shape) and all(type(n) is int and n > 0 for n in found[1:])
    if not whole or any(n not in (m, -1) for n, m in zip(spec.shape[1:], found[1:], strict=True)):
        raise Refusal(400, f"input {spec.name!r} has shape {shape!r:.100}, not {list(spec.shape)}")
    least, most = (1, most_rows) if not spec.shape or spec.shape[0] < 0 else (spec.shape[0],) * 2
    if spec.names and spec.names[0]:  # no rows, but a dimension that has sizes of its own
        most = max(most, sys.maxsize)
    if found and not (type(found[0]) is int and least <= found[0] <= most):
        rows = f"{found[0]!r:.50} rows, not {least}" + (f" to {most}" if most > least else "")
        raise Refusal(400, f"input {spec.name!r} has {rows}")
    return found


async def from_json(spec: TensorSpec, shape: tuple[int, ...], text: bytes) -> Array:
    """The tensor of a JSON list of numbers, flat or nested as its shape.

    Read in pieces, between which the loop goes on, straight into an array: neither the time in
    which nobody else is answered nor the memory grows with the number of Python objects.

    Raises `Refusal`: 400: values of another kind or out of range, or another number of them.
    """
    size, kind = math.prod(shape), spec.dtype
    head = text[:_DEEPEST].translate(None, b" \t\r\n")
    depth = len(head) - len(head.lstrip(b"["))
    try:
        # A value and its comma take two bytes: a short text allocates no large array.
        if depth not in (1, max(1, len(shape))) or len(text) < 2 * size:
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


def from_bytes(spec: TensorSpec, shape: tuple[int, ...], data: bytes | memoryview) -> Array:
    """The tensor of raw binary data.

    Raises `Refusal`: 400: another number of bytes, or of strings, or such that are no UTF-8.
    """
    if spec.datatype == "BYTES":
        return _from_lengths(spec, shape, bytes(data))
    wanted = math.prod(shape) * spec.dtype.itemsize
    if len(data) != wanted:
        raise Refusal(400, f"input {spec.name!r} has {len(data)} bytes, not {wanted}")
    return np.frombuffer(data, spec.dtype).reshape(shape)


def from_strings(spec: TensorSpec, shape: tuple[int, ...], data: object) -> Array:
    """The tensor of a JSON list of strings, flat or nested as its shape.

    Raises `Refusal`: 400: other values, another number of them, or such that are no UTF-8.
    """
    flat = isinstance(data, list) and len(data) == math.prod(shape) and type(data[0]) is str
    try:
        values: Any = data if flat else _nested(data, shape)
        if not all(type(value) is str for value in values):
            raise ValueError
        for value in values:
            value.encode()  # half of a pair of surrogates, which JSON can say, has no UTF-8
    except (ValueError, TypeError, IndexError):
        raise Refusal(
            400,
            f"input {spec.name!r}: data must be {math.prod(shape)} strings of UTF-8, flat or "
            f"nested as its shape",
        ) from None
    return _strings(values, shape)


def _nested(data: Any, shape: Sequence[int]) -> list[Any]:
    """Values of a list that is nested as the shape; else `ValueError` or `TypeError`."""
    if not isinstance(data, list) or len(data) != shape[0]:
        raise ValueError
    return data if len(shape) == 1 else [v for each in data for v in _nested(each, shape[1:])]


def _from_lengths(spec: TensorSpec, shape: tuple[int, ...], data: bytes) -> Array:
    """Strings, each behind the four bytes of its length."""
    values, place, wanted = list[str](), 0, math.prod(shape)
    try:
        while place < len(data) and len(values) < wanted:
            (size,) = LENGTH_OF_STRING.unpack_from(data, place)
            place += LENGTH_OF_STRING.size + size
            if place > len(data):
                raise ValueError
            values.append(data[place - size : place].decode())
        if place != len(data) or len(values) != wanted:
            raise ValueError
    except (ValueError, struct.error):
        raise Refusal(
            400,
            f"input {spec.name!r}: data must be {wanted} strings of UTF-8, each behind its length "
            "in four bytes",
        ) from None
    return _strings(values, shape)


def _strings(values: Sequence[str], shape: tuple[int, ...]) -> Array:
    # Not `np.array(values, object)`, which would look into them.
    found: Array = np.empty(len(values), object)
    found[:] = values
    return found.reshape(shape)


def to_bytes(value: Array) -> bytes:
    """Raw binary data of a tensor."""
    if value.dtype.kind != "O":
        return np.ascontiguousarray(value).tobytes()
    texts = [str(text).encode() for text in value.reshape(-1)]
    return b"".join(LENGTH_OF_STRING.pack(len(text)) + text for text in texts)


@dataclass(frozen=True, slots=True)
class Strings:
    """An array of strings as a message: those hold arrays of numbers only."""

    shape: tuple[int, ...]
    values: tuple[str, ...]


def served_array(value: Any) -> Array:
    """An output of a model as a tensor: an array, a tensor of PyTorch, or lists of values.

    Raises `TypeError`, `UnicodeError`: it holds neither numbers nor texts.
    """
    if hasattr(value, "detach"):
        value = value.detach().cpu().resolve_conj().resolve_neg().numpy()
    if np.ma.is_masked(value):
        raise TypeError("values are masked: fill them, numpy.ma.filled(values, ...)")
    found = np.asarray(value)
    if found.dtype.kind in "biuf":
        return found.astype(found.dtype.newbyteorder("<"), copy=False)
    # Not of `found`: numpy's own strings end before their last zero bytes.
    held = np.array(value, object)
    return _strings([_text(each) for each in held.flat], held.shape)


def _text(value: object) -> str:
    """A text, of its bytes where a model gives those."""
    if isinstance(value, bytes):
        return value.decode()
    if not isinstance(value, str):
        raise TypeError(f"an output holds {type(value).__name__}, neither numbers nor texts")
    value.encode()  # raises where there is no UTF-8 for it
    return str(value)


def sendable(value: Array) -> Array | Strings:
    """A tensor as it is sent to another process."""
    return Strings(value.shape, tuple(map(str, value.flat))) if value.dtype.kind == "O" else value


def received(value: Array | Strings) -> Array:
    """The tensor that `sendable` was given."""
    return _strings(value.values, value.shape) if isinstance(value, Strings) else value
