"""Views: tensors that share memory with another where they are made (transposes, slices, ...)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import InputError
from placewright.numerics.arrays import FloatArray, IntArray

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
    rank = np.empty(p.n, dtype=np.int64)
    rank[p.topology.order] = np.arange(p.n)
    return found[np.argsort(-rank[p.tensor_producer[found]], kind="stable")]


def check_views(p: OperatorProblem) -> None:
    """Raise where a view is of no tensor, or of one that its producer does not read."""
    alias = p.alias_of
    if len(alias) and (alias.min() < OF_RESIDENT or alias.max() >= p.t):
        raise InputError("alias_of names a tensor that does not exist", where=p.name)
    for k in np.flatnonzero(alias >= 0).tolist():
        base = int(alias[k])
        readers = p.consumers[p.consumer_offsets[base] : p.consumer_offsets[base + 1]]
        if p.tensor_producer[k] not in readers:
            raise InputError(
                "a view must be made by an operator that reads what it is a view of",
                where=f"{p.name}: tensor {p.tensor_names[k]!r}",
                by=f"{p.operator_names[p.tensor_producer[k]]!r} does not read "
                f"{p.tensor_names[base]!r}",
            )
