"""Calls of accelerators through host memory (rules A1 to A6), compiled.

One pass over operators and tensors. An item of the queue is an operator on a CPU (0 to n - 1) or a
call (n + unit, unit = device * per_device + call), and it waits for tensors and, a call after the
first, for the call before it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import njit_cached
from placewright.operators.problem import OperatorProblem


class Calls(NamedTuple):
    """The arrays of a problem that the kernel reads, named as in `OperatorProblem`."""

    order: IntArray
    in_offsets: IntArray
    in_tensors: IntArray
    out_offsets: IntArray
    out_tensors: IntArray
    producer: IntArray
    consumer_offsets: IntArray
    consumers: IntArray
    tensor_bytes: FloatArray
    compute_s: FloatArray
    host_seconds_per_byte: FloatArray
    per_device: int


def calls_of(problem: OperatorProblem) -> Calls:
    """The arrays of a problem."""
    t = problem.topology
    return Calls(
        t.order,
        t.in_offsets,
        t.in_tensors,
        t.out_offsets,
        t.out_tensors,
        problem.tensor_producer,
        problem.consumer_offsets,
        problem.consumers,
        problem.tensor_bytes,
        problem.compute_s,
        problem.host_seconds_per_byte,
        most_calls(problem),
    )


def most_calls(problem: OperatorProblem) -> int:
    """How many calls of an accelerator can have operators."""
    return min(problem.calls, problem.n)


@njit_cached
def simulate_calls(
    c: Calls, place: IntArray, unit: IntArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Simulate a plan.

    `unit`: Shape (n,): ``device * per_device + call`` of each operator on an accelerator, -1 on a
    CPU.

    Returns
    -------
    ready_s
        Shape (n,): when the outputs of the operator can be read by others; ``nan`` where it waits
        for itself, directly or through other calls.
    begin_s, end_s
        Shape (devices * per_device,): when each call begins (it has all its inputs in host memory)
        and ends.
    """
    n, m = c.compute_s.shape
    q = c.per_device
    units = m * q
    load_s = np.zeros(units)
    waits = np.zeros(n + units, dtype=np.int64)
    for u in range(units):
        # A call waits for the one before it on its device (rule A3), too.
        if u % q > 0:
            waits[n + u] = 1
    for i in range(n):
        if unit[i] >= 0:
            load_s[unit[i]] += c.compute_s[i, place[i]]
    seen = np.full(units, -1, dtype=np.int64)
    for k in range(len(c.producer)):
        _charge(c, k, place, unit, seen, load_s, waits)
    # ``nan`` stays where an operator is in no item that was ever ready (rule A6).
    ready_s = np.full(n, np.nan)
    input_s = np.zeros(n + units)
    begin_s, end_s = np.zeros(units), np.zeros(units)
    queue = np.empty(n + units, dtype=np.int64)
    tail = 0
    for x in range(n + units):
        # Operators on accelerators are done by their calls and never stand in the queue.
        if waits[x] == 0 and (x >= n or unit[x] < 0):
            queue[tail] = x
            tail += 1
    member_offsets, members = _members(unit, units)
    head = 0
    # Topological order of items (Kahn): those that wait for themselves never enter the queue.
    while head < tail:
        x = queue[head]
        head += 1
        if x < n:
            ready_s[x] = input_s[x] + c.compute_s[x, place[x]]
            tail = _deliver(c, x, ready_s[x], unit, waits, input_s, queue, tail)
            continue
        u = x - n
        begin_s[u] = input_s[x]
        end_s[u] = input_s[x] + load_s[u]
        for a in range(member_offsets[u], member_offsets[u + 1]):
            i = members[a]
            ready_s[i] = end_s[u]
            tail = _deliver(c, i, end_s[u], unit, waits, input_s, queue, tail)
        if u % q < q - 1:
            input_s[x + 1] = max(input_s[x + 1], end_s[u])
            waits[x + 1] -= 1
            if waits[x + 1] == 0:
                queue[tail] = x + 1
                tail += 1
    return ready_s, begin_s, end_s


@njit_cached
def _charge(
    c: Calls,
    k: int,
    place: IntArray,
    unit: IntArray,
    seen: IntArray,
    load_s: FloatArray,
    waits: IntArray,
) -> None:
    """Add the transfers of tensor k to the calls that pay for them; count the items that wait."""
    producer = c.producer[k]
    home = unit[producer]
    leaves = False
    for b in range(c.consumer_offsets[k], c.consumer_offsets[k + 1]):
        i = c.consumers[b]
        u = unit[i]
        if u < 0:
            waits[i] += 1
            leaves = True
        elif u != home:
            waits[len(place) + u] += 1
            leaves = True
            # Waits are counted by use, as `_deliver` counts them down; a tensor is paid for once.
            if seen[u] != k:
                seen[u] = k
                load_s[u] += c.tensor_bytes[k] * c.host_seconds_per_byte[place[i]]
    # Of one call, `k` either enters or leaves: sums stay by tensor index (rule A3).
    if leaves and home >= 0:
        load_s[home] += c.tensor_bytes[k] * c.host_seconds_per_byte[place[producer]]


@njit_cached
def _members(unit: IntArray, units: int) -> tuple[IntArray, IntArray]:
    """CSR: the operators of each call."""
    offsets = np.zeros(units + 1, dtype=np.int64)
    for u in unit:
        if u >= 0:
            offsets[u + 1] += 1
    offsets = np.cumsum(offsets)
    at = offsets.copy()
    members = np.empty(offsets[units], dtype=np.int64)
    for i in range(len(unit)):
        if unit[i] >= 0:
            members[at[unit[i]]] = i
            at[unit[i]] += 1
    return offsets, members


@njit_cached
def _deliver(
    c: Calls,
    i: int,
    ready_s: float,
    unit: IntArray,
    waits: IntArray,
    input_s: FloatArray,
    queue: IntArray,
    tail: int,
) -> int:
    """Deliver the outputs of operator i to all items that wait for them."""
    n = len(unit)
    for a in range(c.out_offsets[i], c.out_offsets[i + 1]):
        k = c.out_tensors[a]
        for b in range(c.consumer_offsets[k], c.consumer_offsets[k + 1]):
            j = c.consumers[b]
            x = j if unit[j] < 0 else n + unit[j]
            if unit[j] >= 0 and unit[j] == unit[i]:
                continue
            input_s[x] = max(input_s[x], ready_s)
            waits[x] -= 1
            if waits[x] == 0:
                queue[tail] = x
                tail += 1
    return tail
