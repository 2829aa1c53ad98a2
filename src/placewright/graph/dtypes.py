"""What the elements of a value may be, by the names that PyTorch has for them."""

from __future__ import annotations

NO_DTYPE = "none"
"""Of an output that is ``None``, which nobody can read."""

DTYPES = (
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "bool",
    *("int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
    *("complex32", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    "float4_e2m1fn_x2",
    *("int1", "int2", "int3", "int4", "int5", "int6", "int7"),
    *("uint1", "uint2", "uint3", "uint4", "uint5", "uint6", "uint7"),
    *("qint8", "qint32", "quint8", "quint4x2", "quint2x4"),
    *("bits8", "bits16", "bits1x8", "bits2x4", "bits4x2"),
    NO_DTYPE,
)
"""Every one of them, the usual ones first."""
