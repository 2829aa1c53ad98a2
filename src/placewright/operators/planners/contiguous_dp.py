"""Contiguous throughput by dynamic programming: over all ideals, or over the prefixes of a line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, final

import numpy as np

from placewright.errors import InfeasibleError
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.pipelines.contiguous import (
    MOST_CELLS,
    IdealChain,
    IdealLattice,
    NoTimeLeftError,
    best_chain,
    chain,
    lattice_of,
)
from placewright.operators.planners.pipelines.contraction import (
    Contraction,
    contract,
    depth_first_order,
)
from placewright.operators.problem import OperatorProblem, star_throughput_only
from placewright.planning.contract import Context, Proposal, last_of


@final
@dataclass(frozen=True, slots=True)
class LinearisedDp:
    """Throughput by dynamic programming over the prefixes of depth-first orders ("DPL").

    Tarnawski et al., NeurIPS 2020, arXiv 2006.16423, section 5.1. The forward graph is contracted
    (colocation groups, cycles between them), lined up depth first, and cut optimally: O(N^2 S K)
    for N nodes, S ways to use up devices of K kinds. Plans are contiguous.

    Departures: two depth-first orders (of what becomes ready together the last first, or the
    first first) where the paper has one; nodes without work are not absorbed; unlike
    accelerators are kinds of their own.
    """

    name: ClassVar[str] = "dpl"

    unsupported_reason = staticmethod(star_throughput_only)

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """The plan; raises `InfeasibleError`: no cut of either line fits the memories."""
        c = contract(problem, contiguous=True)
        found = best_line(c, context.deadline_s)
        return c.plan(found.stage, found.kinds)


def best_line(
    c: Contraction, deadline_s: float = float("inf"), *, always_one: bool = True
) -> IdealChain:
    """The best cut of the lines; only the first one where time is short.

    `always_one`: whether the first line is cut even beyond the deadline.
    Raises `InfeasibleError`: no cut fits, or none was found in time.
    """
    best: IdealChain | None = None
    first_s = float("inf") if always_one else deadline_s
    if (c.nodes + 1) * np.prod(np.array(c.counts) + 1.0) > MOST_CELLS:
        raise InfeasibleError(
            "there are too many kinds of devices for dynamic programming",
            by=f"more than {MOST_CELLS} cells for {c.nodes} nodes on {len(c.pools)} kinds",
            hint="try --planner exact, or make devices alike",
        )
    for last_first in (True, False):
        line = chain(depth_first_order(c.nodes, c.edges, last_first=last_first))
        try:
            found = (
                _within_reach(c, line, first_s)
                if best is None
                else best_chain(c, line, best.value_s, deadline_s)
            )
        except NoTimeLeftError:
            break
        if found is not None and (best is None or found.value_s < best.value_s):
            best = found
    if best is None:
        raise InfeasibleError(
            "no cut of the line fits the memories",
            hint="try --planner exact, which is not bound to a line",
        )
    return best


def _within_reach(c: Contraction, line: IdealLattice, deadline_s: float) -> IdealChain | None:
    """The best cut, under limits that double: a low one keeps the stages that are tried short.

    Raises `NoTimeLeftError` (at the deadline).
    """
    limit = 1.5 * c.least_s
    while 0.0 < limit < c.most_s:  # zero where nothing takes time but transfers
        found = best_chain(c, line, limit, deadline_s)
        if found is not None:
            return found
        limit *= 2.0
    return best_chain(c, line, np.inf, deadline_s)


def line_or_none(
    c: Contraction, deadline_s: float, *, always_one: bool = True
) -> IdealChain | None:
    """The best cut of the lines, where one fits and is found; see `best_line`."""
    try:
        return best_line(c, deadline_s, always_one=always_one)
    except InfeasibleError:
        return None


@final
@dataclass(frozen=True, slots=True)
class IdealDp:
    """Optimal contiguous throughput where the forward graph has few ideals ("DP").

    Tarnawski et al., NeurIPS 2020, arXiv 2006.16423, section 5.1: dp[k][l][I] is the minimum over
    ideals J inside I of max(dp of the rest on J, load of I - J). Time and memory grow with the
    number of ideals and of their pairs.

    Departures: walks end where a stage has more work than the plan of `LinearisedDp`; with more
    than `most_ideals`, or at the deadline, that plan is the answer, without a bound.

    `most_ideals`: more are not tried.
    """

    name: ClassVar[str] = "dp"
    most_ideals: int = 100_000

    unsupported_reason = staticmethod(star_throughput_only)

    def __call__(self, problem: OperatorProblem, context: Context) -> Proposal[OperatorPlan]:
        """The plan; a lower bound where the problem asks for contiguous plans.

        Raises `InfeasibleError` (no contiguous plan fits).
        """
        found, interrupted = last_of(self._finds(problem, context))
        return replace(found, interrupted=interrupted)

    def _finds(
        self, problem: OperatorProblem, context: Context
    ) -> Iterator[Proposal[OperatorPlan]]:
        """The line's plan, where there is one, then the best over all ideals."""
        c = contract(problem, contiguous=True)
        line = line_or_none(c, context.deadline_s)
        if line is not None:
            yield Proposal(c.plan(line.stage, line.kinds))
        try:
            found = over_ideals(c, line, self.most_ideals, context.deadline_s)
        except NoProofError as error:
            if line is None:
                raise InfeasibleError(f"no plan found: {error}", where=problem.name) from None
            yield Proposal(c.plan(line.stage, line.kinds), note=f"{error}: the line's plan")
            return
        provable = problem.contiguous and counts_all(problem)
        bound = proved(found, problem.n) if provable else None
        yield Proposal(c.plan(found.stage, found.kinds), bound)


def counts_all(problem: OperatorProblem) -> bool:
    """Whether the tables count loads as the judge does: not with clusters, nor pass by pass."""
    return not (problem.pipeline.cluster or problem.pipeline.diffmaxima)


class NoProofError(Exception):
    """Why not all ideals were looked at."""


def over_ideals(
    c: Contraction, line: IdealChain | None, most: int, deadline_s: float
) -> IdealChain:
    """The best chain of ideals.

    `line`: a chain that is known; stages with more work than its largest are not looked at.
    `most`: ideals; fewer where the table would grow too large.
    Raises `NoProofError`: there are more ideals, or time is up.
    Raises `InfeasibleError`: no chain fits the memories.
    """
    states = float(np.prod(np.array(c.counts) + 1.0))
    most = min(most, int(MOST_CELLS / states))
    lattice = lattice_of(c, most, deadline_s)
    if lattice is None:
        raise NoProofError(f"more than {most} ideals, or no time")
    limit = np.inf if line is None else line.value_s * (1 + 1e-9)
    try:
        found = best_chain(c, lattice, limit, deadline_s)
    except NoTimeLeftError:
        raise NoProofError("time limit reached") from None
    if found is None:
        raise InfeasibleError("no contiguous plan fits the memories")
    return found


def proved(chain: IdealChain, n: int) -> float:
    """A bound: the optimum less what rounding in sums of n numbers can do."""
    return chain.value_s * (1.0 - 8.0 * n * float(np.finfo(np.float64).eps))
