"""The devices of a cluster as workers of a layer problem, and the links between their nodes."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np

from placewright.cluster.cluster import Cluster
from placewright.cluster.devices import Device
from placewright.layers.links import Link
from placewright.numerics.arrays import IntArray

INSIDE = Link.linear(4e9, 5e-5)
"""Inside a node with a single worker."""


class Workers:
    """The devices of a cluster as a layer problem numbers them.

    Attributes
    ----------
    degrees
        Tensor degrees: those that divide the number of workers, and the number of equal ones of
        a node: a host's CPU beside four GPUs keeps nobody from splitting layers over two or four.
    kinds, kind
        Names; the kind of every worker. Workers of a kind have equal costs.
    nodes, node
        Names; the node of every worker.
    on_cpus
        Whether no worker has a GPU.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.devices = cluster, cluster.devices
        count = len(self.devices)
        alike = [repr(replace(d, name="-", node="", memory_bytes=1.0)) for d in self.devices]
        first = [alike.index(text) for text in dict.fromkeys(alike)]
        names = [_kind(self.devices[k]) for k in first]
        self.kinds = tuple(
            name if names.count(name) == 1 else f"{name}, as {self.devices[k].name}"
            for k, name in zip(first, names, strict=True)
        )
        self.kind = np.array([first.index(alike.index(text)) for text in alike])
        self.nodes = tuple(dict.fromkeys(d.node for d in self.devices))
        self.node = np.array([self.nodes.index(d.node) for d in self.devices])
        equal = Counter(zip(self.kind.tolist(), self.node.tolist(), strict=True)).values()
        self.degrees = tuple(
            d for d in range(1, count + 1) if any(n % d == 0 for n in (count, *equal))
        )
        self.on_cpus = all(d.kind != "gpu" for d in self.devices)

    def node_pairs(self) -> list[tuple[int, int, int, int]]:
        """Pairs of nodes with their first workers; of a node with several its first two."""
        ranks: list[list[int]] = [[] for _ in self.nodes]
        for rank, node in enumerate(self.node):
            ranks[node].append(rank)
        return [
            (a, b, own[0], other[0 if a != b else 1])
            for a, own in enumerate(ranks)
            for b, other in enumerate(ranks)
            if a != b or len(own) > 1
        ]

    def described_links(self) -> tuple[tuple[Link, ...], IntArray]:
        """Links as the cluster's description has them, and which joins which nodes."""
        latency_s, per_byte, channel, _ = self.cluster.link_arrays()
        links = [INSIDE]
        index = np.where(np.eye(len(self.nodes), dtype=bool), 0, -1)
        for a, b, source, target in self.node_pairs():
            if not math.isfinite(per_byte[source, target]):
                continue
            between = np.ix_(self.node == a, self.node == b)
            joined = channel[between][np.isfinite(per_byte[between]) & (per_byte[between] > 0)]
            # Pairs of workers that send at once share a channel, or have one each.
            each = 1.0 / float(per_byte[source, target])
            shared = each * len(np.unique(joined))
            links.append(Link.linear(each, float(latency_s[source, target]), shared))
            index[a, b] = len(links) - 1
        return tuple(links), index


def _kind(device: Device) -> str:
    return f"{device.kind} x{device.cores} at {device.speed:g}"
