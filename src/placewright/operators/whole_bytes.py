"""Bytes as judges and searches count them: whole ones, in 64 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import InputError
from placewright.numerics.arrays import FloatArray, IntArray, frozen_float

if TYPE_CHECKING:
    from placewright.operators.problem import OperatorProblem

UNLIMITED = 2**62
"""Bytes that no plan reaches (see `check_bytes`), so a device with as many has no limit."""


def whole_bytes(values: FloatArray) -> IntArray:
    """Rounded up to int64, read-only."""
    result = np.ceil(values).astype(np.int64)
    result.setflags(write=False)
    return result


def room_bytes(p: OperatorProblem) -> IntArray:
    """Shape (m,): whole bytes that fit on each device, `UNLIMITED` where nothing limits them."""
    return whole_bytes(np.floor(np.minimum(p.memory_bytes, float(UNLIMITED))))


def limits_that_bind(memory_bytes: FloatArray) -> FloatArray:
    """The same, ``inf`` where no plan reaches the limit."""
    return frozen_float(np.where(memory_bytes >= UNLIMITED, np.inf, memory_bytes))


def check_bytes(p: OperatorProblem) -> None:
    """Raise where 64 bits might not count what a plan holds, every tensor on every device."""
    most = float(np.ceil(p.resident_bytes).sum() + p.m * np.ceil(p.tensor_bytes).sum())
    if not most < UNLIMITED:
        raise InputError(
            "more bytes than can be counted",
            where=p.name,
            by=f"up to {most:.3g} resident and in tensors, must be below 2^62",
            hint="give resident_bytes and tensor_bytes in bytes",
        )
