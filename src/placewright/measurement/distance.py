"""How far two arrays are apart: what is checked of a model that another runtime executes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def distance(made: Array | None, wanted: Array) -> tuple[float, float]:
    """Largest absolute difference, and the largest finite magnitude of `wanted`.

    The difference is ``inf`` where `made` is missing, of another shape or type, or not finite in
    another way. What is not finite has no magnitude that a tolerance could be a share of.
    """
    kind = np.complex128 if np.iscomplexobj(wanted) else np.float64
    b = wanted.astype(kind)
    largest = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
    if made is None or made.shape != wanted.shape or made.dtype != wanted.dtype:
        return math.inf, largest
    a = made.astype(kind)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    apart = np.abs(a[~same] - b[~same])
    return float(np.where(np.isfinite(apart), apart, np.inf).max(initial=0.0)), largest
