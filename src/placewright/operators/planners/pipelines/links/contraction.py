"""Throughput over links, made small for exact planners: what must be together is one node.

As `pipelines.contraction`, except that a tensor has a direction and that every pair of devices has
its own price. Tensors with the same producer and the same readers are added up, those of each pass
apart where passes do not mix.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.operators.planners.pipelines.contraction import node_edges, nodes_of, work_of
from placewright.operators.problem import Communication, OperatorProblem
from placewright.operators.structure.costs import linked


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
        return float(work + 2.0 * sends)

    def placement(self, device_of_node: IntArray) -> IntArray:
        """Shape (n,), the device of every operator."""
        return np.asarray(device_of_node, dtype=np.int64)[self.node]

    def of_nodes(self, placement: IntArray) -> IntArray:
        """Shape (N,), the device of every node under a placement that keeps them together."""
        device = np.empty(self.nodes, dtype=np.int64)
        device[self.node] = placement
        return device

    def loads_s(self, device: IntArray) -> FloatArray:
        """Shape (passes, m), loads of every device: compute and transfers on both of their ends."""
        nodes, load = np.arange(self.nodes), np.zeros((self.passes, self.devices))
        backward = self.backward_s[nodes, device]
        # With one pass rows 0 and -1 are the same.
        load[0] = np.bincount(device, self.work_s[nodes, device] - backward, self.devices)
        load[-1] += np.bincount(device, backward, self.devices)
        for k, readers in enumerate(self.readers):
            home = int(device[self.producer[k]])
            for d in sorted({*device[list(readers)].tolist()} - {home}):
                load[int(self.backward[k]), home] += self.send_s[k, home, d]
                load[int(self.backward[k]), d] += self.send_s[k, home, d]
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
    return Pairs(
        node=node,
        work_s=work,
        resident_bytes=np.bincount(node, np.ceil(problem.resident_bytes)).astype(np.float64),
        memory_bytes=np.floor(problem.memory_bytes),
        edges=node_edges(problem, node) if contiguous else np.zeros((0, 2), dtype=np.int64),
        producer=producer,
        readers=readers,
        send_s=send,
        alike=_alike(problem, np.concatenate([work, backward])),
        backward_s=backward,
        backward=made_backward,
        passes=1 + int(apart),
    )


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
    latency, per_byte = (np.where(pair, a, 0.0) for a in (p.latency_s, p.seconds_per_byte))
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
            if same and np.array_equal(links, links[:, swap][:, :, swap]):
                first[b] = first[a]
                break
    return first


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
