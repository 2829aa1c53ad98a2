"""Which devices are open to whom while memory fills, compiled: what `candidates` says, kept.

An operator loses its room on a device once and for all, the largest first: one pointer a device
goes through the operators by size. Where no device has room left, all that may run it are open.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import compiled, inner
from placewright.operators.planners.lists.scheduling import Rules
from placewright.operators.structure.costs import Costs


class Room(NamedTuple):
    """Where memory stands.

    Attributes
    ----------
    own_bytes
        Shape (n,): an operator's outputs, and the resident bytes of its group.
    largest
        Shape (n,), operators by `own_bytes`, the largest first.
    passed
        Shape (m,): so many of the largest have no room on each device.
    homes
        Shape (n,): how many of the devices that may run an operator have room for it.
    used_bytes
        Shape (m,).
    chosen
        Device of every group, -1 before its first operator is placed.
    """

    own_bytes: FloatArray
    largest: IntArray
    passed: IntArray
    homes: IntArray
    used_bytes: FloatArray
    chosen: IntArray


@compiled
def empty_room(c: Costs, r: Rules) -> Room:
    """Nothing is placed."""
    n, m = r.allowed.shape
    own_bytes = r.group_bytes[r.group]
    for k in range(len(c.producer)):
        own_bytes[c.producer[k]] += c.home_bytes[k]
    homes = np.zeros(n, dtype=np.int64)
    for i in range(n):
        for d in range(m):
            homes[i] += r.allowed[i, d]
    return Room(
        own_bytes,
        np.argsort(-own_bytes),
        np.zeros(m, dtype=np.int64),
        homes,
        np.zeros(m),
        np.full(len(r.group_bytes), -1),
    )


@inner
def is_open(r: Rules, room: Room, i: int, d: int) -> bool:
    """Whether operator `i` may go to device `d`: to its group, else where there is room."""
    only = room.chosen[r.group[i]]
    if only >= 0:
        return bool(d == only)
    fits = room.used_bytes[d] + room.own_bytes[i] <= r.budget_bytes[d]
    return bool(r.allowed[i, d] and (fits or room.homes[i] == 0))


@inner
def next_without(r: Rules, room: Room, d: int) -> int:
    """The next operator that has no room on device `d` any more, -1 where all others have."""
    at = room.passed[d]
    if at == len(room.largest):
        return -1
    i = room.largest[at]
    if room.used_bytes[d] + room.own_bytes[i] <= r.budget_bytes[d]:
        return -1
    room.passed[d] += 1
    room.homes[i] -= r.allowed[i, d]
    return int(i)
