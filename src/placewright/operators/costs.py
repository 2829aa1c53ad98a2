"""What follows from a problem alone: groups placed as one, arrays for kernels, times of CEFT.

CEFT (critical earliest finish time) is compiled: O(t m^2 + e m).

*Contiguous:* devices in a chain of nested ideals of the forward graph.
Forward graph: every use of a tensor between two forward operators. A backward operator of a
colocation group that has no forward operator gets a forward twin: the uses between it and other
backward operators count in mirror image (Tarnawski et al., NeurIPS 2020, arXiv 2006.16423).
Nested ideals exist where the devices can be sorted so that no edge runs backwards, which is
where the graph of devices has no cycle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import BoolArray, FloatArray, IntArray, thawed
from placewright.numerics.by_reference import by_reference
from placewright.numerics.njit import njit_cached
from placewright.operators.problem import OperatorProblem
from placewright.operators.sizes import home_bytes, room_bytes, views, whole_bytes


@by_reference
class Costs(NamedTuple):
    """Arrays of a problem and of its topology, bytes in whole ones.

    A tensor takes `home_bytes` where it is made, nothing if it is a view, and `kept_bytes` where
    it is received. `views` are those of tensors, each before what it is a view of. Where there is
    no link, `channel` is -1 and the latency infinite; within a device nothing takes time.
    """

    compute_s: FloatArray
    producer: IntArray
    tensor_bytes: FloatArray
    offsets: IntArray
    consumers: IntArray
    latency_s: FloatArray
    seconds_per_byte: FloatArray
    channel: IntArray
    order: IntArray
    in_offsets: IntArray
    in_tensors: IntArray
    out_offsets: IntArray
    out_tensors: IntArray
    alias: IntArray
    views: IntArray
    home_bytes: IntArray
    kept_bytes: IntArray
    resident_bytes: IntArray
    memory_bytes: IntArray


def kernel_costs(problem: OperatorProblem) -> Costs:
    """A problem's arrays as the kernels take them; none is written to."""
    topology, link = problem.topology, linked(problem)
    unlinked_s = np.where(np.eye(problem.m) > 0, 0.0, np.inf)
    costs = Costs(
        compute_s=problem.compute_s,
        producer=problem.tensor_producer,
        tensor_bytes=problem.tensor_bytes,
        offsets=problem.consumer_offsets,
        consumers=problem.consumers,
        # One test for all kernels: a channel without finite latency and rate is no link.
        latency_s=np.where(link, problem.latency_s, unlinked_s),
        seconds_per_byte=np.where(link, problem.seconds_per_byte, 0.0),
        channel=np.where(link, problem.channel, -1),
        order=topology.order,
        in_offsets=topology.in_offsets,
        in_tensors=topology.in_tensors,
        out_offsets=topology.out_offsets,
        out_tensors=topology.out_tensors,
        alias=problem.alias_of,
        views=views(problem),
        home_bytes=whole_bytes(home_bytes(problem)),
        kept_bytes=whole_bytes(problem.tensor_bytes),
        resident_bytes=whole_bytes(problem.resident_bytes),
        memory_bytes=room_bytes(problem),
    )
    return Costs(*(thawed(part) for part in costs))


@njit_cached
def move_time(c: Costs, k: int, source: int, target: int) -> float:
    """Seconds of tensor `k` from `source` to `target`: zero on one device, ``inf`` unlinked."""
    return c.latency_s[source, target] + c.tensor_bytes[k] * c.seconds_per_byte[source, target]  # type: ignore[no-any-return]


def linked(problem: OperatorProblem) -> BoolArray:
    """Shape (m, m): whether a tensor can go from one device to another; False on the diagonal."""
    p = problem
    pairs: BoolArray = (p.channel >= 0) & np.isfinite(p.latency_s + p.seconds_per_byte)
    return pairs & ~np.eye(p.m, dtype=np.bool_)


@dataclass(frozen=True, slots=True, eq=False)
class Ceft:
    """CEFT's tables and critical path.

    Vasudevan, Gregg, arXiv 1701.08800. With w(i,p) the time of operator i on device p and
    c(k,q -> i,p) the transfer time, zero on one device:

        ceft(i,p)    = w(i,p) + max over producers k of min over q of ceft(k,q) + c(k,q -> i,p)
        ceft_up(i,p) = w(i,p) + max over consumers j of min over q of c(i,p -> j,q) + ceft_up(j,q)

    Attributes
    ----------
    ceft_s, ceft_up_s
        Shape (n, m), seconds; ``inf`` where an operator is not allowed or cannot be reached.
    critical_s
        max over sinks of min over devices of `ceft_s`.
    path, path_devices
        Operators of the critical path from entry to exit, and CEFT's device for each.
    through_s
        ``ceft + ceft_up - w``, shape (n, m): the longest way through operator i on device p.
    """

    ceft_s: FloatArray
    ceft_up_s: FloatArray
    critical_s: float
    path: IntArray
    path_devices: IntArray

    through_s: FloatArray

    @property
    def slack_s(self) -> FloatArray:
        """``critical_s - through_s``; ``-inf`` where not allowed.

        Below zero where this choice alone makes the path through it longer than critical.
        """
        return self.critical_s - self.through_s


def ceft(problem: OperatorProblem) -> Ceft:
    """CEFT of a problem; respects pins, groups' allowed devices and missing links.

    Raises `InfeasibleError` (an operator that no allowed device can reach from its producers).
    """
    costs = kernel_costs(problem)
    work = np.where(problem.allowed(), problem.compute_s, np.inf)
    down, arrival, via = _down(costs, work)
    up = _up(costs, work)
    least = down.min(axis=1)
    if not np.isfinite(least).all():
        op = problem.operator_names[int(np.flatnonzero(~np.isfinite(least))[0])]
        raise InfeasibleError(
            f"no allowed device can get all inputs of {op!r}",
            where=problem.name,
            hint="add a link, or drop a pin",
        )
    path, devices = _path(costs, down, arrival, via)
    through = np.where(np.isfinite(work), down + up - np.where(np.isfinite(work), work, 0), np.inf)
    return Ceft(down, up, float(least.max()), path, devices, through)


@njit_cached
def _down(c: Costs, work: FloatArray) -> tuple[FloatArray, FloatArray, IntArray]:
    """ceft, and for every tensor and device: earliest arrival and where from."""
    n, m = work.shape
    t = len(c.producer)
    table = np.zeros((n, m))
    arrival, via = np.empty((t, m)), np.zeros((t, m), dtype=np.int64)
    for i in c.order:
        for p in range(m):
            ready = 0.0
            for a in range(c.in_offsets[i], c.in_offsets[i + 1]):
                ready = max(ready, arrival[c.in_tensors[a], p])
            table[i, p] = ready + work[i, p]
        for a in range(c.out_offsets[i], c.out_offsets[i + 1]):
            k = c.out_tensors[a]
            for p in range(m):
                arrival[k, p] = np.inf
                for q in range(m):
                    at = table[i, q] + move_time(c, k, q, p)
                    if at < arrival[k, p]:
                        arrival[k, p], via[k, p] = at, q
    return table, arrival, via


@njit_cached
def _up(c: Costs, work: FloatArray) -> FloatArray:
    """ceft_up."""
    n, m = work.shape
    table = np.zeros((n, m))
    for at in range(n - 1, -1, -1):
        i = c.order[at]
        for p in range(m):
            tail = 0.0
            for a in range(c.out_offsets[i], c.out_offsets[i + 1]):
                k = c.out_tensors[a]
                for b in range(c.offsets[k], c.offsets[k + 1]):
                    j = c.consumers[b]
                    way = np.inf
                    for q in range(m):
                        way = min(way, move_time(c, k, p, q) + table[j, q])
                    tail = max(tail, way)
            table[i, p] = work[i, p] + tail
    return table


@njit_cached
def _path(
    c: Costs, table: FloatArray, arrival: FloatArray, via: IntArray
) -> tuple[IntArray, IntArray]:
    """Follow the arg max-min back from the last sink; ties to the earlier operator."""
    n = len(table)
    last, worst = -1, -1.0
    for i in range(n):
        least = table[i].min()
        if least > worst:
            last, worst = i, least
    path, devices = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    i, p, size = last, table[last].argmin(), 0
    while True:
        path[size], devices[size] = i, p
        size += 1
        tensor, latest = -1, -1.0
        for a in range(c.in_offsets[i], c.in_offsets[i + 1]):
            k = c.in_tensors[a]
            if arrival[k, p] > latest:
                tensor, latest = k, arrival[k, p]
        if tensor < 0:
            return path[:size][::-1].copy(), devices[:size][::-1].copy()
        i, p = c.producer[tensor], via[tensor, p]


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Colocation groups, numbered by their first operator.

    Attributes
    ----------
    group
        Shape (n,), group of every operator.
    first
        Shape (groups,), first operator of each.
    allowed
        Shape (groups, m), whether every member can run there.
    resident_bytes
        Shape (groups,).
    """

    group: IntArray
    first: IntArray
    allowed: BoolArray
    resident_bytes: FloatArray


def groups_of(problem: OperatorProblem) -> Groups:
    """The problem's groups; raises `InfeasibleError`: a group that no device can run as a whole."""
    _, first, inverse = np.unique(problem.colocation, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    first = np.sort(first)
    group = rank[inverse]
    allowed = problem.allowed_groups(group)
    nowhere = np.flatnonzero(~allowed.any(axis=1))
    if len(nowhere):
        raise InfeasibleError(
            "no device can run all of a group",
            where=f"{problem.name}: the group of {problem.operator_names[first[nowhere[0]]]!r}",
            hint="split the group, or drop a pin",
        )
    resident = np.bincount(group, problem.resident_bytes).astype(np.float64)
    return Groups(group, first, allowed, resident)


def group_costs(groups: Groups, operator_costs: FloatArray) -> FloatArray:
    """Shape (groups, m): costs summed over each group, ``inf`` where it is not allowed."""
    finite = np.where(groups.allowed[groups.group], operator_costs, 0.0)
    columns = [
        np.bincount(groups.group, finite[:, d], len(groups.allowed))
        for d in range(operator_costs.shape[1])
    ]
    return np.where(groups.allowed, np.stack(columns, axis=1), np.inf)


def forward_edges(problem: OperatorProblem) -> tuple[IntArray, IntArray]:
    """Earlier and later operator of every edge that a contiguous plan must respect."""
    tensor = problem.consumed
    source, target = problem.tensor_producer[tensor], problem.consumers
    late = problem.is_backward
    if not late.any():
        return source, target
    orphan = _orphans(problem)
    forward = ~late[source] & ~late[target]
    mirrored = late[source] & late[target] & (orphan[source] | orphan[target])
    return (
        np.concatenate([source[forward], target[mirrored]]),
        np.concatenate([target[forward], source[mirrored]]),
    )


def break_of_chain(problem: OperatorProblem, placement: IntArray) -> str:
    """Which operator keeps a placement from being contiguous, in words; empty if none does."""
    before, after = forward_edges(problem)
    source, target = placement[before], placement[after]
    between = source != target
    reach = np.zeros((problem.m, problem.m), dtype=np.bool_)
    reach[source[between], target[between]] = True
    # Transitive closure (Warshall): which devices lead to which, over any number of devices.
    for middle in range(problem.m):
        reach |= reach[:, [middle]] & reach[[middle], :]
    bad = np.flatnonzero(between & reach[target, source])
    if not len(bad):
        return ""
    e = int(bad[0])
    names, devices = problem.operator_names, problem.device_names
    a, b = devices[source[e]], devices[target[e]]
    return (
        f"not contiguous: {names[after[e]]!r} on {b!r} follows {names[before[e]]!r} on {a!r}, "
        f"and {a!r} follows {b!r} elsewhere"
    )


def _orphans(problem: OperatorProblem) -> BoolArray:
    """Shape (n,), operators whose group has no forward operator."""
    _, group = np.unique(problem.colocation, return_inverse=True)
    has_forward = np.zeros(int(group.max()) + 1, dtype=np.bool_)
    has_forward[group[~problem.is_backward]] = True
    orphan: BoolArray = ~has_forward[group]
    return orphan


def strong_components(count: int, edges: IntArray, *, last_root_first: bool = False) -> IntArray:
    """Shape (count,): strongly connected components (Tarjan 1972, doi 10.1137/0201010).

    Numbered as they are found, one that others lead to before those; from the first or from the
    last node on.
    """
    targets: list[list[int]] = [[] for _ in range(count)]
    for a, b in edges.tolist():
        targets[a].append(b)
    index, low = [-1] * count, [0] * count
    component = np.full(count, -1, dtype=np.int64)
    stack: list[int] = []
    clock = found = 0
    roots = range(count)
    for root in reversed(roots) if last_root_first else roots:
        if index[root] >= 0:
            continue
        index[root] = low[root] = clock
        clock += 1
        stack.append(root)
        # Tarjan's recursion as a stack of iterators: graphs are deeper than Python's stack.
        path = [(root, iter(targets[root]))]
        while path:
            v, left = path[-1]
            for w in left:
                if index[w] < 0:
                    index[w] = low[w] = clock
                    clock += 1
                    stack.append(w)
                    path.append((w, iter(targets[w])))
                    break
                # Still on the stack, so that w leads to v; otherwise w's component is complete.
                if component[w] < 0:
                    low[v] = min(low[v], index[w])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[v])
                if low[v] == index[v]:
                    while component[v] < 0:
                        component[stack.pop()] = found
                    found += 1
    return component


def heads_and_tails(problem: OperatorProblem, tables: Ceft) -> tuple[FloatArray, FloatArray]:
    """Shape (n,): operators start no earlier, and are no less from the end; ``inf`` for never."""
    allowed = problem.allowed()
    own = np.where(allowed, problem.compute_s, 0.0)
    head = np.where(allowed, tables.ceft_s - own, np.inf).min(axis=1)
    tail = np.where(allowed, tables.ceft_up_s - own, np.inf).min(axis=1)
    return np.maximum(0.0, head), tail


def least_transfer_s(problem: OperatorProblem, makers: BoolArray) -> FloatArray:
    """Shape (t, m): the least time of each tensor to each device from another one.

    `makers`: Shape (t, m), devices that may make it.
    """
    p, pair = problem, linked(problem)
    least = np.full((p.t, p.m), np.inf)
    latency, per_byte = (np.where(pair, a, 0.0) for a in (p.latency_s, p.seconds_per_byte))
    for source in range(p.m):
        seconds = latency[source] + p.tensor_bytes[:, None] * per_byte[source]
        there = pair[source] & makers[:, source, None]
        np.minimum(least, np.where(there, seconds, np.inf), out=least)
    return least
