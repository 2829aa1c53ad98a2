"""A throughput problem made small for exact planners: what must be together is one node.

Contracted are colocation groups and, for contiguous plans, whatever lies on a cycle of the
forward graph between groups (backward operators without a forward one through their mirrored
twins, see `placewright.operators.costs`): devices in a chain of nested ideals never
separate it. Devices that are alike in all that matters become one kind. What a tensor costs
depends only on which nodes touch it, so that tensors with the same nodes are added up.
Every plan of the small problem is a plan of the large one, with the same loads, and the other way
round. (Tarnawski et al., arXiv 2006.16423, merge more: nodes that take no time go to a
neighbour. That can miss an optimum where they need memory.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.operators.costs import forward_edges, groups_of, strong_components
from placewright.operators.plan import OperatorPlan, device_kinds
from placewright.operators.problem import OperatorProblem
from placewright.operators.simulation.loads import cluster_rates
from placewright.operators.sizes import room_bytes, whole_bytes
from placewright.report.text import size


@dataclass(frozen=True, slots=True, eq=False)
class Contraction:
    """What is left to decide: N nodes, K kinds of stages, H hyperedges.

    Devices that are alike are a pool. A kind of stage is a number of copies on devices of a pool:
    where stages are not replicated, kinds are pools. Work, rates and bytes are those of one copy.

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
    pools
        The devices of each pool.
    pool, copies
        Shape (K,), the pool of each kind, and how many of its devices a stage takes.
    memory_bytes, host_rate
        Shape (K,); the rate is in seconds per byte.
    cluster, cluster_rate
        Shape (K,), the cluster of its devices or -1, and the rate for what stays in it.
    diffmaxima
        Whether the largest forward and the largest backward load are added up.
    """

    node: IntArray
    work_s: FloatArray
    backward_s: FloatArray
    resident_bytes: FloatArray
    edges: IntArray
    members: tuple[tuple[int, ...], ...]
    moved_bytes: FloatArray
    backward_bytes: FloatArray
    pools: tuple[tuple[int, ...], ...]
    pool: IntArray
    copies: IntArray
    memory_bytes: FloatArray
    host_rate: FloatArray
    cluster: IntArray
    cluster_rate: FloatArray
    diffmaxima: bool = False

    @property
    def nodes(self) -> int:
        """How many decisions are left."""
        return len(self.work_s)

    @property
    def counts(self) -> tuple[int, ...]:
        """Devices of each pool."""
        return tuple(len(devices) for devices in self.pools)

    @property
    def replicated(self) -> bool:
        """Whether a stage may be on several devices."""
        return bool((self.copies > 1).any())

    @property
    def most_stages(self) -> tuple[int, ...]:
        """How many stages of each kind there can be."""
        return tuple(self.counts[p] // r for p, r in zip(self.pool, self.copies, strict=True))

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

    def stages(self, plan: OperatorPlan) -> tuple[IntArray, list[int]]:
        """Stages of the nodes, shape (N,), and the kind of each stage, of such a plan."""
        own = np.arange(sum(self.counts))
        copies = np.bincount(own if plan.replica_of is None else plan.replica_of)
        pool = {d: at for at, devices in enumerate(self.pools) for d in devices}
        kind = {
            key: k
            for k, key in enumerate(zip(self.pool.tolist(), self.copies.tolist(), strict=True))
        }
        leaders, stage = np.unique(plan.placement, return_inverse=True)
        of_node = np.empty(self.nodes, dtype=np.int64)
        of_node[self.node] = stage
        return of_node, [kind[pool[d], int(copies[d])] for d in leaders.tolist()]

    def plan(self, stage: IntArray, kinds: Sequence[int]) -> OperatorPlan:
        """The plan of nodes on stages, shape (N,), of these kinds; devices in input order."""
        free = [iter(devices) for devices in self.pools]
        leader, replica_of = [], np.arange(sum(self.counts))
        for k in kinds:
            members = [next(free[self.pool[k]]) for _ in range(int(self.copies[k]))]
            leader.append(members[0])
            replica_of[members] = members[0]
        place = self.placement(np.array(leader, dtype=np.int64)[stage])
        return OperatorPlan(place, replica_of=replica_of if self.replicated else None)


def contract(problem: OperatorProblem, *, contiguous: bool) -> Contraction:
    """The small problem; raises `InfeasibleError`: a node that no device can run."""
    node = nodes_of(problem, contiguous=contiguous)
    work, backward = work_of(problem, node)
    resident = np.bincount(node, np.ceil(problem.resident_bytes)).astype(np.float64)
    pools = _pools(problem, work)
    copied = problem.pipeline.replication
    kinds = [(p, r) for p, own in enumerate(pools) for r in range(1, len(own) + 1 if copied else 2)]
    pool, copies = np.array(kinds, dtype=np.int64).T
    first = np.array([pools[at][0] for at in pool])
    # All of rule L5 is linear in a node's work and bytes, so that it is part of a kind's prices.
    ring = 2.0 * (copies - 1) / copies * problem.pipeline.sync_seconds_per_byte
    members, moved, moved_backward = _hyperedges(problem, node)
    cluster, cluster_rate = _clusters(problem)
    return Contraction(
        node=node,
        work_s=np.ascontiguousarray(work[:, first] / copies + resident[:, None] * ring),
        backward_s=np.ascontiguousarray(backward[:, first] / copies + resident[:, None] * ring),
        resident_bytes=resident,
        edges=node_edges(problem, node) if contiguous else np.zeros((0, 2), dtype=np.int64),
        members=members,
        moved_bytes=moved,
        backward_bytes=moved_backward,
        pools=pools,
        pool=pool,
        copies=copies,
        memory_bytes=np.floor(problem.memory_bytes[first]),
        host_rate=problem.host_seconds_per_byte[first] / copies,
        cluster=cluster[first],
        cluster_rate=cluster_rate[first] / copies,
        diffmaxima=problem.pipeline.diffmaxima,
    )


def _clusters(problem: OperatorProblem) -> tuple[IntArray, FloatArray]:
    """Shape (m,) each: the cluster of every device, and its rate inside."""
    cluster = problem.pipeline.cluster or (-1,) * problem.m
    return np.array(cluster, dtype=np.int64), cluster_rates(problem)


def nodes_of(problem: OperatorProblem, *, contiguous: bool) -> IntArray:
    """Shape (n,), the node of every operator; contiguous: numbered in topological order."""
    node = groups_of(problem).group
    if not contiguous:
        return node
    # Merge what lies on a cycle between nodes, then renumber so that edges rise.
    node = strong_components(int(node.max()) + 1, node_edges(problem, node))[node]
    line = depth_first_order(int(node.max()) + 1, node_edges(problem, node))
    return np.argsort(line)[node]


def node_edges(problem: OperatorProblem, node: IntArray) -> IntArray:
    """Shape (E, 2), earlier and later node of the forward graph, each pair once."""
    before, after = (node[end] for end in forward_edges(problem))
    apart = before != after
    pairs = np.stack([before[apart], after[apart]], axis=1)
    return np.unique(pairs, axis=0).reshape(-1, 2).astype(np.int64)


def depth_first_order(count: int, edges: IntArray, *, last_first: bool = True) -> IntArray:
    """A depth-first topological order: what has just become ready comes next.

    `last_first`: of several that became ready together, the last one first.
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


def work_of(problem: OperatorProblem, node: IntArray) -> tuple[FloatArray, FloatArray]:
    """Shape (N, m) each: seconds of every node on every device, and the backward part.

    The first are ``inf`` where a node cannot be. Raises `InfeasibleError`: no device can run one.
    """
    count = int(node.max()) + 1
    allowed = np.ones((count, problem.m), dtype=np.bool_)
    np.logical_and.at(allowed, node, problem.allowed())
    need = np.zeros(count, dtype=np.int64)
    np.add.at(need, node, whole_bytes(problem.resident_bytes))
    fits = need[:, None] <= room_bytes(problem)
    nowhere = np.flatnonzero(~(allowed & fits).any(axis=1))
    if len(nowhere):
        v = int(nowhere[0])
        raise _no_device_error(problem, np.flatnonzero(node == v), allowed[v], float(need[v]))
    total, backward = np.zeros((count, problem.m)), np.zeros((count, problem.m))
    finite = np.where(np.isfinite(problem.compute_s), problem.compute_s, 0.0)
    np.add.at(total, node, finite)
    np.add.at(backward, node, finite * problem.is_backward[:, None])
    closed = ~(allowed & fits)
    total[closed] = np.inf
    return total, backward


def _no_device_error(
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
        by=f"{size(need - problem.memory_bytes[largest])} more than "
        f"{problem.device_names[largest]!r} has",
        hint="split a colocation group, or raise a memory limit",
    )


def _pools(problem: OperatorProblem, work: FloatArray) -> tuple[tuple[int, ...], ...]:
    """Devices with the same times, memory, host link and cluster, in the order of their first.

    Without copies it is enough that the work of nodes is the same.
    """
    exact = device_kinds(problem)
    cluster, within = _clusters(problem)
    alike: dict[bytes, list[int]] = {}
    for d in range(problem.m):
        rest = [problem.memory_bytes[d], problem.host_seconds_per_byte[d], cluster[d], within[d]]
        # A stage's copies are judged operator by operator (`check_plan`): then devices must be
        # alike in every operator, not only in the sums of nodes.
        rest += [exact[d]] if problem.pipeline.replication else []
        alike.setdefault(work[:, d].tobytes() + np.array(rest).tobytes(), []).append(d)
    return tuple(tuple(devices) for devices in alike.values())


def _hyperedges(
    problem: OperatorProblem, node: IntArray
) -> tuple[tuple[tuple[int, ...], ...], FloatArray, FloatArray]:
    """Members, bytes and backward bytes, in the order of their first tensor."""
    found: dict[tuple[int, ...], list[float]] = {}
    for k in range(problem.t):
        producer = int(problem.tensor_producer[k])
        some = problem.readers(k)
        members = tuple(sorted({int(node[producer]), *node[some].tolist()}))
        size = float(problem.tensor_bytes[k])
        # Within one node, or without bytes, a tensor costs nothing anywhere.
        if len(members) > 1 and size > 0:
            entry = found.setdefault(members, [0.0, 0.0])
            entry[0] += size
            entry[1] += size * bool(problem.is_backward[producer])
    sizes = np.array(list(found.values())).reshape(-1, 2)
    return tuple(found), np.ascontiguousarray(sizes[:, 0]), np.ascontiguousarray(sizes[:, 1])
