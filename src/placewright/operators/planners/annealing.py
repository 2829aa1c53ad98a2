"""Shared by compiled searches: random numbers, CSR, the next node to move, energy of loads."""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import njit_cached, njit_internal


@njit_internal
def draw(counts: IntArray, state: int, below: int) -> int:
    """A number in [0, below), by Marsaglia's xorshift on 31 bits, then a mix.

    Changes ``counts[state]``.
    """
    x = counts[state]
    # Each step is a bijection of 31 bits, so that a state other than zero never becomes zero. The
    # states that were tried lie on cycles of 153,092,023.
    x ^= (x << 13) & 0x7FFFFFFF
    x ^= x >> 17
    x ^= (x << 5) & 0x7FFFFFFF
    counts[state] = x
    # Neighbouring states are alike: the multiplication spreads them. Below 2^63, no overflow.
    return int((x * 2654435761 >> 11) % below)


def csr(rows: list[list[int]]) -> tuple[IntArray, IntArray]:
    """Rows of numbers as offsets and one array."""
    offsets = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    return offsets, np.array([x for row in rows for x in row], dtype=np.int64)


def group_members(group: IntArray, count: int) -> tuple[IntArray, IntArray]:
    """CSR: the operators of each of `count` groups, from the group of each operator."""
    members = np.argsort(group, kind="stable")
    return np.searchsorted(group[members], np.arange(count + 1)), members


TRIES = 20
"""Draws until a node of the fullest device is met; then the last one drawn is taken."""


@njit_cached
def pick_node(place: IntArray, worst: int) -> int:
    """A random node; in half of all calls one on device `worst`, that with the largest load."""
    v = np.random.randint(len(place))
    if np.random.random() < 0.5:
        for _ in range(TRIES):
            if place[v] == worst:
                break
            v = np.random.randint(len(place))
    return int(v)


@njit_cached
def energy_rise(load: FloatArray, before: FloatArray, scale: float) -> float:
    """How much higher the `energy` of loads is than before, in which most are the same."""
    rise = 0.0
    for d in range(len(load)):
        if load[d] != before[d]:
            rise += _twelfth(load[d] / scale) - _twelfth(before[d] / scale)
    return rise


@njit_cached
def energy(load: FloatArray, scale: float) -> float:
    """Sum of the loads over `scale`, each to the power 12.

    A high power stands for the maximum, and sees devices that are nearly full; multiplied out it
    costs a tenth of a general power.
    """
    total = 0.0
    for d in range(len(load)):
        total += _twelfth(load[d] / scale)
    return total


@njit_cached
def _twelfth(share: float) -> float:
    sixth = share**3 * share**3
    return sixth * sixth
