"""Queues for compiled event loops: binary heaps on slices of arrays, and sets of operators.

A heap gives its least item first, a ready set the first operator by place in an order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import njit_inline, njit_internal


@njit_internal
def push(heap: IntArray, base: int, size: int, key: FloatArray, at: int, item: int) -> None:
    """Add `item`, ordered by (key, item), to a heap of `size` items."""
    mine = key[at + item]
    child = size
    while child > 0:
        up = (child - 1) >> 1
        other = heap[base + up]
        its = key[at + other]
        if its < mine or (its == mine and other < item):
            break
        heap[base + child] = other
        child = up
    heap[base + child] = item


@njit_internal
def pop(heap: IntArray, base: int, size: int, key: FloatArray, at: int) -> int:
    """Remove and return the least item; the heap has ``size - 1`` items afterwards."""
    top = heap[base]
    item = heap[base + size - 1]
    mine = key[at + item]
    size -= 1
    hole = 0
    while True:
        down = 2 * hole + 1
        if down >= size:
            break
        a = heap[base + down]
        if down + 1 < size:
            b = heap[base + down + 1]
            if key[at + b] < key[at + a] or (key[at + b] == key[at + a] and b < a):
                a = b
                down += 1
        if mine < key[at + a] or (mine == key[at + a] and item < a):
            break
        heap[base + hole] = a
        hole = down
    heap[base + hole] = item
    return top  # type: ignore[no-any-return]


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
