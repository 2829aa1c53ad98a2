"""Exact latency where accelerators are called through host memory.

The problem is made smaller first: chains joined, idle operators left out, calls as devices.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import BoolArray, FloatArray, IntArray, thawed
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.call_graph import (
    CallGraph,
    call_graph,
    ideals,
    line,
    predecessors,
)
from placewright.operators.planners.call_labels import NO_LIMIT, CallChain, best_chain
from placewright.operators.problem import OperatorProblem
from placewright.operators.simulation.star import (
    accelerators,
    calls_of,
    is_star_latency,
    least_tails,
    most_calls,
    simulate_calls,
    star_latency,
    units,
)
from placewright.planning.contract import Context, Proposal


@final
@dataclass(frozen=True, slots=True)
class ExactLatency:
    """Labels on ideals: which calls and CPU blocks follow each other (see `call_labels`).

    The model is that of Tarnawski et al., NeurIPS 2020 (arXiv 2006.16423), section 5.1; the
    algorithm is ours. They give a mixed-integer program, whose relaxation is nearly useless
    where accelerators are many and small. Ideals (sets closed under predecessors) are few in
    neural networks, and between two ideals a call has one length.

    First along one topological order, then over all ideals with a beam, then over all ideals as if
    each call had an accelerator to itself, which gives a bound, then over all ideals: the last pass
    proves the optimum. At the deadline the least open label is the bound.
    Where ideals are many, chains of operators are joined before, except around the cuts of the
    last plan, as long as that helps. Operators without cost are left out and put back. With several
    calls per accelerator, a problem with one call on each of as many copies gives a bound, and
    mostly the plan.

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
        self._bound(graph, sets)
        if self.closed():
            return
        found = self._look(graph, sets, NO_LIMIT)
        if graph.exact:
            self.bound_s = max(self.bound_s, found.bound_s)
        self.note = "time limit: not proved" if graph.exact else "groups were merged: not proved"

    def _bound(self, graph: CallGraph, sets: list[int]) -> None:
        """As if there were an accelerator for each call."""
        if not graph.exact or self.problem.calls * len(graph.called) < 2:
            return
        found = best_chain(
            graph, sets, below_s=self.value_s, unlimited=True, deadline_s=self.context.deadline_s
        )
        self.bound_s = max(self.bound_s, found.bound_s)

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

    def _look(self, graph: CallGraph, sets: list[int], beam: int) -> CallChain:
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


def coarser(
    graph: CallGraph, without: BoolArray, apart: BoolArray, most: int
) -> tuple[CallGraph, list[int]] | None:
    """Join links of chains, most expensive transfers first, until there are at most `most` ideals.

    A link joins a block that has one reader to that reader, if it reads nothing else; joining
    them makes no cycle.

    `apart`: shape (n,): operators whose blocks stay as they are, if that leaves few enough.
    Returns the graph and its ideals; ``None`` where even all links joined leave too many.
    """
    links = _links(graph)
    kept = np.isin(links, graph.block[apart]).any(axis=1)
    links = links[np.lexsort((_bytes(graph)[links[:, 0]], ~kept))]
    low, high, found = 0, len(links) + 1, None
    # Bisection on how many links stay apart: the more of them, the more ideals.
    while low < high:
        middle = (low + high) // 2
        joined = _joined(graph, links[middle:])
        made = call_graph(graph.problem, without, joined)
        sets = ideals(predecessors(made), most)
        if sets is None:
            high = middle
        else:
            low, found = middle + 1, (made, sets)
    return found


def borders(graph: CallGraph, place: IntArray, reach: int) -> BoolArray:
    """Shape (n,): operators at most `reach` uses away from where a tensor changes devices."""
    p = graph.problem
    tensor = p.consumed
    maker, reader = p.tensor_producer[tensor], p.consumers
    near = np.zeros(p.n, dtype=np.bool_)
    crosses = place[maker] != place[reader]
    near[maker[crosses]] = near[reader[crosses]] = True
    for _ in range(reach):
        touched = near[maker] | near[reader]
        near[maker[touched]] = near[reader[touched]] = True
    return near


def _links(graph: CallGraph) -> IntArray:
    """Shape (e, 2): blocks of which the first has no other reader, the second no other input."""
    pairs = graph.arcs()
    readers = np.bincount(pairs[:, 0], minlength=graph.blocks)
    inputs = np.bincount(pairs[:, 1], minlength=graph.blocks)
    links: IntArray = pairs[(readers[pairs[:, 0]] == 1) & (inputs[pairs[:, 1]] == 1)]
    return links


def _bytes(graph: CallGraph) -> FloatArray:
    """Shape (b,): bytes of the tensors that each block makes."""
    p = graph.problem
    block = graph.block[p.tensor_producer]
    held = np.bincount(block[block >= 0], p.tensor_bytes[block >= 0], graph.blocks)
    return held.astype(np.float64)


def _joined(graph: CallGraph, links: IntArray) -> IntArray:
    """Shape (n,): a number for each operator, equal for those that are joined."""
    head = np.arange(graph.blocks)
    # Chains collapse from their ends: each block takes the number of the last one of its chain.
    after = dict(links.tolist())
    for b in range(graph.blocks - 1, -1, -1):  # blocks are numbered topologically
        if b in after:
            head[b] = head[after[b]]
    label = head[np.maximum(graph.block, 0)]
    left_out = graph.blocks + np.arange(len(label))
    return np.where(graph.block >= 0, label, left_out)


def free_sources(problem: OperatorProblem) -> BoolArray:
    """Shape (n,): takes no time on a CPU, waits for nothing, and what it makes moves for free.

    Some best plan has all of them on a CPU: there they are done at time 0, in no other
    operator's way, and no call is longer for it.
    """
    p, t = problem, problem.topology
    alone = _alone_on_cpu(p)
    free = np.zeros(p.n, dtype=np.bool_)
    for i in t.order.tolist():
        makers = p.tensor_producer[t.read_by(i)]
        made = t.made_by(i)
        free[i] = alone[i] and free[makers].all() and not p.tensor_bytes[made].any()
    return free


def idle_sinks(problem: OperatorProblem) -> BoolArray:
    """Shape (n,): takes no time on a CPU, reads one tensor, and nothing of weight reads it.

    Without them no plan gets longer, so a bound for the rest is a bound for all.
    """
    p, t = problem, problem.topology
    alone = _alone_on_cpu(p)
    idle = np.zeros(p.n, dtype=np.bool_)
    for i in t.order[::-1].tolist():
        readers = [p.readers(k) for k in t.made_by(i).tolist()]
        reads = t.in_offsets[i + 1] - t.in_offsets[i]
        idle[i] = alone[i] and reads == 1 and all(idle[r].all() for r in readers)
    return idle


def put_back(problem: OperatorProblem, place: IntArray, call: IntArray) -> OperatorPlan:
    """Give every operator without a device (-1) the one that delays least.

    A sink goes into the call of its producer where that avoids a transfer and fits, else to the
    fastest CPU.
    """
    p, t, place, call = problem, problem.topology, place.copy(), call.copy()
    unit = np.where(accelerators(p)[place], place * most_calls(p) + call, -1)
    cost = np.where(p.allowed(), p.compute_s, np.inf)
    on_cpu = np.where(accelerators(p), np.inf, cost).argmin(axis=1)
    need = np.ceil(p.resident_bytes)
    used = np.bincount(place[place >= 0], need[place >= 0], p.m)
    for i in t.order[place[t.order] < 0].tolist():
        place[i], call[i], unit[i] = on_cpu[i], 0, -1
        for k in t.read_by(i).tolist():
            maker, readers = p.tensor_producer[k], p.readers(k)
            seen = readers[place[readers] >= 0]
            # If the tensor leaves the call for another reader anyway, nothing is saved by staying.
            leaves = (unit[seen[seen != i]] != unit[maker]).any()
            fits = used[place[maker]] + need[i] <= p.memory_bytes[place[maker]]
            if unit[maker] >= 0 and not leaves and fits and cost[i, place[maker]] == 0.0:
                place[i], call[i], unit[i] = place[maker], call[maker], unit[maker]
        used[place[i]] += need[i]
    return OperatorPlan(place, call=call)


def _alone_on_cpu(p: OperatorProblem) -> BoolArray:
    """Whether an operator is a group of its own that some CPU runs in no time."""
    _, group, size = np.unique(p.colocation, return_inverse=True, return_counts=True)
    cpu_s = np.where(p.allowed() & ~accelerators(p), p.compute_s, np.inf).min(axis=1)
    alone: BoolArray = (size[group] == 1) & (cpu_s == 0.0)
    return alone


def one_call_each(problem: OperatorProblem) -> OperatorProblem:
    """Every call on a copy of its accelerator, with all of its memory, at any time.

    A relaxation: every plan of `problem` is one of this problem, and takes no longer there.
    """
    source = sources(problem)
    cost = np.where(problem.allowed(), problem.compute_s, np.inf)
    return problem.replace(
        device_names=tuple(f"{problem.device_names[d]}#{x}" for x, d in enumerate(source)),
        device_kinds=(),
        compute_s=cost[:, source],
        memory_bytes=problem.memory_bytes[source],
        host_seconds_per_byte=problem.host_seconds_per_byte[source],
        latency_s=np.zeros((len(source), len(source))),
        seconds_per_byte=np.zeros((len(source), len(source))),
        channel=np.zeros((len(source), len(source)), dtype=np.int64),
        channel_names=("host memory",),
        pinned=np.full(problem.n, -1),
        calls=1,
    )


def sources(problem: OperatorProblem) -> IntArray:
    """The device that each device of `one_call_each` is, or is a copy of."""
    copies = np.where(accelerators(problem), most_calls(problem), 1)
    return np.repeat(np.arange(problem.m), copies)


def packed(problem: OperatorProblem, copied: OperatorPlan) -> OperatorPlan | None:
    """The calls of a plan for `one_call_each` on the accelerators themselves.

    Largest first, each to the accelerator with least room that can take it; ``None`` where
    that leaves one over. Calls of an accelerator follow each other as they began.
    """
    p, source = problem, sources(problem)
    called = accelerators(p)
    copies = one_call_each(p)
    begin_s = simulate_calls(calls_of(copies), thawed(copied.placement), units(copies, copied))[1]
    need = np.bincount(copied.placement, np.ceil(p.resident_bytes), len(source))
    room, left = np.floor(p.memory_bytes), np.where(called, most_calls(p), 0)
    cost = np.where(p.allowed(), p.compute_s, np.inf)
    home = np.full(len(source), -1)
    home[~called[source]] = source[~called[source]]
    used = np.unique(copied.placement[called[source][copied.placement]])
    for x in sorted(used.tolist(), key=lambda x: (-need[x], x)):
        ops = np.flatnonzero(copied.placement == x)
        alike = (cost[ops] == cost[ops][:, [source[x]]]).all(axis=0) & called
        fits = np.flatnonzero(alike & (left > 0) & (room >= need[x]))
        if len(fits) == 0:
            return None
        home[x] = fits[np.argmin(room[fits])]
        room[home[x]] -= need[x]
        left[home[x]] -= 1
    call = _in_turn(home, begin_s, used, len(source))
    return OperatorPlan(home[copied.placement], call=call[copied.placement])


def _in_turn(home: IntArray, begin_s: FloatArray, used: IntArray, count: int) -> IntArray:
    """Shape (count,): the number of each copy among those of its accelerator, as they began."""
    call = np.zeros(count, dtype=np.int64)
    for d in np.unique(home[used]).tolist():
        here = used[home[used] == d]
        call[here[np.argsort(begin_s[here], kind="stable")]] = np.arange(len(here))
    return call
