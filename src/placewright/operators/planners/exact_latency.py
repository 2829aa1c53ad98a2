"""Exact latency where accelerators are called through host memory."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import BoolArray
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.calls.chains import NO_LIMIT, Chain, best_chain
from placewright.operators.planners.calls.graph import CallGraph, call_graph
from placewright.operators.planners.calls.lattice import ideals, line, predecessors
from placewright.operators.planners.calls.reductions import (
    borders,
    coarser,
    free_sources,
    idle_sinks,
    one_call_each,
    packed,
    put_back,
    sources,
)
from placewright.operators.problem import OperatorProblem
from placewright.operators.simulation.star import (
    accelerators,
    is_star_latency,
    least_tails,
    star_latency,
)
from placewright.planning.contract import Context, Proposal


@final
@dataclass(frozen=True, slots=True)
class ExactLatency:
    """Labels on ideals: which calls and CPU blocks follow each other (see `calls.labels`).

    The model is that of Tarnawski et al., NeurIPS 2020 (arXiv 2006.16423), section 5.1; the
    algorithm is ours. They give a mixed-integer program, whose relaxation is nearly useless
    where accelerators are many and small. Ideals (sets closed under predecessors) are few in
    neural networks, and between two ideals a call has one length.

    First along one topological order, then over all ideals with a beam, then over all ideals:
    the last pass proves the optimum, or at the deadline gives the least open label as the bound.
    Where ideals are many, chains of operators are joined before, except around the cuts of the
    last plan, as long as that helps. Operators without cost are left out and put back
    (`calls.reductions`). With several calls per accelerator, a problem with one call on each of as
    many copies gives a bound, and mostly the plan (there, too).

    O(pairs of ideals x labels); the passes before the last are cut short by nothing but the
    deadline, so the same seed gives the same plan where it is not reached.

    Parameters
    ----------
    ideals
        The most that are listed; with more there is no proof.
    coarse_ideals
        The most in a graph whose chains were joined.
    beam
        Labels that are extended from each ideal in all passes but the last.
    operators
        Larger problems are not taken: reachability is a table of operators x tensors.
    """

    name: ClassVar[str] = "exact-latency"
    ideals: int = 50_000
    coarse_ideals: int = 500
    beam: int = 20
    operators: int = 10_000

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

    def __call__(self, problem: OperatorProblem, context: Context) -> Proposal[OperatorPlan]:
        """The plan; raises `InfeasibleError`: no plan fits."""
        search = CallSearch(problem, context, self)
        try:
            search.run()
        except KeyboardInterrupt:
            search.interrupted = True
        return search.proposal()


ROUNDING = 1e-12
"""Relative; sums of the same times in another order."""
MOST_COPIES = 256
"""Devices; with a copy for each of more calls than that, labels say too much to be compared."""


class CallSearch:
    """The best plan so far and the best bound."""

    def __init__(self, problem: OperatorProblem, context: Context, effort: ExactLatency) -> None:
        self.problem, self.context, self.effort = problem, context, effort
        self.begun = time.perf_counter()
        self.value_s = math.inf
        self.bound_s = float(least_tails(problem).max())
        self.best: OperatorPlan | None = None
        self.note = ""
        self.interrupted = False

    def run(self) -> None:
        """Single devices; without operators that only multiply ideals; with the sinks."""
        for d in np.flatnonzero(self.problem.allowed().all(axis=0)).tolist():
            self._offer(OperatorPlan(np.full(self.problem.n, d)))
        if self.problem.calls > 1:
            self._from_single_calls()
        sources, sinks = free_sources(self.problem), idle_sinks(self.problem)
        if not self.closed():
            self._explore(sources | sinks)
        # Left-out sinks are put back by a rule, which may lengthen the plan: then they take part.
        if sinks.any() and not self.closed():
            self._explore(sources)

    def closed(self) -> bool:
        """Whether nothing can be better."""
        return self.value_s <= self.bound_s * (1 + ROUNDING)

    def proposal(self) -> Proposal[OperatorPlan]:
        """The best plan, with its bound; raises `InfeasibleError`: there is none."""
        if self.best is None:
            raise InfeasibleError(
                "no plan of calls fits",
                where=self.problem.name,
                hint="add a CPU or an accelerator, raise a memory limit, or allow more calls",
            )
        bound = self.value_s if self.closed() else self.bound_s * (1 - ROUNDING)
        if self.closed():
            return Proposal(self.best, bound)
        return Proposal(self.best, bound, interrupted=self.interrupted, note=self.note)

    def _from_single_calls(self) -> None:
        """With one call each, which is no better, and on a copy per call, which is no worse."""
        fewer = CallSearch(self.problem.replace(calls=1), self.context.part(0.2), self.effort)
        try:
            fewer.run()
        finally:
            if fewer.best is not None:
                self._offer(fewer.best)
        if len(sources(self.problem)) <= MOST_COPIES:
            self._from_copies()

    def _from_copies(self) -> None:
        """On a copy per call."""
        more = CallSearch(one_call_each(self.problem), self.context.part(0.5), self.effort)
        more.run()
        # Copies relax calls, not groups: only where blocks are all there is does the bound hold.
        if call_graph(self.problem, np.zeros(self.problem.n, dtype=np.bool_)).exact:
            self.bound_s = max(self.bound_s, more.bound_s)
        plan = None if more.best is None else packed(self.problem, more.best)
        if plan is not None:
            self._offer(plan)

    def _explore(self, without: BoolArray) -> None:
        """One line of ideals; few, around the plan known; all with a beam; all."""
        graph = call_graph(self.problem, without)
        self._look(graph, line(graph), self.effort.beam)
        if self.closed():
            return
        sets = ideals(predecessors(graph), self.effort.ideals)
        if sets is None or len(sets) > self.effort.coarse_ideals:
            self._refine(graph, without)
        if sets is None:
            self.note = f"more than {self.effort.ideals} ideals: not proved"
            return
        if len(sets) <= self.effort.coarse_ideals:
            self._look(graph, sets, self.effort.beam)
        found = self._look(graph, sets, NO_LIMIT)
        if graph.exact:
            self.bound_s = max(self.bound_s, found.bound_s)
        self.note = "time limit: not proved" if graph.exact else "groups were merged: not proved"

    def _refine(self, graph: CallGraph, without: BoolArray) -> None:
        """Coarser graphs, fine where the last plan changes devices, while that helps."""
        near = np.zeros(self.problem.n, dtype=np.bool_)
        while self.context.remaining_s() > 0:
            before_s = self.value_s
            found = coarser(graph, without, near, self.effort.coarse_ideals)
            if found is None:
                return
            self._look(*found, self.effort.beam)
            if self.best is None or (self.value_s >= before_s and near.any()):
                return
            finer = borders(graph, self.best.placement, reach=2)
            if (finer == near).all():
                return
            near = finer

    def _look(self, graph: CallGraph, sets: list[int], beam: int) -> Chain:
        """The best chain that beats the plan known; its plan is judged."""
        found = best_chain(
            graph, sets, below_s=self.value_s, beam=beam, deadline_s=self.context.deadline_s
        )
        if math.isfinite(found.value_s):
            self._offer(put_back(self.problem, found.place, found.call))
        return found

    def _offer(self, plan: OperatorPlan) -> None:
        """Keep a plan that is better as judged."""
        value = judged(self.problem, plan)
        if value < self.value_s:
            self.value_s, self.best = value, plan
        self.context.progress(
            what="calls",
            value=self.value_s,
            bound=min(self.bound_s, self.value_s),
            elapsed_s=time.perf_counter() - self.begun,
        )


def judged(problem: OperatorProblem, plan: OperatorPlan) -> float:
    """The judge's value, ``inf`` where memory is short or a call would wait for itself."""
    used = np.bincount(plan.placement, np.ceil(problem.resident_bytes), problem.m)
    if (used > np.floor(problem.memory_bytes)).any():
        return math.inf
    try:
        return star_latency(problem, plan).value_s
    except InfeasibleError:
        return math.inf
