"""Tensors of the Open Inference Protocol: datatypes, JSON data, raw binary data.

Binary data of one tensor are its values in row-major order, little endian, without padding.
Source: Open Inference Protocol v2, section "Tensor Data Types", and Triton's binary tensor data
extension, https://github.com/triton-inference-server/server/blob/main/docs/protocol/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from placewright.requests.serving.errors import Refusal

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
        raise Refusal(400, f"input {spec.name!r} has datatype {datatype!r}, not {spec.datatype!r}")
    whole = isinstance(shape, list) and all(type(n) is int for n in shape)
    if not whole or tuple(shape[1:]) != spec.shape[1:] or len(shape) != len(spec.shape):  # type: ignore[index,arg-type]
        raise Refusal(400, f"input {spec.name!r} has shape {shape!r:.100}, not {list(spec.shape)}")
    rows: int = shape[0]  # type: ignore[index]
    if not 1 <= rows <= most_rows:
        raise Refusal(400, f"input {spec.name!r} has {rows} rows, not 1 to {most_rows}")
    return rows


def from_json(spec: TensorSpec, rows: int, data: object) -> Array:
    """The tensor of JSON data, nested or flat.

    Raises `Refusal`: 400: values of another kind, or another number of them.
    """
    shape = (rows, *spec.shape[1:])
    kind = np.dtype(NUMPY[spec.datatype]).kind
    try:
        found = np.array(data)
        fits = found.dtype.kind in {"b": "b", "u": "iu", "i": "iu", "f": "iuf"}[kind]
        if not isinstance(data, list) or not fits or found.size != int(np.prod(shape)):
            raise ValueError
        values = found.astype(NUMPY[spec.datatype])
        if kind in "iu" and (values != found).any():
            raise ValueError
        return values.reshape(shape)
    except (ValueError, TypeError, OverflowError):
        raise Refusal(
            400,
            f"input {spec.name!r}: data must be {int(np.prod(shape))} values of {spec.datatype}",
        ) from None


def from_bytes(spec: TensorSpec, rows: int, data: bytes | memoryview) -> Array:
    """The tensor of raw binary data.

    Raises `Refusal`: 400: another number of bytes.
    """
    shape, kind = (rows, *spec.shape[1:]), np.dtype(NUMPY[spec.datatype])
    wanted = int(np.prod(shape)) * kind.itemsize
    if len(data) != wanted:
        raise Refusal(400, f"input {spec.name!r} has {len(data)} bytes, not {wanted}")
    return np.frombuffer(data, kind).reshape(shape)
