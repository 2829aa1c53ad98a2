"""Solve small PBQPs by toulbar2 as a second exact engine.

toulbar2 (github.com/toulbar2/toulbar2, MIT) solves cost function networks by branch and bound
with soft arc consistency.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Iterator
from importlib import import_module

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.solvers.pbqp import Pbqp

DECIMALS = 6
"""Digits after the point that are kept where costs are not whole."""


def solve_by_toulbar2(p: Pbqp, *, time_limit_s: int = 0) -> IntArray | None:
    """An optimal choice, shape (n,); ``None`` if nothing fits or the time (0: any) is up."""
    engine = import_module("pytoulbar2")
    finite = np.concatenate([p.cost, p.pool])
    finite = finite[finite < np.inf]
    top = float(np.abs(finite).sum()) + 1.0
    whole = bool((finite == np.floor(finite)).all())
    network = engine.CFN(top, 0 if whole else DECIMALS, verbose=-1)
    for i, k in enumerate(np.diff(p.start).tolist()):
        network.AddVariable(f"x{i}", range(k))
        network.AddFunction([f"x{i}"], _capped(p.cost[p.start[i] : p.start[i + 1]], top))
    for (i, j), at in zip(p.ends.tolist(), p.matrix.tolist(), strict=True):
        area = int((p.start[i + 1] - p.start[i]) * (p.start[j + 1] - p.start[j]))
        network.AddFunction([f"x{i}", f"x{j}"], _capped(p.pool[at : at + area], top))
    try:
        with _quiet():
            answer = network.Solve(timeLimit=time_limit_s)
    except engine.pytb2.Contradiction:
        return None
    return None if answer is None else np.array(answer[0], dtype=np.int64)


def _capped(costs: FloatArray, top: float) -> list[float]:
    return [c if math.isfinite(c) else top for c in costs.tolist()]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Its C++ side prints to stdout, which belongs to our data."""
    sys.stdout.flush()
    kept = os.dup(1)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
