"""Shortest chains of calls and CPU blocks over given ideals, by labels.

Labels are states of a partial schedule, for dynamic programming with dominance.
A label of an ideal x says that the blocks of x are done; for every accelerator how many calls it
made, how many bytes live on it and when it is free again; when each tensor that crosses the
border of x is in host memory; and a lower bound on the end (the greatest of tensor time + least
time from there to the end, and of all ends so far). From x a label is extended

- to x and one block more, run on a CPU, or
- to any larger ideal y whose blocks beyond x an accelerator can hold, by one call of it.

*Every plan is such a chain.* Order its calls and CPU blocks by a topological order of the graph
in which each call is one node that follows the call before it on its accelerator; that graph has
no cycle, or a call could not be made. The unions of the first j of them are ideals of the graph
of blocks, and the times of the chain are the judge's.

*Fewer labels suffice.* A label that is nowhere better than another of the same ideal can be
dropped: whatever completes it completes the other at least as early. Before that, times are
raised where this changes no completion: if everything that still waits for tensor i also waits
for tensor j, nothing is gained by i being earlier than j; an accelerator that may not be called
again is never free. Of accelerators that are alike and in one state, one is tried. And a
label whose bound is not below the best plan known cannot lead to a better one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.numerics.by_reference import by_reference
from placewright.numerics.njit import njit_cached, njit_internal, njit_no_refcount
from placewright.operators.planners.call_graph import CallGraph, Lattice, lattice

POOL_BYTES = 4e8
"""Room for labels; a fuller pool loses labels, and with them the proof."""
NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True, eq=False)
class CallChain:
    """The best chain, if any is better than what was known.

    Attributes
    ----------
    place, call
        Shape (n,): device and call of every operator, -1 where left out.
    value_s
        ``inf`` without a chain.
    bound_s
        No chain over these ideals ends earlier.
    """

    place: IntArray
    call: IntArray
    value_s: float
    bound_s: float


def best_chain(
    graph: CallGraph,
    sets: Sequence[int],
    *,
    below_s: float = math.inf,
    beam: int = NO_LIMIT,
    unlimited: bool = False,
    deadline_s: float = math.inf,
) -> CallChain:
    """The shortest chain over the ideals `sets` that ends before `below_s`.

    `beam`: labels that go on from each ideal; fewer make it a heuristic.
    `unlimited`: every call has an accelerator to itself. The chain may be no plan, and its bound is
    one of plans; labels need not say what accelerators have done, so that far fewer are enough.
    `deadline_s`: ``time.perf_counter()`` value at which what is open becomes the bound.
    """
    try:
        # The lattice alone takes seconds where ideals or operators are thousands.
        g = lattice(graph, sets, deadline_s if graph.blocks else math.inf)
    except TimeoutError:
        nowhere = np.full(graph.problem.n, -1)
        return CallChain(nowhere, nowhere, math.inf, 0.0)
    machines = _machines(graph, unlimited)
    pool = labels(g, machines, int(POOL_BYTES / (8 * columns(g, machines) + 32)))
    last = len(sets) - 1
    # Ideals by size: all labels of x are there before it is extended.
    for x in range(last):
        if time.perf_counter() > deadline_s:
            break
        expand(g, pool, machines, x, below_s, beam)
    else:
        x = last
    end = _ends(pool, last)
    value = float(pool.value[end, 0]) if end >= 0 else math.inf
    # What would end earlier goes on from a label that has not been extended, unless one was lost.
    bound = min(value, below_s, _least_open(pool, x, last))
    place, call = _walk_back(graph, g, pool, -1 if unlimited else end)
    return CallChain(place, call, value, 0.0 if pool.state[2] > 0 else bound)


def _machines(graph: CallGraph, unlimited: bool) -> Machines:
    p, called = graph.problem, graph.called
    room, host = np.floor(p.memory_bytes[called]), p.host_seconds_per_byte[called]
    table = np.column_stack([graph.accelerator_s, room, host])
    _, first, same = np.unique(table, axis=0, return_index=True, return_inverse=True)
    like = first[same.ravel()].astype(np.int64) if len(called) else called
    tried = np.unique(like) if unlimited else np.arange(len(called))
    return Machines(graph.cpu_s, room, host, like, tried, p.calls, unlimited)


def _ends(pool: Labels, last: int) -> int:
    """The best label of the whole graph, -1 if there is none."""
    best, at = -1, int(pool.head[last])
    while at >= 0:
        if best < 0 or pool.value[at, 0] < pool.value[best, 0]:
            best = at
        at = int(pool.following[at])
    return best


def _least_open(pool: Labels, first: int, last: int) -> float:
    """The least bound of the labels that have not gone on."""
    least = math.inf
    for head in pool.head[first:last].tolist():
        at = head
        while at >= 0:
            least = min(least, float(pool.value[at, 0]))
            at = int(pool.following[at])
    return least


def _walk_back(graph: CallGraph, g: Lattice, pool: Labels, end: int) -> tuple[IntArray, IntArray]:
    """Device and call of every operator, from the last label on; the last entry: left out."""
    place, steps, at = np.full(graph.blocks + 1, -1), np.full(graph.blocks + 1, -1), end
    while at > 0:
        parent, device = int(pool.parent[at]), int(pool.device[at])
        new = np.flatnonzero(g.member[pool.ideal[at]] & ~g.member[pool.ideal[parent]])
        place[new] = graph.called[device] if device >= 0 else graph.cpus[-1 - device]
        # Column 2 + 3 d of a label: calls of accelerator d before this one.
        steps[new] = 0 if device < 0 else pool.value[parent, 2 + 3 * device]
        at = parent
    return place[graph.block], steps[graph.block]


@by_reference
class Labels(NamedTuple):
    """A pool of labels, chained per ideal.

    Attributes
    ----------
    value
        Shape (capacity, 1 + 3 k + widest border): the bound; bytes, calls and time of each of
        the k accelerators; times of the tensors on the border.
    ideal, parent, following, device
        Shape (capacity,); the label that a label came from, the next of its ideal, and where the
        new blocks ran: an accelerator's number, or -1 - the number of a CPU.
    head
        Shape (l,), first label of each ideal, -1 if none.
    state
        Labels taken from the pool so far, head of the list of labels given back, labels lost
        because the pool was full or the beam narrow.
    """

    value: FloatArray
    ideal: IntArray
    parent: IntArray
    following: IntArray
    device: IntArray
    head: IntArray
    state: IntArray


@by_reference
class Machines(NamedTuple):
    """Devices that run blocks.

    Attributes
    ----------
    cpu_s
        Shape (c, n).
    room_bytes, host_seconds_per_byte
        Shape (k,).
    like
        Shape (k,): the first accelerator that equals this one.
    tried
        Those that are asked for a call.
    calls
        Allowed for each accelerator.
    unlimited
        Whether every call is made as if it were the first one.
    """

    cpu_s: FloatArray
    room_bytes: FloatArray
    host_seconds_per_byte: FloatArray
    like: IntArray
    tried: IntArray
    calls: int
    unlimited: bool


def labels(lattice: Lattice, machines: Machines, capacity: int) -> Labels:
    """A pool with one label, of the empty ideal."""
    ideals = len(lattice.member)
    made = Labels(
        value=np.zeros((capacity, columns(lattice, machines))),
        ideal=np.empty(capacity, dtype=np.int64),
        parent=np.empty(capacity, dtype=np.int64),
        following=np.empty(capacity, dtype=np.int64),
        device=np.empty(capacity, dtype=np.int64),
        head=np.full(ideals, -1),
        state=np.array([1, -1, 0]),
    )
    made.head[0] = made.ideal[0] = 0
    made.following[0] = -1
    return made


def columns(lattice: Lattice, machines: Machines) -> int:
    """How many numbers a label has."""
    border = int(np.diff(lattice.front_offsets).max(initial=0))
    return first_time(machines) + border


@njit_no_refcount
def first_time(m: Machines) -> int:
    """The column in which the times of the tensors on the border begin."""
    return 1 if m.unlimited else 1 + 3 * len(m.like)


@njit_cached
def expand(g: Lattice, p: Labels, m: Machines, x: int, below_s: float, beam: int) -> None:
    """Extend the labels of ideal x.

    `below_s`: only ends below this count.
    `beam`: how many labels are extended, those of least bound; at least 1.
    """
    kept = _narrow(p, x, beam)
    if len(kept) == 0:
        return
    # `slot` is the column of each tensor on the border of x, -1 for others.
    slot = np.full(len(g.tensor_block), -1)
    times = first_time(m)
    for a in range(g.front_offsets[x], g.front_offsets[x + 1]):
        slot[g.front[a]] = times + a - g.front_offsets[x]
    made_s = np.zeros(m.cpu_s.shape[1])
    new = np.zeros(p.value.shape[1])
    enters = np.zeros(p.value.shape[1], dtype=np.bool_)
    for e in range(g.up_offsets[x], g.up_offsets[x + 1]):
        for c in range(len(m.cpu_s)):
            _on_cpu(g, p, m, kept, g.up_ideal[e], g.up_block[e], c, slot, made_s, new, below_s)
    # All larger ideals that one call could reach, by a search upwards: where no accelerator holds
    # the blocks in between, none holds more.
    mark = np.zeros(len(g.member), dtype=np.bool_)
    stack = np.empty(len(g.member), dtype=np.int64)
    stack[0] = x
    top = 1
    while top > 0:
        top -= 1
        y = stack[top]
        if y != x:
            _in_call(g, p, m, kept, x, y, slot, enters, new, below_s)
        for e in range(g.up_offsets[y], g.up_offsets[y + 1]):
            z = g.up_ideal[e]
            if not mark[z] and _some_holds(g, m, x, z):
                mark[z] = True
                stack[top] = z
                top += 1


@njit_internal
def _some_holds(g: Lattice, m: Machines, x: int, z: int) -> bool:
    """Whether an accelerator can hold all blocks between ideals x and z."""
    need = g.resident_bytes[z] - g.resident_bytes[x]
    for d in range(len(m.like)):
        if need <= m.room_bytes[d] and g.refused[d, z] == g.refused[d, x]:
            return True
    return False


@njit_cached
def _narrow(p: Labels, x: int, beam: int) -> IntArray:
    """The labels of ideal x that are extended."""
    count = 0
    at = p.head[x]
    while at >= 0:
        count += 1
        at = p.following[at]
    found = np.empty(count, dtype=np.int64)
    at = p.head[x]
    for i in range(count):
        found[i] = at
        at = p.following[at]
    if count <= beam:
        return found
    p.state[2] += count - beam
    # Selection: the `beam` least come first; a beam is narrow.
    for i in range(beam):
        for j in range(i + 1, count):
            if p.value[found[j], 0] < p.value[found[i], 0]:
                found[i], found[j] = found[j], found[i]
    return found[:beam]


@njit_internal
def _on_cpu(
    g: Lattice,
    p: Labels,
    m: Machines,
    kept: IntArray,
    y: int,
    block: int,
    cpu: int,
    slot: IntArray,
    made_s: FloatArray,
    new: FloatArray,
    below_s: float,
) -> None:
    """Extend labels by one block, on a CPU."""
    lo, hi, times = g.front_offsets[y], g.front_offsets[y + 1], first_time(m)
    for label in kept:
        old = p.value[label]
        end = old[0]
        for a in range(g.op_offsets[block], g.op_offsets[block + 1]):
            i = g.op[a]
            begin = 0.0
            for b in range(g.in_offsets[i], g.in_offsets[i + 1]):
                k = g.in_tensors[b]
                if g.tensor_block[k] == block:
                    begin = max(begin, made_s[g.producer[k]])
                # Neither: its producer was left out (`free_sources`), and it is there from the
                # beginning.
                elif slot[k] >= 0:
                    begin = max(begin, old[slot[k]])
            made_s[i] = begin + m.cpu_s[cpu, i]
            end = max(end, made_s[i])
        # Also where the CPU cannot run it and `end` is ``inf``.
        if not end < below_s:
            continue
        new[0] = end
        for c in range(1, times):
            new[c] = old[c]
        for a in range(lo, hi):
            k = g.front[a]
            inside = g.tensor_block[k] == block
            new[times + a - lo] = made_s[g.producer[k]] if inside else old[slot[k]]
        _insert(g, p, m, y, label, -1 - cpu, new, below_s)


@njit_internal
def _in_call(
    g: Lattice,
    p: Labels,
    m: Machines,
    kept: IntArray,
    x: int,
    y: int,
    slot: IntArray,
    enters: BoolArray,
    new: FloatArray,
    below_s: float,
) -> None:
    """Extend labels by all blocks between ideals x and y, in one call."""
    first, last = g.front_offsets[x], g.front_offsets[x + 1]
    moved = 0.0
    for a in range(first, last):
        k = g.front[a]
        enters[a - first] = False
        for b in range(g.reader_offsets[k], g.reader_offsets[k + 1]):
            r = g.reader[b]
            if g.member[y, r] and not g.member[x, r]:
                enters[a - first] = True
        if enters[a - first]:
            moved += g.tensor_bytes[k]
    lo, hi, times = g.front_offsets[y], g.front_offsets[y + 1], first_time(m)
    after = 0.0
    for a in range(lo, hi):
        # Not on the border of x: made in this call, and read after it.
        if slot[g.front[a]] < 0:
            moved += g.tensor_bytes[g.front[a]]
            after = max(after, g.least_tail_s[a])
    for label in kept:
        begin = 0.0
        for a in range(last - first):
            if enters[a]:
                begin = max(begin, p.value[label, times + a])
        for d in m.tried:
            end = _end_of_call(g, m, p.value[label], d, x, y, moved, begin)
            if not end + after < below_s:
                continue
            old = p.value[label]
            new[0] = max(old[0], end)
            for c in range(1, times):
                new[c] = old[c]
            _record_call(m, new, d, g.resident_bytes[y] - g.resident_bytes[x], end)
            for a in range(lo, hi):
                s = slot[g.front[a]]
                new[times + a - lo] = end if s < 0 else old[s]
            _insert(g, p, m, y, label, d, new, below_s)


@njit_internal
def _end_of_call(
    g: Lattice, m: Machines, old: FloatArray, d: int, x: int, y: int, moved: float, begin_s: float
) -> float:
    """When a call of accelerator d would end, ``inf`` if it cannot or need not be tried."""
    at, need = 1 + 3 * d, g.resident_bytes[y] - g.resident_bytes[x]
    if g.refused[d, y] != g.refused[d, x] or need > m.room_bytes[d]:
        return np.inf
    work: float = g.accelerator_s[d, y] - g.accelerator_s[d, x] + moved * m.host_seconds_per_byte[d]
    if m.unlimited:
        return begin_s + work
    if old[at + 1] >= m.calls:
        return np.inf
    if old[at] + need > m.room_bytes[d]:
        return np.inf
    # An accelerator like this one, in the same state, was tried before it.
    for other in range(m.like[d], d):
        o = 1 + 3 * other
        same = old[o] == old[at] and old[o + 1] == old[at + 1] and old[o + 2] == old[at + 2]
        if m.like[other] == m.like[d] and same:
            return np.inf
    return float(max(begin_s, old[at + 2])) + work


@njit_internal
def _record_call(m: Machines, new: FloatArray, d: int, need_bytes: float, end_s: float) -> None:
    """Record a call in a label; after the last call the accelerator's state no longer matters."""
    if m.unlimited:
        return
    at = 1 + 3 * d
    new[at + 1] += 1.0
    last = new[at + 1] >= m.calls
    # ``inf`` is no better than anything: its bytes and time no longer count in comparisons.
    new[at] = np.inf if last else new[at] + need_bytes
    new[at + 2] = np.inf if last else end_s


@njit_internal
def _insert(
    g: Lattice,
    p: Labels,
    m: Machines,
    y: int,
    parent: int,
    device: int,
    new: FloatArray,
    below_s: float,
) -> None:
    """Raise times where that is safe, then keep the label unless another dominates it.

    Its bound is looked at before that, too, since most labels end there.
    """
    lo, times = g.front_offsets[y], first_time(m)
    width = g.front_offsets[y + 1] - lo
    base, left = g.later_offsets[y], _left(m, new)
    for i in range(width):
        new[0] = max(new[0], new[times + i] + g.tail_s[lo + i, left])
    if not new[0] < below_s:
        return
    for i in range(width):
        for j in range(width):
            if g.later[base + i * width + j]:
                new[times + i] = max(new[times + i], new[times + j])
    for i in range(width):
        new[0] = max(new[0], new[times + i] + g.tail_s[lo + i, left])
    if not new[0] < below_s:
        return
    before, at = -1, p.head[y]
    while at >= 0:
        after = p.following[at]
        # `better`: the label that is there is nowhere worse than the new one, which is dropped.
        # `worse`: it is nowhere better, and leaves the list; with equal labels the old one stays.
        better, worse = True, True
        for c in range(times + width):
            if p.value[at, c] > new[c]:
                better = False
            elif p.value[at, c] < new[c]:
                worse = False
            if not better and not worse:
                break
        if better:
            return
        if worse:
            if before < 0:
                p.head[y] = after
            else:
                p.following[before] = after
            # Given back: labels given back are chained by `following`, too. None has children yet,
            # since ideal y is extended after all labels of it are made.
            p.following[at] = p.state[1]
            p.state[1] = at
        else:
            before = at
        at = after
    at = _allocate(p)
    if at >= 0:
        for c in range(times + width):
            p.value[at, c] = new[c]
        p.ideal[at], p.parent[at], p.device[at] = y, parent, device
        p.following[at] = p.head[y]
        p.head[y] = at


@njit_internal
def _left(m: Machines, new: FloatArray) -> int:
    """How many of the largest accelerators have as much memory as is left, rounded up."""
    if m.unlimited:
        return len(m.like)
    free, largest = 0.0, 0.0
    for d in range(len(m.like)):
        largest = max(largest, m.room_bytes[d])
        free += max(0.0, m.room_bytes[d] - new[1 + 3 * d])
    if free == 0.0:
        return 0
    if not free < largest * len(m.like):
        return len(m.like)
    return max(1, int(np.ceil(free / largest)))  # 0 of a memory without limit is still some


@njit_internal
def _allocate(p: Labels) -> int:
    """A place in the pool, -1 (and a label lost) if it is full."""
    at = p.state[1]
    if at >= 0:
        p.state[1] = p.following[at]
    elif p.state[0] < len(p.ideal):
        at = p.state[0]
        p.state[0] += 1
    else:
        p.state[2] += 1
    return int(at)
