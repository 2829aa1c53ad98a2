"""Labels on ideals: everything that can have been done by a time, and what it left when.

A label of an ideal x says that the blocks of x are done with so many calls, when each tensor
that crosses the border of x is in host memory, and a lower bound on the end (the greatest of
tensor time + least time from there to the end, and of all ends so far). From x a label goes on

- to x and one block more, run on the CPU, or
- to any larger ideal y whose blocks beyond x one accelerator can hold, by one call.

*Every plan is such a chain.* Order its calls and CPU blocks by a topological order of the graph
in which each call is one node; that graph has no cycle, or the call could not be made. The unions
of the first j of them are ideals of the graph of blocks, and the times of the chain are the
judge's.

*Fewer labels suffice.* A label that is nowhere better than another of the same ideal (calls, bound
and every time) can be dropped: whatever completes it completes the other at least as early.
Before that, times are raised where this changes no completion: if everything that still waits for
tensor i also waits for tensor j, nothing can be gained by i being earlier than j. And a label
whose bound is not below the best plan known cannot lead to a better one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewright.arrays import FloatArray, IntArray
from placewright.compiled import compiled
from placewright.operators.planners._call_lattice import Lattice


class Labels(NamedTuple):
    """A pool of labels, chained per ideal.

    Attributes
    ----------
    value
        Shape (capacity, 2 + widest border).
    ideal, parent, following
        Shape (capacity,); the label that a label came from, and the next of its ideal.
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
    head: IntArray
    state: IntArray


def labels(lattice: Lattice, capacity: int) -> Labels:
    """A pool that holds one label: nothing is done."""
    ideals = len(lattice.member)
    width = 2 + int(np.diff(lattice.front_offsets).max(initial=0))
    made = Labels(
        np.zeros((capacity, width)),
        np.zeros(capacity, dtype=np.int64),
        np.full(capacity, -1),
        np.full(capacity, -1),
        np.full(ideals, -1),
        np.array([1, -1, 0]),
    )
    made.head[0] = 0
    return made


@compiled
def expand(
    g: Lattice,
    p: Labels,
    first: int,
    last: int,
    cpu_s: FloatArray,
    room_bytes: float,
    most_calls: int,
    below_s: float,
    beam: int,
) -> None:
    """Let the labels of the ideals ``first`` to ``last - 1`` go on.

    Parameters
    ----------
    room_bytes
        What an accelerator holds.
    below_s
        Only ends below this count.
    beam
        Labels of an ideal that go on: those of least bound. At least 1.
    """
    slot = np.full(len(g.tensor_block), -1)
    made_s = np.zeros(len(cpu_s))
    mark = np.full(len(g.member), -1)
    stack = np.empty(len(g.member), dtype=np.int64)
    new = np.zeros(p.value.shape[1])
    for x in range(first, last):
        kept = _narrow(p, x, beam)
        if len(kept) == 0:
            continue
        lo, hi = g.front_offsets[x], g.front_offsets[x + 1]
        for a in range(lo, hi):
            slot[g.front[a]] = a - lo
        for e in range(g.up_offsets[x], g.up_offsets[x + 1]):
            _on_cpu(g, p, kept, g.up_ideal[e], g.up_block[e], cpu_s, slot, made_s, new, below_s)
        mark[x] = x
        stack[0] = x
        top = 1
        while top > 0:
            top -= 1
            y = stack[top]
            if y != x:
                _in_call(g, p, kept, x, y, slot, most_calls, new, below_s)
            for e in range(g.up_offsets[y], g.up_offsets[y + 1]):
                z = g.up_ideal[e]
                fits = g.resident_bytes[z] - g.resident_bytes[x] <= room_bytes
                if mark[z] != x and fits and g.callable_[g.up_block[e]]:
                    mark[z] = x
                    stack[top] = z
                    top += 1
        for a in range(lo, hi):
            slot[g.front[a]] = -1


@compiled
def _narrow(p: Labels, x: int, beam: int) -> IntArray:
    """The labels of ideal x that go on."""
    count = 0
    at = p.head[x]
    while at >= 0:
        count += 1
        at = p.following[at]
    found = np.empty(count, dtype=np.int64)
    bound = np.empty(count)
    at = p.head[x]
    for i in range(count):
        found[i] = at
        bound[i] = p.value[at, 0]
        at = p.following[at]
    if count <= beam:
        return found
    p.state[2] += count - beam
    return found[np.argsort(bound)[:beam]]


@compiled
def _on_cpu(
    g: Lattice,
    p: Labels,
    kept: IntArray,
    y: int,
    block: int,
    cpu_s: FloatArray,
    slot: IntArray,
    made_s: FloatArray,
    new: FloatArray,
    below_s: float,
) -> None:
    """One block more, on the CPU."""
    lo, hi = g.front_offsets[y], g.front_offsets[y + 1]
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
                elif slot[k] >= 0:
                    begin = max(begin, old[2 + slot[k]])
            made_s[i] = begin + cpu_s[i]
            end = max(end, made_s[i])
        if not end < below_s:
            continue
        for a in range(lo, hi):
            k = g.front[a]
            inside = g.tensor_block[k] == block
            new[2 + a - lo] = made_s[g.producer[k]] if inside else old[2 + slot[k]]
        new[0] = end
        new[1] = old[1]
        _insert(g, p, y, label, new, below_s)


@compiled
def _in_call(
    g: Lattice,
    p: Labels,
    kept: IntArray,
    x: int,
    y: int,
    slot: IntArray,
    most_calls: int,
    new: FloatArray,
    below_s: float,
) -> None:
    """All between ideals x and y in one call."""
    load = g.accelerator_s[y] - g.accelerator_s[x]
    first, width = g.front_offsets[x], g.front_offsets[x + 1] - g.front_offsets[x]
    enters = np.zeros(width, dtype=np.bool_)
    for a in range(width):
        k = g.front[first + a]
        for b in range(g.reader_offsets[k], g.reader_offsets[k + 1]):
            r = g.reader[b]
            if g.member[y, r] and not g.member[x, r]:
                enters[a] = True
        if enters[a]:
            load += g.tensor_s[k]
    lo, hi = g.front_offsets[y], g.front_offsets[y + 1]
    for a in range(lo, hi):
        if slot[g.front[a]] < 0:
            load += g.tensor_s[g.front[a]]
    for label in kept:
        old = p.value[label]
        if old[1] >= most_calls:
            continue
        end = 0.0
        for a in range(width):
            if enters[a]:
                end = max(end, old[2 + a])
        end += load
        if not end < below_s:
            continue
        for a in range(lo, hi):
            s = slot[g.front[a]]
            new[2 + a - lo] = end if s < 0 else old[2 + s]
        new[0] = max(old[0], end)
        new[1] = old[1] + 1
        _insert(g, p, y, label, new, below_s)


@compiled
def _insert(
    g: Lattice, p: Labels, y: int, parent: int, new: FloatArray, below_s: float
) -> None:
    """Raise what can be raised, then keep the label unless another is as good everywhere."""
    lo = g.front_offsets[y]
    width = g.front_offsets[y + 1] - lo
    base = g.later_offsets[y]
    for i in range(width):
        for j in range(width):
            if g.later[base + i * width + j]:
                new[2 + i] = max(new[2 + i], new[2 + j])
    for i in range(width):
        new[0] = max(new[0], new[2 + i] + g.tail_s[lo + i])
    if not new[0] < below_s:
        return
    before, at = -1, p.head[y]
    while at >= 0:
        after = p.following[at]
        better, worse = True, True
        for c in range(2 + width):
            if p.value[at, c] > new[c]:
                better = False
            elif p.value[at, c] < new[c]:
                worse = False
        if better:
            return
        if worse:
            if before < 0:
                p.head[y] = after
            else:
                p.following[before] = after
            p.following[at] = p.state[1]
            p.state[1] = at
        else:
            before = at
        at = after
    _take(p, y, parent, new, 2 + width)


@compiled
def _take(p: Labels, y: int, parent: int, new: FloatArray, columns: int) -> None:
    """Put a label on ideal y."""
    at = p.state[1]
    if at >= 0:
        p.state[1] = p.following[at]
    elif p.state[0] < len(p.ideal):
        at = p.state[0]
        p.state[0] += 1
    else:
        p.state[2] += 1
        return
    p.value[at, :columns] = new[:columns]
    p.ideal[at] = y
    p.parent[at] = parent
    p.following[at] = p.head[y]
    p.head[y] = at
