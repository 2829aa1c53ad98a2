"""Binary heaps on slices of arrays, for compiled event loops: the least item comes first.

A heap is ``heap[base:base + size]`` and holds items; the key of an item is ``key[at + item]``.
"""

from __future__ import annotations

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import njit_internal


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


@njit_internal
def served_before(
    a: int, b: int, x: FloatArray, requested: int, w: IntArray, best: int, priority: int
) -> bool:
    """Whether request `a` is served before `b`: (time requested, best consumer's place, index).

    Times are ``x[requested + a]``, best consumers ``w[best + a]``, their places
    ``x[priority + consumer]``.
    """
    if x[requested + a] != x[requested + b]:
        return x[requested + a] < x[requested + b]  # type: ignore[no-any-return]
    i, j = w[best + a], w[best + b]
    if x[priority + i] != x[priority + j]:
        return x[priority + i] < x[priority + j]  # type: ignore[no-any-return]
    if i != j:
        return i < j  # type: ignore[no-any-return]
    return a < b


@njit_internal
def push_request(
    w: IntArray,
    base: int,
    size: int,
    x: FloatArray,
    requested: int,
    best: int,
    priority: int,
    item: int,
) -> None:
    """`push` in the order of `served_before`; the heap stands in `w`."""
    child = size
    while child > 0:
        up = (child - 1) >> 1
        other = w[base + up]
        if served_before(other, item, x, requested, w, best, priority):
            break
        w[base + child] = other
        child = up
    w[base + child] = item


@njit_internal
def pop_request(
    w: IntArray, base: int, size: int, x: FloatArray, requested: int, best: int, priority: int
) -> int:
    """`pop` in the order of `served_before`."""
    top = w[base]
    item = w[base + size - 1]
    size -= 1
    hole = 0
    while True:
        down = 2 * hole + 1
        if down >= size:
            break
        a = w[base + down]
        if down + 1 < size:
            b = w[base + down + 1]
            if served_before(b, a, x, requested, w, best, priority):
                a = b
                down += 1
        if served_before(item, a, x, requested, w, best, priority):
            break
        w[base + hole] = a
        hole = down
    w[base + hole] = item
    return top  # type: ignore[no-any-return]
