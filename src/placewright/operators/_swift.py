"""The judge's fast path, compiled: a plan's makespan without its story.

The same play as `placewright.operators._kernels.run`, to the last bit, with fewer events. A
channel serves first come, first served, so the end of a transfer is known the moment it is asked
for; an operator's first possible start is known when its last producer ends. What is left to
happen is one event per operator, and the next one is the least of m numbers.

Where something takes no time at all, requests of one time can come in several rounds and overtake
each other. The play then says `UNSURE`, and the general one is asked.

Indices are unsigned and stand in 32 bits: a signed index costs a test for wrapping around.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from placewright.arrays import FloatArray, IntArray
from placewright.compiled import inlined, lean
from placewright.operators._costs import Costs
from placewright.operators._kernels import Mode

UNSURE = -1.0
"""Said instead of a makespan where only the general play can tell."""


class Swift(NamedTuple):
    """A problem and the state of a play.

    Attributes
    ----------
    sure
        Every pair of devices is linked.
    first_edge, consumer, tensor, edge_bytes
        Edges by producer, then tensor: the consumer, the tensor, its bytes.
    tensor_edge
        First and one past the last edge of each tensor, shape (2, t).
    alone
        Whether no two requests of an operator can be for one channel: it makes one tensor at
        most, and no device sends to two others over one channel.
    latency_s, seconds_per_byte, lane
        Flat (m * m); within a device zero, and a channel of its own that never waits.
    """

    sure: bool
    first_edge: IntArray
    consumer: IntArray
    tensor: IntArray
    edge_bytes: FloatArray
    tensor_edge: IntArray
    alone: IntArray
    topological: IntArray
    inputs: IntArray
    compute_s: FloatArray
    latency_s: FloatArray
    seconds_per_byte: FloatArray
    lane: IntArray
    # the play
    place: IntArray
    priority: FloatArray
    waiting: IntArray
    ready_s: FloatArray
    queue_key: FloatArray
    queue: IntArray
    future_key: FloatArray
    future: IntArray
    base: IntArray
    size: IntArray
    ahead: IntArray
    running: IntArray
    next_s: FloatArray
    free_s: FloatArray
    asked_s: FloatArray
    asked_by: IntArray
    last_asked: IntArray
    seen: IntArray
    arrival_s: FloatArray
    ask_tensor: IntArray
    ask_target: IntArray
    ask_best: IntArray
    asks: IntArray
    counts: IntArray


def make_swift(costs: Costs, channels: int) -> Swift:
    """A problem laid out for `play`."""
    (n, m), t, pairs = costs.compute_s.shape, len(costs.producer), len(costs.consumers)
    uses = np.diff(costs.offsets)
    tensors = costs.out_tensors
    length = uses[tensors]
    ends = np.cumsum(length)
    edge = np.repeat(costs.offsets[tensors] - (ends - length), length) + np.arange(pairs)
    span = np.zeros((2, t), dtype=np.int64)
    span[0, tensors], span[1, tensors] = ends - length, ends
    tensor = np.repeat(tensors, length)
    off = ~np.eye(m, dtype=np.bool_)
    lane = np.where(off, costs.channel, channels + np.arange(m)[:, None])
    finite = np.isfinite(costs.latency_s + costs.seconds_per_byte) & (costs.channel >= 0)
    moves = int(np.minimum(uses, m).sum())
    lanes = channels + m
    return Swift(
        sure=bool(finite[off].all()),
        first_edge=_index(np.concatenate([[0], ends])[costs.out_offsets]),
        consumer=_index(costs.consumers[edge]),
        tensor=_index(tensor + 1),
        edge_bytes=costs.tensor_bytes[tensor],
        tensor_edge=_index(span),
        alone=_index((np.diff(costs.out_offsets) <= 1) & _apart(costs.channel)),
        topological=_index(costs.order),
        inputs=_index(np.diff(costs.in_offsets)),
        compute_s=costs.compute_s.ravel().copy(),
        latency_s=np.where(off, costs.latency_s, 0.0).ravel(),
        seconds_per_byte=np.where(off, costs.seconds_per_byte, 0.0).ravel(),
        lane=_index(np.where(lane < 0, 0, lane).ravel()),
        place=_index(np.zeros(n)),
        priority=np.zeros(n),
        waiting=_index(np.zeros(n)),
        ready_s=np.zeros(n),
        queue_key=np.zeros(n),
        queue=_index(np.zeros(n)),
        future_key=np.zeros(n),
        future=_index(np.zeros(n)),
        base=np.zeros(m + 1, dtype=np.int64),
        size=np.zeros(m, dtype=np.int64),
        ahead=np.zeros(m, dtype=np.int64),
        running=np.zeros(m, dtype=np.int64),
        next_s=np.zeros(m),
        free_s=np.zeros(lanes),
        asked_s=np.zeros(lanes),
        asked_by=np.zeros(lanes, dtype=np.int64),
        last_asked=np.zeros(lanes, dtype=np.int64),
        seen=_index(np.zeros(m)),
        arrival_s=np.zeros(m),
        ask_tensor=_index(np.zeros(moves)),
        ask_target=_index(np.zeros(moves)),
        ask_best=_index(np.zeros(moves)),
        asks=_index(np.zeros(moves)),
        counts=np.zeros(1, dtype=np.int64),
    )


def copy_swift(swift: Swift) -> Swift:
    """A state of its own for another thread."""
    parts: Any = (part.copy() if isinstance(part, np.ndarray) else part for part in swift)
    return Swift(*parts)


def _apart(channel: IntArray) -> bool:
    """Whether every device sends to each other device over another channel."""
    linked = (np.sort(row[row >= 0]) for row in channel)
    return all((np.diff(row) > 0).all() for row in linked)


def _index(values: Any) -> Any:
    """As unsigned 32 bits; typed as any whole array, since only kernels see it."""
    return np.ascontiguousarray(values).astype(np.uint32)


@lean
def play(s: Swift, mode: Mode, placement: IntArray, order: IntArray) -> float:
    """Makespan of a placement, ``inf`` where it cannot be played, or `UNSURE`.

    Takes every mode but serial; counts no memory.
    """
    if not s.sure:
        return UNSURE
    place, m = s.place, len(s.next_s)
    for x in range(len(place)):
        place[x] = placement[x]
    if len(order) == 0:
        _rank_upward(s, place)
    else:
        for at in range(len(order)):
            s.priority[order[at]] = at
    if not _laid_out(s, mode, place, order):
        return np.inf
    last, left = 0.0, len(place)
    while left > 0:
        d = 0
        now = s.next_s[0]
        for other in range(1, m):
            its = s.next_s[other]
            sooner = its < now
            d = other if sooner else d
            now = its if sooner else now
        if now == np.inf:
            return np.inf
        i = s.running[d]
        s.running[d] = -1
        s.next_s[d] = np.inf
        if i >= 0:
            left -= 1
            last = now
            if not mode.contended or s.alone[i] == 1:
                if not _send(s, mode, place, i, d, now):
                    return UNSURE
            else:
                _ask(s, place, i, d)
                if not _serve(s, mode, place, i, d, now):
                    return UNSURE
        _choose(s, mode, d, now)
    return last


@inlined
def _rank_upward(s: Swift, place: IntArray) -> None:
    """Minus the longest way to the end under this very placement: least first."""
    m = len(s.next_s)
    for at in range(len(s.topological) - 1, -1, -1):
        i = s.topological[at]
        here = place[i] * m
        tail = 0.0
        for e in range(s.first_edge[i], s.first_edge[i + 1]):
            j = s.consumer[e]
            pair = here + place[j]
            way = s.latency_s[pair] + s.edge_bytes[e] * s.seconds_per_byte[pair] - s.priority[j]
            tail = max(tail, way)
        s.priority[i] = -(s.compute_s[i * m + place[i]] + tail)


@inlined
def _laid_out(s: Swift, mode: Mode, place: IntArray, order: IntArray) -> bool:
    """Empty queues, and what has no inputs in them; False if a device cannot run its operator."""
    n, m = len(s.inputs), len(s.next_s)
    for d in range(m):
        s.base[d] = s.size[d] = s.ahead[d] = s.seen[d] = 0
        s.running[d] = -1
        s.next_s[d] = np.inf
    s.base[m] = 0
    for lane in range(len(s.free_s)):
        s.free_s[lane] = 0.0
        s.asked_s[lane] = -1.0
    longest = 0.0
    for i in range(n):
        longest = max(longest, s.compute_s[i * m + place[i]])
        s.base[place[i] + 1] += 1
        s.waiting[i] = s.inputs[i]
        s.ready_s[i] = 0.0
    for d in range(m):
        s.base[d + 1] += s.base[d]
    for at in range(n):
        i = order[at] if mode.in_order else at
        d = place[i]
        if mode.in_order:
            s.queue[s.base[d] + s.size[d]] = i
            s.size[d] += 1
        elif s.inputs[i] == 0:
            push(s.queue_key, s.queue, s.base[d], s.size[d], s.priority[i], i)
            s.size[d] += 1
    if mode.in_order:
        for d in range(m):
            s.size[d] = 0
    for d in range(m):
        _choose(s, mode, d, 0.0)
    return longest < np.inf


@inlined
def push(key: FloatArray, heap: IntArray, base: int, size: int, mine: float, item: int) -> None:
    """Add to a heap of `size` items, ordered by (key, item)."""
    child = size
    while child > 0:
        up = (child - 1) >> 1
        its = key[base + up]
        if its < mine or (its == mine and heap[base + up] < item):
            break
        key[base + child] = its
        heap[base + child] = heap[base + up]
        child = up
    key[base + child] = mine
    heap[base + child] = item


@inlined
def pop(key: FloatArray, heap: IntArray, base: int, size: int) -> int:
    """Remove and return the least: the hole sinks to the end, the last item rises from there."""
    top = heap[base]
    size -= 1
    mine, item = key[base + size], heap[base + size]
    hole, down = 0, 1
    while down + 1 < size:
        a, b = base + down, base + down + 1
        right = (key[b] < key[a]) | ((key[b] == key[a]) & (heap[b] < heap[a]))
        down += right
        key[base + hole] = key[base + down]
        heap[base + hole] = heap[base + down]
        hole = down
        down = 2 * hole + 1
    if down < size:
        key[base + hole] = key[base + down]
        heap[base + hole] = heap[base + down]
        hole = down
    push(key, heap, base, hole, mine, item)
    return top  # type: ignore[no-any-return]


@inlined
def _input_there(s: Swift, mode: Mode, place: IntArray, j: int, now: float, at_s: float) -> None:
    """An input of operator `j` will be on its device at `at_s`; after the last, `j` queues."""
    ready = max(s.ready_s[j], at_s)
    s.ready_s[j] = ready
    left = s.waiting[j] - 1
    s.waiting[j] = left
    if left == 0:
        d = place[j]
        busy = s.running[d] >= 0
        if mode.in_order:
            if not busy and s.queue[s.base[d] + s.size[d]] == j:
                s.next_s[d] = ready
        elif ready <= now or (busy and ready <= s.next_s[d]):
            push(s.queue_key, s.queue, s.base[d], s.size[d], s.priority[j], j)
            s.size[d] += 1
        else:
            push(s.future_key, s.future, s.base[d], s.ahead[d], ready, j)
            s.ahead[d] += 1
            if not busy:
                s.next_s[d] = min(s.next_s[d], ready)


@inlined
def _send(s: Swift, mode: Mode, place: IntArray, i: int, d: int, now: float) -> bool:
    """`i` has ended on `d`; none of its requests are for the same channel. False where unsure."""
    here = d * len(s.next_s)
    for e in range(s.first_edge[i], s.first_edge[i + 1]):
        j = s.consumer[e]
        target = place[j]
        if s.seen[target] != s.tensor[e]:
            s.seen[target] = s.tensor[e]
            pair = here + target
            took = s.latency_s[pair] + s.edge_bytes[e] * s.seconds_per_byte[pair]
            s.arrival_s[target] = _taken(s, mode, s.lane[pair], took, i, now)
        at_s = s.arrival_s[target]
        if at_s <= now and target != d:
            return False
        _input_there(s, mode, place, j, now, at_s)
    return True


@inlined
def _taken(s: Swift, mode: Mode, lane: int, took: float, i: int, now: float) -> float:
    """When a channel is through with a request that operator `i` makes now.

    `UNSURE` if another operator has asked for the channel at this very time, or if the transfer
    takes no time.
    """
    if not mode.contended:
        return now + took
    start = max(now, s.free_s[lane])
    at_s = start + took
    if (s.asked_s[lane] == now) & (s.asked_by[lane] != i):
        return UNSURE
    if (at_s == start) & (lane < len(s.free_s) - len(s.next_s)):
        return UNSURE
    s.asked_s[lane] = now
    s.asked_by[lane] = i
    s.free_s[lane] = at_s
    return at_s  # type: ignore[no-any-return]


@inlined
def _ask(s: Swift, place: IntArray, i: int, d: int) -> None:
    """`i` has ended on `d`: note one request per tensor and target, best consumer first."""
    count = 0
    for e in range(s.first_edge[i], s.first_edge[i + 1]):
        j = s.consumer[e]
        target = place[j]
        if s.seen[target] == s.tensor[e]:
            r = s.last_asked[target]
            if _comes_before(s, j, s.ask_best[r]):
                s.ask_best[r] = j
            continue
        s.seen[target] = s.tensor[e]
        s.last_asked[target] = count
        s.ask_tensor[count] = s.tensor[e] - 1
        s.ask_target[count], s.ask_best[count] = target, j
        count += 1
    for r in range(count):
        at = r
        while at > 0:
            before = s.asks[at - 1]
            a, b = s.ask_best[before], s.ask_best[r]
            if a == b or _comes_before(s, a, b):
                break
            s.asks[at] = before
            at -= 1
        s.asks[at] = r
    s.counts[0] = count


@inlined
def _comes_before(s: Swift, i: int, j: int) -> bool:
    a, b = s.priority[i], s.priority[j]
    return a < b or (a == b and i < j)


@inlined
def _serve(s: Swift, mode: Mode, place: IntArray, i: int, d: int, now: float) -> bool:
    """Channels take the noted requests, best consumer first; False where unsure."""
    here = d * len(s.next_s)
    for at in range(s.counts[0]):
        r = s.asks[at]
        k, target = s.ask_tensor[r], s.ask_target[r]
        pair = here + target
        first = s.tensor_edge[0, k]
        took = s.latency_s[pair] + s.edge_bytes[first] * s.seconds_per_byte[pair]
        at_s = _taken(s, mode, s.lane[pair], took, i, now)
        if at_s <= now and target != d:
            return False
        for e in range(first, s.tensor_edge[1, k]):
            if place[s.consumer[e]] == target:
                _input_there(s, mode, place, s.consumer[e], now, at_s)
    return True


@inlined
def _choose(s: Swift, mode: Mode, d: int, now: float) -> None:
    """A free device starts what it may, or learns when it may."""
    i = -1
    base, size = s.base[d], s.size[d]
    if mode.in_order:
        if base + size < s.base[d + 1]:
            j = s.queue[base + size]
            if s.waiting[j] == 0:
                if s.ready_s[j] <= now:
                    i = int(j)
                    s.size[d] = size + 1
                else:
                    s.next_s[d] = s.ready_s[j]
    else:
        ahead = s.ahead[d]
        while ahead > 0 and s.future_key[base] <= now:
            j = pop(s.future_key, s.future, base, ahead)
            ahead -= 1
            push(s.queue_key, s.queue, base, size, s.priority[j], j)
            size += 1
        s.ahead[d] = ahead
        if size > 0:
            i = int(pop(s.queue_key, s.queue, base, size))
            size -= 1
        elif ahead > 0:
            s.next_s[d] = s.future_key[base]
        s.size[d] = size
    if i >= 0:
        s.running[d] = i
        s.next_s[d] = now + s.compute_s[i * len(s.next_s) + d]
