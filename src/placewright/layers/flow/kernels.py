"""Compiled maximum flow of a placement, and annealing over placements.

Vertices of the flow: machine i is two, ``2 i`` (tokens enter) and ``2 i + 1`` (tokens leave), and
the arc between them has the rate of the machine with the layers that it holds. Source and sink are
``2 n`` and ``2 n + 1``. Arc a and its reverse are a and ``a ^ 1``. Arcs of a vertex form a list:

    first[vertex] -> arc -> after[arc] -> ... -> -1        to[arc], left[arc]: where to, capacity
"""

from __future__ import annotations

import math

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import njit_inline, njit_internal, njit_no_refcount, njit_nogil

RELATIVE = 1e-12
"""Capacity that counts as none, as a share of the largest one: rounding leaves such remainders."""


def workspace(n: int, layers: int) -> tuple[IntArray, FloatArray]:
    """Arrays for `max_flow`: rows of vertices, arcs or layers, and capacities."""
    arcs = 2 * (n + 2 * n + n * n)
    return np.zeros((6, max(2 * n + 2, arcs, layers + 1)), np.int64), np.zeros((2, arcs))


@njit_inline
def _add_arc(
    work: IntArray, left: FloatArray, arc: int, tail: int, head: int, capacity: float
) -> None:
    """Two arcs from number `arc` on: there, and back with no capacity."""
    work[1, arc], work[2, arc], left[0, arc] = work[0, tail], head, capacity
    work[0, tail] = arc
    work[1, arc + 1], work[2, arc + 1], left[0, arc + 1] = work[0, head], tail, 0.0
    work[0, head] = arc + 1


@njit_internal
def _build(
    start: IntArray,
    end: IntArray,
    rates: FloatArray,
    links: FloatArray,
    layers: int,
    partial: bool,
    work: IntArray,
    left: FloatArray,
) -> int:
    """The graph of a placement; arcs 2 i are those of the machines. The number of arcs.

    ``work[5, k]``, ``work[4, i]``: lists of machines by their first layer, in order.
    """
    n = len(start)
    for k in range(layers + 1):
        work[5, k] = -1
    for i in range(n - 1, -1, -1):
        if end[i] > 0:
            work[4, i], work[5, start[i]] = work[5, start[i]], i
    for v in range(2 * n + 2):
        work[0, v] = -1
    arc = 0
    for i in range(n):
        _add_arc(work, left, arc, 2 * i, 2 * i + 1, rates[i, end[i] - start[i]])
        arc += 2
    for i in range(n):
        if end[i] == 0:
            continue
        if start[i] == 0 and links[n, i] > 0:
            _add_arc(work, left, arc, 2 * n, 2 * i, links[n, i])
            arc += 2
        if end[i] == layers:
            if links[i, n + 1] > 0:
                _add_arc(work, left, arc, 2 * i + 1, 2 * n + 1, links[i, n + 1])
                arc += 2
            continue
        for k in range(0 if partial else end[i], end[i] + 1):
            j = work[5, k]
            while j >= 0:
                if end[i] < end[j] and links[i, j] > 0:
                    _add_arc(work, left, arc, 2 * i + 1, 2 * j, links[i, j])
                    arc += 2
                j = work[4, j]
    return arc


@njit_internal
def _levels(source: int, sink: int, none: float, work: IntArray, left: FloatArray) -> bool:
    """Breadth first: how many arcs each vertex is from the source; whether it reaches the sink."""
    for v in range(sink + 1):
        work[3, v] = -1
        work[4, v] = work[0, v]
    work[3, source], work[5, 0] = 0, source
    head, tail = 0, 1
    while head < tail:
        v = work[5, head]
        head += 1
        arc = work[0, v]
        while arc >= 0:
            to = work[2, arc]
            if work[3, to] < 0 and left[0, arc] > none:
                work[3, to] = work[3, v] + 1
                work[5, tail] = to
                tail += 1
            arc = work[1, arc]
    return bool(work[3, sink] >= 0)


@njit_internal
def _augment(source: int, sink: int, none: float, work: IntArray, left: FloatArray) -> float:
    """A blocking flow of the level graph; row 5 holds the arcs of the path."""
    total, depth, v = 0.0, 0, source
    while True:
        if v == sink:
            least, at = math.inf, 0
            for d in range(depth):
                if left[0, work[5, d]] < least:
                    least, at = left[0, work[5, d]], d
            for d in range(depth):
                left[0, work[5, d]] -= least
                left[0, work[5, d] ^ 1] += least
            left[0, work[5, at]] = 0.0
            total += least
            depth = at
            v = work[2, work[5, at] ^ 1]
            continue
        arc = work[4, v]
        while arc >= 0 and not (left[0, arc] > none and work[3, work[2, arc]] == work[3, v] + 1):
            arc = work[1, arc]
        work[4, v] = arc
        if arc >= 0:
            work[5, depth] = arc
            depth += 1
            v = work[2, arc]
        elif depth > 0:
            work[3, v] = -1
            depth -= 1
            v = work[2, work[5, depth] ^ 1]
        else:
            return total


@njit_no_refcount
def max_flow(
    start: IntArray,
    end: IntArray,
    rates: FloatArray,
    links: FloatArray,
    layers: int,
    partial: bool,
    work: IntArray,
    left: FloatArray,
) -> float:
    """Tokens/s of a placement: Dinic's algorithm (Soviet Math. Doklady 11, 1970).

    Afterwards ``left[0, 2 i + 1]`` is what machine i carries.
    """
    n = len(start)
    arcs, largest = _build(start, end, rates, links, layers, partial, work, left), 0.0
    for a in range(0, 2 * n, 2):
        largest = max(largest, left[0, a])
    total = 0.0
    while _levels(2 * n, 2 * n + 1, RELATIVE * largest, work, left) and arcs > 0:
        total += _augment(2 * n, 2 * n + 1, RELATIVE * largest, work, left)
    return total


@njit_internal
def _coverage(
    start: IntArray,
    end: IntArray,
    rates: FloatArray,
    links: FloatArray,
    layers: int,
    partial: bool,
    target: float,
    row: IntArray,
    cover: FloatArray,
) -> tuple[float, float]:
    """A bound on the flow, and a mean that tells plans of one flow apart.

    What reaches a machine is at most what its open links bring from machines before it, each as
    much as reaches that one; what gets from it to the sink likewise. The rates so limited of those
    that hold a layer bound the flow there. The mean, over layers and both directions and up to a
    target, grows with a path from either end though the paths do not meet yet.

    ``row[0, e]``, ``row[1, i]``: lists of machines by their end. ``cover``: rates from the source
    in row 0, to the sink in row 1; afterwards the smaller of their sums by layer in row 2.
    """
    n = len(start)
    for k in range(layers + 1):
        row[0, k], cover[2, k], cover[3, k] = -1, 0.0, 0.0
    for i in range(n):
        row[1, i], row[0, end[i]] = row[0, end[i]], i
        cover[1, i] = 0.0
    for e in range(1, layers + 1):
        j = row[0, e]
        while j >= 0:
            arrives = links[n, j] if start[j] == 0 else 0.0
            for q in range(max(start[j], 1), e if partial else start[j] + 1):
                i = row[0, q]
                while i >= 0:
                    arrives += min(links[i, j], cover[0, i])
                    i = row[1, i]
            arrives = min(arrives, rates[j, e - start[j]])
            cover[0, j] = arrives
            cover[2, start[j]] += arrives
            cover[2, e] -= arrives
            j = row[1, j]
    for e in range(layers, 0, -1):
        j = row[0, e]
        while j >= 0:
            leaves = links[j, n + 1] if e == layers else cover[1, j]
            leaves = min(leaves, rates[j, e - start[j]])
            cover[3, start[j]] += leaves
            cover[3, e] -= leaves
            for q in range(max(start[j], 1), e if partial else start[j] + 1):
                i = row[0, q]
                while i >= 0:
                    cover[1, i] += min(links[i, j], leaves)
                    i = row[1, i]
            j = row[1, j]
    least, total, here, there = math.inf, 0.0, 0.0, 0.0
    for k in range(layers):
        here += cover[2, k]
        there += cover[3, k]
        cover[2, k] = min(here, there)
        least = min(least, cover[2, k])
        total += min(here, target) + min(there, target)
    return least, total / (2 * layers)


@njit_inline
def _below(count: int) -> int:
    return int(np.random.random() * count)


@njit_internal
def _reach(
    i: int,
    most: IntArray,
    rates: FloatArray,
    layers: int,
    a: int,
    b: int,
    start: IntArray,
    end: IntArray,
) -> bool:
    """Give machine i the layers [a, b) if it can hold them."""
    if a >= 0 and a < b and b <= layers and b - a <= most[i] and rates[i, b - a] > 0:
        start[i], end[i] = a, b
        return True
    return False


@njit_internal
def _join(
    i: int,
    most: IntArray,
    rates: FloatArray,
    links: FloatArray,
    layers: int,
    start: IntArray,
    end: IntArray,
) -> bool:
    """Move machine i to a range that begins or ends where others do."""
    n = len(start)
    j, k = _below(n), _below(n)
    for _ in range(4):  # rather machines that it has links with
        if links[j, i] == 0:
            j = _below(n)
        if links[i, k] == 0:
            k = _below(n)
    a = end[j] if np.random.random() < 0.6 else start[j]
    b = start[k] if np.random.random() < 0.6 else end[k]
    kind = np.random.random()
    if kind < 0.15:
        a = 0
    elif kind < 0.3:
        b = layers
    kind = np.random.random()
    if kind < 0.3:
        b = a + 1 + _below(most[i])
    elif kind < 0.6:
        a = b - 1 - _below(most[i])
    return _reach(i, most, rates, layers, a, b, start, end)


@njit_internal
def _help(
    i: int,
    held: FloatArray,
    target: float,
    most: IntArray,
    rates: FloatArray,
    layers: int,
    start: IntArray,
    end: IntArray,
) -> bool:
    """Move machine i beside another one that holds a layer which lacks some of the target."""
    n, weak, first = len(start), -1, _below(layers)
    for k in range(layers):
        at = (first + k) % layers
        if held[at] < target:
            weak = at
            break
    if weak < 0 or most[i] == 0:
        return False
    first = _below(n)
    for k in range(n):
        j = (first + k) % n
        if j != i and start[j] <= weak and weak < end[j]:
            a, b = start[j], end[j]
            if b - a > most[i] or np.random.random() < 0.2:
                fits = min(b - a, 1 + _below(most[i]))
                if np.random.random() < 0.5:
                    b = a + fits
                else:
                    a = b - fits
            return _reach(i, most, rates, layers, a, b, start, end)
    a = weak - _below(most[i])
    return _reach(i, most, rates, layers, a, a + most[i], start, end)


@njit_internal
def _shift(most: IntArray, rates: FloatArray, layers: int, start: IntArray, end: IntArray) -> bool:
    """Move all borders between two layers by some layers, and with them the ranges between."""
    n = len(start)
    i = _below(n)
    low = start[i] if np.random.random() < 0.5 else end[i]
    high = low
    if np.random.random() < 0.4:
        j = _below(n)
        other = start[j] if np.random.random() < 0.5 else end[j]
        low, high = min(low, other), max(low, other)
    step = 1 + _below(2)
    if np.random.random() < 0.5:
        step = -step
    for i in range(n):
        if end[i] == 0:
            continue
        a, b = start[i], end[i]
        if low <= a and a <= high and a > 0:
            a += step
        if low <= b and b <= high and b < layers:
            b += step
        if (a != start[i] or b != end[i]) and not _reach(i, most, rates, layers, a, b, start, end):
            return False
    return True


@njit_internal
def _swap(most: IntArray, rates: FloatArray, layers: int, start: IntArray, end: IntArray) -> bool:
    """Let two machines change places."""
    i, j = _below(len(start)), _below(len(start))
    a, b = start[i], end[i]
    if (a == start[j] and b == end[j]) or end[j] == 0 or b == 0:
        return False
    return _reach(i, most, rates, layers, start[j], end[j], start, end) and _reach(
        j, most, rates, layers, a, b, start, end
    )


@njit_internal
def _rotate(start: IntArray, end: IntArray) -> bool:
    """Let what holds [a, b) and what holds [b, c) change places: ranges that join still do.

    Only at a, b and c other machines meet, over other links.
    """
    n = len(start)
    i = _below(n)
    a, b = start[i], end[i]
    c = end[_below(n)] if np.random.random() < 0.5 else start[_below(n)]
    if c < a:
        a, b, c = c, a, b
    if not (a < b and b < c):
        return False
    for i in range(n):
        s, e = start[i], end[i]
        if s >= a and e <= b:
            start[i], end[i] = s + c - b, e + c - b
        elif s >= b and e <= c:
            start[i], end[i] = s - b + a, e - b + a
        elif not (e <= a or s >= c or (s <= a and e >= c)):
            return False
    return True


@njit_internal
def _regroup(
    most: IntArray, rates: FloatArray, layers: int, start: IntArray, end: IntArray
) -> bool:
    """Two machines side by side hold a part each, or two in a row the whole both."""
    n = len(start)
    i, first = _below(n), _below(n)
    a, b, row = start[i], end[i], np.random.random() < 0.5
    for k in range(n):
        j = (first + k) % n
        if j == i or end[j] == 0:
            continue
        if not row and start[j] == a and end[j] == b and b - a > 1:
            middle = a + 1 + _below(b - a - 1)
            return _reach(i, most, rates, layers, a, middle, start, end) and _reach(
                j, most, rates, layers, middle, b, start, end
            )
        if row and start[j] == b and b > 0:
            b = end[j]
            return _reach(i, most, rates, layers, a, b, start, end) and _reach(
                j, most, rates, layers, a, b, start, end
            )
    return False


@njit_internal
def _propose(
    most: IntArray,
    rates: FloatArray,
    links: FloatArray,
    layers: int,
    held: FloatArray,
    target: float,
    start: IntArray,
    end: IntArray,
) -> bool:
    """Change a placement at random; whether it is one. `held`: what layers have of the target."""
    kind = np.random.random()
    if kind < 0.12:
        return _help(_below(len(start)), held, target, most, rates, layers, start, end)
    if kind < 0.35:
        return _join(_below(len(start)), most, rates, links, layers, start, end)
    if kind < 0.6:
        return _shift(most, rates, layers, start, end)
    if kind < 0.7:
        return _rotate(start, end)
    if kind < 0.77:
        return _regroup(most, rates, layers, start, end)
    if kind < 0.93:
        return _swap(most, rates, layers, start, end)
    i = _below(len(start))
    a, b = start[i], end[i]
    if np.random.random() < 0.5:
        a += _below(5) - 2
    else:
        b += _below(5) - 2
    return _reach(i, most, rates, layers, a, b, start, end)


@njit_nogil
def anneal(
    seed: int,
    steps: int,
    hot: float,
    cold: float,
    weight: float,
    target: float,
    rates: FloatArray,
    links: FloatArray,
    most: IntArray,
    layers: int,
    partial: bool,
    now: IntArray,
    best: IntArray,
) -> float:
    """Simulated annealing of flow + weight * coverage; `now` and `best` are (2, n), start and end.

    `hot`, `cold`: temperatures in tokens/s of the first and the last step. `best` is replaced where
    a better flow is found, whose value is returned.
    """
    np.random.seed(seed)
    n = now.shape[1]
    arcs = 2 * (3 * n + n * n)
    work = np.zeros((6, max(2 * n + 2, arcs, layers + 1)), np.int64)
    left, trial = np.zeros((2, arcs)), now.copy()
    wide = max(n, layers + 1)
    row, cover, held = np.zeros((2, wide), np.int64), np.zeros((4, wide)), np.zeros(wide)
    found = max_flow(best[0], best[1], rates, links, layers, partial, work, left)
    flow = max_flow(now[0], now[1], rates, links, layers, partial, work, left)
    score = (
        flow
        + weight * _coverage(now[0], now[1], rates, links, layers, partial, target, row, cover)[1]
    )
    held[:] = cover[2]
    cooling = (cold / hot) ** (1.0 / max(steps, 1))
    heat = hot
    for _ in range(steps):
        heat *= cooling
        trial[:] = now
        if not _propose(most, rates, links, layers, held, target, trial[0], trial[1]):
            continue
        least, mean = _coverage(
            trial[0], trial[1], rates, links, layers, partial, target, row, cover
        )
        needed = score + heat * math.log(max(np.random.random(), 1e-300))
        if least + weight * mean < needed:
            continue
        flow = max_flow(trial[0], trial[1], rates, links, layers, partial, work, left)
        if flow > found:
            found = flow
            best[:] = trial
        if flow + weight * mean >= needed:
            score = flow + weight * mean
            now[:] = trial
            held[:] = cover[2]
    return found
