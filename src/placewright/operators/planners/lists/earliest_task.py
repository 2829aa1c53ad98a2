"""Earliest task first, compiled: the engine of m-ETF and m-SCT.

Of all pairs of a ready operator and a device with memory, the one that can start first is taken;
ties go to the higher upward rank, then the earlier operator and device. O((n + tensor uses) m
log n), where looking through all pairs takes O(n r m) with r ready operators at a time, by two
records:

- `MemoryState`: memory only fills, and the largest operators stop fitting first: one pointer per
  device goes through the operators by size. Where an operator fits nowhere, every device that
  may run it is open.
- `ReadyHeaps`, two heaps per device: `arriving` has ready operators whose inputs are in transfer,
  the first to arrive on top; `arrived` those that could start as soon as the device is free, the
  one of the highest rank on top. Operators that are placed, or no longer open, leave a heap when
  they come to its top.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from placewright.errors import OutOfTimeError
from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.numerics.clocks import stop_flag
from placewright.numerics.njit import njit_cached, njit_internal, njit_nogil
from placewright.operators.costs import Costs, move_time
from placewright.operators.planners.annealing import group_members
from placewright.operators.planners.lists.insertion import Rules
from placewright.operators.queues import pop, push


class MemoryState(NamedTuple):
    """Memory in use, and the operators that no longer fit.

    Attributes
    ----------
    own_bytes
        Shape (n,): an operator's outputs, and the resident bytes of its group.
    largest
        Shape (n,), operators by `own_bytes`, the largest first.
    excluded
        Shape (m,): how many of the largest operators do not fit on each device any more.
    fitting
        Shape (n,): how many of the devices that may run an operator have memory for it.
    used_bytes
        Shape (m,).
    chosen
        Device of every group, -1 before its first operator is placed.
    """

    own_bytes: FloatArray
    largest: IntArray
    excluded: IntArray
    fitting: IntArray
    used_bytes: FloatArray
    chosen: IntArray


@njit_cached
def empty_memory(c: Costs, r: Rules) -> MemoryState:
    """Memory before any operator is placed."""
    n, m = r.allowed.shape
    # Indexing copies: `group_bytes` is not written to.
    own_bytes = r.group_bytes[r.group]
    for k in range(len(c.producer)):
        own_bytes[c.producer[k]] += c.home_bytes[k]
    fitting = np.zeros(n, dtype=np.int64)
    for i in range(n):
        for d in range(m):
            fitting[i] += r.allowed[i, d]
    return MemoryState(
        own_bytes,
        np.argsort(-own_bytes),
        np.zeros(m, dtype=np.int64),
        fitting,
        np.zeros(m),
        np.full(len(r.group_bytes), -1),
    )


@njit_internal
def is_open(r: Rules, memory: MemoryState, i: int, d: int) -> bool:
    """Whether operator `i` may go to device `d`: to its group, else where there is memory."""
    only = memory.chosen[r.group[i]]
    if only >= 0:
        return bool(d == only)
    fits = memory.used_bytes[d] + memory.own_bytes[i] <= r.budget_bytes[d]
    return bool(r.allowed[i, d] and (fits or memory.fitting[i] == 0))


@njit_internal
def next_excluded(r: Rules, memory: MemoryState, d: int) -> int:
    """The next operator that has no memory on device `d` any more, -1 where all others have."""
    # Memory only fills: what has stopped fitting never fits again, and the largest stop first.
    at = memory.excluded[d]
    if at == len(memory.largest):
        return -1
    i = memory.largest[at]
    if memory.used_bytes[d] + memory.own_bytes[i] <= r.budget_bytes[d]:
        return -1
    memory.excluded[d] += 1
    memory.fitting[i] -= r.allowed[i, d]
    return int(i)


class ReadyHeaps(NamedTuple):
    """The heaps. They hold places: of operators by rank, the highest first, then by index.

    Attributes
    ----------
    place, operator
        Shape (n,), the place of every operator, and the operator at every place.
    ready_s
        Shape (m * n,), one device after the other: when the inputs of the operator at a place are
        there, ``inf`` without a link.
    free_s
        Shape (m,), when each device is free.
    ready
        Shape (n,), whether an operator's producers are placed and it is not.
    queued
        Shape (m * n,), whether a place is in a heap of a device.
    arrived, arrived_size, arriving, arriving_size
        Shape (m * n,) and (m,): the heaps, one device after the other, and how many are in each.
    no_key
        Shape (n,), zeros: the key of `arrived`, in which places alone decide.
    """

    place: IntArray
    operator: IntArray
    ready_s: FloatArray
    free_s: FloatArray
    ready: BoolArray
    queued: BoolArray
    arrived: IntArray
    arrived_size: IntArray
    arriving: IntArray
    arriving_size: IntArray
    no_key: FloatArray


@njit_cached
def empty_heaps(operator: IntArray, m: int) -> ReadyHeaps:
    """Empty heaps; `operator` lists the operators by rank."""
    n = len(operator)
    place = np.empty(n, dtype=np.int64)
    for at in range(n):
        place[operator[at]] = at
    return ReadyHeaps(
        place,
        operator,
        np.zeros(m * n),
        np.zeros(m),
        np.zeros(n, dtype=np.bool_),
        np.zeros(m * n, dtype=np.bool_),
        np.empty(m * n, dtype=np.int64),
        np.zeros(m, dtype=np.int64),
        np.empty(m * n, dtype=np.int64),
        np.zeros(m, dtype=np.int64),
        np.zeros(n),
    )


@njit_internal
def start_s(s: ReadyHeaps, i: int, d: int) -> float:
    """When operator `i` could start on device `d`, ``inf`` without a link."""
    return max(s.free_s[d], s.ready_s[d * len(s.place) + s.place[i]])  # type: ignore[no-any-return]


@njit_internal
def queue_for_device(r: Rules, memory: MemoryState, s: ReadyHeaps, i: int, d: int) -> None:
    """Queue a ready operator for a device, if it may go there and is not queued."""
    at = d * len(s.place) + s.place[i]
    # `queued` keeps a place from standing twice in one heap when its device is opened again.
    if s.queued[at] or s.ready_s[at] == np.inf or not is_open(r, memory, i, d):
        return
    s.queued[at] = True
    _push_arriving(s, d, s.place[i])


@njit_internal
def _push_arriving(s: ReadyHeaps, d: int, place: int) -> None:
    base = d * len(s.place)
    push(s.arriving, base, s.arriving_size[d], s.ready_s, base, place)
    s.arriving_size[d] += 1


@njit_internal
def _pop_arriving(s: ReadyHeaps, d: int) -> int:
    base = d * len(s.place)
    s.arriving_size[d] -= 1
    return pop(s.arriving, base, s.arriving_size[d] + 1, s.ready_s, base)


@njit_internal
def _move_arrived(s: ReadyHeaps, d: int) -> None:
    """Move operators whose inputs are there when the device is free to `arrived`."""
    base = d * len(s.place)
    # `free_s` only grows, so that what has arrived never goes back.
    while s.arriving_size[d] > 0 and s.ready_s[base + s.arriving[base]] <= s.free_s[d]:
        place = _pop_arriving(s, d)
        push(s.arrived, base, s.arrived_size[d], s.no_key, 0, place)
        s.arrived_size[d] += 1


@njit_internal
def _still_open(r: Rules, memory: MemoryState, s: ReadyHeaps, place: int, d: int) -> bool:
    """Whether a place is still to be placed and open; if not, it is queued no more."""
    # Lazy deletion: what was placed elsewhere, or is no longer open, is dropped when met.
    i = s.operator[place]
    if s.ready[i] and is_open(r, memory, i, d):
        return True
    s.queued[d * len(s.place) + place] = False
    return False


@njit_internal
def first(r: Rules, memory: MemoryState, s: ReadyHeaps, d: int) -> int:
    """The operator that starts first on device `d`, of several the one of highest rank; or -1."""
    _move_arrived(s, d)
    base = d * len(s.place)
    while s.arrived_size[d] > 0:
        if _still_open(r, memory, s, s.arrived[base], d):
            return int(s.operator[s.arrived[base]])
        pop(s.arrived, base, s.arrived_size[d], s.no_key, 0)
        s.arrived_size[d] -= 1
    while s.arriving_size[d] > 0:
        if _still_open(r, memory, s, s.arriving[base], d):
            return int(s.operator[s.arriving[base]])
        _pop_arriving(s, d)
    return -1


class Members(NamedTuple):
    """CSR: the operators of every colocation group."""

    offsets: IntArray
    operators: IntArray


def earliest_task(
    c: Costs,
    r: Rules,
    rank: FloatArray,
    favourite: IntArray,
    deadline_s: float = math.inf,
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Place and time of every operator; -1 in `place` where no device can be reached.

    `favourite`: shape (n,): the consumer for which the device of an operator is kept free, -1 for
    none. Others get that device only if nothing else can start anywhere.
    Raises `OutOfTimeError` at the deadline.
    """
    members = Members(*group_members(r.group, len(r.group_bytes)))
    by_rank = np.argsort(-rank, kind="stable")
    with stop_flag(deadline_s) as stop:
        place, start_s, end_s = _schedule(c, r, by_rank, favourite, members, stop)
    if stop[0] and place.min() < 0:
        raise OutOfTimeError("time limit reached", by=f"{(place < 0).sum()} operators are left")
    return place, start_s, end_s


@njit_nogil
def _schedule(
    c: Costs, r: Rules, by_rank: IntArray, favourite: IntArray, members: Members, stop: BoolArray
) -> tuple[IntArray, FloatArray, FloatArray]:
    n, m = c.compute_s.shape
    place, begin_s, end_s = np.full(n, -1), np.zeros(n), np.zeros(n)
    memory, s = empty_memory(c, r), empty_heaps(by_rank, m)
    last, waiting = np.full(m, -1), np.empty(n, dtype=np.int64)
    for d in range(m):
        _update_memory(r, memory, s, d)
    for i in range(n):
        waiting[i] = c.in_offsets[i + 1] - c.in_offsets[i]
        if waiting[i] == 0:
            _make_ready(r, memory, s, i)
    for _ in range(n):
        if stop[0]:
            break
        i, d = _earliest_pair(r, memory, s, favourite, last)
        if i < 0:
            break
        place[i], begin_s[i] = d, start_s(s, i, d)
        end_s[i] = begin_s[i] + c.compute_s[i, d]
        s.ready[i], s.free_s[d], last[d] = False, end_s[i], i
        _place(c, r, memory, s, members, i, d)
        _send_outputs(c, r, memory, s, waiting, end_s[i], i, d)
    return place, begin_s, end_s


@njit_internal
def _earliest_pair(
    r: Rules, memory: MemoryState, s: ReadyHeaps, favourite: IntArray, last: IntArray
) -> tuple[int, int]:
    """The operator and the device that are next; -1 if there are none.

    A device that is kept for a favourite that could start there is offered to no other operator.
    """
    best, device, begin, kept = -1, -1, np.inf, True
    for d in range(len(last)):
        # m-SCT keeps a device for the favourite child of what ran there last, while that is ready.
        owner = favourite[last[d]] if last[d] >= 0 else -1
        claimed = owner >= 0 and s.ready[owner]
        i, taken = owner, False
        if not (claimed and is_open(r, memory, owner, d) and start_s(s, owner, d) < np.inf):
            i, taken = first(r, memory, s, d), claimed
        if i < 0:
            continue
        start = start_s(s, i, d)
        sooner = start < begin or (start == begin and s.place[i] < s.place[best])
        # Any pair on a device that is not kept for another comes before all pairs on kept ones.
        if best < 0 or (kept and not taken) or (taken == kept and sooner):
            best, device, begin, kept = i, d, start, taken
    return best, device


@njit_internal
def _make_ready(r: Rules, memory: MemoryState, s: ReadyHeaps, i: int) -> None:
    """Queue an operator, all of whose producers are placed."""
    s.ready[i] = True
    for d in range(len(s.free_s)):
        queue_for_device(r, memory, s, i, d)


@njit_internal
def _update_memory(r: Rules, memory: MemoryState, s: ReadyHeaps, d: int) -> None:
    """Exclude operators from device `d`, now fuller; what fits nowhere may go anywhere."""
    i = next_excluded(r, memory, d)
    while i >= 0:
        # It fits nowhere any more: every device that may run it is open to it now (`is_open`).
        if memory.fitting[i] == 0 and s.ready[i]:
            _make_ready(r, memory, s, i)
        i = next_excluded(r, memory, d)


@njit_internal
def _place(
    c: Costs, r: Rules, memory: MemoryState, s: ReadyHeaps, members: Members, i: int, d: int
) -> None:
    """Count operator `i` on device `d`: its outputs and, if it is the first, its group."""
    g = r.group[i]
    if memory.chosen[g] < 0:
        memory.chosen[g] = d
        memory.used_bytes[d] += r.group_bytes[g]
        for a in range(members.offsets[g], members.offsets[g + 1]):
            # Its fellows were queued where they fitted; now they may go to `d` alone, with or
            # without room, and other devices drop them lazily.
            if s.ready[members.operators[a]]:
                queue_for_device(r, memory, s, members.operators[a], d)
    for a in range(c.out_offsets[i], c.out_offsets[i + 1]):
        memory.used_bytes[d] += c.home_bytes[c.out_tensors[a]]
    _update_memory(r, memory, s, d)


@njit_internal
def _send_outputs(
    c: Costs,
    r: Rules,
    memory: MemoryState,
    s: ReadyHeaps,
    waiting: IntArray,
    end_s: float,
    i: int,
    d: int,
) -> None:
    """Update arrivals of the tensors of operator `i` on every device; consumers may be ready."""
    n, m = c.compute_s.shape
    for a in range(c.out_offsets[i], c.out_offsets[i + 1]):
        k = c.out_tensors[a]
        for b in range(c.offsets[k], c.offsets[k + 1]):
            j = c.consumers[b]
            for q in range(m):
                at = q * n + s.place[j]
                s.ready_s[at] = max(s.ready_s[at], end_s + move_time(c, k, d, q))
            # All producers update `ready_s` before `j` enters a heap, whose keys must not change.
            waiting[j] -= 1
            if waiting[j] == 0:
                _make_ready(r, memory, s, j)
