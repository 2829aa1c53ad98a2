"""The best contiguous plan, by dynamic programming over ideals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from placewright.errors import InfeasibleError
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.linearised_dp import line_or_none
from placewright.operators.planners.pipelines.contiguous.ideals import (
    MOST_CELLS,
    Chain,
    OutOfTimeError,
    best_chain,
    lattice_of,
)
from placewright.operators.planners.pipelines.contraction import Contraction, contract
from placewright.operators.problem import OperatorProblem, star_throughput_only
from placewright.planning.anytime import last_of
from placewright.planning.contract import Context


@final
@dataclass(frozen=True, slots=True)
class IdealDp:
    """Optimal contiguous throughput where the forward graph has few ideals ("DP").

    Tarnawski et al., NeurIPS 2020, arXiv 2006.16423, section 5.1: dp[k][l][I] is the minimum over
    ideals J inside I of max(dp of the rest on J, load of I - J). Time and memory grow with the
    number of ideals and of their pairs.

    Departures: walks end where a stage has more work than the plan of `LinearisedDp`; with more
    than `most_ideals`, or at the deadline, that plan is the answer, without a bound.

    Parameters
    ----------
    most_ideals
        More are not tried.
    """

    most_ideals: int = 100_000

    @property
    def name(self) -> str:
        """``dp``."""
        return "dp"

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Throughput through host memory."""
        return star_throughput_only(problem)

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """The plan; a lower bound where the problem asks for contiguous plans.

        Raises
        ------
        InfeasibleError
            No contiguous plan fits.
        """
        plan, ended = last_of(self._finds(problem, context))
        return replace(plan, note=ended or plan.note)

    def _finds(self, problem: OperatorProblem, context: Context) -> Iterator[OperatorPlan]:
        """The line's plan, where there is one, then the best over all ideals."""
        c = contract(problem, contiguous=True)
        line = line_or_none(c, context.deadline_s)
        if line is not None:
            yield c.plan(line.stage, line.kinds)
        try:
            found = over_ideals(c, line, self.most_ideals, context.deadline_s)
        except NoProofError as error:
            if line is None:
                raise InfeasibleError(f"no plan found: {error}", where=problem.name) from None
            yield replace(c.plan(line.stage, line.kinds), note=f"{error}: the line's plan")
            return
        provable = problem.contiguous and counts_all(problem)
        bound = proved(found, problem.n) if provable else 0.0
        yield replace(c.plan(found.stage, found.kinds), lower_bound_s=bound)


def counts_all(problem: OperatorProblem) -> bool:
    """Whether the tables count loads as the judge does: not with clusters, nor pass by pass."""
    return not (problem.pipeline.cluster or problem.pipeline.diffmaxima)


class NoProofError(Exception):
    """Why not all ideals were looked at."""


def over_ideals(c: Contraction, line: Chain | None, most: int, deadline_s: float) -> Chain:
    """The best chain of ideals.

    Parameters
    ----------
    line
        A chain that is known; stages with more work than its largest are not looked at.
    most
        Ideals; fewer where the table would grow too large.

    Raises
    ------
    NoProofError
        There are more ideals, or time is up.
    InfeasibleError
        No chain fits the memories.
    """
    states = float(np.prod(np.array(c.counts) + 1.0))
    most = min(most, int(MOST_CELLS / states))
    lattice = lattice_of(c, most, deadline_s)
    if lattice is None:
        raise NoProofError(f"more than {most} ideals, or no time")
    limit = np.inf if line is None else line.value_s * (1 + 1e-9)
    try:
        found = best_chain(c, lattice, limit, deadline_s)
    except OutOfTimeError:
        raise NoProofError("time limit reached") from None
    if found is None:
        raise InfeasibleError("no contiguous plan fits the memories")
    return found


def proved(chain: Chain, n: int) -> float:
    """A bound: the optimum less what rounding in sums of n numbers can do."""
    return chain.value_s * (1.0 - 8.0 * n * float(np.finfo(np.float64).eps))
