"""Colocation groups, which are placed as one, and contiguous plans.

*Contiguous:* devices in a chain of nested ideals of the forward graph.
Forward graph: every use of a tensor between two forward operators. A backward operator of a
colocation group that has no forward operator gets a forward twin: the uses between it and other
backward operators count in mirror image (Tarnawski et al., NeurIPS 2020, arXiv 2006.16423).
Nested ideals exist where the devices can be sorted so that no edge runs backwards, which is
where the graph of devices has no cycle.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.operators.problem import OperatorProblem


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
