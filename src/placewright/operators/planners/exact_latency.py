"""Exact latency where accelerators are called through host memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from placewright.errors import InfeasibleError
from placewright.operators._star_latency import (
    accelerators,
    is_star_latency,
    least_tails,
    star_latency,
)
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners._call_chains import NO_LIMIT, Chain, best_chain
from placewright.operators.planners._call_graph import CallGraph, call_graph
from placewright.operators.planners._call_idle import free_sources, idle_sinks, put_back
from placewright.operators.planners._call_lattice import ideals, line, predecessors
from placewright.operators.problem import OperatorProblem
from placewright.planning import Context

ROUNDING = 1e-12
"""Relative; sums of the same times in another order."""


@final
@dataclass(frozen=True, slots=True)
class ExactLatency:
    """Labels on ideals: which calls and CPU blocks follow each other (see `_call_labels`).

    The model is that of Tarnawski et al., NeurIPS 2020 (arXiv 2006.16423), section 5.1; the
    algorithm is ours. They give a mixed-integer program, whose relaxation says next to nothing
    where accelerators are many and small. Ideals are few in neural networks, and between
    two ideals a call has one length.

    First along one topological order, then over all ideals with a beam, then over all ideals:
    the last pass proves the optimum, or at the deadline gives the least open label as the bound.
    Operators without cost are left out and put back (`_call_idle`).

    Parameters
    ----------
    ideals
        The most that are listed; with more, one topological order has to do.
    beam
        Labels that go on from each ideal in the first passes.
    """

    ideals: int = 50_000
    beam: int = 20

    @property
    def name(self) -> str:
        """``exact-latency``."""
        return "exact-latency"

    def supports(self, problem: OperatorProblem) -> str | None:
        """Star latency, with CPUs that hold everything."""
        if not is_star_latency(problem):
            return "not the latency of calls through host memory"
        if not (problem.memory_bytes[~accelerators(problem)] >= need_bytes(problem)).all():
            return "a CPU cannot hold everything"
        return None

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """The plan.

        Raises
        ------
        InfeasibleError
            No plan fits.
        """
        search = _Search(problem, context, self)
        try:
            search.run()
        except KeyboardInterrupt:
            search.note = "interrupted: not proved"
        return search.plan()


class _Search:
    """The best plan so far and what is proved about it."""

    def __init__(self, problem: OperatorProblem, context: Context, planner: ExactLatency) -> None:
        self.problem, self.context, self.planner = problem, context, planner
        self.value_s = math.inf
        self.bound_s = float(least_tails(problem).max())
        self.best: OperatorPlan | None = None
        self.note = ""

    def run(self) -> None:
        """Without operators that only multiply ideals; with the sinks where they matter."""
        sources, sinks = free_sources(self.problem), idle_sinks(self.problem)
        self.explore(call_graph(self.problem, sources | sinks))
        if sinks.any() and not self.closed():
            self.explore(call_graph(self.problem, sources))

    def explore(self, graph: CallGraph) -> None:
        """One line of ideals, then all of them, with and without a beam."""
        self.note = ""
        before = predecessors(graph)
        self.look(graph, line(before), self.planner.beam)
        if self.closed():
            return
        sets = ideals(before, self.planner.ideals)
        if sets is None:
            self.note = f"more than {self.planner.ideals} ideals: not proved"
            return
        self.look(graph, sets, self.planner.beam)
        found = self.look(graph, sets, NO_LIMIT)
        if graph.exact:
            self.bound_s = max(self.bound_s, found.bound_s)
        else:
            self.note = "groups that feed each other were merged: not proved"

    def look(self, graph: CallGraph, sets: list[int], beam: int) -> Chain:
        """The best chain that beats the plan known; its plan is judged."""
        deadline = self.context.deadline_s
        found = best_chain(graph, sets, below_s=self.value_s, beam=beam, deadline_s=deadline)
        self.offer(found)
        return found

    def offer(self, chain: Chain) -> None:
        """Judge a chain's plan, and keep it if it is better."""
        if not math.isfinite(chain.value_s):
            return
        plan = put_back(self.problem, chain.place, chain.call)
        value = judged(self.problem, plan)
        if value < self.value_s:
            self.value_s, self.best = value, plan
        self.context.progress(
            what="calls", value=self.value_s, lower_bound=self.bound_s, elapsed_s=0.0
        )

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
                "no plan fits",
                where=self.problem.name,
                hint="add a CPU or an accelerator, or raise a memory limit",
            )
        bound = min(self.bound_s, self.value_s) * (1 - ROUNDING)
        if self.closed():
            bound = self.value_s
        return replace(self.best, lower_bound_s=bound, note=self.note)


def need_bytes(problem: OperatorProblem) -> float:
    """All resident bytes, each operator's rounded up."""
    return float(np.ceil(problem.resident_bytes).sum())


def judged(problem: OperatorProblem, plan: OperatorPlan) -> float:
    """The judge's word, ``inf`` where memory is short or a call would wait for itself."""
    used = np.bincount(plan.placement, np.ceil(problem.resident_bytes), problem.m)
    if (used > np.floor(problem.memory_bytes)).any():
        return math.inf
    try:
        return star_latency(problem, plan).value_s
    except InfeasibleError:
        return math.inf
