"""Placements made into calls that can be made: what learned planners draw for star latency.

An accelerator is called a few times, and a call begins when all that it needs is there: few
placements drawn device by device can be run at all. `CallDecoder` reads a drawn placement as a
wish and returns the nearest one that can be run and fits the memories.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.numerics.njit import njit_cached
from placewright.operators.planners.call_graph import call_graph
from placewright.operators.problem import Communication, OperatorProblem
from placewright.operators.simulation.star import accelerators, most_calls


class Blocks(NamedTuple):
    """Groups that are placed as one (`call_graph.CallGraph`), numbered topologically.

    Attributes
    ----------
    into_start, into, out_start, out
        CSR: blocks that each block reads, and that read it, each once.
    allowed, work_s
        Shape (b, m).
    host
        Shape (b,), the CPU that a block falls back to, -1 for none.
    called, room_bytes
        Shape (m,): which devices are accelerators, and what they hold.
    most
        Calls of each accelerator.
    """

    into_start: IntArray
    into: IntArray
    out_start: IntArray
    out: IntArray
    allowed: BoolArray
    work_s: FloatArray
    resident_bytes: FloatArray
    host: IntArray
    called: BoolArray
    room_bytes: FloatArray
    most: int


class CallDecoder:
    """Makes drawn placements of a star latency problem feasible, deterministically.

    Blocks start in topological order. Those on CPUs start at once; the accelerator that can take
    all that is meant for it is called first, else the one that can take the most work. What is left
    over for an accelerator without further calls or room goes to one that nobody wants, else to a
    CPU. If anything was left over, the accelerators are first made convex, those with the most work
    first: what lies between two blocks of one joins it. With one call each, a placement that can be
    run and fits stays as it is.

    O((n + e) m) per placement.
    """

    def __init__(self, problem: OperatorProblem) -> None:
        graph = call_graph(problem, np.zeros(problem.n, dtype=np.bool_))
        p, self.block = problem, graph.block
        self.first = np.unique(graph.block, return_index=True)[1]
        own = p.allowed()
        allowed = np.ones((graph.blocks, p.m), dtype=np.bool_)
        np.logical_and.at(allowed, graph.block, own)
        work = np.zeros((graph.blocks, p.m))
        np.add.at(work, graph.block, np.where(np.isfinite(p.compute_s), p.compute_s, 0.0))
        host_s = np.where(allowed & ~accelerators(p), work, np.inf)
        host = np.where(np.isfinite(host_s).any(axis=1), host_s.argmin(axis=1), -1)
        source = graph.block[p.consumed_from]
        target = graph.block[p.consumers]
        pairs = np.unique(np.stack([source, target])[:, source != target], axis=1)
        back = np.lexsort((pairs[0], pairs[1]))
        ends = np.arange(graph.blocks + 1)
        self.whole = bool(allowed.any(axis=1).all())
        self.blocks = Blocks(
            np.searchsorted(pairs[1][back], ends),
            np.ascontiguousarray(pairs[0][back]),
            np.searchsorted(pairs[0], ends),
            np.ascontiguousarray(pairs[1]),
            allowed,
            work,
            graph.resident_bytes,
            host.astype(np.int64),
            accelerators(p),
            np.floor(p.memory_bytes),
            most_calls(p),
        )

    def __call__(self, placements: IntArray) -> tuple[IntArray, IntArray]:
        """Shape (k, n) each: devices and calls; rows that cannot be mended stay as they are."""
        rows = np.atleast_2d(placements)
        places, calls = np.array(rows), np.zeros(rows.shape, dtype=np.int64)
        for k, row in enumerate(rows if self.whole else rows[:0]):
            wanted = row[self.first]
            fits = self.blocks.allowed[np.arange(len(wanted)), wanted]
            wanted = np.where(fits, wanted, self.blocks.allowed.argmax(axis=1))
            place, call, left = _made(self.blocks, wanted)
            if left != 0:
                place, call, left = _made(self.blocks, _convex(self.blocks, wanted))
            if left >= 0:
                places[k], calls[k] = place[self.block], call[self.block]
        return places, calls

    def fills(self) -> IntArray:
        """Shape (k, n): accelerators filled in topological order, by memory and by shares of work.

        What quick planners are for other problems: something to start from.
        """
        b = self.blocks
        called = np.flatnonzero(b.called)
        firsts = [called[: count + 1] for count in range(len(called))]
        rows = [_filled(b, some, way)[self.block] for some in firsts for way in (False, True)]
        return np.unique(np.array(rows).reshape(-1, len(self.block)), axis=0)


def over_links(problem: OperatorProblem) -> tuple[FloatArray, FloatArray]:
    """Shape (m, m) each: latencies, seconds per byte; through host memory both ends pay."""
    if problem.communication is not Communication.STAR:
        return problem.latency_s, problem.seconds_per_byte
    host = problem.host_seconds_per_byte
    apart = ~np.eye(problem.m, dtype=np.bool_)
    return np.zeros(apart.shape), np.where(apart, host[:, None] + host, 0.0)


def _filled(b: Blocks, devices: IntArray, shared: bool) -> IntArray:
    """Blocks in order on one device after the other, the rest on CPUs where they can be."""
    work = b.work_s[:, devices[0]]
    share = work.sum() / len(devices) if shared else np.inf
    place = np.where(b.host >= 0, b.host, b.allowed.argmax(axis=1))
    at, held, done = 0, 0.0, 0.0
    for x in range(len(place)):
        if not b.allowed[x, devices[at]]:
            continue
        full = held + b.resident_bytes[x] > b.room_bytes[devices[at]]
        if (full or done + work[x] / 2 > share) and at + 1 < len(devices):
            at, held, done, full = at + 1, 0.0, 0.0, b.resident_bytes[x] > b.room_bytes[devices[at]]
        if not full and b.allowed[x, devices[at]]:
            place[x] = devices[at]
            held, done = held + b.resident_bytes[x], done + work[x]
    return place


@njit_cached
def _convex(b: Blocks, wanted: IntArray) -> IntArray:
    """Wishes in which what lies between two blocks of an accelerator joins it, if allowed."""
    n, m = b.allowed.shape
    want, taken = wanted.copy(), np.zeros(n, dtype=np.bool_)
    work = np.zeros(m)
    for x in range(n):
        if b.called[want[x]]:
            work[want[x]] += b.work_s[x, want[x]] + 1e-12
    before, after = np.zeros(n, dtype=np.bool_), np.zeros(n, dtype=np.bool_)
    # Convex: a block that follows one of d's and is followed by another joins d. Blocks of devices
    # that were made convex before stay.
    for d in np.argsort(-work):
        if work[d] == 0.0:
            break
        for x in range(n):
            before[x] = want[x] == d
            for a in range(b.into_start[x], b.into_start[x + 1]):
                before[x] |= before[b.into[a]]
        for x in range(n - 1, -1, -1):
            after[x] = want[x] == d
            for a in range(b.out_start[x], b.out_start[x + 1]):
                after[x] |= after[b.out[a]]
        for x in range(n):
            if before[x] and after[x] and not taken[x] and b.allowed[x, d]:
                want[x] = d
            taken[x] |= want[x] == d
    return want


@njit_cached
def _made(b: Blocks, wanted: IntArray) -> tuple[IntArray, IntArray, int]:
    """Devices and calls of all blocks, and how many are not where they were wanted; -1: stuck.

    A block waits for the blocks that it reads, is ready, and is done. `meant` counts the blocks
    that are still meant for each device.
    """
    n, m = b.allowed.shape
    want, call = wanted.copy(), np.zeros(n, dtype=np.int64)
    waits = b.into_start[1:] - b.into_start[:-1]
    done = np.zeros(n, dtype=np.bool_)
    left, room = np.full(m, b.most), b.room_bytes.copy()
    meant = np.zeros(m, dtype=np.int64)
    for x in range(n):
        meant[want[x]] += 1
    member = np.empty(n, dtype=np.int64)
    count = 0
    while count < n:
        before = count
        for x in range(n):  # one pass is enough: blocks are in topological order
            if not done[x] and waits[x] == 0 and not b.called[want[x]]:
                done[x] = True
                count += 1
                meant[want[x]] -= 1
                _finish(b, x, waits)
        best, most_work, best_whole = -1, -1.0, False
        for d in range(m):
            if not b.called[d] or left[d] == 0 or meant[d] == 0 or best_whole:
                continue
            size, work = _collected(b, d, want, done, room[d], member)
            # A call of all that is meant for a device comes first, since nothing of it is then left
            # over.
            whole = size == meant[d]
            if size > 0 and (whole or work > most_work):
                best, most_work, best_whole = d, work, whole
        if best >= 0:
            size, _ = _collected(b, best, want, done, room[best], member)
            for a in range(size):
                x = member[a]
                done[x] = True
                call[x] = b.most - left[best]
                room[best] -= b.resident_bytes[x]
                _finish(b, x, waits)
            count += size
            meant[best] -= size
            left[best] -= 1
            over = left[best] == 0 and meant[best] > 0
            if over and not _sent_on(b, best, want, done, left, room, meant):
                return want, call, -1
        elif count == before:  # what is ready fits no device that it is meant for
            for x in range(n):
                if not done[x] and waits[x] == 0:
                    if not _sent_on(b, want[x], want, done, left, room, meant):
                        return want, call, -1
                    break
    moved = 0
    for x in range(n):
        moved += want[x] != wanted[x]
    return want, call, moved


@njit_cached
def _collected(
    b: Blocks,
    d: int,
    want: IntArray,
    done: BoolArray,
    room: float,
    member: IntArray,
) -> tuple[int, float]:
    """How many blocks a call of device d can take now, written to `member`, and their work."""
    inside = np.zeros(len(want), dtype=np.bool_)
    size, work = 0, 0.0
    for x in range(len(want)):
        if done[x] or want[x] != d or b.resident_bytes[x] > room:
            continue
        open_ = True
        for a in range(b.into_start[x], b.into_start[x + 1]):
            open_ = open_ and (done[b.into[a]] or inside[b.into[a]])
        if open_:
            inside[x] = True
            member[size] = x
            size += 1
            # More than zero also for blocks that take no time, so that a call of them counts.
            work += b.work_s[x, d] + 1e-12
            room -= b.resident_bytes[x]
    return size, work


@njit_cached
def _sent_on(
    b: Blocks,
    d: int,
    want: IntArray,
    done: BoolArray,
    left: IntArray,
    room: FloatArray,
    meant: IntArray,
) -> bool:
    """Mean the rest of device d for an accelerator that nobody wants, else for CPUs."""
    to = -1
    for e in range(len(left)):
        if to < 0 and e != d and b.called[e] and left[e] > 0 and meant[e] == 0:
            to = e
    for x in range(len(want)):
        if done[x] or want[x] != d:
            continue
        if to >= 0 and b.allowed[x, to] and b.resident_bytes[x] <= room[to]:
            want[x] = to
        elif b.host[x] >= 0:
            want[x] = b.host[x]
        else:
            return False
        meant[d] -= 1
        meant[want[x]] += 1
    return True


@njit_cached
def _finish(b: Blocks, x: int, waits: IntArray) -> None:
    """Tell the blocks that read x."""
    for a in range(b.out_start[x], b.out_start[x + 1]):
        waits[b.out[a]] -= 1
