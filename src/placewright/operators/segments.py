"""Longest ways through a graph, longer where it does not pay to leave a device.

What is *between* operators u and v (after u and before v) runs from the end of u to the start of v.
Write w(x) for the least time of operator x, h(x) for the longest way from the end of u to its
start, t(x) for that from its end to the start of v, both at least times and without transfers.

*Elsewhere.* An operator on another device than u starts no earlier than away(x): each of its inputs
either comes over a link from the device of u, h(p) + w(p) + (least transfer), or its maker p is
elsewhere, too, away(p) + w(p); the sooner of both, of the inputs the latest. From its end to the
start of v it is no less than back(x), likewise, if it is on another device than v.

*u and v on one device.* An operator that is elsewhere makes it away(x) + w(x) + back(x) until v
starts. So for any L, either v starts after L, or all operators for which that is L or more are on
one device, which does them one after another.

*u and v on two devices.* v is on another device than u, and starts after away(v).

The less of both is a lower bound between u and v wherever they are. Transfers and other operators
that have to wait only add to it. It is an edge of that length for longest ways: where four boards
could share the branches of a layer, but sending takes longer than computing, all of its operators
count and not only the longest branch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray, thawed
from placewright.numerics.by_reference import by_reference
from placewright.numerics.njit import njit_cached, njit_internal
from placewright.operators.costs import ceft, heads_and_tails, least_transfer_s
from placewright.operators.problem import OperatorProblem
from placewright.operators.queues import pop, push

STEPS = 20
"""Operators u that are tried for a v: those on its longest way, the nearest first."""

WIDEST = 400
"""Most operators between two."""


@by_reference
class Ways(NamedTuple):
    """A graph with the least times of its operators and transfers.

    Attributes
    ----------
    order, position
        Shape (n,): operators in topological order, and the place of each.
    offsets, maker, sent_s
        Inputs of operator i are ``offsets[i]`` to ``offsets[i + 1]``: who makes each, and its least
        time between two devices.
    least_s, compute_s
        Shape (n,) and (n, m).
    follows
        Shape (n, n): whether operator j follows operator i.
    inside, at
        Scratch: operators between u and v in topological order, and the place of each operator
        among them, -1 where it is not.
    """

    order: IntArray
    position: IntArray
    offsets: IntArray
    maker: IntArray
    sent_s: FloatArray
    least_s: FloatArray
    compute_s: FloatArray
    follows: BoolArray
    inside: IntArray
    at: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Lower bounds between operators, and the longest ways that they make.

    Attributes
    ----------
    start, between_s
        Shape (n,): for operator v the u that it starts so many seconds after the end of; -1 for
        none that is worth an edge.
    head_s, tail_s
        Shape (n,): an operator starts no earlier, and from its end it is no less to the end of all.
    bound_s
        The longest way.
    """

    start: IntArray
    between_s: FloatArray
    head_s: FloatArray
    tail_s: FloatArray
    bound_s: float

    @classmethod
    def of(cls, problem: OperatorProblem, follows: BoolArray) -> Segments:
        """Of a problem over links whose devices work side by side.

        `follows`: Shape (n, n), whether operator j follows operator i.
        """
        ways = _ways(problem, follows)
        known = heads_and_tails(problem, ceft(problem))
        head_s, tail_s = (np.where(np.isfinite(each), each, 0.0) for each in known)
        head_s, start, between_s = _heads(ways, head_s)
        tail_s = _tails(ways, start, between_s, tail_s)
        bound_s = float((head_s + ways.least_s + tail_s).max())
        return cls(start, between_s, head_s, tail_s, bound_s)


def _ways(problem: OperatorProblem, follows: BoolArray) -> Ways:
    p, topology = problem, problem.topology
    allowed = p.allowed()
    compute_s = np.where(allowed, p.compute_s, np.inf)
    sent_s = least_transfer_s(p, allowed[p.tensor_producer]).min(axis=1)
    ways = Ways(
        topology.order,
        np.argsort(topology.order),
        topology.in_offsets,
        p.tensor_producer[topology.in_tensors],
        sent_s[topology.in_tensors],
        compute_s.min(axis=1),
        compute_s,
        follows,
        np.empty(WIDEST + 1, np.int64),
        np.full(p.n, -1),
    )
    return Ways(*(thawed(part) for part in ways))


@njit_cached
def _heads(g: Ways, known_s: FloatArray) -> tuple[FloatArray, IntArray, FloatArray]:
    """When operators start at the soonest, and the segments that make it later than edges do."""
    n = len(g.order)
    head_s, before = known_s.copy(), np.full(n, -1)
    start, between_s = np.full(n, -1), np.zeros(n)
    for v in g.order:
        latest_s = -1.0
        for e in range(g.offsets[v], g.offsets[v + 1]):
            p = g.maker[e]
            if head_s[p] + g.least_s[p] > latest_s:
                latest_s, before[v] = head_s[p] + g.least_s[p], p
        head_s[v] = max(head_s[v], latest_s)
        u = before[v]
        for _ in range(STEPS):
            u = before[u] if u >= 0 else -1
            if u < 0:
                break
            count = _gather(g, u, v)
            if count > WIDEST:
                break
            least_s = _between(g, u, v, count) if count > 0 else 0.0
            if head_s[u] + g.least_s[u] + least_s > head_s[v]:
                head_s[v] = head_s[u] + g.least_s[u] + least_s
                start[v], between_s[v] = u, least_s
    return head_s, start, between_s


@njit_cached
def _tails(g: Ways, start: IntArray, between_s: FloatArray, known_s: FloatArray) -> FloatArray:
    """From the end of operators to the end of all, over edges and segments."""
    tail_s = known_s.copy()
    for place in range(len(g.order) - 1, -1, -1):
        v = g.order[place]
        from_v = g.least_s[v] + tail_s[v]
        for e in range(g.offsets[v], g.offsets[v + 1]):
            tail_s[g.maker[e]] = max(tail_s[g.maker[e]], from_v)
        if start[v] >= 0:
            tail_s[start[v]] = max(tail_s[start[v]], between_s[v] + from_v)
    return tail_s


@njit_internal
def _gather(g: Ways, u: int, v: int) -> int:
    """List what is between u and v; how many, one more than `WIDEST` where there are too many."""
    count = 0
    for place in range(g.position[u] + 1, g.position[v]):
        x = g.order[place]
        if g.follows[u, x] and g.follows[x, v]:
            g.inside[count] = x
            count += 1
            if count > WIDEST:
                break
    return count


@njit_cached
def _between(g: Ways, u: int, v: int, count: int) -> float:
    """From the end of u to the start of v, with so many operators inside."""
    for k in range(count):
        g.at[g.inside[k]] = k
    head, away = np.zeros(count + 1), np.zeros(count + 1)
    tail, back = np.zeros(count + 1), np.zeros(count + 1)
    back[count] = np.inf  # of v itself, which is not on another device than v
    for k in range(count + 1):
        x = g.inside[k] if k < count else v
        for e in range(g.offsets[x], g.offsets[x + 1]):
            p = g.maker[e]
            q = g.at[p]
            if p == u:
                away[k] = max(away[k], g.sent_s[e])
            elif q >= 0:
                head[k] = max(head[k], head[q] + g.least_s[p])
                away[k] = max(away[k], min(away[q], head[q] + g.sent_s[e]) + g.least_s[p])
        away[k] = max(away[k], head[k])
    for k in range(count, -1, -1):
        x = g.inside[k] if k < count else v
        took = g.least_s[x] if k < count else 0.0
        for e in range(g.offsets[x], g.offsets[x + 1]):
            q = g.at[g.maker[e]]
            if q >= 0:
                tail[q] = max(tail[q], took + tail[k])
                back[q] = max(back[q], took + min(back[k], g.sent_s[e] + tail[k]))
    elsewhere = np.empty(count)
    for k in range(count):
        x = g.inside[k]
        g.at[x] = -1
        elsewhere[k] = away[k] + g.least_s[x] + back[k]
    longest, single = head[count], _on_one_device(g, elsewhere, head, tail)
    return max(longest, min(away[count], single))  # type: ignore[no-any-return]


@njit_cached
def _on_one_device(g: Ways, elsewhere: FloatArray, head: FloatArray, tail: FloatArray) -> float:
    """The largest L that is no more than `elsewhere` of all others, or what the rest takes."""
    count, load = len(elsewhere), np.zeros(g.compute_s.shape[1])
    first, last, found = np.inf, np.inf, 0.0
    heap, sooner = np.empty(count, dtype=np.int64), -elsewhere
    for k in range(count):
        push(heap, 0, k, sooner, 0, k)
    for left in range(count, 0, -1):
        # The longest first. Of those until here none is elsewhere, or it takes so long.
        k = pop(heap, 0, left, sooner, 0)
        for d in range(len(load)):
            load[d] += g.compute_s[g.inside[k], d]
        first, last = min(first, head[k]), min(last, tail[k])
        found = max(found, min(elsewhere[k], first + load.min() + last))
    return found
