"""Throughput over links, made small for exact planners: what must be together is one node.

As `_contraction`, except that a tensor has a direction and that every pair of devices has its own
price. Tensors with the same maker and the same readers are added up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.arrays import FloatArray, IntArray
from placewright.operators.planners._contraction import node_edges, nodes_of, work_of
from placewright.operators.problem import OperatorProblem


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
    maker, readers
        Shape (H,), and the other nodes that read each tensor.
    send_s
        Shape (H, m, m), seconds from device to device; ``inf`` without a link.
    alike
        Shape (m,), the first device that each could change places with.
    """

    node: IntArray
    work_s: FloatArray
    resident_bytes: FloatArray
    memory_bytes: FloatArray
    edges: IntArray
    maker: IntArray
    readers: tuple[tuple[int, ...], ...]
    send_s: FloatArray
    alike: IntArray

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
        """Shape (m,), the load of every device: compute and transfers on both of their ends."""
        load = np.bincount(device, self.work_s[np.arange(self.nodes), device], self.devices)
        for k, readers in enumerate(self.readers):
            home = device[self.maker[k]]
            for d in np.unique(device[list(readers)]):
                if d != home:
                    load[home] += self.send_s[k, home, d]
                    load[d] += self.send_s[k, home, d]
        return load.astype(np.float64)

    def fits(self, device: IntArray) -> bool:
        """Whether what lives on each device fits its memory."""
        held = np.bincount(device, self.resident_bytes, self.devices)
        return bool((held <= self.memory_bytes).all())


def contract_pairs(problem: OperatorProblem, *, contiguous: bool) -> Pairs:
    """The small problem.

    Raises
    ------
    InfeasibleError
        A node that no device can run.
    """
    node = nodes_of(problem, contiguous=contiguous)
    work = work_of(problem, node)
    maker, readers, send = _tensors(problem, node)
    return Pairs(
        node=node,
        work_s=work,
        resident_bytes=np.bincount(node, np.ceil(problem.resident_bytes)).astype(np.float64),
        memory_bytes=np.floor(problem.memory_bytes),
        edges=node_edges(problem, node) if contiguous else np.zeros((0, 2), dtype=np.int64),
        maker=maker,
        readers=readers,
        send_s=send,
        alike=_alike(problem, work),
    )


def _tensors(
    p: OperatorProblem, node: IntArray
) -> tuple[IntArray, tuple[tuple[int, ...], ...], FloatArray]:
    """Makers, readers and seconds, in the order of their first tensor."""
    linked = (p.channel >= 0) & np.isfinite(p.latency_s + p.seconds_per_byte)
    found: dict[tuple[int, tuple[int, ...]], list[float]] = {}
    for k in range(p.t):
        maker = int(node[p.tensor_producer[k]])
        some = p.consumers[p.consumer_offsets[k] : p.consumer_offsets[k + 1]]
        readers = tuple(sorted({*node[some].tolist()} - {maker}))
        if readers:
            entry = found.setdefault((maker, readers), [0.0, 0.0])
            entry[0] += 1.0
            entry[1] += float(p.tensor_bytes[k])
    sizes = np.array(list(found.values())).reshape(-1, 2)
    latency, per_byte = (np.where(linked, a, 0.0) for a in (p.latency_s, p.seconds_per_byte))
    send: FloatArray = sizes[:, 0, None, None] * latency + sizes[:, 1, None, None] * per_byte
    send[:, ~(linked | np.eye(p.m, dtype=np.bool_))] = np.inf
    makers = np.array([a for a, _ in found], dtype=np.int64)
    return makers, tuple(readers for _, readers in found), send


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
            if same and np.array_equal(links, links[:, swap][:, :, swap]):
                first[b] = first[a]
                break
    return first
