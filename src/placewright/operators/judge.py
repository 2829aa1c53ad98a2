"""The judge of wing 1: the only code that says what a plan is worth.

**Latency.** Every device runs one operator at a time, without preemption. Under
``Dispatch.READY`` a free device at once starts the ready operator that comes first in the
plan's order (upward rank under this very placement where the plan has none; ties by operator
index); under ``Dispatch.IN_ORDER`` it runs its operators in the plan's order and waits. A
finished tensor is sent once to every other device that consumes it, takes ``latency_s + bytes *
seconds_per_byte``, and holds its channel for all of that time. A channel serves first come,
first served by the time the producer ended; ties by the best place in the order among the
consumers there, then tensor, then target. All that ends at one time is taken note of before
channels and then devices choose. With ``links=free`` no transfer waits; with ``overlap=serial``
one operator or transfer is at work in the whole system, and transfers follow their producer.

**Memory.** Resident bytes always. A tensor on its sender from its producer's start until its
last local consumer and its last outgoing transfer have ended; on a receiver from its arrival
until its last consumer there has ended. Intervals are half-open: what ends at a time makes room
for what starts then. Tensor and resident bytes are rounded up to whole bytes. A view
(`OperatorProblem.alias_of`) holds no bytes on the device where it is made; what it is a view of
stays there until the view's own last local consumer and transfer have ended, through views of
views. On a receiver it is a tensor like any other.

**Throughput.** The largest load of a device: its compute and every transfer on both of its
ends, each tensor once per pair of devices, latency included, channels not contended. Spans and
memory are then those of one sample played as for latency.

**Star.** Where transfers go through host memory, throughput is the largest load as in
`placewright.operators.simulation.star.loads`, and memory is resident bytes. The trace shows one
period of the pipeline: each device takes in its tensors, computes, and gives out its tensors.
Latency is that of one sample, in which accelerators are called:
`placewright.operators.simulation.star.latency`.

**Pipelines.** Replicated stages, clusters of accelerators, and passes that do not mix
(`OperatorProblem.pipeline`) are as in `judging.star.loads` and, over links, `judging.pair_loads`.

**Contiguous.** Where the problem asks for it, a plan whose devices form no chain of nested
ideals of the forward graph is infeasible, and the violation names an operator.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from placewright.numerics.arrays import FloatArray, IntArray, thawed
from placewright.operators.judgement import OperatorJudgement, Transfers, violation_words
from placewright.operators.plan import Dispatch, OperatorPlan, check_plan
from placewright.operators.problem import (
    Communication,
    Links,
    Objective,
    OperatorProblem,
    Overlap,
)
from placewright.operators.simulation import scores
from placewright.operators.simulation.batches import NO_ORDER, checked_batch, parts_of_batch
from placewright.operators.simulation.fast.state import FastState, copy_fast_state, make_fast_state
from placewright.operators.simulation.full import kernels
from placewright.operators.simulation.full.state import SimulatorState, copy_state, make_state
from placewright.operators.simulation.modes import DONE, Mode
from placewright.operators.simulation.pipelines import as_pipeline, is_pipeline
from placewright.operators.simulation.refusals import refusal
from placewright.operators.simulation.star.judge import judge_star
from placewright.operators.structure.contiguity import break_of_chain
from placewright.operators.structure.costs import kernel_costs

__all__ = ["Judge", "OperatorJudgement", "Transfers", "evaluate_many", "judge"]


def judge(problem: OperatorProblem, plan: OperatorPlan) -> OperatorJudgement:
    """Play a plan.

    Raises
    ------
    InputError
        The plan does not match the problem, or its order contradicts the graph.
    InfeasibleError
        An operator on a device that cannot run it, a tensor between devices without a link.
    """
    check_plan(problem, plan)
    if problem.communication is Communication.STAR:
        judgement = judge_star(problem, plan)
    else:
        judgement = Judge(problem)(plan)
        judgement = as_pipeline(judgement, plan) if is_pipeline(problem) else judgement
    return _chained(judgement) if problem.contiguous else judgement


def _chained(judgement: OperatorJudgement) -> OperatorJudgement:
    """The same, infeasible where the plan is not contiguous."""
    broken = break_of_chain(judgement.problem, judgement.placement)
    if not broken:
        return judgement
    words = "; ".join(x for x in (judgement.violation, broken) if x)
    return replace(judgement, feasible=False, violation=words)


class Judge:
    """A problem on a board, laid out once and played many times.

    Not to be shared between threads.

    Attributes
    ----------
    board
        What the kernels of `placewright.operators.simulation.full.kernels` play on, for compiled
        searches: ``run(*judge.board, judge.mode(), placement, order)``.
    """

    __slots__ = ("board", "problem", "swift")

    def __init__(self, problem: OperatorProblem) -> None:
        self.problem = problem
        costs = kernel_costs(problem)
        later = problem.is_backward if problem.pipeline.diffmaxima else None
        self.board = make_state(costs, len(problem.channel_names), later)
        self.swift = make_fast_state(costs, len(problem.channel_names))

    def mode(self, dispatch: Dispatch = Dispatch.READY, *, memory: bool = True) -> Mode:
        """What the problem asks to be played."""
        return Mode(
            contended=self.problem.links is Links.CONTENDED,
            serial=self.problem.overlap is Overlap.SERIAL,
            in_order=dispatch == Dispatch.IN_ORDER,
            memory=memory,
        )

    def __call__(self, plan: OperatorPlan) -> OperatorJudgement:
        """Play a plan that `check_plan` has passed."""
        order = NO_ORDER if plan.order is None else thawed(plan.order)
        code = kernels.run(*self.board, self.mode(plan.dispatch), thawed(plan.placement), order)
        if code != DONE:
            raise refusal(self.problem, self.board, code, plan)
        return self._judgement(plan)

    def many(
        self,
        placements: npt.ArrayLike,
        order: npt.ArrayLike | None = None,
        dispatch: Dispatch = Dispatch.READY,
    ) -> tuple[FloatArray, IntArray]:
        """Value and violation of every row of `placements`; see `evaluate_many`."""
        p = self.problem
        rows, fixed = checked_batch(p, placements, order)
        value_s, over = np.empty(len(rows)), np.zeros(len(rows), dtype=np.int64)
        mode = self.mode(dispatch, memory=_can_be_short(p))
        throughput = p.objective is Objective.THROUGHPUT

        def play(swift: FastState, board: SimulatorState, part: slice) -> None:
            scores.run_many(
                swift, *board, mode, throughput, rows[part], fixed, value_s[part], over[part]
            )

        parts = parts_of_batch(len(rows), len(rows) * (p.n + len(p.consumers)))
        if len(parts) == 1:
            play(self.swift, self.board, parts[0])
            return value_s, over
        with ThreadPoolExecutor(len(parts)) as pool:
            own = [(copy_fast_state(self.swift), copy_state(self.board), part) for part in parts]
            for done in [pool.submit(play, *arguments) for arguments in own]:
                done.result()
        return value_s, over

    def _judgement(self, plan: OperatorPlan) -> OperatorJudgement:
        p, (w, x, o), place = self.problem, self.board, plan.placement
        peak = w[o.peak : o.peak + p.m].copy()
        over = np.maximum(0, peak - w[o.memory_bytes : o.memory_bytes + p.m])
        return OperatorJudgement(
            problem=p,
            placement=place,
            value=self._value(place),
            feasible=not over.any(),
            violation=violation_words(p, over),
            violation_bytes=int(over.sum()),
            op_start_s=x[o.start_s : o.start_s + p.n].copy(),
            op_end_s=x[o.end_s : o.end_s + p.n].copy(),
            transfers=self._transfers(place),
            peak_bytes=peak,
            busy_s=_busy(p, place),
        )

    def _value(self, place: IntArray) -> float:
        w, x, o = self.board
        if self.problem.objective is Objective.LATENCY:
            return float(kernels.makespan(x, o))
        return float(kernels.largest_load(w, x, o, thawed(place), np.zeros(self.problem.m)))

    def _transfers(self, place: IntArray) -> Transfers:
        w, x, o = self.board
        count = int(w[o.moves])
        tensor = w[o.move_tensor : o.move_tensor + count]
        target = w[o.move_target : o.move_target + count]
        start, end = x[o.sent_s : o.sent_s + count], x[o.event_s + o.m : o.event_s + o.m + count]
        by = np.lexsort((target, tensor, start))
        source = place[self.problem.tensor_producer[tensor]]
        return Transfers(tensor[by], source[by], target[by], start[by], end[by])


def evaluate_many(
    problem: OperatorProblem,
    placements: npt.ArrayLike,
    order: npt.ArrayLike | None = None,
    dispatch: Dispatch = Dispatch.READY,
) -> tuple[FloatArray, IntArray]:
    """Value and memory violation of many placements at once.

    Groups and pins are not checked. A search that comes back often keeps a `Judge` and calls
    its `many`.

    Parameters
    ----------
    placements
        Shape (k, n), device indices.
    order
        Shape (n,), for all of them; by default the upward rank under each placement.

    Returns
    -------
    value_s
        Shape (k,), seconds, ``inf`` where the placement cannot be played.
    violation_bytes
        Shape (k,), bytes over, summed over devices.
    """
    return Judge(problem).many(placements, order, dispatch)


def _can_be_short(problem: OperatorProblem) -> bool:
    """Whether some device could not hold everything at once: else no bytes need be counted."""
    everything = np.ceil(problem.resident_bytes).sum() + np.ceil(problem.tensor_bytes).sum()
    return bool((problem.memory_bytes < everything + 1.0).any())


def _busy(problem: OperatorProblem, place: IntArray) -> FloatArray:
    """Seconds of compute of each device."""
    took = problem.compute_s[np.arange(problem.n), place]
    return np.bincount(place, took, minlength=problem.m).astype(np.float64)
