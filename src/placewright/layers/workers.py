"""The devices of a cluster as workers of a layer problem, and the links between their nodes."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import InputError
from placewright.io.arguments import Unlimited, checked
from placewright.numerics.arrays import FloatArray, IntArray, axes, freeze_arrays

if TYPE_CHECKING:
    from placewright.cluster.cluster import Cluster, Device


@checked
@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """Measured or computed times of messages that several pairs of workers send at once.

    The times of one row are those of pairs that share whatever the two ends have in common (a
    network card, a bus): with one card per worker all rows are equal, with one card per node
    row p is p times as long as row 1 for large messages.

    Attributes
    ----------
    pairs
        Shape (p,): numbers of pairs that send at once, ascending.
    message_bytes
        Shape (k,): what *each* pair sends, ascending.
    message_s
        Shape (p, k): seconds until all of them have it. Between the sizes it is interpolated,
        above the largest the last bandwidth holds, below the smallest the first time.
    """

    pairs: IntArray = field(metadata=axes("p"))
    message_bytes: FloatArray = field(metadata=axes("k"))
    message_s: FloatArray = field(metadata=axes("pk"))

    def __post_init__(self) -> None:
        freeze_arrays(self)
        shape = (len(self.pairs), len(self.message_bytes))
        if self.message_s.shape != shape or 0 in shape:
            raise InputError(
                "message_s needs a row per number of pairs and a column per size",
                where="link",
                by=f"{self.message_s.shape}, expected {shape}",
            )
        ascending = (np.diff(self.message_bytes) > 0).all() and (np.diff(self.pairs) > 0).all()
        if not ascending or self.pairs[0] < 1 or not (self.message_s >= 0).all():
            raise InputError(
                "a link needs times >= 0, of ascending sizes and ascending numbers of pairs",
                where="link",
                by=f"sizes {self.message_bytes.tolist()}, pairs {self.pairs.tolist()}",
            )

    @staticmethod
    @checked
    def linear(
        bandwidth: Unlimited, latency_s: float = 0.0, shared_bandwidth: float = float("inf")
    ) -> Link:
        """Of `bandwidth` bytes/s per pair; all pairs together get `shared_bandwidth`."""
        pairs = np.array([1, 2, 4, 8, 16, 32, 64])
        sizes = np.array([0.0, 1.0])
        each = np.minimum(bandwidth, shared_bandwidth / pairs)
        return Link(pairs, sizes, latency_s + sizes / each[:, None])

    def seconds(self, each_bytes: float, pairs: float = 1) -> float:
        """Seconds of a message of `each_bytes` per pair, `pairs` of them at once; 0 of no bytes."""
        return float(self.times(np.array([each_bytes]), pairs)[0])

    def times(self, each_bytes: FloatArray, pairs: float = 1) -> FloatArray:
        """`seconds` of many sizes; between measured numbers of pairs it is interpolated."""
        row, sent = int(np.searchsorted(self.pairs, pairs)), each_bytes
        if row == len(self.pairs):  # more than any row has: the last one's bytes per second
            row, sent = row - 1, each_bytes * (pairs / float(self.pairs[-1]))
        found = self._of_row(row, sent)
        if row > 0 and pairs < self.pairs[row]:
            few, many = (float(n) for n in self.pairs[row - 1 : row + 1])
            below = self._of_row(row - 1, sent)
            found = below + (found - below) * ((pairs - few) / (many - few))
        return np.asarray(np.where(each_bytes > 0, found, 0.0), dtype=np.float64)

    def _of_row(self, row: int, sent: FloatArray) -> FloatArray:
        sizes, table = self.message_bytes, self.message_s[row]
        found = np.interp(sent, sizes, table)
        if len(sizes) > 1:
            over = sent > sizes[-1]
            if sizes[-2] == 0.0:  # a straight line: latency and bandwidth
                beyond = table[0] + (table[1] - table[0]) * sent / sizes[1]
            else:
                beyond = table[-1] * sent / sizes[-1]
            found = np.where(over, beyond, found)
        return np.asarray(found, dtype=np.float64)


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
        """Links as the cluster's description has them, and which joins which nodes.

        Any two workers of the nodes may be those that send: times are those of the slowest pair,
        and there is no link where a pair has none.
        """
        latency_s, per_byte, channel, _ = self.cluster.link_arrays()
        links = [INSIDE]
        index = np.where(np.eye(len(self.nodes), dtype=bool), 0, -1)
        for a, b, _, _ in self.node_pairs():
            between = np.ix_(self.node == a, self.node == b)
            pairs = np.not_equal.outer(*(np.flatnonzero(self.node == node) for node in (a, b)))
            slowest = float(per_byte[between][pairs].max())
            if not math.isfinite(slowest):
                index[a, b] = -1
                continue
            # Pairs of workers that send at once share a channel, or have one each.
            shared = len(np.unique(channel[between][pairs])) / slowest
            delay_s = float(latency_s[between][pairs].max())
            links.append(Link.linear(1.0 / slowest, delay_s, shared))
            index[a, b] = len(links) - 1
        return tuple(links), index


def _kind(device: Device) -> str:
    return f"{device.kind} x{device.cores} at {device.speed:g}"
