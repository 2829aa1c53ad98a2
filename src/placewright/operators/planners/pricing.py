"""Placement as a PBQP under prices: for device time, and for bytes where memory is short.

Nodes are colocation groups, options are devices.
    min  sum_g c_g[x_g] + sum_(g,h) C_gh[x_g, x_h]

``c_g`` are run times, ``C_gh`` the transfer times of all tensors between two groups. Pairs of
groups cannot say that a tensor is sent once to several consumers on one device: every group
that reads it pays. `fanout` chooses how much: at 1 each reader pays in full (never less than
the truth), at 0 the readers share one transfer (never more than the truth).

*Prices of bytes* are found by bisection, one for each device that is short.
The Lagrangian of the PBQP under memory limits: each byte on device d costs ``price[d]``. A price
that is high enough makes the plan fit, the least such price keeps most on the fast device; the
judge decides what fits, since what tensors hold at the peak depends on the schedule. One price
moves a uniform chain as a whole, all or nothing; tilted prices cut it: bytes cost more towards the
end of the graph, or towards its beginning.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.operators.costs import Groups, group_costs, groups_of, linked
from placewright.operators.judge import OperatorJudge, OperatorJudgement
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.chains import first_places
from placewright.operators.planners.placements import Start, improve, operator_bytes, score_all
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import Context, Needs
from placewright.solvers.pbqp import Pbqp, PbqpSolution, solve_pbqp


@dataclass(frozen=True, slots=True, eq=False)
class PlacementGraph:
    """Which groups exchange which tensors; depends on no cost and is kept for re-solving.

    Attributes
    ----------
    pairs
        Shape (e, 2): pairs of groups, lower number first.
    use_tensor, use_pair, use_forward
        One entry per tensor and reading group: the tensor, the index of the pair, and whether
        the tensor flows from the pair's first group to its second.
    use_readers
        Groups that read the tensor, beside the one that makes it.
    """

    groups: Groups
    pairs: IntArray
    use_tensor: IntArray
    use_pair: IntArray
    use_forward: BoolArray
    use_readers: IntArray


def placement_graph(problem: OperatorProblem) -> PlacementGraph:
    """Structure of a problem at the level of groups, O(e log e)."""
    groups = groups_of(problem)
    count = len(groups.resident_bytes)
    tensor = problem.consumed
    # Each use as one number, tensor * groups + reading group: several readers in a group are one.
    uses = np.unique(tensor * count + groups.group[problem.consumers])
    tensor, reader = uses // count, uses % count
    maker = groups.group[problem.tensor_producer[tensor]]
    crosses = maker != reader
    tensor, reader, maker = tensor[crosses], reader[crosses], maker[crosses]
    keys = np.minimum(maker, reader) * count + np.maximum(maker, reader)
    pairs, pair = np.unique(keys, return_inverse=True)
    return PlacementGraph(
        groups=groups,
        pairs=np.stack([pairs // count, pairs % count], axis=1),
        use_tensor=tensor,
        use_pair=pair,
        use_forward=maker < reader,
        use_readers=np.bincount(tensor, minlength=problem.t)[tensor],
    )


def placement_pbqp(
    problem: OperatorProblem,
    graph: PlacementGraph,
    costs: FloatArray,
    *,
    fanout: float = 1.0,
    scale: FloatArray | None = None,
) -> Pbqp:
    """The PBQP for given group costs.

    `costs`: shape (groups, m).
    `fanout`: 1: every reader pays for the transfer, 0: readers share it.
    `scale`: shape (t,): factor on the transfer times of each tensor.
    """
    # One at fanout 1, the share 1 / readers at fanout 0.
    weight = graph.use_readers ** (fanout - 1.0)
    if scale is not None:
        weight = weight * scale[graph.use_tensor]
    ahead = _transfers(problem, graph, np.where(graph.use_forward, weight, 0.0))
    back = _transfers(problem, graph, np.where(graph.use_forward, 0.0, weight))
    # A pair's matrix is [device of its first group, device of its second]: what flows back is
    # priced from the second to the first.
    pool = ahead + back.swapaxes(1, 2)
    groups, m = costs.shape
    return Pbqp(
        start=np.arange(groups + 1) * m,
        cost=costs.ravel(),
        ends=graph.pairs,
        matrix=np.arange(len(graph.pairs)) * m * m,
        pool=pool.ravel(),
    )


def _transfers(problem: OperatorProblem, graph: PlacementGraph, weight: FloatArray) -> FloatArray:
    """Shape (e, m, m): weighted transfer times of each pair's uses, ``inf`` without a link."""
    pair = linked(problem)
    reached = pair | np.eye(problem.m, dtype=np.bool_)
    size = weight * problem.tensor_bytes[graph.use_tensor]
    pairs = len(graph.pairs)
    count = np.bincount(graph.use_pair, weight, pairs)[:, None, None]
    moved = np.bincount(graph.use_pair, size, pairs)[:, None, None]
    latency = np.where(pair, problem.latency_s, 0.0)
    per_byte = np.where(pair, problem.seconds_per_byte, 0.0)
    return np.where((count > 0) & ~reached, np.inf, count * latency + moved * per_byte)


PBQP_S, PBQP_ARRAYS = 1e-6, 5
"""Seconds of a PBQP's reduction per entry of its edge costs, and arrays of as many entries."""

PRICE_LIMIT = 1e3
"""Prices of device time stay within this factor of each other."""


@dataclass(frozen=True, slots=True, eq=False)
class PricingContext:
    """Inputs that all priced solves of one problem share.

    Attributes
    ----------
    graph
        Groups and the tensors between them.
    group_bytes
        Shape (groups,): resident bytes and outputs, on which a price for memory is paid. They
        weigh more the later a group stands: one price for all would move a uniform chain as a
        whole, a rising one cuts it.
    branch_limit
        For each exact solve.
    """

    judge: OperatorJudge
    graph: PlacementGraph
    group_bytes: FloatArray
    branch_limit: int

    @property
    def problem(self) -> OperatorProblem:
        """The problem."""
        return self.judge.problem

    def solve(
        self,
        costs_s: FloatArray,
        byte_prices_s: FloatArray,
        scale: FloatArray | None = None,
        deadline_s: float = np.inf,
    ) -> PbqpSolution:
        """The PBQP for these group costs, shape (groups, m), and prices per byte, shape (m,).

        After the deadline by the heuristic RN alone: the first exact reduction takes seconds where
        there are thousands of groups and eight devices.

        Raises `InfeasibleError`: no placement has a link for every tensor.
        """
        costs = costs_s + self.group_bytes[:, None] * byte_prices_s
        pbqp = placement_pbqp(self.problem, self.graph, costs, scale=scale)
        in_time = time.perf_counter() < deadline_s
        found = solve_pbqp(
            pbqp, exact=in_time, branch_limit=self.branch_limit, deadline_s=deadline_s
        )
        if not np.isfinite(found.value):
            raise InfeasibleError(
                "no placement found in which every tensor has a link",
                where=self.problem.name,
                hint="add links, or drop pins",
            )
        return found

    def place(self, choice: IntArray) -> IntArray:
        """Devices of operators from devices of groups."""
        return choice[self.graph.groups.group]

    def costs(self, operator_costs_s: FloatArray) -> FloatArray:
        """Shape (groups, m)."""
        return group_costs(self.graph.groups, operator_costs_s)


def pbqp_needs(problem: OperatorProblem) -> Needs:
    """Of one PBQP: every tensor use between groups has costs for each pair of devices."""
    entries = float(len(problem.consumers)) * problem.m**2
    return Needs(PBQP_S * entries, 8.0 * PBQP_ARRAYS * entries)


def pricing_context(
    problem: OperatorProblem, branch_limit: int, graph: PlacementGraph | None = None
) -> PricingContext:
    """Build the inputs that all pricing rounds share; `graph` where it is known already."""
    graph = graph or placement_graph(problem)
    held = np.bincount(graph.groups.group, operator_bytes(problem))
    later = first_places(problem, graph.groups) / problem.n
    return PricingContext(OperatorJudge(problem), graph, held * (0.5 + later), branch_limit)


def within_memory(
    d: PricingContext,
    costs_s: FloatArray,
    rounds: int,
    scale: FloatArray | None = None,
    deadline_s: float = np.inf,
) -> Iterator[PbqpSolution]:
    """Solve, and raise prices of bytes where judged peaks exceed the memory, until the plan fits.

    One solution per round: the first is without prices, the last the one that fits if any does
    before the deadline.

    Raises `InfeasibleError`: no placement has a link for every tensor.
    """
    prices = np.zeros(d.problem.m)
    solution = d.solve(costs_s, prices, scale, deadline_s)
    yield solution
    with suppress(InfeasibleError):  # prices may mislead the solver: what it found stays
        for _ in range(rounds):
            judgement = d.judge(OperatorPlan(d.place(solution.choice)))
            if judgement.feasible or time.perf_counter() >= deadline_s:
                return
            prices = raised_prices(d, prices, judgement)
            solution = d.solve(costs_s, prices, scale, deadline_s)
            yield solution


def raised_prices(
    d: PricingContext, prices: FloatArray, judgement: OperatorJudgement
) -> FloatArray:
    """New prices per byte: higher where the peak exceeds the memory, lower where far below it."""
    memory = d.problem.memory_bytes
    if not np.isfinite(memory).any():
        return prices
    load = np.where(np.isfinite(memory), judgement.peak_bytes / np.maximum(memory, 1.0), 0.0)
    unit = judgement.busy_s.sum() / max(1.0, d.group_bytes.sum())
    up = np.where(load > 1, np.maximum(prices, unit / 4) * (0.5 + load), prices * 0.8)
    limited: FloatArray = np.minimum(up, unit * PRICE_LIMIT)
    return limited


def by_load(
    d: PricingContext,
    rounds: int,
    step: float,
    factors: FloatArray,
    deadline_s: float,
) -> tuple[list[IntArray], FloatArray]:
    """Repeat: solve with run times times ``1 + factor``, judge, raise prices of busy devices.

    `factors`: shape (m,), where the prices start.
    Returns one placement per round, and the prices after the last.
    """
    places: list[IntArray] = []
    prices = np.zeros(d.problem.m)
    for r in range(rounds):
        if r and time.perf_counter() >= deadline_s:
            break
        costs = d.costs(d.problem.compute_s * (1.0 + factors))
        places.append(d.place(d.solve(costs, prices, None, deadline_s).choice))
        judgement = d.judge(OperatorPlan(places[-1]))
        busy = judgement.busy_s / max(judgement.busy_s.mean(), 1e-300)
        factors = factors * np.exp(step / (1 + r) * (busy - 1))
        factors = np.clip(factors, 1 / PRICE_LIMIT, PRICE_LIMIT)
        prices = raised_prices(d, prices, judgement)
    return places, factors


ROUNDING = 1e-9
"""Of the bound: what sums in another order can differ by."""


def serial_bound(d: PricingContext, deadline_s: float) -> float:
    """Seconds; 0 where nothing was proved in time or within the branches."""
    costs = d.costs(d.problem.compute_s)
    pbqp = placement_pbqp(d.problem, d.graph, costs, fanout=0.0)
    proved = solve_pbqp(pbqp, branch_limit=d.branch_limit, deadline_s=deadline_s).lower_bound
    return max(0.0, proved * (1 - ROUNDING)) if math.isfinite(proved) else 0.0


def improving(
    d: PricingContext, places: Iterable[IntArray], repair_moves: int, context: Context
) -> Iterator[Start]:
    """Each placement that is better than all before it, as judged.

    If the best of all does not fit the memories, local moves repair it.
    """
    best: Start | None = None
    for place in places:
        found = score_all(d.judge, [place])[0]
        if best is None or found.score < best.score:
            best = found
            yield best
    if best is not None and best.score.over_bytes > 0:
        yield improved(d, best, repair_moves, context, seed=context.seed)


def improved(
    d: PricingContext, start: Start, moves: int, context: Context, *, seed: int, heat: float = 0.0
) -> Start:
    """The end of a walk of local moves from `start`."""
    return improve(
        d.judge,
        d.graph.groups,
        start,
        moves=moves,
        heat=heat,
        seed=seed,
        deadline_s=context.deadline_s,
    )


CHEAP = 1.0 / 64
"""The first price: all bytes together cost this share of all time."""

RAISES = 8
"""How often prices are raised at most until the plan fits, four times as high each time."""

TILTS = (1.0, -1.0, 0.0)
"""Bytes weigh ``1 + tilt * (place - 1/2)``, place from 0 at the beginning of the graph to 1."""


def within_memories(
    d: PricingContext, costs_s: FloatArray, halvings: int, deadline_s: float = np.inf
) -> list[IntArray]:
    """Placements on the way to the least prices at which all fits; none where none are needed.

    `costs_s`: shape (groups, m).
    `halvings`: of the interval in which the least price lies, for each tilt.
    Raises `InfeasibleError`: no placement has a link for every tensor.
    """
    none = np.zeros(d.problem.m)
    over = _tried(d, costs_s, none, deadline_s)[1]
    if not over.any():
        return []
    found: list[IntArray] = []
    for tilted in _tilted(d):
        low, high, places = _bracketed(tilted, costs_s, over, deadline_s)
        found += places
        if time.perf_counter() >= deadline_s:
            break
        # No price is high enough, or only the last one: what tensors hold is too much, whatever
        # bytes cost.
        if len(places) == RAISES:
            break
        found += _bisected(tilted, costs_s, low, high, halvings, deadline_s)
    return found


def _tilted(d: PricingContext) -> Iterator[PricingContext]:
    """The context with each tilt of bytes."""
    # `group_bytes` has the rising weight in it already (`pricing_context`): take it out first.
    rising = 0.5 + first_places(d.problem, d.graph.groups) / d.problem.n
    for tilt in TILTS:
        yield replace(d, group_bytes=d.group_bytes / rising * (1.0 + tilt * (rising - 1.0)))


def _bracketed(
    d: PricingContext, costs_s: FloatArray, over: BoolArray, deadline_s: float
) -> tuple[FloatArray, FloatArray, list[IntArray]]:
    """Prices of devices that are over are raised until all fits: the last two, and placements."""
    unit = CHEAP * costs_s.min(axis=1).sum() / max(1.0, d.group_bytes.sum())
    low, places = np.zeros(d.problem.m), []
    high = low
    for _ in range(RAISES):
        low, high = high, np.where(over, np.maximum(4 * high, unit), high)
        place, over = _tried(d, costs_s, high, deadline_s)
        places.append(place)
        if not over.any() or time.perf_counter() >= deadline_s:
            break
    return low, high, places


def _bisected(
    d: PricingContext,
    costs_s: FloatArray,
    low: FloatArray,
    high: FloatArray,
    halvings: int,
    deadline_s: float,
) -> list[IntArray]:
    """Placements at the middles of the interval that still has a price at which all fits."""
    places: list[IntArray] = []
    for _ in range(halvings):
        if time.perf_counter() >= deadline_s:
            break
        middle = (low + high) / 2
        place, over = _tried(d, costs_s, middle, deadline_s)
        places.append(place)
        low, high = (middle, high) if over.any() else (low, middle)
    return places


def _tried(
    d: PricingContext, costs_s: FloatArray, prices_s: FloatArray, deadline_s: float
) -> tuple[IntArray, BoolArray]:
    """The placement at these prices, and which devices have too little memory for it."""
    place = d.place(d.solve(costs_s, prices_s, None, deadline_s).choice)
    judgement = d.judge(OperatorPlan(place))
    return place, judgement.peak_bytes > d.problem.memory_bytes
