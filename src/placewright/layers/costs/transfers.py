"""Activations and gradients between neighbouring stages of a pipeline."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from placewright.errors import InputError
from placewright.layers.plan import LayerPlan, Replica, Stage, Strategy
from placewright.layers.problem import LayerProblem
from placewright.layers.workers import Link
from placewright.numerics.arrays import FloatArray


@dataclass(frozen=True, slots=True)
class Transfer:
    """`samples` that one replica of a stage sends to one of the next: seconds each way.

    `forward_eager` and `backward_eager`: whether a blocking sender goes on at once. `together_s`:
    what an activation takes longer while all replicas send at once.
    """

    source: int
    target: int
    samples: int
    forward_s: float
    backward_s: float
    forward_eager: bool = False
    backward_eager: bool = False
    together_s: float = 0.0

    def without(self, taken_s: FloatArray) -> Transfer:
        """With so much less time forwards and backwards."""
        ahead, back = (float(x) for x in taken_s)
        left = max(0.0, self.forward_s - ahead), max(0.0, self.backward_s - back)
        return replace(self, forward_s=left[0], backward_s=left[1])


def transfers(p: LayerProblem, plan: LayerPlan, cut: int, busy_s: float) -> list[Transfer]:
    """Transfers between stage `cut` and the next: one per pair of replicas that share samples.

    Edges that skip stages are carried along: a cut is crossed by every edge over it. Workers of one
    replica send at once and share their node's network card. Replicas are pipelines of their own:
    once they have waited for their turn at a card they stay apart, and wait on only if the card is
    busy for longer than they are between two messages, at least `busy_s` seconds.
    """
    left, right = plan.stages[cut], plan.stages[cut + 1]
    overlaps = _overlaps(left.shares, right.shares)
    per_sample = cut_bytes(p, left)
    pairs_of = {(a, b): _node_pairs(p, left.replicas[a], right.replicas[b]) for a, b, _ in overlaps}
    all_out: Counter[int] = Counter()
    all_in: Counter[int] = Counter()
    own_out: Counter[tuple[int, int]] = Counter()
    own_in: Counter[tuple[int, int]] = Counter()
    for (a, b), pairs in pairs_of.items():
        for one, two in pairs:
            if one != two:
                all_out[one] += 1
                all_in[two] += 1
                own_out[one, a] += 1
                own_in[two, b] += 1
    found = []
    for a, b, samples in overlaps:
        pairs = pairs_of[a, b]
        sent = per_sample * samples + p.training.extra_bytes
        ahead = sent / len(pairs) if p.training.split_activations else sent
        times, together = [0.0, 0.0], 0.0
        for one, two in dict.fromkeys(pairs):
            own = max(own_out[one, a], own_in[two, b], pairs.count((one, two)))
            every = max(all_out[one], all_in[two], own)
            for way, size in enumerate((ahead, per_sample * samples)):
                ends = (two, one) if way else (one, two)
                once = node_s(p, ends, size, own)
                at_once = once if every == own else node_s(p, ends, size, every)
                if p.training.blocking_transfers:
                    taken = max(once, at_once - busy_s)
                else:
                    taken = once if at_once <= busy_s else at_once
                times[way] = max(times[way], taken)
                together = together if way else max(together, at_once - taken)
        if p.training.split_activations and len(pairs) > 1:
            times[0] += ring_s(p, right.replicas[b].workers, sent, 1)
        most = p.training.eager_bytes
        eager = ahead <= most, per_sample * samples <= most
        found.append(Transfer(a, b, samples, times[0], times[1], *eager, together))
    return found


def processor_s(p: LayerProblem, plan: LayerPlan, cut: int, t: Transfer) -> FloatArray:
    """Shape (2, 2): what a transfer's activation and gradient take of the processors at its ends.

    Columns: the stage before the cut, and the one behind it.
    """
    ends = zip(plan.stages[cut : cut + 2], (t.source, t.target), strict=True)
    one, two = (int(p.worker_kind[stage.replicas[r].workers[0]]) for stage, r in ends)
    each = [[p.send_s[one], p.receive_s[two]], [p.receive_s[one], p.send_s[two]]]
    sent = cut_bytes(p, plan.stages[cut]) * t.samples
    return np.asarray(p.message_s[[one, two]] + np.array(each) * sent, dtype=np.float64)


def cut_bytes(p: LayerProblem, stage: Stage) -> float:
    """Bytes per sample over the cut behind a stage, each sending worker."""
    cut, degree = stage.last_layer, stage.tensor_degree
    crossing = (p.edge_source <= cut) & (p.edge_target > cut)
    sources = np.unique(p.edge_source[crossing])
    if len(sources) == 1 and int(sources[0]) == cut and stage.strategy(cut) is Strategy.TENSOR:
        return float(p.output_bytes[cut, p.degree_index(degree)])
    # Of its consumers' edges the largest.
    edge = [float(p.edge_bytes[crossing & (p.edge_source == s)].max()) for s in sources]
    return sum(edge)  # a tensor with several consumers crosses once


def _overlaps(left: Sequence[int], right: Sequence[int]) -> list[tuple[int, int, int]]:
    """Pairs of replicas whose samples overlap, and how many samples do."""
    found = []
    ends_l, ends_r = np.cumsum(left), np.cumsum(right)
    for a, (end_a, share_a) in enumerate(zip(ends_l, left, strict=True)):
        for b, (end_b, share_b) in enumerate(zip(ends_r, right, strict=True)):
            # Shares are intervals of the micro-batch's samples, in order of replicas.
            both = min(end_a, end_b) - max(end_a - share_a, end_b - share_b)
            if both > 0:
                found.append((a, b, int(both)))
    return found


def _node_pairs(p: LayerProblem, a: Replica, b: Replica) -> list[tuple[int, int]]:
    """Pairs of nodes between which workers of two replicas send, one per sending worker."""
    count = max(len(a.workers), len(b.workers))
    return [
        (
            int(p.worker_node[a.workers[k * len(a.workers) // count]]),
            int(p.worker_node[b.workers[k * len(b.workers) // count]]),
        )
        for k in range(count)
    ]


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
