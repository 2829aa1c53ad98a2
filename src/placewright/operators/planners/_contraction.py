"""A throughput problem made small for exact planners: what must be together is one node.

Contracted are colocation groups and, for contiguous plans, whatever lies on a cycle of the
forward graph between groups (backward operators without a forward one through their mirrored
twins, see `placewright.operators._contiguity`): devices in a chain of nested ideals never
separate it. Devices that are alike in all that matters become one kind. What a tensor costs
depends only on which nodes touch it, so that tensors with the same nodes are added up.
Every plan of the small problem is a plan of the large one, with the same loads, and the other way
round. (Tarnawski et al., arXiv 2006.16423, merge more: nodes that take no time go to a
neighbour. That can miss an optimum where they need memory.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.arrays import BoolArray, FloatArray, IntArray
from placewright.errors import InfeasibleError
from placewright.operators._contiguity import forward_edges
from placewright.operators._groups import groups_of
from placewright.operators.problem import OperatorProblem


@dataclass(frozen=True, slots=True, eq=False)
class Contraction:
    """What is left to decide: N nodes, K kinds of devices, H hyperedges.

    Attributes
    ----------
    node
        Shape (n,), node of every operator; contiguous: numbered in topological order.
    work_s
        Shape (N, K), ``inf`` where not allowed.
    backward_s
        Shape (N, K), the part of `work_s` in the backward pass.
    resident_bytes
        Shape (N,).
    edges
        Shape (E, 2), earlier and later node, sorted, each once; empty unless contiguous.
    members
        The nodes that touch each hyperedge, ascending, at least two.
    moved_bytes
        Shape (H,).
    backward_bytes
        Shape (H,), the part of `moved_bytes` that backward operators make.
    kind_devices
        The devices of each kind.
    memory_bytes, host_rate
        Shape (K,); the rate is in seconds per byte.
    """

    node: IntArray
    work_s: FloatArray
    backward_s: FloatArray
    resident_bytes: FloatArray
    edges: IntArray
    members: tuple[tuple[int, ...], ...]
    moved_bytes: FloatArray
    backward_bytes: FloatArray
    kind_devices: tuple[tuple[int, ...], ...]
    memory_bytes: FloatArray
    host_rate: FloatArray

    @property
    def nodes(self) -> int:
        """How many decisions are left."""
        return len(self.work_s)

    @property
    def counts(self) -> tuple[int, ...]:
        """Devices of each kind."""
        return tuple(len(devices) for devices in self.kind_devices)

    @property
    def most_s(self) -> float:
        """No load is higher: all work on the slowest device and every transfer."""
        work = np.where(np.isfinite(self.work_s), self.work_s, 0.0).max(axis=1).sum()
        return float(work + self.moved_bytes.sum() * self.host_rate.max(initial=0.0))

    @property
    def least_s(self) -> float:
        """No largest load is lower: the work, each node where it is fastest, shared evenly."""
        fastest = self.work_s.min(axis=1)
        return float(max(fastest.sum() / sum(self.counts), fastest.max()))

    def placement(self, device_of_node: IntArray) -> IntArray:
        """Shape (n,), the device of every operator."""
        return np.asarray(device_of_node, dtype=np.int64)[self.node]


def contract(problem: OperatorProblem, *, contiguous: bool) -> Contraction:
    """The small problem.

    Raises
    ------
    InfeasibleError
        A node that no device can run.
    """
    node = groups_of(problem).group
    if contiguous:
        node = _by_position(problem, _without_cycles(problem, node))
    count = int(node.max()) + 1
    work, late = _work(problem, node, count)
    kinds = _kinds(problem, work)
    first = np.array([devices[0] for devices in kinds])
    members, moved, moved_late = _hyperedges(problem, node)
    return Contraction(
        node=node,
        work_s=np.ascontiguousarray(work[:, first]),
        backward_s=np.ascontiguousarray(late[:, first]),
        resident_bytes=np.bincount(node, np.ceil(problem.resident_bytes)).astype(np.float64),
        edges=_node_edges(problem, node) if contiguous else np.zeros((0, 2), dtype=np.int64),
        members=members,
        moved_bytes=moved,
        backward_bytes=moved_late,
        kind_devices=kinds,
        memory_bytes=np.floor(problem.memory_bytes[first]),
        host_rate=problem.host_seconds_per_byte[first],
    )


def _node_edges(problem: OperatorProblem, node: IntArray) -> IntArray:
    before, after = (node[end] for end in forward_edges(problem))
    apart = before != after
    pairs = np.stack([before[apart], after[apart]], axis=1)
    return np.unique(pairs, axis=0).reshape(-1, 2).astype(np.int64)


def _without_cycles(problem: OperatorProblem, node: IntArray) -> IntArray:
    """Nodes with everything on a cycle between them merged."""
    edges = _node_edges(problem, node)
    component = _components(int(node.max()) + 1, edges)
    result: IntArray = component[node]
    return result


def _components(count: int, edges: IntArray) -> IntArray:
    """Strongly connected components (Tarjan 1972, doi 10.1137/0201010), sinks numbered first."""
    targets: list[list[int]] = [[] for _ in range(count)]
    for a, b in edges.tolist():
        targets[a].append(b)
    index, low = [-1] * count, [0] * count
    component = np.full(count, -1, dtype=np.int64)
    stack: list[int] = []
    clock = found = 0
    for root in range(count):
        if index[root] >= 0:
            continue
        index[root] = low[root] = clock
        clock += 1
        stack.append(root)
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


def _by_position(problem: OperatorProblem, node: IntArray) -> IntArray:
    """Renumber nodes so that edges rise: depth first, as `placewright` lines them up."""
    count = int(node.max()) + 1
    rank = np.empty(count, dtype=np.int64)
    rank[line_up(count, _node_edges(problem, node))] = np.arange(count)
    result: IntArray = rank[node]
    return result


def line_up(count: int, edges: IntArray, *, last_first: bool = True) -> IntArray:
    """A depth-first topological order: what has just become ready comes next.

    Parameters
    ----------
    last_first
        Of several that became ready together, the last one first.
    """
    targets: list[list[int]] = [[] for _ in range(count)]
    waiting = np.bincount(edges[:, 1], minlength=count).tolist()
    for a, b in edges.tolist():
        targets[a].append(b)
    ready = [v for v in range(count) if waiting[v] == 0]
    ready = ready if last_first else ready[::-1]
    order = []
    while ready:
        v = ready.pop()
        order.append(v)
        freed = []
        for w in targets[v]:
            waiting[w] -= 1
            if waiting[w] == 0:
                freed.append(w)
        ready += freed if last_first else freed[::-1]
    return np.array(order, dtype=np.int64)


def _work(problem: OperatorProblem, node: IntArray, count: int) -> tuple[FloatArray, FloatArray]:
    """Seconds of every node on every device, and the backward part."""
    allowed = np.ones((count, problem.m), dtype=np.bool_)
    np.logical_and.at(allowed, node, problem.allowed())
    need = np.bincount(node, np.ceil(problem.resident_bytes)).astype(np.float64)
    fits = need[:, None] <= problem.memory_bytes
    nowhere = np.flatnonzero(~(allowed & fits).any(axis=1))
    if len(nowhere):
        v = int(nowhere[0])
        raise _homeless(problem, np.flatnonzero(node == v), allowed[v], float(need[v]))
    total, late = np.zeros((count, problem.m)), np.zeros((count, problem.m))
    finite = np.where(np.isfinite(problem.compute_s), problem.compute_s, 0.0)
    np.add.at(total, node, finite)
    np.add.at(late, node, finite * problem.is_backward[:, None])
    closed = ~(allowed & fits)
    total[closed] = np.inf
    return total, late


def _homeless(
    problem: OperatorProblem, operators: IntArray, allowed: BoolArray, need: float
) -> InfeasibleError:
    """Why a node fits no device, and by how much it misses the largest."""
    where = f"{problem.name}: {problem.operator_names[int(operators[0])]!r}"
    together = f"{len(operators)} operators that must share a device"
    if not allowed.any():
        hint = "drop a pin, or split a colocation group"
        return InfeasibleError(f"no device can run all of {together}", where=where, hint=hint)
    largest = int(np.where(allowed, problem.memory_bytes, -1.0).argmax())
    return InfeasibleError(
        f"no device can hold {together}",
        where=where,
        by=f"{need - problem.memory_bytes[largest]:.0f} bytes more than "
        f"{problem.device_names[largest]!r} has",
        hint="split a colocation group, or raise a memory limit",
    )


def _kinds(problem: OperatorProblem, work: FloatArray) -> tuple[tuple[int, ...], ...]:
    """Devices with the same times, memory and host link, in the order of their first."""
    alike: dict[bytes, list[int]] = {}
    for d in range(problem.m):
        rest = [problem.memory_bytes[d], problem.host_seconds_per_byte[d]]
        alike.setdefault(work[:, d].tobytes() + np.array(rest).tobytes(), []).append(d)
    return tuple(tuple(devices) for devices in alike.values())


def _hyperedges(
    problem: OperatorProblem, node: IntArray
) -> tuple[tuple[tuple[int, ...], ...], FloatArray, FloatArray]:
    """Members, bytes and backward bytes, in the order of their first tensor."""
    found: dict[tuple[int, ...], list[float]] = {}
    for k in range(problem.t):
        maker = int(problem.tensor_producer[k])
        some = problem.consumers[problem.consumer_offsets[k] : problem.consumer_offsets[k + 1]]
        members = tuple(sorted({int(node[maker]), *node[some].tolist()}))
        size = float(problem.tensor_bytes[k])
        if len(members) > 1 and size > 0:
            entry = found.setdefault(members, [0.0, 0.0])
            entry[0] += size
            entry[1] += size * bool(problem.is_backward[maker])
    sizes = np.array(list(found.values())).reshape(-1, 2)
    return tuple(found), np.ascontiguousarray(sizes[:, 0]), np.ascontiguousarray(sizes[:, 1])
