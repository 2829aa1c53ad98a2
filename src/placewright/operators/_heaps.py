"""Binary heaps on slices of arrays, for compiled event loops: the least item comes first."""

from __future__ import annotations

from numba import njit

from placewright.arrays import FloatArray, IntArray


@njit(cache=True)
def push(heap: IntArray, base: int, size: int, key: FloatArray, item: int) -> None:
    """Add `item`, ordered by (key, item), to the heap of `size` items that starts at `base`."""
    at = size
    while at > 0:
        up = (at - 1) >> 1
        other = heap[base + up]
        if key[other] < key[item] or (key[other] == key[item] and other < item):
            break
        heap[base + at] = other
        at = up
    heap[base + at] = item


@njit(cache=True)
def pop(heap: IntArray, base: int, size: int, key: FloatArray) -> int:
    """Remove and return the least item; the heap has ``size - 1`` items afterwards."""
    top = heap[base]
    item = heap[base + size - 1]
    size -= 1
    at = 0
    while True:
        down = 2 * at + 1
        if down >= size:
            break
        a = heap[base + down]
        if down + 1 < size:
            b = heap[base + down + 1]
            if key[b] < key[a] or (key[b] == key[a] and b < a):
                a = b
                down += 1
        if key[item] < key[a] or (key[item] == key[a] and item < a):
            break
        heap[base + at] = a
        at = down
    heap[base + at] = item
    return top  # type: ignore[no-any-return]


@njit(cache=True)
def asks_before(a: int, b: int, asked_s: FloatArray, best: IntArray, key: FloatArray) -> bool:
    """Whether request `a` is served before `b`: (time asked, best consumer's place, index)."""
    if asked_s[a] != asked_s[b]:
        return asked_s[a] < asked_s[b]  # type: ignore[no-any-return]
    x, y = best[a], best[b]
    if key[x] != key[y]:
        return key[x] < key[y]  # type: ignore[no-any-return]
    if x != y:
        return x < y  # type: ignore[no-any-return]
    return a < b


@njit(cache=True)
def push_request(
    heap: IntArray,
    base: int,
    size: int,
    asked_s: FloatArray,
    best: IntArray,
    key: FloatArray,
    item: int,
) -> None:
    """`push` in the order of `asks_before`."""
    at = size
    while at > 0:
        up = (at - 1) >> 1
        other = heap[base + up]
        if asks_before(other, item, asked_s, best, key):
            break
        heap[base + at] = other
        at = up
    heap[base + at] = item


@njit(cache=True)
def pop_request(
    heap: IntArray, base: int, size: int, asked_s: FloatArray, best: IntArray, key: FloatArray
) -> int:
    """`pop` in the order of `asks_before`."""
    top = heap[base]
    item = heap[base + size - 1]
    size -= 1
    at = 0
    while True:
        down = 2 * at + 1
        if down >= size:
            break
        a = heap[base + down]
        if down + 1 < size and asks_before(heap[base + down + 1], a, asked_s, best, key):
            down += 1
            a = heap[base + down]
        if asks_before(item, a, asked_s, best, key):
            break
        heap[base + at] = a
        at = down
    heap[base + at] = item
    return top  # type: ignore[no-any-return]
