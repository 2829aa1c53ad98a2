"""Random numbers of compiled searches, which keep their state among their counts."""

from __future__ import annotations

from placewright.numerics.arrays import IntArray
from placewright.numerics.njit import inner


@inner
def draw(counts: IntArray, state: int, below: int) -> int:
    """A number in [0, below), by Marsaglia's xorshift on 31 bits, then a mix.

    Changes ``counts[state]``.
    """
    x = counts[state]
    x ^= (x << 13) & 0x7FFFFFFF
    x ^= x >> 17
    x ^= (x << 5) & 0x7FFFFFFF
    counts[state] = x
    return int((x * 2654435761 >> 11) % below)
