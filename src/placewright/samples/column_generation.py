"""Column generation: bounds by multipliers, columns that pay, and proofs that no plan fits."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.planning.contract import Progress, Proposal, silent
from placewright.samples.flow_program import (
    ALLOWED,
    WHOLE_SLACK,
    FlowProgram,
    Master,
    Moves,
    Prices,
    in_units,
    mix_range,
    mix_sides,
    program_of,
    usable_links,
)
from placewright.samples.plan import SamplePlan
from placewright.samples.problem import SampleProblem


@dataclass(frozen=True, slots=True, eq=False)
class Pricing:
    """Reduced costs ``send[i] send_s + receive[j] receive_s + price + leave[i, c] + arrive[j, c]``.

    `constant_s`: lagrange's bound without the moves.
    """

    program: FlowProgram
    send: FloatArray
    receive: FloatArray
    leave: FloatArray
    arrive: FloatArray
    constant_s: float

    def reduced_s(self, sample_class: int) -> FloatArray:
        """Shape (n, n): reduced cost of moving one sample; ``inf`` where there is no link."""
        p = self.program.problem
        with np.errstate(invalid="ignore"):
            cost = self.send[:, None] * p.send_s
            cost += self.receive[None, :] * p.receive_s
        cost += p.price_s
        cost += self.leave[:, sample_class, None]
        cost += self.arrive[None, :, sample_class]
        # Also NaN: no price times no link.
        cost[~np.isfinite(p.send_s + p.receive_s)] = np.inf
        return cost

    def most(self, sample_class: int) -> FloatArray:
        """Shape (n,): samples of the class that may leave each node in a plan without detours."""
        p = self.program.problem
        if p.relay:
            return np.full(p.n, float(p.samples[:, sample_class].sum()))
        return self.program.stock[:, sample_class].astype(np.float64)


def price(program: FlowProgram, prices: Prices) -> Pricing:
    """Reduced costs and the constant, from multipliers that are made to add up."""
    prices = _scaled(program, prices)
    p = program.problem
    send, receive, per_sample = np.zeros(p.n), np.zeros(p.n), np.zeros(p.n)
    constant = program.constant_s
    for rows, y in zip(program.rows, prices.rows, strict=True):
        send += rows.out_weight * y
        receive += rows.in_weight * y
        per_sample += rows.weight * y
        constant += float(y @ (rows.weight * p.held + rows.fixed))
    constant += prices.ranked * float((p.epochs * p.fixed_s).max())
    per_sample[program.stored] += prices.stored
    free = np.floor(p.storage[program.stored]) - p.held[program.stored]
    constant -= float(prices.stored @ free)
    constant -= float((prices.stock * program.stock).sum())
    holding = np.repeat(per_sample[:, None], p.k, axis=1)
    if program.mixed:
        low, high = mix_range(program)
        over, under = prices.mix_over, prices.mix_under
        holding += over - under + (under @ low - over @ high)[:, None]
        # All that the judge allows, whatever the master leaves to rounding: the bound holds for
        # every plan.
        side_over, side_under = mix_sides(program, ALLOWED)
        constant -= float((over * side_over + under * side_under).sum())
    leave = prices.stock - holding
    arrive = holding - (prices.stock if p.relay else 0.0)
    return Pricing(program, send, receive, leave, arrive, constant)


def _scaled(program: FlowProgram, prices: Prices) -> Prices:
    """Multipliers add up to one per time, however the solver rounded."""
    rows, ranked = list(prices.rows), max(prices.ranked, 0.0)
    for t in range(program.times):
        mine = [k for k, family in enumerate(program.rows) if family.time == t]
        shares = [ranked if program.rows[k].ranked else float(rows[k].sum()) for k in mine]
        # Their column has cost 1 and no upper end: any other sum would leave the bound at minus
        # infinity.
        total = sum(shares)
        for k in mine if total > 0 else ():
            if program.rows[k].ranked:
                ranked /= total
            else:
                rows[k] = rows[k] / total
    for k, family in enumerate(program.rows):
        if family.ranked:
            rows[k] = _carried(program, rows[k], ranked)
    return replace(prices, rows=tuple(rows), ranked=ranked)


def _carried(program: FlowProgram, y: FloatArray, ranked: float) -> FloatArray:
    """Multipliers of ``steps_i >= held_i`` that some multipliers of the ranks carry.

    From any rank on they must add up to at most `ranked` times the work of that rank's node.
    """
    work, ordered = program.problem.work_s[program.order], y[program.order]
    # The largest multipliers below `y` whose sums from the back keep the caps: less can only
    # loosen.
    later = np.cumsum(ordered[::-1])[::-1]
    cap = np.minimum.accumulate(np.minimum(later, ranked * work))
    kept = np.empty(len(y))
    kept[program.order] = cap - np.append(cap[1:], 0.0)
    return np.maximum(kept, 0.0)


def bound_and_columns(pricing: Pricing, per_node: int) -> tuple[float, Moves, float]:
    """Lagrange's bound, the columns that pay most, and the least reduced cost.

    `per_node`: at most so many columns out of, and into, each node and class.
    """
    bound = pricing.constant_s
    found: list[tuple[IntArray, ...]] = []
    least, usable = 0.0, usable_links(pricing.program.problem)
    for c in range(pricing.program.problem.k):
        cost = pricing.reduced_s(c)
        best = cost.min(axis=1)
        # Each node sends at most `most`, all of it by its cheapest move where that pays.
        bound += float(pricing.most(c) @ np.minimum(best, 0.0))
        least = min(least, float(best.min()))
        source, target = _cheapest(np.where(usable, cost, np.inf), per_node)
        found.append((source, target, np.full(len(source), c)))
    joined = [np.concatenate([part[f] for part in found]).astype(np.int64) for f in range(3)]
    return bound, Moves(*joined), least


def _cheapest(cost: FloatArray, per_node: int) -> tuple[IntArray, IntArray]:
    """Negative entries among the cheapest of their row or column."""
    n = len(cost)
    few = min(per_node, n - 1)
    chosen = np.zeros(cost.shape, dtype=np.bool_)
    np.put_along_axis(chosen, np.argpartition(cost, few, axis=1)[:, :few], True, axis=1)
    np.put_along_axis(chosen, np.argpartition(cost, few, axis=0)[:few], True, axis=0)
    source, target = np.nonzero(chosen & (cost < 0))
    return source.astype(np.int64), target.astype(np.int64)


TOLERANCE = 2e-4
"""Relative distance of the master's value from the bound at which the generation stops."""

PER_NODE = 5
"""Columns that join per round, out of and into each node."""

MISSED = 1e-6
"""Samples in the wrong place that are the solver's rounding."""

SUMMED = 1e-9
"""Taken off the bound: the judge sums in another order."""


@dataclass(frozen=True, slots=True, eq=False)
class Generated:
    """A master with as many columns as it took, or as there was time for.

    `bound`: of the program's value, in its unit of time; true at every moment.
    `finished`: whether value and bound have met.
    """

    master: Master
    bound: float
    finished: bool

    @property
    def misses(self) -> bool:
        """Whether samples stay in the wrong place, where no further column can help."""
        return self.finished and self.master.missing > MISSED


def generate_columns(
    program: FlowProgram,
    moves: Moves,
    deadline_s: float,
    progress: Progress = silent,
    *,
    slack: float | None = None,
    most_missing: float = math.inf,
) -> Generated:
    """Begin with `moves`, add those that pay, end when no more than `TOLERANCE` is to be gained.

    `slack`, `most_missing`: see `placewright.samples.flow_program.Master`.
    """
    start = time.perf_counter()
    master = Master(program, slack=slack, most_missing=most_missing)
    master.add(moves)
    bound, finished, present = 0.0, False, _Present(program.problem, moves)
    while master.solve(deadline_s):
        pricing = price(program, master.prices())
        proved, found, _ = bound_and_columns(pricing, PER_NODE)
        bound = max(bound, proved * (1.0 - SUMMED))
        progress(
            what=f"{len(master.moves)} moves",
            value=math.inf,
            bound=bound,
            elapsed_s=time.perf_counter() - start,
        )
        # Nothing new although bound and value differ: what is left is rounding.
        fresh = present.add(found)
        finished = master.value_s <= bound * (1.0 + TOLERANCE) or len(fresh) == 0
        if finished or time.perf_counter() > deadline_s:
            break
        master.add(fresh)
    return Generated(master, bound, finished)


class _Present:
    """Which columns the master has; reduced costs near zero may select one again."""

    def __init__(self, problem: SampleProblem, moves: Moves) -> None:
        self._here = np.zeros((problem.n, problem.n, problem.k), dtype=np.bool_)
        self.add(moves)

    def add(self, moves: Moves) -> Moves:
        """Those of `moves` that are new."""
        at = (moves.source, moves.target, moves.sample_class)
        new = ~self._here[at]
        self._here[at] = True
        return Moves(*(entries[new] for entries in at))


def check_possible(program: FlowProgram, moves: Moves, deadline_s: float) -> Moves:
    """`moves` and those that it takes to have every sample in its place.

    Raises `InfeasibleError` (proved: no plan has).
    """
    problem = program.problem
    found = generate_columns(program_of(_timeless(problem)), moves, deadline_s, slack=ALLOWED)
    if found.bound > MISSED + SUMMED * float(problem.held.sum()):
        raise InfeasibleError(
            "no plan keeps storage, protection and label mix",
            where=problem.name,
            by=f"at least {found.bound:.3g} samples are in the wrong place",
            hint="widen label_mix, raise a storage, or protect less",
        )
    return found.master.moves


def _timeless(problem: SampleProblem) -> SampleProblem:
    none = np.zeros(problem.n)
    return problem.replace(
        seconds_per_sample=none,
        fixed_s=none,
        send_s=_free(problem.send_s),
        receive_s=_free(problem.receive_s),
        price_s=np.zeros_like(problem.price_s),
        sync_s=0.0,
    )


def _free(port_s: FloatArray) -> FloatArray:
    """No time over links that are there."""
    free: FloatArray = np.where(np.isfinite(port_s), 0.0, np.inf)
    return free


GAP = 1e-4
"""Relative distance from its bound at which HiGHS stops."""


def whole_plan(
    problem: SampleProblem,
    moves: Moves,
    deadline_s: float,
    *,
    start: FloatArray | None = None,
    every: bool = False,
) -> Proposal[SamplePlan]:
    """The best plan of whole samples that uses only `moves`, as good as time and Ctrl-C allow.

    `start`: shape (moves,): a plan to start from.
    `every`: whether `moves` are all moves there are, so that the solver's bound holds for every
    plan. With a label mix none is claimed: solvers keep the mix by a hair more than the judge.
    Raises `InfeasibleError`: nothing was found.
    Raises `MissingDependencyError`: HiGHS is not installed.
    """
    scaled, units = in_units(problem)
    program = program_of(scaled)
    # First with a hair less than the judge allows a label mix; a plan may need all of it.
    for slack in (WHOLE_SLACK, ALLOWED) if program.mixed else (WHOLE_SLACK,):
        most_missing = MISSED if program.mixed else math.inf
        master = Master(program, whole=True, gap=GAP, slack=slack, most_missing=most_missing)
        master.add(moves)
        if start is not None:
            master.start_from(start)
        master.solve(deadline_s)
        # Samples in the wrong place: no plan, whatever it costs.
        if master.answer.values is not None and master.missing <= MISSED:
            proved = every and not program.mixed
            return _proposal(master, master.proved_s / units if proved else 0.0)
        if master.answer.interrupted:
            raise KeyboardInterrupt
    raise InfeasibleError("no plan of whole samples was found", where=problem.name)


def _proposal(master: Master, proved_s: float) -> Proposal[SamplePlan]:
    count = np.rint(master.flow()).astype(np.int64)
    kept, moves = np.flatnonzero(count), master.moves
    plan = SamplePlan(moves.source[kept], moves.target[kept], count[kept], moves.sample_class[kept])
    return Proposal(plan, proved_s, interrupted=master.answer.interrupted)
