"""PBQP: least total time; CEFT+PBQP: a priced PBQP and local moves, re-solved in place."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import ClassVar, final

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.costs import groups_of
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.placements import Start, score_all, score_plan
from placewright.operators.planners.pricing import (
    PlacementGraph,
    PricingContext,
    by_load,
    improved,
    improving,
    pbqp_needs,
    pricing_context,
    serial_bound,
    within_memories,
    within_memory,
)
from placewright.operators.planners.starts import (
    least_total,
    list_starts,
    simple_placements,
    slack_aware,
    with_devices_exchanged,
    with_paths,
)
from placewright.operators.problem import Objective, OperatorProblem, Overlap, pairwise_only
from placewright.planning.contract import Context, Needs, Proposal, Share, last_of


@final
@dataclass(frozen=True, slots=True)
class PbqpPlanner:
    """Placement as a partitioned boolean quadratic problem.

    Scholz, Eckstein 2002 (doi 10.1145/513829.513854); Anderson, Gregg, CGO 2018, for neural
    networks. Nodes are colocation groups, options are devices, node costs run times, edge costs
    transfer times. It minimises the *sum* of all times: the right question where one thing runs
    at a time (``overlap=serial``), and otherwise a plan that seldom leaves the fastest device.

    Every group that reads a tensor pays for its transfer, though readers on one device share it:
    the sum is never less than the truth. Under ``overlap=serial`` a second solve in which the
    readers share one transfer, never more than the truth, gives a lower bound.

    Memory: bytes get a price where the judge sees too many held, until the plan fits; if no
    price does it, local moves repair the best plan.

    Parameters
    ----------
    branch_limit
        Branches of the exact solve; past it the best assignment found is taken.
    memory_rounds
        How often the price of bytes is raised.
    repair_moves
        Local moves where the prices found nothing that fits.
    relayed_share
        Of the time to the deadline that it takes in ``auto``, where others come after it.
    """

    name: ClassVar[str] = "pbqp"
    branch_limit: int = 200
    memory_rounds: int = 10
    repair_moves: int = 1_000
    relayed_share: Share = 0.1

    unsupported_reason = staticmethod(pairwise_only)

    def needs(self, problem: OperatorProblem) -> Needs:
        """As `pbqp_needs`."""
        return pbqp_needs(problem)

    def __call__(self, problem: OperatorProblem, context: Context) -> Proposal[OperatorPlan]:
        """The plan; raises `InfeasibleError`: no placement has a link for every tensor."""
        left_s = context.remaining_s()
        if context.incumbent is not None and math.isfinite(left_s):
            kept_s = (1 - self.relayed_share) * max(0.0, left_s)
            context = replace(context, deadline_s=context.deadline_s - kept_s)
        found, interrupted = last_of(self.plans(problem, context))
        return replace(found, interrupted=interrupted)

    def plans(self, problem: OperatorProblem, context: Context) -> Iterator[Proposal[OperatorPlan]]:
        """Ever better plans, the last one with what was proved; raises as a call does."""
        d = pricing_context(problem, self.branch_limit)
        costs = d.costs(problem.compute_s)
        rounds = within_memory(d, costs, self.memory_rounds, None, context.deadline_s)
        first = next(rounds)
        note = "" if first.proved else "branch limit reached: total time not proved least"
        places = (d.place(solution.choice) for solution in chain([first], rounds))
        for best in improving(d, places, self.repair_moves, context):
            plan = best.plan()
            yield Proposal(plan, note=note)
        if problem.overlap is Overlap.SERIAL and problem.objective is Objective.LATENCY:
            yield Proposal(plan, serial_bound(d, context.deadline_s), note=note)


DISTANCE = 0.03
"""Starts differ on at least this share of the operators."""


@dataclass(frozen=True, slots=True, eq=False)
class CeftPbqpState:
    """State that `resolve` starts from.

    Attributes
    ----------
    problem, plan
        Of the last solve.
    graph
        Groups and the tensors between them; holds as long as operators and tensors do.
    factors
        Shape (m,), prices of device time after the last round.
    """

    problem: OperatorProblem
    plan: OperatorPlan
    graph: PlacementGraph
    factors: FloatArray


@final
@dataclass(frozen=True, slots=True)
class CeftPbqp:
    """The critical path on CEFT's devices, the rest by PBQP, then judged local moves.

    After Huang, Fu, Hsu, SAMOS 2019 (doi 10.1007/978-3-030-27562-4_4), who combine CEFT (arXiv
    1701.08800) and PBQP for device placement; how they combine them is not public. Ours:

    - V0 fixes the critical path to CEFT's devices and lets PBQP place the rest.
    - V1 prices device time: solve, judge, raise prices of busy devices, repeat.
    - V2 is slack-aware: options that lengthen the longest path pay for it, transfers where there
      is slack count for less.
    - V4 repeats V0 with the paths of mean, least and largest costs.
    - V3 takes the best of these, of plain PBQP, of list schedules (by CEFT's costs: `ceft`,
      `ceft-cpop`; by mean costs: `heft`, `heft-contended`, `cpop`, `peft`) and of the trivial plans
      (single devices, round robin, stretches of the topological order), in ``auto`` also of the
      best plan so far, and improves them by local moves on the judge, critical operators first.
      So it is never worse than any of these.
    - Where plain PBQP does not fit the memories, bytes get a price on the devices that are short,
      the least at which the plan fits (`pricing`); what that and `PbqpPlanner` give is
      improved like the rest, with half as many moves again.

    A plan that fits the memories beats one that does not, then the shorter one wins. The amount
    of work is fixed by `effort`, so the same seed gives the same plan on every machine; only a
    deadline that comes first cuts it short.

    Parameters
    ----------
    effort
        Local moves times (operators + tensor uses): the default takes about half a second.
    starts
        How many of the best candidates are improved, in rounds that halve their number.
    price_rounds, price_step
        Rounds of V1 and the exponent of its price updates.
    halvings
        Of the interval in which the least price of bytes lies.
    heat
        First temperature of the moves, in mean operator times.
    branch_limit
        Branches of each PBQP; past it the best assignment found is taken.
    resolve_effort
        As `effort`, for `resolve`.
    relayed_share
        Of the time to the deadline that it takes in ``auto``, where longer searches come after it.
    """

    name: ClassVar[str] = "ceft+pbqp"
    effort: float = 9e6
    starts: int = 8
    price_rounds: int = 6
    price_step: float = 1.0
    halvings: int = 6
    heat: float = 0.3
    branch_limit: int = 4
    resolve_effort: float = 2.5e5
    relayed_share: Share = 0.4

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Links between pairs of devices, and a judge that follows the plan's order."""
        return pairwise_only(problem)

    def needs(self, problem: OperatorProblem) -> Needs:
        """One PBQP, after which it looks at the clock; the others use the same memory."""
        return pbqp_needs(problem)

    def __call__(self, problem: OperatorProblem, context: Context) -> Proposal[OperatorPlan]:
        """The plan; raises `InfeasibleError`: no placement has a link for every tensor."""
        d, left_s = pricing_context(problem, self.branch_limit), context.remaining_s()
        if context.incumbent is not None and math.isfinite(left_s):
            kept_s = (1 - self.relayed_share) * max(0.0, left_s)
            context = replace(context, deadline_s=context.deadline_s - kept_s)
        (best, _), interrupted = last_of(self._plans(d, context))
        return Proposal(best.plan(), interrupted=interrupted)

    def solve(
        self, problem: OperatorProblem, context: Context
    ) -> tuple[OperatorPlan, CeftPbqpState]:
        """The plan and what `resolve` needs to start from it. Ctrl-C is left to the caller."""
        d = pricing_context(problem, self.branch_limit)
        *_, (best, factors) = self._plans(d, context)
        return _with_state(d, best, factors)

    def resolve(
        self, problem: OperatorProblem, state: CeftPbqpState, context: Context
    ) -> tuple[OperatorPlan, CeftPbqpState]:
        """Plan again after costs, memories or links have changed, in milliseconds.

        Starts from the last plan (as it is, and with two devices exchanged), the last prices
        and the known structure. A problem with another graph is solved from the beginning.
        """
        if not _same_graph(problem, state.problem):
            return self.solve(problem, context)
        graph = replace(state.graph, groups=groups_of(problem))
        d = pricing_context(problem, self.branch_limit, graph)
        places, factors = simple_placements(d), state.factors
        places += with_devices_exchanged(state.plan.placement, problem.m)
        try:
            priced, factors = by_load(d, 1, self.price_step, factors, context.deadline_s)
            places += priced
        except InfeasibleError:
            pass  # no link for some tensor: other candidates may still find a way
        scored = score_all(d.judge, [p for p in places if _allowed(d, p)])
        first = min(_kept_starts(d, state.plan) + scored, key=lambda s: s.score)
        moves = _moves(problem, self.resolve_effort)
        best = improved(d, first, moves, context, seed=context.seed)
        return _with_state(d, best, factors)

    def _plans(self, d: PricingContext, context: Context) -> Iterator[tuple[Start, FloatArray]]:
        """Improving plans, each with its prices of device time."""
        begun, factors = time.perf_counter(), np.ones(d.problem.m)
        first = score_all(d.judge, [p for p in simple_placements(d) if _allowed(d, p)])
        if context.incumbent is not None:
            first.append(score_plan(d.judge, context.incumbent))
        best = min(first, key=lambda s: s.score, default=None)
        if best is not None and math.isfinite(best.score.value_s):
            yield best, factors
        candidates, factors = self._candidates(d, first, context)
        best = candidates[0]
        yield best, factors
        context.progress(
            what="local moves",
            value=best.score.value_s,
            bound=0.0,
            elapsed_s=time.perf_counter() - begun,
        )
        for found in self._walked(d, candidates, context):
            if found.score < best.score:
                best = found
                yield best, factors

    def _walked(
        self, d: PricingContext, candidates: list[Start], context: Context
    ) -> Iterator[Start]:
        """What walks find from the candidates and, where memory is short, from priced bytes."""
        yield from self._moved(d, candidates, self.effort, context)
        if context.remaining_s() <= 0:
            return
        short = self._byte_priced(d, context)
        if short:
            yield short[0]
            yield from self._moved(d, short, self.effort / 2, context)

    def _candidates(
        self, d: PricingContext, first: list[Start], context: Context
    ) -> tuple[list[Start], FloatArray]:
        """V0, V1, V2, V4, list schedules and the `first`, trivial ones; best first."""
        deadline, places = context.deadline_s, list[IntArray]()
        factors = np.ones(d.problem.m)
        try:
            places += least_total(d, deadline)
            if context.remaining_s() > 0:
                places += with_paths(d, deadline)
            if context.remaining_s() > 0:
                places += slack_aware(d, deadline)
            if context.remaining_s() > 0:
                rounds = self.price_rounds
                priced, factors = by_load(d, rounds, self.price_step, factors, deadline)
                places += priced
        except InfeasibleError:
            pass  # no link for some tensor: other candidates may still find a way
        scored = score_all(d.judge, [p for p in places if _allowed(d, p)])
        return sorted(first + scored + list_starts(d, context), key=lambda s: s.score), factors

    def _byte_priced(self, d: PricingContext, context: Context) -> list[Start]:
        """PBQP with prices of bytes, where memory is short; best first."""
        costs = d.costs(d.problem.compute_s)
        try:
            places = within_memories(d, costs, self.halvings, context.deadline_s)
            if not places:
                return []
            *_, plain = PbqpPlanner().plans(d.problem, context)
        except InfeasibleError:
            return []  # no link for some tensor: other candidates may still find a way
        found = [score_plan(d.judge, plain.plan), *score_all(d.judge, places)]
        return sorted(found, key=lambda s: s.score)

    def _moved(
        self, d: PricingContext, candidates: list[Start], effort: float, context: Context
    ) -> Iterator[Start]:
        """V3: ends of walks; each round keeps the better half and takes half of the moves left."""
        walkers = _distinct(candidates, self.starts)
        left, walks = _moves(d.problem, effort), 0
        while walkers:
            # Successive halving: half of what is left for all walkers, then the better half of them
            # goes on.
            share = left // 2 if len(walkers) > 1 else left
            heat = self.heat if walks == 0 else self.heat / 10
            found = []
            for start in walkers:
                seed, moves = 101 * context.seed + walks, share // len(walkers)
                found.append(improved(d, start, moves, context, seed=seed, heat=heat))
                yield found[-1]
                walks += 1
            found.sort(key=lambda s: s.score)
            left, walkers = left - share, found[: len(walkers) // 2]


def _moves(problem: OperatorProblem, effort: float) -> int:
    return max(1, int(effort / (problem.n + len(problem.consumers))))


def _with_state(
    d: PricingContext, best: Start, factors: FloatArray
) -> tuple[OperatorPlan, CeftPbqpState]:
    plan = best.plan()
    return plan, CeftPbqpState(d.problem, plan, d.graph, factors)


def _distinct(candidates: list[Start], most: int) -> list[Start]:
    """The best candidates of which no two agree on nearly all operators."""
    kept: list[Start] = []
    for candidate in candidates:
        if len(kept) == most:
            break
        if all(np.mean(candidate.place != k.place) >= DISTANCE for k in kept):
            kept.append(candidate)
    return kept


def _kept_starts(d: PricingContext, plan: OperatorPlan) -> list[Start]:
    """The last plan, with its order and without, where it is still feasible."""
    if not _allowed(d, plan.placement):
        return []
    try:
        return [score_plan(d.judge, p) for p in (plan, OperatorPlan(plan.placement))]
    except InfeasibleError:
        return []


def _allowed(d: PricingContext, place: IntArray) -> bool:
    """Whether every operator is on a device that its group may use."""
    groups = d.graph.groups
    return bool(groups.allowed[groups.group, place].all())


def _same_graph(a: OperatorProblem, b: OperatorProblem) -> bool:
    """Whether operators, devices, tensors and groups are the same; costs may differ."""
    keys = ("tensor_producer", "consumer_offsets", "consumers", "colocation")
    return (a.n, a.m) == (b.n, b.m) and all(
        np.array_equal(getattr(a, key), getattr(b, key)) for key in keys
    )
