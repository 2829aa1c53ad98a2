"""Lower bounds of wing 1: values that no plan can beat, and the proofs.

Write T for the value of any plan that fits, x[i, d] = 1 where it runs operator i on device d.

**ceft** (latency). By induction over a topological order, operator i on its device ends no
earlier than ceft(i, its device): it starts after each of its inputs has arrived, an input
arrives no earlier than the least over all devices q of its producer's ceft on q plus the
transfer from q, and it runs for its compute time. Waiting for channels or devices only adds. So T
is at least the largest over operators of the least ceft. Floating point keeps this: the judge
rounds the same sums in the same order, and rounding is monotone.

**load**. Each device must do its share: T >= sum_i w[i, d] x[i, d] for every d, and what lives
there must fit: sum_i r[i] x[i, d] <= memory[d]. Relax x to fractions of colocation groups. For any
weights l >= 0 with sum 1 and prices u >= 0,

    T >= sum_d l[d] sum_i w[i, d] x[i, d] + sum_d u[d] (sum_i r[i] x[i, d] - memory[d])
      >= sum_i min_d (l[d] w[i, d] + u[d] r[i]) - sum_d u[d] memory[d],

whatever l and u are; mirror ascent looks for good ones, and the best value seen is the bound.
Also T >= min_d w[g, d] for each group g, which runs somewhere as a whole. Both hold for latency
and for throughput, where T is no less than the load of any device, whatever channels carry. Where
stages may be replicated, the first holds with x = 1/r on each of r copies, which hold more than
that share of the bytes; the second does not. Where passes do not mix, the sum of the largest loads
of both passes is no less than the largest sum.

**head-load-tail** (latency, devices side by side). Operator i starts no earlier than its head
h[i] = min_d (ceft(i, d) - w[i, d]), and from its end to the end of all it is no less than its tail
t[i] = min_d (ceft_up(i, d) - w[i, d]), by the same induction from the other end. For any a and b,
the operators with h >= a and t >= b run between a and T - b, and in that time each device does its
share of them: T >= a + b + sum of min_d l[d] w[i, d] over these operators, for any weights l as
above. It joins path and load where a graph is narrow at its ends.

**segments** (latency, devices side by side, for `auto`). What is between two operators takes the
longest way there, or all on one device, or transfers: see `placewright.operators.segments`.

**relaxed** (latency, devices side by side). The schedule as a linear program with starts, fractions
of devices and transfers, the loads between any two operators, and without what no plan can do that
is better than one that is known; see `placewright.operators.relaxed_bound`. It takes seconds and
is solved after the planners.

**path** (latency of calls through host memory, where CPUs do any number of things at once, so
that there is no load). The longest path, each operator where it is fastest: see
`placewright.operators.simulation.star.least_tails`.

**serial** (over links, one thing at a time, without copies). T >= sum over groups of
min_d w[g, d], since nothing overlaps, neither within a sample nor between two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import BoolArray, FloatArray
from placewright.operators.costs import Ceft, Groups, ceft, groups_of, heads_and_tails
from placewright.operators.load_bounds import balanced_weights, head_load_tail_bound, load_bound
from placewright.operators.problem import Objective, OperatorProblem, Overlap, pairwise_only
from placewright.operators.relaxed_bound import followers, relaxed_bounds
from placewright.operators.segments import Segments
from placewright.operators.simulation.star import is_star_latency, least_tails
from placewright.operators.sizes import room_bytes, whole_bytes
from placewright.planning.contract import BoundContext
from placewright.report.text import size
from placewright.solvers.programs import installed


def bounds(problem: OperatorProblem) -> dict[str, float]:
    """Lower bounds by name, seconds.

    Raises
    ------
    InfeasibleError
        A group that fits no device, more resident bytes than memory, or an operator that
        no linked device can run.
    """
    groups = groups_of(problem)
    fits = _fitting(problem, groups)
    if is_star_latency(problem):
        return {"path": _rounded_down(float(least_tails(problem).max()), problem.n)}
    work = _group_work(problem, groups, fits)
    load, weights = load_bound(work, groups.resident_bytes, problem.memory_bytes)
    largest = 0.0 if problem.pipeline.replication else float(work.min(axis=1).max())
    found = {"load": _rounded_down(max(largest, load), problem.n)}
    # Around host memory devices pay for transfers on their own, and throughput knows no overlap.
    serial = problem.overlap is Overlap.SERIAL and pairwise_only(problem) is None
    if serial and not problem.pipeline.replication:
        found["serial"] = _rounded_down(float(work.min(axis=1).sum()), problem.n)
    if problem.objective is Objective.LATENCY:
        tables = ceft(problem)
        found["ceft"] = tables.critical_s
        if not serial:
            weights = balanced_weights(work) if weights is None else weights
            found["head-load-tail"] = _head_load_tail(problem, tables, weights, groups)
    return found


def check_fits(problem: OperatorProblem) -> None:
    """Raise `InfeasibleError` as `bounds` does, in a fraction of its time."""
    _fitting(problem, groups_of(problem))


MOST_OPERATORS = 4000
MOST_ARRIVALS = 60_000
"""Operators, and tensors times devices, of problems that are relaxed as a whole."""

REFINED_SHARE, REFINED_S, LEAST_SHARE = 0.25, 5e-3, 0.05
"""Time of `auto` kept for the relaxed schedule: at most this share, these seconds per operator, but
at least this share."""


def refined_s(problem: OperatorProblem, limit_s: float) -> float:
    """Seconds of `limit_s` that are kept for `refined_bounds`."""
    if not _can_relax(problem):
        return 0.0
    needed_s = REFINED_S * problem.n
    if np.isinf(limit_s):  # no share of it is left for the planners
        return needed_s
    return min(REFINED_SHARE * limit_s, max(needed_s, LEAST_SHARE * limit_s))


def refined_bounds(problem: OperatorProblem, known: BoundContext) -> Iterator[tuple[str, float]]:
    """Bounds of the relaxed schedule as they rise, for `auto`."""
    needed = np.isfinite(known.value) and known.bound > 0
    if not known.auto or not needed or not _can_relax(problem):
        return
    follows = followers(problem)
    segments = Segments.of(problem, follows)
    bound = _rounded_down(min(segments.bound_s, known.value), problem.n)
    yield "segments", bound
    known = replace(known, bound=max(known.bound, bound))
    for found in relaxed_bounds(problem, segments, follows, known):
        yield "relaxed", _rounded_down(found, problem.n)


def _can_relax(problem: OperatorProblem) -> bool:
    """Latency over links, devices side by side, of a size that HiGHS takes, where it is there."""
    parallel = problem.overlap is Overlap.PARALLEL and pairwise_only(problem) is None
    small = problem.n <= MOST_OPERATORS and problem.t * problem.m <= MOST_ARRIVALS
    latency = problem.objective is Objective.LATENCY
    return latency and parallel and small and installed("highspy")


def _fitting(problem: OperatorProblem, groups: Groups) -> BoolArray:
    """Which group fits which device; raises where one fits none, or all do not fit all."""
    # Whole numbers, as the judge has them: sums of large floats would be off by some bytes.
    need, memory = np.zeros(len(groups.first), dtype=np.int64), room_bytes(problem)
    np.add.at(need, groups.group, whole_bytes(problem.resident_bytes))
    fits = groups.allowed & (need[:, None] <= memory)
    homeless = np.flatnonzero(~fits.any(axis=1))
    if len(homeless):
        g = int(homeless[0])
        largest = int(memory[groups.allowed[g]].max())
        device = problem.device_names[int(np.where(groups.allowed[g], memory, -1).argmax())]
        raise InfeasibleError(
            "an operator and what must live with it fit no device",
            where=f"{problem.name}: the group of {problem.operator_names[groups.first[g]]!r}",
            by=f"{size(float(need[g] - largest))} more than {device!r} has",
            hint="split the group, or raise a memory limit",
        )
    needed, room = sum(need.tolist()), sum(memory.tolist())
    if needed > room:
        device = problem.device_names[int(memory.argmax())]
        raise InfeasibleError(
            "resident bytes do not fit all devices together",
            where=problem.name,
            by=f"{size(float(needed))} of {size(float(room))}; "
            f"with all others full, {device!r} needs {size(float(needed - room))} more than it has",
            hint="raise a memory limit, or add a device",
        )
    return fits


def _group_work(
    problem: OperatorProblem,
    groups: Groups,
    fits: BoolArray,
) -> FloatArray:
    """Seconds of each group on each device, ``inf`` where it cannot be."""
    own = np.where(groups.allowed[groups.group], problem.compute_s, 0.0)
    work = np.zeros(fits.shape)
    np.add.at(work, groups.group, own)
    return np.where(fits, work, np.inf)


def _head_load_tail(
    problem: OperatorProblem, tables: Ceft, of_groups: FloatArray, groups: Groups
) -> float:
    """`of_groups`: weights of devices that balance the work of groups."""
    work = np.where(problem.allowed(), problem.compute_s, np.inf)
    head, tail = heads_and_tails(problem, tables)
    known = np.isfinite(tail)
    weights = [of_groups]
    if len(groups.first) < problem.n:  # else every operator is a group
        weights.append(balanced_weights(work))
    found = head_load_tail_bound(work[known], head[known], tail[known], weights)
    return _rounded_down(found, problem.n)


def _rounded_down(bound_s: float, n: int) -> float:
    """Less the error that summing n numbers in another order can make."""
    return bound_s * (1.0 - 4.0 * n * float(np.finfo(np.float64).eps))
