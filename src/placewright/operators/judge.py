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
for what starts then. Tensor and resident bytes are rounded up to whole bytes.

**Throughput.** The largest load of a device: its compute and every transfer on both of its
ends, each tensor once per pair of devices, latency included, channels not contended. Spans and
memory are then those of one sample played as for latency.

**Star.** Where transfers go through host memory, throughput is the largest load as in
`placewright.operators._star_loads`, and memory is resident bytes. The trace shows one period of
the pipeline: each device takes in its tensors, computes, and gives out its tensors. Latency is
that of one sample, in which accelerators are called: `placewright.operators._star_latency`.

**Contiguous.** Where the problem asks for it, a plan whose devices form no chain of nested
ideals of the forward graph is infeasible, and the violation names an operator.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from placewright.arrays import BoolArray, FloatArray, IntArray, frozen_int
from placewright.errors import InfeasibleError, InputError
from placewright.operators import _kernels as kernels
from placewright.operators import _scores as scores
from placewright.operators._board import Board, copy_board, make_board
from placewright.operators._contiguity import break_of_chain
from placewright.operators._costs import UNLIMITED, kernel_costs
from placewright.operators._memory import memory_curves
from placewright.operators._star_latency import star_latency
from placewright.operators._star_loads import StarLoads, star_loads
from placewright.operators._swift import Swift, copy_swift, make_swift
from placewright.operators.plan import Dispatch, OperatorPlan, check_plan
from placewright.operators.problem import (
    Communication,
    Links,
    Objective,
    OperatorProblem,
    Overlap,
)
from placewright.trace import Trace

_NO_ORDER = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Transfers:
    """What was sent, by start time; one entry per tensor and receiving device.

    Attributes
    ----------
    tensor, source, target
        Indices into the problem's tensors and devices.
    start_s, end_s
        When the channel was held.
    """

    tensor: IntArray
    source: IntArray
    target: IntArray
    start_s: FloatArray
    end_s: FloatArray

    def __len__(self) -> int:
        return len(self.tensor)


@dataclass(frozen=True, slots=True, eq=False)
class OperatorJudgement:
    """What a plan is worth, and how it plays.

    Attributes
    ----------
    value
        Seconds; lower is better.
    feasible
        Whether every device's peak fits its memory.
    violation
        The worst device and its bytes over, empty if feasible.
    violation_bytes
        Bytes over, summed over devices.
    op_start_s, op_end_s
        Shape (n,).
    peak_bytes
        Shape (m,), int64.
    busy_s
        Shape (m,), seconds of compute.
    """

    problem: OperatorProblem
    placement: IntArray
    value: float
    feasible: bool
    violation: str
    violation_bytes: int
    op_start_s: FloatArray
    op_end_s: FloatArray
    transfers: Transfers
    peak_bytes: IntArray
    busy_s: FloatArray

    @property
    def makespan_s(self) -> float:
        """End of the last operator of one sample; equals `value` for latency."""
        return float(self.op_end_s.max())

    def trace(self) -> Trace:
        """Spans on devices and channels, and memory over time."""
        p, moves = self.problem, self.transfers
        lane = p.m + p.channel[moves.source, moves.target]
        return Trace(
            lanes=(*p.device_names, *p.channel_names),
            devices=p.m,
            labels=(*p.operator_names, *p.tensor_names),
            lane=np.concatenate([self.placement, lane]),
            label=np.concatenate([np.arange(p.n), p.n + moves.tensor]),
            start_s=np.concatenate([self.op_start_s, moves.start_s]),
            end_s=np.concatenate([self.op_end_s, moves.end_s]),
            memory=memory_curves(
                p,
                self.placement,
                (self.op_start_s, self.op_end_s),
                (moves.tensor, moves.target, moves.end_s),
            ),
            title=f"{p.name}, predicted",
        )


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
        judgement = _star(problem, plan)
    else:
        judgement = Judge(problem)(plan)
    return _chained(judgement) if problem.contiguous else judgement


def _chained(judgement: OperatorJudgement) -> OperatorJudgement:
    """The same, infeasible where the plan is not contiguous."""
    broken = break_of_chain(judgement.problem, judgement.placement)
    if not broken:
        return judgement
    words = "; ".join(x for x in (judgement.violation, broken) if x)
    return replace(judgement, feasible=False, violation=words)


def _star(problem: OperatorProblem, plan: OperatorPlan) -> OperatorJudgement:
    """One period of the pipeline, or one sample, its transfers through host memory."""
    p, place = problem, plan.placement
    loads = star_loads(p, place)
    peak = np.bincount(place, np.ceil(p.resident_bytes), minlength=p.m).astype(np.int64)
    limited = np.isfinite(p.memory_bytes)
    room = np.where(limited, np.floor(p.memory_bytes), UNLIMITED).astype(np.int64)
    over = np.maximum(0, peak - room)
    value, start, end = _star_times(problem, plan, loads)
    none = np.zeros(0, dtype=np.int64)
    return OperatorJudgement(
        problem=p,
        placement=place,
        value=value,
        feasible=not over.any(),
        violation=_violation(p, over),
        violation_bytes=int(over.sum()),
        op_start_s=start,
        op_end_s=end,
        transfers=Transfers(none, none, none, np.zeros(0), np.zeros(0)),
        peak_bytes=peak,
        busy_s=loads.compute_s,
    )


def _star_times(
    problem: OperatorProblem, plan: OperatorPlan, loads: StarLoads
) -> tuple[float, FloatArray, FloatArray]:
    """The value, and start and end of each operator."""
    if problem.objective is Objective.LATENCY:
        played = star_latency(problem, plan)
        return played.value_s, played.op_start_s, played.op_end_s
    return float(loads.load_s.max()), *_period(problem, plan.placement, loads.entering)


def _period(
    p: OperatorProblem, place: IntArray, entering: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """Start and end of each operator after its device has taken in its tensors."""
    clock = (p.tensor_bytes[:, None] * entering).sum(axis=0) * p.host_seconds_per_byte
    start, end = np.empty(p.n), np.empty(p.n)
    for i in p.topology.order:
        d = place[i]
        start[i] = clock[d]
        end[i] = clock[d] = clock[d] + p.compute_s[i, d]
    return start, end


class Judge:
    """A problem on a board, laid out once and played many times.

    Not to be shared between threads.

    Attributes
    ----------
    board
        What the kernels of `placewright.operators._kernels` play on, for compiled searches:
        ``run(*judge.board, judge.mode(), placement, order)``.
    """

    __slots__ = ("board", "problem", "swift")

    def __init__(self, problem: OperatorProblem) -> None:
        self.problem = problem
        costs = kernel_costs(problem)
        self.board = make_board(costs, len(problem.channel_names))
        self.swift = make_swift(costs, len(problem.channel_names))

    def mode(self, dispatch: Dispatch = Dispatch.READY, *, memory: bool = True) -> kernels.Mode:
        """What the problem asks to be played."""
        return kernels.Mode(
            contended=self.problem.links is Links.CONTENDED,
            serial=self.problem.overlap is Overlap.SERIAL,
            in_order=dispatch == Dispatch.IN_ORDER,
            memory=memory,
        )

    def __call__(self, plan: OperatorPlan) -> OperatorJudgement:
        """Play a plan that `check_plan` has passed."""
        order = _NO_ORDER if plan.order is None else plan.order
        code = kernels.run(*self.board, self.mode(plan.dispatch), plan.placement, order)
        if code != kernels.DONE:
            raise self._error(code, plan)
        return self._judgement(plan)

    def many(
        self,
        placements: npt.ArrayLike,
        order: npt.ArrayLike | None = None,
        dispatch: Dispatch = Dispatch.READY,
    ) -> tuple[FloatArray, IntArray]:
        """Value and violation of every row of `placements`; see `evaluate_many`."""
        p = self.problem
        rows, fixed = _checked(p, placements, order)
        value_s, over = np.empty(len(rows)), np.zeros(len(rows), dtype=np.int64)
        mode = self.mode(dispatch, memory=bool(np.isfinite(p.memory_bytes).any()))
        throughput = p.objective is Objective.THROUGHPUT

        def play(swift: Swift, board: Board, part: slice) -> None:
            scores.run_many(
                swift, *board, mode, throughput, rows[part], fixed, value_s[part], over[part]
            )

        parts = _parts(len(rows), len(rows) * (p.n + len(p.consumers)))
        if len(parts) == 1:
            play(self.swift, self.board, parts[0])
            return value_s, over
        with ThreadPoolExecutor(len(parts)) as pool:
            own = [(copy_swift(self.swift), copy_board(self.board), part) for part in parts]
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
            violation=_violation(p, over),
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
        load_s = np.zeros(self.problem.m)
        kernels.loads(w, x, o, place, load_s)
        return float(load_s.max())

    def _transfers(self, place: IntArray) -> Transfers:
        w, x, o = self.board
        count = int(w[o.moves])
        tensor = w[o.move_tensor : o.move_tensor + count]
        target = w[o.move_target : o.move_target + count]
        start, end = x[o.sent_s : o.sent_s + count], x[o.event_s + o.m : o.event_s + o.m + count]
        by = np.lexsort((target, tensor, start))
        source = place[self.problem.tensor_producer[tensor]]
        return Transfers(tensor[by], source[by], target[by], start[by], end[by])

    def _error(self, code: int, plan: OperatorPlan) -> InputError | InfeasibleError:
        p, (w, _, o) = self.problem, self.board
        culprit, where = int(w[o.culprit]), f"plan for {p.name}"
        if code == kernels.NO_LINK:
            tensor, target = int(w[o.move_tensor + culprit]), int(w[o.move_target + culprit])
            source = int(plan.placement[p.tensor_producer[tensor]])
            return InfeasibleError(
                f"no link from {p.device_names[source]!r} to {p.device_names[target]!r} "
                f"for tensor {p.tensor_names[tensor]!r}",
                where=where,
                hint="add a link to the cluster or keep both operators on one device",
            )
        if code == kernels.NO_KERNEL:
            device = p.device_names[int(plan.placement[culprit])]
            return InfeasibleError(
                f"{p.operator_names[culprit]!r} cannot run on {device!r}", where=where
            )
        return InputError(
            f"the order contradicts the graph: {p.operator_names[culprit]!r} waits forever",
            where=where,
            hint="list producers before their consumers",
        )


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


def _checked(
    p: OperatorProblem, placements: npt.ArrayLike, order: npt.ArrayLike | None
) -> tuple[IntArray, IntArray]:
    """Placements and order as arrays that cannot lead a kernel astray."""
    rows = np.atleast_2d(frozen_int(placements))
    if rows.shape[1] != p.n or (rows.size and (rows.min() < 0 or rows.max() >= p.m)):
        raise InputError(
            "every placement needs one device that exists per operator",
            where=p.name,
            by=f"shape {rows.shape} for {p.n} operators, {p.m} devices",
        )
    fixed = _NO_ORDER if order is None else frozen_int(order)
    if order is not None and not np.array_equal(np.sort(fixed), np.arange(p.n)):
        raise InputError("order must list every operator once", where=p.name)
    return rows, fixed


PARALLEL_WORK = 1_000_000
"""Placements times (operators + tensor uses) from which a batch is shared among the cores."""


def _parts(rows: int, work: int) -> list[slice]:
    """One stretch of the rows per core where the batch is large."""
    cores = os.process_cpu_count() if hasattr(os, "process_cpu_count") else os.cpu_count()
    count = min(rows, cores or 1) if work >= PARALLEL_WORK else 1
    ends = [rows * x // count for x in range(count + 1)]
    return [slice(a, b) for a, b in pairwise(ends)]


def _busy(problem: OperatorProblem, place: IntArray) -> FloatArray:
    """Seconds of compute of each device."""
    took = problem.compute_s[np.arange(problem.n), place]
    return np.bincount(place, took, minlength=problem.m).astype(np.float64)


def _violation(problem: OperatorProblem, over: IntArray) -> str:
    """The worst device in words."""
    if not over.any():
        return ""
    worst = int(over.argmax())
    return f"{problem.device_names[worst]!r} needs {int(over[worst])} bytes more than it has"
