"""Contiguous plans: devices in a chain of nested ideals of the forward graph.

Forward graph: every use of a tensor between two forward operators. A backward operator of a
colocation group that has no forward operator gets a forward twin: the uses between it and other
backward operators count in mirror image (Tarnawski et al., NeurIPS 2020, arXiv 2006.16423).
Nested ideals exist where the devices can be sorted so that no edge runs backwards, which is
where the graph of devices has no cycle.
"""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import BoolArray, IntArray
from placewright.operators.problem import OperatorProblem


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
