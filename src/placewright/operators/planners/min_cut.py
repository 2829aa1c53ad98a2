"""Minimum cut: the least total time where one thing runs at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import ClassVar, final

import numpy as np

from placewright.errors import InfeasibleError, MissingDependencyError
from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.operators.costs import Groups, group_costs, groups_of, linked
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.pricing import (
    PricingContext,
    improving,
    pricing_context,
    raised_prices,
    serial_bound,
)
from placewright.operators.problem import Objective, OperatorProblem, Overlap, pairwise_only
from placewright.planning.contract import Context, Proposal, last_of
from placewright.solvers.programs import installed, missing


@final
@dataclass(frozen=True, slots=True)
class MinCut:
    """Exact for two devices, exchanges between pairs of devices for more.

    Stone, IEEE TSE SE-3(1), 1977 (doi 10.1109/TSE.1977.233840) for two processors; alpha-beta
    swaps of Boykov, Veksler, Zabih, IEEE TPAMI 23(11), 2001 (doi 10.1109/34.969114) beyond. A
    node per tensor and direction makes the cut exact where a tensor with several readers is sent
    once (proof in `exchange`). One max-flow per exchange, O(groups + tensor uses) arcs.

    Beyond two devices it starts from the PBQP that `Pbqp` solves, goes through all pairs until
    no exchange helps, and takes its lower bound from the PBQP in which readers share a transfer.

    Memory: bytes get a price where the judge sees too many held; if no price does it, local moves
    repair the best plan. The bound is that without memory limits.

    Parameters
    ----------
    branch_limit
        Branches of each PBQP.
    memory_rounds
        How often the price of bytes is raised.
    repair_moves
        Local moves where the prices found nothing that fits.
    """

    name: ClassVar[str] = "min-cut"
    branch_limit: int = 200
    memory_rounds: int = 12
    repair_moves: int = 1_000

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Serial latency over links, with OR-tools."""
        if problem.overlap is not Overlap.SERIAL or problem.objective is not Objective.LATENCY:
            return "more than one thing runs at a time"
        if not installed("ortools"):
            return missing("ortools")
        return pairwise_only(problem)

    def __call__(self, problem: OperatorProblem, context: Context) -> Proposal[OperatorPlan]:
        """The plan.

        Raises `InfeasibleError` (no placement has a link for every tensor) or
        `MissingDependencyError` (OR-tools is not installed).
        """
        found, interrupted = last_of(self._plans(problem, context))
        return replace(found, interrupted=interrupted)

    def _plans(
        self, problem: OperatorProblem, context: Context
    ) -> Iterator[Proposal[OperatorPlan]]:
        """Ever better plans, the last one with what was proved."""
        d = pricing_context(problem, self.branch_limit)
        costs, bound_s = serial_costs(problem, groups_of(problem)), 0.0
        if problem.m <= 2:
            exact, bound_s = two_devices(costs, problem.name)
            first = iter([exact])
        else:
            first = self._cheaper(d, costs, context)
        places = self._places(d, costs, first, context)
        for best in improving(d, places, self.repair_moves, context):
            plan = best.plan()
            yield Proposal(plan, max(0.0, bound_s))
        if problem.m > 2:
            yield Proposal(plan, serial_bound(d, context.deadline_s))

    def _places(
        self, d: PricingContext, costs: Serial, first: Iterator[IntArray], context: Context
    ) -> Iterator[IntArray]:
        """Those of the first choices, then under rising prices of bytes, until one fits."""
        prices, place = np.zeros(d.problem.m), np.zeros(d.problem.n, dtype=np.int64)
        for choice in first:
            place = d.place(choice)
            yield place
        with suppress(InfeasibleError):  # prices may mislead the solver: what it found stays
            for _ in range(self.memory_rounds):
                judgement = d.judge(OperatorPlan(place))
                if judgement.feasible or context.remaining_s() <= 0:
                    return
                prices = raised_prices(d, prices, judgement)
                priced_s = costs.compute_s + d.group_bytes[:, None] * prices
                for choice in self._cheaper(d, replace(costs, compute_s=priced_s), context):
                    place = d.place(choice)
                    yield place

    def _cheaper(self, d: PricingContext, costs: Serial, context: Context) -> Iterator[IntArray]:
        """Ever cheaper devices of groups; on two devices the cheapest at once."""
        if d.problem.m <= 2:
            yield two_devices(costs, d.problem.name)[0]
        else:
            found = d.solve(costs.compute_s, np.zeros(d.problem.m), deadline_s=context.deadline_s)
            yield from swaps(costs, found.choice, context.deadline_s)


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
    pair = linked(p)
    latency, per_byte = (np.where(pair, a, 0.0) for a in (p.latency_s, p.seconds_per_byte))
    send = latency + p.tensor_bytes[:, None, None] * per_byte
    maker = group[p.tensor_producer]
    readers = [
        [g for g in np.unique(group[p.readers(k)]).tolist() if g != maker[k]] for k in range(p.t)
    ]
    return Serial(
        group_costs(groups, p.compute_s),
        np.where(pair | np.eye(p.m, dtype=np.bool_), send, np.inf),
        maker.tolist(),
        readers,
    )


def exchange(costs: Serial, place: IntArray, a: int, b: int) -> tuple[IntArray, float]:
    """The best placement in which only groups on `a` or `b` move, and between these two.

    A minimum cut; the source's side stands for a. A plan takes the sum of its compute and of its
    transfers, each tensor once per device that reads it:

    - A group on b costs the arc from the source to it, on a the arc from it to the sink: its
      compute there, and the transfers of its tensors to devices other than a and b.
    - A tensor whose maker g is free is sent from a to b once if g is on a and any reader on b. A
      node t, with an arc g -> t of that cost and arcs t -> reader that must not be cut: if a reader
      is on b, so is t, and g -> t is cut exactly if g is on a; if none is, t may be on a and costs
      nothing. From b to a likewise, with reader -> t uncuttable and t -> g of that cost.
    - A tensor whose maker stays elsewhere is sent to a once if any reader is on a: reader -> t
      uncuttable, t -> sink of that cost; to b likewise from the source.

    So cuts without forbidden arcs and placements correspond, and the cheapest cut with what each t
    is free to choose costs what the placement costs. With two devices all groups are free: it is
    the optimum.

    Returns `place`: shape (groups,); unchanged where every exchange is forbidden. `error_s`: how
    far it can be from the best; ``inf`` where every exchange is forbidden.
    """
    free = (place == a) | (place == b)
    network = FlowNetwork()
    node = {g: network.node() for g in np.flatnonzero(free).tolist()}
    price = costs.compute_s[:, [a, b]].copy()
    for k, readers in enumerate(costs.readers):
        _send(network, costs, k, [node[g] for g in readers if g in node], place, node, (a, b))
        if costs.maker[k] in node:
            away = np.unique([place[g] for g in readers if g not in node]).astype(np.int64)
            # Readers elsewhere get it from wherever the maker is: one transfer per device, as
            # `total_s`.
            price[costs.maker[k]] += costs.send_s[k][np.ix_(np.array([a, b]), away)].sum(axis=1)
    for g, at in node.items():
        # On the source's side is `a`: a group on `b` has its arc from the source cut, and pays for
        # b.
        network.arc(SOURCE, at, float(price[g, 1]))
        network.arc(at, SINK, float(price[g, 0]))
    side, error = min_cut(network)
    moved = place.copy()
    if math.isfinite(error):
        for g, at in node.items():
            moved[g] = a if side[at] else b
    return moved, error


def two_devices(costs: Serial, where: str = "") -> tuple[IntArray, float]:
    """The least placement on at most two devices, and what no placement beats.

    Raises `InfeasibleError` (every placement is forbidden).
    """
    groups, m = costs.compute_s.shape
    place, error = np.zeros(groups, dtype=np.int64), 0.0
    if m == 2:
        place, error = exchange(costs, place, 0, 1)
    total = costs.total_s(place)
    if not math.isfinite(total):
        raise InfeasibleError(
            "no placement in which every tensor has a link",
            where=where,
            hint="add links, or drop pins",
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
    network: FlowNetwork,
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
    # A maker that is not free sends from where it is; a free one from the other of the two.
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


SOURCE, SINK = 0, 1
_LARGEST = 2.0**50
"""All finite capacities together, as integers: their sums stay exact in 64 bits."""


@dataclass(slots=True)
class FlowNetwork:
    """Nodes and arcs, built up one by one; nodes 0 and 1 are source and sink.

    An arc costs its capacity where its tail is on the source's side and its head is not;
    ``inf`` forbids that.
    """

    nodes: int = 2
    tail: list[int] = field(default_factory=list)
    head: list[int] = field(default_factory=list)
    capacity: list[float] = field(default_factory=list)

    def node(self) -> int:
        """A new node."""
        self.nodes += 1
        return self.nodes - 1

    def arc(self, tail: int, head: int, capacity: float) -> None:
        """A new arc; one without capacity is left out."""
        if capacity > 0:
            self.tail.append(tail)
            self.head.append(head)
            self.capacity.append(capacity)


def min_cut(network: FlowNetwork) -> tuple[BoolArray, float]:
    """Which nodes are on the source's side of the cheapest cut, and how far it can be from it.

    Capacities are rounded to integers; the cut is the cheapest for these, so its cost is at most
    ``error`` (one unit of the rounding per arc) above the cheapest for the true ones.

    Returns `side`: shape (nodes,); nothing is on the source's side where every cut is forbidden.
    `error`: In the unit of the capacities; ``inf`` where every cut is forbidden.
    Raises `MissingDependencyError`: OR-tools is not installed.
    """
    try:
        from ortools.graph.python import max_flow
    except ModuleNotFoundError:
        raise MissingDependencyError("ortools", extra="exact", purpose="a minimum cut") from None
    capacity = np.array(network.capacity, dtype=np.float64)
    open_ = np.isfinite(capacity)
    total = float(capacity[open_].sum())
    scale = _LARGEST / total if total > 0 else 1.0
    units = np.rint(np.where(open_, capacity, 0.0) * scale).astype(np.int64)
    # Dearer than all finite arcs together: a cut that costs less holds no forbidden arc.
    forbidden = int(units.sum()) + 1
    units[~open_] = forbidden
    flow = max_flow.SimpleMaxFlow()
    flow.add_arc_with_capacity(SOURCE, SINK, 0)  # both exist, whatever follows
    flow.add_arcs_with_capacity(
        np.array(network.tail, dtype=np.int32), np.array(network.head, dtype=np.int32), units
    )
    status = flow.solve(SOURCE, SINK)
    side = np.zeros(network.nodes, dtype=np.bool_)
    if status != flow.OPTIMAL or flow.optimal_flow() >= forbidden:
        return side, math.inf
    side[flow.get_source_side_min_cut()] = True
    return side, len(units) / scale
