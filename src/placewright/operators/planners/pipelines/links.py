"""Throughput over links as a mixed-integer program, on a problem that was made small for it.

*Small:* what must be together is one node.
As `pipelines.contraction`, except that a tensor has a direction and that every pair of devices has
its own price. Tensors with the same producer and the same readers are added up, those of each pass
apart where passes do not mix.

*The program:* x[v, d]: node v is on device d. Tensor k, made by a and read by R, is read on device
d where read[k, d] >= x[r, d] for r in R, and must then come from somewhere:

    sum over s of send[k, s, d] >= read[k, d] - x[a, d],     send[k, s, d] <= x[a, s].

In whole x these are the transfers of the judge. Every device and every channel has a load, which
is no more than the largest; where one thing runs at a time, all of them together have one. Where
passes do not mix, each has loads of its own and a largest one, and their sum is minimised.
Symmetric devices are ordered by pivots: the i-th pivot node may use the first i of them only; the
heaviest nodes of the start's devices are pivots. Where plans must be contiguous, position s of
the chain is a device (pos[s, d]), node v is at position s (at[v, s]), and for an edge (u, v) and
every j

    sum over s <= j of at[v, s]  <=  sum over s <= j of at[u, s],
    at[v, s] + pos[s, d] <= 1 + x[v, d].

Devices that could change places come in their own order then, instead of by pivots.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.operators.costs import linked
from placewright.operators.planners.pipelines.contraction import node_edges, nodes_of, work_of
from placewright.operators.planners.pipelines.slots import (
    TOLERANCE,
    UNITS,
    WHOLE,
    chosen,
    in_seconds,
    limit_memory,
    sorted_out,
)
from placewright.operators.problem import Communication, Links, OperatorProblem, Overlap
from placewright.planning.contract import Progress, silent
from placewright.solvers.programs import LinearProgram


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """What is left to decide: N nodes on m devices, H tensors between them.

    Attributes
    ----------
    node
        Shape (n,), node of every operator.
    work_s
        Shape (N, m), ``inf`` where not allowed.
    resident_bytes, memory_bytes
        Shape (N,) and (m,).
    edges
        Shape (E, 2), earlier and later node; empty unless contiguous.
    producer, readers
        Shape (H,), and the other nodes that read each tensor.
    send_s
        Shape (H, m, m), seconds from device to device; ``inf`` without a link.
    device_row, channel_row
        Shape (m,) and (m, m): to which load the work on a device counts, and a transfer between
        two. No transfer between linked devices counts where `send_s` is zero.
    loads
        How many loads a pass has; the largest is its period.
    alike
        Shape (m,), the first device that each could change places with.
    backward_s, backward
        Where passes do not mix: the backward part of `work_s`, and whether a tensor, shape (H,), is
        made in the backward pass; nothing of either elsewhere.
    passes
        2 where they do not mix, else 1.
    """

    node: IntArray
    work_s: FloatArray
    resident_bytes: FloatArray
    memory_bytes: FloatArray
    edges: IntArray
    producer: IntArray
    readers: tuple[tuple[int, ...], ...]
    send_s: FloatArray
    device_row: IntArray
    channel_row: IntArray
    loads: int
    alike: IntArray
    backward_s: FloatArray
    backward: BoolArray
    passes: int

    @property
    def nodes(self) -> int:
        """How many decisions are left."""
        return len(self.work_s)

    @property
    def devices(self) -> int:
        """How many devices there are."""
        return len(self.memory_bytes)

    @property
    def most_s(self) -> float:
        """No load is higher: all work where it is slowest and every transfer everywhere."""
        work = np.where(np.isfinite(self.work_s), self.work_s, 0.0).max(axis=1).sum()
        sends = np.where(np.isfinite(self.send_s), self.send_s, 0.0).sum()
        return float(work + sends)

    def placement(self, device_of_node: IntArray) -> IntArray:
        """Shape (n,), the device of every operator."""
        return np.asarray(device_of_node, dtype=np.int64)[self.node]

    def of_nodes(self, placement: IntArray) -> IntArray:
        """Shape (N,), the device of every node under a placement that keeps them together."""
        device = np.empty(self.nodes, dtype=np.int64)
        device[self.node] = placement
        return device

    def loads_s(self, device: IntArray) -> FloatArray:
        """Shape (passes, loads): compute of devices and transfers of channels."""
        nodes, row = np.arange(self.nodes), self.device_row[device]
        load, backward = np.zeros((self.passes, self.loads)), self.backward_s[nodes, device]
        # With one pass rows 0 and -1 are the same.
        load[0] = np.bincount(row, self.work_s[nodes, device] - backward, self.loads)
        load[-1] += np.bincount(row, backward, self.loads)
        for k, readers in enumerate(self.readers):
            home = int(device[self.producer[k]])
            for d in sorted({*device[list(readers)].tolist()} - {home}):
                load[int(self.backward[k]), self.channel_row[home, d]] += self.send_s[k, home, d]
        return load

    def value_s(self, device: IntArray) -> float:
        """The largest load, or the sum of the largest of each pass."""
        return float(self.loads_s(device).max(axis=1).sum())

    def fits(self, device: IntArray) -> bool:
        """Whether what lives on each device fits its memory."""
        held = np.bincount(device, self.resident_bytes, self.devices)
        return bool((held <= self.memory_bytes).all())


def contract_pairs(problem: OperatorProblem, *, contiguous: bool) -> Pairs:
    """The small problem; raises `InfeasibleError`: a node that no device can run."""
    node = nodes_of(problem, contiguous=contiguous)
    apart = problem.pipeline.diffmaxima
    work, backward = work_of(problem, node)
    backward = backward if apart else np.zeros_like(work)
    producer, readers, send, made_backward = _tensors(problem, node)
    device_row, channel_row = _rows(problem)
    return Pairs(
        node=node,
        work_s=work,
        resident_bytes=np.bincount(node, np.ceil(problem.resident_bytes)).astype(np.float64),
        memory_bytes=np.floor(problem.memory_bytes),
        edges=node_edges(problem, node) if contiguous else np.zeros((0, 2), dtype=np.int64),
        producer=producer,
        readers=readers,
        send_s=send,
        device_row=device_row,
        channel_row=channel_row,
        loads=1 + int(max(device_row.max(), channel_row.max())),
        alike=_alike(problem, np.concatenate([work, backward])),
        backward_s=backward,
        backward=made_backward,
        passes=1 + int(apart),
    )


def _rows(p: OperatorProblem) -> tuple[IntArray, IntArray]:
    """Shape (m,) and (m, m): the load of every device, and of every pair of devices."""
    pair = linked(p)
    if p.overlap is Overlap.SERIAL:  # the whole system does one thing at a time
        return np.zeros(p.m, dtype=np.int64), np.zeros((p.m, p.m), dtype=np.int64)
    of_pair = np.zeros((p.m, p.m), dtype=np.int64)
    if p.links is Links.CONTENDED:  # channels without a linked pair have no load
        of_pair[pair] = p.m + np.unique(p.channel[pair], return_inverse=True)[1]
    return np.arange(p.m), of_pair


def _tensors(
    p: OperatorProblem, node: IntArray
) -> tuple[IntArray, tuple[tuple[int, ...], ...], FloatArray, BoolArray]:
    """Makers, readers, seconds and passes, in the order of their first tensor."""
    pair = linked(p)
    backward = p.is_backward[p.tensor_producer] & p.pipeline.diffmaxima
    found: dict[tuple[int, tuple[int, ...], bool], list[float]] = {}
    for k in range(p.t):
        producer = int(node[p.tensor_producer[k]])
        some = p.readers(k)
        readers = tuple(sorted({*node[some].tolist()} - {producer}))
        if readers:
            entry = found.setdefault((producer, readers, bool(backward[k])), [0.0, 0.0])
            # Number and bytes of tensors are enough: a transfer's seconds are linear in both.
            entry[0] += 1.0
            entry[1] += float(p.tensor_bytes[k])
    sizes = np.array(list(found.values())).reshape(-1, 2)
    # With free links no transfer waits for another, and none has a part in the period.
    free = p.overlap is Overlap.PARALLEL and p.links is Links.FREE
    counts = pair & (not free)
    latency, per_byte = (np.where(counts, a, 0.0) for a in (p.latency_s, p.seconds_per_byte))
    send: FloatArray = sizes[:, 0, None, None] * latency + sizes[:, 1, None, None] * per_byte
    send[:, ~(pair | np.eye(p.m, dtype=np.bool_))] = np.inf
    producers = np.array([a for a, _, _ in found], dtype=np.int64)
    made_backward = np.array([x for _, _, x in found], dtype=np.bool_)
    return producers, tuple(readers for _, readers, _ in found), send, made_backward


def _alike(p: OperatorProblem, work: FloatArray) -> IntArray:
    """The first device whose exchange with this one changes no price."""
    links = np.stack([p.latency_s, p.seconds_per_byte, (p.channel >= 0).astype(np.float64)])
    first = np.arange(p.m)
    for b in range(p.m):
        for a in range(b):
            swap = np.arange(p.m)
            swap[[a, b]] = b, a
            same = np.array_equal(work[:, a], work[:, b])
            same = same and p.memory_bytes[a] == p.memory_bytes[b]
            # Exchanging b with any earlier device is enough: exchanges make up all permutations.
            same = same and np.array_equal(links, links[:, swap][:, :, swap])
            if same and _renamed(p.channel, p.channel[swap][:, swap]):
                first[b] = first[a]
                break
    return first


def _renamed(channel: IntArray, other: IntArray) -> bool:
    """Whether pairs of devices share channels in both alike."""
    pairs = np.unique(np.stack([channel.ravel(), other.ravel()]), axis=1)
    return all(len(np.unique(side)) == pairs.shape[1] for side in pairs)


def star_stand_in(problem: OperatorProblem) -> OperatorProblem:
    """The same operators; a tensor's bytes are its mean seconds on a link.

    A device pays for them at the rate of its own links, relative to the mean of all.
    """
    pair = linked(problem)
    if not pair.any():
        return problem.replace(communication=Communication.STAR)
    mean_bytes = float(problem.tensor_bytes.mean()) if problem.t else 0.0
    latency = np.where(pair, problem.latency_s, 0.0)
    per_byte = np.where(pair, problem.seconds_per_byte, 0.0)
    took = latency + mean_bytes * per_byte
    count = np.maximum((pair | pair.T).sum(axis=0), 1)
    own = (took + took.T).sum(axis=0) / count / 2
    mean = float(took[pair].mean())
    return problem.replace(
        communication=Communication.STAR,
        tensor_bytes=latency[pair].mean() + problem.tensor_bytes * per_byte[pair].mean(),
        host_seconds_per_byte=own / mean if mean > 0 else np.zeros(problem.m),
    )


MOST_SENDS = 60_000
"""Variables for transfers; larger models are left to others."""


def too_large(c: Pairs) -> bool:
    """Whether the program would have too many variables to be of use."""
    sends = c.send_s.size if c.send_s.any() else 0
    return sends > MOST_SENDS or c.nodes * c.devices > MOST_SENDS


def best_pairs(
    c: Pairs,
    start: IntArray | None,
    *,
    seed: int,
    deadline_s: float,
    progress: Progress = silent,
) -> tuple[IntArray | None, float, bool]:
    """Devices of the nodes, shape (N,), or ``None``; a lower bound in seconds; was it interrupted.

    `start`: a plan that fits, devices of the nodes.
    """
    value_s = c.most_s if start is None else c.value_s(start)
    if value_s <= 0.0 or time.perf_counter() >= deadline_s:
        return None, 0.0, False
    program = _build(c, start, value_s, seed)
    found = program.solve(deadline_s, progress=in_seconds(progress, value_s))
    bound = max(0.0, found.bound - 10 * TOLERANCE) * value_s / UNITS
    return chosen(found), bound, found.interrupted


def _build(c: Pairs, start: IntArray | None, value_s: float, seed: int) -> LinearProgram:
    """The program; block ``x`` has a column for every node and device."""
    program, scale = LinearProgram(seed=seed, tolerance=WHOLE), UNITS / value_s
    largest = program.columns(c.passes, high=UNITS * (1 + 1e-6), cost=1.0)
    # What alone takes longer than the start is in no better plan.
    allowed = c.work_s <= value_s * (1 + 1e-9)
    if start is not None and len(c.edges):
        # One way of breaking the symmetry of like devices, never both: the start must stay a
        # solution.
        start = ascending(c, start)
    elif start is not None:
        start, later = sorted_out(c.work_s, c.alike, start)
        allowed &= ~later
    x = program.columns(allowed.shape, high=1.0, whole=True, where=allowed, name="x")
    program.enter(program.rows(c.nodes, 1.0, 1.0)[:, None], x, 1.0)
    load = program.rows((c.passes, c.loads), high=0.0)
    program.enter(load, largest[:, None], -1.0)
    work, backward = (np.where(allowed, all_s, 0.0) * scale for all_s in (c.work_s, c.backward_s))
    program.enter(load[0, c.device_row], x, work - backward)
    program.enter(load[-1, c.device_row], x, backward)
    if c.send_s.any():
        _send(c, program, load[c.backward.astype(np.int64)], x, scale)
    limit_memory(program, x, c.resident_bytes, c.memory_bytes)
    if start is not None:
        program.start(x, start[:, None] == np.arange(c.devices))
    if len(c.edges):
        _chain(c, program, x, start)
    return program


def _readers(c: Pairs) -> tuple[IntArray, IntArray]:
    """Tensor and reader of every pair of them."""
    counts = [len(some) for some in c.readers]
    flat = [r for some in c.readers for r in some]
    return np.repeat(np.arange(len(counts)), counts), np.array(flat, dtype=np.int64)


def _send(c: Pairs, program: LinearProgram, load: IntArray, x: IntArray, scale: float) -> None:
    """Transfers of every tensor from device to device."""
    (k, r), home, m = _readers(c), x[c.producer], c.devices
    on, only = np.zeros(home.shape, dtype=np.int64), np.full(home.shape, -1)
    np.add.at(on, k, x[r] >= 0)
    np.maximum.at(only, k, x[r])
    # A column no less than those of all readers; one reader's own says whether it reads there.
    read = program.columns(home.shape, high=1.0, where=on > 1)
    rows = program.rows(x[r].shape, low=0.0, where=(x[r] >= 0) & (read[k] >= 0))
    program.enter(rows, read[k], 1.0)
    program.enter(rows, x[r], -1.0)
    read = np.where(read >= 0, read, only)
    # What alone takes longer than the start is in no better plan.
    there = (c.send_s * scale <= UNITS * (1 + 1e-9)) & ~np.eye(m, dtype=np.bool_)
    there &= (home >= 0)[:, :, None] & (read >= 0)[:, None, :]
    send = program.columns(there.shape, high=1.0, where=there)
    rows = program.rows(there.shape, high=0.0, where=there)
    program.enter(rows, send, 1.0)
    program.enter(rows, home[:, :, None], -1.0)
    program.enter(load[:, c.channel_row], send, np.where(there, c.send_s, 0.0) * scale)
    arrives = program.rows(home.shape, low=0.0, where=read >= 0)
    program.enter(arrives[:, None, :], send, 1.0)
    program.enter(arrives, home, 1.0)
    program.enter(arrives, read, -1.0)


def _chain(c: Pairs, program: LinearProgram, x: IntArray, start: IntArray | None) -> None:
    """Positions in the chain, and which device is where."""
    m = c.devices
    at = program.columns((c.nodes, m), high=1.0, whole=True)
    held = program.columns((m, m), high=1.0, whole=True)  # by position, then by device
    for each in (at, held, held.T):
        program.enter(program.rows(len(each), 1.0, 1.0)[:, None], each, 1.0)
    # Sums over positions up to j rather than one row per pair: the relaxation is tighter.
    early = np.arange(m) <= np.arange(m - 1)[:, None]
    rows = program.rows((len(c.edges), m - 1, 1), high=0.0)
    for nodes, sign in zip(c.edges.T, (-1.0, 1.0), strict=True):
        program.enter(rows, at[nodes][:, None, :], sign * early)
    rows = program.rows((c.nodes, m, m), high=1.0)
    program.enter(rows, at[:, :, None], 1.0)
    program.enter(rows, held, 1.0)
    program.enter(rows, x[:, None, :], -1.0)
    for d in range(m):
        before = np.flatnonzero(c.alike[:d] == c.alike[d])
        if len(before):
            rows = program.rows((m - 1, 1), low=0.0)
            program.enter(rows, held[:, before[-1]], early)
            program.enter(rows, held[:, d], -1.0 * early)
    if start is not None:
        order = chain_of(c, start)
        program.start(held, order[:, None] == np.arange(m))
        program.start(at, np.argsort(order)[start][:, None] == np.arange(m))


def chain_of(c: Pairs, device: IntArray) -> IntArray:
    """Shape (m,), the devices of a contiguous plan in the order of their chain.

    Of those that are free to be next, the first in input order; like devices are not sorted.
    """
    ahead = np.zeros((c.devices, c.devices), dtype=np.bool_)
    source, target = device[c.edges[:, 0]], device[c.edges[:, 1]]
    ahead[source[source != target], target[source != target]] = True
    left, order = list(range(c.devices)), list[int]()
    while left:
        free = [d for d in left if not ahead[left, d].any()]
        order.append((free or left)[0])
        left.remove(order[-1])
    return np.array(order, dtype=np.int64)


def ascending(c: Pairs, device: IntArray) -> IntArray:
    """The same contiguous plan with like devices in their own order along the chain."""
    new = np.arange(c.devices)
    order = chain_of(c, device)
    for kind in np.unique(c.alike).tolist():
        along = [d for d in order.tolist() if c.alike[d] == kind]
        new[along] = sorted(along)
    return new[device]
