"""Star latency problems at the level of colocation groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.arrays import BoolArray, FloatArray, IntArray
from placewright.operators._groups import groups_of
from placewright.operators._star_latency import accelerators
from placewright.operators.problem import OperatorProblem


@dataclass(frozen=True, slots=True, eq=False)
class CallGraph:
    """What is placed as one, and what passes between.

    Blocks are colocation groups, and groups that lie on a cycle of groups together, numbered
    topologically. With b blocks, k accelerators and c CPUs (of CPUs that are alike the first):

    Attributes
    ----------
    block
        Shape (n,): block of every operator, -1 where it is left out.
    called, cpus
        Shape (k,), (c,): device indices.
    cpu_s
        Shape (c, n), seconds; ``inf`` where the operator's group cannot run.
    accelerator_s
        Shape (k, b), seconds in a call; ``inf`` where the block cannot run.
    resident_bytes
        Shape (b,), each operator's rounded up.
    exact
        Whether some best plan is one of this graph: no cycle had to be merged, and no group
        could gain from being split between calls.
    """

    problem: OperatorProblem
    block: IntArray
    blocks: int
    called: IntArray
    cpus: IntArray
    cpu_s: FloatArray
    accelerator_s: FloatArray
    resident_bytes: FloatArray
    exact: bool


def call_graph(problem: OperatorProblem, without: BoolArray | None = None) -> CallGraph:
    """The graph of blocks; operators of `without`, shape (n,), are left out."""
    groups = groups_of(problem)
    label = groups.group
    keep = np.ones(problem.n, dtype=np.bool_) if without is None else ~without
    component, acyclic = _components(len(groups.first), _arcs(problem, label, keep))
    block = np.where(keep, component[label], -1)
    used, block[keep] = np.unique(block[keep], return_inverse=True)
    cost = np.where(problem.allowed(), problem.compute_s, np.inf)
    called = np.flatnonzero(accelerators(problem))
    cpus = _unlike_cpus(problem, cost)
    accelerator_s = np.zeros((len(called), len(used)))
    np.add.at(accelerator_s.T, block[keep], cost[keep][:, called])
    resident = np.bincount(block[keep], np.ceil(problem.resident_bytes)[keep], len(used))
    return CallGraph(
        problem=problem,
        block=block,
        blocks=len(used),
        called=called,
        cpus=cpus,
        cpu_s=np.ascontiguousarray(cost[:, cpus].T),
        accelerator_s=accelerator_s,
        resident_bytes=resident.astype(np.float64),
        exact=acyclic and (problem.calls == 1 or _whole(problem, label)),
    )


def _unlike_cpus(problem: OperatorProblem, cost: FloatArray) -> IntArray:
    """Of CPUs with equal costs, the first."""
    cpus = np.flatnonzero(~accelerators(problem))
    _, first = np.unique(cost[:, cpus], axis=1, return_index=True)
    kept: IntArray = cpus[np.sort(first)] if len(cpus) else cpus
    return kept


def _whole(problem: OperatorProblem, label: IntArray) -> bool:
    """Whether no group gains from being split between calls.

    An operator that takes no time and whose tensors join it to its own group alone, all of them
    made by it or one of them read by it, may move into the call of its neighbour: that call gets
    no longer and a transfer is saved. So a group may count as one where one operator is left.
    """
    p = problem
    tensor = np.repeat(np.arange(p.t), np.diff(p.consumer_offsets))
    maker, reader = p.tensor_producer[tensor], p.consumers
    idle = (p.compute_s == 0.0).all(axis=1)
    reads, made = np.bincount(reader, minlength=p.n), np.bincount(maker, minlength=p.n)
    abroad = label[maker] != label[reader]
    idle[maker[abroad]] = idle[reader[abroad]] = False
    idle &= reads + made == 1
    left = np.bincount(label[~idle], minlength=int(label.max()) + 1)
    return bool((left <= 1).all())


def _arcs(problem: OperatorProblem, label: IntArray, keep: BoolArray) -> IntArray:
    """Shape (e, 2): pairs of unlike groups joined by a tensor, sorted."""
    tensor = np.repeat(np.arange(problem.t), np.diff(problem.consumer_offsets))
    maker, reader = problem.tensor_producer[tensor], problem.consumers
    both = keep[maker] & keep[reader] & (label[maker] != label[reader])
    pairs = np.stack([label[maker[both]], label[reader[both]]], axis=1)
    return np.unique(pairs, axis=0)


def _components(count: int, arcs: IntArray) -> tuple[IntArray, bool]:
    """Strongly connected components in topological order (Tarjan's algorithm, on a stack)."""
    after: list[list[int]] = [[] for _ in range(count)]
    for a, b in arcs.tolist():
        after[a].append(b)
    index, low = [-1] * count, [0] * count
    component = np.full(count, -1)
    stack: list[int] = []
    seen = found = 0
    for root in range(count - 1, -1, -1):
        if index[root] >= 0:
            continue
        path = [(root, 0)]
        while path:
            v, child = path.pop()
            if child == 0:
                index[v] = low[v] = seen
                seen += 1
                stack.append(v)
            else:
                low[v] = min(low[v], low[after[v][child - 1]])
            while child < len(after[v]):
                w = after[v][child]
                child += 1
                if index[w] < 0:
                    path.append((v, child))
                    path.append((w, 0))
                    break
                if component[w] < 0:
                    low[v] = min(low[v], index[w])
            else:
                if low[v] == index[v]:
                    while True:
                        w = stack.pop()
                        component[w] = found
                        if w == v:
                            break
                    found += 1
    return found - 1 - component, found == count
