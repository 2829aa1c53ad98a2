"""Messages as data: numbers, text, bytes, arrays, sequences, mappings, and listed dataclasses.

On the wire a message is msgpack. Sequences of any kind arrive as tuples. Two extensions are known:

    ExtType(1, msgpack(["TensorSpec", [2, 3], "float32", [3, 1]]))    a dataclass: name, its fields
    ExtType(2, msgpack(["<f8", [2, 3], b"..."]))                      an array: dtype, shape, bytes

Of dataclasses only the ones that the reader has listed are made, by their constructor, from nothing
but data; arrays hold numbers only. Unlike a pickle, a message names no function to call.
"""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from typing import Any

import msgpack
import numpy as np

from placewright.errors import RunError

_DATACLASS, _ARRAY = 1, 2
"""Types of extensions."""

_NUMBERS = "biuf"
"""Kinds of arrays: truth values, integers with and without sign, floating-point numbers."""


class Codec:
    """Packs messages and unpacks them.

    `kinds`: dataclasses that messages may hold; no two of one name.
    """

    def __init__(self, *kinds: type) -> None:
        self._kinds = {kind.__name__: kind for kind in kinds}
        self._fields = {kind: tuple(f.name for f in fields(kind)) for kind in kinds}

    def pack(self, message: Any) -> bytes:
        """The message as bytes.

        Raises `TypeError`: it holds something that is neither plain data nor one of `kinds`.
        """
        packed: bytes = msgpack.packb(message, default=self._extension, use_bin_type=True)
        return packed

    def unpack(self, data: bytes) -> Any:
        """The message that `pack` packed.

        Raises `RunError`: these bytes are no message that this version of Placewright knows.
        """
        try:
            return self._unpacked(data)
        except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
            raise RunError(
                "a message from another process cannot be read",
                by=f"{type(error).__name__}: {error}"[:200],
                hint="install the same version of Placewright on every machine",
            ) from None

    def _unpacked(self, data: bytes) -> Any:
        # Tuples, so that sequences can be keys of mappings; `_made` unpacks what is in an
        # extension.
        return msgpack.unpackb(
            data, use_list=False, raw=False, strict_map_key=False, ext_hook=self._made
        )

    def _extension(self, value: Any) -> msgpack.ExtType:
        if isinstance(value, np.ndarray) and value.dtype.kind in _NUMBERS:
            return msgpack.ExtType(
                _ARRAY, msgpack.packb([value.dtype.str, value.shape, value.tobytes()])
            )
        names = self._fields.get(type(value))
        if names is None:
            what = "dataclass" if is_dataclass(value) else "value"
            raise TypeError(f"a {what} of type {type(value).__name__} cannot be sent")
        entry = [type(value).__name__, *(getattr(value, name) for name in names)]
        return msgpack.ExtType(_DATACLASS, self.pack(entry))

    def _made(self, code: int, data: bytes) -> Any:
        if code == _ARRAY:
            return _array(*self._unpacked(data))
        if code != _DATACLASS:
            raise ValueError(f"extension {code} is unknown")
        name, *values = self._unpacked(data)
        return self._kinds[name](*values)


def _array(dtype: str, shape: tuple[int, ...], data: bytes) -> np.ndarray[Any, Any]:
    if not re.fullmatch(rf"[<>|][{_NUMBERS}]\d\d?", dtype):
        raise ValueError(f"arrays of {dtype!r} are no data")
    # Reads no more than `data`, whatever shape is said: a larger one is a `TypeError`.
    found = np.ndarray(shape, dtype, buffer=data)
    if found.nbytes != len(data):
        raise ValueError(f"an array of {found.nbytes} bytes has {len(data)}")
    # What msgpack gives is read-only, and the whole message would live as long as the array.
    return found.copy()


PLAIN = Codec()
"""Data without dataclasses."""
