"""Messages between nodes, and ring collectives among workers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from placewright.errors import InputError
from placewright.layers.links import Link
from placewright.layers.problem import LayerProblem
from placewright.numerics.arrays import FloatArray


def ring_s(
    p: LayerProblem,
    members: Sequence[int],
    each_bytes: float,
    passes: int,
    rings: int = 1,
    bucket_bytes: float = math.inf,
) -> float:
    """Seconds of a ring collective (Patarasuk and Yuan, doi 10.1016/j.jpdc.2008.09.002).

    All-reduce has two passes over the ring, all-gather and reduce-scatter one; each pass is
    ``g - 1`` messages of ``each_bytes / g`` from every member to the next, as slow as the slowest
    link. `rings` of them run at once over the same network cards.
    """
    sent = np.array([each_bytes])
    return float(ring_times(p, members, sent, passes, rings, bucket_bytes)[0])


def ring_times(
    p: LayerProblem,
    members: Sequence[int],
    each_bytes: FloatArray,
    passes: int,
    rings: int = 1,
    bucket_bytes: float = math.inf,
) -> FloatArray:
    """`ring_s` of many sizes."""
    size = len(members)
    if size < 2 or not (each_bytes > 0).any():
        return np.zeros(len(each_bytes))
    buckets = np.maximum(1.0, np.ceil(each_bytes / bucket_bytes))
    message = each_bytes / buckets / size
    # By node, so that the ring crosses each network card once.
    ordered = sorted(members, key=lambda w: (int(p.worker_node[w]), w))
    nodes = p.worker_node[[*ordered, ordered[0]]].tolist()
    hops = list(pairwise(nodes))
    kinds = p.worker_kind[ordered]
    # Every member sends and receives at once, which takes the time of its own processor.
    slowest = float((p.send_s + p.receive_s)[kinds].max()) * message
    for pair in dict.fromkeys(hops):
        # Hops inside a node share its bus; between two nodes there is one per direction.
        many = rings * (hops.count(pair) if pair[0] == pair[1] else 1)
        slowest = np.maximum(slowest, link_of(p, pair).times(message, many))
    return np.asarray(buckets * passes * (size - 1) * slowest, dtype=np.float64)


def node_s(p: LayerProblem, nodes: tuple[int, int], each_bytes: float, pairs: int = 1) -> float:
    """Seconds of `pairs` messages from node to node at once."""
    return link_of(p, nodes).seconds(each_bytes, pairs)


def link_of(p: LayerProblem, nodes: tuple[int, int]) -> Link:
    """The link between two nodes, or inside one.

    Raises `InputError`: no link joins the nodes.
    """
    index = int(p.link_index[nodes])
    if index < 0:
        a, b = (p.node_names[node] for node in nodes)
        raise InputError(f"no link from node {a!r} to node {b!r}", where=p.name)
    return p.links[index]
