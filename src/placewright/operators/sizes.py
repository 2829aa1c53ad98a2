"""Bytes as the judge and searches count them: whole ones, in 64 bits, and views (rules N2, M5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray, frozen_float

if TYPE_CHECKING:
    from placewright.operators.problem import OperatorProblem

NO_VIEW = -1
"""`alias_of` of a tensor with memory of its own."""

OF_RESIDENT = -2
"""`alias_of` of a view of what is always there: a weight, a buffer, an input of the model."""


def home_bytes(p: OperatorProblem) -> FloatArray:
    """Shape (t,): bytes that a tensor takes where it is made; where it is received, all of it."""
    return np.where(p.alias_of == NO_VIEW, p.tensor_bytes, 0.0)


def views(p: OperatorProblem) -> IntArray:
    """Views of tensors, each before what it is a view of."""
    found = np.flatnonzero(p.alias_of >= 0)
    # A view's producer reads its base, and so comes later in the topological order than the base's.
    return found[np.argsort(-p.topology.position[p.tensor_producer[found]], kind="stable")]


UNLIMITED = 2**62
"""Bytes that no plan reaches (`placewright.operators.problem`): a memory of as many is no limit."""


def whole_bytes(values: FloatArray) -> IntArray:
    """Rounded up to int64, read-only."""
    result = np.ceil(values).astype(np.int64)
    result.setflags(write=False)
    return result


def room_bytes(p: OperatorProblem) -> IntArray:
    """Shape (m,): whole bytes that fit on each device, `UNLIMITED` where nothing limits them."""
    return whole_bytes(np.floor(np.minimum(p.memory_bytes, float(UNLIMITED))))


def limits_that_bind(memory_bytes: FloatArray) -> FloatArray:
    """Memories with ``inf`` where no plan reaches the limit."""
    return frozen_float(np.where(memory_bytes >= UNLIMITED, np.inf, memory_bytes))
