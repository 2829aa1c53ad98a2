"""List schedulers that choose among all ready operators: a priority and a rule, on one engine.

========== ======================= ================================ ==============================
planner    score of a device       the ready operator that is next  source
========== ======================= ================================ ==============================
min-min    finish                  of the least best score          Ibarra, Kim 1977
max-min    finish                  of the largest best score        the same
sufferage  finish                  that loses most by its second    Maheswaran et al. 1999
                                   best device
etf        start                   of the least best score          Hwang et al. 1989
dls        finish                  of the largest dynamic level     Sih, Lee 1993
bil        start + imaginary level of the largest k-th best score   Oh, Ha 1996
========== ======================= ================================ ==============================

Operators are appended to a device, gaps are not filled; transfers do not wait for each other. The
departures that all lists share are those of `placewright.operators.planners.lists.planners`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple, final

import numpy as np

from placewright.errors import OutOfTimeError
from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.numerics.clocks import stop_flag
from placewright.numerics.njit import njit_internal, njit_nogil
from placewright.operators.costs import Costs, move_time
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.lists.insertion import Rules, candidates
from placewright.operators.planners.lists.setup import (
    Setup,
    mean_upward_rank,
    optimistic_costs,
    scheduled_plan,
    set_up,
    within_memory,
)
from placewright.operators.problem import OperatorProblem, pairwise_only
from placewright.planning.contract import Context, Needs

Selection = Literal["least", "largest", "sufferage", "k-th"]
Score = Literal["start", "finish", "dynamic", "imaginary"]

LEAST, LARGEST, SUFFERAGE_RULE, KTH = range(4)
CODES: Mapping[Selection, int] = MappingProxyType(
    {"least": LEAST, "largest": LARGEST, "sufferage": SUFFERAGE_RULE, "k-th": KTH}
)


class Scores(NamedTuple):
    """What a rule compares; the score of an operator on a device is its start there, plus this.

    Attributes
    ----------
    added_s
        Shape (n, m).
    offset_s
        Shape (n,), taken off an operator's best score when operators are compared.
    rank
        Shape (n,): of equal operators that of the highest rank is next, then input order.
    rule
        One of `CODES`.
    """

    added_s: FloatArray
    offset_s: FloatArray
    rank: FloatArray
    rule: int


@njit_nogil
def _schedule(
    c: Costs, r: Rules, s: Scores, limited: bool, stop: BoolArray
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Place and times of every operator, up to that at which `stop` is set; -1 in place after."""
    n, m = c.compute_s.shape
    place, start_s, end_s = np.full(n, -1), np.zeros(n), np.zeros(n)
    free_s, used, chosen = np.zeros(m), np.zeros(m), np.full(len(r.group_bytes), -1)
    # When the inputs of a ready operator are on each device; its row is filled when it is ready.
    arrived_s = np.zeros((n, m))
    waiting, ready = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    score, open_, count = np.empty(m), np.empty(m, dtype=np.bool_), 0
    for i in range(n):
        waiting[i] = c.in_offsets[i + 1] - c.in_offsets[i]
        if waiting[i] == 0:
            ready[count] = i
            count += 1
    for _ in range(n):
        if stop[0]:
            break
        at, best_key = -1, -np.inf
        for x in range(count):
            i = ready[x]
            _score(c, r, s, limited, chosen, used, free_s, arrived_s, open_, score, i)
            key = _key(s, score, i, min(count, m))
            if at < 0 or key > best_key or (key == best_key and _before(s, i, ready[at])):
                at, best_key = x, key
        i = ready[at]
        _score(c, r, s, limited, chosen, used, free_s, arrived_s, open_, score, i)
        d = _device(c, s, score, i, count, m)
        if score[d] == np.inf:
            break
        place[i], start_s[i] = d, max(free_s[d], arrived_s[i, d])
        free_s[d] = end_s[i] = start_s[i] + c.compute_s[i, d]
        if chosen[r.group[i]] < 0:
            chosen[r.group[i]] = d
            used[d] += r.group_bytes[r.group[i]]
        count -= 1
        ready[at] = ready[count]
        count = _release(c, arrived_s, waiting, ready, count, i, d, end_s[i])
    return place, start_s, end_s


@njit_internal
def _release(
    c: Costs,
    arrived_s: FloatArray,
    waiting: IntArray,
    ready: IntArray,
    count: int,
    i: int,
    d: int,
    end_s: float,
) -> int:
    """Send the outputs of operator `i` from device `d`; how many operators are ready then."""
    for a in range(c.out_offsets[i], c.out_offsets[i + 1]):
        k = c.out_tensors[a]
        for b in range(c.offsets[k], c.offsets[k + 1]):
            j = c.consumers[b]
            for q in range(arrived_s.shape[1]):
                arrived_s[j, q] = max(arrived_s[j, q], end_s + move_time(c, k, d, q))
            waiting[j] -= 1
            if waiting[j] == 0:
                ready[count] = j
                count += 1
    return count


@njit_internal
def _score(
    c: Costs,
    r: Rules,
    s: Scores,
    limited: bool,
    chosen: IntArray,
    used: FloatArray,
    free_s: FloatArray,
    arrived_s: FloatArray,
    open_: BoolArray,
    out: FloatArray,
    i: int,
) -> None:
    """Scores of operator `i` on every device, ``inf`` where it may not go."""
    only = chosen[r.group[i]]
    if limited:  # memory decides, too
        candidates(c, r, chosen, used, i, open_)
    for d in range(len(out)):
        may = open_[d] if limited else (d == only if only >= 0 else r.allowed[i, d])
        out[d] = max(free_s[d], arrived_s[i, d]) + s.added_s[i, d] if may else np.inf


@njit_internal
def _key(s: Scores, score: FloatArray, i: int, k: int) -> float:
    """The operator of the largest key is next."""
    if s.rule == KTH:
        return _kth_least(score, k)
    first, second = np.inf, np.inf
    for d in range(len(score)):
        if score[d] < first:
            first, second = score[d], first
        elif score[d] < second:
            second = score[d]
    if first == np.inf:  # it can go nowhere: the schedule ends with it
        return np.inf
    if s.rule == SUFFERAGE_RULE:
        return second - first
    return first if s.rule == LARGEST else s.offset_s[i] - first


@njit_internal
def _kth_least(score: FloatArray, k: int) -> float:
    """The k-th least finite score, the largest where there are fewer, ``inf`` without one."""
    value, taken = -np.inf, 0
    while taken < k:
        least, same = np.inf, 0
        for d in range(len(score)):
            if score[d] > value and score[d] < least:
                least, same = score[d], 1
            elif score[d] == least:
                same += 1
        if least == np.inf:
            break
        value, taken = least, taken + same
    return value if taken else np.inf


@njit_internal
def _before(s: Scores, i: int, j: int) -> bool:
    """Whether `i` goes first of two operators of the same key."""
    return bool(s.rank[i] > s.rank[j] or (s.rank[i] == s.rank[j] and i < j))


@njit_internal
def _device(c: Costs, s: Scores, score: FloatArray, i: int, ready: int, m: int) -> int:
    """The device of least score, the earlier of equal ones; revised where `KTH` selects.

    Oh and Ha add an operator's own time for each ready operator that a device has to take beyond
    the first: with few devices a fast one is worth more than the way that is left.
    """
    crowd = max(ready / m - 1.0, 0.0) if s.rule == KTH else 0.0
    best, least = 0, np.inf
    for d in range(m):
        if score[d] == np.inf:
            continue
        value = score[d] + crowd * c.compute_s[i, d]
        if value < least:
            best, least = d, value
    return best


def _static_level(setup: Setup) -> FloatArray:
    """Shape (n,): the longest way to the end of all in mean times, without transfers."""
    return mean_upward_rank(setup.costs, setup.mean_compute_s, 0.0, 0.0)


def _work_s(setup: Setup) -> FloatArray:
    return np.where(setup.allowed, setup.problem.compute_s, np.inf)


SCORES: Mapping[Score, Callable[[Setup], FloatArray]] = MappingProxyType(
    {
        "start": lambda setup: np.zeros(setup.problem.compute_s.shape),
        "finish": lambda setup: setup.problem.compute_s,
        "dynamic": lambda setup: setup.problem.compute_s,
        # The imaginary level: the least time to the end if every device were free.
        "imaginary": lambda setup: _work_s(setup) + optimistic_costs(setup.costs, _work_s(setup)),
    }
)
"""Shape (n, m): what is added to an operator's start on a device."""


@final
@dataclass(frozen=True, slots=True)
class ReadyScheduler:
    """Of all ready operators the one that a rule selects, on the device of its best score.

    Looks at every ready operator and device in each step: O(n r m) with r ready operators at a
    time, and for `bil` the table of PEFT, O(e m^2). The module says which parameters make which
    published planner.

    Parameters
    ----------
    select
        The ready operator of the ``least`` or ``largest`` best score, of the largest difference
        between its best two (``sufferage``), or of the largest ``k-th`` score with k ready ones.
    score
        On a device: the ``start`` there, the ``finish``, the finish less the static level and the
        mean time of the operator (``dynamic``), or the start and what follows (``imaginary``).
    """

    name: str = "min-min"
    select: Selection = "least"
    score: Score = "finish"

    unsupported_reason = staticmethod(pairwise_only)

    def needs(self, problem: OperatorProblem) -> Needs:
        """Nanoseconds per step, ready operator and device, as if a square were ready; tables."""
        pairs, width = problem.n * problem.m, math.sqrt(problem.n)
        table_s = 1e-9 * pairs * problem.m if self.score == "imaginary" else 0.0
        return Needs(3e-9 * pairs * width + 1e-8 * pairs + table_s, 32.0 * pairs, ends=True)

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """The plan; raises `InfeasibleError`: an operator that no linked device can run.

        Where there is another plan, `OutOfTimeError` at the deadline.
        """
        setup = set_up(problem)
        level = _static_level(setup)
        offset = level + setup.mean_compute_s if self.score == "dynamic" else np.zeros(problem.n)
        scores = Scores(
            np.ascontiguousarray(SCORES[self.score](setup)), offset, level, CODES[self.select]
        )

        def build(budget_bytes: FloatArray) -> OperatorPlan:
            rules = setup.rules(budget_bytes)
            limited = bool(np.isfinite(budget_bytes).any())
            with stop_flag(context.giving_up_s) as stop:
                found = _schedule(setup.costs, rules, scores, limited, stop)
            left = int((found[0] < 0).sum())
            if stop[0] and left:
                raise OutOfTimeError("time limit reached", by=f"{left} operators are left")
            return scheduled_plan(problem, *found)

        return within_memory(problem, build, context.deadline_s)


MIN_MIN = ReadyScheduler()
"""Ibarra, Kim, J. ACM 24(2), 1977, doi 10.1145/322003.322011, algorithm D, of ready operators."""

MAX_MIN = ReadyScheduler("max-min", "largest")
"""The same, algorithm E: long operators first."""

SUFFERAGE = ReadyScheduler("sufferage", "sufferage")
"""Maheswaran et al., J. Parallel Distrib. Comput. 59(2), 1999, doi 10.1006/jpdc.1999.1581, without
their rounds: after every operator all others are compared again."""

ETF = ReadyScheduler("etf", "least", "start")
"""Hwang, Chow, Anger, Lee, SIAM J. Comput. 18(2), 1989, doi 10.1137/0218016, on heterogeneous
devices; ties by static level. `m-etf` is the same within memory, by heaps."""

DLS = ReadyScheduler("dls", "least", "dynamic")
"""Sih, Lee, IEEE TPDS 4(2), 1993, doi 10.1109/71.207593: the largest static level less start, plus
the operator's mean time less that on the device. Departures: means where they take medians;
transfers take what links take, without routing."""

BIL = ReadyScheduler("bil", "k-th", "imaginary")
"""Oh, Ha, Euro-Par 1996, doi 10.1007/BFb0024750: best imaginary levels."""

READY_LISTS = (MIN_MIN, MAX_MIN, SUFFERAGE, ETF, DLS, BIL)
