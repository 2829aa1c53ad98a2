"""A PBQP whose options also use memory while their node lives, under one limit at all times.

    min  sum_i c_i[x_i] + sum_(i,j) C_ij[x_i, x_j]
    s.t. sum over nodes alive at t of usage_i[x_i] <= limit      at every moment t

This is the form of the IOPDDL contest (ASPLOS 2025): sharding strategies of XLA graphs.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np

from placewright.errors import InputError
from placewright.io.arguments import checked
from placewright.numerics.arrays import IntArray, IntVector, freeze_arrays
from placewright.solvers.pbqp import Pbqp, check_choice

MOST_USAGE = 2**62
"""Sums of usages stay below this, so that they are exact in int64."""


@checked
@dataclass(frozen=True, slots=True, eq=False)
class MemoryPbqp:
    """A PBQP with live intervals and a memory limit, validated once.

    With n nodes and k options in all:

    Attributes
    ----------
    pbqp
        Costs; ``inf`` forbids.
    usage
        Shape (k,): memory of every option, aligned with ``pbqp.cost``.
    live_from, live_until
        Shape (n,): node i is alive at the moments t with
        ``live_from[i] <= t < live_until[i]``; never, if there is none.
    limit
        What may be used at any moment, in the unit of `usage`.
    """

    pbqp: Pbqp
    usage: IntVector
    live_from: IntVector
    live_until: IntVector
    limit: int
    name: str = "pbqp"

    def __post_init__(self) -> None:
        freeze_arrays(self)
        _check(self)

    @property
    def n(self) -> int:
        """Number of nodes."""
        return self.pbqp.n

    @checked
    def value(self, choice: IntArray) -> float:
        """Cost of choosing option ``choice[i]`` at every node i: the exact sum, rounded once."""
        p, x = self.pbqp, choice
        check_choice(p, x)
        width = np.diff(p.start)[p.ends[:, 1]]
        at = p.matrix + x[p.ends[:, 0]] * width + x[p.ends[:, 1]]
        return math.fsum(p.cost[p.start[:-1] + x].tolist() + p.pool[at].tolist())

    @checked
    def peak(self, choice: IntArray) -> tuple[int, int]:
        """Largest usage over time, and the first moment at which it is reached."""
        check_choice(self.pbqp, choice)
        used = self.usage[self.pbqp.start[:-1] + choice]
        alive = self.live_until > self.live_from
        moments = np.unique(np.concatenate([[0], self.live_from[alive], self.live_until[alive]]))
        steps = np.zeros(len(moments), np.int64)
        np.add.at(steps, np.searchsorted(moments, self.live_from[alive]), used[alive])
        np.add.at(steps, np.searchsorted(moments, self.live_until[alive]), -used[alive])
        profile = np.cumsum(steps)
        top = int(np.argmax(profile))
        return int(profile[top]), int(moments[top])

    def hash(self) -> str:
        """Hexadecimal digest of everything that decides the answer; 16 digits."""
        digest = hashlib.sha256(str(self.limit).encode())
        p = self.pbqp
        for array in (
            p.start,
            p.cost,
            p.ends,
            p.matrix,
            p.pool,
            self.usage,
            self.live_from,
            self.live_until,
        ):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]


def _check(p: MemoryPbqp) -> None:
    where = f"PBQP {p.name}"
    for key, size in (("usage", len(p.pbqp.cost)), ("live_from", p.n), ("live_until", p.n)):
        if len(getattr(p, key)) != size:
            by = f"{len(getattr(p, key))}, expected {size}"
            raise InputError(f"{key} has the wrong length", where=where, by=by)
    if p.limit < 0 or (p.usage < 0).any():
        raise InputError("usage and limit must not be negative", where=where)
    if float(p.usage.astype(np.float64).sum()) >= MOST_USAGE:
        raise InputError("usages add up to more than 2^62", where=where)
