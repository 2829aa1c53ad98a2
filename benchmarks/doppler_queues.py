"""DOPPLER's own cost model, compiled, and a search under it: what a placement is worth there.

The rules of `env/cost.py` in the release of DOPPLER (Yao et al., ICLR 2026, arXiv 2505.23131), for
`dag:` files with equal devices and links, and costs and sizes in whole ticks:

- A placement is all that is judged. Everything due at one instant happens in the order in which it
  became due.
- READY(i): i joins the queue of its device; if that is idle, the head of the queue is GRANTED, due
  at once. GRANTED(i): i starts; ENDED(i) is due after its cost. Operators without inputs are READY
  at 0, by index.
- ENDED(i): the device is idle; RELEASED and FINISHED(i) are due at once, in this order. RELEASED:
  if the device is still idle, the head of its queue is GRANTED.
- FINISHED(i): each dependency, in the order of the file, gets a transfer of its own. ARRIVED is due
  after its size, at once on the same device. Transfers never wait.
- ARRIVED makes HANDED due at once, HANDED counts the input, and the last one makes the reader
  READY, due at once.

They are no dispatch rule of the judge: ties go by the order of scheduling, across all devices, and
whole ticks tie often. Every run is a schedule that the judge's rules allow with free links, so its
lower bounds hold.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray, thawed
from placewright.numerics.njit import njit_internal, njit_nogil
from placewright.operators.planners.annealing import draw
from placewright.operators.planners.learned.episodes import RULES, episode_instance, ruled_episode
from placewright.operators.planners.lists.planners import HEFT
from placewright.operators.planners.trivial import RoundRobin
from placewright.operators.problem import OperatorProblem
from placewright.operators.queues import pop, push
from placewright.planning.contract import Context, proposal_of


class Queues(NamedTuple):
    """A graph as the event loop reads it, and one simulation of it, in ticks. One per thread.

    Attributes
    ----------
    cost
        Shape (n,).
    edge_start, edge_target, edge_source, size
        CSR by producer, in the order of the file; ticks of each transfer.
    in_start, in_edge
        CSR by reader: its edges.
    near_start, near
        CSR: producers and readers of each operator.
    sources
        Operators without inputs.
    end, start, arrived, previous
        Result; `previous` ran before on the same device, -1 for none.
    """

    cost: FloatArray
    edge_start: IntArray
    edge_target: IntArray
    edge_source: IntArray
    size: FloatArray
    in_start: IntArray
    in_edge: IntArray
    near_start: IntArray
    near: IntArray
    sources: IntArray
    start: FloatArray
    end: FloatArray
    arrived: FloatArray
    previous: IntArray
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


def read_queues(path: Path) -> tuple[Queues, float]:
    """The queues of a `dag:` file, and ticks per unit of its values."""
    data = json.loads(path.read_text())
    speeds = {x["speed"] for section in ("nodes", "links") for x in data[section]}
    amounts = [x["cost"] for x in data["tasks"]] + [x["size"] for x in data["dependencies"]]
    m = len(data["nodes"])
    linked = len(data["links"]) == m * (m - 1) // 2
    if len(speeds) > 1 or not linked or any(x != int(x) for x in amounts):
        raise SystemExit(f"{path}: devices or links differ, or costs are no whole ticks")
    at = {task["name"]: i for i, task in enumerate(data["tasks"])}
    ends = [(at[x["source"]], at[x["target"]]) for x in data["dependencies"]]
    edges = np.array(ends, dtype=np.int64).reshape(-1, 2)
    sizes = np.array([float(x["size"]) for x in data["dependencies"]])
    cost = np.array([float(task["cost"]) for task in data["tasks"]])
    return make_queues(cost, edges, sizes, m), float(speeds.pop())


def make_queues(cost: FloatArray, edges: IntArray, sizes: FloatArray, devices: int) -> Queues:
    """State of the simulator; `edges`: shape (edges, 2), producers and readers."""
    n, numbers = len(cost), np.arange(len(cost) + 1)
    by = np.argsort(edges[:, 0], kind="stable")
    source, target = np.ascontiguousarray(edges[by].T)
    in_edge = np.argsort(target, kind="stable")
    near = np.unique(np.concatenate([edges, edges[:, ::-1]]), axis=0)
    near = near[near[:, 0] != near[:, 1]]
    sources = np.flatnonzero(np.bincount(target, minlength=n) == 0)

    def whole(size: int) -> IntArray:
        return np.zeros(size, dtype=np.int64)

    return Queues(
        cost=cost,
        edge_start=np.searchsorted(source, numbers),
        edge_target=target,
        edge_source=source,
        size=sizes[by],
        in_start=np.searchsorted(target[in_edge], numbers),
        in_edge=in_edge,
        near_start=np.searchsorted(near[:, 0], numbers),
        near=np.ascontiguousarray(near[:, 1]),
        sources=sources,
        start=np.zeros(n),
        end=np.zeros(n),
        arrived=np.zeros(len(by)),
        previous=whole(n),
        waiting=whole(n),
        due=whole(5 * n + 2 * len(by)),
        heap=whole(n + len(by)),
        heap_time=np.zeros(n + len(by)),
        heap_event=whole(n + len(by)),
        queue_next=whole(n),
        queue_head=whole(devices),
        queue_tail=whole(devices),
        busy=whole(devices),
        last=whole(devices),
    )


def copied(queues: Queues) -> Queues:
    """The same graph with simulation arrays of its own, for another thread."""
    own = Queues._fields[Queues._fields.index("start") :]
    return queues._replace(**{name: getattr(queues, name).copy() for name in own})


@njit_nogil
def simulate(b: Queues, place: IntArray) -> float:
    """Simulate a placement; the end of the last operator, in ticks.

    An event is one integer. `due` lists those of this instant, the heap keeps later ones, by time
    and then by number of scheduling::

        0 .. n-1   n .. 2n-1  2n ..   3n ..      4n ..      5n .. 5n+E-1   5n+E .. 5n+2E-1
        READY i    GRANTED i  ENDED i RELEASED i FINISHED i ARRIVED edge   HANDED edge
    """
    n, edges = len(place), len(b.edge_target)
    for i in range(n):
        b.waiting[i] = b.in_start[i + 1] - b.in_start[i]
    b.queue_head[:] = -1
    b.busy[:] = 0
    b.last[:] = -1
    head, tail, held, pushed, last, now = 0, 0, 0, 0, 0.0, 0.0
    for i in b.sources:
        b.due[tail] = i
        tail += 1
    while True:
        while head < tail:
            event = b.due[head]
            head += 1
            kind = event // n
            if kind == 0:  # READY; the queue of a device is a linked list
                i = event
                d = place[i]
                b.queue_next[i] = -1
                if b.queue_head[d] < 0:
                    b.queue_head[d] = i
                else:
                    b.queue_next[b.queue_tail[d]] = i
                b.queue_tail[d] = i
                tail = _grant(b, d, n, tail)
            elif kind == 1:  # GRANTED
                i = event - n
                b.start[i] = now
                b.previous[i] = b.last[place[i]]
                b.last[place[i]] = i
                tail, held, pushed = _later(b, 2 * n + i, now, b.cost[i], tail, held, pushed)
            elif kind == 2:  # ENDED
                i = event - 2 * n
                b.end[i] = now
                last = now
                b.busy[place[i]] = 0
                b.due[tail] = 3 * n + i
                b.due[tail + 1] = 4 * n + i
                tail += 2
            elif kind == 3:  # RELEASED
                tail = _grant(b, place[event - 3 * n], n, tail)
            elif kind == 4:  # FINISHED
                i = event - 4 * n
                for e in range(b.edge_start[i], b.edge_start[i + 1]):
                    took = 0.0 if place[b.edge_target[e]] == place[i] else b.size[e]
                    b.arrived[e] = now + took
                    tail, held, pushed = _later(b, 5 * n + e, now, took, tail, held, pushed)
            elif event < 5 * n + edges:  # ARRIVED
                b.due[tail] = event + edges
                tail += 1
            else:  # HANDED
                i = b.edge_target[event - 5 * n - edges]
                b.waiting[i] -= 1
                if b.waiting[i] == 0:
                    b.due[tail] = i
                    tail += 1
        if held == 0:
            return last
        head, tail = 0, 0
        now = b.heap_time[b.heap[0]]
        while held > 0 and b.heap_time[b.heap[0]] == now:
            b.due[tail] = b.heap_event[pop(b.heap, 0, held, b.heap_time, 0)]
            held -= 1
            tail += 1


@njit_internal
def _grant(b: Queues, d: int, n: int, tail: int) -> int:
    """Let an idle device take the head of its queue; the end of `due`."""
    i = b.queue_head[d]
    if b.busy[d] != 0 or i < 0:
        return tail
    b.queue_head[d] = b.queue_next[i]
    b.busy[d] = 1
    b.due[tail] = n + i
    return tail + 1


@njit_internal
def _later(
    b: Queues, event: int, now: float, after: float, tail: int, held: int, pushed: int
) -> tuple[int, int, int]:
    """Schedule an event; the end of `due`, and how many are and were in the heap."""
    if after == 0.0:
        b.due[tail] = event
        return tail + 1, held, pushed
    b.heap_time[pushed] = now + after
    b.heap_event[pushed] = event
    push(b.heap, 0, held, b.heap_time, 0, pushed)
    return tail, held + 1, pushed + 1


@dataclass(frozen=True, slots=True)
class QueueValues:
    """Values of placements, for learned planners: in place of measured steps."""

    queues: Queues
    ticks: float

    def __call__(self, placements: IntArray) -> FloatArray:
        """The value of every row."""
        rows = np.atleast_2d(placements)
        return np.array([simulate(self.queues, thawed(row)) for row in rows]) / self.ticks


CURRENT, BEST = 0, 1
"""Places in `Walk.value`."""

RANDOM, CRITICAL, MOVED = 0, 1, 2
"""Places in `Walk.counts`: random state, lengths of two lists."""

LENGTH, ISLANDS, EFFORT = 12_000, 4, 1.5e8
"""Evaluations of a walk, walks of a round, and operators simulated over all of them, which takes
about ten seconds of one core."""

THRESHOLDS = ((0.002, 0.004), (0.02, 0.01), (0.03,), (0.03,))
"""First thresholds of each island's walks in turn, as shares of the value that they start from."""


class Walk(NamedTuple):
    """Current and best placement, their values, random state, and scratch lists."""

    place: IntArray
    best: IntArray
    value: FloatArray
    counts: IntArray
    critical: IntArray
    moved: IntArray
    moved_from: IntArray


class Found(NamedTuple):
    """A placement and its value in ticks."""

    value: float
    place: IntArray


def search(queues: Queues, problem: OperatorProblem, seed: int) -> Found:
    """Threshold accepting on placements (Dueck, Scheuer 1990, doi 10.1016/0021-9991(90)90201-B).

    In every round two islands walk near the best placement, and two from other starts at a high
    threshold, so that not all are caught in one valley. The seed fixes the answer.
    """
    states = [copied(queues) for _ in range(ISLANDS)]
    starts = [Found(simulate(queues, p), p) for p in _starts(problem)]
    starts.sort(key=lambda found: found.value)
    best, own = starts[0], [starts[0], starts[0], starts[len(starts) // 2], starts[-1]]
    for r in range(max(1, round(EFFORT / (problem.n * LENGTH * ISLANDS)))):
        if r % 3 == 0:
            own[:2] = [best, best]
        if r and r % 8 == 0:
            own[2:] = [best, starts[r // 8 % len(starts)]]
        heats = [turns[r % len(turns)] for turns in THRESHOLDS]
        seeds = [1009 * seed + ISLANDS * r + k for k in range(ISLANDS)]
        with ThreadPoolExecutor(2) as pool:  # the kernels release the GIL
            own = list(pool.map(walk, states, own, heats, seeds))
        best = min([best, *own], key=lambda found: found.value)
    return best


def _starts(problem: OperatorProblem) -> list[IntArray]:
    """A list schedule, round robin, list schedules that price siblings, one device."""
    heft = proposal_of(HEFT(problem, Context())).plan.placement
    episodes, random = episode_instance(problem), np.ones(1, dtype=np.int64)
    ruled = [ruled_episode(episodes, *rule, 0.0, random).place for rule in RULES[1:]]
    turns = RoundRobin()(problem, Context()).placement
    return [thawed(p) for p in (heft, turns, *ruled, np.zeros(problem.n, dtype=np.int64))]


def walk(queues: Queues, start: Found, heat: float, seed: int) -> Found:
    """Walk from a placement with a threshold that falls to zero; the best one on the way."""
    n = len(start.place)
    counts = np.zeros(3, dtype=np.int64)
    counts[RANDOM] = (seed * 2654435761 + 88172645) % 0x7FFFFFFF or 1
    values = np.array([start.value, start.value])
    lists = [np.zeros(n, dtype=np.int64) for _ in range(3)]
    state = Walk(start.place.copy(), start.place.copy(), values, counts, *lists)
    accept_moves(queues, state, heat * start.value)
    return Found(float(state.value[BEST]), state.best.copy())


@njit_nogil
def accept_moves(b: Queues, w: Walk, threshold: float) -> None:
    """Evaluate `LENGTH` moves; one is taken if it is worse by no more than what is left of it."""
    simulate(b, w.place)
    _list_critical(b, w)
    for done in range(LENGTH):
        limit = w.value[CURRENT] + threshold * (1.0 - done / LENGTH)
        _propose(b, w)
        if w.counts[MOVED] == 0:
            continue
        value = simulate(b, w.place)
        if value <= limit:
            w.value[CURRENT] = value
            _list_critical(b, w)
            if value < w.value[BEST]:
                w.value[BEST] = value
                w.best[:] = w.place
        else:
            for x in range(w.counts[MOVED]):
                w.place[w.moved[x]] = w.moved_from[x]


@njit_internal
def _send(w: Walk, i: int, d: int) -> None:
    """Move an operator and record where it was."""
    at = w.place[i]
    if at != d:
        w.moved[w.counts[MOVED]] = i
        w.moved_from[w.counts[MOVED]] = at
        w.counts[MOVED] += 1
        w.place[i] = d


@njit_internal
def _propose(b: Queues, w: Walk) -> None:
    """Make one random move, which may change nothing."""
    c, n = w.counts, len(w.place)
    c[MOVED] = 0
    if c[CRITICAL] > 0 and draw(c, RANDOM, 2) == 0:
        i = w.critical[draw(c, RANDOM, c[CRITICAL])]
    else:
        i = draw(c, RANDOM, n)
    near = b.near_start[i + 1] - b.near_start[i]
    kind, d = draw(c, RANDOM, 100), draw(c, RANDOM, len(b.busy))
    here = w.place[i]
    if kind < 30 or near == 0:
        _send(w, i, d)
    elif kind < 50:  # to where a neighbour is
        _send(w, i, w.place[b.near[b.near_start[i] + draw(c, RANDOM, near)]])
    elif kind < 60:  # exchange with any other operator
        j = draw(c, RANDOM, n)
        there = w.place[j]
        _send(w, i, there)
        _send(w, j, here)
    elif kind < 85:  # with some or all of its neighbours
        if draw(c, RANDOM, 4) == 0:
            d = here  # they come to it
        every = draw(c, RANDOM, 2) == 0
        _send(w, i, d)
        for x in range(b.near_start[i], b.near_start[i + 1]):
            if every or draw(c, RANDOM, 2) == 0:
                _send(w, b.near[x], d)
    else:  # a connected part that shares its device, grown from it
        most = 2 + draw(c, RANDOM, 14)
        if d != here:
            _send_part(b, w, i, d, most)


@njit_internal
def _send_part(b: Queues, w: Walk, i: int, d: int, most: int) -> None:
    here, at = w.place[i], 0
    _send(w, i, d)
    # `moved` is the queue of a breadth-first search and the log for taking back at once.
    while at < w.counts[MOVED] and w.counts[MOVED] < most:
        f = w.moved[at]
        for x in range(b.near_start[f], b.near_start[f + 1]):
            j = b.near[x]
            joins = w.place[j] == here and w.counts[MOVED] < most
            if joins and draw(w.counts, RANDOM, 4) > 0:
                _send(w, j, d)
        at += 1


@njit_internal
def _list_critical(b: Queues, w: Walk) -> None:
    """Operators of one chain without a gap that ends last, of the last simulation."""
    i, count = int(b.end.argmax()), 0
    while i >= 0 and count < len(w.critical):
        w.critical[count] = i
        count += 1
        before = b.previous[i]
        # The device was busy until it started; otherwise it waited for its last input.
        if before >= 0 and b.end[before] == b.start[i]:
            i = before
            continue
        latest, found = -1.0, -1
        for x in range(b.in_start[i], b.in_start[i + 1]):
            e = b.in_edge[x]
            if b.arrived[e] > latest:
                latest, found = b.arrived[e], b.edge_source[e]
        i = found
    w.counts[CRITICAL] = count
