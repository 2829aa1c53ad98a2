"""Head-load-tail bound: work between heads and tails; see `placewright.operators.bounds`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray

STEPS = 512
"""Heads and tails that are tried, each."""


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """Pairs of a head a and a tail b, and what must be done between them.

    `around`: Shape (heads, tails): a + b.
    `at`, `to`: Shape (n,): the last head and tail that are no more than an operator's own.
    """

    around: FloatArray
    at: IntArray
    to: IntArray

    def inside(self, a: int, b: int) -> IntArray:
        """Operators with this head or a later one, and this tail or a longer one."""
        return np.flatnonzero((self.at >= a) & (self.to >= b))

    def needed(self, load: FloatArray) -> FloatArray:
        """Shape (heads, tails): a + load of what is inside + b; 0 where that has no load.

        `load`: Shape (n,).
        """
        share = np.zeros(self.around.shape)
        np.add.at(share, (self.at, self.to), load)
        # Two-dimensional suffix sums: the load of all with this head or a later one, and this tail
        # or a longer one.
        inside = share[::-1, ::-1].cumsum(axis=0).cumsum(axis=1)[::-1, ::-1]
        needed: FloatArray = np.where(inside > 0, self.around + inside, 0.0)
        return needed


def windows_of(head: FloatArray, tail: FloatArray, most: int = STEPS) -> Windows:
    """At most so many heads and tails, the least of each among them.

    `head`, `tail`: Shape (n,): an operator starts no earlier, and from its end it is no less to the
    end of all.
    """
    heads, tails = _steps(head, most), _steps(tail, most)
    at = np.searchsorted(heads, head, side="right") - 1
    to = np.searchsorted(tails, tail, side="right") - 1
    return Windows(heads[:, None] + tails[None, :], at, to)


def head_load_tail_bound(
    work_s: FloatArray, head_s: FloatArray, tail_s: FloatArray, weights: list[FloatArray]
) -> float:
    """The most of ``a + load of what has a head >= a and a tail >= b + b`` over all a and b.

    O(n m + `STEPS` ** 2) for each of the weights.

    Parameters
    ----------
    work_s
        Shape (n, m), seconds of each operator on each device, ``inf`` where it cannot run.
    head_s, tail_s
        Shape (n,), as `windows_of` has them.
    weights
        Of devices, shape (m,) each, not negative.
    """
    windows = windows_of(head_s, tail_s)
    loads = (_least_shares(work_s, weight / weight.sum()) for weight in weights)
    return max((float(windows.needed(load).max()) for load in loads), default=0.0)


def _least_shares(work_s: FloatArray, weight: FloatArray) -> FloatArray:
    """The least that each operator adds to the weighted mean of the loads."""
    finite = np.isfinite(work_s)
    shares: FloatArray = np.where(finite, np.where(finite, work_s, 0.0) * weight, np.inf).min(
        axis=1
    )
    return shares


def _steps(values: FloatArray, most: int) -> FloatArray:
    known = np.unique(values)
    chosen = np.unique(np.linspace(0, len(known) - 1, most).round().astype(np.int64))
    steps: FloatArray = known[chosen]
    return steps
