"""Work squeezed between heads and tails; see `placewright.operators.bounds`."""

from __future__ import annotations

import numpy as np

from placewright.arrays import FloatArray

STEPS = 512
"""Heads and tails that are tried, each."""


def squeezed_bound(
    work_s: FloatArray, head_s: FloatArray, tail_s: FloatArray, weights: list[FloatArray]
) -> float:
    """The most of ``a + load of what has a head >= a and a tail >= b + b`` over all a and b.

    O(n m + `STEPS` ** 2) for each of the weights.

    Parameters
    ----------
    work_s
        Shape (n, m), seconds of each operator on each device, ``inf`` where it cannot run.
    head_s, tail_s
        Shape (n,): it starts no earlier, and from its end it is no less to the end of all.
    weights
        Of devices, shape (m,) each, not negative.
    """
    heads, tails = _steps(head_s), _steps(tail_s)
    at = np.searchsorted(heads, head_s, side="right") - 1
    to = np.searchsorted(tails, tail_s, side="right") - 1
    around = heads[:, None] + tails[None, :]
    best = 0.0
    for weight in weights:
        share = np.zeros(around.shape)
        np.add.at(share, (at, to), _least_shares(work_s, weight / weight.sum()))
        behind = share[::-1, ::-1].cumsum(axis=0).cumsum(axis=1)[::-1, ::-1]
        best = max(best, float(np.where(behind > 0, around + behind, 0.0).max()))
    return best


def _least_shares(work_s: FloatArray, weight: FloatArray) -> FloatArray:
    """What each operator adds to the weighted mean of the loads, wherever it runs."""
    finite = np.isfinite(work_s)
    shares: FloatArray = np.where(finite, np.where(finite, work_s, 0.0) * weight, np.inf).min(
        axis=1
    )
    return shares


def _steps(values_s: FloatArray) -> FloatArray:
    """At most `STEPS` of the values, the least among them."""
    known = np.unique(values_s)
    chosen = np.unique(np.linspace(0, len(known) - 1, STEPS).round().astype(np.int64))
    steps: FloatArray = known[chosen]
    return steps
