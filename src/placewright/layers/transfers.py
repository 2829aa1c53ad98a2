"""Activations and gradients between neighbouring stages of a pipeline."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from placewright.errors import InputError
from placewright.layers.plan import LayerPlan, Replica, Stage, Strategy
from placewright.layers.problem import LayerProblem
from placewright.layers.workers import Link
from placewright.numerics.arrays import FloatArray


@dataclass(frozen=True, slots=True)
class StageTransfer:
    """`samples` that one replica of a stage sends to one of the next: seconds each way.

    `forward_eager` and `backward_eager`: whether a blocking sender goes on at once. `together_s`:
    what an activation takes longer while all replicas send at once. `gather_s`: how long the
    receivers exchange their parts of an activation, and of a gradient, before they use it.
    """

    source: int
    target: int
    samples: int
    forward_s: float
    backward_s: float
    forward_eager: bool = False
    backward_eager: bool = False
    together_s: float = 0.0
    gather_s: tuple[float, float] = (0.0, 0.0)

    def without(self, taken_s: FloatArray) -> StageTransfer:
        """With so much less time forwards and backwards."""
        ahead, back = (float(x) for x in taken_s)
        left = max(0.0, self.forward_s - ahead), max(0.0, self.backward_s - back)
        return replace(self, forward_s=left[0], backward_s=left[1])


@dataclass(frozen=True, slots=True)
class ReplicaMessage:
    """What one replica sends to another: each pair of workers `each_bytes`, all pairs at once.

    `pairs`: nodes of sender and receiver. `gathered_bytes`: what the receivers put together.
    """

    pairs: tuple[tuple[int, int], ...]
    each_bytes: float
    gathered_bytes: float = 0.0


def message(
    p: LayerProblem,
    stages: tuple[Stage, Stage],
    replicas: tuple[Replica, Replica],
    samples: int,
    *,
    back: bool,
) -> ReplicaMessage:
    """The activation over the cut between two stages, or `back` its gradient.

    All workers of a tensor group hold the whole of it, and all need the whole. Split, it crosses
    the cut once: as many pairs as the larger group has workers carry a part each, and the receivers
    gather them (Megatron's scatter-gather, Narayanan et al. 2021, arXiv 2104.04473). Otherwise
    each receiver is sent the whole, or where workers hold parts of an output, its part.
    """
    before, behind = stages
    sender, receiver = reversed(replicas) if back else replicas
    if sender.workers == receiver.workers:
        return ReplicaMessage((), 0.0)
    held, whole = cut_bytes(p, before), _whole_bytes(p, before.last_layer)
    split = p.training.split_gradients if back else p.training.split_activations
    pairs = _node_pairs(p, sender.workers, receiver.workers, parts=split or held < whole)
    extra = 0.0 if back else p.training.extra_bytes
    if not split:
        return ReplicaMessage(pairs, held * samples + extra)
    user = before.strategy(before.last_layer) if back else behind.strategy(behind.first_layer)
    rows = user in (Strategy.DATA, Strategy.SHARDED)  # each worker uses its own samples only
    return ReplicaMessage(
        pairs, whole * samples / len(pairs) + extra, 0.0 if rows else whole * samples
    )


def _node_pairs(
    p: LayerProblem, sender: Sequence[int], receiver: Sequence[int], *, parts: bool
) -> tuple[tuple[int, int], ...]:
    """Nodes of the workers that send to each other: parts, or the whole to every receiver."""
    out, into = len(sender), len(receiver)
    count = max(out, into) if parts else into
    ends = ((sender[k * out // count], receiver[k * into // count]) for k in range(count))
    return tuple((int(p.worker_node[a]), int(p.worker_node[b])) for a, b in ends)


def crossing_times(
    p: LayerProblem, before: Sequence[int], behind: Sequence[int], whole_bytes: FloatArray
) -> FloatArray:
    """Seconds of an activation and its gradient between two tensor groups that are alone.

    Of many sizes, by the rule of `message`; NaN where no link joins their nodes.
    """
    found = np.zeros(len(whole_bytes))
    for back, (sender, receiver) in enumerate(((before, behind), (behind, before))):
        split = p.training.split_gradients if back else p.training.split_activations
        pairs = _node_pairs(p, sender, receiver, parts=split)
        if any(p.link_index[pair] < 0 for pair in pairs):
            return np.full(len(whole_bytes), math.nan)
        each = whole_bytes / len(pairs) if split else whole_bytes
        places = Counter(place for pair in pairs for place in _places(pair))
        found += np.max(
            [
                link_of(p, pair).times(each, max(places[x] for x in _places(pair)))
                for pair in dict.fromkeys(pairs)
            ],
            axis=0,
        )
        if split:
            found += ring_times(p, receiver, whole_bytes, 1)
    return found


def transfers(p: LayerProblem, plan: LayerPlan, cut: int, busy_s: float) -> list[StageTransfer]:
    """Transfers between stage `cut` and the next: one per pair of replicas that share samples.

    Edges that skip stages are carried along: a cut is crossed by every edge over it. Workers of one
    replica send at once and share their node's network cards, or its bus. Replicas are pipelines of
    their own: once they have waited for their turn at a card they stay apart, and wait on only if
    the card is busy for longer than they are between two messages, at least `busy_s` seconds.
    """
    stages = plan.stages[cut], plan.stages[cut + 1]
    overlaps = _overlaps(stages[0].shares, stages[1].shares)
    found = []
    ahead, back = (_one_way(p, stages, overlaps, busy_s, back=way) for way in (False, True))
    for (a, b, samples), one, two in zip(overlaps, ahead, back, strict=True):
        again = one.own_gather_s if p.training.keeps_parts else 0.0
        gather_s = one.gather_s, two.gather_s + again
        eager = one.eager, two.eager
        found.append(
            StageTransfer(a, b, samples, one.taken_s, two.taken_s, *eager, one.longer_s, gather_s)
        )
    return found


class _OneWay(NamedTuple):
    """Times of a message: as replicas usually send it, longer if all send at once."""

    taken_s: float
    longer_s: float
    gather_s: float
    own_gather_s: float
    eager: bool


def _one_way(
    p: LayerProblem,
    stages: tuple[Stage, Stage],
    overlaps: Sequence[tuple[int, int, int]],
    busy_s: float,
    *,
    back: bool,
) -> list[_OneWay]:
    """Times of all activations over a cut, or of all gradients."""
    ends = [(stages[0].replicas[a], stages[1].replicas[b]) for a, b, _ in overlaps]
    messages = [
        message(p, stages, pair, samples, back=back)
        for pair, (_, _, samples) in zip(ends, overlaps, strict=True)
    ]
    names = [((1, b), (0, a)) if back else ((0, a), (1, b)) for a, b, _ in overlaps]
    # Sizes of the messages that share a card or bus: of one replica, of all.
    every: defaultdict[_Place, list[float]] = defaultdict(list)
    own: defaultdict[tuple[_Place, tuple[int, int]], list[float]] = defaultdict(list)
    for sent, (a, b) in zip(messages, names, strict=True):
        for pair in sent.pairs:
            for place, who in zip(_places(pair), (a, b), strict=False):
                every[place].append(sent.each_bytes)
                own[place, who].append(sent.each_bytes)
    found = []
    for sent, (a, b), (first, second) in zip(messages, names, ends, strict=True):
        taken, longer = 0.0, 0.0
        for pair in dict.fromkeys(sent.pairs):
            places, size = _places(pair), sent.each_bytes
            alone = [own[place, who] for place, who in zip(places, (a, b), strict=False)]
            once = node_s(p, pair, size, _pairs_alike(alone, size))
            at_once = node_s(p, pair, size, _pairs_alike([every[place] for place in places], size))
            if p.training.blocking_transfers:
                usual = max(once, at_once - busy_s)
            else:
                usual = once if at_once <= busy_s else at_once
            taken, longer = max(taken, usual), max(longer, at_once - usual)
        gathers = [ring_s(p, end.workers, sent.gathered_bytes, 1) for end in (first, second)]
        eager = sent.each_bytes <= p.training.eager_bytes
        found.append(_OneWay(taken, longer, gathers[not back], gathers[back], eager))
    return found


_Place = tuple[str, int]


def _places(pair: tuple[int, int]) -> tuple[_Place, ...]:
    """What a message between two nodes shares with others: both network cards, or a bus."""
    one, two = pair
    return (("out", one), ("in", two)) if one != two else (("bus", one),)


def _pairs_alike(shared: Sequence[Sequence[float]], size: float) -> float:
    """How many messages of `size` delay it as much as those of any place that it shares.

    They share the place equally, so that of a larger one only as much passes until it has arrived.
    """
    return max(sum(min(1.0, other / size) if size > 0 else 1.0 for other in x) for x in shared)


def processor_s(p: LayerProblem, plan: LayerPlan, cut: int, t: StageTransfer) -> FloatArray:
    """Shape (2, 2): what a transfer's activation and gradient take of the processors at its ends.

    Columns: a worker of the stage before the cut, and one of the stage behind it.
    """
    stages = plan.stages[cut], plan.stages[cut + 1]
    ends = stages[0].replicas[t.source], stages[1].replicas[t.target]
    found = np.zeros((2, 2))
    for way, end in np.ndindex(2, 2):
        sent = message(p, stages, ends, t.samples, back=bool(way))
        kind = int(p.worker_kind[ends[end].workers[0]])
        each_byte_s = (p.send_s if way == end else p.receive_s)[kind]
        many = -(-len(sent.pairs) // len(ends[end].workers))  # of each worker
        found[way, end] = many * (p.message_s[kind] + each_byte_s * sent.each_bytes)
    return found


def cut_bytes(p: LayerProblem, stage: Stage) -> float:
    """Bytes per sample over the cut behind a stage that one of its workers holds."""
    cut = stage.last_layer
    if _sources(p, cut) == [cut] and stage.strategy(cut) is Strategy.TENSOR:
        return float(p.output_bytes[cut, p.degree_index(stage.tensor_degree)])
    return _whole_bytes(p, cut)


def _whole_bytes(p: LayerProblem, cut: int) -> float:
    """Bytes per sample of all that crosses the cut behind a layer."""
    crossing = (p.edge_source <= cut) & (p.edge_target > cut)
    # Of its consumers' edges the largest: a tensor with several consumers crosses once.
    return sum(float(p.edge_bytes[crossing & (p.edge_source == s)].max()) for s in _sources(p, cut))


def _sources(p: LayerProblem, cut: int) -> list[int]:
    """Layers up to `cut` whose outputs are used behind it."""
    crossing = (p.edge_source <= cut) & (p.edge_target > cut)
    found: list[int] = np.unique(p.edge_source[crossing]).tolist()
    return found


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


def node_s(p: LayerProblem, nodes: tuple[int, int], each_bytes: float, pairs: float = 1) -> float:
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
