"""Sets of operators by their place in an order, compiled: add one, take the first.

One bit per place, one more per word of 64 places that is not empty: both steps take the same few
instructions whatever the set holds, where the branches of a heap would be mispredicted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from placewright.numerics.njit import njit_inline


def _count_zeros(typing_context: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        # True: a word of zero is undefined, which saves a branch on some processors.
        return builder.cttz(arguments[0], context.get_constant(types.boolean, True))

    return types.int64(types.uint64), generate


lowest_bit: Any = intrinsic(_count_zeros)
"""Index of the lowest bit that is set in a word that is not zero: one instruction."""


@njit_inline
def clear(bits: Any, tops: Any, d: int) -> None:
    """Empty set `d`."""
    for word in range(bits.shape[1]):
        bits[d, word] = 0
    for top in range(tops.shape[1]):
        tops[d, top] = 0


@njit_inline
def include(bits: Any, tops: Any, d: int, at: int, wanted: bool) -> None:
    """Add place `at` to set `d`, if wanted."""
    # What is not wanted sets no bit: no branch.
    one = np.uint64(wanted)
    bits[d, at >> 6] |= one << np.uint64(at & 63)
    tops[d, at >> 12] |= one << np.uint64((at >> 6) & 63)


@njit_inline
def take_first(bits: Any, tops: Any, d: int) -> int:
    """Remove and return the first place of set `d`, -1 where it is empty.

    An empty set is searched like any other: that is cheaper than a mispredicted branch.
    """
    one, top, last = np.uint64(1), 0, tops.shape[1] - 1
    while top < last and tops[d, top] == np.uint64(0):
        top += 1
    full = tops[d, top]
    # Any word of an empty set will do: it is empty, and -1 is returned.
    somewhere = full if full != np.uint64(0) else one
    word = (top << 6) + lowest_bit(somewhere)
    held = bits[d, word]
    # Clears the lowest bit; zero stays zero.
    left = held & (held - one)
    bits[d, word] = left
    tops[d, top] = full & (full - one) if left == np.uint64(0) else full
    # Bit 63 only keeps an empty word from being zero, which `lowest_bit` may not see.
    first = (word << 6) + lowest_bit(held | one << np.uint64(63))
    return first if full != np.uint64(0) else -1
