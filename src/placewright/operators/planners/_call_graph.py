"""Star latency problems with one call per accelerator, at the level of colocation groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.arrays import BoolArray, FloatArray, IntArray
from placewright.operators._groups import Groups, groups_of
from placewright.operators._star_latency import accelerators
from placewright.operators.problem import OperatorProblem


@dataclass(frozen=True, slots=True, eq=False)
class CallGraph:
    """What is placed as one, and what passes between.

    Blocks are colocation groups, and groups that lie on a cycle of groups together, numbered
    topologically. With b blocks:

    Attributes
    ----------
    block
        Shape (n,): block of every operator, -1 where it is left out.
    cpu_s
        Shape (n,), seconds on a CPU; ``inf`` where none can run the operator's group.
    least_s
        Shape (n,), seconds where the operator is fastest.
    accelerator_s
        Shape (b,), seconds in a call; ``inf`` where no accelerator can run the block.
    resident_bytes
        Shape (b,).
    tensor_s
        Shape (t,): what an accelerator pays for a tensor each way.
    exact
        Whether every plan is one of this graph: no cycle had to be merged.
    """

    problem: OperatorProblem
    block: IntArray
    blocks: int
    cpu_s: FloatArray
    least_s: FloatArray
    accelerator_s: FloatArray
    resident_bytes: FloatArray
    tensor_s: FloatArray
    exact: bool


def alike(problem: OperatorProblem) -> str | None:
    """``None`` if CPUs are alike and accelerators are alike, else what differs."""
    allowed, called = problem.allowed(), accelerators(problem)
    cost = np.where(allowed, problem.compute_s, np.inf)
    for kind, at in (("accelerators", called), ("CPUs", ~called)):
        per_device = np.vstack(
            [cost[:, at], problem.memory_bytes[at], problem.host_seconds_per_byte[at]]
        )
        if per_device.shape[1] and (per_device != per_device[:, :1]).any():
            return f"{kind} differ from each other, or operators are pinned to one of them"
    if np.isfinite(problem.memory_bytes[~called]).any():
        return "a CPU has a memory limit"
    return None


def call_graph(problem: OperatorProblem, without: BoolArray | None = None) -> CallGraph:
    """The graph of blocks; operators of `without`, shape (n,), are left out."""
    groups = groups_of(problem)
    label = groups.group
    keep = np.ones(problem.n, dtype=np.bool_) if without is None else ~without
    arcs = _arcs(problem, label, keep)
    component, count, acyclic = _components(len(groups.first), arcs)
    block = np.where(keep, component[label], -1)
    used, block[keep] = np.unique(block[keep], return_inverse=True)
    cpu_s, own_s = _times(problem, groups)
    accelerator_s = np.zeros(len(used))
    np.add.at(accelerator_s, block[keep], own_s[keep])
    resident = np.bincount(block[keep], problem.resident_bytes[keep], len(used))
    called = accelerators(problem)
    per_byte = float(problem.host_seconds_per_byte[called].min()) if called.any() else 0.0
    return CallGraph(
        problem=problem,
        block=block,
        blocks=len(used),
        cpu_s=cpu_s,
        least_s=np.minimum(cpu_s, own_s),
        accelerator_s=accelerator_s,
        resident_bytes=resident.astype(np.float64),
        tensor_s=problem.tensor_bytes * per_byte,
        exact=acyclic,
    )


def _times(problem: OperatorProblem, groups: Groups) -> tuple[FloatArray, FloatArray]:
    """Shape (n,) each: seconds of every operator on a CPU and on an accelerator."""
    called = accelerators(problem)
    cost = np.where(groups.allowed[groups.group], problem.compute_s, np.inf)
    cpu_s: FloatArray = cost[:, ~called].min(axis=1, initial=np.inf)
    own_s: FloatArray = cost[:, called].min(axis=1, initial=np.inf)
    return cpu_s, own_s


def _arcs(problem: OperatorProblem, label: IntArray, keep: BoolArray) -> IntArray:
    """Shape (e, 2): pairs of unlike groups joined by a tensor, sorted."""
    tensor = np.repeat(np.arange(problem.t), np.diff(problem.consumer_offsets))
    maker, reader = problem.tensor_producer[tensor], problem.consumers
    both = keep[maker] & keep[reader] & (label[maker] != label[reader])
    pairs = np.stack([label[maker[both]], label[reader[both]]], axis=1)
    return np.unique(pairs, axis=0)


def _components(count: int, arcs: IntArray) -> tuple[IntArray, int, bool]:
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
    return found - 1 - component, found, found == count


def tails(graph: CallGraph) -> FloatArray:
    """Shape (n,): the least time from the start of each operator to the end."""
    p, t = graph.problem, graph.problem.topology
    tail = np.zeros(p.n)
    for i in t.order[::-1].tolist():
        for k in t.out_tensors[t.out_offsets[i] : t.out_offsets[i + 1]].tolist():
            readers = p.consumers[p.consumer_offsets[k] : p.consumer_offsets[k + 1]]
            tail[i] = max(tail[i], tail[readers].max(initial=0.0))
        tail[i] += graph.least_s[i] if graph.block[i] >= 0 else 0.0
    return tail


def critical_path(graph: CallGraph) -> float:
    """No plan is shorter: a call runs its operators one after another."""
    return float(tails(graph).max(initial=0.0))
