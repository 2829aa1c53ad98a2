"""The best exchange of groups between two devices, by a minimum cut.

Under ``overlap=serial`` one thing runs at a time, so a plan takes the sum of its compute and of
its transfers, each tensor once per device that reads it. Let every group that is on device a or
on device b be free to be on either, and all others stay. The source's side stands for a.

- A group on b costs the arc from the source to it, on a the arc from it to the sink: its compute
  there, and the transfers of its tensors to devices other than a and b.
- A tensor whose maker g is free is sent from a to b once if g is on a and any reader on b. A node
  t, with an arc g -> t of that cost and arcs t -> reader that must not be cut: if a reader is on
  b, so is t, and g -> t is cut exactly if g is on a; if none is, t may be on a and costs nothing.
  From b to a likewise, with reader -> t uncuttable and t -> g of that cost.
- A tensor whose maker stays elsewhere is sent to a once if any reader is on a: reader -> t
  uncuttable, t -> sink of that cost; to b likewise from the source.

So cuts without forbidden arcs and placements correspond, the cheapest cut with what t is free to
choose costs what the placement costs, and the minimum cut is the best exchange. With two devices
all groups are free: it is the optimum.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.problem import OperatorProblem
from placewright.operators.structure.groups import Groups
from placewright.operators.structure.links import linked
from placewright.solvers.min_cut import SINK, SOURCE, Network, min_cut


@dataclass(frozen=True, slots=True, eq=False)
class Serial:
    """What a placement of groups costs where one thing runs at a time.

    Attributes
    ----------
    compute_s
        Shape (groups, m), ``inf`` where not allowed.
    send_s
        Shape (t, m, m), ``inf`` without a link.
    maker
        Shape (t,), group of each tensor's producer.
    readers
        The groups beside `maker` that read each tensor.
    """

    compute_s: FloatArray
    send_s: FloatArray
    maker: list[int]
    readers: list[list[int]]

    def total_s(self, place: IntArray) -> float:
        """Compute and transfers of a placement of groups, shape (groups,)."""
        total = float(self.compute_s[np.arange(len(place)), place].sum())
        for k, readers in enumerate(self.readers):
            home = place[self.maker[k]]
            targets = np.unique(place[readers])
            total += float(self.send_s[k, home, targets[targets != home]].sum())
        return total


def serial_costs(problem: OperatorProblem, groups: Groups) -> Serial:
    """The costs of a problem."""
    p, group = problem, groups.group
    own = np.where(groups.allowed[group], p.compute_s, 0.0)
    compute = np.zeros(groups.allowed.shape)
    np.add.at(compute, group, own)
    pair = linked(p)
    latency, per_byte = (np.where(pair, a, 0.0) for a in (p.latency_s, p.seconds_per_byte))
    send = latency + p.tensor_bytes[:, None, None] * per_byte
    maker = group[p.tensor_producer]
    readers = [
        [g for g in np.unique(group[p.consumers[lo:hi]]).tolist() if g != maker[k]]
        for k, (lo, hi) in enumerate(zip(p.consumer_offsets, p.consumer_offsets[1:], strict=False))
    ]
    return Serial(
        np.where(groups.allowed, compute, np.inf),
        np.where(pair | np.eye(p.m, dtype=np.bool_), send, np.inf),
        maker.tolist(),
        readers,
    )


def exchange(costs: Serial, place: IntArray, a: int, b: int) -> tuple[IntArray, float]:
    """The best placement in which only groups on `a` or `b` move, and between these two.

    Returns
    -------
    place
        Shape (groups,); unchanged where every exchange is forbidden.
    error_s
        How far it can be from the best; ``inf`` where every exchange is forbidden.
    """
    free = (place == a) | (place == b)
    network = Network()
    node = {g: network.node() for g in np.flatnonzero(free).tolist()}
    price = costs.compute_s[:, [a, b]].copy()
    for k, readers in enumerate(costs.readers):
        _send(network, costs, k, [node[g] for g in readers if g in node], place, node, (a, b))
        if costs.maker[k] in node:
            away = np.unique([place[g] for g in readers if g not in node]).astype(np.int64)
            price[costs.maker[k]] += costs.send_s[k][np.ix_(np.array([a, b]), away)].sum(axis=1)
    for g, at in node.items():
        network.arc(SOURCE, at, float(price[g, 1]))
        network.arc(at, SINK, float(price[g, 0]))
    side, error = min_cut(network)
    moved = place.copy()
    if math.isfinite(error):
        for g, at in node.items():
            moved[g] = a if side[at] else b
    return moved, error


def two_devices(costs: Serial) -> tuple[IntArray, float]:
    """The least placement on at most two devices, and what no placement beats.

    Raises
    ------
    InfeasibleError
        Every placement is forbidden.
    """
    groups, m = costs.compute_s.shape
    place, error = np.zeros(groups, dtype=np.int64), 0.0
    if m == 2:
        place, error = exchange(costs, place, 0, 1)
    total = costs.total_s(place)
    if not math.isfinite(total):
        raise InfeasibleError(
            "no placement in which every tensor has a link", hint="add links, or drop pins"
        )
    return place, total * (1 - 1e-12) - error


def swaps(costs: Serial, place: IntArray, deadline_s: float) -> Iterator[IntArray]:
    """`place`, then ever cheaper ones: through all pairs of devices until no exchange helps."""
    pairs = list(combinations(range(costs.compute_s.shape[1]), 2))
    least, idle = costs.total_s(place), 0
    yield place
    while idle < len(pairs) and time.perf_counter() < deadline_s:
        moved, _ = exchange(costs, place, *pairs[0])
        total = costs.total_s(moved)
        pairs.append(pairs.pop(0))
        idle += 1
        if total < least * (1 - 1e-9):
            place, least, idle = moved, total, 0
            yield place


def _send(
    network: Network,
    costs: Serial,
    k: int,
    readers: list[int],
    place: IntArray,
    node: dict[int, int],
    pair: tuple[int, int],
) -> None:
    """The arcs of tensor k for the nodes of its free readers."""
    if not readers:
        return
    (a, b), maker = pair, costs.maker[k]
    home = node.get(maker)
    to_a = costs.send_s[k, place[maker] if home is None else b, a]
    to_b = costs.send_s[k, place[maker] if home is None else a, b]
    if to_b > 0:
        t = network.node()
        network.arc(SOURCE if home is None else home, t, float(to_b))
        for reader in readers:
            network.arc(t, reader, math.inf)
    if to_a > 0:
        t = network.node()
        network.arc(t, SINK if home is None else home, float(to_a))
        for reader in readers:
            network.arc(reader, t, math.inf)
