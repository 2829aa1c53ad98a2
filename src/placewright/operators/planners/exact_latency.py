"""Exact latency where accelerators are called through host memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.calls.search import CallSearch, Effort
from placewright.operators.problem import OperatorProblem
from placewright.operators.simulation.star.latency import accelerators, is_star_latency
from placewright.planning.contract import INTERRUPTED, Context


@final
@dataclass(frozen=True, slots=True)
class ExactLatency:
    """Labels on ideals: which calls and CPU blocks follow each other (see `calls.labels`).

    The model is that of Tarnawski et al., NeurIPS 2020 (arXiv 2006.16423), section 5.1; the
    algorithm is ours. They give a mixed-integer program, whose relaxation says next to nothing
    where accelerators are many and small. Ideals (sets closed under predecessors) are few in
    neural networks, and between two ideals a call has one length.

    First along one topological order, then over all ideals with a beam, then over all ideals:
    the last pass proves the optimum, or at the deadline gives the least open label as the bound.
    Where ideals are many, chains of operators are joined before, except around the cuts of the
    last plan, as long as that helps. Operators without cost are left out and put back
    (`calls.idle`). With several calls per accelerator, a problem with one call on each of as many
    copies gives a bound, and mostly the plan (`calls.copies`).

    O(pairs of ideals x labels); the passes before the last are cut short by nothing but the
    deadline, so the same seed gives the same plan where it is not reached.

    Parameters
    ----------
    ideals
        The most that are listed; with more there is no proof.
    coarse_ideals
        The most in a graph whose chains were joined.
    beam
        Labels that go on from each ideal in all passes but the last.
    operators
        Larger problems are not taken: who waits for whom is a table of operators x tensors.
    """

    ideals: int = 50_000
    coarse_ideals: int = 500
    beam: int = 20
    operators: int = 10_000

    @property
    def name(self) -> str:
        """``exact-latency``."""
        return "exact-latency"

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Star latency, with CPUs that hold everything."""
        if not is_star_latency(problem):
            return "not the latency of calls through host memory"
        need = float(np.ceil(problem.resident_bytes).sum())
        if not (problem.memory_bytes[~accelerators(problem)] >= need).all():
            return "a CPU cannot hold everything"
        if problem.n > self.operators:
            return f"more than {self.operators} operators"
        return None

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """The plan.

        Raises
        ------
        InfeasibleError
            No plan fits.
        """
        effort = Effort(self.ideals, self.coarse_ideals, self.beam)
        search = CallSearch(problem, context, effort)
        try:
            search.run()
        except KeyboardInterrupt:
            search.note = INTERRUPTED
        return search.plan()
