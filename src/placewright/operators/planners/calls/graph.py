"""Star latency problems at the level of colocation groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.operators.problem import OperatorProblem
from placewright.operators.simulation.star import accelerators
from placewright.operators.structure.groups import groups_of, strong_components


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

    def uses(self) -> tuple[IntArray, IntArray]:
        """Tensor and reading operator of every use between two blocks."""
        tensor, reader = self.problem.consumed, self.problem.consumers
        a, b = self.block[self.problem.tensor_producer[tensor]], self.block[reader]
        between = (a >= 0) & (b >= 0) & (a != b)
        return tensor[between], reader[between]

    def arcs(self) -> IntArray:
        """Shape (e, 2): pairs of blocks of which the first feeds the second, each once, sorted."""
        tensor, reader = self.uses()
        maker = self.problem.tensor_producer[tensor]
        return np.unique(np.stack([self.block[maker], self.block[reader]], axis=1), axis=0)


def call_graph(
    problem: OperatorProblem, without: BoolArray, joined: IntArray | None = None
) -> CallGraph:
    """The graph of blocks.

    `without`: shape (n,): operators that are left out.
    `joined`: shape (n,): numbers of blocks to begin with, each of whole groups; by default the
    groups.
    """
    label = groups_of(problem).group
    start = label if joined is None else np.unique(joined, return_inverse=True)[1]
    keep = ~without
    count = int(start.max()) + 1
    found = strong_components(count, _arcs(problem, start, keep), last_root_first=True)
    component = found.max() - found  # in topological order
    block = np.where(keep, component[start], -1)
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
        exact=int(found.max()) + 1 == count and (problem.calls == 1 or _whole(problem, label)),
    )


def _unlike_cpus(problem: OperatorProblem, cost: FloatArray) -> IntArray:
    """Of CPUs with equal costs, the first."""
    cpus = np.flatnonzero(~accelerators(problem))
    _, first = np.unique(cost[:, cpus], axis=1, return_index=True)
    kept: IntArray = cpus[np.sort(first)] if len(cpus) else cpus
    return kept


def _whole(problem: OperatorProblem, label: IntArray) -> bool:
    """Whether no group gains from being split between calls.

    Some operators that take no time may always follow a neighbour of their group into its call:

    - One without inputs whose one tensor has one reader: a transfer is saved.
    - One that reads one tensor and makes none: its input need not leave for it.
    - All readers of a tensor together, where they read nothing else and what they make is no
      larger than the tensor: their call brings out no more, and earlier.

    A group counts as one block where such steps join all of it.
    """
    p = problem
    idle = (p.compute_s == 0.0).all(axis=1)
    joined = np.arange(p.n)
    for i in np.flatnonzero(idle).tolist():
        mate = _followed(p, label, idle, i)
        if mate >= 0 and label[mate] == label[i]:
            joined[joined == joined[i]] = joined[mate]
    return len(np.unique(joined)) == len(np.unique(label))


def _followed(p: OperatorProblem, label: IntArray, idle: BoolArray, i: int) -> int:
    """The operator that i, which takes no time, may follow; -1 if that is not known."""
    t = p.topology
    inputs = t.read_by(i)
    made = t.made_by(i)
    if len(inputs) == 0 and len(made) == 1:
        readers = p.readers(made[0])
        return int(readers[0]) if len(readers) == 1 else -1
    if len(inputs) != 1:
        return -1
    readers = p.readers(inputs[0])
    reads = t.in_offsets[readers + 1] - t.in_offsets[readers]
    together = idle[readers] & (label[readers] == label[i]) & (reads == 1)
    brought = p.tensor_bytes[np.isin(p.tensor_producer, readers)].sum()
    follows = len(made) == 0 or (together.all() and brought <= p.tensor_bytes[inputs[0]])
    return int(p.tensor_producer[inputs[0]]) if follows else -1


def _arcs(problem: OperatorProblem, label: IntArray, keep: BoolArray) -> IntArray:
    """Shape (e, 2): pairs of different groups joined by a tensor, sorted."""
    tensor = problem.consumed
    maker, reader = problem.tensor_producer[tensor], problem.consumers
    both = keep[maker] & keep[reader] & (label[maker] != label[reader])
    pairs = np.stack([label[maker[both]], label[reader[both]]], axis=1)
    return np.unique(pairs, axis=0)
