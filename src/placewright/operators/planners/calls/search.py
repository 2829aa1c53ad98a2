"""From one line of ideals to all of them: plans of calls, and what is proved about them."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import BoolArray
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.calls.chains import NO_LIMIT, Chain, best_chain
from placewright.operators.planners.calls.coarse import borders, coarser
from placewright.operators.planners.calls.copies import one_call_each, packed, sources
from placewright.operators.planners.calls.graph import CallGraph, call_graph
from placewright.operators.planners.calls.idle import free_sources, idle_sinks, put_back
from placewright.operators.planners.calls.lattice import ideals, line, predecessors
from placewright.operators.problem import OperatorProblem
from placewright.operators.simulation.star.latency import least_tails, star_latency
from placewright.planning.contract import Context

ROUNDING = 1e-12
"""Relative; sums of the same times in another order."""
MOST_COPIES = 256
"""Devices; with a copy for each of more calls than that, labels say too much to be compared."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How far to go; see `ExactLatency`."""

    ideals: int
    coarse_ideals: int
    beam: int


class CallSearch:
    """The best plan so far and the best bound."""

    def __init__(self, problem: OperatorProblem, context: Context, effort: Effort) -> None:
        self.problem, self.context, self.effort = problem, context, effort
        self.begun = time.perf_counter()
        self.value_s = math.inf
        self.bound_s = float(least_tails(problem).max())
        self.best: OperatorPlan | None = None
        self.note = ""

    def run(self) -> None:
        """Single devices; without operators that only multiply ideals; with the sinks."""
        for d in np.flatnonzero(self.problem.allowed().all(axis=0)).tolist():
            self._offer(OperatorPlan(np.full(self.problem.n, d)))
        if self.problem.calls > 1:
            self._from_single_calls()
        sources, sinks = free_sources(self.problem), idle_sinks(self.problem)
        if not self.closed():
            self._explore(sources | sinks)
        if sinks.any() and not self.closed():
            self._explore(sources)

    def closed(self) -> bool:
        """Whether nothing can be better."""
        return self.value_s <= self.bound_s * (1 + ROUNDING)

    def plan(self) -> OperatorPlan:
        """The best plan, with its bound.

        Raises
        ------
        InfeasibleError
            There is none.
        """
        if self.best is None:
            raise InfeasibleError(
                "no plan of calls fits",
                where=self.problem.name,
                hint="add a CPU or an accelerator, raise a memory limit, or allow more calls",
            )
        bound = self.value_s if self.closed() else self.bound_s * (1 - ROUNDING)
        return replace(self.best, lower_bound_s=bound, note="" if self.closed() else self.note)

    def _from_single_calls(self) -> None:
        """With one call each, which is no better, and on a copy per call, which is no worse."""
        fewer = CallSearch(self.problem.replace(calls=1), self._share(0.2), self.effort)
        try:
            fewer.run()
        finally:
            if fewer.best is not None:
                self._offer(fewer.best)
        if len(sources(self.problem)) <= MOST_COPIES:
            self._from_copies()

    def _from_copies(self) -> None:
        """On a copy per call."""
        more = CallSearch(one_call_each(self.problem), self._share(0.5), self.effort)
        more.run()
        if call_graph(self.problem, np.zeros(self.problem.n, dtype=np.bool_)).exact:
            self.bound_s = max(self.bound_s, more.bound_s)
        plan = None if more.best is None else packed(self.problem, more.best)
        if plan is not None:
            self._offer(plan)

    def _share(self, part: float) -> Context:
        """A context that ends after this part of the time left."""
        left = self.context.remaining_s()
        end = time.perf_counter() + part * left if math.isfinite(left) else math.inf
        return replace(self.context, deadline_s=end)

    def _explore(self, without: BoolArray) -> None:
        """One line of ideals; few, around the plan known; all with a beam; all."""
        graph = call_graph(self.problem, without)
        before = predecessors(graph)
        self._look(graph, line(before), self.effort.beam)
        if self.closed():
            return
        sets = ideals(before, self.effort.ideals)
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
        """Keep a plan that is better by the judge's word."""
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
    """The judge's word, ``inf`` where memory is short or a call would wait for itself."""
    used = np.bincount(plan.placement, np.ceil(problem.resident_bytes), problem.m)
    if (used > np.floor(problem.memory_bytes)).any():
        return math.inf
    try:
        return star_latency(problem, plan).value_s
    except InfeasibleError:
        return math.inf
