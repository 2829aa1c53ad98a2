"""Annealing of throughput over links: one node at a time to another device, compiled.

The energy is the sum over devices, and over passes where they do not mix, of (load / scale) to a
high power, which follows the largest load and still sees the others. Moves that overfill a memory,
that need a link that is not there, or that close a cycle between devices where plans must be
contiguous, are not made.
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.numerics.njit import njit_cached
from placewright.operators.planners.annealing import csr, energy, pick_node
from placewright.operators.planners.pipelines.links.contraction import Pairs

CHUNK = 10_000
"""Moves between two looks at the clock."""


class LoadInstance(NamedTuple):
    """`Pairs` as the kernel reads it.

    Attributes
    ----------
    reader_offsets, reader
        CSR: the readers of each tensor.
    touch_offsets, touched
        CSR: the tensors that each node makes or reads.
    edge_offsets, edge
        CSR: forward edges of each node, the other end ``w`` as w where this node comes first and
        as -1 - w where it comes last.
    backward_work, backward, passes
        See `Pairs`; loads are of the first pass, then of the second.
    """

    work: FloatArray
    resident: FloatArray
    memory: FloatArray
    producer: IntArray
    reader_offsets: IntArray
    reader: IntArray
    touch_offsets: IntArray
    touched: IntArray
    edge_offsets: IntArray
    edge: IntArray
    send: FloatArray
    backward_work: FloatArray
    backward: IntArray
    passes: int


def instance_of(c: Pairs) -> LoadInstance:
    """Arrays from lists."""
    touch: list[list[int]] = [[] for _ in range(c.nodes)]
    ends: list[list[int]] = [[] for _ in range(c.nodes)]
    for k, readers in enumerate(c.readers):
        for v in (int(c.producer[k]), *readers):
            touch[v].append(k)
    for u, v in c.edges.tolist():
        ends[u].append(v)
        ends[v].append(-1 - u)
    return LoadInstance(
        c.work_s,
        c.resident_bytes,
        c.memory_bytes,
        c.producer,
        *csr([list(readers) for readers in c.readers]),
        *csr(touch),
        *csr(ends),
        c.send_s,
        c.backward_s,
        c.backward.astype(np.int64),
        c.passes,
    )


def anneal(
    c: Pairs, device: IntArray, *, moves: int, heat: float, seed: int, deadline_s: float = math.inf
) -> IntArray:
    """Devices of the nodes, no worse than `device`, which fits.

    A walk that would not end before the deadline leaves moves out, so that it still cools.
    """
    if c.devices < 2 or c.value_s(device) <= 0.0:
        return device
    instance, begun_s = instance_of(c), time.perf_counter()
    walk, step = _begin(instance, device.astype(np.int64), seed), 0
    while step < moves and walk.least[0] > 0.0 and time.perf_counter() < deadline_s:
        until = min(step + CHUNK, moves)
        _run_moves(instance, walk, step, until, moves, heat)
        gone = (time.perf_counter() - begun_s) / (deadline_s - begun_s)
        step = max(until, int(gone * moves))
    return walk.best if c.value_s(walk.best) <= c.value_s(device) else device


class Walk(NamedTuple):
    """State of a walk.

    Attributes
    ----------
    place, best
        Shape (N,), the placement now and the best one met.
    load
        Shape (passes * m,).
    held
        Shape (m,), bytes.
    ahead
        Shape (m, m), edges from device to device.
    least
        Shape (1,), the value of `best`.
    """

    place: IntArray
    best: IntArray
    load: FloatArray
    held: FloatArray
    ahead: IntArray
    least: FloatArray


@njit_cached
def _begin(b: LoadInstance, start: IntArray, seed: int) -> Walk:
    """State before the first move."""
    np.random.seed(seed)
    n, m = b.work.shape
    place = start.copy()
    load, held = np.zeros(b.passes * m), np.zeros(m)
    ahead = np.zeros((m, m), dtype=np.int64)
    for v in range(n):
        _work(b, v, place[v], 1.0, load)
        held[place[v]] += b.resident[v]
        for x in range(b.edge_offsets[v], b.edge_offsets[v + 1]):
            if b.edge[x] >= 0:
                ahead[place[v], place[b.edge[x]]] += 1
    seen = np.zeros(m, dtype=np.bool_)
    for k in range(len(b.producer)):
        _add(b, k, place, 1.0, load, seen)
    return Walk(place, start.copy(), load, held, ahead, np.array([_value(load, m)]))


@njit_cached
def _run_moves(b: LoadInstance, walk: Walk, first: int, last: int, moves: int, heat: float) -> None:
    """Moves `first` to `last` of `moves`, the colder the later; the best by the largest load."""
    m = len(walk.held)
    place, load, held, ahead = walk.place, walk.load, walk.held, walk.ahead
    least, seen = walk.least[0], np.zeros(m, dtype=np.bool_)
    trial = np.zeros(b.passes * m)
    for step in range(first, last):
        temperature = heat * (1.0 - step / moves) + 1e-9
        v = pick_node(place, load if b.passes == 1 else load[:m] + load[m:])
        a = place[v]
        to = _target(b, v, place, m)
        if to == a or b.work[v, to] == np.inf or held[to] + b.resident[v] > b.memory[to]:
            continue
        # Taken off and put back around the move: only tensors that v touches change. `place`
        # changes between the two, since `_add` reads it.
        trial[:] = load
        for x in range(b.touch_offsets[v], b.touch_offsets[v + 1]):
            _add(b, b.touched[x], place, -1.0, trial, seen)
        _work(b, v, a, -1.0, trial)
        _work(b, v, to, 1.0, trial)
        place[v] = to
        for x in range(b.touch_offsets[v], b.touch_offsets[v + 1]):
            _add(b, b.touched[x], place, 1.0, trial, seen)
        # A missing link makes `trial` and `rise` infinite, and exp(-inf) is 0: never accepted.
        rise = energy(trial, least) - energy(load, least)
        accepted = rise <= 0.0 or np.random.random() < np.exp(-rise / temperature)
        # Cycles are looked for last, as few moves get here.
        if accepted and len(b.edge) > 0:
            _shift(b, v, a, to, place, ahead)
            if _cyclic(ahead):
                _shift(b, v, to, a, place, ahead)
                accepted = False
        if not (accepted and trial.max() < np.inf):
            place[v] = a
            continue
        load[:] = trial
        held[a] -= b.resident[v]
        held[to] += b.resident[v]
        if _value(load, m) < least * (1.0 - 1e-9):
            least = _value(load, m)
            walk.best[:] = place
            if least <= 0.0:
                break
    walk.least[0] = least


@njit_cached
def _value(load: FloatArray, m: int) -> float:
    """The largest load of each pass, added up."""
    total = 0.0
    for first in range(0, len(load), m):
        total += load[first : first + m].max()
    return total


@njit_cached
def _work(b: LoadInstance, v: int, d: int, sign: float, load: FloatArray) -> None:
    """Add the compute time of a node on a device to the loads, or subtract it."""
    backward = b.backward_work[v, d]
    load[d] += sign * (b.work[v, d] - backward)
    if backward > 0.0:
        load[b.work.shape[1] + d] += sign * backward


@njit_cached
def _target(b: LoadInstance, v: int, place: IntArray, m: int) -> int:
    """The device of a node that v shares a tensor with, or any."""
    first, last = b.touch_offsets[v], b.touch_offsets[v + 1]
    if last == first or np.random.random() < 0.4:
        return np.random.randint(m)
    k = b.touched[first + np.random.randint(last - first)]
    if b.producer[k] != v:
        return int(place[b.producer[k]])
    lo, hi = b.reader_offsets[k], b.reader_offsets[k + 1]
    return int(place[b.reader[lo + np.random.randint(hi - lo)]])


@njit_cached
def _add(
    b: LoadInstance, k: int, place: IntArray, sign: float, load: FloatArray, seen: BoolArray
) -> None:
    """Add the transfers of tensor k to the loads, or subtract them."""
    home, first = place[b.producer[k]], b.backward[k] * b.work.shape[1]
    for x in range(b.reader_offsets[k], b.reader_offsets[k + 1]):
        d = place[b.reader[x]]
        if d != home and not seen[d]:
            seen[d] = True
            took = b.send[k, home, d]
            load[first + home] += sign * took
            load[first + d] += sign * took
    for x in range(b.reader_offsets[k], b.reader_offsets[k + 1]):
        # `seen` is cleared by the same readers, not device by device.
        seen[place[b.reader[x]]] = False


@njit_cached
def _shift(b: LoadInstance, v: int, a: int, to: int, place: IntArray, ahead: IntArray) -> None:
    """Count the edges of v on another device than a."""
    for x in range(b.edge_offsets[v], b.edge_offsets[v + 1]):
        w = b.edge[x]
        if w >= 0:
            ahead[a, place[w]] -= 1
            ahead[to, place[w]] += 1
        else:
            ahead[place[-1 - w], a] -= 1
            ahead[place[-1 - w], to] += 1


@njit_cached
def _cyclic(ahead: IntArray) -> bool:
    """Whether the devices form a cycle: devices without predecessors are removed repeatedly."""
    m = len(ahead)
    gone = np.zeros(m, dtype=np.bool_)
    for _ in range(m):
        found = False
        for d in range(m):
            if gone[d]:
                continue
            free = True
            for s in range(m):
                if s != d and not gone[s] and ahead[s, d] > 0:
                    free = False
                    break
            if free:
                gone[d] = True
                found = True
        if not found:
            break
    return not gone.all()
