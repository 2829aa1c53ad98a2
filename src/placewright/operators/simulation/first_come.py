"""First come, first served queues on devices, compiled (rules Q1 to Q6 of the simulation page).

An operator goes through five events, an edge through two; each happens once:

    READY -> GRANTED -> (compute) ENDED -> RELEASED, FINISHED
    per edge: (transfer) ARRIVED -> HANDED

Events of one instant happen in the order in which they were scheduled: `due` is a list of those of
the current instant, and a heap keeps later ones, by time and then by number. An event is one
integer::

    0 .. n-1   n .. 2n-1  2n ..   3n ..      4n ..      5n .. 5n+E-1   5n+E .. 5n+2E-1
    READY i    GRANTED i  ENDED i RELEASED i FINISHED i ARRIVED edge   HANDED edge
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray, thawed
from placewright.numerics.njit import njit_internal, njit_nogil
from placewright.operators.problem import OperatorProblem, Queues
from placewright.operators.queues.heaps import pop, push
from placewright.operators.structure.costs import linked


class QueueState(NamedTuple):
    """A problem as the event loop reads it, and one simulation of it. One per thread.

    Times are in ticks where the problem counts in ticks, else in seconds.

    Attributes
    ----------
    duration
        Shape (n, m).
    edge_start, edge_target, edge_tensor
        CSR by producer: one edge per tensor and consumer, in the order of the problem.
    tensor_bytes, latency_s, seconds_per_byte
        Of the problem; ``inf`` between devices without a link.
    ticks_per_s
        Zero for seconds.
    sources
        Operators without inputs.
    inputs
        Shape (n,), edges into each operator.
    start, end, sent, arrived
        Result: of operators and of edges.
    previous
        Result: the operator that ran before each on its device, -1 for none.
    """

    duration: FloatArray
    edge_start: IntArray
    edge_target: IntArray
    edge_tensor: IntArray
    tensor_bytes: FloatArray
    latency_s: FloatArray
    seconds_per_byte: FloatArray
    ticks_per_s: float
    sources: IntArray
    inputs: IntArray
    start: FloatArray
    end: FloatArray
    sent: FloatArray
    arrived: FloatArray
    waiting: IntArray
    due: IntArray
    heap: IntArray
    heap_time: FloatArray
    heap_event: IntArray
    queue_next: IntArray
    queue_head: IntArray
    queue_tail: IntArray
    busy: IntArray
    last: IntArray
    previous: IntArray


def make_queue_state(problem: OperatorProblem) -> QueueState:
    """State for a problem with first come, first served queues."""
    p, topology = problem, problem.topology
    tensors, counts = topology.out_tensors, np.diff(p.consumer_offsets)
    edge_tensor = np.repeat(tensors, counts[tensors])
    readers = [p.readers(k) for k in tensors]
    target = np.concatenate([np.zeros(0, dtype=np.int64), *readers])
    made = np.bincount(p.tensor_producer, counts, p.n).astype(np.int64)
    n, edges, ticks = p.n, len(target), p.ticks_per_s
    inputs = np.bincount(target, minlength=n).astype(np.int64)
    # Both ``inf`` where there is no link, or where the problem's own values are not finite.
    apart = ~linked(p) & ~np.eye(p.m, dtype=np.bool_)
    duration = np.rint(p.compute_s * ticks) if ticks else p.compute_s
    return QueueState(
        duration=thawed(duration),
        edge_start=np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(made)]),
        edge_target=target,
        edge_tensor=edge_tensor,
        tensor_bytes=thawed(p.tensor_bytes),
        latency_s=np.where(apart, np.inf, p.latency_s),
        seconds_per_byte=np.where(apart, np.inf, p.seconds_per_byte),
        ticks_per_s=ticks,
        sources=np.flatnonzero(inputs == 0),
        inputs=inputs,
        start=np.zeros(n),
        end=np.zeros(n),
        sent=np.zeros(edges),
        arrived=np.zeros(edges),
        waiting=_whole(n),
        due=_whole(5 * n + 2 * edges),
        heap=_whole(n + edges),
        heap_time=np.zeros(n + edges),
        heap_event=_whole(n + edges),
        queue_next=_whole(n),
        queue_head=_whole(p.m),
        queue_tail=_whole(p.m),
        busy=_whole(p.m),
        last=_whole(p.m),
        previous=_whole(n),
    )


def in_ticks(problem: OperatorProblem) -> OperatorProblem:
    """The problem with times of which none is above what its queues count (rule Q1), for bounds.

    Itself where they do not count in ticks. Compute times are those of the queues. A transfer's
    time is linear in bytes and its whole ticks are not: each pair of devices has all of its times
    scaled by the least that rounding leaves of any.
    """
    p, ticks = problem, problem.ticks_per_s
    if p.queues is not Queues.FIRST_COME or not ticks:
        return p
    pair, share = linked(p), np.ones((p.m, p.m))
    for size in np.unique(p.tensor_bytes):
        took = (p.latency_s[pair] + size * p.seconds_per_byte[pair]) * ticks
        kept = np.where(took > 0, np.rint(took) / np.where(took > 0, took, 1.0), 1.0)
        share[pair] = np.minimum(share[pair], kept)
    return p.replace(
        compute_s=np.rint(p.compute_s * ticks) / ticks,
        latency_s=p.latency_s * share,
        seconds_per_byte=p.seconds_per_byte * share,
    )


def _whole(size: int) -> IntArray:
    return np.zeros(size, dtype=np.int64)


def copy_queue_state(state: QueueState) -> QueueState:
    """The same problem with simulation arrays of its own, for another thread."""
    scratch = QueueState._fields[QueueState._fields.index("start") :]
    copies: dict[str, Any] = {name: getattr(state, name).copy() for name in scratch}
    return state._replace(**copies)


@njit_internal
def transfer_time(b: QueueState, tensor: int, source: int, target: int) -> float:
    """Time of the transfer of one edge; ``inf`` between devices without a link."""
    if source == target:
        return 0.0
    if b.seconds_per_byte[source, target] == np.inf:
        return np.inf
    took = b.latency_s[source, target]
    took += b.tensor_bytes[tensor] * b.seconds_per_byte[source, target]
    return np.rint(took * b.ticks_per_s) if b.ticks_per_s > 0 else took  # type: ignore[no-any-return]


@njit_nogil
def simulate_queues(b: QueueState, place: IntArray) -> float:
    """Simulate a placement; the end of the last operator, ``inf`` where a link is missing."""
    n, edges = len(place), len(b.edge_target)
    b.waiting[:] = b.inputs
    b.queue_head[:] = -1
    b.busy[:] = 0
    b.last[:] = -1
    head, tail, held, pushed, last, now = 0, 0, 0, 0, 0.0, 0.0
    # Sources are READY events, whose numbers are those of operators.
    for i in b.sources:
        b.due[tail] = i
        tail += 1
    while True:
        while head < tail:
            event = b.due[head]
            head += 1
            kind = event // n
            if kind == 0:  # READY: joins the queue; an idle device takes its head
                i = event
                d = place[i]
                # The queue of a device is a linked list from `queue_head` to `queue_tail`.
                b.queue_next[i] = -1
                if b.queue_head[d] < 0:
                    b.queue_head[d] = i
                else:
                    b.queue_next[b.queue_tail[d]] = i
                b.queue_tail[d] = i
                if b.busy[d] == 0:
                    i = b.queue_head[d]
                    b.queue_head[d] = b.queue_next[i]
                    b.busy[d] = 1
                    b.due[tail] = n + i
                    tail += 1
            elif kind == 1:  # GRANTED: starts
                i = event - n
                b.start[i] = now
                b.previous[i] = b.last[place[i]]
                b.last[place[i]] = i
                at = now + b.duration[i, place[i]]
                if at == now:
                    b.due[tail] = 2 * n + i
                    tail += 1
                else:
                    b.heap_time[pushed] = at
                    b.heap_event[pushed] = 2 * n + i
                    push(b.heap, 0, held, b.heap_time, 0, pushed)
                    held += 1
                    pushed += 1
            elif kind == 2:  # ENDED: the device is idle before RELEASED looks at its queue
                i = event - 2 * n
                b.end[i] = now
                last = now
                b.busy[place[i]] = 0
                b.due[tail] = 3 * n + i
                b.due[tail + 1] = 4 * n + i
                tail += 2
            elif kind == 3:  # RELEASED: the idle device takes the head of its queue
                d = place[event - 3 * n]
                if b.busy[d] == 0 and b.queue_head[d] >= 0:
                    i = b.queue_head[d]
                    b.queue_head[d] = b.queue_next[i]
                    b.busy[d] = 1
                    b.due[tail] = n + i
                    tail += 1
            elif kind == 4:  # FINISHED: all transfers start
                i = event - 4 * n
                for e in range(b.edge_start[i], b.edge_start[i + 1]):
                    took = transfer_time(b, b.edge_tensor[e], place[i], place[b.edge_target[e]])
                    if took == np.inf:
                        return np.inf
                    b.sent[e] = now
                    at = now + took
                    b.arrived[e] = at
                    if at == now:
                        b.due[tail] = 5 * n + e
                        tail += 1
                    else:
                        b.heap_time[pushed] = at
                        b.heap_event[pushed] = 5 * n + e
                        push(b.heap, 0, held, b.heap_time, 0, pushed)
                        held += 1
                        pushed += 1
            elif event < 5 * n + edges:  # ARRIVED: handed over after what is due already
                b.due[tail] = event + edges
                tail += 1
            else:  # HANDED: one input less to wait for
                i = b.edge_target[event - 5 * n - edges]
                b.waiting[i] -= 1
                if b.waiting[i] == 0:
                    b.due[tail] = i
                    tail += 1
        if held == 0:
            return last
        # All of this instant is done: the list begins anew with what the heap has for the next.
        head, tail = 0, 0
        now = b.heap_time[b.heap[0]]
        while held > 0 and b.heap_time[b.heap[0]] == now:
            # Equal times leave the heap by number: in the order in which they were scheduled (Q2).
            b.due[tail] = b.heap_event[pop(b.heap, 0, held, b.heap_time, 0)]
            held -= 1
            tail += 1


@njit_nogil
def simulate_placements(b: QueueState, places: IntArray, values: FloatArray) -> None:
    """`simulate_queues` of every row."""
    for r in range(len(places)):
        values[r] = simulate_queues(b, places[r])
