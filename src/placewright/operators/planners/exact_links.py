"""Exact throughput of pipelines over links."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar, final

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import IntArray
from placewright.operators.judge import OperatorJudgement, judge
from placewright.operators.pipeline import PLAIN
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.contiguous_dp import line_or_none
from placewright.operators.planners.pipelines.contraction import contract
from placewright.operators.planners.pipelines.links.contraction import (
    Pairs,
    contract_pairs,
    star_stand_in,
)
from placewright.operators.planners.pipelines.links.moves import anneal
from placewright.operators.planners.pipelines.links.program import best_pairs, too_large
from placewright.operators.problem import Objective, OperatorProblem, pairwise_only
from placewright.planning.contract import Context, Proposal
from placewright.report.text import size
from placewright.solvers.programs import installed, missing

_ROUNDS = 4
"""How often memories are made smaller where a plan's tensors do not fit beside what lives there."""

STARTS = 0.25
"""Share of the time, at most, for what the program starts from."""


@final
@dataclass(frozen=True, slots=True)
class ExactLinks:
    """Optimal throughput where every pair of devices has a link of its own, contiguous or not.

    A mixed-integer program (`pipelines.links.program`) after Tarnawski et al., NeurIPS 2020, arXiv
    2006.16423, section 5.1, in whose place every tensor has a price for each pair of devices,
    solved by HiGHS. It starts from the best of: the plan at hand, single devices, and the line cut
    for a stand-in around host memory (`star_stand_in`), each annealed on the loads
    (`pipelines.links.moves`), in a quarter of the time. Where plans need not be contiguous,
    contiguous ones are tried first.

    The program counts resident bytes of a device, not the tensors of one sample that pass through.
    Where the judged peaks do not fit, the program is solved again with that much less
    memory; the bound is always that of the first program, which every plan that fits obeys.

    `moves`: of annealing, per node.
    """

    name: ClassVar[str] = "exact-links"
    moves: int = 2_000

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Throughput over links."""
        if problem.objective is not Objective.THROUGHPUT:
            return f"plans for throughput, not for {problem.objective}"
        if problem.pipeline.replication:
            return "does not support replicated stages over links"
        return pairwise_only(problem)

    def __call__(self, problem: OperatorProblem, context: Context) -> Proposal[OperatorPlan]:
        """The plan, with what was proved; raises `InfeasibleError`: no plan fits the memories."""
        tried, bound = _Tried(problem), 0.0
        # In ``auto`` other planners come after this one.
        if context.incumbent is not None and not problem.contiguous:
            context = context.part(0.5)
        try:
            at_hand = [] if context.incumbent is None else [context.incumbent.placement]
            tried.start(_share_of(context.deadline_s, STARTS), context.seed, self.moves, at_hand)
            if not problem.contiguous:
                _contiguous_first(tried, context)
            c = contract_pairs(problem, contiguous=problem.contiguous)
            if not tried.interrupted:
                bound = _solve(c, tried, context)
        except KeyboardInterrupt:
            if tried.best is None:
                raise
            tried.interrupted = True
        return tried.proposal(bound)


class _Tried:
    """The best plan so far, as judged."""

    def __init__(self, problem: OperatorProblem) -> None:
        self.problem = problem
        self.best: OperatorPlan | None = None
        self.value_s = math.inf
        self.note = ""
        self.interrupted = False
        self.miss = ""

    def offer(self, place: IntArray) -> OperatorJudgement | None:
        """Judge a placement and keep it if it is the best that fits."""
        try:
            judgement = judge(self.problem, OperatorPlan(place))
        except InfeasibleError as error:
            self.miss = self.miss or str(error)
            return None
        self.miss = self.miss or judgement.violation
        if judgement.feasible and judgement.value < self.value_s:
            self.best, self.value_s = OperatorPlan(place), judgement.value
        return judgement

    def start(self, deadline_s: float, seed: int, moves: int, at_hand: list[IntArray]) -> None:
        """The plan at hand, single devices, the line; annealed, each in its share of the time."""
        p = self.problem
        c = contract_pairs(p, contiguous=p.contiguous)
        singles = [np.full(p.n, d) for d in np.flatnonzero(p.allowed().all(axis=0))]
        places = [*at_hand, *singles, *line_of_stand_in(p, _share_of(deadline_s, 0.5))]
        for left, place in zip(range(len(places), 0, -1), places, strict=True):
            judgement = self.offer(place)
            node = c.of_nodes(place)
            if judgement is not None and c.fits(node) and np.array_equal(c.placement(node), place):
                until = _share_of(deadline_s, 1.0 / left)
                count = min(moves * c.nodes, 2_000_000)
                found = anneal(c, node, moves=count, heat=0.3, seed=seed, deadline_s=until)
                self.offer(c.placement(found))

    def proposal(self, bound: float) -> Proposal[OperatorPlan]:
        """The best, with a bound that it does not break."""
        if self.best is None:
            raise InfeasibleError(
                "no plan that fits was found",
                where=self.problem.name,
                by=self.miss or f"{size(self.problem.resident_bytes.sum())} resident",
                hint="raise a memory limit, add a device, or allow more time",
            )
        # A bound above the judged value is wrong somewhere: it is dropped rather than believed.
        sound = bound <= self.value_s * (1 + 1e-6)
        least = min(bound, self.value_s) if sound else 0.0
        return Proposal(self.best, least, interrupted=self.interrupted, note=self.note)


def _contiguous_first(tried: _Tried, context: Context) -> None:
    """A fifth of the time for plans that are contiguous too."""
    chain = tried.problem.replace(contiguous=True)
    with suppress(InfeasibleError):  # what lies on a cycle need not be together here
        _solve(contract_pairs(chain, contiguous=True), tried, context.part(0.2))


def _share_of(deadline_s: float, share: float) -> float:
    """When this share of the time from now to then is over."""
    now = time.perf_counter()
    return now + (deadline_s - now) * share


def line_of_stand_in(problem: OperatorProblem, deadline_s: float) -> list[IntArray]:
    """The placement of the best line around host memory, where there is one in time."""
    try:
        c = contract(star_stand_in(problem).replace(pipeline=PLAIN), contiguous=True)
    except InfeasibleError:
        return []
    found = line_or_none(c, deadline_s, always_one=False)
    return [] if found is None else [c.plan(found.stage, found.kinds).placement]


def _solve(c: Pairs, tried: _Tried, context: Context) -> float:
    """Let a solver look for better plans; the bound of the program."""
    there = installed("highspy")
    if too_large(c) or not there:
        tried.note = "too large for the solver: not proved" if there else missing("highspy")
        return 0.0
    bound = 0.0
    for turn in range(_ROUNDS):
        start = _start(c, tried)
        found, claim, tried.interrupted = best_pairs(
            c,
            start,
            seed=context.seed,
            deadline_s=context.deadline_s,
            progress=context.progress,
        )
        # Later programs have less memory than the problem, and bound nothing.
        bound = claim if turn == 0 else bound
        judgement = None if found is None else tried.offer(c.placement(found))
        if judgement is None or judgement.feasible or tried.interrupted:
            break
        over = np.maximum(0.0, judgement.peak_bytes - tried.problem.memory_bytes)
        c = replace(c, memory_bytes=np.maximum(0.0, c.memory_bytes - over))
    return bound


def _start(c: Pairs, tried: _Tried) -> IntArray | None:
    """The best plan on the nodes, where it keeps to them."""
    if tried.best is None:
        return None
    node = c.of_nodes(tried.best.placement)
    same = np.array_equal(c.placement(node), tried.best.placement)
    return node if same and c.fits(node) else None
