"""Star latency problems as graphs of colocation groups, and the ideals of their blocks.

An ideal is a set closed under predecessors; with each come the least times behind it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.numerics.by_reference import by_reference
from placewright.operators.costs import groups_of, strong_components
from placewright.operators.planners.pipelines.contraction import depth_first_order
from placewright.operators.problem import OperatorProblem
from placewright.operators.simulation.star import accelerators


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


@by_reference
class Lattice(NamedTuple):
    """Ideals by size, from the empty one to the whole graph.

    With l ideals, b blocks, t tensors:

    Attributes
    ----------
    member
        Shape (l, b).
    up_offsets, up_ideal, up_block
        CSR: the ideals with one block more, and that block.
    accelerator_s
        Shape (k, l), sums over the ideal's blocks but those that the accelerator cannot run.
    refused
        Shape (k, l): how many of the ideal's blocks the accelerator cannot run.
    resident_bytes
        Shape (l,).
    front_offsets, front
        CSR: the tensors that cross the ideal's border.
    tail_s
        One row per entry of `front`, shape (_, k + 1): the least time from the tensor to the
        end, by how many accelerators' memory is left.
    least_tail_s
        Its last column, where all memory is left.
    later_offsets, later
        ``later[later_offsets[x] + i * w + j]`` for w tensors on the border of x: whether all that
        waits for tensor i also waits for tensor j.
    tensor_block, tensor_bytes
        Shape (t,).
    reader_offsets, reader
        CSR: blocks outside a tensor's own that read it.
    op_offsets, op
        CSR: the operators of each block, in topological order.
    producer, in_offsets, in_tensors
        As in the problem and its topology.
    """

    member: BoolArray
    up_offsets: IntArray
    up_ideal: IntArray
    up_block: IntArray
    accelerator_s: FloatArray
    refused: IntArray
    resident_bytes: FloatArray
    front_offsets: IntArray
    front: IntArray
    tail_s: FloatArray
    least_tail_s: FloatArray
    later_offsets: IntArray
    later: BoolArray
    tensor_block: IntArray
    tensor_bytes: FloatArray
    reader_offsets: IntArray
    reader: IntArray
    op_offsets: IntArray
    op: IntArray
    producer: IntArray
    in_offsets: IntArray
    in_tensors: IntArray


def predecessors(graph: CallGraph) -> list[int]:
    """Bit sets: the blocks that feed each block."""
    before = [0] * graph.blocks
    for a, b in graph.arcs().tolist():
        before[b] |= 1 << a
    return before


def ideals(before: Sequence[int], most: int) -> list[int] | None:
    """All ideals as bit sets by size, ``None`` if there are more than `most`."""
    after: list[list[int]] = [[] for _ in before]
    for b, fed in enumerate(before):
        for a in _bits(fed):
            after[a].append(b)
    level = {0: tuple(b for b, fed in enumerate(before) if not fed)}
    found = [0]
    while level:
        grown: dict[int, tuple[int, ...]] = {}
        for ideal, ready in level.items():
            for b in ready:
                larger = ideal | 1 << b
                if larger in grown:
                    continue
                new = (c for c in after[b] if not before[c] & ~larger)
                grown[larger] = (*(c for c in ready if c != b), *new)
        found += sorted(grown)
        if len(found) > most:
            return None
        level = grown
    return found


def line(graph: CallGraph) -> list[int]:
    """The ideals of one depth-first topological order: a chain of blocks + 1 ideals."""
    order = depth_first_order(graph.blocks, graph.arcs(), last_first=False).tolist()
    return list(accumulate((1 << b for b in order), initial=0))


def _bits(value: int) -> list[int]:
    found = []
    while value:
        low = value & -value
        found.append(low.bit_length() - 1)
        value ^= low
    return found


def lattice(graph: CallGraph, sets: Sequence[int], deadline_s: float = math.inf) -> Lattice:
    """The kernel's arrays of the ideals `sets`, by size.

    Raises `TimeoutError`: ``time.perf_counter()`` has passed `deadline_s`.
    """
    member = _members(sets, graph.blocks)
    tensor_block = graph.block[graph.problem.tensor_producer]
    reader_offsets, reader = _readers(graph)
    ideal, front = np.nonzero(_crossing(member, tensor_block, reader_offsets, reader))
    front_offsets = np.searchsorted(ideal, np.arange(len(sets) + 1))
    tail_s, later_offsets, later = _borders(graph, member, front_offsets, front, deadline_s)
    runs = np.isfinite(graph.accelerator_s)
    return Lattice(
        member,
        *_covers(sets, member, predecessors(graph)),
        np.where(runs, graph.accelerator_s, 0.0) @ member.T,
        (~runs).astype(np.int64) @ member.T.astype(np.int64),
        member @ graph.resident_bytes,
        front_offsets,
        np.ascontiguousarray(front),  # of `nonzero`: strided, but where there are few
        tail_s,
        np.ascontiguousarray(tail_s[:, -1]),
        later_offsets,
        later,
        tensor_block,
        graph.problem.tensor_bytes,
        reader_offsets,
        reader,
        *_operators(graph),
        graph.problem.tensor_producer,
        graph.problem.topology.in_offsets,
        graph.problem.topology.in_tensors,
    )


def _members(sets: Sequence[int], blocks: int) -> BoolArray:
    """The sets as rows of booleans."""
    width = (blocks + 7) // 8
    raw = np.frombuffer(b"".join(s.to_bytes(width, "little") for s in sets), dtype=np.uint8)
    bits = np.unpackbits(raw.reshape(len(sets), width), axis=1, bitorder="little")
    return np.ascontiguousarray(bits[:, :blocks].astype(np.bool_))


def _readers(graph: CallGraph) -> tuple[IntArray, IntArray]:
    """CSR: blocks outside a tensor's own that read it."""
    b = max(1, graph.blocks)
    tensor, reader = graph.uses()
    pairs = np.unique(tensor * b + graph.block[reader])
    return np.searchsorted(pairs // b, np.arange(graph.problem.t + 1)), pairs % b


def _crossing(
    member: BoolArray, tensor_block: IntArray, reader_offsets: IntArray, reader: IntArray
) -> BoolArray:
    """Shape (l, t): made inside, read outside."""
    tensors = len(tensor_block)
    read_outside = np.zeros((len(member), tensors), dtype=np.bool_)
    for k in range(tensors):
        for a in range(reader_offsets[k], reader_offsets[k + 1]):
            read_outside[:, k] |= ~member[:, reader[a]]
    made: BoolArray = member[:, np.maximum(tensor_block, 0)] & (tensor_block >= 0)
    return made & read_outside


def _later(graph: CallGraph, tensors: IntArray, deadline_s: float) -> BoolArray:
    """Shape (t, n): whether an operator waits for a tensor (only the rows of `tensors`)."""
    p, t = graph.problem, graph.problem.topology
    # Reachability, readers before producers.
    below = np.eye(p.n, dtype=np.bool_)
    for i in t.order[::-1].tolist():
        _look_at_the_clock(deadline_s)
        for k in t.made_by(i).tolist():
            readers = p.readers(k)
            below[i] |= below[readers].any(axis=0)
    waits = np.zeros((p.t, p.n), dtype=np.bool_)
    for k in tensors.tolist():
        readers = p.readers(k)
        waits[k] = below[readers].any(axis=0)
    return waits


def _borders(
    graph: CallGraph,
    member: BoolArray,
    front_offsets: IntArray,
    front: IntArray,
    deadline_s: float,
) -> tuple[FloatArray, IntArray, BoolArray]:
    """`tail_s`, `later_offsets` and `later` of the lattice."""
    tensor, reader = graph.uses()
    use_offsets = np.searchsorted(tensor, np.arange(graph.problem.t + 1))
    uses = [reader[use_offsets[k] : use_offsets[k + 1]] for k in range(graph.problem.t)]
    blocks = [graph.block[ops] for ops in uses]
    tail, waits = tails(graph, deadline_s), _later(graph, np.unique(front), deadline_s)

    # Of a tensor, few sets of readers are ever done: what the others wait for is looked up.
    @cache
    def left(k: int, done: bytes) -> tuple[IntArray, FloatArray]:
        ops = uses[k][~np.frombuffer(done, dtype=np.bool_)]
        return ops, tail[ops].max(axis=0)

    @cache
    def wait(j: int, k: int, done: bytes) -> bool:
        return bool(waits[j, left(k, done)[0]].all())

    tail_s, later = np.zeros((len(front), tail.shape[1])), list[bool]()
    for x, inside in enumerate(member):
        _look_at_the_clock(deadline_s)
        on = front[front_offsets[x] : front_offsets[x + 1]].tolist()
        done = [inside[blocks[k]].tobytes() for k in on]
        for at, k in enumerate(on):
            tail_s[front_offsets[x] + at] = left(k, done[at])[1]
            later += [wait(j, k, done[at]) for j in on]
    later_offsets = np.cumsum([0, *(np.diff(front_offsets) ** 2)])
    return tail_s, later_offsets, np.array(later, dtype=np.bool_)


def _covers(
    sets: Sequence[int], member: BoolArray, before: Sequence[int]
) -> tuple[IntArray, IntArray, IntArray]:
    """CSR: the ideals of `sets` that have one block more."""
    index = {ideal: x for x, ideal in enumerate(sets)}
    found: list[tuple[int, int, int]] = []
    for b, fed in enumerate(before):
        ready = ~member[:, b] & member[:, _bits(fed)].all(axis=1)
        for x in np.flatnonzero(ready).tolist():
            up = index.get(sets[x] | 1 << b)
            if up is not None:
                found.append((x, up, b))
    table = np.array(sorted(found), dtype=np.int64).reshape(-1, 3)
    offsets = np.searchsorted(table[:, 0], np.arange(len(sets) + 1))
    return offsets, np.ascontiguousarray(table[:, 1]), np.ascontiguousarray(table[:, 2])


def _operators(graph: CallGraph) -> tuple[IntArray, IntArray]:
    order = graph.problem.topology.order
    order = order[graph.block[order] >= 0]
    by = np.argsort(graph.block[order], kind="stable")
    return np.searchsorted(graph.block[order][by], np.arange(graph.blocks + 1)), order[by]


def _look_at_the_clock(deadline_s: float) -> None:
    if time.perf_counter() > deadline_s:
        raise TimeoutError


def tails(graph: CallGraph, deadline_s: float) -> FloatArray:
    """Shape (n, k + 1): entry [i, r] with the memory of r accelerators (the largest) left.

    A path takes at least the sum of its operators' times where each is fastest. With little memory
    left not all can be there: those that are faster on an accelerator than on a CPU, and that have
    bytes, must share it. Choosing which is a knapsack, and its relaxation to fractions (most time
    saved per byte first) a bound. Without any memory, what has bytes runs on a CPU.

    Raises `TimeoutError`: ``time.perf_counter()`` has passed `deadline_s`.
    """
    p, t = graph.problem, graph.problem.topology
    cost = np.where(p.allowed(), p.compute_s, np.inf)
    fast, slow = cost.min(axis=1), graph.cpu_s.min(axis=0, initial=np.inf)
    largest = np.floor(p.memory_bytes[graph.called]).max(initial=0.0)
    room = np.append(0.0, largest * np.arange(1, len(graph.called) + 1))  # also of ``inf`` bytes
    follows = _followers(graph, fast)
    result = np.zeros((p.n, len(room)))
    # A path is kept until all that it follows are done: all paths of a chain take n^2 / 2 numbers.
    uses = np.bincount(follows[follows >= 0], minlength=p.n)
    paths: dict[int, IntArray] = {-1: np.zeros(0, dtype=np.int64)}
    for i in t.order[::-1].tolist():
        _look_at_the_clock(deadline_s)
        if graph.block[i] < 0:
            continue
        after = int(follows[i])
        paths[i] = np.append(paths[after], i)
        result[i] = _knapsack(graph, paths[i], fast, slow, room)
        if after >= 0:
            uses[after] -= 1
        for j in (i, after):
            if j >= 0 and uses[j] == 0:
                del paths[j]
    return np.maximum(result, 0.0)


def _followers(graph: CallGraph, fast: FloatArray) -> IntArray:
    """Shape (n,): the next operator on the longest path, -1 at the end."""
    p, t = graph.problem, graph.problem.topology
    tail, follows = np.zeros(p.n), np.full(p.n, -1)
    for i in t.order[::-1].tolist():
        for k in t.made_by(i).tolist():
            for j in p.readers(k).tolist():
                if graph.block[j] >= 0 and (follows[i] < 0 or tail[j] > tail[follows[i]]):
                    follows[i] = j
        tail[i] = fast[i] + (tail[follows[i]] if follows[i] >= 0 else 0.0)
    return follows


def _knapsack(
    graph: CallGraph, path: IntArray, fast: FloatArray, slow: FloatArray, room: FloatArray
) -> FloatArray:
    """Shape (len(room),): the least time of a path."""
    block, first = np.unique(graph.block[path], return_inverse=True)
    saved = np.bincount(first, slow[path] - fast[path], len(block))
    need = graph.resident_bytes[block]
    # Blocks that only accelerators can run, or that need no memory, are at their fastest anyhow.
    tight = np.isfinite(saved) & (saved > 0) & (need > 0)
    by = np.argsort(-saved[tight] / need[tight], kind="stable")
    held = np.append(0.0, np.cumsum(need[tight][by]))
    gained = np.append(0.0, np.cumsum(saved[tight][by]))
    # The fractional knapsack: its greedy gain is a concave line through the sums by density.
    least: FloatArray = fast[path].sum() + gained[-1] - np.interp(room, held, gained)
    return least * (1 - 1e-12)
